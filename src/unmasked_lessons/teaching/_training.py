"""The training of small models: the same each time, on one thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Random numbers from a seed, on one thread; afterwards both go on as the caller had them.

    Small matrices are faster on one thread, and their sums are the same on a machine of any number of cores.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(threads)


def fit(parameters: Iterable[nn.Parameter], loss: Callable[[], Tensor], *, steps: int, rate: float) -> None:
    """Take steps of Adam, each down the loss of a new batch."""
    optimizer = torch.optim.Adam(parameters, lr=rate)
    for _ in range(steps):
        error = loss()
        optimizer.zero_grad()
        error.backward()
        optimizer.step()


def mlp(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
