"""The exercises of the page about the scale, on the roots of variances and on the softmax they keep from saturating.

The page measures by equations (2.4) and (2.6) what the exercises compute by the others.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from unmasked.functional import cosine_weights
from unmasked_lessons.exercises._check import Wrong, ask, draw, exercise, hold, judge, name, rows, same, short, tensor


@exercise("scaled-scores", "The dot products are divided by the root of the number of features.")
def _scaled_scores(answer: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Equation: (2.2)."""
    q, k = torch.tensor([[2.0, 0.0, 1.0, 3.0]]).double(), torch.tensor([[1.0, 4.0, 2.0, 2.0]]).double()
    under = {4: _under_the_root(answer, q, k)}
    for shape, keys, d in (((), 3, 9), ((2,), 5, 2), ((2, 3), 7, 6)):
        under[d] = _under_the_root(answer, *draw((*shape, 4, d), (*shape, keys, d)))

    def like(rule: Callable[[int], float]) -> bool:
        return all(abs(each / rule(size) - 1) < 1e-4 for size, each in under.items())

    d, divisor = next(((d, divisor) for d, divisor in under.items() if abs(divisor / d - 1) >= 1e-4), (0, 0.0))
    known = {
        "They are not scaled at all. [missing-scale]": like(lambda size: 1),
        "Divide by the root of the number, not by the number. [wrong-d-in-scale]": like(lambda size: size**2),
        "They are multiplied by the root. [wrong-d-in-scale]": like(lambda size: 1 / size),
        "Whatever the number of features, the divisor stays: read it from q. [global-d-k]": (
            d > 0 and like(lambda size: divisor)
        ),
        "The root is that of another number. [wrong-d-in-scale]": True,
    }
    if d:
        message = f"For {d} features the dot products are divided by {divisor**0.5:.4g}; it should be {d**0.5:.4g}."
        name(divisor, message, known)


@exercise("is-cosines", "The diagonal tells: each vector points the same way as itself.")
def _is_cosines(answer: Callable[[Tensor], Any]) -> None:
    x, other = draw((2, 4, 6))[0]
    foreign, larger = x / other.norm(dim=-1, keepdim=True), x / (2 * x.norm(dim=-1, keepdim=True))
    tried = [
        ("a right table of cosines, of four vectors", True, cosine_weights(x), ""),
        ("a right table in float32", True, cosine_weights(x.float()), "Its diagonal is one up to rounding."),
        ("a table that was divided by the norms of other vectors", False, foreign @ foreign.mT, "[foreign-norms]"),
        ("a table that was divided by norms twice too large", False, larger @ larger.mT, "[foreign-norms]"),
    ]
    judge(answer, tried)


@exercise("sum-of-zero", "They point in opposite directions: one plus minus one is zero.")
def _sum_of_zero(answer: Any) -> None:
    x = rows(answer)
    if x.dim() != 2 or x.size(0) != 2:
        raise Wrong(f"The shape is {tuple(x.shape)}; give two rows, one a vector.")
    if not (x.norm(dim=-1) > 0).all():
        raise Wrong("A vector of zeros has no direction, and so no cosine.")
    sums = cosine_weights(x).sum(-1)
    if sums.abs().max() > 1e-5:
        raise Wrong(f"Their cosines sum to {sums[0].item():.3g}, by which one can divide.")


def _under_the_root(answer: Callable[[Tensor, Tensor], Tensor], q: Tensor, k: Tensor) -> float:
    """Find the number whose root an answer divides by."""
    products = torch.einsum("...qd,...kd->...qk", q, k)
    right, where = products / q.size(-1) ** 0.5, f"For q of {tuple(q.shape)} and k of {tuple(k.shape)}"
    result = tensor(ask(answer, q, k, keep="queries and keys"), where, right).to(right)
    ratio = (products * result).sum() / result.square().sum()
    if not (ratio > 0 and same(result * ratio, products)):
        off = (result - right).abs().max().item()
        known = {"These are the weights: leave the softmax to the next step.": right.softmax(-1)}
        name(result, f"{where} the scores are off by up to {off:.2f}, and no divisor explains it.", known)
    return float(ratio.square())


@exercise("divisor", "The standard deviation of the dot products is the variance times the root of d.")
def _divisor(answer: Callable[[int, float], float]) -> None:
    """Equation: (2.1)."""
    result = {(d, v): float(answer(d, v)) for d, v in ((4, 1.0), (9, 2.0), (5, 0.25))}

    def like(rule: Callable[[int, float], float]) -> bool:
        return all(same(number, rule(*at)) for at, number in result.items())

    known = {
        "That is the root of d alone: features of another variance make other products.": like(lambda d, v: d**0.5),
        "That takes the variance once, but both factors of a product have it.": like(lambda d, v: (d * v) ** 0.5),
        "That is the variance of the dot products; divide by its root.": like(lambda d, v: d * v**2),
        "That is what to multiply by; asked for is what to divide by.": like(lambda d, v: 1 / (v * d**0.5)),
    }
    for (d, v), number in result.items():
        hold(number, v * d**0.5, f"For d = {d} and v = {v:g}", known=known)


@exercise("softmax-backward", "The gradient of the scores comes out of the weights alone.")
def _softmax_backward(answer: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Equation: (2.5)."""
    for shape in ((2,), (3,), (4, 5), (2, 3, 4, 5)):
        scores, gradient = draw(shape, shape)
        weights = scores.softmax(-1)
        terms = weights * gradient
        known = {
            "A score moves the other weights too, since they share its denominator.": terms,
            "These are the terms of the diagonal alone.": (1 - weights) * terms,
            "Each row has a sum of its own: sum over the last axis.": weights * (gradient - terms.sum()),
            "The gradient of a row of scores sums to zero; that of yours does not.": (
                lambda result: not same(result.sum(-1), torch.zeros(result.shape[:-1]))
            ),
        }
        right = weights * (gradient - terms.sum(-1, keepdim=True))
        result, where = ask(answer, weights, gradient), f"For weights of {shape}"
        hold(result, right, where, "the first row", known, shown=lambda each: short(each.flatten()[: each.size(-1)]))
