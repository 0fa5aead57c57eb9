"""Scores in tiles, with the largest so far, and what memory tiles take."""

from collections.abc import Callable, Sequence
from typing import Any

import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

from unmasked import plot
from unmasked.functional import attend
from unmasked.kernels import kernels_of
from unmasked.tiles import tiled_attention


def stairs(scores: Tensor, largest: Tensor, *, tile: int) -> Figure:
    """Draw the scores of a query as bars, their largest so far as a dashed line, and where tiles end.

    A score is minus infinity where the query may not see a key: it has no bar.
    """
    visible = scores.isfinite().nonzero().flatten().tolist()
    with plot.figure(5.2, 2.4) as figure:
        axes = figure.subplots()
        axes.bar(visible, scores[visible].tolist())
        axes.step(visible, largest[visible].tolist(), "k--", where="mid")
        for edge in range(tile, len(scores), tile):
            axes.axvline(edge - 0.5, color="0.7")
        axes.set(xlabel="keys", ylabel="score", xlim=(-0.5, len(scores) - 0.5))
        axes.set_xticks(range(len(scores)))
    return figure


def memory(q: Tensor, k: Tensor, v: Tensor, sizes: Sequence[int]) -> dict[str, list[float]]:
    """The peak of the memory that one call of attention takes, in MiB: of the whole table, of tiles, and of a kernel.

    So many of the tokens take part, in one call after another.
    """
    ways: dict[str, Callable[..., Any]] = {
        "whole table": lambda *qkv: attend(*qkv, implementation="eager"),
        "tiles of 64": tiled_attention,
        "fused kernel": F.scaled_dot_product_attention,
    }
    inputs = [[each[..., :size, :].contiguous() for each in (q, k, v)] for size in sizes]
    return {name: [kernels_of(attend, *qkv).peak_bytes / 2**20 for qkv in inputs] for name, attend in ways.items()}
