"""The exercises of the page about caches."""

from collections.abc import Callable

import torch
from torch import Tensor

from unmasked import masks
from unmasked.exercises._check import Wrong, exercise

PAGE = "pytorch/cache"


@exercise("chunk-mask", page=PAGE, task="Each new token sees all that is in the cache, and the new ones up to itself.")
def chunk_mask(answer: Callable[[int, int], Tensor]) -> None:
    """Hold a function of the tokens in the cache and the new ones to the causal mask that is aligned at the end."""
    for past, tokens in ((2, 3), (4, 1), (0, 3), (1, 2)):
        right, when = masks.causal(tokens, past + tokens), f"for {past} in the cache and {tokens} new"
        given = _tensor(answer(past, tokens), when, tuple(right.shape))
        if given.dtype != torch.bool:
            raise Wrong(f"The mask {when} is {given.dtype}; it should be boolean, True for what may be seen.")
        if torch.equal(given, right):
            continue
        shown = f"The mask {when} is {given.int().tolist()}; it should be {right.int().tolist()}."
        if torch.equal(given, ~right):
            raise Wrong(f"{shown} True must say what a query may see, not what it may not.", "mask-polarity")
        if torch.equal(given, torch.ones_like(right).tril()):
            raise Wrong(f"{shown} The new tokens are the last ones, not the first.", "top-left-causal")
        if given.all():
            raise Wrong(f"{shown} A new token sees the later ones.", "no-causal-mask")
        raise Wrong(shown)


@exercise("padded-positions", page=PAGE, task="The first real token of each sequence stands at position zero.")
def padded_positions(answer: Callable[[Tensor], Tensor]) -> None:
    """Hold a function of what is real to the positions of real tokens; those of padding must exist, and no more."""
    for told, side in (([3, 5], "left"), ([4], "left"), ([0, 2, 1], "left"), ([2, 4], "right")):
        lengths = torch.tensor(told)
        real = masks.padding(lengths, side="left" if side == "left" else "right")[:, 0, 0]
        when, right = f"for {real.int().tolist()}", masks.positions_of(real)
        given = _tensor(answer(real.clone()), when, tuple(right.shape))
        shown = f"The positions {when} are {given.tolist()}; they could be {right.tolist()}."
        if given.is_floating_point() or given.dtype == torch.bool:
            raise Wrong(f"{shown} They are {given.dtype}; a table is read at whole numbers.")
        if (given < 0).any():
            raise Wrong(f"{shown} There is a negative one, which no table has.")
        if not torch.equal(given[real].long(), right[real]):
            place = torch.arange(right.size(1)).expand_as(right)
            counted = torch.equal(given[real].long(), place[real])
            raise Wrong(f"{shown} The padding is counted." if counted else shown)
        if given.numel() and given.max() >= right.size(1):
            raise Wrong(f"{shown} A table as long as the text has no position {given.max().item()}.")


@exercise(
    "ring-slots", page=PAGE, task="The ring holds the last tokens, and the newest one in the place of the oldest."
)
def ring_slots(answer: Callable[[int, int], Tensor]) -> None:
    """Hold a function of the tokens so far and the window to the positions in the slots of a ring."""
    for length, window in ((5, 3), (4, 4), (12, 5), (7, 1)):
        when = f"for {length} tokens and a window of {window}"
        right = length - 1 - (length - 1 - torch.arange(window)) % window
        given = _tensor(answer(length, window), when, (window,))
        if torch.equal(given.double(), right.double()):
            continue
        shown = f"The positions {when} are {given.tolist()}; they should be {right.tolist()}."
        if torch.equal(given.double().sort().values, right.double().sort().values):
            raise Wrong(f"{shown} These are the tokens that are there, in other slots.")
        raise Wrong(shown)


def _tensor(given: object, when: str, shape: tuple[int, ...]) -> Tensor:
    if not isinstance(given, Tensor):
        raise Wrong(f"It returned {type(given).__name__} {when}; return a tensor.")
    if tuple(given.shape) != shape:
        raise Wrong(f"The shape {when} is {tuple(given.shape)}; it should be {shape}.")
    return given
