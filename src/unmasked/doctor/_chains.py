"""Matrices that are applied one after the other, though each belongs to what the module is given."""

from __future__ import annotations

import torch
from torch import Tensor

from unmasked.doctor._look import Look, Run
from unmasked.doctor._weights import role_of

__all__ = ["judge_chains"]


def judge_chains(look: Look, base: Run) -> None:
    """Find a matrix that takes what it gave itself, and keys or values made of what another role's matrix gave."""
    first, last = min(call.first for call in base.calls), max(call.place for call in base.calls)
    for part in (range(first), range(last + 1, len(base.events))):
        used = [(n, *found) for n in part if (found := _matrix(look, base, n)) is not None]
        for at, (start, key, name) in enumerate(used[:12]):
            later = [(end, told) for end, *more in used[at + 1 :] if (told := _told(key, name, *more))]  # type: ignore[arg-type]
            if not later:
                continue
            other = look.run(base.case, {start: _stirred})
            if len(other.events) != len(base.events):
                continue
            for end, told in later:
                if not look.near(other.events[end].given[0], base.events[end].given[0]):
                    return look.wrong(None, told)
    return None


def _stirred(result: Tensor) -> Tensor:
    return result + torch.randn(result.shape, generator=torch.Generator().manual_seed(4)).to(result)


def _matrix(look: Look, run: Run, number: int) -> tuple[tuple[int, ...], str] | None:
    """Which parameter this layer multiplies by: where it lies, with its shape, and its name."""
    weight = run.events[number].matrix
    if isinstance(weight, Tensor) and weight.dim() > 1:
        for name, tensor in look.patient.target.tensors.items():
            if tensor.untyped_storage().data_ptr() == weight.untyped_storage().data_ptr():
                return (weight.data_ptr(), *weight.shape), name
    return None


def _told(key: tuple[int, ...], name: str, other: tuple[int, ...], later: str) -> str:
    """What is wrong if this matrix's result goes into the other; "" if nothing is."""
    roles = role_of(name), role_of(later)
    if key == other:
        return f"{later} is applied twice: to what it gave itself"
    if roles in (("query", "key"), ("query", "value"), ("key", "value"), ("value", "key")):
        return f"{later} is applied to what {name} gave, not to the tokens: {roles[1]}s are made of the {roles[0]}"
    return ""
