"""Chances of the next word at several temperatures: for the script `temperature.js`, and where no script runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from torch import Tensor

from unmasked import plot
from unmasked.teaching import Singer

if TYPE_CHECKING:
    from matplotlib.figure import Figure
else:
    Figure = Any


class Text(TypedDict):
    """A text, and the scores of each word as the next one, (vocabulary,)."""

    text: str
    scores: Tensor


class Told(TypedDict):
    """What the script shows: the words that a model knows, and texts that they may go on."""

    words: list[str]
    texts: list[Text]


def told(model: Singer, texts: Sequence[str]) -> Told:
    """The scores of the word after each text."""
    found: list[Text] = [{"text": f"{text} …", "scores": model(model.numbers_of(text))[0, -1]} for text in texts]
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
