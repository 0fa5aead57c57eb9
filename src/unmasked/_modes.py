"""Modes that a caller may be in, and that the target of an examination must not feel."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

__all__ = ["elsewhere", "left", "uncompiled", "written_out"]


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
    """Make tensors on the CPU, and yield the device of the caller if it is another: the target uses that."""
    default = torch.get_default_device()
    if default.type == "cpu":
        yield None
    else:
        with torch.device("cpu"):
            yield default


def _set_for_all_threads(setting: Callable[[], AbstractContextManager[None]]) -> Callable[[], Any]:
    """Make a setting that PyTorch has once for all threads: the first to enter makes it, the last to leave undoes it.

    Each thread by itself would undo the setting of another one.
    """
    stack, lock, inside = ExitStack(), threading.Lock(), 0

    @contextmanager
    def entered() -> Iterator[None]:
        nonlocal inside
        with lock:
            if inside == 0:
                stack.enter_context(setting())
            inside += 1
        try:
            yield
        finally:
            with lock:
                inside -= 1
                if inside == 0:
                    stack.close()

    return entered


@_set_for_all_threads
@contextmanager
def _eager() -> Iterator[None]:
    with torch.compiler.set_stance("force_eager"):
        yield


@contextmanager
def uncompiled() -> Iterator[None]:
    """Run compiled code as it was written, if a compiler was loaded: nobody can look into compiled code."""
    if {"torch._dynamo", "torch.nn.attention.flex_attention"} & sys.modules.keys():
        with _eager():
            yield
    else:
        yield


@_set_for_all_threads
@contextmanager
def written_out() -> Iterator[None]:
    """Compute attention by PyTorch's own steps, in the dtype of its tensors, rather than by fused kernels."""
    fast = torch.backends.mha.get_fastpath_enabled()
    narrow = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    torch.backends.mha.set_fastpath_enabled(False)
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)  # or 16 bits would be heard as 32
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(narrow)
