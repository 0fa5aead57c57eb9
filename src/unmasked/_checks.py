"""What several modules ask of their arguments, in the same words."""

from __future__ import annotations

from torch import Tensor

__all__ = ["broadcasts", "require_axes", "require_divides", "require_positive"]


def broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Whether a shape broadcasts to another one, which stays as it is."""
    return len(shape) <= len(target) and all(
        a in (1, b) for a, b in zip(reversed(shape), reversed(target), strict=False)
    )


def require_positive(**sizes: int) -> None:
    """Refuse a size that is not positive."""
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} is {size}; it must be 1 or more")


def require_divides(name: str, size: int, parts_name: str, parts: int) -> None:
    """Refuse a number of equal parts that does not divide a size, with the nearest numbers that do."""
    if parts < 1 or size % parts:
        require_positive(**{parts_name: parts})
        divisors = [n for n in range(1, size + 1) if size % n == 0]
        near = sorted(sorted(divisors, key=lambda n: (abs(n - parts), -n))[:2])
        raise ValueError(
            f"{name} ({size}) must be divisible by {parts_name} ({parts}); try {' or '.join(map(str, near))}"
        )


def require_axes(name: str, x: Tensor, *axes: str) -> None:
    """Refuse a tensor that lacks the axes that every one has, the last ones."""
    if x.dim() < len(axes):
        raise ValueError(f"{name} has shape {tuple(x.shape)}; it must be (..., {', '.join(axes)})")
