"""What is wrong in one call of attention wherever it stands, whatever its neighbors do."""

from __future__ import annotations

import re
from collections.abc import Iterator

from unmasked_doctor._report import Finding, Standing
from unmasked_doctor._unlike import Seen

__all__ = ["NAMED", "alone", "unlike_textbook"]

# The last part of a module's name, such as `q_proj` or `to_v`, and the role that it says.
NAMED = re.compile(
    r"(?i)^(?:w_?|to_?|lin_?|linear_?|fc_?|proj_?|in_)?(q|k|v|query|key|value|queries|keys|values)(?:_?(proj|lin|linear|layer|w))?$"
)
_CROSS = re.compile(r"(?i)cross|enc_?dec|encoder_attn|src_attn|encdec")


def alone(seen: Seen, *, backward: bool = False) -> Iterator[Finding]:
    """Find what is wrong in one call by itself, without the others of the model.

    Args:
        seen: The call.
        backward: Whether other calls see only earlier tokens, so that this one may see only later ones: as where one
            reads a text forwards and another backwards.
    """
    call, wires, turns = seen.call, seen.wires, seen.wires.turns
    row = f"the weights of a query sum to {float(call.weights[0, 0, -1].sum()):.3g}"
    blind = call.weights.isnan().all(-1)
    sides = {name: turn.kind for name, turn in turns.items()}
    which, other = ("query", "key") if sides.get("query") == "turned" else ("key", "query")
    strays = [role for role, tokens in wires.tokens.items() if tokens == "other tokens" and role not in wires.viewed]
    firsts = [role for role, tokens in wires.tokens.items() if tokens == "the first item"]
    view = "each head reads just what view(batch, heads, tokens, head_dim) gives it"
    # What must hold; then the step, check, cause, text, evidence and standing of the finding.
    rows: list[tuple[object, str, str, str | None, str, str, Standing]] = [
        (call.weights.isnan().any() and not (blind | ~call.weights.isnan().any(-1)).all(), "", "weights", None,
         "some of its weights are not numbers", "in a row, some are NaN and others are not", "followed"),
        (call.over == "queries" and not seen.sums, "softmax", "weights", "softmax-over-queries",
         "the softmax runs over the queries: the weights of a query do not sum to one, those of a key do", row,
         "followed"),
        (call.dropout, "", "dropout", "dropout-in-eval",
         f"weights are dropped with probability {call.dropout:g} though the model is in evaluation mode",
         f"its call has dropout_p {call.dropout:g}", "followed"),
        (call.over == "other" and not seen.sums, "softmax", "weights", None,
         "the softmax runs over neither keys nor queries: the weights of a query do not sum to one", row, "followed"),
        (_misnamed(seen), "projections", "projections", "wrong-value",
         f"its values come from {_misnamed(seen)!r}, and what is named as values is not where they come from",
         "by the layer that made the numbers", "followed"),
        (wires.viewed, "layout", "heads", "view-without-transpose",
         f"the heads of its {' and '.join(wires.viewed)} are split by a view alone: a head reads the features of "
         "other tokens", view, "followed"),
        (wires.torn and not wires.viewed, "layout", "heads", None,
         f"its {' and '.join(wires.torn)} is put together of several tokens' features, as by a reshape that does not "
         "move axes first", "by the rows and columns of what its layer gave", "followed"),
        (firsts, "layout", "tokens", "only-first-item",
         f"every item has the {' and '.join(firsts)} of the first one", "each head reads rows of the first item",
         "followed"),
        (strays and not wires.viewed and len(strays) < len(wires.tokens), "layout", "tokens", None,
         f"its {' and '.join(strays)} is read of other tokens than its own", "by the rows of the layer before it",
         "followed"),
        (wires.merge == "viewed", "layout", "heads", "merge-without-transpose",
         "its heads are merged without transposing back: an output mixes the features of other tokens",
         "each row that the next layer reads is just what reshape without transpose gives", "followed"),
        (seen.ones, "mask", "masks", "boolean-mask-added",
         "what is added to the scores has only zeros and ones: a mask that hides nothing",
         "the scores differ from the products by 0 or 1", "open"),
        (sorted(sides.values()) == ["plain", "turned"], "positions", "positions", None,
         f"positions turn its {which} and not its {other}: scores depend on more than the distance",
         f"the {other} is what its layer gave", "open"),
        (seen.ahead and not backward, "mask", "causal", "mask-polarity",
         "its queries see later tokens, and none of the earlier", "all weights on earlier tokens are zero",
         "followed"),
        (wires.own and _CROSS.search(seen.name), "inputs", "sources", None,
         "its name says that it attends to another sequence, and its keys are made of its own",
         "keys and queries are made of one tensor", "open"),
    ]  # fmt: skip
    for holds, step, check, cause, text, evidence, how in rows if seen.finite else ():
        if holds:
            yield Finding(check, cause, text, evidence, how=how, where=seen.name, step=step)


def unlike_textbook(seen: Seen) -> Iterator[Finding]:
    """Find what a module by itself does otherwise, and what the layers of a model may have in common by design.

    Args:
        seen: The call.
    """
    if raw := seen.raw_roles:
        text = f"its {' and '.join(raw)} read tokens without the norm that the others read them with"
        yield Finding("norms", None, text, "by what the layers that make them were given", how="followed",
                      where=seen.name, step="norms")  # fmt: skip
    yield from _scaled(seen)


def _scaled(seen: Seen) -> Iterator[Finding]:
    """Find scores that are divided by another number than the root of head_dim, where no norm comes between."""
    scale, (heads, _, dim) = seen.scale, seen.call.query.shape[1:]
    normed = any(turn.kind == "other" for turn in seen.wires.turns.values())
    if scale is None or not seen.finite or normed or len(seen.wires.reads) < 3 or abs(scale * dim**0.5 - 1) < 1e-3:
        return
    cause = "missing-scale" if abs(scale - 1) < 1e-3 else "wrong-d-in-scale"
    by = f"1/sqrt({heads * dim})" if abs(scale * (heads * dim) ** 0.5 - 1) < 1e-3 else f"{scale:g}"
    text = "its scores are not scaled" if cause == "missing-scale" else f"its scores are scaled by {by}"
    yield Finding("scale", cause, f"{text}, not by 1/sqrt({dim})", "seen in what its own forward pass multiplies",
                  how="followed", where=seen.name, step="scale")  # fmt: skip


def _misnamed(seen: Seen) -> str:
    """Return the layer that makes the values, if its name says keys or queries and another's says values; or ""."""
    names = {role: {name for name, _ in reads} for role, reads in seen.wires.reads.items()}
    if set(names) != {"query", "key", "value"} or any(len(each) > 1 for each in names.values()):
        return ""
    said = {role: NAMED.search(next(iter(each)).rpartition("/")[2].rpartition(".")[2]) for role, each in names.items()}
    letters = {role: found[1][0].lower() if found else "" for role, found in said.items()}
    wrong = letters["value"] in ("k", "q") and "v" in (letters["key"], letters["query"])
    return next(iter(names["value"])) if wrong else ""
