"""Random numbers that leave the global generators as they were."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

__all__ = ["forked"]


def forked() -> AbstractContextManager[None]:
    """Put the global random generators back at the end of the block: the CPU's, and those of GPUs that are in use."""
    gpus = torch.cuda.device_count() if torch.cuda.is_initialized() else 0
    return torch.random.fork_rng(devices=range(gpus))
