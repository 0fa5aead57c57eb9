"""Which outputs notice which token, and which tokens an argument may hide, in each way to read it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unmasked_doctor._ask.leaves import is_mask, padding_id
from unmasked_doctor._words import HIDES_NOT, LENGTHS

if TYPE_CHECKING:
    from unmasked_doctor._ask.user_call import UserCall

__all__ = ["Hiding", "Reach", "hidden_seen", "hidings", "others_shown"]


@dataclass(frozen=True)
class Reach:
    """Which outputs notice which tokens of an argument.

    Attributes:
        leaf: The argument's place among the tensors of the call.
        tokens: The tokens that were changed.
        moved: (items, outputs, tokens) for outputs with an axis of tokens, (items, 1, tokens) for others.
        gap: By how much each moved: the same shape.
    """

    leaf: int
    tokens: list[int]
    moved: Tensor
    gap: Tensor


@dataclass(frozen=True)
class Hiding:
    """What an argument may hide, if it is read so.

    Attributes:
        told: The reading, in words.
        hidden: Which token is hidden from which output: (items, outputs or 1, tokens).
    """

    told: str
    hidden: Tensor


def hidings(asked: UserCall, at: int, reach: Reach) -> Iterator[list[Hiding]]:
    """For an argument that may hide tokens, each way to read it, for the tokens that were asked about."""
    leaf, (items, outputs, _) = asked.leaves[at], reach.moved.shape
    x, axis = leaf.given, asked.token_axis(reach.leaf)
    if HIDES_NOT.search(leaf.name) or axis is None:
        return
    size = asked.leaves[reach.leaf].given.size(axis)
    if leaf is asked.packed:
        which = torch.bucketize(torch.arange(size), x[1:], right=True)
        if outputs == size and reach.leaf == asked.main:
            apart = which[:, None] != which[None, reach.tokens]
            yield [Hiding(f"{leaf.name} parts sequences", apart[None])]
        return
    pad = padding_id(x) if asked.is_padded(at) else None
    if tuple(x.shape) == (items, size) and pad is not None:
        yield [Hiding(f"{pad} is padding in {leaf.name}", x.eq(pad)[:, None, reach.tokens])]
        return
    if x.dim() == 1 and x.numel() == items and LENGTHS.search(leaf.name) and not x.is_floating_point():
        if int(x.max()) <= size and int(x.min()) >= 0:
            yield [Hiding(f"{leaf.name} counts tokens", (torch.arange(size) >= x[:, None])[:, None, reach.tokens])]
        return
    if not is_mask(leaf):
        return
    hides = x.bool() if not x.is_floating_point() or bool((x == 1).any()) else x <= -1e4
    squeezed = hides.squeeze(1) if hides.dim() == 4 and hides.size(1) == 1 else hides
    senses = ["True hides", "True shows"] if not x.is_floating_point() or bool((x == 1).any()) else ["low hides"]
    made: list[Tensor] = []
    if squeezed.dim() == 2 and tuple(squeezed.shape) == (items, size):
        made.append(squeezed[:, None])
    if squeezed.dim() == 2 and tuple(squeezed.shape) == (outputs, size):
        made.append(squeezed[None])
    pairs = squeezed.dim() == 3 and squeezed.size(0) in (1, items) and squeezed.size(1) in (1, outputs)
    if pairs and squeezed.size(2) == size and asked.leaves[asked.main].given.shape[:-1] != x.shape:
        made.append(squeezed)
    ways = [
        Hiding(f"{sense} in {leaf.name}", (y if sense != "True shows" else ~y)[..., reach.tokens])
        for y in made for sense in senses
    ]  # fmt: skip
    if ways:
        yield ways


def hidden_seen(reach: Reach, way: Hiding) -> Tensor:
    """Which hidden tokens real outputs notice, each token's own output aside: (items, outputs, tokens)."""
    noticed = reach.moved & way.hidden
    if reach.moved.size(1) == len(reach.tokens):
        noticed = noticed & ~torch.eye(len(reach.tokens), dtype=torch.bool)
        noticed = noticed & ~way.hidden.all(1)[:, :, None]  # nobody reads what padding gives
    return noticed & ~way.hidden.all(-1, keepdim=True)  # who may see nothing


def others_shown(reach: Reach, way: Hiding) -> Tensor:
    """Which outputs notice other tokens that a mask does not hide."""
    noticed = reach.moved & ~way.hidden
    if reach.moved.size(1) == len(reach.tokens):
        noticed = noticed & ~torch.eye(len(reach.tokens), dtype=torch.bool)
    return noticed
