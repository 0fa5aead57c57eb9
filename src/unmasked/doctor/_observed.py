"""Looking inside: the products and softmaxes of a forward pass, and which of them are one call of attention."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from unmasked.watching import heard as _calls

__all__ = ["Call", "Event", "Recorder", "calls_of", "observed"]

_PAIRS = {torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm, torch.mm, Tensor.mm}
_ADDED = {torch.baddbmm, Tensor.baddbmm}
_TAKING = {F.linear, F.conv1d, torch.conv1d, F.conv2d, torch.conv2d, torch.addmm, torch.layer_norm}


@dataclass
class Event:
    """A product of two tensors, with a name for each axis; a softmax; or a layer that takes a tensor.

    Attributes:
        kind: "product", "softmax" or "taking".
        given: The tensors that went in.
        result: What came out.
        axes: Of a product: the names of the axes of left, right and result. Of a softmax: the axis it ran over.
        matrix: What a product or a layer multiplies by, where the target has it.
    """

    kind: str
    given: tuple[Tensor, ...]
    result: Tensor
    axes: Any = None
    matrix: Tensor | None = None


class Recorder(_calls.Listener):
    """Hears every product and every softmax, and may put other results in the place of some.

    Args:
        put: By the number of an event, what its result is to become.
    """

    def __init__(self, put: Mapping[int, Callable[[Tensor], Tensor]] | None = None) -> None:
        super().__init__({})
        self.put = put or {}
        self.events: list[Event] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _calls.MHA:
            with self:
                return _calls._OPENED(*args, **kwargs)
        if func is _calls.SDPA:
            with self:
                return _written_out(*args, **kwargs)
        if func is getattr(torch.ops.higher_order, "flex_attention", None):
            return self._flex(*args)
        if func in _calls.SOFTMAXES:
            given, axis = _argument(args, kwargs, 0, "input"), _argument(args, kwargs, 1, "dim")
            kept = given.detach().clone()
            result = func(*args, **kwargs)
            return self._note("softmax", (kept,), result, int(-1 if axis is None else axis) % max(kept.dim(), 1))
        if func in _PAIRS or func in _ADDED:
            place = 1 if func in _ADDED else 0
            names = ("batch1", "batch2") if func in _ADDED else ("mat2", "other")
            left = _argument(args, kwargs, place, "batch1" if place else "input")
            right = _argument(args, kwargs, place + 1, *names)
            if isinstance(left, Tensor) and isinstance(right, Tensor) and min(left.dim(), right.dim()) > 1:
                result = func(*args, **kwargs)
                raw = left @ right if place else result
                made = self._note("product", (left, right), raw, _axes(left, right))
                return result if place else made
        if func is torch.einsum and len(args) > 2 and isinstance(args[0], str):
            equation = _spelled_out(args[0].replace(" ", ""), args[1:])
            if equation is not None:
                return self._einsum(equation, args[1:])
        first = _argument(args, kwargs, 0, "input") if func in _TAKING else None
        if isinstance(first, Tensor) and (func is not torch.addmm or len(args) > 1):
            kept = first.detach()
            matrix = _argument(args, kwargs, 2, "mat2") if func is torch.addmm else _argument(args, kwargs, 1, "weight")
            taken = args[1].detach() if func is torch.addmm else kept
            return self._note("taking", (taken,), func(*args, **kwargs), matrix=matrix)
        return func(*args, **kwargs)

    def _note(
        self, kind: str, given: tuple[Tensor, ...], result: Tensor, axes: Any = None, matrix: Tensor | None = None
    ) -> Tensor:
        change = self.put.get(len(self.events))
        made = result if change is None else change(result.to("cpu")).to(result.device)
        kept = tuple(x.detach().to("cpu") for x in given)
        matrix = given[1] if kind == "product" else matrix
        self.events.append(Event(kind, kept, made.detach().clone().to("cpu"), axes, matrix))
        return made

    def _einsum(self, equation: str, operands: tuple[Tensor, ...]) -> Tensor:
        taken, _, given = equation.replace(" ", "").partition("->")
        terms = taken.split(",")
        if (not given and "->" not in equation) or len(terms) != len(operands):
            return torch.einsum(equation, *operands)
        result, term = operands[0], terms[0]
        for place, (other, right) in enumerate(zip(operands[1:], terms[1:], strict=True), 2):
            later = "".join(terms[place:]) + given
            kept = given if place == len(terms) else "".join(dict.fromkeys(c for c in term + right if c in later))
            axes = (term, right, kept)
            result = self._note(
                "product", (result, other), torch.einsum(f"{term},{right}->{kept}", result, other), axes
            )
            term = kept
        return result

    def _flex(self, query: Tensor, key: Tensor, value: Tensor, *more: Any) -> Any:
        score_mod, block_mask, scale, _, *buffers = more
        values = {"query": query, "key": key, "value": value, "flex": (score_mod, block_mask, scale, {}, *buffers)}
        groups = query.size(1) // key.size(1)
        if groups > 1:
            key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        scores = _calls._flex_scores(values)
        with self:
            torch.matmul(query, key.mT)
            context = torch.matmul(torch.softmax(scores, -1), value)
        return context, scores.logsumexp(-1), scores.amax(-1)


def observed(run: Callable[[], Any], put: Mapping[int, Callable[[Tensor], Tensor]] | None = None) -> list[Event]:
    """Run and note what happens."""
    recorder = Recorder(put)
    with _calls.listening(recorder):
        run()
    return recorder.events


def _spelled_out(equation: str, operands: tuple[Any, ...]) -> str | None:
    """Give the axes of an ellipsis names, if there is one."""
    if "." not in equation:
        return equation
    taken, arrow, given = equation.partition("->")
    terms = taken.split(",")
    if not arrow or len(terms) != len(operands) or not all(isinstance(x, Tensor) for x in operands):
        return None
    counts = [x.dim() - len(t.replace("...", "")) for x, t in zip(operands, terms, strict=True) if "..." in t]
    names = [c for c in "ABCDEFGH" if c not in equation][: max(counts, default=0)]
    dotted = iter(counts)
    for at, term in enumerate(terms):
        if "..." in term:
            count = next(dotted)
            terms[at] = term.replace("...", "".join(names[len(names) - count :]))
    return ",".join(terms) + "->" + given.replace("...", "".join(names))


def _argument(args: Any, kwargs: Any, place: int, *names: str) -> Any:
    if len(args) > place:
        return args[place]
    return next((kwargs[name] for name in names if name in kwargs), None)


def _axes(left: Tensor, right: Tensor) -> tuple[str, str, str]:
    """Name the axes of a matrix product as einsum would: x y z are rows, sum and columns."""
    names = "abcdefgh"[: max(left.dim(), right.dim()) - 2]
    return names[len(names) - left.dim() + 2 :] + "xy", names[len(names) - right.dim() + 2 :] + "yz", names + "xz"


def _written_out(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
                 is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False) -> Tensor:  # fmt: skip
    """PyTorch's function in steps that can be heard."""
    groups = query.size(-3) // key.size(-3) if enable_gqa else 1
    if groups > 1:
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    scores = torch.matmul(query, key.mT) * (query.size(-1) ** -0.5 if scale is None else scale)
    if is_causal:
        shut = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(shut, -math.inf)
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    weights = torch.softmax(scores, -1)
    if attn_mask is not None:
        weights = weights.masked_fill((scores == -math.inf).all(-1, keepdim=True), 0.0)
    return torch.matmul(F.dropout(weights, dropout_p), value)


