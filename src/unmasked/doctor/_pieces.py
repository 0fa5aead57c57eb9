"""Attention that makes no table of all weights: over keys in pieces, or of keys times values summed first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from unmasked.doctor._hear import Event
from unmasked.doctor._report import Outcome
from unmasked.doctor._view import Run, View, changed, drawn

__all__ = ["brought_together", "filled_up", "summed_first"]

_NOT_ONE = "weights-not-normalized"
_CLEAR = 0.01  # a part of the size by which outputs must differ, where what keeps from dividing by zero counts
_FAR = 6  # tokens that are so far apart do not reach each other through a convolution


def filled_up(view: View) -> Iterator[Outcome]:
    """Find keys that are nobody's, are seen, and are as many as the number of keys lacks to the next multiple.

    Sinks and zeros that are added on purpose are as many at any length, and windows show fewer keys than there are.
    """
    subject = view.subject
    if subject.fixed is not None:
        return
    first, whole = subject.tokens + view.longer, False
    for more in range(17):
        run = view.run(subject.case(2, subject.tokens + more, first + more))
        filled = [_filled(event, first + more) for event in run.events if event.kind == "softmax"]
        if whole:
            if any(filled):
                told = "keys are filled up to whole blocks, and what fills them is seen: outputs hang on their size"
                yield view.wrong("padding-ignored", told)
            return
        whole = filled.count(0) == len(filled)


def _filled(event: Event, keys: int) -> int | None:
    """How many columns of a softmax are alike and count, where all others are as many as keys; None if unknown."""
    scores = event.given[0].movedim(event.axis, 0).flatten(1)
    extra = len(scores) - keys
    if extra <= 0:
        return 0
    alike = ((scores - scores[-1]).abs() <= 1e-6 * (1 + scores[-1].abs())).all(1)
    if int(alike.sum()) != extra or event.result.movedim(event.axis, 0)[-1].max().item() < 1e-6:
        return 0
    return extra if extra > 1 or not scores[-1].any() else None


class _Averaged(NamedTuple):
    """A product of factors of each key with its value: its place, the factors' sums over keys, and its side.

    Attributes:
        start: The number of the product that the factors were made of, or of this one.
        place: The number of this product.
        sums: (batch, rows), the sum over the keys.
        width: How many features a value has.
        across: Whether the values stand on the left.
    """

    start: int
    place: int
    sums: Tensor
    width: int
    across: bool

    def same(self, size: float) -> Callable[[Tensor], Tensor]:
        """Give the product as it is where all values are one."""
        table = self.sums[..., None] * (size * drawn(self.sums.new_empty(self.width), 8))
        table = table.mT if self.across else table
        return lambda result: torch.empty_like(result).copy_(table.expand(result.shape))


def brought_together(view: View, base: Run) -> Iterator[Outcome]:
    """Put the same value at every key of every piece: scores must then not count for the output.

    What counts beside the keys, such as a sink, is left behind when all scores grow by one number; what this does not
    move, though other scores do, is a sum whose parts were not brought to one maximum.
    """
    pieces = list(_pieces(base))
    if len(pieces) < 2:
        return

    def given(change: Callable[[Tensor], Tensor] | None) -> Tensor:
        put = {} if change is None else {piece.start: change for piece in pieces}
        run = view.run(base.case, put) if put else base
        outputs = []
        for size in (1.0, 0.0):
            same = {p.place: _at(run, p).same(size) for p in pieces}
            outputs.append(view.run(base.case, put | same).output)
        return outputs[0] - outputs[1]

    plain, more, other = given(None), given(lambda x: x + 0.5), given(lambda x: x + drawn(x, 6))
    size = plain.abs().max().item()
    if view.near(plain, more, size) and not (plain - other).abs().max().item() < _CLEAR * size:
        told = "attention in pieces: what was summed before is not brought to a later piece's maximum"
        yield view.wrong(_NOT_ONE, f"{told}, so that the weights of a query do not sum to one")


def _at(run: Run, piece: _Averaged) -> _Averaged:
    given = run.events[piece.place].given
    return piece._replace(sums=given[1].sum(-2) if piece.across else given[0].sum(-1))


def _pieces(run: Run) -> Iterator[_Averaged]:
    """Find products whose one factor is exponentials of an earlier product, but for a number of each row."""
    used: set[int] = set()
    for place, event in enumerate(run.events):
        for side in (0, 1) if event.kind == "product" else ():
            ids, weights = event.ids[side], event.given[side]
            if ids is None or bool((weights < 0).any()) or not bool(weights.any()):
                continue
            start = next((n for n in range(place - 1, -1, -1) if run.events[n].kind == "product"
                          and run.events[n].first <= int(ids.max())), None)  # fmt: skip
            if start is None or start in used or bool((ids < run.events[start].first).any()):
                continue
            scores = run.events[start].result.reshape(-1)[ids - run.events[start].first]
            axis = -1 if side == 0 else -2
            if _exponentials(scores.movedim(axis, -1), weights.movedim(axis, -1)):
                used.add(start)
                width = event.result.size(-1 - side)
                yield _Averaged(start, place, weights.sum(axis), width, side == 1)
                break


def _exponentials(scores: Tensor, weights: Tensor) -> bool:
    shown = weights > 0
    if not torch.equal(shown, shown[:1].expand_as(shown)):  # chosen by what they are
        return False
    count = shown.sum(-1, keepdim=True).clamp(min=1)
    a, b = (torch.where(shown, x, 0.0) for x in (scores, weights.log()))
    a, b = (torch.where(shown, x - x.sum(-1, keepdim=True) / count, 0.0) for x in (a, b))
    factor = (a * b).sum() / a.square().sum().clamp(min=1e-30)
    limit = 1e-8 if scores.dtype == torch.float64 else 1e-3
    return bool(factor > 0) and bool((b - factor * a).abs().max() < limit * b.abs().max().clamp(min=1e-3))


# Keys times values first


def summed_first(view: View, base: Run) -> Iterator[Outcome]:
    """Make all values equal where they are summed: no output may then notice the keys of other tokens.

    Only weights that are nowhere negative are asked about: what else is summed so need be no average. Tokens that are
    near each other may reach each other by other ways, such as a convolution of gates.
    """
    subject = view.subject
    if _summed(base) is None or not subject.options.own or subject.options.masked:
        return
    tokens = subject.fixed or 4 * _FAR
    early = max(tokens - 2 * _FAR, 0) or tokens // 2
    late = list(range(early + _FAR if tokens >= 4 * _FAR else early, tokens))
    x = subject.noise(2, tokens)
    other = torch.cat([x[:, :early].flip(-1) + 0.5, x[:, early:]], 1)
    gap = 0.0
    if tokens >= 4 * _FAR or not subject.positions:
        gap = _apart(view, x, other, late)
    if subject.fixed is None and not subject.positions:
        gap = max(gap, _apart(view, x[:, :3], x[:, :2], [0]))  # of one token einsum makes no product
    if gap > _CLEAR:
        told = "the weights of linear attention do not sum to one: what divides is not query times the sum of all keys"
        yield view.wrong(_NOT_ONE, told, "open")


def _apart(view: View, one: Tensor, two: Tensor, tokens: list[int]) -> float:
    """How far equal values come out apart at these tokens, as a part of their size, where that is known."""
    given = []
    for x in (one, two):
        case = changed(view.case(1), lambda _, x=x: x)  # type: ignore[misc]
        summed = _summed(view.run(case))
        if summed is None:
            return 0.0
        runs = [view.run(case, {summed.place: summed.same(size)}).output[:, tokens] for size in (1.0, 0.0)]
        given.append(runs[0] - runs[1])
    gap = (given[0] - given[1]).abs().max() / given[0].abs().max().clamp(min=1e-30)
    return gap.item() if gap.isfinite() else 0.0


def _summed(run: Run) -> _Averaged | None:
    """Find the product of keys and values over the tokens that queries are multiplied by, all nowhere negative.

    Where a query's sum of weights is near zero, what keeps from dividing by zero counts, and nothing is said.
    """
    for place, event in enumerate(run.events):
        if event.kind != "product" or event.given[0].dim() != 3 or event.given[0].size(-1) != run.case.key.size(1):
            continue
        last = event.first + event.result.numel()
        for later in run.events[place + 1 :]:
            for side in (0, 1) if later.kind == "product" else ():
                ids, query = later.ids[side], later.given[1 - side]
                if ids is None or int(ids.min()) < event.first or int(ids.max()) >= last or bool((query < 0).any()):
                    continue
                if ids.numel() != event.result.numel() or query.dim() != 3:
                    continue
                along = (ids - event.first).movedim(-2 if side else -1, -1)
                columns = event.result.size(-1)
                across = bool((along[..., -1] - along[..., 0] < columns).all())  # what is summed then are columns
                keys = event.given[1].mT if across else event.given[0]
                if bool((keys < 0).any()) or keys.size(0) != query.size(0):
                    continue
                sums = torch.einsum("bqd,bd->bq", query.mT if side == 0 else query, keys.sum(-1))
                if bool((sums > 0.02 * sums.mean()).all()):
                    return _Averaged(place, place, keys.sum(-1), event.result.size(-2 if across else -1), across)
    return None
