"""Another device, on a machine that has none: tensors that say they are on CUDA, and refuse to meet those on the CPU.

Within `elsewhere()`, ``.to("cuda")``, ``.cuda()`` and ``device="cuda"`` give tensors whose values stay in the CPU's
memory, so that every kernel, autograd and copying run as they do. Their storage is marked with the device; whoever asks
for ``.device`` is told that one; and an operation that takes tensors of two devices raises what PyTorch raises. What
CUDA allows is allowed: a number on the CPU among tensors elsewhere, indices on the CPU, and copies.

It does not stand for what depends on CUDA's own kernels: which of them runs, what they round, whether they wait, and
that an index out of range ends all work there. Nor for what takes another way where somebody listens: PyTorch's fast
path of nn.MultiheadAttention, and FlexAttention, which compiles itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from unmasked.watching.heard import _OPENED, MHA

CPU = torch.device("cpu")
_ASKED = {"__get__", "size", "dim", "stride", "numel"}  # they compute nothing, and every third call is one of them
_MOVES = {"to", "cpu", "cuda", "type_as"}
_aten = torch.ops.aten
_COPIES = {_aten.copy_.default, _aten.copy.default}
_INDEXING = {_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default, _aten._index_put_impl_.default}


@contextmanager
def elsewhere(kind: str = "cuda") -> Iterator[torch.device]:
    """Let there be a device such as "cuda:0"; it is gone afterwards, and what was moved there is of no use any more."""
    functions = _Functions()
    with _Operations(functions), functions:
        yield torch.device(kind, 0)


def place(x: Tensor) -> torch.device:
    """Where a tensor is."""
    storage = _storage(x)
    return x.device if storage is None else getattr(storage, "place", CPU)


def put(x: Any, device: torch.device) -> Any:
    """Say that a tensor is there."""
    storage = _storage(x) if isinstance(x, Tensor) else None
    if storage is not None:
        storage.place = device
    return x


def _storage(x: Tensor) -> torch.UntypedStorage | None:
    """What a tensor shares with its views; None of those that have none on the CPU."""
    with torch._C.DisableTorchFunction():
        while is_functorch_wrapped_tensor(x):
            x = get_unwrapped(x)
        plain = x.layout is torch.strided and not x.is_nested and x.device.type == "cpu"
        return x.untyped_storage() if plain else None


def _device(given: Any) -> torch.device:
    device = torch.device("cuda", given) if isinstance(given, int) else torch.device(given)
    return device if device.type in ("cpu", "meta") else torch.device(device.type, 0)


def _tensors(given: Any) -> list[Tensor]:
    """The tensors in arguments, or in a result."""
    if isinstance(given, Tensor):
        return [given]
    found: list[Tensor] = []
    for each in given.values() if isinstance(given, dict) else given if isinstance(given, tuple | list) else ():
        if isinstance(each, Tensor):
            found.append(each)
        elif isinstance(each, tuple | list | dict):  # what holds none is most of what is given, and costs no call
            found += _tensors(each)
    return found


class _Move(torch.autograd.Function):
    """A copy on another device, whose gradient comes back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, device: torch.device) -> Tensor:
        ctx.back = place(x)
        return put(x.clone(), device)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return put(gradient.clone(), ctx.back), None


