"""The run of a training, step by step, for the script `training.js`; and guests who ask one another."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from unmasked_lessons.teaching._training import fit, seeded

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


GUESTS = 6


def draw_guests(rounds: int) -> tuple[Tensor, Tensor]:
    """Rounds in which all guests order, and each asks for the drink of the next one in the alphabet.

    Returned are the orders, (rounds, GUESTS, 2 * GUESTS), with a one for the name and a one for the drink, and the
    drinks that they ask for, (rounds, GUESTS).
    """
    names, drinks = torch.rand(2, rounds, GUESTS).argsort(dim=-1)
    orders = torch.cat([F.one_hot(names, GUESTS), F.one_hot(drinks, GUESTS)], dim=-1).float()
    place_of_next = names.argsort(dim=-1).gather(-1, (names + 1) % GUESTS)
    return orders, drinks.gather(-1, place_of_next)


def guests_answered(start: int, *, shared: bool) -> float:
    """Train attention on `draw_guests` from a seed, and return its share of right answers in 1,000 new rounds.

    Queries and keys have a matrix each, or one that they share.
    """
    with seeded(start):
        query, key, value = (nn.Parameter(0.3 * torch.randn(2 * GUESTS, size)) for size in (16, 16, GUESTS))
        asks = key if shared else query

        def bets(orders: Tensor) -> Tensor:
            scores = (orders @ asks) @ (orders @ key).mT / 16**0.5
            return scores.softmax(dim=-1) @ (orders @ value)

        def loss() -> Tensor:
            orders, drinks = draw_guests(32)
            return F.cross_entropy(bets(orders).mT, drinks)

        fit([key, value] if shared else [query, key, value], loss, steps=200, rate=0.02)
    with seeded(100), torch.no_grad():
        orders, drinks = draw_guests(1000)
        right: Tensor = bets(orders).argmax(dim=-1) == drinks
    return right.double().mean().item()
