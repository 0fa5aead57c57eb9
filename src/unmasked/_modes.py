"""Modes that a caller may be in, and that what is examined must not feel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

__all__ = ["elsewhere", "left"]


@contextmanager
def left() -> Iterator[None]:
    """Leave inference mode, in which no gradient is, and autocast, which computes in fewer bits."""
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        for kind in ("cpu", "cuda", "mps", "xpu"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


@contextmanager
def elsewhere() -> Iterator[torch.device | None]:
    """Make tensors on the CPU, and tell where the caller makes them if that is elsewhere: what is examined does."""
    default = torch.get_default_device()
    if default.type == "cpu":
        yield None
    else:
        with torch.device("cpu"):
            yield default
