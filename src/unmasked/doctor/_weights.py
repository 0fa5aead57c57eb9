"""Which of a target's tensors is the query's matrix: read off names, owners and shapes, and tried where in doubt."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from unmasked.doctor._target import Target

__all__ = ["Weights", "appended", "head_counts", "listed", "named", "originals", "readings", "role_of"]

ROLES = ("query", "key", "value", "out")
_WORDS = {
    "query": {"q", "query", "queries"},
    "key": {"k", "key", "keys"},
    "value": {"v", "val", "value", "values"},
    "out": {"o", "out", "output", "outputs", "merge", "combine", "unify", "unifyheads", "dense", "fc", "final", "mix"},
    "qkv": {"qkv", "attn", "in", "packed", "fused"},
    "kv": {"kv"},
}
_CORE = re.compile(
    r"^(?:w|b|to|u|up|d|down|lin|linear|fc|proj|project|weight|bias|mat)??"
    r"(qkv|kv|q|k|v|o|query|key|value|out|output)"
    r"(?:s|w|b|t|proj|projection|lin|linear|layer|mat|bias|weight)??$"
)
HEADS = ("num_heads", "n_heads", "n_head", "nhead", "nheads", "heads", "num_attention_heads", "head_count", "h", "H")


@dataclass(frozen=True)
class Weights:
    """Weights in one layout: matrices (rows, in) as nn.Linear keeps them, heads one below the other.

    Attributes:
        matrices: By role; one that is missing is the identity.
        biases: By role; one that is missing is zero.
        heads: Number of query heads.
        kv_heads: Number of key heads.
        extra: bias_k and bias_v, which add_bias_kv appends, as rows (1, in); and "zeros" for add_zero_attn.
        pinned: Whether names, or the caller, say which row is which: then another order is a mistake.
        fixed: Roles whose matrix is known to be (out, in), as nn.Linear keeps it: its transpose is a mistake.
        turned: Roles whose matrix was read as (in, out), though the caller said nothing of it.
    """

    matrices: Mapping[str, Tensor]
    biases: Mapping[str, Tensor]
    heads: int
    kv_heads: int
    extra: Mapping[str, Tensor] = field(default_factory=dict)
    pinned: bool = False
    fixed: frozenset[str] = frozenset()
    turned: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _Layer:
    """A weight and its bias, of one role, and whether the weight is known to be (out, in)."""

    weight: Tensor
    bias: Tensor | None
    fixed: bool


def head_counts(target: Target, tensors: Mapping[str, Tensor], embed_dim: int) -> list[int]:
    """Guess the number of heads: what the modules say, or else every divisor of the rows."""
    things = [m for module in target.modules.values() for m in module.modules()]
    others = [getattr(target.call, "__self__", target.call)]
    for thing in [*things, *others]:
        for name in HEADS:
            count = vars(thing).get(name) if hasattr(thing, "__dict__") else None
            if isinstance(count, int) and not isinstance(count, bool) and count > 0:
                return [count]
    rows = {size for t in tensors.values() if t.dim() > 1 for size in t.shape} | {embed_dim}
    return sorted({h for h in range(1, 65) if any(r % h == 0 for r in rows)})


def named(target: Target, weights: Mapping[str, Any], original: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Find what the caller calls query, key, value and out among the copy's tensors.

    A value may be a tensor (a parameter of the target, or a view of one), a name, or an nn.Linear.
    """
    allowed = {*ROLES, "qkv", *(f"{role}_bias" for role in (*ROLES, "qkv"))}
    found: dict[str, Tensor] = {}
    for role, given in weights.items():
        if role not in allowed:
            raise ValueError(f"weights names {role!r}; its keys are {', '.join(sorted(allowed))}")
        if isinstance(given, nn.Linear):
            found[role] = _twin(given.weight, target, original)
            if given.bias is not None:
                found[f"{role}_bias"] = _twin(given.bias, target, original)
        elif isinstance(given, str):
            if given not in target.tensors:
                known = ", ".join(target.tensors) or "none"
                raise ValueError(f"weights[{role!r}] is {given!r}, which is no parameter of the target; it has {known}")
            found[role] = target.tensors[given]
        elif isinstance(given, Tensor):
            found[role] = _twin(given, target, original)
        else:
            kind = type(given).__name__
            raise TypeError(f"weights[{role!r}] is a {kind}; pass a tensor, the name of a parameter, or an nn.Linear")
    return found


