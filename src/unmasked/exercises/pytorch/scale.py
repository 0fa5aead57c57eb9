"""The exercises of the page about the scale, on the roots of variances and on the softmax they keep from saturating.

The page measures by equations (2.4) and (2.6) what the exercises compute by the others.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from unmasked.exercises._check import Wrong, exercise
from unmasked.functional import cosine_weights, self_attention

PAGE = "pytorch/scale"


@exercise("scaled-scores", page=PAGE, task="The dot products are divided by the root of the number of features.")
def scaled_scores(answer: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Hold a function of queries and keys to the scores.

    Equation: (2.2)
    """
    generator = torch.Generator().manual_seed(0)
    q, k = torch.tensor([[2.0, 0.0, 1.0, 3.0]]).double(), torch.tensor([[1.0, 4.0, 2.0, 2.0]]).double()
    under: dict[int, float] = {4: _under_the_root(answer, q, k)}
    for shape, keys, d in (((), 3, 9), ((2,), 5, 2), ((2, 3), 7, 6)):
        q = torch.randn(*shape, 4, d, generator=generator, dtype=torch.float64)
        k = torch.randn(*shape, keys, d, generator=generator, dtype=torch.float64)
        under[d] = _under_the_root(answer, q, k)
    for d, found in under.items():
        if abs(found / d - 1) < 1e-4:
            continue
        what = f"For {d} features the dot products are divided by {found**0.5:.4g}; it should be {d**0.5:.4g}"
        if all(abs(each - 1) < 1e-4 for each in under.values()):
            raise Wrong(f"{what}. They are not scaled at all.", "missing-scale")
        if all(abs(each / size**2 - 1) < 1e-4 for size, each in under.items()):
            raise Wrong(f"{what}. Divide by the root of the number, not by the number.", "wrong-d-in-scale")
        if all(abs(each * size - 1) < 1e-4 for size, each in under.items()):
            raise Wrong(f"{what}. They are multiplied by the root.", "wrong-d-in-scale")
        if all(abs(each / found - 1) < 1e-4 for each in under.values()):
            raise Wrong(f"{what}. Whatever the number of features, the divisor stays: read it from q.", "global-d-k")
        raise Wrong(f"{what}. The root is that of another number.", "wrong-d-in-scale")


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


def _under_the_root(answer: Callable[[Tensor, Tensor], Tensor], q: Tensor, k: Tensor) -> float:
    """Find the number whose root an answer divides by."""
    products = torch.einsum("...qd,...kd->...qk", q, k)
    before = q.clone(), k.clone()
    given = answer(q, k)
    if not torch.equal(q, before[0]) or not torch.equal(k, before[1]):
        raise Wrong("The queries or keys that you were given were changed.", "input-overwritten")
    sizes = f"For q of {tuple(q.shape)} and k of {tuple(k.shape)}"
    if not isinstance(given, Tensor):
        raise Wrong(f"{sizes} it returned {type(given).__name__}; return a tensor.")
    if given.shape != products.shape:
        raise Wrong(f"{sizes} the shape is {tuple(given.shape)}; it should be {tuple(products.shape)}.")
    given = given.detach().to(products)
    ratio = (products * given).sum() / given.square().sum()
    if ratio > 0 and torch.allclose(given * ratio, products, rtol=1e-4, atol=1e-5):
        return float(ratio.square())
    right = products / q.size(-1) ** 0.5
    if torch.allclose(given, right.softmax(-1), atol=1e-5):
        raise Wrong(f"{sizes} these are the weights: leave the softmax to the next step.")
    off = (given - right).abs().max().item()
    raise Wrong(f"{sizes} the scores are off by up to {off:.2f}, and no divisor explains it.")


@exercise("divisor", page=PAGE, task="The standard deviation of the dot products is the variance times the root of d.")
def divisor(answer: Callable[[int, float], float]) -> None:
    """Hold a function of the number of features and their variance to the divisor.

    Equation: (2.1)
    """
    rules: dict[str, Callable[[int, float], float]] = {
        "That is the root of d alone: features of another variance make other products.": lambda d, v: d**0.5,
        "That takes the variance once, but both factors of a product have it.": lambda d, v: (d * v) ** 0.5,
        "That is the variance of the dot products; divide by its root.": lambda d, v: d * v**2,
        "That is what to multiply by; asked for is what to divide by.": lambda d, v: 1 / (v * d**0.5),
    }
    given = {(d, v): float(answer(d, v)) for d, v in ((4, 1.0), (9, 2.0), (5, 0.25))}
    for (d, v), number in given.items():
        right = v * d**0.5
        if abs(number / right - 1) < 1e-5:
            continue
        why = [told for told, rule in rules.items() if all(abs(n / rule(*at) - 1) < 1e-5 for at, n in given.items())]
        told = f"For d = {d} and v = {v:g} it is {number:.4g}; it should be {right:.4g}."
        raise Wrong(" ".join([told, *why]))


@exercise("softmax-backward", page=PAGE, task="The gradient of the scores comes out of the weights alone.")
def softmax_backward(answer: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Hold a function of weights and their gradient to the gradient of the scores.

    Equation: (2.5)
    """
    generator = torch.Generator().manual_seed(0)
    for shape in ((2,), (3,), (4, 5), (2, 3, 4, 5)):
        scores = torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
        gradient = torch.randn(shape, generator=generator, dtype=torch.float64)
        weights = scores.softmax(-1)
        (right,) = torch.autograd.grad(weights, scores, gradient)
        given = answer(weights.detach(), gradient)
        if given.shape != right.shape:
            raise Wrong(f"For weights of {shape} the shape is {tuple(given.shape)}; it should be {tuple(right.shape)}.")
        given, weights = given.detach().to(right), weights.detach()
        if torch.allclose(given, right, rtol=1e-4, atol=1e-5):
            continue
        first = [round(number, 3) for number in given.flatten()[: shape[-1]].tolist()]
        told = f"For weights of {shape} the first row is {first}; it should be "
        told += f"{[round(number, 3) for number in right.flatten()[: shape[-1]].tolist()]}."
        if torch.allclose(given, weights * gradient, rtol=1e-4):
            raise Wrong(f"{told} A score moves the other weights too, since they share its denominator.")
        if torch.allclose(given, weights * (1 - weights) * gradient, rtol=1e-4):
            raise Wrong(f"{told} These are the terms of the diagonal alone.")
        if len(shape) > 1 and torch.allclose(given, weights * (gradient - (weights * gradient).sum()), rtol=1e-4):
            raise Wrong(f"{told} Each row has a sum of its own: sum over the last axis.")
        raise Wrong(f"{told} The gradient of a row of scores sums to zero; that of yours to {sum(first):.3f}.")
