"""Which products and softmaxes are one call of attention, and all that goes through it in one layout."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from unmasked_doctor._listen.hear import Event, Facts, product_of

__all__ = ["LAYOUTS", "PLURAL", "ROLES", "Call", "Match", "calls_of", "joined", "laid", "layout_of", "matches_in"]

ROLES = ("query", "key", "value")
PLURAL = {"query": "queries", "key": "keys", "value": "values"}
# How a product's batches and rows are items, heads and queries: whether heads come first, and where those that are
# folded into the rows stand.
LAYOUTS = (("items first", "queries first"), ("heads first", "queries first"), ("items first", "heads first"))


@dataclass(frozen=True)
class Match:
    """A product of weights and values, the softmax before it, and the product before that.

    Attributes:
        start, at, place: Numbers of the three events; ``at`` is ``place`` where no softmax was heard.
        weights, value, context: (batch, rows, keys), (batch, keys, features) and (batch, rows, features).
        numbers: For each weight, the id of its score in the product of query and key, or -1.
        places: Where each number of the context stands in the event's result.
        query, key: (batch, rows, features), as they were multiplied.
        sources: For query, key and value, the numbers that theirs came from, laid out as they are; None if unknown.
        swapped: Whether the keys stood on the left of their product.
        facts: What was done to the weights after the softmax.
    """

    start: int
    at: int
    place: int
    weights: Tensor
    value: Tensor
    context: Tensor
    numbers: Tensor
    places: Tensor
    query: Tensor
    key: Tensor
    sources: dict[str, Tensor | None]
    swapped: bool
    facts: Facts

    @property
    def rows(self) -> Tensor:
        """The number of the query of each row of weights, among those of all batches: (batch, rows)."""
        number, queries, keys = self.numbers.amax(-1), self.query.size(1), self.key.size(1)
        if self.swapped:
            return number // (queries * keys) * queries + number % queries
        return number // keys


def matches_in(events: list[Event]) -> Iterator[Match]:
    """Find what averages values by weights that were made of a product of two tensors."""
    for place, event in enumerate(events):
        if event.kind != "product":
            continue
        for side in (0, 1):
            ids = event.ids[side]
            if ids is None or (one := _one(events, place, side)) is None:
                continue
            yield one
            break


def _three(x: Tensor) -> Tensor:
    return x if x.dim() == 3 else x[None]


def _axes(ids: Tensor | None, *, turn: bool = False) -> Tensor | None:
    return None if ids is None else _three(ids).mT if turn else _three(ids)


def _one(events: list[Event], place: int, side: int) -> Match | None:
    event, facts = events[place], events[place].facts[side]
    ids = event.ids[side]
    assert ids is not None
    known = ids[ids >= 0]
    if not known.numel():
        return None
    start = product_of(events[:place], int(known.min()))
    if start is None or int(known.max()) >= events[start].first + events[start].result.numel():
        return None
    first = events[start]
    at = facts.softmax if facts.softmax is not None else place
    if at == place and (facts.turned or not _by_hand(event.inputs[side], first)):
        return None
    weights, value = _three(event.inputs[side]), _three(event.inputs[1 - side])
    numbers, places = _three(ids) - first.first, torch.arange(event.result.numel()).view(_three(event.result).shape)
    numbers = numbers.masked_fill(_three(ids) < 0, -1)
    context = _three(event.result)
    if side:
        weights, numbers, value, context, places = (x.mT for x in (weights, numbers, value, context, places))
    left, right = _three(first.inputs[0]), _three(first.inputs[1]).mT
    columns = right.size(1)
    across = _varies(numbers, lambda n: n % columns), _varies(numbers, lambda n: n // columns % left.size(1))
    if across not in ((True, False), (False, True)):
        return None
    query, key = (left, right) if across[0] else (right, left)
    made = (_axes(first.ids[0]), _axes(first.ids[1], turn=True), _axes(event.ids[1 - side], turn=side == 1))
    roles = ROLES if across[0] else ("key", "query", "value")
    sources = dict(zip(roles, made, strict=True))
    return Match(start, at, place, weights, value, context, numbers, places, query, key, sources, not across[0], facts)


def _by_hand(weights: Tensor, first: Event) -> bool:
    """Whether weights that no softmax made can be exponentials: of a product whose factors are no parameters."""
    kept = isinstance(first.matrix, torch.nn.Parameter) or (first.matrix is not None and first.matrix.requires_grad)
    return not kept and first.inputs[0].dim() == 3 and bool(weights.isfinite().all())


def _varies(numbers: Tensor, of: Any) -> bool:
    """Whether a coordinate of the product runs along the last axis."""
    coordinate, known = of(numbers), numbers >= 0
    high = coordinate.masked_fill(~known, -1).amax(-1)
    low = coordinate.masked_fill(~known, coordinate.max()).amin(-1)
    return bool((high > low).any())


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call of attention in a forward pass: every tensor as (batch, heads, tokens, ...), of one layout.

    Attributes:
        query: The queries as they were multiplied: (batch, heads, queries, features).
        key: The keys likewise: (batch, heads, keys, features).
        product: Query times key: (batch, heads, queries, keys).
        scores: The argument of the softmax.
        over: The axis of the softmax: "keys", "queries" or "other". Of weights that no softmax of PyTorch made, the
            axis along which they sum to one: one of these, or "heads", "all queries and keys", "nothing"; or
            "logarithms", if their exponentials do.
        softmax: The result of the softmax.
        weights: The weights that multiplied the values.
        value: (batch, heads, keys, features).
        context: (batch, heads, queries, features).
        copied: Whether keys had an axis of heads as long as the queries', and were not shared by broadcasting.
        sinks: Whether columns were added to the scores that no key has.
        cut: Whether weights of some keys meet no value.
        booleans: Whether a boolean tensor was added to the scores.
        dropout: The probability with which weights were dropped.
        gain: The product of single numbers that query and key were multiplied by just before their product.
        first: The index of the event that gave the product of query and key.
        at: The index of the softmax's event; that of ``place`` where no softmax of PyTorch was heard.
        place: The index of the event that gave the context.
        numbers: Where each number of the product stands in its event's result.
        index: Where each number of the context stands in its event's result.
        sources: For query, key and value, the ids of the numbers that each of theirs came from; None if unknown.
    """

    query: Tensor
    key: Tensor
    product: Tensor
    scores: Tensor
    over: str
    softmax: Tensor
    weights: Tensor
    value: Tensor
    context: Tensor
    copied: bool
    sinks: bool
    cut: bool
    booleans: bool
    dropout: float
    gain: float
    first: int
    at: int
    place: int
    numbers: Tensor
    index: Tensor
    sources: dict[str, Tensor | None] = field(default_factory=dict)

    @property
    def used(self) -> frozenset[int]:
        """The indices of its three events."""
        return frozenset({self.first, self.at, self.place})

    @property
    def tokens_own(self) -> tuple[Tensor, Tensor]:
        """At which places keys, and values, differ from item to item, as what tokens make does."""
        key, value = ((x - x[:1]).abs().amax((0, 1, 3)) > 0 for x in (self.key, self.value))
        return key, value