def _twin(given: Tensor, target: Target, original: Mapping[str, Tensor]) -> Tensor:
    for name, tensor in original.items():
        if name in target.tensors and tensor.untyped_storage().data_ptr() == given.untyped_storage().data_ptr():
            twin = target.tensors[name]
            offset = given.storage_offset() - tensor.storage_offset() + twin.storage_offset()
            return twin.detach().as_strided(given.shape, given.stride(), offset)
    return given.detach().to(target.dtype)


def readings(
    target: Target, *, embed_dim: int, num_heads: int | None, given: Mapping[str, Tensor] | None
) -> Iterator[Weights]:
    """Read the target's tensors as attention weights, in every way that names and shapes allow, the likeliest first."""
    if given is not None:
        yield from _given(given, target, embed_dim, num_heads)
        return
    tensors = {n: t.detach().to("cpu") for n, t in target.tensors.items() if t.dim() and t.numel() > 1}
    counts = [num_heads] if num_heads else head_counts(target, tensors, embed_dim)
    apart = appended(tensors)
    matrices = {n: t for n, t in tensors.items() if t.dim() > 1 and n not in apart and t.numel() > max(t.shape)}
    if not matrices:
        for heads in counts if num_heads else [1]:
            yield Weights({}, {}, heads, heads)
        return
    layers, extra = _layers(target, tensors)
    pinned = any(n.rpartition(".")[2] in ("in_proj_weight", "q_proj_weight") for n in matrices)
    seen = 0
    for heads in counts:
        for assigned in _assignments(layers, len(matrices)):
            for weights in _arrange(assigned, heads, embed_dim, pinned):
                seen += 1
                if seen > 600:
                    return
                yield replace(weights, extra=extra)


def _given(given: Mapping[str, Tensor], target: Target, embed_dim: int, num_heads: int | None) -> Iterator[Weights]:
    linear = {
        t.untyped_storage().data_ptr()
        for n, t in target.tensors.items()
        if isinstance(target.owners[n], nn.Linear | nn.MultiheadAttention) or n.endswith("in_proj_weight")
    }
    fixed = {role for role, tensor in given.items() if tensor.untyped_storage().data_ptr() in linear}
    given = {role: tensor.detach().to("cpu") for role, tensor in given.items()}
    matrices = {role: given[role] for role in ROLES if role in given}
    biases = {role: given[f"{role}_bias"] for role in ROLES if f"{role}_bias" in given}
    if "qkv" in given:
        if "qkv" in fixed:
            fixed |= set(ROLES[:3])
        packed = given["qkv"]
        packed = (
            packed.mT if packed.dim() == 2 and packed.size(0) * 3 == packed.size(1) and "qkv" not in fixed else packed
        )
        matrices |= zip(ROLES[:3], packed.chunk(3), strict=True)
        if "qkv_bias" in given:
            biases |= zip(ROLES[:3], given["qkv_bias"].chunk(3), strict=True)
    loose = [role for role in matrices if role not in fixed and matrices[role].dim() == 2]
    turns = [set(), set(loose), {"out"} & set(loose), set(loose) - {"out"}]
    for turned in [t for i, t in enumerate(turns) if t not in turns[:i]]:
        laid = {role: m.mT if role in turned else m for role, m in matrices.items()}
        for heads in [num_heads] if num_heads else head_counts(target, matrices, embed_dim):
            weights = _weights(laid, biases, heads, pinned=True)
            if weights is not None:
                yield replace(weights, fixed=frozenset(fixed), turned=frozenset(turned))


