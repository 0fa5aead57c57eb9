"""Which modules of a model mix tokens, though no attention was heard in them: convolutions, recurrences."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from unmasked_doctor._asker import Given, evaluated, other
from unmasked_doctor._tensors import floats, share_moved

__all__ = ["mixers"]

_WITHIN_TOKENS = (nn.Linear, nn.Embedding, nn.LayerNorm, nn.RMSNorm, nn.Dropout, nn.Identity, nn.GELU, nn.SiLU, nn.ReLU)
Call = tuple[tuple[Any, ...], dict[str, Any]]


def mixers(
    model: nn.Module,
    modules: Mapping[str, nn.Module],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    heard: Collection[str],
    lengths: Collection[int],
) -> list[str]:
    """Name the innermost modules that mix tokens and have no attention in them that was heard.

    Args:
        model: The model.
        modules: Its modules by name.
        args: What it takes.
        kwargs: What it takes by name.
        heard: The modules whose attention was heard.
        lengths: How many tokens there are.
    """
    calls: dict[str, Call] = {}
    gave: dict[str, Any] = {}

    def enter(name: str) -> Any:
        def note(_: nn.Module, args: Any, kwargs: Any) -> None:
            calls.setdefault(name, (args, kwargs))

        return note

    def leave(name: str) -> Any:
        def note(_: nn.Module, args: Any, output: Any) -> None:
            gave.setdefault(name, next(floats(output), None))

        return note

    around = {name[:n] for name in heard for n in [*_dots(name), len(name)]} | ({""} if heard else set())
    asked = {
        name: module for name, module in modules.items() if name and name not in around
        and not isinstance(module, _WITHIN_TOKENS)
    }  # fmt: skip
    handles = [module.register_forward_pre_hook(enter(name), with_kwargs=True) for name, module in asked.items()]
    handles += [module.register_forward_hook(leave(name)) for name, module in asked.items()]
    found: list[str] = []
    clear: list[str] = []
    try:
        with evaluated(model):
            given = Given.of(model, args, kwargs).copied()
            model(*given.args, **given.kwargs)
    finally:
        for handle in handles:
            handle.remove()
    with evaluated(model):
        for name, module in asked.items():  # parents before their children
            if name not in calls or any(name.startswith(f"{each}.") for each in clear):
                continue
            mixes = _mixes(module, calls[name], gave.get(name), lengths)
            if mixes:
                found = [each for each in found if not name.startswith(f"{each}.")] + [name]
            elif mixes is False:
                clear.append(name)
    return found


def _dots(name: str) -> Iterator[int]:
    return (n for n, letter in enumerate(name) if letter == ".")


def _mixes(module: nn.Module, call: Call, before: Tensor | None, lengths: Collection[int]) -> bool | None:
    """Whether a token that changes changes what comes out at another one; None where that cannot be told."""
    args, kwargs = call
    every: dict[int | str, Any] = dict(enumerate(args))
    every.update(kwargs)
    key, x = next(
        ((key, x) for key, x in every.items() if isinstance(x, Tensor) and x.is_floating_point() and x.dim() > 2),
        (None, None),
    )
    axis = None if x is None else next((n for n in range(1, x.dim()) if x.size(n) in lengths), None)
    if x is None or axis is None:
        return None
    count = x.size(axis)
    changed = x.clone()
    at = count // 2
    row = x.select(axis, at)
    changed.select(axis, at).copy_(other(row) if row.dim() else row + 1)
    try:
        every[key if key is not None else 0] = changed
        torch.manual_seed(0)
        after = next(floats(module(*(every[n] for n in range(len(args))), **{n: every[n] for n in kwargs})), None)
    except Exception:  # whatever a module may raise where it runs alone
        return None
    if before is None or after is None or before.shape != after.shape:
        return None
    along = next((n for n in (axis, *range(1, before.dim())) if n < before.dim() and before.size(n) == count), None)
    if along is None:
        return None
    rest = torch.tensor([n for n in range(count) if n != at])
    if not share_moved(before, after, along, rest):
        return False
    again = next(floats(module(*args, **kwargs)), None)  # which is the same, or else that tells nothing
    return None if again is None or share_moved(before, again, along, rest) else True
