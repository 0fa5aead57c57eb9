"""The order of the rows of query, key and value in the matrices of each layout."""

from collections.abc import Mapping, Sequence

import torch
from matplotlib.figure import Figure
from torch import Tensor

from unmasked_lessons.experiments.layouts import PARTS


def shades(blocks: Mapping[str, Sequence[int]], rows: int) -> dict[str, Tensor]:
    """Shade the rows of each layout's matrix by their part, (rows, 6): zero for the query, one for the value.

    `blocks` says which part each block of a layout holds, from top to bottom; the blocks of a layout have as many rows
    each.
    """
    return {
        name: (torch.tensor(parts).repeat_interleave(rows // len(parts)) / 2)[:, None].expand(-1, 6)
        for name, parts in blocks.items()
    }


def labelled(figure: Figure, blocks: Mapping[str, Sequence[int]]) -> Figure:
    """Label the blocks of the heat maps of `shades`, in place of a scale; the figure is changed."""
    *drawn, _ = figure.axes
    (bar,) = (image.colorbar for axes in drawn for image in axes.collections if image.colorbar)
    bar.remove()  # its axes' own remove() leaves it in the layout, and older Matplotlibs fail
    for axes, parts in zip(drawn, blocks.values(), strict=True):
        axes.set(xlabel="", ylabel="", xticks=[])
        height = (axes.get_ylim()[0] - axes.get_ylim()[1]) / len(parts)
        for index, part in enumerate(parts):
            middle = height * (index + 0.5) - 0.5
            label = axes.text(2.5, middle, PARTS[part], ha="center", va="center", fontsize=9, color="black")
            label.set_bbox({"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1})
    drawn[0].set_ylabel("row")
    return figure
