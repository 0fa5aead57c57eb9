"""A call as its user makes it: which of its arguments are tokens, masks, tables and conditions, for any sizes."""

from __future__ import annotations

import contextlib
import copy
import inspect
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from unmasked_doctor._form import Form, Leaf, mapped, tabled
from unmasked_doctor._subject import brief, place
from unmasked_doctor._tensors import floats

__all__ = [
    "Form", "as_given", "bound", "called", "never_passed", "parameters_of", "paths", "reordered", "runs_as_given",
    "shapes_of", "takes_any_name", "understood",
]  # fmt: skip
_QUERIES = {"q", "query", "queries", "x", "hidden_states", "src", "tgt", "input", "inputs", "tokens", "latents"}
_KEYS = {"k", "key", "keys"}
_VALUES = {"v", "value", "values", "val"}
_CONTEXTS = {"context", "memory", "encoder_hidden_states", "kv", "y", "key_value", "key_value_states", "cond_tokens"}
_EXTRA = re.compile(r"(?i)pos|bias|rel|rot|freq|cos|sin|emb|cond|time|temb|scale|shift|gate|pair")
_MASK = re.compile(r"(?i)mask|allowed|padding|visible|hidden_keys|keep")


def bound(target: Callable[..., Any], call: Any) -> Form:
    """Read a call: a tensor, a tuple of arguments, a dict of named ones, or a tuple that ends with such a dict."""
    if isinstance(call, Tensor):
        call = (call,)
    parameters = parameters_of(target)
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    if isinstance(call, Mapping):
        kwargs = dict(call)
    elif isinstance(call, tuple | list):
        args = tuple(call)
        last = args[-1] if args and isinstance(args[-1], dict) else None
        strange = [] if last is None else [name for name in last if name not in parameters]
        if last is not None and (not strange or (len(strange) < len(last) and takes_any_name(target))):
            args, kwargs = args[:-1], dict(args[-1])
        elif last is not None and len(strange) < len(last):
            raise ValueError(f"call names {strange[0]!r}, which is no argument: pass some of {', '.join(parameters)}")
    else:
        raise TypeError(f"call is a {type(call).__name__}; pass its arguments: a tensor, a tuple, or a dict of names")
    names = [*parameters][: len(args)]
    names += [f"argument {i}" for i in range(len(names), len(args))]

    return Form(
        tuple(_leaves(value, name) for name, value in zip(names, args, strict=True)),
        {name: _leaves(value, name) for name, value in kwargs.items()},
    )


def _leaves(value: Any, name: str) -> Any:
    """An argument with a leaf in the place of each tensor, called as its argument is, or by its key in a dict."""
    if type(value) is dict:
        return {key: _leaves(each, str(key)) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_leaves(each, name) for each in value)
    return Leaf(name, value.detach().to("cpu")) if isinstance(value, Tensor) else value


