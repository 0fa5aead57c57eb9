"""What tests of several modules set up."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

Module = TypeVar("Module", bound=nn.Module)


def shaken(module: Module, most: float = 0.5) -> Module:
    """The module with numbers drawn for all parameters: a bias that is left at zero would hide a mistake."""
    for parameter in module.parameters():
        nn.init.uniform_(parameter, -most, most)
    return module


@contextmanager
def fast_path(allowed: bool) -> Iterator[None]:
    """Allow PyTorch's encoder its fast path, or forbid it."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(allowed)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def calls_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """List the options and the key of each call of PyTorch's function, as they come."""
    calls: list[dict[str, Any]] = []
    kernel = nn.functional.scaled_dot_product_attention

    def listed(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        calls.append(options | {"key": key})
        return kernel(query, key, value, **options)

    monkeypatch.setattr(nn.functional, "scaled_dot_product_attention", listed)
    return calls


class Operations(TorchDispatchMode):
    """Write down which operations run, and the most numbers that one of them makes."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.names.append(func.overloadpacket.__name__)
        for x in result if isinstance(result, tuple | list) else [result]:
            if isinstance(x, Tensor):  # what a view shows is not held: the storage behind it counts
                self.largest = max(self.largest, x.untyped_storage().nbytes() // x.element_size())
        return result


def goes_on_in_every_mode(made: Any, x: Tensor) -> None:
    """Hold a layer that goes on with a cache to the whole sequence, where no gradients are kept."""
    for mode in (torch.inference_mode, torch.no_grad):
        cache = made.cache(x.size(0), 30)
        with mode():
            for part in x.split([2, 1], dim=1):
                last = made(part, cache=cache)
            torch.testing.assert_close(last, made(x)[:, 2:])