def _layers(target: Target, tensors: Mapping[str, Tensor]) -> tuple[dict[str, list[_Layer]], dict[str, Tensor]]:
    """Group the tensors by role, those of one role in the order of their names' numbers."""
    layers: dict[str, list[_Layer]] = {}
    extra: dict[str, Tensor] = {}
    loose: dict[str, list[Tensor]] = {}
    rows = appended(tensors)
    for name, tensor in tensors.items():
        owner, last = target.owners.get(name), name.rpartition(".")[2]
        if name in rows:
            extra[last] = tensor.reshape(1, -1)
            continue
        linear = isinstance(owner, nn.Linear | nn.Conv1d | nn.Conv2d)
        if linear and last == "bias":
            continue
        role = role_of(name)
        if not linear and (tensor.dim() == 1 or last.endswith("bias") or last.startswith(("b_", "bias_"))):
            loose.setdefault(role, []).append(tensor)
            continue
        bias = getattr(owner, "bias", None) if linear else None
        flat = tensor.flatten(1) if isinstance(owner, nn.Conv1d | nn.Conv2d) else tensor
        fixed = linear or last in ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
        layers.setdefault(role, []).append(_Layer(flat, None if bias is None else bias.detach().to("cpu"), fixed))
    for role, biases in loose.items():
        for index, bias in enumerate(biases):
            if index < len(layers.get(role, [])) and layers[role][index].bias is None:
                layers[role][index] = replace(layers[role][index], bias=bias)
    if loose.get("qkv") and "qkv" not in layers and {"query", "key", "value"} <= layers.keys():  # kdim: packed biases
        for role, part in zip(ROLES[:3], loose["qkv"][0].chunk(3), strict=True):
            layers[role][0] = replace(layers[role][0], bias=part)
    if any(getattr(m, "add_zero_attn", False) for module in target.modules.values() for m in module.modules()):
        extra["zeros"] = torch.zeros(1, 1)
    return layers, extra


def appended(tensors: Mapping[str, Tensor]) -> set[str]:
    """What add_bias_kv appends: biases of keys and values, and none of queries, as (1, 1, features)."""
    found = {n for n, t in tensors.items() if n.rpartition(".")[2] in ("bias_k", "bias_v") and t.shape[:-1] == (1, 1)}
    return set() if any(n.rpartition(".")[2] == "bias_q" for n in tensors) else found


def role_of(name: str) -> str:
    stem = re.sub(r"[._]?(weight|bias)$", "", name) or name
    tokens = [t for t in re.split(r"[._\d]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", stem).lower()) if t]
    tokens = [m.group(1) if (m := _CORE.match(t)) else t for t in tokens]
    roles = {role for role in ("query", "key", "value") for t in tokens[-3:] if t in _WORDS[role]}
    if len(roles) == 3:
        return "qkv"
    if roles == {"key", "value"}:
        return "kv"
    for token in reversed(tokens):
        for role, words in _WORDS.items():
            if token in words:
                return role
    return "out" if tokens and tokens[-1] in ("proj", "projection") else "?"


def _assignments(layers: dict[str, list[_Layer]], count: int) -> Iterator[dict[str, list[_Layer]]]:
    """Give each layer a role: by its name, or in every way where names say nothing."""
    unknown = layers.get("?", [])
    known = {role: group for role, group in layers.items() if role != "?"}
    if {"query", "key", "value"} <= known.keys() or "qkv" in known or {"query", "kv"} <= known.keys():
        missing = "out" not in known and len(unknown) == 1
        yield known | ({"out": unknown} if missing else {})
        if missing or "out" in known:
            return
    pool = [layer for group in layers.values() for layer in group]
    if 1 <= len(pool) <= 5 and not known.keys() >= {"query", "key", "value"}:
        for roles in (ROLES, ROLES[:3], ("qkv", "out"), ("qkv",), ("query", "kv", "out")):
            if len(pool) == len(roles):
                for order in itertools.permutations(pool):
                    yield {role: [layer] for role, layer in zip(roles, order, strict=True)}


