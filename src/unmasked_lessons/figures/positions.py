"""Maps of positions, and the slopes of ALiBi."""

from collections.abc import Mapping

from matplotlib.figure import Figure
from torch import Tensor

from unmasked import plot


def map_of(matrix: Tensor, xlabel: str, ylabel: str) -> Figure:
    """Draw a matrix in the colors of its signs, with names for its columns and rows."""
    figure = plot.signed(matrix)
    figure.axes[0].set(xlabel=xlabel, ylabel=ylabel)
    return figure


def slopes(drawn: Mapping[str, Tensor]) -> Figure:
    """Draw two kinds of slopes of heads, by their labels, on a logarithmic axis: the first as dots, then as crosses."""
    with plot.figure(5.2, 2.6) as figure:
        axes = figure.subplots()
        for (label, each), marker in zip(drawn.items(), "ox", strict=True):
            axes.plot(range(1, len(each) + 1), each.tolist(), marker, label=label)
        axes.set(xlabel="head", ylabel="slope", yscale="log")
        axes.legend()
    return figure
