"""What each head of a call reads, and where its result goes: told by gradients, so that no name has to be trusted."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from unmasked.doctor._heard import Heard

__all__ = ["ROLES", "Turn", "Wires", "wires_of"]

ROLES = ("query", "key", "value")

# Of one head: the layers that it reads, and of each which features.
Reads = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True)
class Turn:
    """What is done to a head's vector between its layer and the call.

    Attributes:
        kind: "plain", "turned" by an angle, or "other".
        gain: What its length is multiplied by, or None where that depends on the vector.
        pair: How far the two features that are turned together lie apart.
        angle: The cosine and the sine, for the last token and the first pair.
    """

    kind: str
    gain: float | None
    pair: int | None = None
    angle: tuple[float, float] | None = None


@dataclass
class Wires:
    """How a call is connected to the layers beside it.

    Attributes:
        reads: For each role and head of the queries, what it reads.
        turns: For query and key, what is done to them in between.
        viewed: The roles whose heads were split by a view alone.
        mixed: The roles whose vectors come from several tokens.
        merge: "right", "viewed" (without a transpose), "mixed" (several tokens), or None where no layer follows.
        order: The heads in the order in which the next layer has them.
    """

    reads: dict[str, tuple[Reads, ...]] = field(default_factory=dict)
    turns: dict[str, Turn] = field(default_factory=dict)
    viewed: list[str] = field(default_factory=list)
    mixed: list[str] = field(default_factory=list)
    merge: str | None = None
    order: tuple[int, ...] | None = None

    @property
    def known(self) -> bool:
        """Whether all of it could be told."""
        return set(self.reads) == set(ROLES) and self.merge is not None


def wires_of(call: Heard) -> Wires:
    """Follow the gradients of one call, whose run kept its graph."""
    wires = Wires()
    if call.trusted:
        return wires
    leaves = [leaf for _, leaf in call.before]
    names = [_relative(name, call.module) for name, _ in call.before]
    for role in ROLES:
        x: Tensor = getattr(call, role)
        if leaves and x.requires_grad:
            _follow(wires, role, x, leaves, names, call.query.size(1))
    if call.context is not None:
        _merged(wires, call)
    return wires


def _follow(wires: Wires, role: str, x: Tensor, leaves: list[Tensor], names: list[str], heads: int) -> None:
    _, own, tokens, dim = x.shape
    generator = torch.Generator().manual_seed(0)

    def back(head: int, token: int, at: Tensor) -> list[Tensor | None]:
        cotangent = torch.zeros_like(x)
        cotangent[0, head, token] = at.to(x)
        return list(torch.autograd.grad(x, leaves, cotangent, retain_graph=True, allow_unused=True))

    reads, places = [], []
    for head in range(own):
        found: list[tuple[str, tuple[int, ...]]] = []
        for name, g in zip(names, back(head, tokens - 1, torch.rand(dim, generator=generator) + 0.5), strict=True):
            if g is not None and (at := g.nonzero()).numel():
                found.append((name, tuple(at[:, -1].unique().tolist())))
                places.append((head, g, {tuple(place) for place in at[:, :-1].tolist()}))
        if not found:
            return
        reads.append(tuple(found))
    if any(len(where) > 1 for _, _, where in places):
        wires.mixed.append(role)
        if _is_viewed(x, back, leaves):
            wires.viewed.append(role)
    wires.reads[role] = tuple(reads[head * own // heads] for head in range(heads))
    if role != "value" and role not in wires.mixed:
        wires.turns[role] = _turn(back, tokens, dim, generator)


def _is_viewed(x: Tensor, back: object, leaves: list[Tensor]) -> bool:
    """Whether each head reads just what it gets of a layer's output by a view: the right numbers of the wrong token."""
    _, own, tokens, dim = x.shape
    supports = []
    for head, token in [(head, token) for head in range(own) for token in (0, tokens - 1)]:
        found = [g for g in back(head, token, torch.ones(dim)) if g is not None and g.any()]  # type: ignore[operator]
        if len(found) != 1 or found[0].dim() != 3:
            return False
        supports.append((head, token, found[0][0]))
    first = min(int(g.nonzero()[:, 1].min()) for _, _, g in supports)
    for head, token, g in supports:
        width = own * dim
        begin = (head * tokens + token) * dim
        seen = (g[:, first : first + width] != 0).flatten().nonzero().flatten()
        outside = g.count_nonzero() - len(seen)
        if outside or not begin <= int(seen.min()) <= int(seen.max()) < begin + dim:
            return False
    return True


