"""Numbers and tensors, as formulas know them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def shape(value: Any) -> tuple[int, ...]:
    """Return a value's sizes; a number has none."""
    return tuple(value.shape) if isinstance(value, Tensor) else ()


def tensor(value: Any) -> Tensor:
    """Make a tensor of a number."""
    return torch.as_tensor(value, dtype=None if shape(value) else torch.float64)


def describe(value: Any) -> str:
    """Say what a value is."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"{value:g}" if isinstance(value, int | float) else f"a {type(value).__name__}"


def matmul(one: Tensor, other: Tensor) -> Tensor:
    """Multiply tensors of any precision."""
    dtype = torch.promote_types(one.dtype, other.dtype)
    return one.to(dtype) @ other.to(dtype)


def holds(relation: str, one: Any, other: Any, tolerance: float) -> bool:
    """Tell whether a relation holds between all entries, to a tolerance relative to the largest of them."""
    if shape(one) != shape(other) and (relation in ("=", "≈", "≠") or (shape(one) and shape(other))):
        return False
    one, other = (torch.as_tensor(value, dtype=torch.float64).detach() for value in (one, other))
    largest = [value[value.isfinite()].abs().max().item() for value in (one, other) if value.isfinite().any()]
    # Where one side is zero all over, the other's rounding has nothing to be measured by.
    slack = tolerance * (max(largest) if largest and all(largest) else 1.0)
    if relation in ("=", "≈", "≠"):
        return torch.allclose(one, other, rtol=0.0, atol=slack) == (relation != "≠")
    # Much less is a tenth at most.
    compare: dict[str, Callable[[], Tensor]] = {
        "<": lambda: one < other,
        ">": lambda: one > other,
        "≤": lambda: one <= other + slack,
        "≥": lambda: one >= other - slack,
        "≪": lambda: one.abs() * 10 <= other.abs(),
        "≫": lambda: one.abs() >= other.abs() * 10,
    }
    return bool(compare[relation]().all())
