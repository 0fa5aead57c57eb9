"""Scores with the root of d and without it: the softmax's weights, the gradients that come back, and fresh matrices."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmasked import functional
from unmasked.functional import attention_scores, attention_weights
from unmasked.heads import split_heads

SCALES = {"unscaled": 1.0, "scaled": None}  # None: divided by the root

WRONG_SCALES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "no root": lambda q, k: q @ k.mT,
    "divided by d": lambda q, k: q @ k.mT / q.size(-1),
    "the number of keys": lambda q, k: q @ k.mT / math.sqrt(k.size(-2)),
    "the width of all heads": lambda q, k: q @ k.mT / math.sqrt(q.size(-3) * q.size(-1)),
}


def weights_and_gradients(sizes: Sequence[int], shares: Tensor, *, samples: int, keys: int) -> dict[str, list[Any]]:
    """Draw random queries, each with keys of its own, of each size, and measure their weights and gradients.

    Under "scaled" and "unscaled" for each size the mean weights in falling order, (keys,); under "gradient_scaled" and
    "gradient_unscaled" the quantiles of the gradients' lengths that `shares` asks for.
    """
    random = torch.Generator().manual_seed(6)
    measured: dict[str, list[Any]] = {"sizes": list(sizes)}
    for size in sizes:
        q, upstream = torch.randn(2, samples, 1, size, dtype=torch.float64, generator=random)
        k, v = torch.randn(2, samples, keys, size, dtype=torch.float64, generator=random)
        for name, scale in SCALES.items():
            weights, gradient = of_queries(q, k, v, upstream, scale=scale)
            measured.setdefault(name, []).append(weights[:, 0].sort(descending=True).values.mean(0))
            measured.setdefault(f"gradient_{name}", []).append(gradient[:, 0].norm(dim=-1).quantile(shares))
    return measured


def norms(size: int, *, samples: int, keys: int) -> tuple[dict[str, Any], ...]:
    """Draw random queries, each with keys of its own, and measure their gradients, unscaled and scaled.

    Returned for the same draws, each under "unscaled" and "scaled": the mean of each query's largest weight; the norms
    of the queries' gradients, the largest first, (samples,); the norm of all gradients together; the share of the sum
    of squares that the tenth with the largest norms has; and the largest weights in the order of the norms.
    """
    random = torch.Generator().manual_seed(5)
    q, upstream = torch.randn(2, samples, 1, size, dtype=torch.float64, generator=random)
    k, v = torch.randn(2, samples, keys, size, dtype=torch.float64, generator=random)
    measured: tuple[dict[str, Any], ...] = {}, {}, {}, {}, {}
    for name, scale in SCALES.items():
        weights, gradient = of_queries(q, k, v, upstream, scale=scale)
        lengths, order = gradient.norm(dim=-1).flatten().sort(descending=True)
        largest, together = weights.amax(-1).flatten(), lengths.norm().item()
        tenth = (lengths[: samples // 10].norm().item() / together) ** 2
        for kept, each in zip(measured, (largest.mean().item(), lengths, together, tenth, largest[order]), strict=True):
            kept[name] = each
    return measured


def half_precision(sizes: Sequence[float]) -> dict[str, list[str]]:
    """Attend in float16 to three tokens of 64 equal features, in four ways: for each size "finite" or "NaN"."""
    by_way: dict[str, list[str]] = {}
    for size in sizes:
        x = torch.full((1, 1, 3, 64), size, dtype=torch.float16)
        contexts = {
            "product, then divided": (x @ x.mT / 8).softmax(-1) @ x,
            "query divided, then product": (x / 8 @ x.mT).softmax(-1) @ x,
            "F.scaled_dot_product_attention": F.scaled_dot_product_attention(x, x, x),
            "the package": functional.attend(x, x, x, need_weights=True).context,
        }
        for name, context in contexts.items():
            by_way.setdefault(name, []).append("finite" if context.isfinite().all() else "NaN")
    return by_way


def fresh_matrices(width: int, num_heads: int = 8) -> dict[str, tuple[float, float, float, float]]:
    """Project random tokens by matrices as they are drawn for new layers. Draws from the global generator.

    For each way to draw, the bound of the entries, the variance of the queries' features that follows from it, and the
    variances that are measured of the queries' features and of the scores.
    """
    x = torch.randn(2_000, width)
    ways = {
        "nn.Linear": [nn.Linear(width, width).weight for _ in range(2)],
        "nn.MultiheadAttention": nn.MultiheadAttention(width, num_heads).in_proj_weight.chunk(3)[:2],
        "Xavier, square": [nn.init.xavier_uniform_(torch.empty(width, width)) for _ in range(2)],
    }
    by_way = {}
    for name, matrices in ways.items():
        q, k = (split_heads((x @ matrix.T).detach(), num_heads) for matrix in matrices)  # heads tokens head_dim
        bound = max(matrix.abs().max().item() for matrix in matrices)
        variances = [each.var(correction=0).item() for each in (q, attention_scores(q, k))]
        by_way[name] = (bound, width * bound**2 / 3, variances[0], variances[1])
    return by_way


def of_queries(
    q: Tensor, k: Tensor, v: Tensor, upstream: Tensor, *, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """Attend, and go back from the gradient of the contexts to that of the queries: the weights, and this gradient."""
    query = q.clone().requires_grad_()
    weights = attention_weights(attention_scores(query, k, scale=scale))
    (gradient,) = torch.autograd.grad(weights @ v, query, upstream)
    return weights.detach(), gradient
