"""How queries, keys and values were made: of which parameters' rows, in which order, times what."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from unmasked_doctor._judge.made import Made
from unmasked_doctor._judge.names import declared_heads, listed, role_of
from unmasked_doctor._judge.steps import Fit, Scores
from unmasked_doctor._listen.calls import ROLES
from unmasked_doctor._listen.view import Run, changed, unclear
from unmasked_doctor._report import Finding, Given, Outcome
from unmasked_doctor._target import Target, restored

__all__ = ["projections"]


def projections(made: Made, scores: Scores, *, clear: bool) -> Iterator[Outcome]:
    """Judge scale and order by the parameters' rows that queries, keys and values are made of."""
    view = made.view
    outcomes = [*_never_used(made), *itertools.islice(_exchanged(made), 1)]
    yield from outcomes
    if any(isinstance(each, Finding) and each.cause != "zero-bias-parity" for each in outcomes):
        return
    if (name := _appended(view.target)) and not view.memory:
        if view.target.copied and _shifts(made, name):
            text = "bias_k and bias_v are added to every key and value, not appended as one more"
            yield view.wrong("projections", "bias-kv-as-shift", text)
        else:
            yield unclear("what bias_k and bias_v are for")
    if clear and not outcomes:
        yield from _output(made)
        order = list(itertools.islice(_order(made), 1))
        yield from order or _shared(made)
    yield from _norms(made)
    if scores.fit is not None:
        yield from _scaling(made, scores.fit)


def _never_used(made: Made) -> Iterator[Outcome]:
    """Find a bias, a norm or a transpose that was forgotten."""
    view, tensors, unused = made.view, made.view.target.tensors, made.unused
    for name in sorted(unused):
        weight = name.removesuffix("bias") + "weight"
        if name.endswith("bias") and weight in tensors.keys() - unused:
            yield view.wrong("parameters", "zero-bias-parity", f"{name} is never added, which biases of zero hide")
        twins = [other for one, two in (("q", "k"), ("k", "q"), ("query", "key"), ("key", "query"))
                 if (other := re.sub(rf"(?<![a-z]){one}(?=_|\d|norm)", two, name)) != name]  # fmt: skip
        if "norm" in name.lower() and any(twin in tensors.keys() - unused for twin in twins):
            yield view.wrong(
                "norms", None, f"{name} is never used, and its twin is: only one of queries and keys is normalized"
            )
    if made.flipped:
        yield view.wrong(
            "projections", "weight-not-transposed", f"multiplied by {made.flipped} as it is kept, not by its transpose"
        )


def _exchanged(made: Made) -> Iterator[Outcome]:
    """Find a projection that is passed as another's; the first that is found is told."""
    view, tensors, unused = made.view, made.view.target.tensors, made.unused
    for role, others in (("value", ("query", "key")), ("key", ("query",)), ("query", ("key",))):
        for other in others:
            if made.left(role) and made.full(role) and torch.equal(made.ids[role], made.ids[other]):
                text = f"the {other}'s projection passed as the {role}'s, which is never used"
                yield view.wrong("projections", "wrong-value" if role == "value" else None, text)
    for one, two in itertools.combinations(ROLES, 2):
        same_rows = made.full(one) and torch.equal(made.ids[one].sort(-1)[0], made.ids[two].sort(-1)[0])
        if same_rows and made.names(one) <= listed(view.target):
            text = f"{one} and {two} are made by one layer, which stands in its list several times: `[layer] * n`"
            yield view.wrong("projections", None, f"{text} copies none")
        shared = made.rows(one) & made.rows(two)
        if shared and shared != made.rows(one) and made.full(one) and made.full(two):
            yield view.wrong("projections", None, f"a part of the {two} is made by rows that make the {one}", "open")
    for role in ("value", "key", "query"):
        lost = [n for n in sorted(unused) if role_of(n) == role and tensors[n].dim() > 1]
        if lost and made.full(role) and made.names(role) == {""}:
            text = f"the {role} is what the layer before gave, and {lost[0]} is never used"
            yield view.wrong("projections", "wrong-value" if role == "value" else None, text)
    for one, two in (("key", "value"), ("query", "key")):
        if two in made.named(one) - made.named(two) and one in made.named(two) - made.named(one):
            text = f"what the names call {one} is used as the {two}, and the other way round"
            yield view.wrong("projections", None, text, "open")


