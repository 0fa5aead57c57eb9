"""The exercises of the page about caches."""

from collections.abc import Callable

import torch
from torch import Tensor

from unmasked import masks
from unmasked_lessons.exercises._check import Wrong, ask, exercise, hold, name, of_masks, same, tensor


@exercise("chunk-mask", "Each new token sees all that is in the cache, and the new ones up to itself.")
def _chunk_mask(answer: Callable[[int, int], Tensor]) -> None:
    for past, tokens in ((2, 3), (4, 1), (0, 3), (1, 2)):
        right = masks.causal(tokens, past + tokens)
        known = {"The new tokens are the last ones, not the first. [top-left-causal]": torch.ones_like(right).tril()}
        where = f"For {past} in the cache and {tokens} new"
        hold(answer(past, tokens), right, where, "the mask", known | of_masks(right))


@exercise("padded-positions", "The first real token of each sequence stands at position zero.")
def _padded_positions(answer: Callable[[Tensor], Tensor]) -> None:
    for lengths, left in (([3, 5], True), ([4], True), ([0, 2, 1], True), ([2, 4], False)):
        real = masks.padding(torch.tensor(lengths), side="left" if left else "right")[:, 0, 0]
        where, right = f"For {real.int().tolist()}", masks.positions_of(real)
        result = tensor(ask(answer, real), where, right, "the positions")
        shown = f"{where} the positions are {result.tolist()}; they could be {right.tolist()}."
        if result.is_floating_point() or result.dtype == torch.bool:
            raise Wrong(f"{shown} They are {result.dtype}; a table is read at whole numbers.")
        counted = torch.arange(real.size(1)).expand_as(real)
        known = {
            "There is a negative one, which no table has.": bool((result < 0).any()),
            "The padding is counted.": same(result[real], counted[real]),
        }
        if not same(result[real], right[real]) or (result < 0).any():
            name(result, shown, known)
        if result.numel() and result.max() >= right.size(1):
            raise Wrong(f"{shown} A table as long as the text has no position {result.max().item()}.")


@exercise("ring-slots", "The ring holds the last tokens, and the newest one in the place of the oldest.")
def _ring_slots(answer: Callable[[int, int], Tensor]) -> None:
    for length, window in ((5, 3), (4, 4), (12, 5), (7, 1)):
        right = length - 1 - (length - 1 - torch.arange(window)) % window
        where = f"For {length} tokens and a window of {window}"
        result = tensor(answer(length, window), where, right)
        known = {
            "These are the tokens that are there, in other slots.": same(result.sort().values, right.sort().values)
        }
        hold(result, right, where, "the positions", known)
