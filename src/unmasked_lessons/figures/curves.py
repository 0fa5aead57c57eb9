"""Two curves in one figure."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from torch import Tensor

from unmasked import plot


def curves(
    named: Mapping[str, Sequence[float] | Tensor],
    at: Sequence[float] | Tensor | None = None,
    *,
    xlabel: str,
    ylabel: str,
    ylim: tuple[float, float] | None = None,
    marker: str = "",
    height: float = 2.5,
) -> Figure:
    """Draw two curves, the first solid and the second dashed, with a legend; at 0, 1, 2 and so on by default."""
    with plot.figure(3.9, height) as drawn:
        axes = drawn.subplots()
        for (name, numbers), line in zip(named.items(), ("-", "--"), strict=True):
            axes.plot(range(len(numbers)) if at is None else at, numbers, line, marker=marker, label=name)
        axes.set(xlabel=xlabel, ylabel=ylabel, ylim=ylim)
        axes.legend()
    return drawn
