"""The same weights, kept five ways: conversions between the layouts of attention's projections.

| layout | weight | rows or columns | who keeps it |
| --- | --- | --- | --- |
| packed | in_proj_weight (3·heads·head_dim, in) | all of q, all of k, all of v | nn.MultiheadAttention |
| separate | W_query, W_key, W_value .weight (heads·head_dim, in) | one matrix each | three nn.Linear |
| interleaved | qkv_layer.weight (heads·3·head_dim, in) | head by head: its q, k, v | GPT-NeoX, Megatron |
| stacked | query, key, value (heads, in, head_dim) | one matrix a head, transposed | einsum, JAX |
| conv1d | c_attn.weight (in, 3·heads·head_dim) | packed, transposed | GPT-2 |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from unmasked.causal import CausalSelfAttention
from unmasked.multihead import MultiheadAttention

__all__ = ["Layout", "convert", "from_torch", "layout_of", "to_torch"]

Layout = Literal["packed", "separate", "interleaved", "stacked", "conv1d"]
State = dict[str, Tensor]
Module = TypeVar("Module", bound=nn.Module)


class _Spec(NamedTuple):
    """One layout: its tensors' names, and how three matrices (heads·head_dim, in) become its tensors and come back."""

    weights: tuple[str, ...]
    biases: tuple[str, ...]
    output: str  # the output projection's name
    join: Callable[[list[Tensor], int], list[Tensor]]
    split: Callable[[list[Tensor], int], list[Tensor]]
    transposed: bool = False  # the output projection is kept (in, out)


def _interleave(matrices: list[Tensor], heads: int) -> list[Tensor]:
    # heads 3 head_dim in -> heads·3·head_dim in
    return [torch.stack([m.unflatten(0, (heads, -1)) for m in matrices], dim=1).flatten(0, 2)]


def _deinterleave(tensors: list[Tensor], heads: int) -> list[Tensor]:
    return [part.flatten(0, 1) for part in tensors[0].unflatten(0, (heads, 3, -1)).unbind(1)]


def _stack(matrices: list[Tensor], heads: int) -> list[Tensor]:
    # heads·head_dim in -> heads in head_dim; a bias: heads·head_dim -> heads head_dim
    per_head = [m.unflatten(0, (heads, -1)) for m in matrices]
    return [m.mT if m.dim() == 3 else m for m in per_head]


def _unstack(tensors: list[Tensor], heads: int) -> list[Tensor]:
    return [(t.mT if t.dim() == 3 else t).flatten(0, 1) for t in tensors]


def _transpose(x: Tensor) -> Tensor:
    return x.mT if x.dim() == 2 else x


_LAYOUTS: dict[str, _Spec] = {
    "packed": _Spec(
        ("in_proj_weight",),
        ("in_proj_bias",),
        "out_proj",
        join=lambda matrices, heads: [torch.cat(matrices)],
        split=lambda tensors, heads: list(tensors[0].chunk(3)),
    ),
    "separate": _Spec(
        ("W_query.weight", "W_key.weight", "W_value.weight"),
        ("W_query.bias", "W_key.bias", "W_value.bias"),
        "out_proj",
        join=lambda matrices, heads: matrices,
        split=lambda tensors, heads: tensors,
    ),
    "interleaved": _Spec(
        ("qkv_layer.weight",), ("qkv_layer.bias",), "linear_layer", join=_interleave, split=_deinterleave
    ),
    "stacked": _Spec(
        ("query", "key", "value"), ("query_bias", "key_bias", "value_bias"), "output", join=_stack, split=_unstack
    ),
    "conv1d": _Spec(
        ("c_attn.weight",),
        ("c_attn.bias",),
        "c_proj",
        join=lambda matrices, heads: [_transpose(torch.cat(matrices))],
        split=lambda tensors, heads: list(_transpose(tensors[0]).chunk(3)),
        transposed=True,
    ),
}


