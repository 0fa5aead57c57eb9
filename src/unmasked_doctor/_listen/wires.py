"""What each head of a call reads, and where its result goes: told by the numbers that go along, and by no name."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from unmasked_doctor._listen.calls import ROLES, Call
from unmasked_doctor._listen.hear import Event, product_of

__all__ = ["Turn", "Wires", "wires_of"]

# Of one head: the layer that it reads, and which of its features.
Reads = tuple[str, tuple[int, ...]]


@dataclass(frozen=True)
class Turn:
    """What is done to a head's vector between its layer and the call.

    Attributes:
        kind: "plain", "turned" by an angle, or "other".
        gain: What its length is multiplied by, or None where that depends on the vector.
        pair: How far the two features that are turned together lie apart.
    """

    kind: str
    gain: float | None
    pair: int | None = None


@dataclass
class Wires:
    """How a call is connected to the layers beside it.

    Attributes:
        reads: For each role and head of the queries, what it reads.
        turns: For query and key, what is done to them in between; of the value, ``value`` tells it.
        viewed: The roles whose heads were split by a view alone.
        torn: The roles whose vectors are put together of several tokens' features, and of none of these all.
        tokens: For each role, whether it is read of "its own" tokens, of "the first item", or of "other tokens".
        own: Whether keys are made of what queries are made of; None where that could not be told.
        raw: The roles that are made of numbers of which another role's are the norm.
        merge: "right", "viewed" (without a transpose), "mixed" (other tokens), or None where no layer follows.
        order: The heads in the order in which the next layer has them.
        folded: Whether what was taken for items are heads: they read the same rows, and other features of these.
        value: What is done to the values between their layer and the call.
        after: What is done to the context before the next layer.
    """

    reads: dict[str, tuple[Reads, ...]] = field(default_factory=dict)
    turns: dict[str, Turn] = field(default_factory=dict)
    viewed: list[str] = field(default_factory=list)
    torn: list[str] = field(default_factory=list)
    tokens: dict[str, str] = field(default_factory=dict)
    own: bool | None = None
    raw: list[str] = field(default_factory=list)
    merge: str | None = None
    order: tuple[int, ...] | None = None
    folded: bool = False
    value: Turn | None = None
    after: Turn | None = None

    @property
    def known(self) -> bool:
        """Whether all of it could be told, and is right."""
        return set(self.reads) == set(ROLES) and self.merge == "right" and set(self.tokens.values()) == {"its own"}


def wires_of(events: list[Event], call: Call, module: str) -> Wires:
    """Follow the numbers of one call back to the layers that made them, and on to the one that reads them."""
    wires, made = Wires(), {}
    for role in ROLES:
        ids = call.sources.get(role)
        if ids is None or not ids.numel():
            continue
        ids = ids[:, :, -call.query.size(2) :] if role == "query" else ids
        source = _source(events, ids)
        if source is None:
            continue
        made[role] = source
        _reads(wires, role, events[source], ids, module)
        if role != "value" and role in wires.reads:
            wires.turns[role] = _turn(events[call.first], ids)
        elif role == "value" and role in wires.reads:
            wires.value = _turn(events[call.place], ids)
    if {"query", "key"} <= made.keys():
        one, other = (events[made[role]].inputs[0] for role in ("query", "key"))
        wires.own = one.shape == other.shape and torch.equal(one, other)
    read = {role: events[source].inputs[0].flatten(0, -2) for role, source in made.items()}
    wires.raw = [role for role, x in read.items() if any(_is_norm_of(y, x) for y in read.values() if y is not x)]
    _merged(wires, events, call)
    return wires


def _is_norm_of(one: Tensor, other: Tensor) -> bool:
    """Whether rows are those of another tensor, normed, times and plus a number for each feature: (rows, features)."""
    rows, width = one.shape
    if one.shape != other.shape or rows < 4 or width < 3 or torch.equal(one, other):
        return False
    plain, two = one.to(torch.float64), other.to(torch.float64)
    normed = [two / two.square().mean(-1, keepdim=True).sqrt(), torch.nn.functional.layer_norm(two, (width,))]
    return not _is_linear(plain, two) and any(_is_linear(plain, each) for each in normed)


def _is_linear(one: Tensor, two: Tensor) -> bool:
    """Whether each feature is a number times another's, plus a number: (rows, features)."""
    one, two = one - one.mean(0), two - two.mean(0)
    slope = (one * two).sum(0) / two.square().sum(0).clamp(min=1e-12)
    return float((one - slope * two).abs().max()) < 1e-3 * float(one.abs().max())  # epsilon moves small ones


def _source(events: list[Event], ids: Tensor) -> int | None:
    """The product that made all of these numbers."""
    number = product_of(events, int(ids.min()))
    if number is None or int(ids.max()) >= events[number].first + events[number].result.numel():
        return None
    return number


