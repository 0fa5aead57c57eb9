"""Right and wrong answers to the exercises of pytorch/tiles."""

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


RIGHT = {
    "running-softmax": [running, lambda row: (max(flat(row)), sum(math.exp(s - max(flat(row))) for s in flat(row)))],
    "merge-parts": [merged, lambda a, b, c, d: tiles.merge([(a, b), (c, d)]).context],
}
WRONG = {
    "running-softmax": [
        ("When a larger score comes, the sum so far must shrink.", lambda row: running(row, shrinks=False)),
        ("it is 2 and 11.76; it should be 2 and", lambda row: (max(flat(row)), sum(math.exp(s) for s in flat(row)))),
        (
            "it raises OverflowError: measure every score from the largest so far.",
            lambda row: (max(flat(row)), sum(math.exp(s) for s in flat(row)) / math.exp(max(flat(row)))),
        ),
        ("infinity is NaN: a tile that shows nothing has no largest score.", lambda row: running(row, guards=False)),
        ("For [[0.5, 2.0], [1.0]] it is 1 and 1; it should be 2 and 1.591.", lambda row: (max(row[-1]), 1.0)),
        ("It returned 1; return 2: maximum, sum.", lambda row: (1.0,)),
    ],
    "merge-parts": [
        ("mean is right only where both parts have the same sum of exponentials.", lambda a, b, c, d: (a + c) / 2),
        ("not of the numbers of keys.", lambda a, b, c, d: (2 * a + 5 * c) / 7),
        ("Large scores make it infinite or NaN: subtract before you take the exponential.", unsafe),
        ("It is off by up to 0.84.", lambda a, b, c, d: a),
    ],
}
