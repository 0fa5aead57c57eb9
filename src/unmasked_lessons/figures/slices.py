"""The way through two heads, which work in slices."""

from typing import Any

from matplotlib.figure import Figure

from unmasked import plot
from unmasked_lessons.figures._drawing import AMBER, TEAL, VIOLET


def two_heads(width: int) -> Figure:
    """Draw the way of queries, keys and values, of this width, through two heads, from the top down."""
    with plot.figure(3.9, 3.6) as drawn:
        axes = drawn.subplots()
        axes.set(xlim=(0, 10), ylim=(0, 10.2))
        axes.set_axis_off()
        axes.text(5, 9.9, f"query, key and value, {width} numbers each", ha="center", va="center")
        for index, color in enumerate((AMBER, TEAL)):
            left = 0.2 + 5.1 * index
            middle = left + 2.25
            _bar(axes, left, 8.5, 4.5, color, f"slice {index} of q, k, v")
            _arrow(axes, middle, 8.4, 7.3)
            _bar(axes, left + 0.7, 6.3, 3.1, color, f"head {index}")
            _arrow(axes, middle, 6.2, 5.1)
            _bar(axes, left, 4.1, 4.5, color, f"average {index}")
            _arrow(axes, middle, 4.0, 2.9)
        _bar(axes, 0.2, 1.9, 9.6, VIOLET, "output projection")
        _arrow(axes, 5, 1.8, 1.2)
        axes.text(5, 0.7, f"{width} numbers, mixed", ha="center", va="center")
    return drawn


def _bar(axes: Any, left: float, bottom: float, width: float, color: str, label: str) -> None:
    axes.bar(left, 0.9, width, bottom, align="edge", color=color, alpha=0.3)
    axes.text(left + width / 2, bottom + 0.42, label, ha="center", va="center")


def _arrow(axes: Any, x: float, top: float, bottom: float) -> None:
    axes.annotate("", (x, bottom), (x, top), arrowprops={"arrowstyle": "->", "color": "gray"})
