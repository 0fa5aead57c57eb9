"""The weight bypass: identity projections turn an attention module into plain self-attention."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from unmasked._layers import class_of, kind_of, unknown_options
from unmasked.causal import CausalSelfAttention
from unmasked.multihead import MultiheadAttention

__all__ = ["BypassCheck", "bypass_", "bypassed", "is_bypassed"]

Module = TypeVar("Module", bound=nn.MultiheadAttention | CausalSelfAttention)
_KNOWN = (CausalSelfAttention, MultiheadAttention, nn.MultiheadAttention)
# Options that leave plain self-attention to identity weights, or for which `_obstacles` has words of its own.
_OPTIONS = {"num_kv_heads", "context_length", "dropout", "qkv_bias", "out_bias"}
_OPTIONS |= {"bias", "batch_first", "add_bias_kv", "add_zero_attn", "kdim", "vdim"}


@dataclass(frozen=True)
class BypassCheck:
    """Whether a module is bypassed: true where nothing speaks against it.

    Attributes:
        reasons: why the module is not bypassed; empty where it is.
        computes: its function once bypassed: with several heads, each attends over its own slice of the features.
    """

    reasons: tuple[str, ...]
    computes: str

    def __bool__(self) -> bool:
        return not self.reasons

    def __str__(self) -> str:
        return "not bypassed: " + "; ".join(self.reasons) if self.reasons else f"bypassed: computes {self.computes}"


def bypass_(module: Module) -> Module:
    r"""Make every projection of an attention module the identity, in place, and freeze it.

    Frozen parameters lose their gradients too: an optimizer that holds them moves whatever has one, frozen or not.

    With one head, ``module(x, x, x)`` is then plain self-attention. With H heads it is that for each slice of
    embed_dim / H features, side by side.

    Equation:
        $O_h = \operatorname{softmax}\left(\frac{X_h X_h^\top}{\sqrt{d_k}}\right) X_h$ (3.3)

    Equation: (3.4)

    Args:
        module: an nn.MultiheadAttention, a MultiheadAttention or a CausalSelfAttention whose query, key and value
            have as many features as its output.

    Returns:
        The module itself.

    Raises:
        TypeError: the module is of another kind, or of a class made of one of these that computes otherwise.
        ValueError: identity weights cannot make it plain self-attention; the text says why.

    Examples:
        >>> module = bypass_(torch.nn.MultiheadAttention(4, 1, batch_first=True))
        >>> x = torch.tensor([[1.0, 0.0, 0.0, 1.0], [0.0, 1.5, 1.0, 1.0], [0.0, 1.0, 1.0, 1.0]])
        >>> module(x, x, x)[1]
        tensor([[0.4519, 0.2741, 0.2741],
                [0.1045, 0.5307, 0.3648],
                [0.1387, 0.4842, 0.3771]])
    """
    if obstacles := _obstacles(module):
        raise ValueError(f"module cannot be bypassed: {'; '.join(obstacles)}")
    with torch.no_grad():
        for _, parameter, target in _targets(module):
            parameter.copy_(target)
            parameter.requires_grad_(False)
            parameter.grad = None
    return module


@contextmanager
def bypassed(module: Module) -> Iterator[Module]:
    """Bypass a module for the length of a ``with`` block; then restore every weight, bias, gradient and requires_grad.

    The parameters stay the same objects, so an optimizer that holds them is not disturbed. They are overwritten in
    place, so a backward pass cannot cross the block's edge: a graph made in the block is differentiated there.
    Arguments as for `bypass_`, and so are the errors.

    Yields:
        The bypassed module.

    Examples:
        >>> module = torch.nn.MultiheadAttention(4, 1)
        >>> with bypassed(module):
        ...     print(is_bypassed(module))
        bypassed: computes self-attention
        >>> bool(is_bypassed(module))
        False
    """
    _obstacles(module)  # refuses other modules
    before = [(p, p.detach().clone(), p.requires_grad, p.grad) for p in module.parameters()]
    try:
        yield bypass_(module)
    finally:
        with torch.no_grad():
            for parameter, values, requires_grad, grad in before:
                parameter.copy_(values)
                parameter.requires_grad_(requires_grad)
                parameter.grad = grad


def is_bypassed(module: nn.MultiheadAttention | CausalSelfAttention) -> BypassCheck:
    """Say whether a module is bypassed, and if not, why; arguments as for `bypass_`.

    Returns:
        A BypassCheck: true or false, printed with its reasons.

    Raises:
        TypeError: the module is of another kind.

    Examples:
        >>> print(is_bypassed(torch.nn.MultiheadAttention(4, 1, add_zero_attn=True, bias=False)))
        not bypassed: add_zero_attn appends a key and value of zeros; in_proj_weight is not the identity; in_proj_weight
        is trainable, and one step undoes the bypass; out_proj.weight is not the identity; out_proj.weight is trainable,
        and one step undoes the bypass
    """
    reasons = _obstacles(module)
    for name, parameter, target in _targets(module):
        if not parameter.is_meta and not torch.equal(parameter, target):
            reasons.append(f"{name} is not {'zero' if name.endswith('bias') else 'the identity'}")
        if parameter.requires_grad:
            reasons.append(f"{name} is trainable, and one step undoes the bypass")
        elif parameter.grad is not None:
            reasons.append(f"{name} is frozen but keeps a gradient, and an optimizer that holds it moves it still")
    if module.training and module.dropout > 0:
        reasons.append(f"dropout={module.dropout} drops weights in training; call .eval()")
    causal = "causal " if isinstance(module, CausalSelfAttention) else ""
    heads, head_dim = module.num_heads, module.head_dim
    slices = f" of each of {heads} slices of {head_dim} features" if heads > 1 else ""
    return BypassCheck(tuple(reasons), f"{causal}self-attention{slices}")


def _obstacles(module: nn.MultiheadAttention | CausalSelfAttention) -> list[str]:
    """List the properties of a module that identity weights cannot mend."""
    if (cls := class_of(module, *_KNOWN)) is None:
        raise TypeError(
            f"module is a {kind_of(module, *_KNOWN)}; the bypass knows nn.MultiheadAttention, MultiheadAttention and "
            "CausalSelfAttention"
        )
    made = [
        f"it was made with {option}, and is more than plain attention"
        for option in unknown_options(module, cls, _OPTIONS)
    ]
    if isinstance(module, CausalSelfAttention):
        sizes = {"d_in": module.d_in, "d_out": module.d_out}
        heads = {"num_kv_heads": module.num_kv_heads, "num_heads": module.num_heads}
        square = [
            f"its projections are not square: {' and '.join(f'{name} is {size}' for name, size in pair.items())}"
            for pair in (sizes, heads)
            if len(set(pair.values())) > 1
        ]
        return square + made + _without_values(module)
    obstacles = made
    if module.in_proj_weight is None:
        obstacles.append(
            f"its weights are not packed: kdim is {module.kdim} and vdim {module.vdim}, embed_dim {module.embed_dim}"
        )
    if module.bias_k is not None:
        obstacles.append("add_bias_kv appends a learned key and value")
    if module.add_zero_attn:
        obstacles.append("add_zero_attn appends a key and value of zeros")
    return obstacles + _without_values(module)


def _without_values(module: nn.MultiheadAttention | CausalSelfAttention) -> list[str]:
    obstacles = []
    for name, parameter, target in _targets(module):
        if not isinstance(parameter, nn.Parameter):
            obstacles.append(
                f"{name} is computed from other tensors, by a parametrization or pruning; remove that first"
            )
        elif parameter.shape != target.shape:
            shapes = f"{tuple(parameter.shape)}, not {tuple(target.shape)}"
            obstacles.append(f"{name} was changed, and has the shape {shapes}")
        elif parameter.is_meta:
            obstacles.append(f"{name} is on the meta device and has no values; call .to_empty(device=...) first")
        elif parameter.is_inference() and not torch.is_inference_mode_enabled():
            obstacles.append(f"{name} was made under torch.inference_mode() and cannot be changed outside it")
    return obstacles


def _targets(module: nn.MultiheadAttention | CausalSelfAttention) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Every projection's parameter, with its name, and its bypass value: the identity (three of them), or zeros."""
    if isinstance(module, CausalSelfAttention):
        inputs = {"qkv.weight": module.qkv.weight, "qkv.bias": module.qkv.bias}
    else:
        inputs = {"in_proj_weight": module.in_proj_weight, "in_proj_bias": module.in_proj_bias}
    outputs = {"out_proj.weight": module.out_proj.weight, "out_proj.bias": module.out_proj.bias}
    identity = torch.eye(module.out_proj.in_features, device=module.out_proj.weight.device).to(module.out_proj.weight)
    for name, parameter in (inputs | outputs).items():
        if parameter is not None and name.endswith("bias"):
            yield name, parameter, torch.zeros_like(parameter)
        elif parameter is not None:
            yield name, parameter, identity if name in outputs else identity.repeat(3, 1)