@dataclass
class Call:
    """One call of attention in a forward pass: every tensor as (batch, heads, tokens, ...), of one layout.

    Attributes:
        query: (batch, heads, queries, features), as it was multiplied.
        key: The same for the keys.
        product: Query times key: (batch, heads, queries, keys).
        scores: What the softmax took.
        over: Over what it ran: "keys", "queries", "other", or "unknown" where its axes were moved; of weights
            that no softmax of PyTorch made, over what they sum to one: these, or "heads", "all queries and keys",
            "nothing"; or "logarithms", if these sum to one.
        softmax: What it gave.
        weights: What the values were multiplied by.
        value: (batch, heads, keys, features).
        context: (batch, heads, queries, features).
        copied: Whether keys had an axis of heads as long as the queries', and were not shared by broadcasting.
        others: What else the softmax gave, where columns were added to the scores for sinks: other columns as many.
        at: The number of the softmax; that of ``place`` where there was none of PyTorch's.
        out: Where each number of the product stands in its event's result.
        place: The number of the event that gave the context.
        index: Where each number of the context stands in that event's result.
        first: The number of the first event of the call.
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
    others: list[Tensor]
    at: int
    out: Tensor
    place: int
    index: Tensor
    first: int
    used: set[int] = field(default_factory=set)


def calls_of(
    events: list[Event], sizes: tuple[int, int, int], *, turned: bool = False, added: bool = False
) -> list[Call]:
    """Find each softmax between two products, and bring what it takes and gives into one layout.

    The sizes are those of items, queries and keys. Where one axis holds heads and items, ``turned`` says that the heads
    come first; ``added`` that the scores are the sum of two products.
    """
    found: list[Call] = []
    for at, event in enumerate(events):
        if event.kind == "softmax":
            call = _call(events, at, sizes, turned, added)
            if call is not None:  # of several softmaxes before one average, the last gives the weights
                found = [other for other in found if other.place != call.place] + [call]
    return found or _by_hand(events, sizes, turned)


def _by_hand(events: list[Event], sizes: tuple[int, int, int], turned: bool) -> list[Call]:
    """Find products that nothing but exponentials stands between: weights that are made without PyTorch's softmax.

    Their logarithms are taken for the scores, and the weights for what a softmax gave.
    """
    items, queries, keys = sizes
    products = [i for i, e in enumerate(events) if e.kind == "product"]
    found: list[Call] = []
    for start, end in itertools.pairwise(products):
        first, last = events[start], events[end]
        made = _product(first, items, queries, keys, turned)
        if made is None:
            continue
        (query, key, out), copied = made
        for place in (0, 1):
            taken = _context(last, place, items, queries, keys, turned, 0)
            if taken is None or taken[0].shape != out.shape:
                continue
            weights, value, index = taken
            scores, over = _logarithms(weights)
            if over:
                product, context = first.result.reshape(-1)[out], last.result.reshape(-1)[index]
                found.append(Call(query, key, product, scores, over, weights, weights, value, context, copied, [],
                                  end, out, end, index, start, {start, end}))  # fmt: skip
                break
    return found


def _logarithms(weights: Tensor) -> tuple[Tensor, str]:
    """The scores of which these weights are exponentials, and over what they sum to one; "" where they are none."""

    def sums(x: Tensor, *axes: int) -> bool:
        total = x.sum(axes)
        return bool((total - 1).abs().max() < (1e-8 if x.dtype == torch.float64 else 1e-4))

    scores = weights
    if bool((weights > 0).any()) and bool((weights >= 0).all()):
        scores = weights.log()
    elif bool((weights <= 0).all()) and sums(weights.exp(), -1):
        return scores, "logarithms"
    else:
        return scores, ""
    for axes, name in (((-1,), "keys"), ((-2,), "queries"), ((-3,), "heads"), ((-2, -1), "all queries and keys")):
        if sums(weights, *axes):
            return scores, name
    return scores, "nothing"


def _call(events: list[Event], at: int, sizes: tuple[int, int, int], turned: bool, added: bool) -> Call | None:
    scores = events[at].given[0]
    products = [i for i, e in enumerate(events) if e.kind == "product"]
    extra = 0
    before = [i for i in reversed(products) if i < at and events[i].result.numel() == scores.numel()]
    if not before:  # columns appended to the scores
        rows = scores.numel() // max(scores.size(-1), 1)
        for extra in (1, 2, 4):
            count = rows * (scores.size(-1) - extra)
            before = [i for i in reversed(products) if i < at and events[i].result.numel() == count]
            if before:
                break
        if not before or scores.shape[:-1] != events[before[0]].result.shape[:-1]:
            return None
    numel = events[before[0]].result.numel()
    after = [i for i in products if i > at and any(g.numel() in (numel, scores.numel()) for g in events[i].given)]
    if not after:
        return None
    for end in after[:2]:
        found = [_joined(events, start, at, end, sizes, turned, extra) for start in before[:2]]
        calls = [call for call in found if call is not None]
        if added and len(calls) == 2 and calls[0].product.shape == calls[1].product.shape:
            one, two = calls
            query, key = torch.cat([two.query, one.query], -1), torch.cat([two.key, one.key], -1)
            product = one.product + two.product
            return replace(two, query=query, key=key, product=product, used=one.used | two.used)
        if calls and not added:
            return calls[0]
    return None


def _joined(
    events: list[Event], start: int, at: int, end: int, sizes: tuple[int, int, int], turned: bool, extra: int
) -> Call | None:
    items, queries, keys = sizes
    first, last = events[start], events[end]
    scores, softmax, axis = events[at].given[0], events[at].result, events[at].axes
    number = max(scores.size(-1) - extra, 1)
    starts = [0, extra] if extra else [0]
    parts = [scores[..., start : start + number] for start in starts]
    weights_of = [softmax[..., start : start + number] for start in starts]
    if extra and axis != scores.dim() - 1:
        return None
    likeness = [_likeness(first.result, part) for part in parts]
    at_start = likeness.index(max(likeness))
    scores, softmax = parts[at_start], weights_of.pop(at_start)
    if scores.dim() == first.result.dim() and scores.shape != first.result.shape:  # its axes may have been moved
        orders = [order for order in itertools.permutations(range(scores.dim()))
                  if scores.permute(order).shape == first.result.shape]  # fmt: skip
        if orders:
            alike = {order: _likeness(first.result, scores.permute(order)) for order in orders}
            order = max(orders, key=lambda order: (alike[order] > 0.99, order[-2] < order[-1], alike[order]))
            scores, softmax, axis = scores.permute(order), softmax.permute(order), order.index(axis)
            weights_of = [other.permute(order) for other in weights_of]
    more = max(first.result.size(-1), first.result.size(-2)) if first.result.dim() > 1 else keys
    counts = [(queries, keys)] + ([(queries, more)] if more not in (queries, keys) else [])
    for n_queries, n_keys in counts:
        made = _product(first, items, n_queries, n_keys, turned)
        if made is None:
            continue
        (query, key, out), copied = made
        if scores.numel() != first.result.numel():
            continue

        def lay(x: Tensor, places: Tensor = out) -> Tensor:
            return x.reshape(-1)[places]

        over = _over(scores, axis, first.result.shape, out)
        for place in (0, 1):
            taken = _context(last, place, items, n_queries, n_keys, turned, extra)
            if taken is None:
                continue
            weights, value, index = taken
            laid = lay(softmax)
            if weights.shape != laid.shape:
                continue
            turned_round = n_queries == n_keys and torch.equal(weights, laid.mT)
            # Where all tokens are alike, both may hold to the last bit: then the softmax tells which are the keys.
            if turned_round and (over == "queries" or not torch.equal(weights, laid)):
                query, key, over = key, query, {"keys": "queries", "queries": "keys"}.get(over, over)
                out = out.mT
            return Call(query, key, first.result.reshape(-1)[out], scores.reshape(-1)[out], over,
                        softmax.reshape(-1)[out], weights, value, last.result.reshape(-1)[index], copied,
                        [lay(other) for other in weights_of], at, out, end, index, start, {start, at, end})  # fmt: skip
    return None


def _likeness(product: Tensor, scores: Tensor) -> float:
    """How much scores go with products, where they can be compared."""
    if product.numel() != scores.numel():
        return -1.0
    a, b = product.reshape(-1), scores.reshape(-1)
    shown = b.isfinite() & (b > -1e3)
    a, b = a[shown] - a[shown].mean(), b[shown] - b[shown].mean()
    return float((a * b).sum().abs() / (a.norm() * b.norm()).clamp(min=1e-30)) if bool(shown.any()) else -1.0


def _over(scores: Tensor, axis: int, shape: torch.Size, out: Tensor) -> str:
    """Over which axis of the layout an axis of the scores runs."""
    if scores.dim() < 2:
        return "other"
    if scores.shape[-2:] != shape[-2:]:
        return "unknown"  # what was done to its axes on the way is not known
    number = torch.arange(scores.size(axis)).view(-1, *[1] * (scores.dim() - 1 - axis)).expand(scores.shape)
    laid = number.reshape(-1)[out]
    for name, dim in (("keys", -1), ("queries", -2)):
        if laid.size(dim) == scores.size(axis) and (laid.movedim(dim, -1) == torch.arange(laid.size(dim))).all():
            return name
    return "other"


def _product(event: Event, items: int, queries: int, keys: int, turned: bool) -> Any:
    """Bring queries, keys and where their products stand into one layout."""
    left, right = event.given
    names, r, o = event.axes
    sizes = dict(zip(names, left.shape, strict=True))
    for name, size in zip(r, right.shape, strict=True):
        sizes[name] = max(sizes.get(name, 1), size)
    summed = [c for c in names if c in r and c not in o]
    own = [[c for c in mine if c not in other and c in o] for mine, other in ((names, r), (r, names))]
    rows, columns = ([c for c in own[i] if sizes[c] == n] for i, n in ((0, queries), (1, keys)))
    swapped = False
    if not (len(rows) == 1 and len(columns) == 1):
        rows, columns = ([c for c in own[i] if sizes[c] == n] for i, n in ((1, queries), (0, keys)))
        swapped = True
    if not (len(rows) == 1 and len(columns) == 1 and summed):
        return None
    row, column = rows[0], columns[0]
    groups = [c for c in o if c not in (row, column)]
    q_side, k_side = ((right, r), (left, names)) if swapped else ((left, names), (right, r))
    query = _arranged(*q_side, groups, [[row], summed], sizes, items, turned)
    key = _arranged(*k_side, groups, [[column], summed], sizes, items, turned)
    out = _places(event.result.shape, o, groups, [[row], [column]], sizes, items, turned)
    if query is None or key is None or out is None:
        return None
    copied = k_side[0].numel() * query.size(2) == q_side[0].numel() * key.size(2) and query.size(1) > 1
    return (query, key, out), copied


def _context(event: Event, place: int, items: int, queries: int, keys: int, turned: bool, extra: int) -> Any:
    """Take the operand at this place for the weights, and the other for the values."""
    weights, value = event.given[place], event.given[1 - place]
    w, v, o = event.axes[place], event.axes[1 - place], event.axes[2]
    sizes = dict(zip(w, weights.shape, strict=True))
    for name, size in zip(v, value.shape, strict=True):
        sizes[name] = max(sizes.get(name, 1), size)
    summed = [c for c in w if c in v and c not in o]
    if len(summed) != 1 or sizes[summed[0]] not in (keys, keys + extra):
        return None
    rows = [c for c in w if c not in v and c in o and sizes[c] == queries]
    if len(rows) != 1:
        return None
    features = [c for c in v if c not in w and c in o]
    groups = [c for c in o if c != rows[0] and c not in features]
    groups.sort(key=lambda c: w.find(c))  # in the order of the scores, in which their heads were laid out
    laid = _arranged(weights, w, groups, [rows, summed], sizes, items, turned)
    values = _arranged(value, v, groups, [summed, features], sizes, items, turned)
    index = _places(event.result.shape, o, groups, [rows, features], sizes, items, turned)
    if laid is None or values is None or index is None:
        return None
    return laid[..., :keys], values[..., :keys, :], index


def _arranged(x: Tensor, names: str, groups: list[str], tail: list[list[str]], sizes: dict[str, int], items: int,
              turned: bool) -> Tensor | None:  # fmt: skip
    places = _places(x.shape, names, groups, tail, sizes, items, turned)
    return None if places is None else x.reshape(-1)[places]


def _places(shape: torch.Size, names: str, groups: list[str], tail: list[list[str]], sizes: dict[str, int], items: int,
            turned: bool) -> Tensor | None:  # fmt: skip
    """Where each number of (batch, heads, ...) stands in a tensor of this shape; axes that it lacks are shared."""
    ends = [c for axes in tail for c in axes]
    if any(c not in names for c in ends) or any(c not in [*groups, *ends] for c in names):
        return None
    places = torch.arange(math.prod(shape)).view(shape)
    for place, name in enumerate(names):  # shared axes of one
        if shape[place] == 1 and sizes[name] > 1:
            places = places.expand(*[sizes[n] if i == place else -1 for i, n in enumerate(names)])
    order = [c for c in groups if c in names]
    places = places.permute([names.index(c) for c in [*order, *ends]])
    for place, name in enumerate(groups):
        if name not in names:
            places = places.unsqueeze(place)
    places = places.expand(*[sizes[c] for c in groups], *places.shape[len(groups) :])
    flat = places.reshape(*places.shape[: len(groups)], *(math.prod(sizes[c] for c in axes) for axes in tail))
    at = next((i for i, c in enumerate(groups) if sizes[c] == items), None)
    if at is not None:
        moved = flat.movedim(at, 0)
        return moved.reshape(items, -1, *flat.shape[-2:])
    count = math.prod(sizes[c] for c in groups)
    if not groups or count % items:
        return None
    folded = flat.reshape(count, *flat.shape[-2:])
    if turned:
        return folded.view(-1, items, *flat.shape[-2:]).transpose(0, 1)
    return folded.view(items, -1, *flat.shape[-2:])
