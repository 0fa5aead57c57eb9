"""The run of a training, step by step: for the script `training.js`."""

from collections.abc import Callable, Sequence
from typing import TypedDict

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

EVERY = 5  # steps from one look to the next


class Story(TypedDict):
    """What the script shows.

    Attributes:
        steps: How many steps were taken when it was looked at: 0, 5, 10 and so on.
        loss: The loss at each look.
        weights: The weights at each look, (queries, keys).
        queries: The names of the rows of the weights.
        keys: The names of their columns.
    """

    steps: list[int]
    loss: list[float]
    weights: list[Tensor]
    queries: list[str]
    keys: list[str]


def story(
    train: Callable[[], object],
    look: Callable[[], tuple[Tensor, Tensor]],
    queries: Sequence[str],
    keys: Sequence[str],
) -> Story:
    """Train with one of PyTorch's optimizers, and look before the first step and after each five.

    A look gives the loss and the weights as they are, whose rows and columns have these names.
    """
    told: Story = {"steps": [], "loss": [], "weights": [], "queries": [*queries], "keys": [*keys]}
    taken = 0

    def note() -> None:
        with torch.no_grad():
            loss, weights = look()
        told["steps"].append(taken)
        told["loss"].append(loss.item())
        told["weights"].append(weights.clone())

    def after_step(*_: object) -> None:
        nonlocal taken
        taken += 1
        if taken % EVERY == 0:
            note()

    note()
    watched = register_optimizer_step_post_hook(after_step)
    try:
        train()
    finally:
        watched.remove()
    return told