class _Functions(TorchFunctionMode):
    """What Python asks of tensors: where they are, and to be made, or moved, elsewhere.

    Attributes:
        current: Where the function that runs has its tensors, and makes others.
    """

    current = CPU

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _ANSWERS:
            return _ANSWERS[func](args[0])
        if func is MHA:
            with self:
                return _OPENED(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name in _ASKED:
            return func(*args, **kwargs)
        if name in ("numpy", "__array__") and place(args[0]) != CPU:
            raise TypeError(
                f"can't convert {place(args[0])} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to "
                "host memory first."
            )
        given = _tensors((args, kwargs))
        if name in _MOVES and given:
            return self._moved(name, *args, **kwargs)
        asked = kwargs.get("device")
        if name == "_parse_to" or (asked is not None and _device(asked).type == "meta"):
            return func(*args, **kwargs)
        device = _device(asked) if asked is not None else common(place(x) for x in given)
        with self._at(device):
            result = func(*args, **{name: value for name, value in kwargs.items() if name != "device"})
        if asked is not None and isinstance(result, Tensor) and place(result) != device:
            return _carried(result, device) if given else put(result, device)
        return put(result, device) if name in ("__deepcopy__", "new_tensor") else result

    @contextmanager
    def _at(self, device: torch.device) -> Iterator[None]:
        before, self.current = self.current, device
        try:
            yield
        finally:
            self.current = before

    def _moved(self, name: str, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        named = {each: kwargs.get(each) for each in ("device", "other", "dtype")}
        device, dtype = {"cpu": "cpu", "cuda": "cuda"}.get(name, named["device"]), named["dtype"]
        flags = [each for each in args if isinstance(each, bool)]
        for each in (*args, named["other"]):
            if isinstance(each, Tensor):
                device, dtype = place(each), each.dtype
            elif isinstance(each, torch.dtype):
                dtype = each
            elif isinstance(each, str | int | torch.device) and not isinstance(each, bool):
                device = each
        if x.is_meta or (device is not None and _device(device).type == "meta"):
            return x.to(device, dtype)
        with self._at(place(x)):
            result = x.to(dtype or x.dtype, copy=kwargs.get("copy", flags[1:] == [True]))
        return result if device is None else _carried(result, _device(device))


def _carried(x: Tensor, device: torch.device) -> Tensor:
    if place(x) == device or _storage(x) is None:
        return x
    if is_lazy(x):  # it has no numbers yet
        return put(x, device)
    return _Move.apply(x, device) if x.requires_grad else put(x.clone(), device)


def common(devices: Iterable[torch.device]) -> torch.device:
    """Where a function that takes tensors of these devices computes."""
    return next((device for device in devices if device != CPU), CPU)


class _Operations(TorchDispatchMode):
    """What PyTorch computes: what it takes must be in one place, and so is what it makes."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self, functions: _Functions) -> None:
        super().__init__()
        self.functions = functions

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = _tensors((args, kwargs))
        device = common(place(x) for x in given) if given else self.functions.current
        if func not in _COPIES:
            _meet(func, args, given, device)
        generator = kwargs.get("generator")
        if generator is not None and generator.device.type != device.type:
            raise RuntimeError(
                f"Expected a '{device.type}' device type for generator but found '{generator.device.type}'"
            )
        result = func(*args, **kwargs)
        for made in _tensors(result):
            storage = _storage(made)
            if storage is not None and not hasattr(storage, "place"):
                storage.place = device
        return result


def _meet(func: Any, args: Any, given: list[Tensor], device: torch.device) -> None:
    """Raise where tensors of two devices meet."""
    if device == CPU:
        return
    if func in _INDEXING and place(args[0]) == device:
        given = [args[0], *_tensors(args[2:3])]
    strays = [x for x in given if place(x) == CPU and _storage(x) is not None]
    if not strays:
        return
    written = func._schema.is_mutable and any(x is args[0] for x in strays)
    if written or len(strays) > 1 or strays[0].dim() or func is _aten.equal.default:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {device} and cpu! "
            f"(when an operation takes them: {func})"
        )


def _on_cuda(x: Tensor) -> bool:
    return place(x).type == "cuda"


def _on_cpu(x: Tensor) -> bool:
    return place(x).type == "cpu"


def _number(x: Tensor) -> int:
    return 0 if _on_cuda(x) else -1


_ANSWERS: dict[Any, Any] = {
    Tensor.device.__get__: place,
    Tensor.is_cuda.__get__: _on_cuda,
    Tensor.is_cpu.__get__: _on_cpu,
    Tensor.get_device: _number,
}
