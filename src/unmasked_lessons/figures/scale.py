"""Scores with the root of d and without it: the softmax's weights, the gradients that come back, and fresh matrices."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

from unmasked import functional, plot
from unmasked.functional import attention_scores, attention_weights
from unmasked.heads import split_heads

SCALES = {"unscaled": 1.0, "scaled": None}  # None: divided by the root

WRONG_SCALES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "no root": lambda q, k: q @ k.mT,
    "divided by d": lambda q, k: q @ k.mT / q.size(-1),
    "the number of keys": lambda q, k: q @ k.mT / math.sqrt(k.size(-2)),
    "the width of all heads": lambda q, k: q @ k.mT / math.sqrt(q.size(-3) * q.size(-1)),
}


def drawn(sizes: Sequence[int], shares: Tensor, *, samples: int, keys: int) -> dict[str, list[Any]]:
    """Draw random queries, each with keys of its own, of each size; what the softmax gives them and sends back.

    Under "scaled" and "unscaled" for each size the mean weights in falling order, (keys,); under "gradient_scaled" and
    "gradient_unscaled" the quantiles of the gradients' lengths that `shares` asks for.
    """
    random = torch.Generator().manual_seed(6)
    found: dict[str, list[Any]] = {"sizes": list(sizes)}
    for size in sizes:
        q, upstream = torch.randn(2, samples, 1, size, dtype=torch.float64, generator=random)
        k, v = torch.randn(2, samples, keys, size, dtype=torch.float64, generator=random)
        for name, scale in SCALES.items():
            weights, gradient = of_queries(q, k, v, upstream, scale=scale)
            found.setdefault(name, []).append(weights[:, 0].sort(descending=True).values.mean(0))
            found.setdefault(f"gradient_{name}", []).append(gradient[:, 0].norm(dim=-1).quantile(shares))
    return found


def panels(found: Mapping[str, list[Any]]) -> tuple[Figure, Any]:
    """Draw what `drawn` gives for the largest size, weights above gradients: without the root, and with it."""
    with plot.figure(5.2, 4.0) as figure:
        axes = figure.subplots(2, 2, sharex="row", sharey="row", height_ratios=[3, 1])
        for side, (name, title) in enumerate((("unscaled", "without the root"), ("scaled", "with the root"))):
            weights, lengths = found[name][-1], found[f"gradient_{name}"][-1]
            axes[0, side].bar(range(len(weights)), weights.tolist())
            axes[0, side].set(title=title, xticks=[], xlabel="sorted by weight")
            at_least = lengths.clamp(min=1e-8).tolist()  # shorter ones lie on the edge
            axes[1, side].plot(at_least, [0] * len(lengths), "o", alpha=0.5)
            axes[1, side].set(xscale="log", yticks=[], xlabel="gradient's length")
        axes[0, 0].set_ylabel("weight")
    return figure, axes


def curves(
    sizes: Sequence[int], measured: Mapping[str, Mapping[str, Sequence[float]]], titles: Mapping[str, str]
) -> Figure:
    """Draw what was measured over the number of features, unscaled and scaled, one plot below another.

    `titles` has from top to bottom the name of what was measured, and what stands above. The first and the last have a
    logarithmic axis.
    """
    with plot.figure(5.2, 7.6) as figure:
        below = figure.subplots(len(titles), 1, sharex=True)
        for axes, (what, title) in zip(below, titles.items(), strict=True):
            for name, marker in (("unscaled", "o"), ("scaled", "s")):
                axes.plot(sizes, measured[name][what], marker=marker, label=name)
            axes.set(title=title, xscale="log")
            axes.set_xticks(sizes, labels=list(map(str, sizes)))
            axes.minorticks_off()
        below[0].set_yscale("log")
        below[0].legend()
        below[-1].set(yscale="log", xlabel="features d")
    return figure


def norms(size: int, *, samples: int, keys: int) -> tuple[dict[str, Any], ...]:
    """Draw random queries, each with keys of its own, and measure their gradients, unscaled and scaled.

    Found for the same draws, each under "unscaled" and "scaled": the mean of each query's largest weight; the norms of
    the queries' gradients, the largest first, (samples,); the norm of all gradients together; what the tenth with the
    largest norms has of the sum of squares; and the largest weights in the order of the norms.
    """
    random = torch.Generator().manual_seed(5)
    q, upstream = torch.randn(2, samples, 1, size, dtype=torch.float64, generator=random)
    k, v = torch.randn(2, samples, keys, size, dtype=torch.float64, generator=random)
    found: tuple[dict[str, Any], ...] = {}, {}, {}, {}, {}
    for name, scale in SCALES.items():
        weights, gradient = of_queries(q, k, v, upstream, scale=scale)
        lengths, order = gradient.norm(dim=-1).flatten().sort(descending=True)
        largest, together = weights.amax(-1).flatten(), lengths.norm().item()
        tenth = (lengths[: samples // 10].norm().item() / together) ** 2
        for kept, each in zip(found, (largest.mean().item(), lengths, together, tenth, largest[order]), strict=True):
            kept[name] = each
    return found


def half_precision(sizes: Sequence[float]) -> dict[str, list[str]]:
    """Attend in float16 to three tokens of 64 equal features, in four ways: for each size "finite" or "NaN"."""
    found: dict[str, list[str]] = {}
    for size in sizes:
        x = torch.full((1, 1, 3, 64), size, dtype=torch.float16)
        contexts = {
            "product, then divided": (x @ x.mT / 8).softmax(-1) @ x,
            "query divided, then product": (x / 8 @ x.mT).softmax(-1) @ x,
            "F.scaled_dot_product_attention": F.scaled_dot_product_attention(x, x, x),
            "the package": functional.attend(x, x, x, need_weights=True).context,
        }
        for name, context in contexts.items():
            found.setdefault(name, []).append("finite" if context.isfinite().all() else "NaN")
    return found


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
    found = {}
    for name, matrices in ways.items():
        q, k = (split_heads((x @ matrix.T).detach(), num_heads) for matrix in matrices)  # heads tokens head_dim
        bound = max(matrix.abs().max().item() for matrix in matrices)
        measured = [each.var(correction=0).item() for each in (q, attention_scores(q, k))]
        found[name] = (bound, width * bound**2 / 3, measured[0], measured[1])
    return found


def of_queries(
    q: Tensor, k: Tensor, v: Tensor, upstream: Tensor, *, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """Attend, and go back from the gradient of the contexts to that of the queries: the weights, and this gradient."""
    query = q.clone().requires_grad_()
    weights = attention_weights(attention_scores(query, k, scale=scale))
    (gradient,) = torch.autograd.grad(weights @ v, query, upstream)
    return weights.detach(), gradient
