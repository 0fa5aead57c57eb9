"""The checks that layers share, of their options and inputs, and those of functions that take a layer.

Such a function names the options that it knows. All others are refused by name: `unknown_options` reads them off the
constructor, so that no list of them can be out of date.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn

from unmasked._checks import _device, _shown, number, require_beside, tensor

__all__ = [
    "class_of",
    "kind_of",
    "refuse_script",
    "require_floating",
    "require_input",
    "require_options",
    "require_positions",
    "require_room",
    "require_rotary",
    "turned",
    "unknown_options",
]

Rotary = Callable[[Tensor, Tensor], Tensor]

# Options that change nothing in the results of a layer: its parameters have them.
_ALIKE = frozenset({"device", "dtype"})

# Options that a layer keeps by another name than its constructor's.
_KEPT: dict[str, Callable[[Any], object]] = {
    "bias": lambda layer: layer.in_proj_bias is not None,
    "add_bias_kv": lambda layer: layer.bias_k is not None,
    "kdim": lambda layer: None if layer.kdim == layer.embed_dim else layer.kdim,
    "vdim": lambda layer: None if layer.vdim == layer.embed_dim else layer.vdim,
    "qkv_bias": lambda layer: layer.qkv.bias is not None,
    "out_bias": lambda layer: layer.out_proj.bias is not None,
    "num_kv_heads": lambda layer: None if layer.num_kv_heads == layer.num_heads else layer.num_kv_heads,
    "sinks": lambda layer: layer.sinks is not None,
}


def class_of(layer: object, *known: type[nn.Module]) -> type[nn.Module] | None:
    """Return the first of the classes that the layer is one of, if it computes as that class does.

    A class made of one of them may compute something else, and so does a layer whose projections are not plain: LoRA's
    add to them, and quantized ones have others inside.
    """
    cls = next((cls for cls in known if isinstance(layer, cls)), None)
    return None if cls is None or _difference(layer, cls) else cls


def kind_of(layer: object, *known: type[nn.Module]) -> str:
    """Name a layer's class, and the difference that keeps it from computing as the one of these that it is made of."""
    differences = (_difference(layer, cls) for cls in known if isinstance(layer, cls))
    return type(layer).__name__ + next((f" whose {each}" for each in differences if each), "")


def _difference(layer: Any, cls: type[nn.Module]) -> str | None:
    for name in vars(cls):
        computes = name == "forward" or (name.startswith("_") and not name.startswith(("__", "_reset", "_abc")))
        if computes and (name in vars(layer) or getattr(type(layer), name) is not getattr(cls, name)):
            return f"{name} is its own"
    for name, child in layer.named_children():
        if name in ("qkv", "out_proj") and getattr(type(child), "forward", None) is not nn.Linear.forward:
            return f"{name} is a {type(child).__name__}"
    return None


def unknown_options(layer: nn.Module, cls: type[nn.Module], known: Collection[str]) -> list[str]:
    """Name the options with which a layer was made that its taker does not know, with their values.

    They are the arguments with a default in the constructor of its class: one that is added there is unknown to all.
    """
    unknown = []
    for name, parameter in inspect.signature(cls).parameters.items():
        if name in known or name in _ALIKE or parameter.default is parameter.empty:
            continue
        value = _KEPT[name](layer) if name in _KEPT else getattr(layer, name)
        if value is not parameter.default and value != parameter.default:
            unknown.append(f"{name}={value}")
    return unknown


def require_floating(dtype: torch.dtype | None, device: torch.device | str | None = None) -> None:
    """Refuse a type of parameters or caches that is no floating one, and a place for them that is no device."""
    if device is not None:
        if not isinstance(device, torch.device | str | int):
            raise TypeError(f'device is {_shown(device)}; it must be a device, such as "cpu"')
        _device("device", device, {})
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise TypeError(f"dtype is {dtype}; it must be floating, such as torch.float32")


def require_rotary(rotary: object) -> None:
    """Refuse a rotary that is not called."""
    if rotary is not None and not callable(rotary):
        raise TypeError(
            f"rotary is {rotary!r}; it is called with queries or keys and their positions: pass "
            "unmasked.positions.Rotary(head_dim)"
        )


def require_options(*, scale: float | None, softcap: float | None = None, dropout: float = 0.0) -> None:
    """Refuse numbers that attention cannot take."""
    number("dropout", dropout, "be a probability in [0, 1]", least=0, most=1)
    if scale is not None:
        number("scale", scale)
    if softcap is not None:
        number("softcap", softcap, "be positive (None for no cap)", above=0)


def require_input(x: Tensor, features: int, weight: object, axes: str = "..., tokens") -> None:
    """Refuse an input that does not fit a layer: its kind, its axes, its device, and its dtype, but under autocast."""
    tensor("x", x, "Float")
    if x.dim() < 2 or x.size(-1) != features or (axes[0] != "." and x.dim() != axes.count(",") + 2):
        raise ValueError(f"x has shape {tuple(x.shape)}; this layer takes ({axes}, {features})")
    if not isinstance(weight, Tensor):  # of a quantized projection, which has its own dtypes
        return
    if x.device != weight.device:
        raise ValueError(f'x is on {x.device} and the layer on {weight.device}; call x.to("{weight.device}")')
    if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
        raise TypeError(f"x is {x.dtype} and the layer {weight.dtype}; call x.to({weight.dtype})")


def require_positions(positions: Tensor, x: Tensor, rotary: object) -> None:
    """Refuse positions that are no integers, or on another device than x, or without a rotary that turns by them."""
    tensor("positions", positions, "Int")
    require_beside(x=x, positions=positions)
    if rotary is None:
        raise ValueError(
            "positions are given, and this layer has no rotary to turn anything by them; make it with rotary=..., or "
            "add positions to x"
        )


def require_room(tokens: int, past: int, context_length: int | None) -> None:
    """Refuse more tokens than a layer was made for."""
    if context_length is not None and past + tokens > context_length:
        after = f" after {past} in the cache" if past else ""
        raise ValueError(
            f"x has {tokens} tokens{after}, more than context_length ({context_length}); shorten it, or make the layer "
            "with a larger context_length"
        )


def refuse_script(layer: nn.Module) -> None:
    """Refuse torch.jit.script, which calls this before it begins, and would fail with words of its compiler."""
    raise TypeError(
        f"{type(layer).__name__} cannot be scripted: torch.jit.script knows no keyword-only options and no annotated "
        "shapes; call torch.export.export or torch.compile, or script PyTorch's own layer, whose weights "
        "unmasked.layouts.convert makes"
    )


def turned(rotary: Rotary, x: Tensor, positions: Tensor) -> Tensor:
    """Turn queries or keys by the function of a layer, and hold it to the shape and dtype of x."""
    result = rotary(x, positions)
    if not isinstance(result, Tensor) or result.shape != x.shape or result.dtype != x.dtype:
        description = f"{tuple(result.shape)}, {result.dtype}" if isinstance(result, Tensor) else f"{result!r}"
        raise ValueError(f"rotary made {description} of x, {tuple(x.shape)}, {x.dtype}; it must keep shape and dtype")
    return result
