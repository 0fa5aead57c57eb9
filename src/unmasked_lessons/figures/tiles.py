"""Scores in tiles, with the largest so far."""

from matplotlib.figure import Figure
from torch import Tensor

from unmasked import plot


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
