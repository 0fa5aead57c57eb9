"""The layers of a model, each asked as a module by itself, with the call that the model makes of it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from unmasked_doctor._ask.call_designs import image, normed_stream
from unmasked_doctor._ask.user_call import UserCall
from unmasked_doctor._asker import Asker, evaluated
from unmasked_doctor._form import mapped
from unmasked_doctor._report import Finding, Outcome
from unmasked_doctor._tensors import floats, gaps

__all__ = ["blocks"]

_MOST = 48  # modules that are asked
_SAME = 1e-2  # of the largest output: a residual that is twice as large moves far more


class _Made(NamedTuple):
    """A call of a module that gives tokens of the shape that it takes."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    first: Tensor
    gave: Tensor


def blocks(asker: Asker, names: list[str], *, batch_first: bool) -> Iterator[tuple[str, Finding]]:
    """Yield what layers show by themselves: the name of each, and what was found.

    Args:
        asker: The model.
        names: The modules in which attention was heard.
        batch_first: Whether items come before tokens.
    """
    chains = [[name[:n] for n in range(1, len(name)) if name[n] == "."] + [name] for name in names if name]
    calls = _calls(asker, list(dict.fromkeys(each for chain in chains for each in chain))[:_MOST])
    grids = {name for name, call in calls.items() if call.first.dim() > 3}
    inner = [next((name for name in reversed(chain) if name in grids), "") for chain in chains]
    for name, call in calls.items():
        asks: list[Callable[[UserCall], Iterator[Outcome]]] = []
        asks += [functools.partial(image, circles=1)] if name in inner else []
        asks += [normed_stream] if _forgets_size(asker, call) else []
        if not asks:
            continue
        with contextlib.suppress(Exception):  # whatever a stranger's module raises where it runs alone
            asked = UserCall(call.module, (*call.args, call.kwargs), batch_first=batch_first)
            for ask in asks:
                yield from ((name, each) for each in ask(asked) if isinstance(each, Finding))


def _calls(asker: Asker, names: list[str]) -> dict[str, _Made]:
    """The first call of each of these modules that gives what it takes, in its shape."""
    found: dict[str, _Made] = {}

    def note(name: str) -> Any:
        def leave(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            x, y = args[0] if args else None, next(floats(output), None)
            if name not in found and isinstance(x, Tensor) and x.dim() > 2 and y is not None and x.shape == y.shape:
                args, kwargs = mapped((args, dict(kwargs)), Tensor.detach, Tensor)
                found[name] = _Made(module, args, kwargs, x.detach(), y.detach())

        return leave

    handles = [asker.modules[name].register_forward_hook(note(name), with_kwargs=True) for name in names
               if name in asker.modules]  # fmt: skip
    try:
        asker.once(asker.given)
    finally:
        for handle in handles:
            handle.remove()
    return found


def _forgets_size(asker: Asker, call: _Made) -> bool:
    """Whether it gives the same for tokens that are twice as large."""
    try:
        with evaluated(asker.model):
            torch.manual_seed(0)
            after = next(floats(call.module(2 * call.first, *call.args[1:], **call.kwargs)), None)
    except Exception:  # whatever a stranger's module raises where it runs alone
        return False
    return after is not None and after.shape == call.gave.shape and float(gaps(call.gave, after).max()) < _SAME
