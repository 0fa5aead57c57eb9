"""The exercises of the page that says what attention is."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from unmasked.exercises._check import Wrong, exercise
from unmasked.functional import cosine_weights, self_attention

PAGE = "learn/attention"
Rows = Sequence[Sequence[float]]


@exercise("by-hand", page=PAGE, task="Scores, exponentials, their sum, an average: that is all there is.")
def by_hand(answer: Callable[[Rows], Any]) -> None:
    """Hold a function of rows of numbers to the context of self-attention.

    Equation: (1.4, 1.5)
    """
    cases: list[list[list[float]]] = [
        [[1.0, 2.0]],
        [[1.0, 0.0], [0.0, 2.0]],
        [[1.0, 0.0, 0.0, 1.0], [0.0, 1.5, 1.0, 1.0], [0.0, 1.0, 1.0, 1.0]],
    ]
    for rows in cases:
        x = torch.tensor(rows, dtype=torch.float64)
        scores = x @ x.mT / math.sqrt(x.size(-1))
        weights = scores.softmax(-1)
        right = weights @ x
        given = _numbers(answer([list(row) for row in rows]))
        shown = f"For {rows}"
        if given.shape != right.shape:
            raise Wrong(f"{shown} the shape is {tuple(given.shape)}; it should be {tuple(right.shape)}: a row a token.")
        if torch.allclose(given, right, atol=5e-4):
            continue
        if torch.allclose(given, weights, atol=5e-4) if given.shape == weights.shape else False:
            raise Wrong(f"{shown} it gives the weights; average the rows with them.")
        row = next(i for i in range(len(rows)) if not torch.allclose(given[i], right[i], atol=5e-4))
        told = f"{shown} row {row} is {_short(given[row])}; it should be {_short(right[row])}."
        wrong: dict[tuple[str, str | None], Tensor] = {
            ("The scores are not divided by the root.", "missing-scale"): (x @ x.mT).softmax(-1) @ x,
            ("Divide by the root of the dimension, not by it.", "wrong-d-in-scale"): (x @ x.mT / x.size(-1)).softmax(-1)
            @ x,
            ("The weights sum to one by column; they should by row.", "softmax-over-queries"): scores.softmax(0) @ x,
            ("The exponentials are not divided by their sum.", "weights-not-normalized"): scores.exp() @ x,
            ("The scores themselves are no weights.", "weights-not-normalized"): scores @ x,
        }
        for (why, cause), mistaken in wrong.items():
            if torch.allclose(given, mistaken, atol=5e-4):
                raise Wrong(f"{told} {why}", cause)
        raise Wrong(told)


@exercise("is-cosines", page=PAGE, task="The diagonal tells: each vector points the same way as itself.")
def is_cosines(answer: Callable[[Tensor], Any]) -> None:
    """Hold a function of a table to whether it can be one of cosines."""
    generator = torch.Generator().manual_seed(0)
    x, other = torch.randn(2, 4, 6, generator=generator, dtype=torch.float64)
    right = cosine_weights(x)
    if not bool(answer(right)):
        raise Wrong("A right table of cosines, of four vectors, is refused.")
    if not bool(answer(cosine_weights(x.float()))):
        raise Wrong("A right table in float32 is refused: its diagonal is one up to rounding.")
    norms = other.norm(dim=-1, keepdim=True)
    larger = 2 * x.norm(dim=-1, keepdim=True)
    for name, borrowed in {"the norms of other vectors": norms, "norms that are twice too large": larger}.items():
        if bool(answer((x / borrowed) @ (x / borrowed).mT)):
            raise Wrong(f"A table that was divided by {name} is taken for cosines.", "foreign-norms")


@exercise("sum-of-zero", page=PAGE, task="They point in opposite directions: one plus minus one is zero.")
def sum_of_zero(answer: Any) -> None:
    """Hold two vectors to a sum of cosines that nothing can be divided by."""
    x = _numbers(answer)
    if x.dim() != 2 or x.size(0) != 2:
        raise Wrong(f"The shape is {tuple(x.shape)}; give two rows, one a vector.")
    if not (x.norm(dim=-1) > 0).all():
        raise Wrong("A vector of zeros has no direction, and so no cosine.")
    sums = cosine_weights(x).sum(-1)
    if sums.abs().max() > 1e-5:
        raise Wrong(f"Their cosines sum to {sums[0].item():.3g}, by which one can divide.")
    weights = self_attention(x).weights
    assert weights is not None
    assert torch.allclose(weights.sum(-1), torch.ones_like(sums))  # a softmax has no such trouble


def _numbers(given: Any) -> Tensor:
    try:
        return torch.as_tensor(given, dtype=torch.float64).detach()
    except (TypeError, ValueError, RuntimeError):
        raise Wrong(f"It is {type(given).__name__}; give rows of numbers, as lists or as a tensor.") from None


def _short(row: Tensor) -> list[float]:
    return [round(number, 3) for number in row.tolist()]
