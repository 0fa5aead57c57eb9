"""What names say that a target has: parameters by what they make, a number of heads, layers in lists."""

from __future__ import annotations

import re

from unmasked_doctor._target import Target

__all__ = ["declared_heads", "listed", "role_of"]

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
_HEADS = ("num_heads", "n_heads", "n_head", "nhead", "nheads", "heads", "num_attention_heads", "head_count", "h", "H")


def role_of(name: str) -> str:
    """What a parameter's name says that it makes: a role, "qkv", "kv", or "?"."""
    stem = re.sub(r"[._]?(weight|bias)$", "", name) or name
    tokens = [t for t in re.split(r"[._\d]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", stem).lower()) if t]
    tokens = [m.group(1) if (m := _CORE.match(t)) else t for t in tokens]
    for token in reversed(tokens):
        for role, words in _WORDS.items():
            if token in words:
                return role
    return "out" if tokens and tokens[-1] in ("proj", "projection") else "?"


def declared_heads(target: Target) -> int | None:
    """How many heads an attribute of its modules says that there are."""
    things = [m for module in target.modules.values() for m in module.modules()]
    for thing in [*things, getattr(target.call, "__self__", target.call)]:
        for name in _HEADS:
            count = vars(thing).get(name) if hasattr(thing, "__dict__") else None
            if isinstance(count, int) and not isinstance(count, bool) and count > 0:
                return count
    return None


def listed(target: Target) -> set[str]:
    """Parameters of layers that stand several times in one list that repeats them."""
    places: dict[tuple[str, int], list[str]] = {}
    for name, tensor in target.tensors.items():
        places.setdefault((re.sub(r"\d+(?=\.[^.]*$)", "*", name), id(tensor)), []).append(name)
    return {name for names in places.values() if len(names) > 1 for name in names}
