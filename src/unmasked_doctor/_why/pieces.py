"""A sequence in pieces beside the whole: which of queries, keys, masks and biases of a piece is another."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from unmasked_doctor._ask.user_call import UserCall
from unmasked_doctor._form import Leaf, mapped
from unmasked_doctor._listen.calls import Call
from unmasked_doctor._model_run import hear_model
from unmasked_doctor._report import Finding
from unmasked_doctor._tensors import gaps

__all__ = ["in_pieces"]

_LEAST = 1e-9  # a weight that is smaller counts for nothing
_COUNTS = ", as where a mask counts places from the beginning of the piece"


@dataclass(frozen=True)
class _Piece:
    """One attention of a piece, and the same of the whole sequence.

    Attributes:
        start, size: Which tokens of the whole the piece has.
        whole, call: The attention of the whole, and that of the piece.
        everywhere: That of a sequence that has the piece's first token at every place.
        share: By how much of the largest number rounding moves.
    """

    start: int
    size: int
    whole: Call
    call: Call
    everywhere: Call
    share: float

    @property
    def end(self) -> int:
        return self.start + self.size

    @property
    def keys(self) -> int:
        return self.call.key.size(2)

    def same(self, one: Tensor, other: Tensor) -> bool:
        return one.shape == other.shape and (not one.numel() or float(gaps(one, other).max()) <= self.share)

    def tokens(self, expected: list[int]) -> list[int]:
        """Which token of the whole each of its keys belongs to, by their values; -1 where they are none's."""
        of_whole, found = self.whole.value.unbind(2), []
        for column, likely in zip(self.call.value.unbind(2), expected, strict=True):
            fits = (n for n in (likely, *range(len(of_whole))) if self.same(of_whole[n], column))
            found.append(next(fits, -1))
        return found

    def reason(self) -> tuple[str | None, str] | None:
        """What differs from the whole: the museum's slug, and what is told; None where nothing does."""
        if self.keys > self.end:
            return None, f"a later piece has {self.keys} keys, where only {self.end} tokens came"
        expected = [*range(self.end - self.keys, self.end)]
        have = self.tokens(expected)
        if have != expected and -1 not in have:
            text = f"a piece that begins at token {self.start} finds the tokens {have} in its cache, not {expected}"
            return None, f"{text}: what is kept are others, or in another order"
        return self.of_masks() or self.of_places()

    def of_masks(self) -> tuple[str | None, str] | None:
        """What the piece sees otherwise."""
        whole = (self.whole.weights[:, :, self.start : self.end, : self.end] > _LEAST).flatten(0, 1).any(0)
        own = (self.call.weights > _LEAST).flatten(0, 1).any(0)
        piece = torch.cat([own.new_zeros(self.size, self.end - self.keys), own], 1)
        more, lost, place = piece & ~whole, whole & ~piece, torch.arange(self.end)
        if torch.equal(own, torch.ones_like(own).tril()) and bool(lost.any()):
            text = "in a later piece the first query is aligned with the first key, not the last with the last"
            return "top-left-causal", f"{text}: new tokens do not see the newest keys"
        if bool((more & (place[None, :] > place[self.start :, None])).any()):
            return "no-causal-mask", "tokens of one piece see those that follow in it: no mask is used there"
        past = own[:, : -self.size]
        if bool(more.any()) and self.size > 1 and bool((past == past[:1]).all()):
            text = "the tokens of a piece all see the same kept tokens"
            return None, f"{text}: the window is cut once for the piece, and not for each token"
        if bool(more.any()):
            return None, f"in a later piece {_seen(more, self.start, 'sees')}, which it does not see at once{_COUNTS}"
        if bool(lost[:, : self.end - self.keys].any()):
            text = _seen(lost, self.start, "no longer sees")
            return None, f"in a later piece {text}: only {self.keys - self.size} are kept"
        if bool(lost.any()):
            text = f"in a later piece {_seen(lost, self.start, 'does not see')}, which it sees at once"
            return None, f"{text}{_COUNTS}"
        return None

    def of_places(self) -> tuple[str | None, str] | None:
        """Which vectors of the piece, or what is added to its scores, are others."""
        span, new = slice(self.start, self.end), slice(self.keys - self.size, self.keys)
        ours = {"query": self.call.query, "key": self.call.key[:, :, new]}
        moved = [name for name, x in ours.items() if not self.same(getattr(self.whole, name)[:, :, span], x)]
        words = {"query": "queries", "key": "keys"}
        if moved:
            places = [
                [p for p, x in enumerate(getattr(self.everywhere, name).unbind(2)) if self.same(x, ours[name][:, :, 0])]
                for name in moved
            ]
            named = " and ".join(words[name] for name in moved)
            rest = f", not those of its {words['key' if moved == ['query'] else 'query']}" if len(moved) == 1 else ""
            text = f"the positions of a later piece's {named}{rest}"
            if all(each == [0] for each in places):
                return "positions-restart", f"{text} begin again at 0: the number of tokens before it is not added"
            if all(len(each) == 1 for each in places) and self.start not in places[0]:
                told = f"{text} begin at {places[0][0]}, where {self.start} tokens came before: they are counted "
                return None, f"{told}otherwise, or kept from an earlier call"
            return None, f"{text} are others than in the whole"
        kept = self.whole.key[:, :, self.end - self.keys : self.start]
        if not self.same(kept, self.call.key[:, :, : self.keys - self.size]):
            return None, "keys in the cache are not at their positions: turned twice, or never"
        whole = self.whole.scores[:, :, span, self.end - self.keys : self.end]
        shown = (self.whole.weights > _LEAST)[:, :, span, self.end - self.keys : self.end]
        if whole.shape == self.call.scores.shape and not self.same(
            whole.masked_fill(~shown, 0.0), self.call.scores.masked_fill(~shown, 0.0)
        ):
            text = "what is added to the scores of a later piece is another"
            return "positions-restart", f"{text}, as where its places are counted from 0 again"
        return None