def _arrange(assigned: dict[str, list[_Layer]], heads: int, embed_dim: int, pinned: bool) -> Iterator[Weights]:
    """Bring the layers of each role to matrices (rows, in), in each way that their shapes allow."""
    choices: dict[str, list[tuple[dict[str, Tensor], dict[str, Tensor]]]] = {}
    for role, group in assigned.items():
        options: list[tuple[dict[str, Tensor], dict[str, Tensor]]] = []
        with contextlib.suppress(RuntimeError, ValueError, IndexError):  # shapes that this role cannot be read from
            if role in ROLES:
                for m, b in _matrices(group, heads, embed_dim, role == "out"):
                    options.append(({role: m}, {} if b is None else {role: b}))
            else:
                options.extend(_unpack(group, role, heads, embed_dim, pinned))
        choices[role] = options
    for chosen in itertools.product(*choices.values()):
        matrices = {role: m for part, _ in chosen for role, m in part.items()}
        biases = {role: b for _, part in chosen for role, b in part.items()}
        weights = _weights(matrices, biases, heads, pinned=pinned)
        if weights is not None:
            known = {role for role, group in assigned.items() if all(layer.fixed for layer in group)}
            parts = {"qkv": ROLES[:3], "kv": ROLES[1:3]}
            yield replace(weights, fixed=frozenset(r for role in known for r in parts.get(role, (role,))))


