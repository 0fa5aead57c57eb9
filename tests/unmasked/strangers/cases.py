"""What each stranger is listed as, and how it is made from a seed of its own."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Case:
    """A module, how `diagnose` is called with it, and, of a wrong one, the museum's cause and its right twin."""

    name: str
    make: Callable[[], Any]
    call: dict
    kind: str
    note: str
    cause: str | None = None
    fixed: Callable[[], Any] | None = None


def seeded(seed, build, *args, **kwargs):
    """Build after seeding, and leave the generator of the caller as it was."""

    def make():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return build(*args, **kwargs)

    return make
