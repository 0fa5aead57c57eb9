"""The run of a training, step by step: for the script `training.js`."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

EVERY = 5  # steps from one look to the next


def story(
    train: Callable[[], object],
    look: Callable[[], tuple[Tensor, Tensor]],
    queries: Sequence[str],
    keys: Sequence[str],
) -> dict[str, Any]:
    """Train with one of PyTorch's optimizers, and look before the first step and after each five.

    A look gives the loss and the weights as they are, (queries, keys), whose rows and columns have these names.
    Returned are the "steps" taken before each look, 0, 5, 10 and so on, the "loss" and the "weights" then, and the
    names, "queries" and "keys".
    """
    record: dict[str, Any] = {"steps": [], "loss": [], "weights": [], "queries": [*queries], "keys": [*keys]}
    taken = 0

    def note() -> None:
        with torch.no_grad():
            loss, weights = look()
        record["steps"].append(taken)
        record["loss"].append(loss.item())
        record["weights"].append(weights.clone())

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
    return record