def calls_of(events: list[Event], sizes: tuple[int, int, int], layout: int = 0) -> list[Call]:
    """Lay out each call of attention in one of `LAYOUTS`; the sizes are those of items, queries and keys."""
    calls: list[Call] = []
    for match in matches_in(events):
        call = _laid(events, match, sizes, layout)
        if call is not None:
            calls = [*(other for other in calls if other.place != call.place), call]
    real = [call for call in calls if call.at != call.place]
    return real or calls


def layout_of(events: list[Event], sizes: tuple[int, int, int], match: Match | None = None) -> int | None:
    """The layout that the axes of the first softmax tell; None where items and queries have none of their own."""
    items, queries, _ = sizes
    match = match or next((each for each in matches_in(events) if each.at != each.place and not each.swapped), None)
    ids = None if match is None or match.swapped else events[match.at].ids[0]
    if match is None or ids is None:
        return None
    columns, rows = match.key.size(1), match.query.size(1)
    steps: dict[int, int] = {}
    for axis, size in enumerate(ids.shape):
        if size in (items, queries) and size > 1 and axis != events[match.at].axis:
            steps.setdefault(size, int((ids.select(axis, 1) - ids.select(axis, 0)).flatten()[0]))
    if not {items, queries} <= steps.keys():
        return None
    if steps.get(items) == rows * columns and match.query.size(0) > items:
        return 1
    return 2 if steps.get(queries) == columns and rows > queries else 0


def laid(events: list[Event], match: Match, sizes: tuple[int, int, int]) -> Call | None:
    """Lay out one call, in the layout that its axes tell."""
    return _laid(events, match, sizes, layout_of(events, sizes, match) or 0)


