"""Attention that sums keys times values over the tokens first: whether the weights that it implies sum to one."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from unmasked.doctor._look import Look, Run
from unmasked.doctor._observed import Event

__all__ = ["judge_linear"]


def judge_linear(look: Look, base: Run) -> None:
    """Make all values equal where they are summed: no output may then notice the keys of other tokens.

    Only weights that are nowhere negative are asked about: what else is summed so need be no average. Tokens that are
    near each other may reach each other by other ways, such as a convolution of gates.
    """
    patient, far = look.patient, 6
    if _summed(base) is None or not patient.options.own or patient.options.masked:
        return
    tokens = patient.fixed or 4 * far
    early = max(tokens - 2 * far, 0) or tokens // 2
    late = list(range(early + far if tokens >= 4 * far else early, tokens))
    x = patient.noise(2, tokens)
    other = torch.cat([x[:, :early].flip(-1) + 0.5, x[:, early:]], 1)
    gap = 0.0
    if tokens >= 4 * far or not patient.positions:
        gap = _apart(look, x, other, late)
    if patient.fixed is None and not patient.positions:
        gap = max(gap, _apart(look, x[:, :2], x[:, :1], [0]))
    if gap > 0.01:
        told = "the weights of linear attention do not sum to one: what divides is not query times the sum of all keys"
        look.wrong("weights-not-normalized", told, proved=False)


def _apart(look: Look, one: Tensor, two: Tensor, tokens: list[int]) -> float:
    """How far equal values come out apart at these tokens, as a part of their size, where that is known."""
    given = []
    for x in (one, two):
        case = look.changed(look.case(1), lambda _, x=x: x)  # type: ignore[misc]
        summed = _summed(look.run(case))
        if summed is None or not summed.counts:
            return 0.0
        runs = [look.run(case, {summed.place: _Equal(summed, size)}).output[:, tokens] for size in (1.0, 0.0)]
        given.append(runs[0] - runs[1])
    gap = (given[0] - given[1]).abs().max() / given[0].abs().max().clamp(min=1e-30)
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
    """A product of keys and values over the tokens: its number, and how to make it of values without tokens.

    ``counts`` says that no query's sum of weights is near zero, where what keeps from dividing by zero counts.
    """

    place: int
    keys: Tensor
    equation: str
    shape: list[int]
    counts: bool


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
                    through = _through(event, later, side)
                    q, queries = later.axes[1 - side], later.given[1 - side]
                    rest = "".join(c for c in event.axes[2] if c in k and c != through)
                    kept = f"{rest}{through}"
                    total = torch.einsum(f"{k}->{kept}", keys)
                    named = "".join(later.axes[side][event.axes[2].index(c)] for c in kept)
                    out = "".join(dict.fromkeys(c for c in q + named if c != named[-1]))
                    sums = torch.einsum(f"{q},{named}->{out}", queries, total)
                    counts = bool((sums > 0.02 * sums.mean()).all())
                    return _Summed(place, keys, f"{k},{only}->{event.axes[2]}", shape, counts)
    return None


def _taken(event: Event, later: Event, side: int) -> int | None:
    """Which factor of the first product is keys, if the later one multiplies it by queries; both nowhere negative."""
    if later.given[side].shape != event.result.shape or not torch.equal(later.given[side], event.result):
        return None
    through = _through(event, later, side)
    if not through or bool((later.given[1 - side] < 0).any()):
        return None
    for keys in (0, 1):
        own = through in event.axes[keys] and through not in event.axes[1 - keys]
        if own and not bool((event.given[keys] < 0).any()):
            return keys
    return None


def _through(event: Event, later: Event, side: int) -> str:
    """The axis of the first product that the later one sums over; "" if there is no such one."""
    others, given = later.axes[1 - side], later.axes[2]
    found = [event.axes[2][n] for n, c in enumerate(later.axes[side]) if c in others and c not in given]
    return found[0] if len(found) == 1 else ""
