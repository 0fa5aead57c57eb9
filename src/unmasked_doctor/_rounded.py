"""Places and angles that are computed in 16 bits, in which neighbors far from zero are one number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from unmasked._private import DispatchMode

__all__ = ["FAR", "rounded_places"]

FAR = "its places are rounded: far from the first, neighbors have the same one"

_ANGLES = ("sin", "cos")


def rounded_places(run: Callable[[], object]) -> str | None:
    """Run something, and tell which places became one number in 16 bits, or which angles lie apart there.

    Args:
        run: What is run, in its own precision; what it raises is raised.

    Returns:
        What was seen, in words; or None.

    Examples:
        >>> print(rounded_places(lambda: torch.arange(300).to(torch.bfloat16)))
        300 places become 279 numbers in bfloat16
        >>> print(rounded_places(lambda: torch.arange(300) * 0.1))
        None
    """
    watch = _Rounded()
    with watch:
        run()
    return watch.found


class _Rounded(DispatchMode):
    """Looks at whole numbers that become numbers of 16 bits, and at what sines and cosines are taken of."""

    def __init__(self) -> None:
        super().__init__()
        self.found: str | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "overloadpacket", func).__name__
        if self.found is None and isinstance(result, Tensor) and result.numel() > 1:
            if name in ("_to_copy", "arange") and result.dtype in (torch.bfloat16, torch.float16):
                self.found = _merged(args[0] if name == "_to_copy" else None, result)
            elif name in _ANGLES and args[0].dtype in (torch.bfloat16, torch.float16):
                self.found = _far_apart(args[0])
        return result


def _merged(x: Tensor | None, result: Tensor) -> str | None:
    """Whether whole numbers that follow each other became one."""
    if x is not None and (x.is_complex() or (x.is_floating_point() and not torch.equal(x, x.round()))):
        return None
    numbers = torch.arange(result.numel()) if x is None else x.unique()
    before, after = numbers.numel(), result.unique().numel()
    if not bool((numbers.to(torch.float64).diff() == 1).any()):
        return None
    name = str(result.dtype).removeprefix("torch.")
    return f"{before} places become {after} numbers in {name}" if after < before else None


def _far_apart(angles: Tensor) -> str | None:
    """Whether the largest angle has no neighbor nearer than one."""
    largest = float(angles.abs().max())
    name, step = str(angles.dtype).removeprefix("torch."), largest * torch.finfo(angles.dtype).eps
    return f"angles of {largest:.4g} are computed in {name}, {step:.2g} apart" if step >= 1 else None
