"""Heads work in slices: the way through two of them, and what more of them cost."""

from collections.abc import Sequence
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from unmasked import plot
from unmasked_lessons.figures._drawing import AMBER, TEAL, VIOLET


def two_heads(width: int) -> Figure:
    """The way of queries, keys and values, of so many numbers each, through two heads, from the top down."""
    with plot.figure(3.9, 3.6) as drawn:
        axes = drawn.subplots()
        axes.set(xlim=(0, 10), ylim=(0, 10.2))
        axes.set_axis_off()
        axes.text(5, 9.9, f"query, key and value, {width} numbers each", ha="center", va="center")
        for number, colour in enumerate((AMBER, TEAL)):
            left = 0.2 + 5.1 * number
            middle = left + 2.25
            _bar(axes, left, 8.5, 4.5, colour, f"slice {number} of q, k, v")
            _arrow(axes, middle, 8.4, 7.3)
            _bar(axes, left + 0.7, 6.3, 3.1, colour, f"head {number}")
            _arrow(axes, middle, 6.2, 5.1)
            _bar(axes, left, 4.1, 4.5, colour, f"average {number}")
            _arrow(axes, middle, 4.0, 2.9)
        _bar(axes, 0.2, 1.9, 9.6, VIOLET, "output projection")
        _arrow(axes, 5, 1.8, 1.2)
        axes.text(5, 0.7, f"{width} numbers, mixed", ha="center", va="center")
    return drawn


def costs(width: int, tokens: int, numbers: Sequence[int]) -> dict[int, tuple[int, int, int, int]]:
    """What attention costs with each number of heads, as PyTorch's module computes it.

    For each of them: the width of a slice, parameters, multiplications, and weights of attention.
    """
    found = {}
    for heads in numbers:
        module = nn.MultiheadAttention(width, heads, batch_first=True, device="meta")
        x = torch.empty(1, tokens, width, device="meta")
        with FlopCounterMode(display=False) as counted:
            _, weights = module(x, x, x, average_attn_weights=False)
        multiplications = counted.get_total_flops() // 2  # a multiplication and an addition
        parameters = sum(each.numel() for each in module.parameters())
        found[heads] = (width // heads, parameters, multiplications, weights.numel())
    return found


def _bar(axes: Any, left: float, bottom: float, width: float, colour: str, label: str) -> None:
    axes.bar(left, 0.9, width, bottom, align="edge", color=colour, alpha=0.3)
    axes.text(left + width / 2, bottom + 0.42, label, ha="center", va="center")


def _arrow(axes: Any, x: float, top: float, bottom: float) -> None:
    axes.annotate("", (x, bottom), (x, top), arrowprops={"arrowstyle": "->", "color": "gray"})
