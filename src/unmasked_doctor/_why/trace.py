"""Every operator of a call, with the line that it stands in, in several calls that differ in one thing."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unmasked._modes import uncompiled, written_out
from unmasked._private import DispatchMode

__all__ = ["Step", "traced"]

_LONG = 100  # characters of a line that are told
_OURS = Path(__file__).parents[1]
_NOT_THE_USERS = tuple(str(path) for path in (Path(torch.__file__).parent, _OURS, _OURS.with_name("unmasked")))
_VIEWS = {"view", "_unsafe_view", "expand", "permute", "transpose", "t", "unsqueeze", "squeeze", "slice", "select",
          "reshape", "split", "unbind", "detach", "alias", "as_strided", "clone", "_to_copy"}  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One operator of a call.

    Attributes:
        name: The operator's, as PyTorch's dispatcher knows it.
        line: The line of the target that it stands in, and where, in words; "" where that is not known.
        result: What came out.
        random: Whether it draws from a generator.
        matrix: Whether it multiplies by a parameter.
        gathers: Whether it can only put numbers in other places.
    """

    name: str
    line: str
    result: Tensor
    random: bool
    matrix: bool
    gathers: bool


class _Tracer(DispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Step] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        first = result[0] if isinstance(result, tuple) and result else result
        random = torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())
        if (
            isinstance(first, Tensor)
            and first.layout is torch.strided
            and first.numel()
            and (first.is_floating_point() or random)
        ):
            name = getattr(func, "overloadpacket", func).__name__
            matrix = any(isinstance(x, torch.nn.Parameter) and x.dim() > 1 for x in _known(args))
            kept = first.detach().to("cpu").clone()
            self.steps.append(Step(name, _line(), kept, random, matrix, name in _VIEWS))
        return result


def _known(args: Any) -> list[Any]:
    """The arguments, and of those that are views the tensors that they show."""
    return [x if x._base is None else x._base for x in args if isinstance(x, Tensor)]


def _line() -> str:
    """The line of the target that runs: the innermost that stands neither in PyTorch nor here."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_THE_USERS):
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None:
        return ""
    name, number = frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(name, number).strip()
    text = text if len(text) <= _LONG else f"{text[:_LONG]}..."
    return f"`{text}` (line {number} of {Path(name).name})" if text else ""


def traced(calls: Sequence[Callable[[], Any]]) -> list[tuple[Step, ...]]:
    """Make several calls, and return their operators side by side, as far as they are the same ones.

    Args:
        calls: Functions of nothing that call the target.

    Returns:
        For each operator that gives floating numbers, or is random, its step in every call.
    """
    every = []
    for call in calls:
        with uncompiled(), written_out(), _Tracer() as tracer:
            call()
        every.append(tracer.steps)
    found: list[tuple[Step, ...]] = []
    for steps in zip(*every, strict=False):
        if len({(step.name, step.result.shape) for step in steps}) > 1:
            break
        found.append(steps)
    return found