def convert(state: Mapping[str, Tensor], *, source: Layout, target: Layout, num_heads: int) -> State:
    """Convert attention weights, biases and output projection from one layout to another.

    The result shares no storage with ``state``. Rows packed and rows interleaved have the same shape: nothing but the
    names can tell them apart, so take the source from the model's code.

    Args:
        state: the tensors by the source layout's names (the table above); biases and output projection may be missing.
            The output projection is ``out_proj`` (packed, separate), ``linear_layer``, ``output`` or ``c_proj``, with
            ``.weight`` and ``.bias``.
        source: the layout of ``state``.
        target: the layout wanted.
        num_heads: number of heads.

    Returns:
        The tensors by the target layout's names.

    Raises:
        ValueError: a layout is unknown, a tensor is missing or of a wrong shape (the text says which layout it looks
            like), or the target cannot hold query, key and value of different widths.

    Examples:
        >>> state = {"in_proj_weight": torch.randn(3 * 6, 6), "in_proj_bias": torch.randn(3 * 6)}
        >>> stacked = convert(state, source="packed", target="stacked", num_heads=2)
        >>> stacked["query"].shape, stacked["query_bias"].shape
        (torch.Size([2, 6, 3]), torch.Size([2, 3]))
        >>> back = convert(stacked, source="stacked", target="packed", num_heads=2)
        >>> torch.equal(back["in_proj_weight"], state["in_proj_weight"])
        True
    """
    for name, layout in (("source", source), ("target", target)):
        if layout not in _LAYOUTS:
            raise ValueError(f"{name} is {layout!r}; choose one of {', '.join(_LAYOUTS)}")
    if num_heads < 1:
        raise ValueError(f"num_heads is {num_heads}; it must be 1 or more")
    old, new = _LAYOUTS[source], _LAYOUTS[target]
    known = {*old.weights, *old.biases, f"{old.output}.weight", f"{old.output}.bias"}
    missing, unknown = [n for n in old.weights if n not in state], [n for n in state if n not in known]
    if missing or unknown:
        looks = layout_of(state)
        hint = f"; it looks like layout {looks!r}" if looks not in (None, source) else ""
        problem = f"lacks {missing[0]!r}" if missing else f"holds {unknown[0]!r}, which is not one of its names"
        raise ValueError(f"state of layout {source!r} {problem}{hint}")
    _check_shapes(state, source, num_heads)
    result: State = {}
    for names, targets in ((old.weights, new.weights), (old.biases, new.biases)):
        present = [name for name in names if name in state]
        if not present:
            continue
        if len(present) < len(names):
            raise ValueError(f"state holds {present[0]!r} but not all of {', '.join(names)}; pass all of them or none")
        matrices = old.split([state[name] for name in names], num_heads)
        if len(targets) == 1 and len({m.shape for m in matrices}) > 1:
            shapes = ", ".join(str(tuple(m.shape)) for m in matrices)
            raise ValueError(f"layout {target!r} keeps query, key and value in one tensor; theirs differ: {shapes}")
        result |= {name: t.detach().clone() for name, t in zip(targets, new.join(matrices, num_heads), strict=True)}
    for kind in ("weight", "bias"):
        if (tensor := state.get(f"{old.output}.{kind}")) is not None:
            tensor = _transpose(tensor) if old.transposed != new.transposed else tensor
            result[f"{new.output}.{kind}"] = tensor.detach().clone()
    return {name: tensor.contiguous() for name, tensor in result.items()}


def layout_of(state: Mapping[str, Tensor]) -> Layout | None:
    """Tell a layout by the names of its tensors.

    Args:
        state: attention weights by name.

    Returns:
        The layout that all its weights' names belong to, or None.

    Examples:
        >>> layout_of(torch.nn.MultiheadAttention(4, 2).state_dict())
        'packed'
    """
    for layout, spec in _LAYOUTS.items():
        if all(name in state for name in spec.weights):
            return layout  # type: ignore[return-value]
    return None


def from_torch(module: nn.MultiheadAttention) -> MultiheadAttention:
    """Copy PyTorch's module into ours: the same options, weights, mode and requires_grad, in storage of its own.

    Args:
        module: a torch.nn.MultiheadAttention.

    Returns:
        A MultiheadAttention.

    Examples:
        >>> theirs = torch.nn.MultiheadAttention(6, 3)
        >>> x = torch.randn(5, 2, 6)
        >>> torch.allclose(from_torch(theirs)(x, x, x)[0], theirs(x, x, x)[0], atol=1e-6)
        True
    """
    return _rebuild(module, MultiheadAttention)