def parameters_of(target: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """What a target takes, by name, without what may be any number of arguments; nothing where it does not tell."""
    stars = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {name: each for name, each in _signature(target).items() if each.kind not in stars}


def takes_any_name(target: Callable[..., Any]) -> bool:
    """Whether a target takes any named argument; or does not tell which."""
    found = _signature(target)
    return not found or any(each.kind is each.VAR_KEYWORD for each in found.values())


def _signature(target: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(target.forward if isinstance(target, nn.Module) else target).parameters
    except (TypeError, ValueError):
        return {}


def never_passed(target: Callable[..., Any], form: Form | None, count: int, asked: set[str]) -> tuple[str, ...]:
    """Name the optional arguments, None unless they are passed, that the target was never called with."""
    parameters = parameters_of(target)
    names = [*parameters]
    passed = {*names[:count]} if form is None else {*names[: len(form.args)], *form.kwargs}
    if form is not None:
        every = [*zip(names, form.args, strict=False), *form.kwargs.items()]
        passed -= {name for name, value in every if value is None}
    left = [name for name, each in parameters.items() if each.default is None and name not in passed]
    return tuple(name for name in left if name not in asked)


def reordered(target: Callable[..., Any], inputs: str, *, batch_first: bool) -> Form | None:
    """The form of what names its three inputs in another order, and of PyTorch's layer, whose mask hides; or None."""
    parts, _, masked = inputs.partition("_")
    names = [*parameters_of(target)]
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


def called(target: Callable[..., Any], call: Any) -> Tensor:
    """Call a target with what `unmasked.diagnose` takes as a call, in the precision of its parameters.

    Args:
        target: A module or a function.
        call: A tensor, a tuple of arguments, a dict by name, or a tuple that ends with such a dict.

    Returns:
        The first floating tensor of what it returns.

    Raises:
        ValueError: It returns none.

    Examples:
        >>> called(torch.mul, (torch.ones(2), torch.full((2,), 3.0)))
        tensor([3., 3.])
    """
    form = bound(target, call)
    held = [*target.parameters(), *target.buffers()] if isinstance(target, nn.Module) else []
    like = next((x for x in held if x.is_floating_point()), None)

    def put(leaf: Leaf) -> Tensor:
        x = leaf.given if like is None else leaf.given.to(like.device)
        return x if like is None or not x.is_floating_point() else x.to(like.dtype)

    args = [mapped(value, put, copied=True) for value in form.args]
    with torch.no_grad():
        result = target(*args, **{name: mapped(value, put, copied=True) for name, value in form.kwargs.items()})
    found = next(floats(result), None)
    if found is None:
        raise ValueError(f"target returned {type(result).__name__}, and no floating tensor in it")
    return found


def paths(call: Any, form: Form) -> list[str]:
    """How each tensor of a call is written, in the order of the form's leaves, where the call is named ``second``."""
    if isinstance(call, Tensor):
        return ["second"]
    found: list[str] = []

    def follow(value: Any, path: str) -> None:
        if isinstance(value, Leaf):
            found.append(path)
        elif type(value) in (list, tuple):
            for n, each in enumerate(value):
                follow(each, f"{path}[{n}]")
        elif type(value) is dict:
            for name, each in value.items():
                follow(each, f"{path}[{name!r}]")

    for n, value in enumerate(form.args):
        follow(value, f"second[{n}]")
    for name, value in form.kwargs.items():
        follow(value, f"second{'' if isinstance(call, Mapping) else '[-1]'}[{name!r}]")
    return found


def shapes_of(form: Form) -> str:
    """The tensors of a call in words: their names and shapes."""
    return ", ".join(f"{leaf.name} {tuple(leaf.given.shape)}" for leaf in form.leaves) or "no tensor"


def runs_as_given(target: Callable[..., Any], form: Form, default: torch.device | None) -> None:
    """Call a copy of the target as its user does.

    Raises:
        ValueError: The target refuses the call.
    """
    try:
        _runner(target, default)(*as_given(form))
    except Exception as error:  # whatever a stranger's module may raise
        told = f"call has {shapes_of(form)}, and the target refuses them: {brief(error)}{place(error)}"
        raise ValueError(f"{told}; pass what it runs on") from error


def understood(
    target: Callable[..., Any], form: Form, *, batch_first: bool, default: torch.device | None
) -> tuple[Form, dict[str, Any]] | str:
    """Find what a call's tensors are, by trying others of their shapes.

    Returns:
        The first reading that runs at two other sizes, and the options that it determines: embed_dim, inputs, key_dim,
        tokens, positions and heads; or what would tell more.
    """
    run = _runner(target, default)
    for reading in itertools.islice(_readings(form, batch_first), 400):
        if _holds(run, reading, (7, 11, 13)) and _holds(run, reading, (3, 5, 17)):
            return _told(run, reading)
    for reading in itertools.islice(_readings(form, batch_first), 400):  # built for its own number of tokens
        query, key = reading.leaf("query"), reading.leaf("key")
        assert query is not None
        tokens = _count(query)
        if tokens > 1 and _holds(run, reading, (3, tokens, _count(key) if key else tokens)):
            settled, options = _told(run, reading)
            return settled, options | {"tokens": tokens}
    return (
        "a call whose outputs tell which are tokens: at other sizes none has an output for each token; wrap the target "
        "in a function of (batch, tokens, features)"
    )


def _count(leaf: Leaf) -> int:
    shape = [size for size, axis in zip(leaf.given.shape, leaf.axes, strict=True) if axis in "nmxy"]
    return int(torch.tensor(shape).prod())


def as_given(form: Form) -> tuple[tuple[Any, ...], dict[str, Any]]:
    args = tuple(mapped(v, lambda leaf: leaf.given.clone(), copied=True) for v in form.args)
    return args, {n: mapped(v, lambda leaf: leaf.given.clone(), copied=True) for n, v in form.kwargs.items()}


def _runner(target: Callable[..., Any], default: torch.device | None) -> Callable[..., Any]:
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
            named = {name: mapped(value, put, Tensor) for name, value in kwargs.items()}
            with contextlib.nullcontext() if default is None else default:
                return twin(*(mapped(value, put, Tensor) for value in args), **named)
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
                yield form.with_leaves(_one_mask(tabled(list(chosen)), own="key" not in roles))


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
    if not x.is_floating_point() and not x.is_complex() and x.dim() > 1 and not _EXTRA.search(leaf.name):
        return _binary(x)
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
    placed = (leaf.table is not None or (set(leaf.axes) & {*"nm"} and _EXTRA.search(leaf.name)) for leaf in others)
    options["positions"] = True if any(placed) else None
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
