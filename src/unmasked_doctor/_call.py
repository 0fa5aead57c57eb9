"""A call as its user makes it: which of its arguments are tokens, masks, tables and conditions, for any sizes."""

from __future__ import annotations

import copy
import inspect
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Form", "bound", "form_of", "never_passed", "reordered", "understood"]

_QUERIES = {"q", "query", "queries", "x", "hidden_states", "src", "tgt", "input", "inputs", "tokens", "latents"}
_KEYS = {"k", "key", "keys"}
_VALUES = {"v", "value", "values", "val"}
_CONTEXTS = {"context", "memory", "encoder_hidden_states", "kv", "y", "key_value", "key_value_states", "cond_tokens"}
_EXTRA = re.compile(r"(?i)pos|bias|rel|rot|freq|cos|sin|emb|cond|time|temb|scale|shift|gate|pair")
_MASK = re.compile(r"(?i)mask|allowed|padding|visible|hidden_keys|keep")


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
        args = tuple(_mapped(value, lambda _: next(rest)) for value in self.args)
        return replace(self, args=args, kwargs={k: _mapped(v, lambda _: next(rest)) for k, v in self.kwargs.items()})

    @property
    def mask_axes(self) -> int:
        """How many of (items, queries, keys) a mask tells apart: 1 keys alone, 2 queries and keys, 3 all."""
        mask = self.leaf("mask")
        return 3 if mask is None or {"b", "n"} <= {*mask.axes} else 2 if "n" in mask.axes else 1

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

        args = tuple(_mapped(value, made, copied=True) for value in self.args)
        return args, {name: _mapped(value, made, copied=True) for name, value in self.kwargs.items()}

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


def _mapped(value: Any, function: Callable[[Any], Any], kind: Any = Leaf, *, copied: bool = False) -> Any:
    """Apply a function to every leaf of an argument; what else it holds is copied if it may be written into."""
    if isinstance(value, kind):
        return function(value)
    if type(value) in (list, tuple):
        return type(value)(_mapped(each, function, kind, copied=copied) for each in value)
    if type(value) is dict:
        return {name: _mapped(each, function, kind, copied=copied) for name, each in value.items()}
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


def _tabled(leaves: list[Leaf]) -> list[Leaf]:
    """Mark cosines and sines of angles that grow from place to place by one step."""
    found = list(leaves)
    for at, leaf in enumerate(leaves):
        given, places = leaf.given, [i for i, axis in enumerate(leaf.axes) if axis in "nm"]
        if leaf.role != "other" or len(places) != 1 or given.size(places[0]) < 3:
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


# What a call is


def bound(target: Callable[..., Any], call: Any) -> Form:
    """Read a call: a tensor, a tuple of arguments, a dict of named ones, or a tuple that ends with such a dict."""
    if isinstance(call, Tensor):
        call = (call,)
    parameters = _parameters(target)
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    if isinstance(call, Mapping):
        kwargs = dict(call)
    elif isinstance(call, tuple | list):
        args = tuple(call)
        if args and isinstance(args[-1], dict) and {*args[-1]} <= {*parameters}:
            args, kwargs = args[:-1], dict(args[-1])
    else:
        raise TypeError(f"call is a {type(call).__name__}; pass its arguments: a tensor, a tuple, or a dict of names")
    names = [*parameters][: len(args)]
    names += [f"argument {i}" for i in range(len(names), len(args))]

    def leaf(name: str) -> Callable[[Tensor], Leaf]:
        return lambda x: Leaf(name, x.detach().to("cpu"))

    return Form(
        tuple(_mapped(value, leaf(name), Tensor) for name, value in zip(names, args, strict=True)),
        {name: _mapped(value, leaf(name), Tensor) for name, value in kwargs.items()},
    )


