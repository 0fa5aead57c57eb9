"""The layouts of attention's projections as data, and checks that tensors fit one; the table is in `layouts`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from unmasked._site import noted

__all__ = ["LAYOUTS", "SHARED", "Layout", "Spec", "check_shapes", "hint"]

Layout = Literal["packed", "qkv", "separate", "interleaved", "stacked", "conv1d"]
SHARED = "key heads that queries share (GQA) must be repeated first"


class Spec(NamedTuple):
    """One layout: the names of its tensors, and the axes of a weight as the table of `layouts` writes them.

    A bias has the same axes but for "in".
    """

    weights: tuple[str, ...]
    biases: tuple[str, ...]
    output: str  # the output projection's name
    axes: tuple[str, ...] = ("3·heads·head_dim", "in")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all tensors."""
        return (*self.weights, *self.biases, f"{self.output}.weight", f"{self.output}.bias")

    @property
    def transposed(self) -> bool:
        """Whether weights are (in, out), and so is the weight of the output projection."""
        return self.axes[0] == "in"

    def renamed(self, inputs: tuple[str, ...], output: str) -> Spec:
        """The same layout where a model has other names for its projections."""
        weights, biases = (tuple(f"{name}.{kind}" for name in inputs) for kind in ("weight", "bias"))
        return Spec(weights, biases, output, self.axes)

    def split(self, tensors: list[Tensor], heads: tuple[int, int, int]) -> list[Tensor]:
        """Take query, key and value, (heads·head_dim, in) or (heads·head_dim,) each, out of a layout's tensors."""
        groups = self._groups(has_in=tensors[0].dim() == len(self.axes))
        names = [name for group in groups for name in group]
        matrices: list[Tensor] = []
        for x, count in zip(tensors, heads, strict=False):
            for axis in reversed(range(len(groups))):
                x = x.unflatten(axis, [{"3": 3, "heads": count}.get(name, -1) for name in groups[axis]])
            x = x.permute([names.index(name) for name in _AXES if name in names])
            matrices += [part.flatten(0, 1) for part in (x.unbind() if "3" in names else [x])]
        return matrices

    def join(self, matrices: list[Tensor], heads: tuple[int, int, int]) -> list[Tensor]:
        """Make a layout's tensors of query, key and value, as `split` returns them."""
        if self.axes[0] == "3·heads·head_dim":  # one below the other, also where keys have fewer heads than queries
            return [torch.cat(matrices)]
        groups = self._groups(has_in=matrices[0].dim() == 2)
        names = [name for group in groups for name in group]
        joined = []
        per_head = [x.unflatten(0, (count, -1)) for x, count in zip(matrices, heads, strict=True)]
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


def hint(state: Mapping[str, Tensor], source: str, looks: str | None) -> str:
    """Return what a message on a state without the names of layout `source` may add: what the state may be instead.

    `looks` is the layout of which it has all names, if there is one.
    """
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


def check_shapes(
    state: Mapping[str, Tensor], spec: Spec, layout: Layout, num_heads: int, num_kv_heads: int | None = None
) -> None:
    """Refuse tensors whose shapes do not fit the layout or each other; without num_kv_heads, no heads share a key."""
    remedy = SHARED if num_kv_heads is None else "correct num_heads"
    parts, biases = 3 // len(spec.weights), []  # how many of query, key and value one weight holds
    step, outputs = parts * num_heads, list[int]()
    for index, (name, bias_name) in enumerate(zip(spec.weights, spec.biases, strict=True)):
        shape = tuple(state[name].shape)
        problem = f"{name} of layout {layout!r} has shape {shape}"
        if len(shape) != len(spec.axes):
            guess = {2: "; it looks like layout 'separate'", 3: "; it looks like layout 'stacked'"}.get(len(shape), "")
            raise ValueError(f"{problem}, not {len(spec.axes)} axes{guess}")
        sizes = dict(zip(spec.axes, shape, strict=True))
        if sizes.get("heads", num_heads) != num_heads:
            raise ValueError(f"{problem}; its first axis must be num_heads ({num_heads})")
        expected = tuple(n for axis, n in sizes.items() if axis != "in")  # a bias's shape
        of_bias = tuple(state[bias_name].shape) if bias_name in state else None
        fits = [n % step == 0 and of_bias in (None, (n,)) for n in (expected[0], sizes["in"])]
        if parts == 3 and fits == [False, True]:
            looks = "packed" if spec.transposed else "conv1d"
            error = ValueError(f"{problem}; it looks like layout {looks!r}, transposed")
            raise noted(error, "museum/weights/#weight-not-transposed")
        if index and num_kv_heads is not None:
            head_dim = outputs[0] // num_heads
            if expected[0] != num_kv_heads * head_dim:
                raise ValueError(
                    f"{name} has {expected[0]} rows, {expected[0] / head_dim:g} heads of {head_dim} features, but "
                    f"num_kv_heads is {num_kv_heads}"
                )
        elif expected[0] % step:
            raise ValueError(
                f"{problem}; its {expected[0]} outputs must be a multiple of {step} ({num_heads} heads); {remedy}"
            )
        outputs.append(math.prod(expected) // parts)
        biases.append((bias_name, shape, expected))
    if len(outputs) == 3 and outputs[0] != outputs[1] and num_kv_heads is None:
        raise ValueError(
            f"{spec.weights[0]} has {outputs[0]} outputs and {spec.weights[1]} {outputs[1]}; a query is compared with "
            f"keys of its own size; {SHARED}"
        )
    if (name := f"{spec.output}.weight") in state:
        shape = tuple(state[name].shape)
        outs, ins = shape[:: -1 if spec.transposed else 1] if len(shape) == 2 else (0, 0)
        width = outputs[-1] if num_kv_heads is None else outputs[0]
        if ins != width:
            raise ValueError(
                f"{name} has shape {shape}; it must have two axes and read the {width} features that {num_heads} heads "
                f"give; {remedy}"
            )
        biases.append((f"{spec.output}.bias", shape, (outs,)))
    for name, shape, expected in biases:
        if name in state and state[name].shape != expected:
            raise ValueError(
                f"{name} has shape {tuple(state[name].shape)}; beside a weight of shape {shape} it must be {expected}"
            )
