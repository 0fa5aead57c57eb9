"""Weights that are divided by the sum of one group, as of the edges of a sender, and summed in another."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from unmasked._private import DispatchMode
from unmasked_doctor._ask.user_call import UserCall
from unmasked_doctor._report import Finding, Outcome

__all__ = ["other_groups"]

_SUMS = {"scatter_add", "scatter_add_", "scatter_reduce", "scatter_reduce_", "index_add", "index_add_"}
_PUTS = {"index_put", "index_put_"}


def other_groups(asked: UserCall) -> Iterator[Outcome]:
    """Find exponentials that are summed by one index, where what they weight is summed by another.

    An index names for each row the group that it is of, and a softmax over groups has one index for both sums.
    """
    if not any(leaf.given.dtype in (torch.int32, torch.int64) for leaf in asked.leaves):
        return  # no index is passed
    watch = _Grouped()
    with contextlib.suppress(Exception), watch:  # what keeps something may refuse the same call again
        asked.run(asked.given)
    if watch.apart:
        text = "weights are divided by the sums of one grouping of rows, and their values are summed by another"
        evidence = asked.evidence(f"the first {watch.apart[0]} and {watch.apart[1]}, by the indices of both sums")
        yield Finding("weights", "softmax-over-queries", text, evidence, step="softmax")


class _Grouped(DispatchMode):
    """Looks at sums of rows by an index."""

    def __init__(self) -> None:
        super().__init__()
        self.exponentials: list[Tensor] = []
        self.index: Tensor | None = None  # by which exponentials were summed
        self.apart: tuple[list[int], list[int]] | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "overloadpacket", func).__name__
        if name in _SUMS:
            _, dim, index, source, *more = args
            if dim in (0, -source.dim()) and "amax" not in more and index.numel():
                self._summed(index if index.dim() == 1 else index.flatten(1)[:, 0], source)
        elif name in _PUTS and len(args) > 3 and args[3] and len(args[1]) == 1 and args[1][0] is not None:
            self._summed(args[1][0], args[2])
        result = func(*args, **(kwargs or {}))
        if name in ("exp", "exp_"):
            self.exponentials.append(result)
        return result

    def _summed(self, index: Tensor, source: Tensor) -> None:
        if index.dim() != 1 or len(index) != len(source):
            return
        if any(x.shape == source.shape and torch.equal(x, source) for x in self.exponentials):
            self.index = index.clone()
        elif self.index is not None and self.index.shape == index.shape and self.apart is None:
            first, second = self.index, index
            self.index = None
            if not torch.equal(first, second):
                self.apart = first[:4].tolist(), second[:4].tolist()
