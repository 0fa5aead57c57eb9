"""The exercises of the page about online softmax."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from unmasked import tiles
from unmasked.exercises._check import Wrong, exercise

PAGE = "pytorch/tiles"


@exercise("running-softmax", page=PAGE, task="One pass, and the two numbers are those of the whole row.")
def running(answer: Callable[[Sequence[Sequence[float]]], tuple[float, float]]) -> None:
    """Hold a function of the tiles of a row to the largest score and the sum of the exponentials.

    Equation: (10.1)
    """
    rows = (
        [[0.5, 2.0], [1.0]],
        [[3.0], [1.0, -2.0], [0.0]],
        [[-1.0, 0.0], [800.0, 799.0]],
        [[-math.inf, -math.inf], [1.0, 2.0]],
    )
    for row in rows:
        scores = torch.tensor([score for tile in row for score in tile], dtype=torch.float64)
        largest, total = scores.max().item(), (scores - scores.max()).exp().sum().item()
        try:
            given = tuple(float(each) for each in answer(row))
        except OverflowError:
            raise Wrong(f"For {row} it raises OverflowError: measure every score from the largest so far.") from None
        if len(given) != 2:
            raise Wrong(f"For {row} it returns {len(given)} numbers; return two, the largest score and the sum.")
        told = f"For {row} it is {given[0]:.4g} and {given[1]:.4g}; it should be {largest:.4g} and {total:.4g}."
        if math.isnan(given[1]) and -math.inf in row[0]:
            raise Wrong(
                f"{told} Minus infinity less minus infinity is NaN: a tile that shows nothing has no largest score."
            )
        if given[0] != largest:
            raise Wrong(told)
        if not math.isclose(given[1], total, rel_tol=1e-6):
            raise Wrong(f"{told} When a larger score comes, the sum so far must shrink.")


@exercise("merge-parts", page=PAGE, task="Every part counts by its share of the exponentials.")
def merge(answer: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]) -> None:
    """Hold a function of two contexts and their log-sum-exps to the context of both parts.

    Equation: (10.2)
    """
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, n, 4, generator=generator, dtype=torch.float64) for n in (3, 7, 7))
    for size in (1.0, 400.0):
        parts = [tiles.attention(size * query, key[:, part], value[:, part]) for part in (slice(0, 2), slice(2, 7))]
        right = tiles.merge(parts).context
        (one, l_one), (two, l_two) = parts
        given = answer(one, l_one, two, l_two).detach()
        if given.shape != right.shape:
            raise Wrong(f"The shape is {tuple(given.shape)}; it should stay {tuple(right.shape)}.")
        if torch.allclose(given, right, rtol=1e-4, atol=1e-6):
            continue
        told = f"It is off by up to {(given - right).abs().max():.2f}."
        if torch.allclose(given, (one + two) / 2):
            raise Wrong(f"{told} The plain mean is right only where both parts have the same sum of exponentials.")
        if torch.allclose(given, (2 * one + 5 * two) / 7):
            raise Wrong(f"{told} The shares are those of the exponentials, not of the numbers of keys.")
        if size > 1 and not given.isfinite().all():
            raise Wrong("Large scores make it infinite or NaN: subtract before you take the exponential.")
        raise Wrong(told)
