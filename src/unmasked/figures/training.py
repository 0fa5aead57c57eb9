"""The run of a training, step by step: for the script `training.js`."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypedDict

import torch
from torch import Tensor


class Story(TypedDict):
    """What the script shows.

    Attributes:
        steps: How many steps were taken when it was looked at: 0, 5, 10 and so on.
        loss: The losses: of the first step, and of the last one before each further look.
        weights: The weights at each look, (queries, keys).
        queries: The names of the rows of the weights.
        keys: The names of their columns.
    """

    steps: list[int]
    loss: list[float]
    weights: list[Tensor]
    queries: list[str]
    keys: list[str]


def story(losses: Iterable[float], weights: Callable[[], Tensor], queries: Sequence[str], keys: Sequence[str]) -> Story:
    """Train, and look at the weights before the first step and after each five.

    Args:
        losses: Takes a step for each loss that it gives.
        weights: The weights as they are, (queries, keys).
        queries: The names of the rows.
        keys: The names of the columns.

    Returns:
        What was seen.
    """
    told: Story = {"steps": [0], "loss": [], "weights": [_now(weights)], "queries": [*queries], "keys": [*keys]}
    for step, loss in enumerate(losses, start=1):
        if step == 1 or step % 5 == 0:
            told["loss"].append(loss)
        if step % 5 == 0:
            told["steps"].append(step)
            told["weights"].append(_now(weights))
    return told


def _now(weights: Callable[[], Tensor]) -> Tensor:
    with torch.no_grad():
        return weights().clone()