def _weights(matrices: dict[str, Tensor], biases: dict[str, Tensor], heads: int, *, pinned: bool) -> Weights | None:
    rows = matrices["query"].size(0) if "query" in matrices else None
    kv_rows = matrices["key"].size(0) if "key" in matrices else rows
    if rows is None or kv_rows is None:
        return Weights(matrices, biases, heads, heads, pinned=pinned)
    if rows % heads or kv_rows % (rows // heads):
        return None
    kv_heads = kv_rows // (rows // heads)
    if not kv_heads or heads % kv_heads:
        return None
    if {"value", "out"} <= matrices.keys() and matrices["out"].size(1) * kv_heads != matrices["value"].size(0) * heads:
        return None
    flat = {role: bias.reshape(-1) for role, bias in biases.items()}
    if any(role in matrices and bias.numel() != matrices[role].size(0) for role, bias in flat.items()):
        return None
    return Weights(matrices, flat, heads, kv_heads, pinned=pinned)


def _matrices(group: list[_Layer], heads: int, embed_dim: int, is_out: bool) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Yield (rows, in) for one role, with its bias."""
    biases = [layer.bias for layer in group if layer.bias is not None]
    bias = torch.cat([b.reshape(-1) for b in biases]) if biases else None
    if len(group) > 1:  # one matrix a head
        for turned in (False, True) if not group[0].fixed else (False,):
            parts = [layer.weight.mT if turned else layer.weight for layer in group]
            try:
                joined = torch.cat(parts, dim=1 if is_out else 0)
            except RuntimeError:
                continue
            yield joined, (torch.stack(biases).sum(0) if is_out and biases else bias)
        return
    weight, fixed = group[0].weight, group[0].fixed
    if weight.dim() == 2:
        yield weight, bias
        if not fixed:
            yield weight.mT, bias
        return
    for order in itertools.permutations(range(weight.dim())):
        turned_weight = weight.permute(order)
        if is_out and turned_weight.shape[1] == heads:  # out heads head_dim
            yield turned_weight.flatten(1), bias
        if not is_out and turned_weight.shape[0] == heads and turned_weight.shape[-1] == embed_dim:
            yield turned_weight.flatten(0, -2), bias


def _unpack(
    group: list[_Layer], role: str, heads: int, embed_dim: int, pinned: bool
) -> Iterator[tuple[dict[str, Tensor], dict[str, Tensor]]]:
    """Yield the matrices that one packed layer holds, in each order of rows that is in use."""
    names = ("query", "key", "value") if role == "qkv" else ("key", "value")
    count = len(names)
    if len(group) > 1:  # one packed layer a head
        if any(layer.bias is not None for layer in group) and not all(layer.bias is not None for layer in group):
            return
        if len({layer.weight.shape[1:] for layer in group}) > 1:  # such as the way down to a latent, and the way up
            return
        if any(layer.bias is not None and layer.bias.numel() != layer.weight.size(0) for layer in group):
            return
        for orders in _orders(names, pinned):
            parts = [layer.weight.chunk(count) for layer in group]
            matrices = {name: torch.cat([p[i] for p in parts]) for i, name in enumerate(orders)}
            biases = {}
            if group[0].bias is not None:
                split = [layer.bias.chunk(count) for layer in group if layer.bias is not None]
                biases = {name: torch.cat([p[i] for p in split]) for i, name in enumerate(orders)}
            yield matrices, biases
        return
    weight, bias, fixed = group[0].weight, group[0].bias, group[0].fixed
    turns = [range(weight.dim())] if fixed else list(itertools.permutations(range(weight.dim())))
    for turn in turns:
        turned = weight.permute(*turn)
        if turned.size(-1) != embed_dim:
            continue
        rows, lead = prod(turned.shape[:-1]), turned.shape[:-1]
        flat = turned.reshape(rows, embed_dim)
        if bias is not None and bias.numel() != rows:  # a vector of a like name, such as a normalization's
            continue
        for order in _orders(names, pinned):
            if rows % count == 0 and (len(lead) == 1 or lead[0] == count):
                yield _named(order, flat.chunk(count), None if bias is None else bias.reshape(-1).chunk(count))
            if rows % (count * heads) == 0 and not pinned and (len(lead) == 1 or lead[0] == heads):
                parts = flat.unflatten(0, (heads, count, -1)).unbind(1)
                cut = None if bias is None else bias.reshape(heads, count, -1).unbind(1)
                yield _named(order, [p.flatten(0, 1) for p in parts], cut)
            if count == 3 and len(lead) == 1:  # query heads may share keys: (heads + 2 * kv_heads) * head_dim rows
                for kv_heads in (k for k in range(1, heads) if heads % k == 0 and rows % (heads + 2 * k) == 0):
                    head_dim = rows // (heads + 2 * kv_heads)
                    sizes = [heads * head_dim if name == "query" else kv_heads * head_dim for name in order]
                    yield _named(order, flat.split(sizes), None if bias is None else bias.reshape(-1).split(sizes))


def _orders(names: tuple[str, ...], pinned: bool) -> list[tuple[str, ...]]:
    return [names] if pinned else list(itertools.permutations(names))


def _named(order: tuple[str, ...], matrices: Any, biases: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    return dict(zip(order, matrices, strict=True)), {} if biases is None else dict(zip(order, biases, strict=True))


def originals(target: Target) -> dict[str, Tensor]:
    """The target's own tensors, by the names that their copies have."""
    found: dict[str, Tensor] = {}
    for name, thing in target.originals.items():
        if isinstance(thing, Tensor):
            found[name] = thing
        else:
            found |= {
                f"{name}.{inner}" if name else inner: p for inner, p in thing.named_parameters(remove_duplicate=False)
            }
    return found


def listed(target: Target) -> dict[str, list[str]]:
    """Layers that stand several times in one list that repeats them: by a parameter's name, all that it has."""
    found: dict[str, list[str]] = {}
    for name, tensor in target.tensors.items():
        place = re.sub(r"\d+(?=\.[^.]*$)", "*", name)
        alike = [n for n, t in target.tensors.items() if t is tensor and re.sub(r"\d+(?=\.[^.]*$)", "*", n) == place]
        if len(alike) > 1:
            found[name] = alike
    return found