def _reads(wires: Wires, role: str, event: Event, ids: Tensor, module: str) -> None:
    items, heads, tokens, dim = ids.shape
    width = event.result.size(-1)
    rows, features = (ids - event.first) // width, (ids - event.first) % width
    count = event.result.numel() // width
    if count == tokens and items > 1 and bool((rows == torch.arange(tokens).view(1, 1, -1, 1)).all()):
        wires.tokens[role] = "its own"  # the same for all items, as learned queries are
        name = _relative(event.module, module)
        wires.reads[role] = tuple((name, tuple(sorted(set(features[0, h, -1].tolist())))) for h in range(heads))
        return
    if count % items or (event.result.dim() != 2 and event.result.size(0) != items):
        return
    each = count // items
    flat = rows[0] * (heads * dim) + features[0] - features[0].min()
    if (
        min(heads, tokens) > 1
        and heads != tokens
        and torch.equal(flat, torch.arange(heads * tokens * dim).view(heads, tokens, dim))
    ):
        wires.viewed.append(role)
        wires.tokens[role] = "other tokens"
    elif bool((rows == rows[..., :1]).all()):
        row = rows[..., 0]
        by_item = torch.arange(items)[:, None, None] * each + (each - tokens) + torch.arange(tokens)
        by_token = torch.arange(items)[:, None, None] + ((each - tokens) + torch.arange(tokens)) * items
        firsts = (row == row[:1]).all() and items > 1
        wires.folded |= bool(firsts) and not torch.equal(features, features[:1].expand_as(features))
        own = any(torch.equal(row, right.expand_as(row)) for right in (by_item, by_token))
        wires.tokens[role] = "its own" if own else "the first item" if firsts else "other tokens"
    else:
        wires.tokens[role] = "other tokens"
        if _torn(rows[0], features[0]):
            wires.torn.append(role)
    name = _relative(event.module, module)
    wires.reads[role] = tuple((name, tuple(sorted(set(features[0, head, -1].tolist())))) for head in range(heads))


def _torn(rows: Tensor, features: Tensor) -> bool:
    """Whether a vector has other features of one token than of another one: (heads, tokens, features)."""
    for row, feature in zip(rows.flatten(0, 1).tolist(), features.flatten(0, 1).tolist(), strict=True):
        if len(set(row)) * len(set(feature)) != len(row):
            return True
    return False


def _turn(product: Event, ids: Tensor) -> Turn:
    facts = product.facts[0]
    for each, origins in zip(product.facts, product.ids, strict=True):
        if origins is not None and int(origins.min()) <= int(ids.min()) and int(origins.max()) >= int(ids.max()):
            facts = each
            break
    gain = None if facts.varied and not facts.turned else float(f"{facts.gain:.4g}")
    if facts.turned:
        return Turn("turned", gain, facts.turned) if facts.turned < ids.size(-1) else Turn("other", gain)
    return Turn("other" if facts.varied else "plain", gain)


def _merged(wires: Wires, events: list[Event], call: Call) -> None:
    """Follow the result to the layer that reads it."""
    event = events[call.place]
    low, high = event.first, event.first + event.result.numel()
    items, heads, tokens, dim = call.context.shape
    places = torch.full((event.result.numel(),), -1)
    places[call.index.reshape(-1)] = torch.arange(call.index.numel())
    for later in events[call.place + 1 :]:
        ids = later.ids[0] if later.kind != "softmax" else None
        if ids is None or int(ids.max()) < low or int(ids.min()) >= high:
            continue
        if int(ids.min()) < low or int(ids.max()) >= high:
            return
        at = places[ids.reshape(-1, ids.size(-1)) - low]
        if int(at.min()) < 0:
            return
        token, head = at // dim % tokens + at // (heads * tokens * dim) * tokens, at // (tokens * dim) % heads
        wires.merge, wires.after = "right", _turn(later, ids)
        rows = torch.arange(len(at))
        by_token = rows % items * tokens + rows // items
        if not bool((token == token[:, :1]).all()):
            flat = rows[:, None] * at.size(1) + torch.arange(at.size(1))
            wires.merge = "viewed" if torch.equal(at, flat) and at.size(1) == heads * dim else "mixed"
        elif len(at) == items * tokens and not any(torch.equal(token[:, 0], right) for right in (rows, by_token)):
            wires.merge = "mixed"
        elif at.size(1) == heads * dim:
            own = head[0].view(heads, dim)
            wires.order = tuple(own[:, 0].tolist()) if bool((own == own[:, :1]).all()) else None
        return


def _relative(name: str, module: str) -> str:
    """A layer's name as seen from a module."""
    parts, beside = name.split("."), module.split(".")
    while parts and beside and parts[0] == beside[0]:
        parts, beside = parts[1:], beside[1:]
    return "/".join([*[".."] * len(beside), *parts])
