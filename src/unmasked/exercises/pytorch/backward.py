"""The exercises of the page about the backward pass."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from unmasked.exercises._check import Wrong, exercise
from unmasked.gradients import attention_backward

PAGE = "pytorch/backward"


def _drawn() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 3, 4, 2), (2, 3, 4, 6), (2, 3, 5, 6), (2, 3, 5, 2)]
    return tuple(torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)  # type: ignore[return-value]


@exercise("row-sums", page=PAGE, task="The context is the weighted sum already, so its features are enough.")
def row_sums(answer: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Hold a function of the context and its gradient to the row sums of the backward pass.

    Equation: (9.3)
    """
    grad_context, query, key, value = _drawn()
    weights = (query @ key.mT / 6**0.5).softmax(-1)
    right = (weights * (grad_context @ value.mT)).sum(-1, keepdim=True)
    given = answer(grad_context, weights @ value)
    if given.shape not in (right.shape, right.shape[:-1]):
        raise Wrong(f"The shape is {tuple(given.shape)}; it should be {tuple(right.shape)}: a number for each query.")
    given = given.detach().reshape(right.shape)
    if torch.allclose(given, right / 2, rtol=1e-4):
        raise Wrong("These are the means over the features; they should be sums.")
    if not torch.allclose(given, right, rtol=1e-4):
        raise Wrong(f"The first is {given.flatten()[0]:.3f}; it should be {right.flatten()[0]:.3f}.")


@exercise("attention-backward", page=PAGE, task="All three gradients are autograd's.")
def backward(answer: Callable[[Tensor, Tensor, Tensor, Tensor], Sequence[Tensor]]) -> None:
    """Hold a function of the context's gradient, query, key and value to their gradients.

    Equation: (9.2)
    """
    drawn = _drawn()
    given, right = list(answer(*drawn)), attention_backward(*drawn)
    shapes = [tuple(each.shape) for each in given]
    if shapes != [tuple(each.shape) for each in right]:
        raise Wrong(f"The shapes are {shapes}; they should be those of query, key and value.")
    _, query, key, value = drawn
    weights = (query @ key.mT / 6**0.5).softmax(-1)
    without = weights * (drawn[0] @ value.mT) / 6**0.5
    for name, mine, exact, no_sum in zip(
        ("query", "key", "value"), given, right, (without @ key, without.mT @ query, right.value), strict=True
    ):
        mine = mine.detach()
        if torch.allclose(mine, exact, rtol=1e-4, atol=1e-6):
            continue
        told = f"The gradient of the {name} is off by up to {(mine - exact).abs().max():.2f}."
        if torch.allclose(mine, exact * 6**0.5, rtol=1e-4):
            raise Wrong(f"{told} The scale is missing: query and key both have it.")
        if torch.allclose(mine, no_sum, rtol=1e-4) or torch.allclose(mine, no_sum * 6**0.5, rtol=1e-4):
            raise Wrong(f"{told} The row sum is missing: a score moves all the weights of its row.")
        raise Wrong(told)
