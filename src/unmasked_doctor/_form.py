"""The arguments of a call, for any sizes: tokens in each layout, masks in each shape and sense, tables."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Form", "Leaf", "mapped", "tabled"]


@dataclass(frozen=True)
class Leaf:
    """One tensor of a call, and what it is.

    Attributes:
        name: What its argument is called.
        given: The tensor, as it was passed.
        role: "query", "key" or "value", tokens of these; "mask"; "offsets" of packed sequences; or "other".
        axes: What each axis counts: "b" items, "n" queries, "m" keys, or "." what stays as it is. Of tokens, also
            "d" features, "h" heads, "x" and "y" the rows and columns of an image.
        hides: Of a mask, whether True, or one, hides.
        fill: Of a mask that is added to the scores, what hides; None of others.
        table: The angles of one place to the next, where it is a cosine, a sine or both as complex numbers.
    """

    name: str
    given: Tensor
    role: str = "other"
    axes: str = ""
    hides: bool = False
    fill: float | None = None
    table: tuple[str, Tensor] | None = None


@dataclass(frozen=True)
class Form:
    """How a target is called: the arguments as they were passed, with the tensors that are made anew.

    Attributes:
        args: The positional arguments; a leaf in the place of each tensor.
        kwargs: The arguments that are passed by name.
        told: What was taken as it was passed, in words.
        free: Whether its mask may have other axes: see `with_mask`.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    told: tuple[str, ...] = ()
    free: bool = False

    def passing(self, name: str, value: Any, parameters: Sequence[str] | Mapping[str, Any]) -> Form:
        """The same form, with another value of an argument; ``parameters`` are the target's, in their order."""
        if name in self.kwargs:
            return replace(self, kwargs={**self.kwargs, name: value})
        at = [*parameters].index(name)
        return replace(self, args=(*self.args[:at], value, *self.args[at + 1 :]))

    def with_mask(self, count: int) -> Form:
        """The same form, whose mask has so many axes, if that is not known."""
        axes = {4: "b.nm", 3: "bnm", 2: "nm", 1: "bm"}[count]
        leaves = [replace(each, axes=axes) if each.role == "mask" else each for each in self.leaves]
        return self.with_leaves(leaves) if self.free else self

    @property
    def leaves(self) -> list[Leaf]:
        """The tensors, in their order."""
        return [each for value in (*self.args, *self.kwargs.values()) for each in _flat(value)]

    def leaf(self, role: str) -> Leaf | None:
        """The first tensor of a role."""
        return next((each for each in self.leaves if each.role == role), None)

    def with_leaves(self, leaves: Sequence[Leaf]) -> Form:
        """The same form with other leaves, in their order."""
        rest = iter(leaves)
        args = tuple(mapped(value, lambda _: next(rest)) for value in self.args)
        return replace(self, args=args, kwargs={k: mapped(v, lambda _: next(rest)) for k, v in self.kwargs.items()})

    @property
    def mask_axes(self) -> int:
        """How many of (items, queries, keys) a mask tells apart: 1 keys alone, 2 queries and keys, 3 all."""
        mask = self.leaf("mask")
        return 3 if mask is None or {"b", "n"} <= {*mask.axes} else 2 if "n" in mask.axes else 1

    @property
    def masks_future(self) -> bool:
        """Whether the mask hides each later key, as it was passed."""
        mask = self.leaf("mask")
        if mask is None or not {"n", "m"} <= {*mask.axes}:
            return False
        x = mask.given.movedim((mask.axes.index("n"), mask.axes.index("m")), (-2, -1))
        seen = x > mask.fill / 2 if mask.fill is not None else x.bool() != mask.hides
        later = torch.ones_like(seen).triu(1 + x.size(-1) - x.size(-2))
        return bool(later.any()) and not bool((seen & later).any())

    def arguments(
        self, query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return positional and named arguments for tokens of (batch, tokens, features) and (batch, queries, keys)."""
        sizes = {"b": query.size(0), "n": query.size(1), "m": key.size(1)}
        tokens = {"query": query, "key": key, "value": value}

        def made(leaf: Leaf) -> Any:
            if leaf.role in tokens:
                return _laid(tokens[leaf.role], leaf)
            if leaf.role == "offsets":
                step = sizes["n"] if leaf.axes != "m" else sizes["m"]
                return torch.arange(0, sizes["b"] * step + 1, step, dtype=leaf.given.dtype, device=query.device)
            if leaf.role == "mask":
                return _as_mask(leaf, allowed, sizes, query)
            return _resized(leaf, sizes, query)

        args = tuple(mapped(value, made, copied=True) for value in self.args)
        return args, {name: mapped(value, made, copied=True) for name, value in self.kwargs.items()}

    def read(self, result: Any, items: int, queries: int) -> Any:
        """Turn the first tensor of a result, which is laid out as the queries are, into (batch, tokens, features)."""
        leaf = self.leaf("query")
        if leaf is None or leaf.axes == "bnd":
            return result
        if isinstance(result, Tensor):
            return _read(result, leaf, items, queries)
        if isinstance(result, tuple | list) and result and isinstance(result[0], Tensor):
            return (_read(result[0], leaf, items, queries), *result[1:])
        return result


def _flat(value: Any) -> Iterator[Leaf]:
    if isinstance(value, Leaf):
        yield value
    elif type(value) in (list, tuple, dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _flat(each)


def mapped(value: Any, function: Callable[[Any], Any], kind: Any = Leaf, *, copied: bool = False) -> Any:
    """Apply a function to every leaf of an argument; what else it holds is copied if it may be written into."""
    if isinstance(value, kind):
        return function(value)
    if type(value) in (list, tuple):
        return type(value)(mapped(each, function, kind, copied=copied) for each in value)
    if type(value) is dict:
        return {name: mapped(each, function, kind, copied=copied) for name, each in value.items()}
    plain = value is None or isinstance(value, bool | int | float | str | torch.dtype | torch.device | nn.Module)
    return copy.deepcopy(value) if copied and not plain else value


# Layouts of tokens


def _grid(tokens: int) -> tuple[int, int]:
    """Rows and columns of so many tokens."""
    rows = next(n for n in range(int(tokens**0.5), 0, -1) if tokens % n == 0)
    return rows, tokens // rows


def _laid(x: Any, leaf: Leaf) -> Any:
    """Lay (batch, tokens, features) out as the leaf's axes say."""
    axes = leaf.axes.replace("m", "n")
    if axes in ("nd", "nhd"):  # packed
        x = x.flatten(0, 1)
        return x if axes == "nd" else x.unflatten(-1, (leaf.given.size(1), -1))
    named = "bnd"
    if "h" in axes:
        x, named = x.unflatten(-1, (leaf.given.size(axes.index("h")), -1)), "bnhd"
    if "x" in axes:
        square = leaf.given.size(axes.index("x")), leaf.given.size(axes.index("y"))
        x = x.unflatten(1, square if square[0] * square[1] == x.size(1) else _grid(x.size(1)))
        named = "bxyd"
    return x.permute(*(named.index(axis) for axis in axes)).contiguous()


def _read(out: Tensor, leaf: Leaf, items: int, queries: int) -> Any:
    axes = leaf.axes
    if axes in ("nd", "nhd"):
        if out.size(0) != items * queries:
            return out
        return out.unflatten(0, (items, queries)).flatten(2)
    if out.dim() != len(axes):
        return out
    order = "bxyd" if "x" in axes else "bnhd" if "h" in axes else "bnd"
    out = out.permute(*(axes.index(axis) for axis in order))
    return out.flatten(1, 2) if "x" in axes else out.flatten(2) if "h" in axes else out


# What is not tokens


def _as_mask(leaf: Leaf, allowed: Tensor | None, sizes: Mapping[str, int], like: Tensor) -> Any:
    shape = sizes["b"], sizes["n"], sizes["m"]
    mask = torch.ones(shape, dtype=torch.bool) if allowed is None else allowed.expand(shape)
    if "b" not in leaf.axes:
        mask = mask[:1]
    if "n" not in leaf.axes:
        mask = mask.any(1, keepdim=True)  # of one blind query it says nothing
    named = ["b", "n", "m"]
    for axis in ("n", "b"):
        if axis not in leaf.axes:
            mask = mask.squeeze(named.index(axis))
            named.remove(axis)
    mask = mask.permute(*(named.index(axis) for axis in leaf.axes if axis != "."))
    for place, axis in enumerate(leaf.axes):
        if axis == ".":
            mask = mask.unsqueeze(place)
            mask = mask.expand(*(leaf.given.size(place) if i == place else -1 for i in range(mask.dim())))
    if leaf.fill is not None:
        return torch.zeros(mask.shape, dtype=like.dtype).masked_fill(~mask, leaf.fill).to(like.device)
    return (~mask if leaf.hides else mask).to(leaf.given.dtype).contiguous().to(like.device)


def _resized(leaf: Leaf, sizes: Mapping[str, int], like: Tensor) -> Tensor:
    """The same tensor for other sizes: places go on as they began, all else is repeated."""
    x = leaf.given
    for place, axis in enumerate(leaf.axes):
        if axis == "." or sizes[axis] == x.size(place):
            continue
        size, old = sizes[axis], x.size(place)
        rows = x.movedim(place, 0)
        if axis != "b" and leaf.table is not None:
            kind, angles = leaf.table
            turned = torch.arange(size).view(-1, *(1,) * (rows.dim() - 1)) * angles.to(torch.float64)
            one = torch.ones((), dtype=torch.float64)
            turns = turned.cos() if kind == "cos" else turned.sin() if kind == "sin" else torch.polar(one, turned)
            rows = turns.to(rows.dtype)
        elif axis != "b" and not rows.is_floating_point() and not rows.is_complex() and rows.dtype != torch.bool:
            step = rows[1:2] - rows[:1] if old > 1 else torch.ones_like(rows[:1])
            rows = rows[:1] + torch.arange(size).view(-1, *(1,) * (rows.dim() - 1)) * step
        else:
            rows = rows[torch.arange(size) % old]
        x = rows.movedim(0, place)
    return (x.to(like.dtype) if x.is_floating_point() else x).to(like.device, copy=True)


def tabled(leaves: list[Leaf]) -> list[Leaf]:
    """Mark cosines and sines of angles that grow from place to place by one step."""
    found = list(leaves)
    for at, leaf in enumerate(leaves):
        given, places = leaf.given, [i for i, axis in enumerate(leaf.axes) if axis in "nm"]
        if leaf.role != "other" or len(places) != 1 or given.size(places[0]) < 3 or not given.numel():
            continue
        if given.is_complex():
            found[at] = _table(leaf, given.angle().movedim(places[0], 0), "complex", given)
        elif given.is_floating_point() and at + 1 < len(leaves) and leaves[at + 1].given.shape == given.shape:
            other = leaves[at + 1].given.to(torch.float64)
            if (given.to(torch.float64) ** 2 + other**2 - 1).abs().max() < 1e-3:
                cos_first = bool((given.select(places[0], 0) > 0.99).all())
                cos, sin = (given, other) if cos_first else (other, given)
                angles = torch.atan2(sin.to(torch.float64), cos.to(torch.float64)).movedim(places[0], 0)
                kinds = ("cos", "sin") if cos_first else ("sin", "cos")
                found[at] = _table(leaf, angles, kinds[0], given)
                found[at + 1] = _table(leaves[at + 1], angles, kinds[1], other)
    return found


def _table(leaf: Leaf, angles: Tensor, kind: str, given: Tensor) -> Leaf:
    step = angles[1:2]
    rows = torch.arange(len(angles), dtype=torch.float64).view(-1, *(1,) * (angles.dim() - 1)) * step
    return replace(leaf, table=(kind, step)) if (rows.cos() - angles.cos()).abs().max() < 1e-2 else leaf