def _appended(target: Target) -> str:
    """The bias of values that add_bias_kv appends, (1, 1, features), where there is none of queries; or ""."""
    last = {n.rpartition(".")[2]: n for n in target.tensors}
    name = last.get("bias_v", "")
    return name if name and "bias_q" not in last and target.tensors[name].shape[:-1] == (1, 1) else ""


def _shifts(made: Made, name: str) -> bool:
    """Whether all values move alike with this bias."""
    view, bias, before = made.view, made.view.target.tensors[name], made.call.value
    with restored(bias):
        bias.add_(1.0)
        after = view.run(made.same.case)
    if len(after.calls) != len(made.same.calls) or after.call.value.shape != before.shape:
        return False
    step = after.call.value - before
    return bool(step.abs().max() > 1e-3) and view.near(step, step[:, :, :1].expand_as(step))


def _norms(made: Made) -> Iterator[Outcome]:
    """Where queries or keys are no affine map, ask whether they are normalized, and over what."""
    view, same = made.view, made.same
    for role in ("query", "key"):
        if made.affine[role]:
            continue

        def normed(run: Run, role: str = role) -> bool:
            x = getattr(run.call, role)[:, :, 0] if len(run.calls) == len(same.calls) else torch.zeros(0, 1, 1)
            return _on_ellipsoid(x) or _on_ellipsoid(x.flatten(1).unsqueeze(1))  # each head's, or all heads' at once

        x = getattr(same.call, role)[:, :, 0]  # items heads features
        over_heads = x.size(1) > 1 and _on_ellipsoid(x.transpose(1, 2))
        wide = 2 * x[0].numel() + 5  # a norm over all heads shows in more items than features
        if over_heads and not normed(same):
            yield view.wrong("norms", None, "queries and keys are normalized over the heads, not over the features")
            return
        if normed(same) or (len(x) < wide <= 520 and normed(view.run(view.case(wide, same=True)))):
            value = same.call.value[:, :, 0]
            latent = torch.equal(value, same.call.key[:, :, 0])  # of which both are made, behind and before
            if made.affine["query"] and not made.affine["value"] and not latent and _on_ellipsoid(value):
                yield view.wrong("norms", None, "keys and values are normalized, and queries are not")
                return
            yield Given("norms of queries and keys")
        elif normed(view.run(changed(same.case, lambda x: 1e4 * x))):
            text = "the norm of queries and keys has so large an epsilon that it does not normalize"
            yield view.wrong("norms", None, text)
            return
        else:
            yield unclear(f"how its {role} is made")


def _on_ellipsoid(x: Tensor) -> bool:
    """Whether the last axis lies on one, as what is normalized and then scaled and shifted does."""
    if x.size(0) < 2 * x.size(-1) + 4:
        return False
    terms = torch.cat([x.square(), x], -1).transpose(0, 1)  # heads items features
    one = torch.ones_like(terms[..., :1])
    solved = torch.linalg.lstsq(terms, one, driver="gelsd").solution
    return bool(((terms @ solved - 1).abs() < 5e-3).all())


def _output(made: Made) -> Iterator[Outcome]:
    """Where the output is the merged context times a matrix, ask which."""
    view, call, target, unused = made.view, made.call, made.view.target, made.unused
    merged = call.context.transpose(1, 2).flatten(2)
    by_feature = call.context.permute(0, 2, 3, 1).flatten(2)
    tokens, output = made.same.case.query, made.same.output
    for rest in (torch.zeros_like(output), tokens, 2 * tokens):
        if rest.shape != output.shape:
            continue
        y = output - rest
        size = y.abs().max().item()
        if view.near(y, merged, size):
            lost = [n for n in sorted(unused) if target.tensors[n].dim() == 2 and role_of(n) == "out"]
            if lost:
                text = f"the output projection is left out: {lost[0]} is never used"
                yield view.wrong("output", "missing-out-proj", text)
            return
        for name, tensor in target.tensors.items():
            owner = target.owners[name]
            if not isinstance(owner, nn.Linear) or tensor is not owner.weight or name in unused:
                continue
            matrix = tensor.detach().to("cpu")
            if matrix.shape != (y.size(-1), merged.size(-1)):
                continue
            bias = 0 if owner.bias is None else owner.bias.detach().to("cpu")
            if view.near(y, merged @ matrix.mT + bias, size):
                if rest is not tokens and bool(rest.any()):
                    text = "what it is given is added to its output twice: a residual around another"
                    yield view.wrong("output", None, text)
                idle = [n for n in sorted(unused) if target.tensors[n].shape == tensor.shape]
                of = [role for role in ROLES if name in made.names(role)]
                if idle and of:
                    text = f"{name} makes its {of[0]} and its output, and {idle[0]} is never used"
                    yield view.wrong("output", None, text)
                return
            if call.context.size(1) > 1 and view.near(y, by_feature @ matrix.mT + bias, size):
                yield unclear("its heads are merged feature by feature")
            elif matrix.size(0) == matrix.size(1) and view.near(y, merged @ matrix + bias, size):
                yield view.wrong(
                    "output", "weight-not-transposed", f"multiplied by {name} as it is kept, not by its transpose"
                )


