"""Chances of the next word at several temperatures: for the script `temperature.js`, and where no script runs."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from torch import Tensor

from unmasked import plot
from unmasked_lessons.teaching import Singer


def told(model: Singer, texts: Sequence[str]) -> dict[str, Any]:
    """What the script shows: the "words" that a model knows, and "texts", each with the "scores" of the word after it.

    These are those of each word that it knows, (vocabulary,).
    """
    found = [{"text": f"{text} …", "scores": model(model.numbers_of(text))[0, -1]} for text in texts]
    return {"words": model.vocabulary, "texts": found}


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
