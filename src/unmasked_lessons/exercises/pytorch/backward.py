"""The exercises of the page about the backward pass."""

from collections.abc import Callable, Sequence

from torch import Tensor

from unmasked.gradients import attention_backward
from unmasked_lessons.exercises._check import draw, exercise, hold, parts

_SHAPES = (2, 3, 4, 2), (2, 3, 4, 6), (2, 3, 5, 6), (2, 3, 5, 2)  # of the context's gradient, query, key and value


@exercise("row-sums", "The context is the weighted sum already, so its features are enough.")
def _row_sums(answer: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Equation: (9.3)."""
    grad_context, query, key, value = draw(*_SHAPES)
    weights = (query @ key.mT / 6**0.5).softmax(-1)
    right = (weights * (grad_context @ value.mT)).sum(-1, keepdim=True)
    result = answer(grad_context, weights @ value)
    if isinstance(result, Tensor) and result.shape == right.shape[:-1]:
        result = result[..., None]
    known = {"These are the means over the features; they should be sums.": right / 2}
    axes = ": a number for each query"
    hold(result, right, "", "the first", known, axes=axes, shown=lambda each: f"{each.flatten()[0]:.3f}")


@exercise("attention-backward", "All three gradients are autograd's.")
def _backward(answer: Callable[[Tensor, Tensor, Tensor, Tensor], Sequence[Tensor]]) -> None:
    """Equation: (9.2)."""
    drawn = draw(*_SHAPES)
    result, right = parts(list(answer(*drawn)), "query", "key", "value"), attention_backward(*drawn)
    grad_context, query, key, value = drawn
    without = (query @ key.mT / 6**0.5).softmax(-1) * (grad_context @ value.mT)
    no_sum = (without @ key, without.mT @ query, right.value)
    for subject, mine, exact, short in zip(("query", "key", "value"), result, right, no_sum, strict=True):
        row_sum = "The row sum is missing: a score moves all the weights of its row."
        known = {
            "The scale is missing: query and key both have it.": exact * 6**0.5,
            row_sum: short / 6**0.5,
            f"{row_sum} So is the scale.": short,
        }
        hold(mine, exact, subject=f"the gradient of the {subject}", known=known)
