"""A transformer block: the way of words through its parts."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from unmasked import plot
from unmasked_lessons.figures._drawing import AMBER, TEAL, VIOLET

NORM, PART, ADD, END = 0.55, 1.35, 3.75, 4.35  # heights within a part: its norm, itself, the sum, the next part


def block(moved: Mapping[str, Tensor], words: Sequence[str]) -> Figure:
    """A block from the bottom up: before each of its two parts a norm, after it a sum, and a way around both.

    Lines within a part lead from each word to those that learn from it, as `experiments.block.moves` marks them for the
    part of this name.
    """
    with plot.figure(3.9, 5.0) as drawn:
        axes = drawn.subplots()
        axes.set(xlim=(-1.5, 3.7), ylim=(-0.7, 2 * END + 0.7))
        axes.set_axis_off()
        middle: dict[str, Any] = {"ha": "center", "va": "center"}
        for index, ((name, table), color) in enumerate(zip(moved.items(), (TEAL, AMBER), strict=True)):
            bottom = END * index
            for to, origin in table.nonzero().tolist():
                axes.plot([origin, to], [bottom + PART, bottom + ADD - 0.55], color=color, linewidth=2)
            axes.text(-0.4, bottom + 2.25, name, ha="right", va="center")
            axes.text(-0.4, bottom + 0.8, "norm", ha="right", va="center")
            for place in range(len(words)):
                _around(axes, place, bottom)
        for place, word in enumerate(words):
            axes.text(place, -0.35, word, **middle)
            axes.text(place, 2 * END + 0.35, f"{word}′", **middle)
    return drawn


def _around(axes: Any, place: int, bottom: float) -> None:
    """Draw the way of one word: up through the norm and out of the part, and around both to the sum."""
    grey: dict[str, Any] = {"color": "gray", "linewidth": 1.5}
    axes.plot([place] * 2, [bottom, bottom + NORM], **grey)
    axes.bar(place, 0.5, 0.44, bottom + NORM, color=VIOLET)
    axes.plot([place] * 2, [bottom + NORM + 0.5, bottom + PART], **grey)
    axes.plot([place] * 2, [bottom + ADD - 0.55, bottom + END], **grey)
    around, half = torch.linspace(0, torch.pi, 40), (ADD - 0.25) / 2
    axes.plot(place + 0.4 * around.sin(), bottom + 0.25 + half - half * around.cos(), **grey)
    axes.plot(place, bottom + ADD, "o", color="#4c5a5a", markersize=14, markeredgewidth=1.5)
    axes.plot(place, bottom + ADD, "+", color="white", markersize=9, markeredgewidth=2)
