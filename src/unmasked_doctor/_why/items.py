"""Where items of a batch meet: the layer that takes them for tokens, or the first operator that mixes two of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from unmasked_doctor._tensors import gaps
from unmasked_doctor._why.trace import Step, traced

__all__ = ["kind_of", "meeting", "tokens_first"]

_HOW = {
    "softmax": "a softmax runs over the items of the batch",
    "rows": "features of several items stand in one row, as after a view or a reshape that takes heads for items",
    "product": "tokens of an item are multiplied by those of others",
    "sum": "a sum, mean or norm runs over the items of the batch",
}
_REDUCES = ("sum", "mean", "norm", "var", "logsumexp", "prod")


def tokens_first(few: tuple[nn.Module, Callable[[], Any]], many: tuple[nn.Module, Callable[[], Any]]) -> str:
    """Find a layer of PyTorch's that takes tokens first, and is given items first.

    Args:
        few: A target, and what calls it.
        many: The target, or a copy, and what calls it with one item more.

    Returns:
        What is told of the layer whose first axis grows with the items; or "".
    """
    shapes = [_shapes(*each) for each in (few, many)]
    for name, (kind, shape) in shapes[0].items():
        _, other = shapes[1].get(name, ("", torch.Size()))
        if len(shape) == len(other) == 3 and other[0] > shape[0] and other[1] == shape[1]:
            return f"{name or kind} takes tokens first, and is given items first: build it with batch_first=True"
    return ""


def _shapes(target: nn.Module, call: Callable[[], Any]) -> dict[str, tuple[str, torch.Size]]:
    """The shape of what each layer that takes tokens first was given first, by the layer's name."""
    found: dict[str, tuple[str, torch.Size]] = {}
    handles = []
    for name, module in target.named_modules():
        if getattr(module, "batch_first", True) is False and type(module).__module__.startswith("torch.nn"):

            def note(module: nn.Module, args: Any, kwargs: Any, name: str = name) -> None:
                first = next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), None)
                if first is not None:
                    found.setdefault(name, (type(module).__name__, first.shape))

            handles.append(module.register_forward_pre_hook(note, with_kwargs=True))
    try:
        call()
    finally:
        for handle in handles:
            handle.remove()
    return found


def meeting(calls: Sequence[Callable[[], Any]], share: float, *, masked: bool = False, how: str = "") -> str:
    """Tell the first line whose numbers notice two items, and how.

    Args:
        calls: What calls the target: with its items, and then with another one in the place of each.
        share: What moves by less, as a share of the largest number, is rounding.
        masked: Whether scores of two items are meant to be there, since a mask hides them before a softmax.
        how: How they meet, where that is known.

    Returns:
        What is told; or "" where that is not seen.
    """
    every = traced(calls)
    if masked:
        every = [steps for steps in every if "softmax" in steps[0].name]
    for steps in every:
        if steps[0].result.numel() > 1 and steps[0].line and _meet(steps, share):
            told = "a softmax gives some of them weight" if masked else _HOW.get(kind_of(steps[0]), "they meet")
            return f"{how or told}, first at {steps[0].line}"
    return ""


def _meet(steps: tuple[Step, ...], share: float) -> bool:
    moved = [gaps(steps[0].result, each.result) > share for each in steps[1:]]
    return any(bool((one & two).any()) for one, two in itertools.combinations(moved, 2))


def kind_of(step: Step) -> str:
    """What an operator does to the numbers that it mixes: "softmax", "rows", "product", "sum"; or ""."""
    if "softmax" in step.name:
        return "softmax"
    if step.name in ("mm", "bmm", "addmm", "baddbmm"):
        return "rows" if step.matrix else "product"
    if "layer_norm" in step.name:
        return "rows"
    return "sum" if any(part in step.name for part in _REDUCES) else ""
