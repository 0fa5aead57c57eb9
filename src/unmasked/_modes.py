"""Modes that a caller may be in, and that what is examined must not feel."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

__all__ = ["elsewhere", "left", "uncompiled"]

_eager, _lock, _inside = ExitStack(), threading.Lock(), [0]


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


@contextmanager
def uncompiled() -> Iterator[None]:
    """Run what is compiled as it was written, if what compiles was loaded: nobody can look into compiled code.

    How PyTorch takes compiled code is one for all threads. So the first of them sets it, and the last one sets it back:
    each by itself would set back what another had set.
    """
    if not {"torch._dynamo", "torch.nn.attention.flex_attention"} & sys.modules.keys():
        yield
        return
    with _lock:
        if _inside[0] == 0:
            _eager.enter_context(torch.compiler.set_stance("force_eager"))
        _inside[0] += 1
    try:
        yield
    finally:
        with _lock:
            _inside[0] -= 1
            if _inside[0] == 0:
                _eager.close()