def _laid(events: list[Event], match: Match, sizes: tuple[int, int, int], layout: int) -> Call | None:
    items, queries, keys = sizes
    first = events[match.start]
    batch, rows, columns = *match.query.shape[:2], match.key.size(1)
    if columns < keys or rows % queries or batch % items:
        return None
    where = _rows(batch, rows, items, queries, layout)  # (items, heads, queries): batch * rows + row
    number = where[..., None] * columns + torch.arange(columns)
    if match.swapped:
        number = (where // rows)[..., None] * rows * columns + torch.arange(columns) * rows + (where % rows)[..., None]
    product = _three(first.result).reshape(-1)[number]
    at = _inverse(match.numbers, first.result.numel())
    place = at[number]
    cut = bool((place < 0).any())
    if cut and bool((place < 0).all(-1).any()):
        return None
    weights = match.weights.reshape(-1)[place.clamp(min=0)].masked_fill(place < 0, 0.0)
    inner = match.weights.size(-1)
    from_row = place.amax(2)  # of any query that has one
    block, column = from_row // (match.weights.size(1) * inner), from_row % inner
    laid_out: dict[str, Callable[[Tensor], Tensor]] = {
        "query": lambda x: x.flatten(0, 1)[where],
        "key": lambda x: x[where[..., 0] // rows],
        "value": lambda x: x[block.clamp(min=0), column.clamp(min=0)],
    }
    query, key, value = (laid_out[role](getattr(match, role)) for role in laid_out)
    sources = {role: None if x is None else laid_out[role](x) for role, x in match.sources.items()}
    row = place.amax(-1) // inner
    context, index = (x.flatten(0, 1)[row] for x in (match.context, match.places))
    if match.at == match.place:
        scores, over = _logarithms(weights)
        if not over:
            return None
        softmax, sinks, booleans = weights, False, False
    else:
        soft = events[match.at]
        ids = soft.ids[0]
        assert ids is not None
        numbers = ids - first.first
        numbers = numbers.masked_fill((ids < 0) | (numbers >= first.result.numel()), -1)  # some of another product
        laid = _inverse(numbers, first.result.numel())[number]
        if bool((laid < 0).any()):
            return None
        scores, softmax = soft.inputs[0].reshape(-1)[laid], soft.result.reshape(-1)[laid]
        over = _over(numbers, soft.axis, first, match)
        sinks = soft.axis == numbers.dim() - 1 and bool(((numbers >= 0).sum(-1) < numbers.size(-1)).all())
        booleans = soft.facts[0].booleans
    return Call(
        query=query,
        key=key,
        product=product,
        scores=scores,
        over=over,
        softmax=softmax,
        weights=weights,
        value=value,
        context=context,
        copied=match.key.size(0) == batch,
        sinks=sinks,
        cut=cut,
        booleans=booleans,
        dropout=match.facts.dropout,
        gain=math.prod(facts.gain for facts in first.facts),
        first=match.start,
        at=match.at,
        place=match.place,
        numbers=number,
        index=index,
        sources=sources,
    )


def _rows(batch: int, rows: int, items: int, queries: int, layout: int) -> Tensor:
    """Where each query of each head of each item stands among the rows of all batches."""
    outer, inner = LAYOUTS[layout]
    more = rows // queries
    number = torch.arange(batch * rows)
    groups = (items, batch // items) if outer == "items first" else (batch // items, items)
    within = (queries, more) if inner == "queries first" else (more, queries)
    laid = number.view(*groups, *within)
    if outer == "heads first":
        laid = laid.transpose(0, 1)
    laid = laid.transpose(2, 3) if inner == "queries first" else laid  # items heads more queries
    return laid.flatten(1, 2)


def _inverse(numbers: Tensor, count: int) -> Tensor:
    """Where each number of the product is found."""
    at = torch.full((count,), -1)
    flat = numbers.reshape(-1)
    known = (flat >= 0).nonzero().flatten()
    at[flat[known]] = known
    return at


def _over(numbers: Tensor, axis: int, first: Event, match: Match) -> str:
    """Over which axis of the layout a softmax ran."""
    columns = first.result.size(-1)
    along = numbers.movedim(axis, -1)
    varies = [_varies(along, of) for of in (lambda n: n % columns, lambda n: n // columns % first.result.size(-2),
                                            lambda n: n // (columns * first.result.size(-2)))]  # fmt: skip
    keys, queries = (varies[1], varies[0]) if match.swapped else (varies[0], varies[1])
    axes = [name for name, does in (("keys", keys), ("queries", queries), ("other", varies[2])) if does]
    return axes[0] if len(axes) == 1 else "other"


def _logarithms(weights: Tensor) -> tuple[Tensor, str]:
    """The scores of which these weights are exponentials, and over what they sum to one; "" where they are none."""

    def sums(x: Tensor, *axes: int) -> bool:
        total = x.sum(axes)
        return bool((total - 1).abs().max() < (1e-8 if x.dtype == torch.float64 else 1e-4))

    if bool((weights > 0).any()) and bool((weights >= 0).all()):
        scores = weights.log()
    elif bool((weights <= 0).all()) and sums(weights.exp(), -1):
        return weights, "logarithms"
    else:
        return weights, ""
    for axes, name in (((-1,), "keys"), ((-2,), "queries"), ((-3,), "heads"), ((-2, -1), "all queries and keys")):
        if sums(weights, *axes):
            return scores, name
    return scores, "nothing"


def joined(calls: list[Call]) -> Call:
    """Several calls as one: heads of a list stand side by side."""
    if len(calls) == 1:
        return calls[0]
    names = ("query", "key", "product", "scores", "softmax", "weights", "value", "context")
    together: dict[str, Any] = {name: torch.cat([getattr(call, name) for call in calls], 1) for name in names}
    return replace(calls[0], **together)
