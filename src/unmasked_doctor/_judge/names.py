"""What the names of a target say: what each parameter makes, how many heads there are, which layers a list repeats."""

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
# A role with what names put before and after it: `wq`, `to_q`, `q_proj`, `lin_out`.
_CORE = re.compile(
    r"^(?:w|b|to|u|up|d|down|lin|linear|fc|proj|project|weight|bias|mat)??"
    r"(qkv|kv|q|k|v|o|query|key|value|out|output)"
    r"(?:s|w|b|t|proj|projection|lin|linear|layer|mat|bias|weight)??$"
)
_HEADS = ("num_heads", "n_heads", "n_head", "nhead", "nheads", "heads", "num_attention_heads", "head_count", "h", "H")


def role_of(name: str) -> str:
    """Return what a parameter makes, by its name: "query", "key", "value", "out", "qkv", "kv", or "?"."""
    stem = re.sub(r"[._]?(weight|bias)$", "", name) or name
    parts = [part for part in re.split(r"[._\d]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", stem).lower()) if part]
    parts = [match.group(1) if (match := _CORE.match(part)) else part for part in parts]
    for part in reversed(parts):
        for role, words in _WORDS.items():
            if part in words:
                return role
    return "out" if parts and parts[-1] in ("proj", "projection") else "?"


def declared_heads(target: Target) -> int | None:
    """Return how many heads there are, by an attribute of a module or of what is called; None if none says it."""
    modules = [m for module in target.modules.values() for m in module.modules()]
    for owner in [*modules, getattr(target.call, "__self__", target.call)]:
        for name in _HEADS:
            count = vars(owner).get(name) if hasattr(owner, "__dict__") else None
            if isinstance(count, int) and not isinstance(count, bool) and count > 0:
                return count
    return None


def listed(target: Target) -> set[str]:
    """Return the names of the parameters of layers that stand in one list several times."""
    same: dict[tuple[str, int], list[str]] = {}  # names of one tensor that differ in their index in a list alone
    for name, tensor in target.tensors.items():
        same.setdefault((re.sub(r"\d+(?=\.[^.]*$)", "*", name), id(tensor)), []).append(name)
    return {name for names in same.values() if len(names) > 1 for name in names}
