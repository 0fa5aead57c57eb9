"""The exercises of the page that introduces masks."""

from collections.abc import Callable

import torch
from torch import Tensor

from unmasked import masks
from unmasked.exercises._check import Wrong, exercise

PAGE = "learn/masks"


@exercise("window-mask", page=PAGE, task="Each query sees itself and the keys right before it, and no others.")
def window_mask(answer: Callable[[int, int], Tensor]) -> None:
    """Hold a function of the number of tokens and the window's width to the mask of a causal window."""
    for tokens, width in ((4, 2), (6, 3), (3, 5), (3, 1)):
        when = f"for {tokens} tokens and a width of {width}"
        right = masks.causal(tokens) & ~masks.causal(tokens).tril(-width)
        given = _boolean(answer(tokens, width), when)
        if given.shape != right.shape:
            raise Wrong(f"The shape {when} is {tuple(given.shape)}; it should be {tuple(right.shape)}.")
        if torch.equal(given, right):
            continue
        shown = f"The mask {when} is {given.int().tolist()}; it should be {right.int().tolist()}."
        if torch.equal(given, ~right):
            raise Wrong(f"{shown} True must say what a query may see, not what it may not.", "mask-polarity")
        if given.triu(1).any():
            raise Wrong(f"{shown} A query sees a key that comes later.", "no-causal-mask")
        if not given.any(-1).all():
            raise Wrong(f"{shown} Some query may see nothing; each sees at least itself.", "fully-masked-row")
        if torch.equal(given, masks.causal(tokens)):
            raise Wrong(f"{shown} The window has no end: keys that are farther back must be hidden.")
        if torch.equal(given, masks.causal(tokens) & ~masks.causal(tokens).tril(-width - 1)):
            raise Wrong(f"{shown} The width counts the query itself: the window is one too wide.")
        raise Wrong(shown)


@exercise("blind-queries", page=PAGE, task="A query is blind if the mask allows it no key.")
def blind_queries(answer: Callable[[Tensor], Tensor]) -> None:
    """Hold a function of a mask to which of its queries may see nothing."""
    one = torch.tensor([[True, True, False], [False, False, False]])
    both = torch.stack([one, ~one])[:, None]  # batch 1 queries keys
    for allowed in (one, both):
        when = f"for a mask of shape {tuple(allowed.shape)}"
        right = ~allowed.any(-1)
        given = _boolean(answer(allowed.clone()), when)
        if given.shape != right.shape:
            raise Wrong(f"The shape {when} is {tuple(given.shape)}; it should be {tuple(right.shape)}, one per query.")
        if torch.equal(given, right):
            continue
        shown = f"The answer {when} is {given.int().tolist()}; it should be {right.int().tolist()}."
        if torch.equal(given, ~right):
            raise Wrong(f"{shown} True must mark the queries that see nothing.")
        if torch.equal(given, ~allowed.all(-1)):
            raise Wrong(f"{shown} A query that sees some of the keys is not blind.")
        raise Wrong(shown)


def _boolean(given: object, when: str) -> Tensor:
    if not isinstance(given, Tensor):
        raise Wrong(f"It returned {type(given).__name__} {when}; return a tensor.")
    if given.dtype != torch.bool:
        raise Wrong(f"The dtype {when} is {given.dtype}; return torch.bool.")
    return given.cpu()