def to_torch(module: MultiheadAttention | CausalSelfAttention) -> nn.MultiheadAttention:
    """Copy one of our modules into a torch.nn.MultiheadAttention that computes the same.

    PyTorch's module masks nothing by itself: a CausalSelfAttention's copy needs the causal attn_mask.

    Args:
        module: a MultiheadAttention, or a CausalSelfAttention with d_in = d_out, as many key heads as query heads and
            both biases or neither.

    Returns:
        A torch.nn.MultiheadAttention (batch_first, for a CausalSelfAttention).

    Raises:
        ValueError: nn.MultiheadAttention cannot hold the module; the text says why.

    Examples:
        >>> ours = CausalSelfAttention(6, 6, num_heads=3, qkv_bias=True)
        >>> x, future = torch.randn(2, 5, 6), torch.ones(5, 5, dtype=torch.bool).triu(1)
        >>> torch.allclose(to_torch(ours)(x, x, x, attn_mask=future)[0], ours(x), atol=1e-6)
        True
    """
    if isinstance(module, MultiheadAttention):
        return _rebuild(module, nn.MultiheadAttention)
    for a, b in (("d_in", "d_out"), ("num_kv_heads", "num_heads")):
        if getattr(module, a) != getattr(module, b):
            raise ValueError(
                f"{a} is {getattr(module, a)} and {b} {getattr(module, b)}; in nn.MultiheadAttention they agree"
            )
    has_bias = module.qkv.bias is not None
    if has_bias != (module.out_proj.bias is not None):
        raise ValueError("nn.MultiheadAttention has all biases or none; qkv_bias and out_bias differ")
    theirs = nn.MultiheadAttention(
        module.d_out, module.num_heads, dropout=module.dropout, bias=has_bias, batch_first=True, device="meta"
    )
    names = {"qkv.weight": "in_proj_weight", "qkv.bias": "in_proj_bias"}
    return _fill(theirs, module, {names.get(name, name): tensor for name, tensor in module.state_dict().items()})


def _rebuild(module: nn.MultiheadAttention, cls: type[Module]) -> Module:
    # On the meta device nothing is initialised, so that a copy does not move the random generator.
    copy = cls(
        module.embed_dim,
        module.num_heads,
        dropout=module.dropout,
        bias=module.in_proj_bias is not None,
        add_bias_kv=module.bias_k is not None,
        add_zero_attn=module.add_zero_attn,
        kdim=module.kdim,
        vdim=module.vdim,
        batch_first=module.batch_first,
        device="meta",
    )
    return _fill(copy, module, module.state_dict())


def _fill(copy: Module, original: nn.Module, state: Mapping[str, Tensor]) -> Module:
    copy.load_state_dict({name: tensor.clone() for name, tensor in state.items()}, assign=True)
    for parameter, source in zip(copy.parameters(), original.parameters(), strict=True):
        parameter.requires_grad_(source.requires_grad)
    return copy.train(original.training)


def _check_shapes(state: Mapping[str, Tensor], layout: str, num_heads: int) -> None:
    spec = _LAYOUTS[layout]
    outputs = []
    for name, bias_name in zip(spec.weights, spec.biases, strict=True):
        weight, bias = state[name], state.get(bias_name)
        shape, parts = tuple(weight.shape), 3 if len(spec.weights) == 1 else 1
        problem = f"{name} of layout {layout!r} has shape {shape}"
        axes = 3 if layout == "stacked" else 2
        if weight.dim() != axes:
            hint = {2: "; it looks like layout 'separate'", 3: "; it looks like layout 'stacked'"}.get(weight.dim(), "")
            raise ValueError(f"{problem}, not {axes} axes{hint}")
        if layout == "stacked":
            if shape[0] != num_heads:
                raise ValueError(f"{problem}; its first axis must be num_heads ({num_heads})")
            rows: tuple[int, ...] = (num_heads, shape[2])
        else:
            outs, ins = reversed(shape) if spec.transposed else shape
            rows = (outs,)
            confirmed = bias is not None and bias.shape == rows
            if (
                parts == 3
                and not confirmed
                and (ins == 3 * outs or (outs % (3 * num_heads) and not ins % (3 * num_heads)))
            ):
                raise ValueError(
                    f"{problem}; it looks like layout {'packed' if spec.transposed else 'conv1d'!r}, transposed"
                )
            if outs % (parts * num_heads):
                raise ValueError(
                    f"{problem}; its {outs} outputs must be a multiple of {parts * num_heads} ({num_heads} heads)"
                )
        if bias is not None and bias.shape != rows:
            raise ValueError(
                f"{bias_name} has shape {tuple(bias.shape)}; beside a weight of shape {shape} it must be {rows}"
            )
        outputs.append(rows[-1])
    if len(outputs) == 3 and outputs[0] != outputs[1]:
        raise ValueError(
            f"{spec.weights[0]} has {outputs[0]} outputs and {spec.weights[1]} {outputs[1]}; a query is compared with "
            "keys of its own size, and shared key heads must be repeated first"
        )
