"""The exercises of the page that introduces masks."""

from collections.abc import Callable

import torch
from torch import Tensor

from unmasked import masks
from unmasked_lessons.exercises._check import ask, exercise, hold, of_masks


@exercise("window-mask", "Each query sees itself and the keys right before it, and no others.")
def _window_mask(answer: Callable[[int, int], Tensor]) -> None:
    for tokens, width in ((4, 2), (6, 3), (3, 5), (3, 1)):
        right = masks.sliding_window(tokens, window=width)
        known = {
            "The window has no end: keys that are farther back must be hidden.": masks.causal(tokens),
            "The width counts the query itself: the window is one too wide.": (
                masks.sliding_window(tokens, window=width + 1)
            ),
        }
        where = f"For {tokens} tokens and a width of {width}"
        hold(answer(tokens, width), right, where, "the mask", known | of_masks(right))


@exercise("blind-queries", "A query is blind if the mask allows it no key.")
def _blind_queries(answer: Callable[[Tensor], Tensor]) -> None:
    one = torch.tensor([[True, True, False], [False, False, False]])
    for allowed in (one, torch.stack([one, ~one])[:, None]):  # batch 1 queries keys
        known = {
            "True must mark the queries that see nothing.": allowed.any(-1),
            "A query that sees some of the keys is not blind.": ~allowed.all(-1),
        }
        where = f"For a mask of shape {tuple(allowed.shape)}"
        hold(ask(answer, allowed), ~allowed.any(-1), where, "the answer", known, axes=", one per query")
