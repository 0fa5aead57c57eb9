"""The table of hypotheses: multi-head attention in six steps, and every known mistake as another version of one step.

A mistake is proved, not guessed: with the target's own weights it gives the target's own output, to the last digits,
where the right steps give another.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from unmasked import masks
from unmasked.doctor._weights import ROLES, Weights
from unmasked.functional import attention_weights
from unmasked.heads import merge_heads, split_heads

__all__ = ["Case", "Mistake", "Steps", "attend", "mistakes", "scales"]


@dataclass(frozen=True)
class Case:
    """What a target was asked: three inputs (batch, tokens, features), who may see whom, and the weights it has."""

    query: Tensor
    key: Tensor
    value: Tensor
    allowed: Tensor | None  # (queries, keys) or (batch, queries, keys)
    weights: Weights

    @property
    def rows(self) -> int:
        """Features of all query heads together."""
        matrix = self.weights.matrices.get("query")
        return self.query.size(-1) if matrix is None else matrix.size(0)

    @property
    def head_dim(self) -> int:
        """Features of one head."""
        return self.rows // self.weights.heads


def _project(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    inputs = case.query, case.key, case.value
    q, k, v = (_linear(case.weights, role, x) for role, x in zip(ROLES[:3], inputs, strict=True))
    return q, k, v


def _linear(weights: Weights, role: str, x: Tensor) -> Tensor:
    matrix, bias = weights.matrices.get(role), weights.biases.get(role)
    if matrix is not None:
        return F.linear(x, matrix, bias)
    return x if bias is None else x + bias


def _weigh(scores: Tensor, case: Case) -> Tensor:
    return attention_weights(scores, allowed=_mask(case))


def _mask(case: Case) -> Tensor | None:
    if case.allowed is None:
        return None
    return case.allowed if case.allowed.dim() == 2 else case.allowed.unsqueeze(1)


@dataclass(frozen=True)
class Steps:
    """Multi-head attention: project, split into heads, share keys, scale, weigh, merge the heads, project again."""

    project: Callable[[Case], tuple[Tensor, Tensor, Tensor]] = _project
    split: Callable[[Tensor, int], Tensor] = split_heads
    share: Callable[[Tensor, int], Tensor] = lambda x, groups: x.repeat_interleave(groups, 1)
    scale: Callable[[Case], float] = lambda case: case.head_dim**-0.5
    weigh: Callable[[Tensor, Case], Tensor] = _weigh
    merge: Callable[[Tensor], Tensor] = merge_heads
    output: Callable[[Case, Tensor], Tensor] = lambda case, merged: _linear(case.weights, "out", merged)
    enter: Callable[[Case], Case] = lambda case: case
    leave: Callable[[Tensor, Case], Tensor] = lambda output, case: output


def attend(case: Case, steps: Steps | None = None) -> Tensor:
    """Compute attention by these steps, the right ones by default: (batch, queries, out)."""
    steps, asked = steps or Steps(), case
    case = steps.enter(case)
    weights = case.weights
    q, k, v = steps.project(case)
    if weights.extra:
        case, k, v = _append(case, k, v)
    q = steps.split(q, weights.heads)
    k, v = steps.split(k, weights.kv_heads), steps.split(v, weights.kv_heads)
    if k.size(1) != q.size(1):
        groups = q.size(1) // k.size(1)
        k, v = steps.share(k, groups), steps.share(v, groups)
    context = steps.weigh((q @ k.mT) * steps.scale(case), case) @ v  # batch heads queries head_dim
    return steps.leave(steps.output(case, steps.merge(context)), asked)


def _append(case: Case, k: Tensor, v: Tensor) -> tuple[Case, Tensor, Tensor]:
    """Give every query the key and value of add_bias_kv, and those of add_zero_attn."""
    extra, items = case.weights.extra, k.size(0)
    pairs = [(extra["bias_k"], extra["bias_v"])] if "bias_k" in extra else []
    pairs += [(torch.zeros_like(k[0, :1]), torch.zeros_like(v[0, :1]))] if "zeros" in extra else []
    allowed = case.allowed
    for extra_k, extra_v in pairs:
        k = torch.cat([k, extra_k.expand(items, 1, -1)], 1)
        v = torch.cat([v, extra_v.expand(items, 1, -1)], 1)
        allowed = None if allowed is None else F.pad(allowed, (0, 1), value=True)
    return replace(case, allowed=allowed), k, v


@dataclass(frozen=True)
class Mistake:
    """A wrong version of attention: its slug in the museum, what it does, and its steps.

    Attributes:
        cause: The slug, or None for a mistake that the museum does not show.
        told: What was done, in a few words.
        steps: Attention with this mistake.
        is_order: Whether it is one only if the weights' order is given from outside: a model trained so is right.
    """

    cause: str | None
    told: str
    steps: Steps
    is_order: bool = False


def mistakes(case: Case) -> Iterator[Mistake]:
    """Every mistake that the weights and sizes of this case make possible."""
    yield from _in_masks(case)
    yield from _in_heads(case)
    yield from _in_numbers(case)
    yield from _in_weights(case)
    yield from _in_batches(case)


def _in_masks(case: Case) -> Iterator[Mistake]:
    def weigh(f: Callable[[Tensor, Tensor], Tensor]) -> Steps:
        return Steps(weigh=lambda scores, c: f(scores, _some(_mask(c))))

    if case.allowed is None:
        return
    causal = case.allowed.dim() == 2 and torch.equal(case.allowed, masks.causal(*case.allowed.shape))
    ignored = (
        ("no-causal-mask", "no query is kept from later keys") if causal else ("padding-ignored", "the mask is ignored")
    )
    yield Mistake(*ignored, weigh(lambda s, a: s.softmax(-1)))
    inverted = "what may be seen is hidden, and what may not is seen"
    yield Mistake("mask-polarity", inverted, weigh(lambda s, a: attention_weights(s, allowed=~a)))
    yield Mistake("mask-polarity", inverted, weigh(lambda s, a: s.masked_fill(a, -1e9).softmax(-1)))
    told = "the boolean mask of what is hidden is added: those scores grow by one"
    yield Mistake("boolean-mask-added", told, weigh(lambda s, a: (s + (~a).to(s.dtype)).softmax(-1)))
    told = "zeros and ones are added to the scores: what is hidden stays only one behind"
    yield Mistake("float-mask-of-ones", told, weigh(lambda s, a: (s + a.to(s.dtype)).softmax(-1)))
    told = "the scores are multiplied by zeros and ones, and a score of zero is no mask"
    yield Mistake("float-mask-of-ones", told, weigh(lambda s, a: (s * a).softmax(-1)))
    told = "the weights are masked after the softmax, and no longer sum to one"
    yield Mistake("mask-after-softmax", told, weigh(lambda s, a: s.softmax(-1) * a))
    if case.allowed.dim() == 2 and causal and case.allowed.size(0) != case.allowed.size(1):
        told = "the first query is aligned with the first key, and the last query misses the newest keys"
        yield Mistake("top-left-causal", told, weigh(lambda s, a: attention_weights(s, allowed=_tril(s, 0))))
    if causal:
        for shift, told in ((1, "each query sees one token of the future"), (-1, "no query sees its own token")):
            shifted = weigh(lambda s, a, n=shift: attention_weights(s, allowed=_tril(s, s.size(-1) - s.size(-2) + n)))  # type: ignore[misc]
            yield Mistake(None, told, shifted)
    for cap in (5, 10, 15, 20, 30, 50):
        told = f"scores are capped at {cap} after the mask: what is hidden gets the score -{cap}, and is seen"
        capped = weigh(lambda s, a, c=cap: (c * (s.masked_fill(~a, -math.inf) / c).tanh()).softmax(-1))  # type: ignore[misc]
        yield Mistake("softcap-after-mask", told, capped)
    told = "the softmax runs over the queries: columns sum to one, not rows"
    masked = weigh(lambda s, a: s.masked_fill(~a, -math.inf).softmax(-2).nan_to_num(0.0))
    yield Mistake("softmax-over-queries", told, masked)
    yield Mistake("mask-after-softmax", "the weights are masked after a softmax over the queries",
                  weigh(lambda s, a: s.softmax(-2) * a))  # fmt: skip


def _some(mask: Tensor | None) -> Tensor:
    assert mask is not None
    return mask


def _tril(scores: Tensor, diagonal: int) -> Tensor:
    return torch.ones(scores.shape[-2:], dtype=torch.bool).tril(diagonal)


def _in_heads(case: Case) -> Iterator[Mistake]:
    heads = case.weights.heads
    if heads < 2 or case.head_dim < 1:
        return

    def bare_view(x: Tensor, count: int) -> Tensor:
        return x.reshape(x.size(0), count, x.size(1), -1)

    def bare_merge(context: Tensor) -> Tensor:
        items, count, tokens, dim = context.shape
        return context.reshape(items, tokens, count * dim)

    def swapped(x: Tensor, count: int) -> Tensor:
        features: Tensor = x.unflatten(-1, (-1, count))  # batch tokens head_dim heads
        return features.permute(0, 3, 1, 2)

    def swapped_merge(context: Tensor) -> Tensor:
        return context.permute(0, 2, 3, 1).flatten(-2)

    def exchanged(x: Tensor, count: int) -> Tensor:
        features: Tensor = x.unflatten(-1, (-1, count))
        return features.transpose(1, 2)

    told = "the heads are merged without transposing back: a token's output is read off other tokens"
    yield Mistake("merge-without-transpose", told, Steps(merge=bare_merge))
    told = "a view alone splits into heads: each head takes whole tokens, not features of every token"
    for merge in (merge_heads, bare_merge):
        yield Mistake("view-without-transpose", told, Steps(split=bare_view, merge=merge))
    told = f"the view has heads and head_dim exchanged: there are {case.head_dim} heads of {heads} features"
    for merge in (merge_heads, bare_merge):
        yield Mistake("swapped-view", told, Steps(split=exchanged, merge=merge))
        yield Mistake("swapped-view", told, Steps(split=exchanged, merge=merge, scale=lambda c: c.weights.heads**-0.5))
    told = f"a view has heads and head_dim exchanged: a head takes one feature of every {heads}"
    for split, merge in ((swapped, merge_heads), (swapped, swapped_merge), (split_heads, swapped_merge)):
        yield Mistake("swapped-view", told, Steps(split=split, merge=merge), is_order=True)
    yield Mistake("swapped-view", told, Steps(split=swapped, merge=bare_merge))
    if 1 < case.weights.kv_heads < heads:
        told = "the heads of keys and values are dealt out in turn: neighbors among the query heads share none"
        yield Mistake("repeat-for-repeat-interleave", told, Steps(share=lambda x, groups: x.repeat(1, groups, 1, 1)))
    if heads <= 5:
        for order in itertools.permutations(range(heads)):
            if list(order) != sorted(order):
                told = f"the heads are merged in the order {order}, which averaged weights cannot tell"
                merge = lambda context, order=list(order): merge_heads(context[:, order])  # noqa: E731
                yield Mistake("averaged-weights-parity", told, Steps(merge=merge), is_order=True)


def scales(case: Case) -> dict[str, int]:
    """Name every size whose root may have been taken for that of head_dim."""
    return {
        "embed_dim": case.rows,
        "the input's features": case.query.size(-1),
        "num_heads": case.weights.heads,
        "the number of keys": case.key.size(1),
        "the batch": case.query.size(0),
    }


def _in_numbers(case: Case) -> Iterator[Mistake]:
    dim = case.head_dim
    if dim != 1:
        yield Mistake("missing-scale", "the scores are not divided by the root of head_dim", Steps(scale=lambda c: 1.0))
    for name, size in scales(case).items():
        if size not in (1, dim):
            told = f"the scores are divided by the root of {name}, {size}, not of head_dim, {dim}"
            yield Mistake("wrong-d-in-scale", told, Steps(scale=lambda c, s=size: s**-0.5))  # type: ignore[misc]
            told = f"the scores are divided by {name}, {size}, not by the root of head_dim, {dim}"
            yield Mistake("wrong-d-in-scale", told, Steps(scale=lambda c, s=size: 1 / s))  # type: ignore[misc]
    if dim != 1:
        told = f"the scores are divided by head_dim, {dim}, not by its root"
        yield Mistake("wrong-d-in-scale", told, Steps(scale=lambda c: 1 / c.head_dim))
        told = "the scores are multiplied by the root of head_dim, not divided"
        yield Mistake("wrong-d-in-scale", told, Steps(scale=lambda c: c.head_dim**0.5))

    def weigh(f: Callable[[Tensor], Tensor], shut: float = -math.inf) -> Steps:
        def masked(scores: Tensor, c: Case) -> Tensor:
            mask = _mask(c)
            return f(scores if mask is None else scores.masked_fill(~mask, shut)).nan_to_num(0.0)

        return Steps(weigh=masked)

    if case.allowed is None:
        told = "the softmax runs over the queries: columns sum to one, not rows"
        yield Mistake("softmax-over-queries", told, weigh(lambda s: s.softmax(-2)))
    for axis, name in ((1, "the heads"), (0, "the batch")):
        told = f"the softmax runs over {name}, not over the keys"
        yield Mistake("weights-not-normalized", told, weigh(lambda s, a=axis: s.softmax(a)))  # type: ignore[misc]
    told = "the softmax runs over all queries and keys at once"
    yield Mistake("weights-not-normalized", told, weigh(lambda s: s.flatten(-2).softmax(-1).view_as(s)))
    for told, f, shut in (
        ("the scores are the weights: there is no softmax", lambda s: s, 0.0),
        ("exponentials are not divided by their sum", torch.exp, -math.inf),
        ("a sigmoid stands for the softmax", torch.sigmoid, -math.inf),
        ("a ReLU stands for the softmax", torch.relu, -math.inf),
        ("absolute values are divided by their sum", lambda s: s / s.abs().sum(-1, keepdim=True), 0.0),
        ("scores are divided by their sum", lambda s: s / s.sum(-1, keepdim=True), 0.0),
    ):
        yield Mistake("weights-not-normalized", told, weigh(f, shut))


def _with(matrices: Mapping[str, Tensor] | None = None, biases: Mapping[str, Tensor] | None = None) -> Steps:
    """Attend with other weights."""

    def enter(case: Case) -> Case:
        old = case.weights
        changed = replace(
            old,
            matrices=old.matrices if matrices is None else matrices,
            biases=old.biases if biases is None else biases,
        )
        return replace(case, weights=changed)

    return Steps(enter=enter)


def _in_weights(case: Case) -> Iterator[Mistake]:
    weights = case.weights
    matrices, biases = weights.matrices, weights.biases
    if "out" in matrices:
        yield Mistake("missing-out-proj", "the output projection is left out", Steps(output=lambda c, merged: merged))
    names = {"query": "the query", "key": "the key", "value": "the value"}
    for picked in itertools.product(range(3), repeat=3):
        if picked == (0, 1, 2):
            continue
        roles = [ROLES[i] for i in picked]
        cause = "wrong-value" if picked[2] != 2 or picked[0] == 2 or picked[1] == 2 else None
        told = ", ".join(
            f"{names[given]}'s projection passed as {names[role]}"
            for role, given in zip(ROLES[:3], roles, strict=True)
            if role != given
        )
        order = sorted(picked) == [0, 1, 2]
        if matrices:
            yield Mistake(cause, told, Steps(project=_picked(picked)), is_order=order)
        if case.query is not case.key:
            told = told.replace("projection", "input")
            enter = lambda c, p=picked: _inputs(c, p)  # noqa: E731
            yield Mistake(cause, told, Steps(enter=enter))
    square = [role for role in ROLES if role in weights.fixed and role in matrices]
    square = [role for role in square if matrices[role].size(0) == matrices[role].size(1)]
    for count in range(len(square), 0, -1):
        for turned in itertools.combinations(square, count):
            told = f"multiplied by the matrix of {_and(turned)} as it is kept, not by its transpose"
            others = {role: m.mT if role in turned else m for role, m in matrices.items()}
            yield Mistake("weight-not-transposed", told, _with(others))
    three = [matrices[role].shape for role in ROLES[:3] if role in matrices]
    if len(three) == 3 and len(set(three)) == 1 and weights.heads > 1 and weights.heads == weights.kv_heads:
        told = "the rows are read head by head (q, k, v of the first head, then of the next), and kept q, k, v"
        yield Mistake("interleaved-qkv", told, _with(_interleaved(matrices, weights.heads),
                      _interleaved(biases, weights.heads)), is_order=True)  # fmt: skip
        told = "the rows are kept head by head, and read as all of q, all of k, all of v"
        yield Mistake("interleaved-qkv", told, _with(_packed(matrices, weights.heads),
                      _packed(biases, weights.heads)), is_order=True)  # fmt: skip
    present = [role for role in ("query", "value", "out", "key") if role in biases]
    for count in range(len(present), 0, -1):
        for dropped in itertools.combinations(present, count):
            told = f"the bias of {_and(dropped)} is never added, which biases of zero hide"
            yield Mistake("zero-bias-parity", told, _with(None, {r: b for r, b in biases.items() if r not in dropped}))
    if "bias_k" in weights.extra:

        def shifted(c: Case) -> Case:
            old = c.weights
            moved = dict(old.biases)
            for role, name in (("key", "bias_k"), ("value", "bias_v")):
                moved[role] = moved.get(role, 0) + old.extra[name].reshape(-1)
            return replace(c, weights=replace(old, biases=moved, extra={}))

        told = "bias_k and bias_v are added to every key and value, not appended as one more"
        yield Mistake("bias-kv-as-shift", told, Steps(enter=shifted))


def _picked(picked: tuple[int, ...]) -> Callable[[Case], tuple[Tensor, Tensor, Tensor]]:
    def project(case: Case) -> tuple[Tensor, Tensor, Tensor]:
        projected = _project(case)
        return projected[picked[0]], projected[picked[1]], projected[picked[2]]

    return project


def _inputs(case: Case, picked: tuple[int, ...]) -> Case:
    given = case.query, case.key, case.value
    return replace(case, query=given[picked[0]], key=given[picked[1]], value=given[picked[2]])


def _and(roles: tuple[str, ...]) -> str:
    return " and ".join([", ".join(roles[:-1]), roles[-1]] if len(roles) > 1 else roles)


def _interleaved(parts: Mapping[str, Tensor], heads: int) -> dict[str, Tensor]:
    """Read rows that are kept q, k, v as if they were kept head by head."""
    kept = [parts[role] for role in ROLES[:3] if role in parts]
    if len(kept) < 3:
        return dict(parts)
    split = torch.cat(kept).unflatten(0, (heads, 3, -1)).unbind(1)
    return dict(parts) | {role: part.flatten(0, 1) for role, part in zip(ROLES[:3], split, strict=True)}


def _packed(parts: Mapping[str, Tensor], heads: int) -> dict[str, Tensor]:
    """Read rows that are kept head by head as if they were kept q, k, v."""
    kept = [parts[role] for role in ROLES[:3] if role in parts]
    if len(kept) < 3:
        return dict(parts)
    joined = torch.stack([m.unflatten(0, (heads, -1)) for m in kept], dim=1).flatten(0, 2)
    return dict(parts) | dict(zip(ROLES[:3], joined.chunk(3), strict=True))


def _in_batches(case: Case) -> Iterator[Mistake]:
    if case.query.size(0) < 2:
        return

    def first(*chosen: int) -> Steps:
        def enter(c: Case) -> Case:
            given = [c.query, c.key, c.value]
            return replace(_with_inputs(c, [x[:1].expand_as(x) if i in chosen else x for i, x in enumerate(given)]))

        return Steps(enter=enter)

    for chosen, told in (
        ((0, 1, 2), "everything is computed from the first item of the batch"),
        ((1, 2), "every item's queries look at the first item's keys and values"),
        ((1,), "every item's queries are compared with the first item's keys"),
        ((2,), "every item's weights average the first item's values"),
        ((0,), "every item has the first item's queries"),
        ((0, 1), "every item has the first item's weights"),
    ):
        yield Mistake("only-first-item", told, first(*chosen))
    heads = case.weights.heads
    if 1 < heads <= case.query.size(0) and {"query", "key", "value"} <= case.weights.matrices.keys():

        def by_item(c: Case) -> tuple[Tensor, Tensor, Tensor]:
            def take(x: Tensor) -> Tensor:  # batch tokens rows: head h from item h
                per_head = split_heads(x, heads)
                chosen = torch.stack([per_head[h, h] for h in range(heads)])  # heads tokens head_dim
                return merge_heads(chosen).expand_as(x)

            q, k, v = _project(c)
            return take(q), take(k), take(v)

        if heads == case.weights.kv_heads:
            told = "head h is computed from item h of the batch: the index meant for the head went to the batch"
            yield Mistake("batch-indexed-for-head", told, Steps(project=by_item))
    tokens_first = Steps(enter=_across, leave=lambda output, c: output.transpose(0, 1))
    if case.query.shape == case.key.shape:
        told = "attention runs across the batch: tokens at one position in different items see each other"
        yield Mistake("batch-and-tokens-swapped", told, tokens_first)
        told = "a view exchanges batch and tokens, and items run into each other"
        viewed = Steps(enter=_viewed, leave=lambda output, c: output.reshape(c.query.size(0), c.query.size(1), -1))
        yield Mistake("batch-and-tokens-swapped", told, viewed)


def _with_inputs(case: Case, given: list[Tensor]) -> Case:
    return replace(case, query=given[0], key=given[1], value=given[2])


def _across(case: Case) -> Case:
    turned = [x.transpose(0, 1) for x in (case.query, case.key, case.value)]
    items = case.query.size(0)
    mask = None if case.allowed is None else torch.ones(items, items, dtype=torch.bool).tril()
    return replace(_with_inputs(case, turned), allowed=mask)


def _viewed(case: Case) -> Case:
    items = case.query.size(0)
    turned = [x.reshape(x.size(1), items, x.size(2)) for x in (case.query, case.key, case.value)]
    mask = None if case.allowed is None else torch.ones(items, items, dtype=torch.bool).tril()
    return replace(_with_inputs(case, turned), allowed=mask)
