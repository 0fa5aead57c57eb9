"""Where the rows of query, key and value stand in one matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.figure import Figure
else:
    Figure = Any

__all__ = ["PARTS", "labelled", "shades"]

PARTS = ("query", "key", "value")


def shades(blocks: Mapping[str, Sequence[int]], rows: int) -> dict[str, Tensor]:
    """Give the rows of a matrix the shade of their part, as a heat map of a few equal columns.

    Args:
        blocks: By its name, which part each block of a layout holds, from top to bottom: a place in `PARTS`. The blocks
            of a layout have as many rows each.
        rows: Rows of the matrix.

    Returns:
        By the name of the layout, (rows, 6), from zero for the query to one for the value.
    """
    return {
        name: (torch.tensor(parts).repeat_interleave(rows // len(parts)) / 2)[:, None].expand(-1, 6)
        for name, parts in blocks.items()
    }


def labelled(figure: Figure, blocks: Mapping[str, Sequence[int]]) -> Figure:
    """Write on the heat maps of `shades` what their blocks are, in the place of a scale.

    Args:
        figure: What `plot.heatmap` makes of the shades; it is changed.
        blocks: As they were given to `shades`.

    Returns:
        The same figure.
    """
    *drawn, scale = figure.axes
    scale.remove()
    for axes, parts in zip(drawn, blocks.values(), strict=True):
        axes.set(xlabel="", ylabel="", xticks=[])
        height = (axes.get_ylim()[0] - axes.get_ylim()[1]) / len(parts)
        for number, part in enumerate(parts):
            middle = height * (number + 0.5) - 0.5
            label = axes.text(2.5, middle, PARTS[part], ha="center", va="center", fontsize=9, color="black")
            label.set_bbox({"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1})
    drawn[0].set_ylabel("row")
    return figure