def _order(made: Made) -> Iterator[Outcome]:
    """Compare the heads of queries, keys and values: which rows each is made of; the first that is found is told."""
    view = made.view
    heads, dim = made.call.query.shape[1::2]
    declared, stated = made.heads, view.subject.num_heads
    several = len(made.same.calls) > 1 and stated is not None and heads % stated == 0  # calls of as many heads each
    if stated and heads != stated and not several and (dim != stated or declared_heads(view.target) == heads):
        yield view.wrong(
            "heads", None, f"it has {heads} heads of {dim} features, and num_heads={stated} was given", "open"
        )
    if declared and heads != declared and dim == declared:
        text = f"the view has heads and head_dim exchanged: there are {heads} heads of {dim} features"
        yield view.wrong("heads", "swapped-view", text)
    if heads < 2:
        return
    kinds = {role: made.kind(role) for role in ROLES}
    if made.full("query") and len(set(made.groups("query"))) == 1:
        yield view.wrong("heads", None, "every head's queries are made of the same rows: the heads are one head")
    if {"in a row", "apart"} <= {kinds["query"], kinds["key"]}:
        which = "query" if kinds["query"] == "apart" else "key"
        text = f"the {which}'s view has heads and head_dim exchanged: a head takes one feature of every {heads}"
        yield view.wrong("heads", "swapped-view", text)
    if not (made.full("key") and made.full("value")):
        return
    key, value = made.ranks("key"), made.ranks("value")
    apart = len(set(key)) == heads and kinds["key"] == kinds["value"] == "in a row"
    if apart and sorted(key) == sorted(value) and key != value:
        text = f"the heads of keys are {key}, those of values {value}: they belong to others"
        yield view.wrong("heads", None, text, "open")
    if 1 < len(set(key)) == len(set(value)) < heads and key != value:
        text = "a query head's keys and values come from different key heads"
        yield view.wrong("heads", "repeat-for-repeat-interleave", text)