def _parameters(target: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    called = target.forward if isinstance(target, nn.Module) else target
    try:
        found = inspect.signature(called).parameters
    except (TypeError, ValueError):
        return {}
    stars = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {name: each for name, each in found.items() if each.kind not in stars}


def never_passed(target: Callable[..., Any], form: Form | None, count: int, cache: str | None) -> tuple[str, ...]:
    """Name the optional arguments, None unless they are passed, that the target was never called with."""
    parameters = _parameters(target)
    names = [*parameters]
    passed = {*names[:count]} if form is None else {*names[: len(form.args)], *form.kwargs}
    if form is not None:
        every = [*zip(names, form.args, strict=False), *form.kwargs.items()]
        passed -= {name for name, value in every if value is None}
    left = [name for name, each in parameters.items() if each.default is None and name not in passed]
    return tuple(name for name in left if name != ("cache" if cache == "kv" else cache))


def reordered(target: Callable[..., Any], inputs: str, *, batch_first: bool) -> Form | None:
    """The form of what names its three inputs in another order, and of PyTorch's layer, whose mask hides; or None."""
    parts, _, masked = inputs.partition("_")
    names = [*_parameters(target)]
    if parts != "qkv" or len(names) < 3 + bool(masked):
        return None
    one = torch.zeros(1)
    roles = [str(_role_by_name(name)) for name in names[:3]]
    mask = Leaf(names[3], torch.zeros(1, 1, 1, 1, dtype=torch.bool), "mask", "b.nm") if masked else None
    if isinstance(target, nn.MultiheadAttention) and masked:
        mask = Leaf("attn_mask", torch.zeros(1, 1, dtype=torch.bool), "mask", "nm", hides=True)
    elif sorted(roles) != ["key", "query", "value"] or roles == ["query", "key", "value"]:
        return None
    axes = "bnd" if batch_first else "nbd"
    leaves = tuple(Leaf(name, one, role, axes) for name, role in zip(names, roles, strict=False))
    return Form(leaves, {} if mask is None else {mask.name: mask}, free=mask is not None and not mask.hides)


def _role_by_name(name: str) -> str | None:
    plain = name.lower().removesuffix("_states") if name.lower() not in _QUERIES | _CONTEXTS else name.lower()
    if plain in _KEYS | _CONTEXTS:
        return "key"
    if plain in _VALUES:
        return "value"
    return "query" if plain in _QUERIES else None


def understood(target: Callable[..., Any], call: Any, *, batch_first: bool) -> tuple[Form, dict[str, Any]]:
    """Find what a call's tensors are, by trying others of their shapes.

    Returns:
        The form, and the options that it determines: embed_dim, inputs, key_dim, tokens, positions and heads.

    Raises:
        ValueError: No argument can be tokens, or the target's outputs do not tell which one is.
    """
    form = bound(target, call)
    found = form_of(target, form, batch_first)
    if isinstance(found, str):
        shapes = ", ".join(f"{leaf.name} {tuple(leaf.given.shape)}" for leaf in form.leaves) or "no tensor"
        raise ValueError(f"call has {shapes}, and {found}")
    return found


def form_of(target: Callable[..., Any], form: Form, batch_first: bool) -> tuple[Form, dict[str, Any]] | str:
    """Find the first reading of a call that runs at two other sizes; or say why there is none."""
    run = _runner(target)
    try:
        run(*_as_given(form))
    except Exception as error:  # whatever a stranger's module may raise
        text = (str(error).strip() or "no text").split("\n")[0]
        return f"the target refuses them: {type(error).__name__}: {text[:160]}; pass what it runs on"
    first = None
    for reading in itertools.islice(_readings(form, batch_first), 400):
        first = first or reading
        if _holds(run, reading, (7, 11, 13)) and _holds(run, reading, (3, 5, 17)):
            return _told(run, reading)
    if first is None:
        return "none of them can be tokens: pass floating tensors, such as (batch, tokens, features)"
    for reading in itertools.islice(_readings(form, batch_first), 400):  # built for its own number of tokens
        query, key = reading.leaf("query"), reading.leaf("key")
        assert query is not None
        tokens = _count(query)
        if _holds(run, reading, (3, tokens, _count(key) if key else tokens)):
            settled, options = _told(run, reading)
            return settled, options | {"tokens": tokens}
    return (
        "its outputs do not tell which are tokens: for other items and tokens none has an output for each token; wrap "
        "the target in a function of (batch, tokens, features), or pass embed_dim and inputs instead of call"
    )


def _count(leaf: Leaf) -> int:
    shape = [size for size, axis in zip(leaf.given.shape, leaf.axes, strict=True) if axis in "nmxy"]
    return int(torch.tensor(shape).prod())


def _as_given(form: Form) -> tuple[tuple[Any, ...], dict[str, Any]]:
    args = tuple(_mapped(v, lambda leaf: leaf.given.clone(), copied=True) for v in form.args)
    return args, {n: _mapped(v, lambda leaf: leaf.given.clone(), copied=True) for n, v in form.kwargs.items()}


def _runner(target: Callable[..., Any]) -> Callable[..., Any]:
    """The target's copy, in evaluation; or itself, where it is no module."""
    try:
        twin = copy.deepcopy(target)
    except Exception:  # it holds what cannot be copied
        twin = target
    mode = twin.training if isinstance(twin, nn.Module) else False
    held = [*twin.parameters(), *twin.buffers()] if isinstance(twin, nn.Module) else []
    device = next((t.device for t in held), torch.device("cpu"))

    def put(x: Tensor) -> Tensor:
        return x.to(device)

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if isinstance(twin, nn.Module):
            twin.eval()
        try:
            named = {name: _mapped(value, put, Tensor) for name, value in kwargs.items()}
            return twin(*(_mapped(value, put, Tensor) for value in args), **named)
        finally:
            if isinstance(twin, nn.Module):
                twin.train(mode)

    return run


def _readings(form: Form, batch_first: bool) -> Iterator[Form]:
    """Every reading of a call, the likeliest first: which are tokens, how they lie, and what each other axis counts."""
    leaves = form.leaves
    packed = any(_is_offsets(leaf) for leaf in leaves)
    for roles in _roles(leaves):
        main = leaves[roles.index("query")].given
        for layout in _layouts(main, sum(role is not None for role in roles), packed, batch_first):
            tokens = [_as_tokens(leaf, role, layout) for leaf, role in zip(leaves, roles, strict=True)]
            query = tokens[roles.index("query")]
            key = tokens[roles.index("key")] if "key" in roles else query
            if any(len(leaf.axes) != leaf.given.dim() for leaf in tokens if leaf.role in ("query", "key", "value")):
                continue
            sizes = _sizes(query, key)
            others = [_others(leaf, sizes, own="key" not in roles) for leaf in tokens]
            for chosen in itertools.product(*others):
                yield form.with_leaves(_one_mask(_tabled(list(chosen)), own="key" not in roles))


def _is_offsets(leaf: Leaf) -> bool:
    x = leaf.given
    if x.is_floating_point() or x.is_complex() or x.dtype == torch.bool or x.dim() != 1 or len(x) < 2:
        return False
    named = re.search("cu|offset|seq", leaf.name) is not None
    return named and bool(x[0] == 0) and bool((x.diff() > 0).all())


def _is_mask(leaf: Leaf) -> bool:
    x = leaf.given
    if x.dtype == torch.bool:
        return True
    named = _MASK.search(leaf.name) is not None
    if x.is_floating_point():
        bias = bool(((x == 0) | (x <= -1e4)).all())
        return (bias and (named or bool((x <= -1e4).any()))) or (named and _binary(x))
    return named and not x.is_complex() and _binary(x)


def _binary(x: Tensor) -> bool:
    return bool(((x == 0) | (x == 1)).all())


def _roles(leaves: list[Leaf]) -> Iterator[list[str | None]]:
    """Which leaves are queries, keys and values: by their names where these tell, or else in every order."""
    floats = [i for i, leaf in enumerate(leaves) if leaf.given.is_floating_point() and leaf.given.dim() > 1]
    floats = [i for i in floats if not _is_mask(leaves[i])]
    named = {i: _role_by_name(leaves[i].name) for i in floats}
    likely = [i for i in floats if named[i] or not _EXTRA.search(leaves[i].name)] or floats[:1]
    seen: set[tuple[str | None, ...]] = set()
    for count in range(min(3, len(likely)), 0, -1):
        for some in itertools.combinations(likely, count):
            kinds = {1: ["query"], 2: ["query", "key"], 3: ["query", "key", "value"]}[count]
            names = [named[i] for i in some]
            told = sorted(filter(None, names)) == sorted(kinds)
            orders: list[tuple[str, ...]] = [tuple(filter(None, names))] if told else [*itertools.permutations(kinds)]
            ranked = [(sum(map(_contradicts, names, order)), order) for order in orders]
            orders = [order for _, order in sorted(ranked, key=lambda each: each[0])]
            for order in orders:
                roles: list[str | None] = [None] * len(leaves)
                for i, kind in zip(some, order, strict=True):
                    roles[i] = kind
                if tuple(roles) not in seen:
                    seen.add(tuple(roles))
                    yield roles


def _contradicts(name: str | None, role: str) -> bool:
    return name is not None and name != role


def _layouts(main: Tensor, count: int, packed: bool, batch_first: bool) -> list[str]:
    if packed:
        return {2: ["nd"], 3: ["nhd"]}.get(main.dim(), [])
    plain = ["bnd", "bdn"] if batch_first else ["nbd"]
    heads, image = ["bhnd", "bnhd"], ["bxyd", "bdxy"]
    return {3: plain, 4: heads + image if count > 1 else image + heads}.get(main.dim(), [])


def _as_tokens(leaf: Leaf, role: str | None, layout: str) -> Leaf:
    if role is None:
        return leaf
    if leaf.given.dim() == 3 and len(layout) == 4:
        layout = "bnd"
    return replace(leaf, role=role, axes=layout if role == "query" else layout.replace("n", "m"))


def _sizes(query: Leaf, key: Leaf) -> dict[str, int]:
    sizes = {"b": query.given.size(query.axes.index("b")) if "b" in query.axes else 0}
    return sizes | {"n": _count(query), "m": _count(key)}


def _others(leaf: Leaf, sizes: Mapping[str, int], *, own: bool) -> list[Leaf]:
    """The ways to read what is not tokens: every axis of a size that occurs may be that size, or stay."""
    if leaf.role != "other":
        return [leaf]
    if _is_offsets(leaf):
        return [replace(leaf, role="offsets", axes="m" if re.search("k", leaf.name) else "n")]
    mask = _is_mask(leaf)
    choices = []
    for size in leaf.given.shape:
        axes = [axis for axis in ("bn" if own and not mask else "bnm") if sizes[axis] == size]
        choices.append([*axes, "."] if size != 1 else [".", *axes])
    found = []
    for chosen in itertools.product(*choices):
        text = "".join(chosen)
        if any(text.count(axis) > 1 for axis in ("b", "m")) or (mask and (text.count("n") > 1 or "m" not in text)):
            continue
        found.append(replace(leaf, axes=text, role="mask" if mask else "other"))
    if not mask:
        return found
    found.sort(key=lambda each: -sum(axis != "." for axis in each.axes))
    return [_signed(each) for each in found] or [replace(leaf, axes="." * leaf.given.dim())]


def _signed(leaf: Leaf) -> Leaf:
    """Read from a mask's own values what hides: a token sees itself, and what is added is minus infinity, or so."""
    x = leaf.given
    if x.is_floating_point() and not (_binary(x) and bool((x == 1).any())):
        low = x.min().item() if x.numel() else 0.0
        return replace(leaf, fill=low if low < 0 else float("-inf"))
    hides = leaf.name == "key_padding_mask"  # everywhere in PyTorch, True is padding
    x = x.bool()
    if "n" in leaf.axes and "m" in leaf.axes:
        own = x.movedim((leaf.axes.index("n"), leaf.axes.index("m")), (-2, -1))
        if own.size(-1) == own.size(-2):
            diagonal = own.diagonal(dim1=-2, dim2=-1)
            if diagonal.all() != (~diagonal).all() and not x.all():
                hides = bool((~diagonal).all()) and bool(x.any())
    return replace(leaf, hides=hides)


def _one_mask(leaves: list[Leaf], *, own: bool) -> list[Leaf]:
    """Let the first mask of queries and keys, or else the first, be asked about, and the others hide nothing."""
    masks = [leaf for leaf in leaves if leaf.role == "mask"]
    chosen = next((leaf for leaf in masks if "n" in leaf.axes), masks[0] if masks else None)
    return [leaf if leaf.role != "mask" or leaf is chosen else _open(leaf) for leaf in leaves]


def _open(leaf: Leaf) -> Leaf:
    value = 0.0 if leaf.fill is not None else float(not leaf.hides)
    return replace(leaf, given=torch.full_like(leaf.given, value), role="other")


def _drawn(form: Form, sizes: tuple[int, int, int]) -> dict[str, Tensor]:
    items, queries, keys = sizes
    found = {}
    for role, count in (("query", queries), ("key", keys), ("value", keys)):
        leaf = form.leaf(role)
        if leaf is not None:
            generator = torch.Generator().manual_seed(len(role))
            found[role] = torch.randn(items, count, _width(leaf), generator=generator).to(leaf.given.dtype)
    found.setdefault("key", found["query"])
    found.setdefault("value", found["key"])
    return found


def _width(leaf: Leaf) -> int:
    sizes = [size for size, axis in zip(leaf.given.shape, leaf.axes, strict=True) if axis in "dh"]
    return int(torch.tensor(sizes).prod())


def _call(run: Callable[..., Any], form: Form, drawn: Mapping[str, Tensor], allowed: Tensor | None = None) -> Any:
    result = run(*form.arguments(drawn["query"], drawn["key"], drawn["value"], allowed))
    items, queries = drawn["query"].shape[:2]
    result = form.read(result, items, queries)
    while isinstance(result, tuple | list | dict) and result:
        result = next(iter(result.values() if isinstance(result, dict) else result))
    return result


def _holds(run: Callable[..., Any], form: Form, sizes: tuple[int, int, int]) -> bool:
    """Whether it gives an output for each token at these sizes, of (items, queries, keys), and tokens meet."""
    drawn = _drawn(form, sizes if form.leaf("key") is not None else (sizes[0], sizes[1], sizes[1]))
    try:
        output = _call(run, form, drawn)
        if not isinstance(output, Tensor) or output.dim() != 3 or output.shape[:2] != drawn["query"].shape[:2]:
            return False
        query = form.leaf("query")
        if query is None or query.axes not in ("bhnd", "bnhd"):
            return True
        role = "value" if form.leaf("value") is not None else "key" if form.leaf("key") is not None else "query"
        moved = dict(drawn)
        moved[role] = torch.cat([drawn[role][:, :1] + 1, drawn[role][:, 1:]], 1)
        moved = moved if role == "value" else moved | {"value": moved[role]}
        return bool((_call(run, form, moved) - output)[:, -1].abs().max() > 1e-6)
    except Exception:  # whatever a stranger's module raises at sizes that it does not take
        return False


def _told(run: Callable[..., Any], form: Form) -> tuple[Form, dict[str, Any]]:
    """Settle what shapes do not tell, by calls: which is value, and what hides; and say what was found."""
    form = _polarized(run, _averaged(run, form))
    query, key, value, mask = (form.leaf(role) for role in ("query", "key", "value", "mask"))
    assert query is not None
    inputs = ("qkv" if value else "x_context" if key else "x") + ("_allowed" if mask else "")
    options: dict[str, Any] = {"embed_dim": _width(query), "inputs": inputs}
    if key is not None:
        options["key_dim"] = (_width(key), _width(value)) if value else _width(key)
    if "h" in query.axes:
        options["num_heads"] = query.given.size(query.axes.index("h"))
    others = [leaf for leaf in form.leaves if leaf.role == "other"]
    options["positions"] = any(
        leaf.table is not None or (set(leaf.axes) & {*"nm"} and _EXTRA.search(leaf.name)) for leaf in others
    )
    told = [f"{leaf.name} as it was passed" for leaf in others]
    if mask is not None and mask.fill is None and mask.hides:
        told.append(f"True hides in {mask.name}")
    return replace(form, told=tuple(dict.fromkeys(told))), options


def _averaged(run: Callable[..., Any], form: Form) -> Form:
    """Exchange keys and values where their names do not tell, and only what was taken for keys is averaged."""
    key, value = form.leaf("key"), form.leaf("value")
    if key is None or value is None or (_role_by_name(key.name), _role_by_name(value.name)) == ("key", "value"):
        return form
    twin = form.with_leaves([
        replace(leaf, role={"key": "value", "value": "key"}.get(leaf.role, leaf.role)) for leaf in form.leaves
    ])  # fmt: skip
    return twin if not _is_affine(run, form) and _is_affine(run, twin) else form


def _is_affine(run: Callable[..., Any], form: Form) -> bool:
    first = _drawn(form, (3, 5, 7))
    other = first | {"value": first["value"].flip(1).roll(1, 2)}
    middle = first | {"value": (first["value"] + other["value"]) / 2}
    try:
        one, two, between = (_call(run, form, each) for each in (first, other, middle))
    except Exception:
        return False
    return bool((one + two - 2 * between).abs().max() < 1e-4 * one.abs().max())


def _polarized(run: Callable[..., Any], form: Form) -> Form:
    """Try what True does in a boolean mask whose own values do not tell it."""
    mask = form.leaf("mask")
    if mask is None or mask.fill is not None or mask.name == "key_padding_mask":
        return form
    square = "n" in mask.axes and mask.given.bool().any() and not mask.given.bool().all()
    if square:
        return form
    twin = form.with_leaves([replace(leaf, hides=not leaf.hides) if leaf is mask else leaf for leaf in form.leaves])
    return twin if not _hides(run, form) and _hides(run, twin) else form


def _hides(run: Callable[..., Any], form: Form) -> bool:
    """Whether a key that the mask hides moves no output of the others."""
    sizes = (3, 5, 7) if form.leaf("key") is not None else (3, 5, 5)
    drawn = _drawn(form, sizes)
    allowed = torch.ones(sizes, dtype=torch.bool)
    allowed[..., -1] = False
    moved = dict(drawn)
    for role in ("query", "key", "value"):
        if role != "query" or form.leaf("key") is None:
            moved[role] = torch.cat([drawn[role][:, :-1], drawn[role][:, -1:] + 1], 1)
    try:
        gap = (_call(run, form, moved, allowed) - _call(run, form, drawn, allowed))[:, : sizes[1] - 1].abs().max()
    except Exception:
        return False
    return bool(gap < 1e-6)
