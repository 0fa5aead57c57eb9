"""Whether a target's outputs are those of an independent attention, with the matrices of one of its forward passes.

Queries, keys, values and outputs are affine maps of what they are made of, and each map is solved for: no name of a
parameter has to be trusted. With these maps the textbook's attention is computed for other inputs and other sizes, and
compared with what the target gives. A mistake is this attention with one step done otherwise. The ``weights`` that the
caller named must be the maps that were found.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from unmasked import masks
from unmasked_doctor._judge.inside import Inside
from unmasked_doctor._listen.calls import ROLES
from unmasked_doctor._listen.view import EQUALITY, Run, View, without_memory
from unmasked_doctor._report import Finding, Given, Outcome, Passed, Standing
from unmasked_doctor._subject import Case, Subject
from unmasked_doctor._target import Target, with_article
from unmasked_doctor.probes import differs

__all__ = ["Maps", "Steps", "attend", "compared", "named"]

# How far outputs may lie apart, as a share of their size: a constant of the target may have been kept in float32.
_SAME, _SAME_ROUGH = 1e-6, 1e-3


@dataclass(frozen=True)
class Maps:
    """The affine maps that make queries, keys, values and the output: (out, in + 1) each, the last column is the bias.

    Attributes:
        query, key, value: The rows of the first head, then those of the next; as many heads for each of the three.
        out: Applied to the merged heads, and to the input beside them if that is added to the output.
        heads: How many there are.
        more: Keys and values for each head that no input makes, if there are some.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    out: Tensor
    heads: int
    more: tuple[Tensor, Tensor] | None = None


def _split(x: Tensor, heads: int) -> Tensor:
    split: Tensor = x.unflatten(-1, (heads, -1))
    return split.transpose(1, 2)