def _shared(made: Made) -> Iterator[Outcome]:
    """Ask which key head each query head has, where there are fewer."""
    view, heads, known = made.view, made.call.query.size(1), made.full("key") and made.full("value")
    ranks, of_values = (made.ranks("key"), made.ranks("value")) if known else (
        _alike(made, made.call.key), _alike(made, made.call.value)
    )  # fmt: skip
    if not 1 < len(set(ranks)) < heads or ranks != of_values:
        return
    count = len(set(ranks))
    right, dealt = [h * count // heads for h in range(heads)], [h % count for h in range(heads)]
    if ranks == dealt and made.call.copied:  # right, if the checkpoint was trained so
        text = "the heads of keys and values are dealt out in turn: neighbors among the query heads share none"
        yield view.wrong("heads", "repeat-for-repeat-interleave", text)
        return
    by_row = made.ranks("query") if made.full("query") else right
    placed = [ranks[by_row.index(row)] for row in range(heads)] if len(set(by_row)) == heads else right
    if ranks == right and placed != right:
        text = f"query heads, as their rows stand, have the key heads {placed}, where enable_gqa gives them {right}"
        yield unclear(f"whether it was trained so: {text}")
    if ranks not in (right, dealt):
        yield unclear(f"query heads have the key heads {ranks}")


def _alike(made: Made, x: Tensor) -> list[int]:
    """For each head the first one that is the same, counted among the different ones."""
    firsts: list[int] = []
    ranks = []
    for head in range(x.size(1)):
        same = next((n for n, first in enumerate(firsts) if made.view.near(x[:, first], x[:, head])), None)
        ranks.append(len(firsts) if same is None else same)
        firsts += [head] if same is None else []
    return ranks


def _scaling(made: Made, fit: Fit) -> Iterator[Outcome]:
    """Judge the factor between rows times rows and scores."""
    view, call, dim, scale = made.view, made.call, made.call.query.size(-1), fit.scale
    q, k = made.factor("query"), made.factor("key")
    affine = made.affine["query"] and made.affine["key"]
    if affine and made.full("query") != made.full("key"):
        known, other = ("query", "key") if made.full("query") else ("key", "query")
        yield unclear(
            f"how its {other} is turned at the first place, where its {known} is not: positions may be one apart"
        )
        return
    if q is None or k is None:
        if not view.near(scale * call.gain, torch.full_like(scale, dim**-0.5)):
            yield unclear("by what its scores are divided") if affine else Given("the scale of its scores")
        return
    total = scale * q * k
    if view.near(total, torch.full_like(total, dim**-0.5)) or dim == 1:
        return
    learned = any(t.numel() in (1, call.query.size(1)) and t.requires_grad for t in view.target.tensors.values())
    if learned:
        yield Given("a scale that is learned")
    outcome = next(outcome for fits, outcome in _scales(made, fit, total, learned=learned) if fits)
    if outcome is not None:
        yield outcome


def _scales(made: Made, fit: Fit, total: Tensor, *, learned: bool) -> Iterator[tuple[bool, Outcome | None]]:
    """What may stand in the place of one over the root of head_dim, and what it means: the first row that fits."""
    view, call = made.view, made.call
    one, dim, every = total[0].item(), call.query.size(-1), view.constants("")
    kept = view.constants("scal", "temp", "tau", "multiplier", "beta", "sharp", "query_pre")

    def near(number: float) -> bool:
        return abs(one - number) < 1e-6 * number

    different = unclear("its heads divide scores by different numbers")
    yield not view.near(total, torch.full_like(total, one)), None if learned else different
    text = "the scores have the other sign: what is most alike is seen the least"
    yield one < 0 and not learned, view.wrong("scale", None, text)
    none = near(1.0)
    few = none and dim < call.value.size(-1)  # as in SAGAN, which has no scale by design
    yield few, unclear("whether queries of fewer features than values go without a scale")
    yield none and 1.0 in kept, Given("a scale of its own")  # as Granite has it
    spread = (fit.added - fit.added.mean((1, 2), keepdim=True)).abs().max().item()
    biased = none and spread > 1e-6 and bool(view.target.tensors)  # as in T5
    yield biased, Given("scores without a scale, to which something is added")
    text = "whether scores go without a scale, as queries and keys are cast to float32 for them"
    yield none and view.subject.upcast, unclear(text)  # as in GPT-Neo, whose scores are large
    yield none and made.begins_small(), unclear("whether scores go without a scale, which smaller weights begin with")
    yield none, view.wrong("scale", "missing-scale", "the scores are not divided by the root of head_dim")
    heads, _, keys = call.scores.shape[1:]
    sizes = {view.subject.embed_dim: "embed_dim", heads: "num_heads", dim * heads: "all heads"}
    sizes |= {keys: "the number of keys", call.scores.size(0): "the batch"}
    others = {n: name for n, name in sizes.items() if n not in (1, dim)}
    numbers = [(n**-0.5, f"divided by the root of {name}, {n}") for n, name in others.items()]
    numbers += [(1 / n, f"divided by {name}, {n}") for n, name in others.items()]
    numbers += [(1 / dim, f"divided by head_dim, {dim}"), (dim**0.5, "multiplied by the root of head_dim")]
    parts = [c for c in every if c < dim and dim - c in every]
    numbers += [(c**-0.5, f"divided by the root of {c:g}, a part of a head") for c in parts]
    for number, how in numbers:
        text = f"the scores are {how}, not divided by the root of {dim}"
        yield near(number), view.wrong("scale", "wrong-d-in-scale", text)
    yield learned, None
    yield any(near(v) for c in kept for v in (c, c**-0.5, 1 / c)), Given("a scale of its own")
    root = one**-2
    text = f"the scores are divided by the root of {round(root)}, none of its sizes: a name read from outside"
    yield abs(root - round(root)) < 1e-5 * root and root < 1e6, view.wrong("scale", "global-d-k", text)
    yield True, unclear(f"the scores are multiplied by {one:.4g}")
