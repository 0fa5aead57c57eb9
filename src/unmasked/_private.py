"""Names that other packages keep to themselves: why each is needed, and what is done where it is missing.

They may change with any release. No other module of the library has one: this is the one place to look after a change.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from operator import attrgetter
from tempfile import gettempdir
from types import FunctionType, ModuleType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import _python_dispatch, _pytree

__all__ = [
    "DispatchMode",
    "allocations",
    "dispatch_modes",
    "flash_attention",
    "flash_attention_backward",
    "flex_scores",
    "fused_choice",
    "graphs_traced",
    "has_room_for_sockets",
    "is_transformed",
    "leaves",
    "opened",
    "storage_holders",
    "tracing_state",
    "uncompiled_function",
    "uncompiled_module",
    "unwatched",
    "version",
    "without_program",
]

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


class DispatchMode(_python_dispatch.TorchDispatchMode):
    """Hears PyTorch's operators: a class that PyTorch documents, in a module that it calls private."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or else its first call imports the compiler, which takes a second


def unwatched() -> AbstractContextManager[object]:
    """Hide calls from modes and subclasses, which nothing public does in a mode; without it, whoever watches hears."""
    return getattr(torch._C, "DisableTorchFunction", nullcontext)()


def opened(function: Callable[..., Any]) -> Callable[..., Any]:
    """Copy a function of PyTorch that hands itself over as a whole to whoever watches, so that its calls are heard.

    Without `has_torch_function`, by which it asks who watches, the copy is a function like the first.
    """
    assert isinstance(function, FunctionType)
    names = function.__globals__ | {"has_torch_function": lambda *_: False}
    copy = FunctionType(function.__code__, names, function.__name__, function.__defaults__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def leaves(tree: object) -> list[Any]:
    """List the values in nested containers, of any class that PyTorch walks, which no public name does: it must be."""
    return _pytree.tree_leaves(tree)


def uncompiled_module(module: nn.Module) -> nn.Module:
    """Return what torch.compile has wrapped, and does not give back; without the name, the module itself."""
    original: nn.Module = getattr(module, "_orig_mod", module)
    return original


def uncompiled_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what torch.compile has wrapped; without the name, the function itself."""
    original: Callable[..., Any] = getattr(function, "_torchdynamo_orig_callable", function)
    return original


def graphs_traced() -> int:
    """Count the graphs that torch.compile has traced so far; without its counters, none."""
    try:
        from torch._dynamo.utils import counters  # it imports the compiler
    except ImportError:
        return 0
    return int(counters["stats"]["unique_graphs"])


def storage_holders(x: Tensor) -> int:
    """Count the tensors that hold the memory of x, itself included; without the count, two: as if one more did."""
    storage = x.untyped_storage()  # which holds the memory, too
    count = getattr(torch._C, "_storage_Use_Count", None)
    return 2 if count is None else int(count(storage._cdata)) - 1


def version(x: Any) -> int | None:
    """Count how often a tensor was written to, which only autograd keeps; without the count, None: as if never."""
    return getattr(x, "_version", None) if isinstance(x, Tensor) and not x.is_inference() else None


def fused_choice(*inputs: Any, scale: float | None, enable_gqa: bool) -> int:
    """Ask which kernel attention would run, which nothing public tells; without it, answer as a device with none."""
    if (choose := getattr(torch, "_fused_sdp_choice", None)) is None:
        raise NotImplementedError("this PyTorch does not tell which kernel it chooses")
    return int(choose(*inputs, scale=scale, enable_gqa=enable_gqa))


def flash_attention(*inputs: Any, scale: float) -> tuple[Tensor, Tensor] | None:
    """Run a CPU's fused kernel, whose public function hides the log-sum-exp; without it, return None."""
    kernel = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
    return kernel and kernel(*inputs, scale=scale)


def flash_attention_backward(*inputs: Any, scale: float) -> tuple[Tensor, Tensor, Tensor] | None:
    """Run the backward pass of a CPU's fused kernel with a log-sum-exp of one's own; without it, return None."""
    kernel = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu_backward", None)
    return kernel and kernel(*inputs, scale=scale)


def flex_scores(query: Tensor, key: Tensor, value: Tensor, *options: Any) -> Tensor:
    """Return FlexAttention's scores after score_mod and mask_mod, as its own reference makes them; none but it can."""
    from torch._higher_order_ops.flex_attention import _math_attention_inner  # it imports the compiler

    scores: Tensor = _math_attention_inner(query, key, value, *options)[1]
    return scores


def allocations(run: torch.profiler.profile) -> list[tuple[tuple[Any, int], int]]:
    """List what was allocated (and freed, below zero) in order, with its device; without the profiler's list, none."""
    results: Any = getattr(run.profiler, "kineto_results", None)
    events = [] if results is None else [each for each in results.events() if each.name() == "[memory]"]
    events.sort(key=lambda each: int(each.start_ns()))
    return [((each.device_type(), each.device_index()), each.nbytes()) for each in events]


def has_room_for_sockets() -> bool:
    """Tell whether the server that starts processes can name its socket, to which macOS leaves 103 characters."""
    return len(os.fsencode(gettempdir())) <= 103 - len("/pymp-12345678/listener-12345678")


@contextmanager
def without_program() -> Iterator[None]:
    """Hide the caller's program from multiprocessing, which would run it anew in each process: no option says so."""
    program, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = program
