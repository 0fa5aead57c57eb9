"""Answers to the exercises of the page on tiles, and what is said of wrong ones."""

import math
from itertools import chain

import torch
from torch import Tensor

from unmasked import tiles


def flat(row: list[list[float]]) -> list[float]:
    return [*chain.from_iterable(row)]


def running(row: list[list[float]], *, shrinks: bool = True, guards: bool = True) -> tuple[float, float]:
    largest, total = -math.inf, 0.0
    for tile in row:
        new = max(largest, *tile)
        if guards and new == -math.inf:
            continue
        if shrinks:
            total *= math.nan if new == largest == -math.inf else math.exp(largest - new)
        total += sum(math.nan if score == new == -math.inf else math.exp(score - new) for score in tile)
        largest = new
    return largest, total


def merged(one: Tensor, l_one: Tensor, two: Tensor, l_two: Tensor) -> Tensor:
    share = torch.sigmoid(l_one - l_two)[..., None]
    return share * one + (1 - share) * two


def unsafe(one: Tensor, l_one: Tensor, two: Tensor, l_two: Tensor) -> Tensor:
    a, b = l_one.exp()[..., None], l_two.exp()[..., None]
    return (a * one + b * two) / (a + b)


RIGHT = [
    ("running-softmax", running),
    ("running-softmax", lambda row: (max(flat(row)), sum(math.exp(s - max(flat(row))) for s in flat(row)))),
    ("merge-parts", merged),
    ("merge-parts", lambda a, b, c, d: tiles.merge([(a, b), (c, d)]).context),
]

WRONG = {
    ("running-softmax", "never shrinks"): (
        lambda row: running(row, shrinks=False),
        None,
        "When a larger score comes, the sum so far must shrink.",
    ),
    ("running-softmax", "not measured from the largest"): (
        lambda row: (max(flat(row)), sum(math.exp(s) for s in flat(row))),
        None,
        "For [[0.5, 2.0], [1.0]] it is 2 and 11.76; it should be 2 and 1.591.",
    ),
    ("running-softmax", "overflows"): (
        lambda row: (max(flat(row)), sum(math.exp(s) for s in flat(row)) / math.exp(max(flat(row)))),
        None,
        "it raises OverflowError: measure every score from the largest so far.",
    ),
    ("running-softmax", "empty tile"): (
        lambda row: running(row, guards=False),
        None,
        "Minus infinity less minus infinity is NaN: a tile that shows nothing has no largest score.",
    ),
    ("running-softmax", "of the last tile"): (
        lambda row: (max(row[-1]), 1.0),
        None,
        "For [[0.5, 2.0], [1.0]] it is 1 and 1; it should be 2 and 1.591.",
    ),
    ("running-softmax", "one number"): (lambda row: (1.0,), None, "it returns 1 numbers; return two"),
    ("merge-parts", "mean"): (
        lambda a, b, c, d: (a + c) / 2,
        None,
        "The plain mean is right only where both parts have the same sum of exponentials.",
    ),
    ("merge-parts", "by keys"): (
        lambda a, b, c, d: (2 * a + 5 * c) / 7,
        None,
        "The shares are those of the exponentials, not of the numbers of keys.",
    ),
    ("merge-parts", "overflows"): (
        unsafe,
        None,
        "Large scores make it infinite or NaN: subtract before you take the exponential.",
    ),
    ("merge-parts", "one part"): (lambda a, b, c, d: a, None, "It is off by up to "),
    ("merge-parts", "another shape"): (lambda a, b, c, d: a[0], None, "The shape is (3, 4); it should stay (2, 3, 4)."),
}
