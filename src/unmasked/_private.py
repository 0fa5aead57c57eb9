"""The names of PyTorch that are not public and that this package needs: why, and what is done where one is missing.

They may change with any release. No other module has one, so that this is the one place to look after a change.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TypeVar

import torch
from torch import Tensor

__all__ = ["dispatch_modes", "is_transformed", "tracing_state"]

T = TypeVar("T")


def _of_torch(name: str, otherwise: T) -> T:
    """Look a name up below torch, or take what is done where it is missing."""
    try:
        value: T = attrgetter(name)(torch)
    except AttributeError:
        return otherwise
    return value


# torch.jit.trace makes tensors of sizes and options, and follows no decision on values; None where nothing is traced.
# Where it is missing: as if all were traced, so that no mask is looked at, and an option that is a tensor is taken.
tracing_state: Callable[[], object] = _of_torch("_C._get_tracing_state", lambda: True)

# How many dispatch modes there are: one may trace numbers, as make_fx does, and follows no decision on values.
# Where it is missing: as if there were one, so that no mask is looked at.
dispatch_modes: Callable[[], int] = _of_torch("_C._len_torch_dispatch_stack", lambda: 1)

# Whether a tensor is of vmap, grad or jvp, which may lie in one another: it is neither looked at nor changed in place.
# Where it is missing: as if every tensor were, so that masks take longer, and an option that is a tensor is refused.
is_transformed: Callable[[Tensor], bool] = _of_torch("_C._functorch.is_functorch_wrapped_tensor", lambda x: True)
