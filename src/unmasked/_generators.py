"""Random numbers that nobody else notices."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

__all__ = ["forked"]


def forked() -> AbstractContextManager[None]:
    """Leave the global random generators where they are afterwards: the CPU's, and those of GPUs that are in use."""
    gpus = torch.cuda.device_count() if torch.cuda.is_initialized() else 0
    return torch.random.fork_rng(devices=range(gpus))
