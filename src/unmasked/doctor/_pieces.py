"""Attention over keys in pieces: whether weights sum to one over all of them, and what fills the last piece up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unmasked.doctor._look import Look, Run
from unmasked.doctor._observed import Event

__all__ = ["judge_padding", "judge_pieces"]

_Put = dict[int, Callable[[Tensor], Tensor]]


def judge_padding(look: Look) -> None:
    """Find keys that are nobody's, are seen, and are as many as the number of keys lacks to the next multiple.

    Sinks and zeros that are added on purpose are as many at any length, and windows show fewer keys than there are.
    """
    patient = look.patient
    if patient.fixed is not None:
        return
    first, whole = patient.tokens + look.longer, False
    for more in range(17):
        run = look.run(look.sized(2, patient.tokens + more, first + more))
        filled = [_filled(event, first + more) for event in run.events if event.kind == "softmax"]
        if whole:
            if any(filled):
                told = "keys are filled up to whole blocks, and what fills them is seen: outputs hang on their size"
                look.wrong("padding-ignored", told)
            return
        whole = filled.count(0) == len(filled)


def _filled(event: Event, keys: int) -> int | None:
    """How many columns of a softmax are alike and count, where all others are as many as keys; None if unknown."""
    scores = event.given[0].movedim(event.axes, 0).flatten(1)
    extra = len(scores) - keys
    if extra <= 0:
        return 0
    alike = ((scores - scores[-1]).abs() <= 1e-6 * (1 + scores[-1].abs())).all(1)
    if int(alike.sum()) != extra or event.result.movedim(event.axes, 0)[-1].max().item() < 1e-6:
        return 0
    return extra if extra > 1 or not scores[-1].any() else None


def judge_pieces(look: Look, base: Run) -> None:
    """Put the same value at every key of every piece: scores must then not count for the output.

    What counts beside the keys, such as a sink, is left behind when all scores grow by one number; what this does not
    move, though other scores do, is a sum whose parts were not brought to one maximum.
    """
    pieces = list(_pieces(base))
    if len(pieces) < 2:
        return

    def given(change: Callable[[Tensor], Tensor] | None) -> Tensor:
        put: _Put = {} if change is None else {piece.scores: change for piece in pieces}
        run = look.run(base.case, put) if put else base
        outputs = []
        for size in (1.0, 0.0):
            same: _Put = {p.place: p.same(run.events[p.place].given[p.side], size) for p in pieces}
            outputs.append(look.run(base.case, put | same).output)
        return outputs[0] - outputs[1]

    plain, more, other = given(None), given(lambda x: x + 0.5), given(_stirred)
    size = plain.abs().max().item()
    if look.near(plain, more, size) and not (plain - other).abs().max().item() < 0.01 * size:
        told = "attention in pieces: what was summed before is not brought to a later piece's maximum"
        look.wrong("weights-not-normalized", f"{told}, so that the weights of a query do not sum to one")


def _stirred(x: Tensor) -> Tensor:
    return x + torch.randn(x.shape, generator=torch.Generator().manual_seed(6)).to(x)


class _Piece(NamedTuple):
    """Scores of some of the keys, and the product of their exponentials with these keys' values."""

    scores: int
    place: int
    side: int
    equation: str
    shape: list[int]

    def same(self, weights: Tensor, size: float) -> Callable[[Tensor], Tensor]:
        """Give the product as it is where all values are one."""
        value = size * torch.randn(self.shape, generator=torch.Generator().manual_seed(8)).to(weights)

        def made(result: Any) -> Tensor:
            return torch.einsum(self.equation, weights, value).expand(result.shape).to(result)

        return made


def _pieces(run: Run) -> Iterator[_Piece]:
    """Find products whose one factor is exponentials of an earlier product, but for a number of each row."""
    products = [(n, event) for n, event in enumerate(run.events) if event.kind == "product"]
    used: set[int] = set()
    for place, event in products:
        for side in (0, 1):
            weights, names, values, out = event.given[side], event.axes[side], event.axes[1 - side], event.axes[2]
            summed = [c for c in names if c in values and c not in out]
            if len(summed) != 1 or bool((weights < 0).any()) or not bool(weights.any()):
                continue
            key = names.index(summed[0])
            starts = [n for n, e in products if n < place and n not in used and e.result.shape == weights.shape]
            start = next((n for n in starts if _exponentials(run.events[n].result, weights, key)), None)
            own = [c for c in values if c not in names and c in out]
            if start is None or set(out) - set(names) != set(own):
                continue
            used.add(start)
            shape = [event.given[1 - side].size(values.index(c)) for c in own]
            yield _Piece(start, place, side, f"{names},{''.join(own)}->{out}", shape)
            break


def _exponentials(scores: Tensor, weights: Tensor, key: int) -> bool:
    shown = weights > 0
    if not torch.equal(shown, shown[:1].expand_as(shown)):  # chosen by what they are
        return False
    scores, weights, shown = (x.movedim(key, -1).reshape(-1, x.size(key)) for x in (scores, weights, shown))
    count = shown.sum(-1, keepdim=True).clamp(min=1)
    a, b = (torch.where(shown, x, 0.0) for x in (scores, weights.log()))
    a, b = (torch.where(shown, x - x.sum(-1, keepdim=True) / count, 0.0) for x in (a, b))
    factor = (a * b).sum() / a.square().sum().clamp(min=1e-30)
    limit = 1e-8 if scores.dtype == torch.float64 else 1e-3
    return bool(factor > 0) and bool((b - factor * a).abs().max() < limit * b.abs().max().clamp(min=1e-3))
