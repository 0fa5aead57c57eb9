"""The exercises of the page about online softmax."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from unmasked import tiles
from unmasked_lessons.exercises._check import Wrong, ask, draw, exercise, hold, parts, same


@exercise("running-softmax", "One pass, and the two numbers are those of the whole row.")
def _running(answer: Callable[[Sequence[Sequence[float]]], tuple[float, float]]) -> None:
    """Equation: (10.1)."""
    rows = (
        [[0.5, 2.0], [1.0]],
        [[3.0], [1.0, -2.0], [0.0]],
        [[-1.0, 0.0], [800.0, 799.0]],
        [[-math.inf, -math.inf], [1.0, 2.0]],
    )
    for row in rows:
        scores = torch.tensor([score for tile in row for score in tile], dtype=torch.float64)
        try:
            result = torch.tensor([float(each) for each in parts(answer(row), "maximum", "sum")], dtype=torch.float64)
        except OverflowError:
            raise Wrong(f"For {row} it raises OverflowError: measure every score from the largest so far.") from None
        right = torch.stack([scores.max(), (scores - scores.max()).exp().sum()])
        known = {
            "Minus infinity less minus infinity is NaN: a tile that shows nothing has no largest score.": bool(
                result[1].isnan()
            ),
            "When a larger score comes, the sum so far must shrink.": same(result[0], right[0]),
        }
        hold(result, right, f"For {row}", "it", known, shown=lambda pair: f"{pair[0]:.4g} and {pair[1]:.4g}")


@exercise("merge-parts", "Every part counts by its share of the exponentials.")
def _merge(answer: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]) -> None:
    """Equation: (10.2)."""
    query, key, value = draw((2, 3, 4), (2, 7, 4), (2, 7, 4))
    for size in (1.0, 400.0):
        parts = [
            tiles.tiled_attention(size * query, key[:, part], value[:, part]) for part in (slice(0, 2), slice(2, 7))
        ]
        (one, l_one), (two, l_two) = parts
        known = {
            "The plain mean is right only where both parts have the same sum of exponentials.": (one + two) / 2,
            "The shares are those of the exponentials, not of the numbers of keys.": (2 * one + 5 * two) / 7,
            "Large scores make it infinite or NaN: subtract before you take the exponential.": (
                lambda result: not result.isfinite().all()
            ),
        }
        hold(ask(answer, one, l_one, two, l_two), tiles.merge(parts).context, known=known)
