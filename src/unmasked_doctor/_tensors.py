"""The tensors in what is given and given back, and by how much two of them differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["OTHER_SIZES", "all_equal", "ends_in", "floats", "gaps", "share_moved", "tensors_in"]

OTHER_SIZES = 1e-3  # of the largest output: kernels of other sizes round in another way
_LEAST = 1e-4  # of the largest output: what moves less is rounding


def tensors_in(value: Any, *, objects: bool = False) -> Iterator[Tensor]:
    """The tensors in what a module gave or takes: in containers, dataclasses, and in any object if asked."""
    held: list[Any] = []
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        held = list(value.values())
    elif isinstance(value, list | tuple | set):
        held = list(value)
    elif hasattr(value, "__dataclass_fields__"):
        held = [getattr(value, name) for name in value.__dataclass_fields__]
    elif objects and hasattr(value, "__dict__") and not isinstance(value, nn.Module | type):
        held = list(vars(value).values())
    for each in held:
        yield from tensors_in(each, objects=objects)


def floats(output: Any) -> Iterator[Tensor]:
    """The tensors of floating numbers in what a module gave."""
    for x in tensors_in(output):
        if x.is_floating_point() and x.layout is torch.strided and not x.is_nested:
            yield x


def gaps(before: Tensor, after: Tensor, size: Tensor | None = None) -> Tensor:
    """By how much each number differs, as a share of the largest, or of a size; what is NaN in both does not."""
    same = (before == after) | (before.isnan() & after.isnan())
    size = before.nan_to_num(0, 0, 0).abs().max() if size is None else size
    apart = torch.where(same, 0.0, (before - after).abs() / size.clamp(min=1e-12))
    return apart.nan_to_num(torch.inf, torch.inf)


def share_moved(before: Tensor, after: Tensor, axis: int, at: Tensor) -> float | None:
    """By how much the largest of these rows moved, as a share of the largest number; None where they have no such."""
    if before.shape != after.shape or before.dim() <= axis or before.size(axis) <= int(at.max()) or not before.numel():
        return None
    one, two = (x.index_select(axis, at.to(x.device)).to(torch.float64) for x in (before, after))
    share = float(gaps(one, two, before.to(torch.float64).nan_to_num(0, 0, 0).abs().max()).max())
    return share if share > _LEAST else 0.0


def all_equal(xs: Iterable[Tensor], ys: Iterable[Tensor]) -> bool:
    """Whether two runs gave the same tensors."""
    return all(x.shape == y.shape and torch.equal(x, y) for x, y in zip(xs, ys, strict=True))


def ends_in(x: Tensor, word: int) -> Tensor:
    """Which words are this one, with nothing else behind them, or before them."""
    same = (x == word).long()
    return (same.cumprod(1) + same.flip(1).cumprod(1).flip(1)) > 0
