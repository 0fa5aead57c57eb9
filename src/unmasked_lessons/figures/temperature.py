"""Chances of the next word at several temperatures, where no script runs."""

from collections.abc import Sequence

from matplotlib.figure import Figure
from torch import Tensor

from unmasked import plot


def bars(words: Sequence[str], scores: Tensor, temperatures: Sequence[float], shown: int = 6) -> Figure:
    """Draw the chances of the likeliest words, a panel for each temperature by which their scores are divided."""
    places = scores.argsort(descending=True)[:shown]
    with plot.figure(5.2, 2.2) as figure:
        panels = figure.subplots(1, len(temperatures), sharey=True)
        for axes, temperature in zip(panels, temperatures, strict=True):
            chances = (scores / temperature).softmax(dim=-1)[places]
            drawn = axes.barh([words[place] for place in places.tolist()], chances.tolist())
            axes.bar_label(drawn, [f"{chance:.0%}" for chance in chances.tolist()], padding=2)
            axes.set(title=f"temperature {temperature:g}", xlim=(0, 1.3), xticks=[])
        panels[0].invert_yaxis()
    return figure