def _merge(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


def _weigh(scores: Tensor, hidden: Tensor) -> Tensor:
    return scores.masked_fill(hidden, -torch.inf).softmax(-1)


@dataclass(frozen=True)
class Steps:
    """The steps that a mistake does otherwise: the factor of the scores, the weights, and how heads are merged."""

    scale: float | None = None
    weigh: Callable[[Tensor, Tensor], Tensor] = _weigh
    merge: Callable[[Tensor], Tensor] = _merge


def attend(maps: Maps, case: Case, hidden: Tensor, steps: Steps | None = None) -> Tensor:
    """Compute the textbook's attention, or with steps done otherwise; ``hidden`` is True where a query sees no key.

    Returns:
        (batch, queries, out).
    """
    steps = steps or Steps()
    q, k, v = (_split(_affine(x, m), maps.heads) for x, m in ((case.query, maps.query), (case.key, maps.key),
                                                              (case.value, maps.value)))  # fmt: skip
    if maps.more is not None:  # a key and a value for every query, such as those of add_bias_kv
        k, v = (torch.cat([x, m.expand(len(x), -1, -1, -1)], 2) for x, m in zip((k, v), maps.more, strict=True))
        hidden = torch.cat([hidden, hidden.new_zeros(*hidden.shape[:-1], maps.more[0].size(-2))], -1)
    scale = q.size(-1) ** -0.5 if steps.scale is None else steps.scale
    merged = steps.merge(steps.weigh(q @ k.mT * scale, hidden) @ v)
    if maps.out.size(1) > merged.size(-1) + 1:
        merged = torch.cat([merged, case.query], -1)
    return _affine(merged, maps.out)


def _affine(x: Tensor, matrix: Tensor) -> Tensor:
    return x @ matrix[:, :-1].mT + matrix[:, -1]


_MISTAKES: dict[str, tuple[Steps, ...]] = {
    "missing-scale": (Steps(scale=1.0),),
    "merge-without-transpose": (Steps(merge=lambda c: c.reshape(c.size(0), c.size(2), -1)),),
    "softmax-over-queries": (Steps(weigh=lambda s, h: s.masked_fill(h, -torch.inf).softmax(-2).nan_to_num(0.0)),),
    "no-causal-mask": (Steps(weigh=lambda s, h: s.softmax(-1)),),
    "padding-ignored": (Steps(weigh=lambda s, h: s.softmax(-1)),),
    "mask-polarity": (Steps(weigh=lambda s, h: s.masked_fill(~h, -torch.inf).softmax(-1)),
                      Steps(weigh=lambda s, h: s.masked_fill(~h, -1e9).softmax(-1))),
    "boolean-mask-added": (Steps(weigh=lambda s, h: (s + h.to(s)).softmax(-1)),),
    "float-mask-of-ones": (Steps(weigh=lambda s, h: (s + (~h).to(s)).softmax(-1)),
                           Steps(weigh=lambda s, h: (s * (~h).to(s)).softmax(-1))),
    "mask-after-softmax": (Steps(weigh=lambda s, h: s.softmax(-1) * ~h),),
    "weights-not-normalized": (Steps(weigh=lambda s, h: s.exp().masked_fill(h, 0.0)),
                               Steps(weigh=lambda s, h: s.softmax(1)), Steps(weigh=lambda s, h: s.softmax(0))),
}  # fmt: skip


_SCALED = ("wrong-d-in-scale", "global-d-k")  # mistakes that are another scale, which is that of `Inside`


def compared(subject: Subject, inside: Inside) -> Iterator[Outcome]:
    """Compare the target with an independent attention, which makes the mistake that was found, if there is one."""
    wrong = [each for each in inside.findings if each.how != "open"]
    cause = wrong[0].cause if wrong else None
    known = not inside.opens and len(wrong) < 2 and (not wrong or cause in _MISTAKES or cause in _SCALED)
    maps = None
    if known and inside.run is not None and inside.view is not None and inside.made is not None:
        with contextlib.suppress(RuntimeError, ValueError):  # shapes that were read do not fit each other
            maps = _read(replace(inside.view, memory=False, idle=frozenset()), inside, inside.run, cause)
    if maps is None and inside.right:
        yield Passed(f"{EQUALITY}, step by step")
        if subject.options.weights:
            yield Given("the order of its rows, with which weights= was not compared")
    elif maps is not None:
        yield replace(wrong[0], how="equal") if wrong else _differs_from_stated(subject, maps) or Passed(EQUALITY)


def _read(view: View, inside: Inside, base: Run, cause: str | None) -> Maps | None:
    """Solve for the maps with which attention, or the mistake of this cause, gives the target's outputs.

    None if there are none, or if their attention gives other outputs than the target for other inputs.
    """
    run = view.run(view.case(max(base.call.query.size(0), _items(base))))
    if len(run.calls) != len(base.calls):
        return None
    raw = run.call
    run = without_memory(run)
    call, case = run.call, run.case
    maps = {}
    for role in ROLES:
        solved = _solved(getattr(case, role), getattr(call, role).transpose(1, 2).flatten(2))
        if solved is None:
            return None
        maps[role] = solved / call.gain if role == "query" and call.gain else solved  # queries may be scaled already
    more = None
    if raw.key.size(2) != call.key.size(2):
        kept = ~raw.tokens_own[0]
        more = (raw.key[:1, :, kept], raw.value[:1, :, kept])
    steps = _MISTAKES.get(cause or "", (Steps(),))
    if cause in _SCALED and inside.scale is not None:
        steps = (Steps(float(inside.scale[0]) * call.gain),)
    for each in steps:
        merged = each.merge(call.context)
        for inputs in ([merged], [merged, case.query]):
            out = _solved(torch.cat(inputs, -1), run.output) if inputs[-1].shape[:2] == run.output.shape[:2] else None
            if out is None:
                continue
            whole = Maps(maps["query"], maps["key"], maps["value"], out, call.query.size(1), more)
            if _agrees(view, whole, each, causal=inside.causal):
                return whole
    return None


def _items(base: Run) -> int:
    """Return how many items give enough rows to solve for every map."""
    features = max(*(x.size(-1) for x in (base.case.query, base.case.key, base.case.value)),
                   base.call.context.size(1) * base.call.context.size(-1)) + base.case.query.size(-1)  # fmt: skip
    return 2 + -(-(features + 8) // base.case.query.size(1))


def _solved(inputs: Tensor, outputs: Tensor) -> Tensor | None:
    """Return the affine map from inputs to outputs, (out, in + 1); None if there is none, or too few rows to tell."""
    x, y = inputs.flatten(0, 1), outputs.flatten(0, 1)
    if not y.isfinite().all() or x.size(0) != y.size(0):
        return None
    x = torch.cat([x, torch.ones_like(x[:, :1])], -1)
    if x.size(0) < x.size(1) + 2:
        return None
    solved = torch.linalg.lstsq(x, y, driver="gelsd").solution
    size = y.abs().max().item()
    limit = _SAME if y.dtype == torch.float64 else _SAME_ROUGH
    return solved.mT if bool((x @ solved - y).abs().max() <= limit * max(size, 1e-3)) else None


def _agrees(view: View, maps: Maps, steps: Steps, *, causal: bool | None) -> bool:
    """Whether attention with these maps gives the target's outputs, for other inputs and sizes."""
    subject = view.subject
    sizes = [(subject.items, subject.tokens)] + ([] if subject.fixed else [(2, 3), (1, 2 * subject.tokens + 3)])
    for items, tokens in sizes:
        for keys in {tokens, tokens + view.longer}:
            case = subject.case(items, tokens, keys)
            allowed = subject.may(case, tokens, keys)
            if subject.causal is None and causal and case.allowed is None:
                allowed = masks.causal(tokens, keys)[None]
            hidden = torch.zeros(1, 1, tokens, keys, dtype=torch.bool) if allowed is None else ~allowed.unsqueeze(1)
            try:
                answer = subject.answer(case)
            except Exception:  # a size that it does not take
                continue
            expected = attend(maps, case, hidden, steps)
            if expected.shape != answer.shape:
                return False
            expected = expected.masked_fill(hidden.all(-1).any(1)[..., None].expand_as(expected), torch.nan)
            limit = _SAME if answer.dtype == torch.float64 else 0.0
            if differs(answer, expected) > limit * max(1.0, expected.nan_to_num().abs().max().item()):
                return False
    return True


# What the caller says of the weights


def named(target: Target, weights: Mapping[str, Any]) -> dict[str, Tensor]:
    """Find what the caller calls query, key, value and out among the copy's tensors.

    A value may be a tensor (a parameter of the target, or a view of one), a name, or an nn.Linear.
    """
    own = target.untouched
    roles = (*ROLES, "out", "qkv")
    allowed = {*roles, *(f"{role}_bias" for role in roles)}
    tensors: dict[str, Tensor] = {}
    for role, value in weights.items():
        if role not in allowed:
            raise ValueError(f"weights names {role!r}; its keys are {', '.join(sorted(allowed))}")
        if isinstance(value, nn.Linear):
            tensors[role] = _twin(role, value.weight, target, own)
            if value.bias is not None:
                tensors[f"{role}_bias"] = _twin(role, value.bias, target, own)
        elif isinstance(value, str):
            if value not in target.tensors:
                known = ", ".join(target.tensors) or "none"
                raise ValueError(f"weights[{role!r}] is {value!r}, which is no parameter of the target; it has {known}")
            tensors[role] = target.tensors[value]
        elif isinstance(value, Tensor):
            tensors[role] = _twin(role, value, target, own)
        else:
            raise TypeError(
                f"weights[{role!r}] is {with_article(value)}; pass a tensor, the name of a parameter, or an nn.Linear"
            )
    return tensors


def _twin(role: str, value: Tensor, target: Target, own: Mapping[str, Tensor]) -> Tensor:
    """The copy's tensor for one of the target's, or for a view of one."""
    place = value.untyped_storage().data_ptr()
    for name, tensor in own.items():
        if name in target.tensors and tensor.untyped_storage().data_ptr() == place:
            twin = target.tensors[name]
            if value.shape == tensor.shape and value.stride() == tensor.stride():
                return twin
            offset = value.storage_offset() - tensor.storage_offset()
            return twin.detach().as_strided(value.size(), value.stride(), twin.storage_offset() + offset)
    raise ValueError(
        f"weights[{role!r}] is a tensor of shape {tuple(value.shape)} that is none of the target's; pass a parameter "
        "of it, a view of one, or a name"
    )


def _stated_maps(subject: Subject) -> tuple[dict[str, Tensor], set[str]]:
    """Return the matrix that the caller, or a name of PyTorch's module, says to make each role: (out, in).

    With it the roles whose matrix is no layer's: it may be kept as (out, in) or as (in, out).
    """
    target = subject.target
    if subject.options.weights:
        stated = named(target, subject.options.weights)
    else:
        ends = {"qkv": "in_proj_weight", "out": "out_proj.weight"}
        stated = {role: t for role, end in ends.items() for n, t in target.tensors.items() if n.endswith(end)}
        stated = stated if "qkv" in stated else {}
    linear = nn.Linear | nn.MultiheadAttention
    fixed = {t.untyped_storage().data_ptr() for n, t in target.tensors.items()
             if isinstance(target.owners[n], linear) or n.endswith("in_proj_weight")}  # fmt: skip
    maps: dict[str, Tensor] = {}
    loose: set[str] = set()
    for role, tensor in stated.items():
        roles = ROLES if role == "qkv" else (role,)
        if tensor.untyped_storage().data_ptr() not in fixed:
            loose.update(roles)
        if role == "qkv" and tensor.dim() == 2 and tensor.size(0) * 3 == tensor.size(1):
            tensor = tensor.mT
        if tensor.dim() == 2 and not role.endswith("bias"):
            maps |= dict(zip(roles, tensor.detach().to("cpu").chunk(len(roles)), strict=False))
    return maps, loose


def _differs_from_stated(subject: Subject, maps: Maps) -> Finding | None:
    """Find how the maps differ from the stated matrices; the first explanation that fits is named."""
    heads, (stated, loose), said = maps.heads, _stated_maps(subject), subject.options.weights is not None
    actual = {role: getattr(maps, role)[:, :-1] for role in stated}
    if "out" in actual:
        actual["out"] = actual["out"][:, : maps.value.size(0)]
    limit = _SAME_ROUGH if subject.rough else _SAME

    def same(one: Tensor, two: Tensor) -> bool:
        if one.shape != two.shape:
            return False
        factor = (one * two).sum() / two.square().sum()  # a scale may stand before the product
        return bool((one - factor * two).abs().max() <= limit * one.abs().max())

    def finding(cause: str | None, text: str, how: Standing = "equal") -> Finding:
        evidence, step = subject.sized("read off what goes in and what comes out"), "" if said else "projections"
        return Finding(EQUALITY, cause, text, evidence, how=how, step=step)

    transposed = [r for r in actual if not same(actual[r], stated[r]) and same(actual[r], stated[r].mT)]
    wrong = [r for r in actual if not same(actual[r], stated[r]) and not (r in transposed and r in loose)]
    either = [r for r in actual if r in loose and stated[r].size(0) == stated[r].size(1)]
    if not wrong and 0 < len(transposed) < len(either):
        text = f"multiplied by the matrix of {' and '.join(transposed)} as it is kept, and by others' transposes"
        return finding("weight-not-transposed", text, "open")
    if not wrong:
        return None
    three = [r for r in ROLES if r in actual]
    if len(three) == 3 and heads > 1 and len({stated[r].shape for r in three}) == 1:
        by_head = torch.cat([stated[r] for r in three]).unflatten(0, (heads, 3, -1)).unbind(1)
        if all(same(actual[r], part.flatten(0, 1)) for r, part in zip(three, by_head, strict=True)):
            text = "the rows are read head by head (q, k, v of the first head, then of the next), and kept q, k, v"
            return finding("interleaved-qkv", text)
    for role in wrong:
        if role in transposed:
            return finding("weight-not-transposed", f"multiplied by the matrix of {role} as it is kept, not transposed")
    if wrong == ["out"] and heads <= 5:
        mine, theirs = (x.unflatten(-1, (heads, -1)) for x in (actual["out"], stated["out"]))
        for order in itertools.permutations(range(heads)):
            if same(mine, theirs[:, list(order)]):
                text = f"the heads are merged in the order {order}, which averaged weights cannot tell"
                return finding("averaged-weights-parity", text)
    text = f"what makes its {' and '.join(wrong)} is not what weights= says"
    return finding(None, text) if said else None