def _seen(cells: Tensor, start: int, sees: str) -> str:
    row, column = cells.nonzero()[0].tolist()
    return f"token {start + row} {sees} token {column}"


def in_pieces(asked: UserCall, found: Finding) -> Finding:
    """Tell what a piece has otherwise than the whole sequence has at its place."""
    if not asked.keeps:
        asked = asked.from_nothing() or asked
    axis = asked.of_tokens
    if axis is None or not isinstance(asked.target, nn.Module):
        return found
    size = asked.leaves[asked.main].given.size(axis)
    for plan in ([size - 2, 1, 1], [1] * size, [2, size - 2]):
        for piece in _pieces(asked, plan, axis):
            if piece.start and (reason := piece.reason()) is not None:
                return replace(found, cause=reason[0], told=f"{found.told}: {reason[1]}")
    return found


def _pieces(asked: UserCall, plan: list[int], axis: int) -> Iterator[_Piece]:
    """Hear the whole, and each piece with what the one before returned, and without."""
    target, names, start, count = asked.copied()[0], asked.keeps, 0, sum(plan)
    first = {name: copy.deepcopy(asked.form.kwargs.get(name)) for name in names}
    kept: dict[str, Any] = copy.deepcopy(first)
    whole = _heard(asked, asked.copied()[0], axis, torch.arange(count), first)
    for size in plan:
        part = torch.arange(start, start + size)
        now = _heard(asked, target, axis, part, kept)
        first_token = torch.full((count,), start)
        alone = _heard(asked, asked.copied()[0], axis, first_token, first) if start else now
        if len(now) == len(whole):
            for n, (one, other) in enumerate(zip(whole, now, strict=True)):
                lone = alone[n] if len(alone) == len(now) else one
                yield _Piece(start, size, one, other, lone, 1e-6 if asked.dtype == torch.float64 else 2e-3)
        args, kwargs = _arguments(asked, axis, part)
        result = target(*args, **kwargs | kept)
        kept = dict(zip(names, result[-len(names) :], strict=True))
        start += size


def _heard(asked: UserCall, target: nn.Module, axis: int, part: Tensor, kept: dict[str, Any]) -> list[Call]:
    args, kwargs = _arguments(asked, axis, part)
    twin = copy.deepcopy(target)
    return [seen.call for seen in hear_model(twin, args, kwargs | copy.deepcopy(kept), asked.default).calls]


def _arguments(asked: UserCall, axis: int, part: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
    def cut(leaf: Leaf) -> Tensor:
        x = leaf.given.index_select(axis, part)
        return x.to(asked.dtype) if x.is_floating_point() else x

    args = tuple(mapped(value, cut, copied=True) for value in asked.form.args)
    return args, {name: mapped(value, cut, copied=True) for name, value in asked.form.kwargs.items()}
