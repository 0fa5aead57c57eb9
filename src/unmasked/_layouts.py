"""The layouts of attention's projections as a table, and whether tensors fit one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor

__all__ = ["LAYOUTS", "SHARED", "Layout", "check_shapes", "hint", "named"]

Layout = Literal["packed", "qkv", "separate", "interleaved", "stacked", "conv1d"]
SHARED = "key heads that queries share (GQA) must be repeated first"


class Spec(NamedTuple):
    """One layout: its tensors' names, and the axes of a weight as the table above writes them; a bias lacks "in"."""

    weights: tuple[str, ...]
    biases: tuple[str, ...]
    output: str  # the output projection's name
    axes: tuple[str, ...] = ("3·heads·head_dim", "in")

    @property
    def transposed(self) -> bool:
        return self.axes[0] == "in"  # and so is the output projection

    def split(self, tensors: list[Tensor], heads: int) -> list[Tensor]:
        """Take query, key and value, (heads·head_dim, in) or (heads·head_dim,) each, out of a layout's tensors."""
        groups = self._groups(has_in=tensors[0].dim() == len(self.axes))
        names = [name for group in groups for name in group]
        parts: list[Tensor] = []
        for x in tensors:
            for axis in reversed(range(len(groups))):
                x = x.unflatten(axis, [{"3": 3, "heads": heads}.get(name, -1) for name in groups[axis]])
            x = x.permute([names.index(name) for name in _AXES if name in names])
            parts += [part.flatten(0, 1) for part in (x.unbind() if "3" in names else [x])]
        return parts

    def join(self, matrices: list[Tensor], heads: int) -> list[Tensor]:
        """Make a layout's tensors of query, key and value: the way back."""
        groups = self._groups(has_in=matrices[0].dim() == 2)
        names = [name for group in groups for name in group]
        joined = []
        per_head = [x.unflatten(0, (heads, -1)) for x in matrices]
        for x in [torch.stack(per_head)] if "3" in names else per_head:
            x = x.permute([[name for name in _AXES if name in names].index(name) for name in names])
            for axis, group in enumerate(groups):
                x = x.flatten(axis, axis + len(group) - 1)
            joined.append(x)
        return joined

    def _groups(self, *, has_in: bool) -> list[list[str]]:
        return [axis.split("·") for axis in self.axes if has_in or axis != "in"]


_AXES = ("3", "heads", "head_dim", "in")
LAYOUTS: dict[Layout, Spec] = {
    "packed": Spec(("in_proj_weight",), ("in_proj_bias",), "out_proj"),
    "qkv": Spec(("qkv.weight",), ("qkv.bias",), "out_proj"),
    "separate": Spec(
        ("W_query.weight", "W_key.weight", "W_value.weight"),
        ("W_query.bias", "W_key.bias", "W_value.bias"),
        "out_proj",
        ("heads·head_dim", "in"),
    ),
    "interleaved": Spec(("qkv_layer.weight",), ("qkv_layer.bias",), "linear_layer", ("heads·3·head_dim", "in")),
    "stacked": Spec(
        ("query", "key", "value"),
        ("query_bias", "key_bias", "value_bias"),
        "output",
        ("heads", "in", "head_dim"),
    ),
    "conv1d": Spec(("c_attn.weight",), ("c_attn.bias",), "c_proj", ("in", "3·heads·head_dim")),
}


def named(state: Mapping[str, Tensor]) -> Layout | None:
    """The layout whose weights a state has all, by their names."""
    return next((layout for layout, spec in LAYOUTS.items() if all(name in state for name in spec.weights)), None)


def hint(state: Mapping[str, Tensor], source: str) -> str:
    """Say which layout a state with wrong names may have."""
    looks = named(state)
    if looks not in (None, source):
        return f"; it looks like layout {looks!r}"
    for name in state:
        for weight in (weight for spec in LAYOUTS.values() for weight in spec.weights):
            if name.endswith(f".{weight}"):
                return f"; pass the tensors of one layer, by their names without {name.removesuffix(weight)!r}"
    if "q_proj_weight" in state:
        return (
            "; a module with kdim or vdim keeps q_proj_weight, k_proj_weight and v_proj_weight: they are layout "
            "'separate' by other names, and in_proj_bias.chunk(3) its biases"
        )
    return "; no layout holds the key and value that add_bias_kv appends" if "bias_k" in state else ""


def check_shapes(state: Mapping[str, Tensor], layout: Layout, num_heads: int) -> None:
    spec = LAYOUTS[layout]
    parts, outputs, biases = 3 // len(spec.weights), [], []
    step = parts * num_heads
    for name, bias_name in zip(spec.weights, spec.biases, strict=True):
        shape = tuple(state[name].shape)
        problem = f"{name} of layout {layout!r} has shape {shape}"
        if len(shape) != len(spec.axes):
            hint = {2: "; it looks like layout 'separate'", 3: "; it looks like layout 'stacked'"}.get(len(shape), "")
            raise ValueError(f"{problem}, not {len(spec.axes)} axes{hint}")
        sizes = dict(zip(spec.axes, shape, strict=True))
        if sizes.get("heads", num_heads) != num_heads:
            raise ValueError(f"{problem}; its first axis must be num_heads ({num_heads})")
        expected = tuple(n for axis, n in sizes.items() if axis != "in")  # a bias's shape
        shape_of_bias = tuple(state[bias_name].shape) if bias_name in state else None
        fits = [n % step == 0 and shape_of_bias in (None, (n,)) for n in (expected[0], sizes["in"])]
        if parts == 3 and fits == [False, True]:
            looks = "packed" if spec.transposed else "conv1d"
            raise ValueError(f"{problem}; it looks like layout {looks!r}, transposed")
        if expected[0] % step:
            raise ValueError(
                f"{problem}; its {expected[0]} outputs must be a multiple of {step} ({num_heads} heads); {SHARED}"
            )
        outputs.append(math.prod(expected) // parts)
        biases.append((bias_name, shape, expected))
    if len(outputs) == 3 and outputs[0] != outputs[1]:
        raise ValueError(
            f"{spec.weights[0]} has {outputs[0]} outputs and {spec.weights[1]} {outputs[1]}; a query is compared with "
            f"keys of its own size; {SHARED}"
        )
    if (name := f"{spec.output}.weight") in state:
        shape = tuple(state[name].shape)
        outs, ins = shape[:: -1 if spec.transposed else 1] if len(shape) == 2 else (0, 0)
        if ins != outputs[-1]:
            raise ValueError(
                f"{name} has shape {shape}; it must have two axes and read the {outputs[-1]} features that {num_heads} "
                f"heads give; {SHARED}"
            )
        biases.append((f"{spec.output}.bias", shape, (outs,)))
    for name, shape, expected in biases:
        if name in state and state[name].shape != expected:
            raise ValueError(
                f"{name} has shape {tuple(state[name].shape)}; beside a weight of shape {shape} it must be {expected}"
            )