def _turn(back: object, tokens: int, dim: int, generator: torch.Generator) -> Turn:
    def length(at: Tensor) -> float:
        every = back(0, tokens - 1, at)  # type: ignore[operator]
        return float(torch.stack([g.double().norm() for g in every if g is not None]).norm() / at.norm())

    gains = [length(torch.randn(dim, generator=generator)) for _ in range(3)]
    gain = gains[0] if max(gains) - min(gains) < 1e-4 * max(gains) else None
    one = torch.zeros(dim)
    one[0] = 1.0
    first = [g for g in back(0, tokens - 1, one) if g is not None and g.any()]  # type: ignore[operator]
    if len(first) != 1 or gain is None:
        return Turn("other", gain)
    values = first[0].flatten()
    at = values.nonzero().flatten()
    if len(at) == 1:
        return Turn("plain", gain)
    if len(at) != 2:
        return Turn("other", gain)
    cosine, sine = (round(float(values[i]) / gain, 4) for i in at)
    return Turn("turned", gain, int(at[1] - at[0]), (cosine, sine))


def _merged(wires: Wires, call: Heard) -> None:
    """Follow the result to the layer that reads it."""
    assert call.context is not None
    for read in call.after:
        if not read.requires_grad or read.dim() < 2:
            continue
        rows = read.flatten(0, -2)
        cotangent = torch.zeros_like(rows)
        cotangent[0] = 1
        (g,) = torch.autograd.grad(rows, call.context, cotangent, retain_graph=True, allow_unused=True)
        if g is None:
            continue
        _, heads, tokens, dim = call.lay(g).shape
        wires.merge = "right"
        viewed = read.shape[-1] == heads * dim and read.dim() == 3 and read.size(1) == tokens
        for row in {0, tokens // 2, tokens - 1}:
            cotangent = torch.zeros_like(rows)
            cotangent[row] = 1
            (g,) = torch.autograd.grad(rows, call.context, cotangent, retain_graph=True, allow_unused=True)
            laid = call.lay(g)
            at = laid.nonzero()
            if len({(b, t) for b, _, t, _ in at.tolist()}) > 1:
                wires.merge = "mixed"
            begin, flat = row * heads * dim, laid[0].flatten().nonzero().flatten()
            viewed = viewed and len(flat) == heads * dim and int(flat.min()) == begin
            viewed = viewed and int(flat.max()) == begin + heads * dim - 1
        if wires.merge == "mixed" and viewed:
            wires.merge = "viewed"
        if wires.merge == "right" and read.shape[-1] == heads * dim:
            wires.order = _order(rows, call, heads, dim)
        return


def _order(rows: Tensor, call: Heard, heads: int, dim: int) -> tuple[int, ...] | None:
    assert call.context is not None
    order = []
    for head in range(heads):
        cotangent = torch.zeros_like(rows)
        cotangent[0, head * dim : (head + 1) * dim] = 1
        (g,) = torch.autograd.grad(rows, call.context, cotangent, retain_graph=True, allow_unused=True)
        found = call.lay(g).nonzero()[:, 1].unique().tolist()
        if len(found) != 1:
            return None
        order.append(found[0])
    return tuple(order)


def _relative(name: str, module: str) -> str:
    """A layer's name as seen from a module."""
    parts, beside = name.split("."), module.split(".")
    while parts and beside and parts[0] == beside[0]:
        parts, beside = parts[1:], beside[1:]
    return "/".join([*[".."] * len(beside), *parts])
