"""Two runs of a model that differ in later tokens alone, and which results for earlier tokens move."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from unmasked_doctor._asker import Asker, Given
from unmasked_doctor._tensors import share_moved

__all__ = ["Changed", "with_other_later_tokens"]

_MOVED = 1e-3  # as a share of the largest number; the rounding of different kernels is less


@dataclass(frozen=True)
class Changed:
    """What each module gave in two runs, the second with other tokens from the middle on.

    Attributes:
        before: What each module gave in the first, and then the outputs.
        after: The same of the second.
        axis: The axis of tokens.
        tokens: How many there are.
        given: The inputs of the second.
        real: Which tokens are no padding, (items, tokens), whose results alone mean something; None for all.
    """

    before: Mapping[str, Tensor]
    after: Mapping[str, Tensor]
    axis: int
    tokens: int
    given: Given
    real: Tensor | None = None

    def at_all(self, name: str) -> bool:
        """Whether anything moved that a module gave."""
        x, y = self.before.get(name), self.after.get(name)
        known = x is not None and y is not None and x.shape == y.shape and x.dim()
        return bool(known and x is not None and y is not None and share_moved(x, y, 0, torch.arange(x.size(0))))

    def share(self, name: str, *, early: bool) -> float:
        """The largest difference in a module's results for earlier or later tokens, as a share of the largest number.

        It is 0 for results without an axis of tokens.
        """
        x, y, half = self.before[name], self.after.get(name), self.tokens // 2
        if y is None or x.dim() < 3 or x.size(self.axis) != self.tokens:
            return 0.0
        if self.real is not None and self.real.shape == x.shape[:2]:
            y = torch.where(self.real.to(x.device).view(*self.real.shape, *(1,) * (x.dim() - 2)), y, x)
        return share_moved(x, y, self.axis, torch.arange(half) if early else torch.arange(half, self.tokens)) or 0.0

    @property
    def first_early(self) -> str | None:
        """The first module whose results for earlier tokens moved."""
        return next((name for name in self.before if self.share(name, early=True) > _MOVED), None)

    @property
    def came_in(self) -> bool:
        """Whether the results of any module for the later tokens moved, so that the change was noticed at all."""
        return any(self.share(name, early=False) for name in self.before)


def with_other_later_tokens(
    asker: Asker, asked: Mapping[str, Tensor], axis: int, tokens: int, real: Tensor | None = None
) -> Changed | None:
    """Run a model with other tokens in the second half.

    Args:
        asker: The model.
        asked: The arguments that have tokens, by name.
        axis: The axis of tokens.
        tokens: How many there are.
        real: Which tokens are no padding; None where that is not known.

    Returns:
        What each module gave in both runs; None if it does not run with other tokens.
    """
    half = tokens // 2

    def repeat(x: Tensor) -> Tensor:
        """Put the tokens of the first half into the second half, or its first token if it has these already."""
        index = torch.arange(tokens, device=x.device)
        new = x.index_select(axis, index % half)
        return new if not torch.equal(new, x) else x.index_select(axis, index.where(index < half, 0))

    def reorder(x: Tensor) -> Tensor:
        """Put the later tokens into another order, which attention without positions would not notice."""
        first, later = x.narrow(axis, 0, half), x.narrow(axis, half, tokens - half)
        return torch.cat([first, later.roll(1, axis)], axis)

    before = asker.run(asker.given)
    for change in (repeat, reorder):  # a model may refuse to repeat some tokens, such as those that stand for an image
        made = {
            name: change(x) for name, x in asked.items()
            if x.dim() > axis and x.size(axis) == tokens and not (x.is_floating_point() and x.dim() < 3)
        }  # fmt: skip
        given = asker.given.with_(made)
        after = asker.run(given) if made else None
        if before is not None and after is not None:
            return Changed(before.named(), after.named(), axis, tokens, given, real)
    return None
