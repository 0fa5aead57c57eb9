"""Attention that sums keys times values over the tokens first: whether the weights that it implies sum to one."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from unmasked.doctor._look import Look, Run, other_token
from unmasked.doctor._mistakes import Case
from unmasked.doctor._observed import Event

__all__ = ["judge_linear"]


def judge_linear(look: Look, base: Run) -> None:
    """Make all values equal where they are summed: no output may then notice the keys of other tokens.

    Only weights that are nowhere negative are asked about: what else is summed so need be no average.
    """
    if _summed(base) is None or not look.patient.options.own:
        return
    before, after = (_of_equal_values(look, case) for case in (base.case, look.changed(base.case, other_token)))
    if before is None or after is None:
        return
    others = [n for n in range(before.size(1)) if n != 1]  # of the token itself that is asked otherwise
    gap = _apart(before[:, others], after[:, others])
    if look.patient.fixed is None and not look.patient.options.masked and not look.patient.positions:
        alone = _of_equal_values(look, look.changed(base.case, lambda x: x[:, :1]))
        gap = max(gap, 0.0 if alone is None else _apart(before[:, :1], alone))
    if gap > 0.01:
        told = "the weights of linear attention do not sum to one: what divides is not query times the sum of all keys"
        look.wrong("weights-not-normalized", told, proved=False)


def _of_equal_values(look: Look, case: Case) -> Tensor | None:
    """What outputs have of values that are all the same."""
    summed = _summed(look.run(case))
    if summed is None:
        return None
    given, none = (look.run(case, {summed.place: _Equal(summed, size)}).output for size in (1.0, 0.0))
    return given - none


def _apart(one: Tensor, two: Tensor) -> float:
    """How far these are from each other, as a part of their size; 0 where that cannot be told."""
    gap = (one - two).abs().max() / one.abs().max().clamp(min=1e-30)
    return gap.item() if gap.isfinite() else 0.0


class _Equal:
    """Gives keys times values the numbers that they would have if all values were the same."""

    def __init__(self, summed: _Summed, size: float):
        self.summed = summed
        self.value = size * torch.randn(summed.shape, generator=torch.Generator().manual_seed(8)).to(summed.keys)

    def __call__(self, result: Tensor) -> Tensor:
        made = torch.einsum(self.summed.equation, self.summed.keys, self.value)
        return made.expand(result.shape).to(result)


class _Summed(NamedTuple):
    """A product of keys and values over the tokens: its number, and how to make it of values without tokens."""

    place: int
    keys: Tensor
    equation: str
    shape: list[int]


def _summed(run: Run) -> _Summed | None:
    """Find the product of keys and values that queries are multiplied by."""
    products = [(place, event) for place, event in enumerate(run.events) if event.kind == "product"]
    for place, event in products:
        tokens = [c for c in event.axes[0] if c in event.axes[1] and c not in event.axes[2]]
        if len(tokens) != 1 or event.given[0].size(event.axes[0].index(tokens[0])) != run.case.key.size(1):
            continue
        for _, later in products:
            for side in (0, 1):
                found = _taken(event, later, side)
                if found is not None:
                    keys, values, (k, v) = *event.given, event.axes[:2]
                    keys, values, k, v = (keys, values, k, v) if found == 0 else (values, keys, v, k)
                    only = "".join(c for c in v if c not in k and c in event.axes[2])
                    shape = [values.size(v.index(c)) for c in only]
                    return _Summed(place, keys, f"{k},{only}->{event.axes[2]}", shape)
    return None


def _taken(event: Event, later: Event, side: int) -> int | None:
    """Which factor of the first product is keys, if the later one multiplies it by queries; both nowhere negative."""
    out, mine, others, given = event.axes[2], later.axes[side], later.axes[1 - side], later.axes[2]
    if later.given[side].shape != event.result.shape or not torch.equal(later.given[side], event.result):
        return None
    through = [out[n] for n, c in enumerate(mine) if c in others and c not in given]
    if len(through) != 1 or bool((later.given[1 - side] < 0).any()):
        return None
    for keys in (0, 1):
        own = through[0] in event.axes[keys] and through[0] not in event.axes[1 - keys]
        if own and not bool((event.given[keys] < 0).any()):
            return keys
    return None
