"""Default arguments that a call writes into, and that every later call is then given."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from unmasked_doctor._tensors import tensors_in

__all__ = ["emptied"]


@contextlib.contextmanager
def emptied(target: Callable[..., Any]) -> Iterator[bool]:
    """Empty the lists, dictionaries and sets that are default arguments and hold tensors, and fill them again after.

    Args:
        target: A module, whose modules' ``forward`` are looked at, or a function.

    Yields:
        Whether there are any.

    Examples:
        >>> import torch
        >>> def keep(x, seen=[]):
        ...     seen.append(x)
        >>> keep(torch.ones(1))
        >>> with emptied(keep) as any_are:
        ...     any_are, keep.__defaults__
        (True, ([],))
    """
    calls = [type(each).forward for each in target.modules()] if isinstance(target, nn.Module) else [target]
    held: dict[int, Any] = {}
    for call in calls:
        defaults = (
            *(getattr(call, "__defaults__", None) or ()),
            *(getattr(call, "__kwdefaults__", None) or {}).values(),
        )
        containers = [each for each in defaults if isinstance(each, list | dict | set)]
        held |= {id(each): each for each in containers if any(True for _ in tensors_in(each))}
    kept = [(each, each.copy()) for each in held.values()]
    try:
        for each, _ in kept:
            each.clear()
        yield bool(kept)
    finally:
        for each, before in kept:
            each.clear()
            each.extend(before) if isinstance(each, list) else each.update(before)
