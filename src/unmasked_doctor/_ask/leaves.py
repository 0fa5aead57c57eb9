"""What a tensor of a call may be, told by its numbers: tokens, ids of words, a mask, offsets of packed sequences."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from unmasked_doctor._form import Leaf
from unmasked_doctor._words import HIDES, LENGTHS

__all__ = [
    "are_ids", "are_key_and_value", "is_content", "is_mask", "is_offsets", "mirrored", "numbers_items", "padded_before",
    "padding_id",
]  # fmt: skip


def is_content(leaf: Leaf) -> bool:
    return leaf.given.is_floating_point() and leaf.given.dim() > 1 and not is_mask(leaf)


def padding_id(x: Tensor) -> int | None:
    """What stands for padding among ids: zero, or what stands several times at an end and nowhere else."""
    if x.is_floating_point() or x.is_complex() or x.dtype == torch.bool or x.dim() != 2 or len(x.unique()) < 3:
        return None
    if bool((x == 0).any()):
        return 0
    for row in x:
        last = x.eq(row[-1])
        if len(row) > 1 and bool(row[-1] == row[-2]) and torch.equal(last, last.flip(1).cumprod(1).flip(1).bool()):
            return int(row[-1])
    return None


def are_ids(leaf: Leaf) -> bool:
    """Whether an argument may be ids of words, (items, tokens): whole numbers, of which there are several kinds."""
    x = leaf.given
    if x.is_floating_point() or x.is_complex() or x.dtype == torch.bool or x.dim() != 2 or is_mask(leaf):
        return False
    steps = x[:, 1:] - x[:, :-1]
    return len(x[x > 0].unique()) > 1 and not bool((steps == 1).all())  # which would be places


def is_mask(leaf: Leaf) -> bool:
    """Whether an argument may hide tokens: truth values, zeros and ones by that name, or what is added to scores."""
    x = leaf.given
    if x.dtype == torch.bool:
        return True
    binary = bool(((x == 0) | (x == 1)).all()) if x.numel() else False
    if x.is_floating_point():
        return x.dim() > 1 and (bool(((x == 0) | (x <= -1e4)).all()) or (binary and bool(HIDES.search(leaf.name))))
    return x.dim() > 1 and binary and bool(HIDES.search(leaf.name))


def is_offsets(leaf: Leaf, main: Tensor) -> bool:
    x = leaf.given
    whole = not (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool)
    return whole and x.dim() == 1 and len(x) > 1 and bool(x[0] == 0) and int(x[-1]) == main.size(0)


def padded_before(tensors: Sequence[Tensor], real: Tensor, features: Collection[int]) -> list[Tensor] | None:
    """The tensors of a call with one more column of padding before the tokens.

    Args:
        tensors: The tensors.
        real: bool, (items, tokens): which tokens are no padding.
        features: The places of those whose last axis has features.

    Returns:
        The tensors; None where padding stands behind the tokens, where places are passed, or where more than columns
        would have to grow.
    """
    if bool(real[:, 0].all()) or not bool(real[:, -1].all()) or real.size(1) < 3:
        return None
    made, padded = [], int((~real[:, 0]).nonzero()[0])
    for n, x in enumerate(tensors):
        by_column = x.dim() > 1 and x.shape[:2] == real.shape
        whole = by_column and x.dim() == 2 and x.dtype in (torch.int32, torch.int64)
        places = whole and bool((x[:, 1:] - x[:, :-1] == 1).any(0).all())
        inner = x.shape[2:] if by_column else x.shape
        if places or real.size(1) in (inner[:-1] if n in features else inner):
            return None
        column = x[padded : padded + 1, :1].expand(x.size(0), *[-1] * (x.dim() - 1)) if by_column else x
        made.append(torch.cat([column, x], 1) if by_column else x)
    return made


def mirrored(x: Tensor) -> Tensor:
    """Other numbers, made of the same ones, by what one line of Python says."""
    return 1 - x.flip(-1)


def numbers_items(leaf: Leaf, count: int) -> bool:
    """Whether an argument has for each item the number of an item, as where a beam search reorders them."""
    x = leaf.given
    whole = x.dtype in (torch.int32, torch.int64) and x.dim() == 1 and len(x) == count > 1
    return whole and not LENGTHS.search(leaf.name) and int(x.min()) >= 0 and int(x.max()) < count


def are_key_and_value(one: str, two: str) -> bool:
    """Whether two names differ by key and value alone."""
    return re.sub("key|k", "value" if "key" in one else "v", one) == two
