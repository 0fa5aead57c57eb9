"""The one listener: every product and softmax of a forward pass, whoever wrote it, and where each number came from.

A dispatch mode hears PyTorch's operators below all that calls them, so that `scaled_dot_product_attention`, ``@``,
einsum, nn.MultiheadAttention and an encoder layer sound alike: a product, a softmax, a product. Each entry that a
product gives gets an id of its own, and the ids go along through views, copies and elementwise operators. So the
scores of a softmax tell which product made them, weights which softmax, and a query which layer: no name has to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from unmasked._modes import uncompiled, written_out
from unmasked._private import DispatchMode, flex_scores

__all__ = ["Event", "Facts", "Listener", "heard", "product_of"]

Put = Mapping[int, Callable[[Tensor], Tensor]]
_aten = torch.ops.aten

_SOFTMAXES = {_aten._softmax.default, _aten._safe_softmax.default}
_LAYERS = {_aten.convolution.default: (0, 1), _aten.native_layer_norm.default: (0, None)}
# Operators that move entries; any other that keeps a tensor's shape is taken to work on each entry by itself.
_MOVES = {"cat", "stack", "index_select", "index", "gather", "repeat", "constant_pad_nd", "roll", "flip", "tril",
          "triu", "slice_scatter", "select_scatter", "clone", "_to_copy", "lift_fresh_copy"}  # fmt: skip
# Operators that keep a tensor's shape, and mix or reorder its entries: ids end here.
_MIXES = {"cumsum", "cumprod", "logcumsumexp", "cummax", "cummin", "sort", "topk", "argsort"}
_UNKNOWN = -1


@dataclass(frozen=True)
class Facts:
    """What was done to the entries of a tensor on their way from the products that made them.

    Attributes:
        softmax: The index of the event of the last softmax that they went through, or None.
        gain: What single numbers multiplied them by, since a product or the last softmax made them.
        turned: How many features apart the entries lie that a rotation adds to each other; 0 if they are not rotated.
        varied: Whether they were multiplied by more than single numbers: by a norm, a mask, a gate.
        dropout: The probability with which an entry was dropped.
        booleans: Whether a boolean tensor was added to them, as zeros and ones.
    """

    softmax: int | None = None
    gain: float = 1.0
    turned: int = 0
    varied: bool = False
    dropout: float = 0.0
    booleans: bool = False


@dataclass
class Event:
    """A product of matrices, (batch, rows, inner) times (batch, inner, columns); a softmax; or another layer.

    Attributes:
        kind: "product", "softmax" or "layer".
        inputs: The left and the right matrix, or the scores, or the input of the layer.
        result: What came out; of a product, before anything is added.
        ids: For each input, the id of the product's entry that each of its entries came from, or -1; None where no
            entry came from a product.
        facts: For each input, what was done to it since.
        axis: The axis that a softmax ran over.
        first: The id of the first entry of a product's result; the others count on from it.
        matrix: The very tensor that a product or a layer multiplied by, to be found among the target's tensors.
        kernel: What ran: "written out", "sdpa" for PyTorch's function, or "flex".
        module: The name of the innermost module that was running.
    """

    kind: str
    inputs: tuple[Tensor, ...]
    result: Tensor
    ids: tuple[Tensor | None, ...] = ()
    facts: tuple[Facts, ...] = ()
    axis: int = -1
    first: int = 0
    matrix: Tensor | None = None
    kernel: str = "written out"
    module: str = ""


@dataclass
class _Trace:
    """Where each entry of a storage came from."""

    keep: Tensor  # holds the storage, or another tensor's that gets its address would be taken for it
    ids: Tensor
    facts: Facts = field(default_factory=Facts)


class Listener(DispatchMode):
    """Hears products and softmaxes, and may put other results in the place of some.

    Args:
        put: By the index of an event, a function that makes another result of its result.
        where: Returns the name of the module that runs.
    """

    supports_higher_order_operators = True  # FlexAttention is one

    def __init__(self, put: Put | None = None, where: Callable[[], str] = str) -> None:
        super().__init__()
        self.put, self.where = put or {}, where
        self.events: list[Event] = []
        self.traces: dict[tuple[int, int], _Trace] = {}
        self.noise: dict[tuple[int, int] | None, tuple[Tensor, float]] = {}  # what dropout multiplies by, and its p
        self.blank = torch.zeros(1, dtype=torch.long, device="cpu")  # its new_* methods make all ids, on the CPU
        self.count, self.kernel = 0, ""  # of ids that were given; which kernel is written out just now

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "overloadpacket", func).__name__
        if name == "flex_attention":
            return self._flex(*args)
        if func in _SOFTMAXES:
            return self._softmax(func, args, kwargs)
        if name in ("bmm", "mm", "addmm", "baddbmm"):
            return self._product(func, name, args, kwargs)
        if func is _aten.convolution.default and _pointwise(*args):
            return self._convolution(func, args)
        if self.kernel and hasattr(func, "decompose"):
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result  # the operators that it is made of were heard
        result = func(*args, **kwargs)
        if func in _LAYERS:
            taken, matrix = _LAYERS[func]
            first = result[0] if isinstance(result, tuple) else result
            weight = args[matrix] if matrix is not None else None
            self._note(Event("layer", (args[taken],), first, matrix=weight), first)
        if self.traces or name in ("bernoulli_", "mul", "div"):
            first = result[0] if isinstance(result, tuple | list) and result else result
            if name == "native_layer_norm" or (isinstance(first, Tensor) and not isinstance(result, list)):
                self._follow(name, args, kwargs, first)
        return result

    # What is heard

    def _product(self, func: Any, name: str, args: Any, kwargs: Any) -> Tensor:
        left, right = args[1:3] if name in ("addmm", "baddbmm") else args[:2]
        result = func(*args, **kwargs)
        raw = result
        alpha = kwargs.get("alpha", 1)
        if name in ("addmm", "baddbmm"):
            raw = _aten.mm.default(left, right) if name == "addmm" else _aten.bmm.default(left, right)
        event = Event("product", (left, right), raw, matrix=right)
        made = self._note(event, result, change_added=result is not raw)
        self._learn(made, self._new_ids(event, made), Facts(gain=float(alpha)))
        return made

    def _convolution(self, func: Any, args: Any) -> Tensor:
        """Hear a convolution with a kernel of one pixel: channels, the second axis, times a matrix."""
        x, weight = args[:2]
        result = func(*args)
        left, laid = x.flatten(2).mT, result.flatten(2).mT
        right = weight.flatten(1).mT.expand(len(left), -1, -1)
        event = Event("product", (left, right), left @ right, matrix=weight)
        made = self._note(event, laid, change_added=True)
        result = result if made is laid else made.mT.reshape(result.shape)
        self._learn(result, self._new_ids(event, made).mT.reshape(result.shape), Facts())
        return result

    def _new_ids(self, event: Event, made: Tensor) -> Tensor:
        """Give an id to each entry of what a product made, and return the ids in its shape."""
        event.first = self.count
        self.count += made.numel()
        return (self.blank.new_ones(made.numel()).cumsum(0) + (event.first - 1)).view(made.shape)

    def _softmax(self, func: Any, args: Any, kwargs: Any) -> Tensor:
        scores, axis = args[0], int(args[1] if len(args) > 1 else kwargs["dim"])
        result = func(*args, **kwargs)
        safe = func is _aten._safe_softmax.default
        event = Event("softmax", (scores,), result, axis=axis % max(scores.dim(), 1))
        event.kernel = self.kernel or ("sdpa" if safe else "written out")
        made = self._note(event, result)
        ids, facts = self._traced(scores)
        if ids is not None:
            self._learn(made, ids, replace(facts, softmax=len(self.events) - 1, gain=1.0, varied=False, dropout=0.0))
        return made

    def _note(self, event: Event, result: Tensor, *, change_added: bool = False) -> Tensor:
        """Keep an event, and return its result, or what `put` makes of it.

        With ``change_added`` the result is more than the event's, such as a product with a bias: it changes by as much.
        """
        traced = [self._traced(x) for x in event.inputs]
        event.ids = tuple(None if ids is None else ids.clone() for ids, _ in traced)
        event.facts = tuple(facts for _, facts in traced)
        event.inputs = tuple(x.detach().clone() for x in event.inputs)
        event.module = self.where()
        change = self.put.get(len(self.events))
        event.result = event.result.detach().clone()
        if change is not None:
            before, event.result = event.result, event.result.clone().copy_(change(event.result.to("cpu")))
            result = result + (event.result - before) if change_added else event.result.clone()
        self.events.append(event)
        return result

    def _flex(self, query: Tensor, key: Tensor, value: Tensor, *more: Any) -> Any:
        """Write FlexAttention out, so that its products and its softmax are heard."""
        score_mod, block_mask, scale, _, *buffers = more
        groups = query.size(1) // key.size(1)
        if groups > 1:
            key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
        scores = flex_scores(query, key, value, score_mod, block_mask, scale, {}, *buffers)
        self.kernel = "flex"
        with self:
            ids, _ = self._traced(torch.matmul(query, key.mT))
            if ids is not None:
                self._learn(scores, ids, Facts(gain=float(scale)))
            context = torch.matmul(torch.softmax(scores, -1), value)
        self.kernel = ""
        return context, scores.logsumexp(-1), scores.amax(-1)

    # Where numbers come from

    def _traced(self, x: Any) -> tuple[Tensor | None, Facts]:
        """Return the ids of a tensor's entries, in its shape, and what was done to them; None if nothing is known."""
        key = _key(x)
        trace = self.traces.get(key) if key is not None else None
        if trace is None:
            return None, Facts()
        return torch.as_strided(trace.ids, x.size(), x.stride(), x.storage_offset()), trace.facts

    def _learn(self, x: Tensor, ids: Tensor, facts: Facts) -> None:
        """Keep the ids of a tensor's entries, and what was done to them."""
        key = _key(x)
        if key is None or ids.shape != x.shape:
            return
        old = self.traces.get(key)
        if old is None:
            size = x.untyped_storage().nbytes() // x.element_size()
            old = self.traces[key] = _Trace(x, self.blank.new_full((size,), _UNKNOWN))
        torch.as_strided(old.ids, x.size(), x.stride(), x.storage_offset()).copy_(ids)
        old.facts = facts

    def _follow(self, name: str, args: Any, kwargs: Any, result: Any) -> None:
        """Carry ids from the inputs of an operator to its result."""
        if not isinstance(result, Tensor) or not (result.is_floating_point() or result.is_complex()):
            return
        stem = name.rstrip("_")
        if stem == "bernoulli":
            self.noise[_key(result)] = (result, 1 - float(args[1] if len(args) > 1 else 0.5))
            return
        every = [x for each in args for x in (each if isinstance(each, list | tuple) else (each,))]
        tensors = [x for x in every if isinstance(x, Tensor) and (x.is_floating_point() or x.is_complex())]
        known = [(x, *traced) for x in tensors if (traced := self._traced(x))[0] is not None]
        if not known and stem in ("mul", "div") and name == stem:  # the scale of attention, on what no product made
            known = [(x, self.blank.new_full(x.shape, _UNKNOWN), Facts()) for x in tensors[:1]]
        if not known or stem in _MIXES:
            return
        _, ids, facts = known[0]
        assert ids is not None
        if name == "view_as_complex":
            self._learn(result, ids[..., 0], facts)
        elif name == "view_as_real":
            self._learn(result, torch.stack([ids, ids + 1], -1), facts)
        elif name == "copy_":
            source, more = self._traced(args[1])
            if source is not None:
                self._learn(result, source.expand(result.shape), more)
        elif not name.endswith("_") and _key(result) in self.traces:
            return  # a view: its storage has the ids already
        elif stem in _MOVES:
            self._move(stem, args, kwargs, result, ids, facts)
        else:
            self._each(stem, args, kwargs, result, known)

    def _move(self, name: str, args: Any, kwargs: Any, result: Tensor, ids: Tensor, facts: Facts) -> None:
        """Follow an operator that moves entries: run on ids in the place of numbers, it moves these alike."""

        def ids_for(x: Any) -> Any:
            if isinstance(x, list | tuple):
                return type(x)(ids_for(each) for each in x)
            if not isinstance(x, Tensor) or not (x.is_floating_point() or x.is_complex()):
                return x.to("cpu") if isinstance(x, Tensor) else x
            traced = self._traced(x)[0]
            return self.blank.new_full(x.shape, _UNKNOWN) if traced is None else traced

        moved = ids
        if name == "constant_pad_nd":
            moved = torch.constant_pad_nd(ids, list(args[1]), _UNKNOWN)
        elif name in ("tril", "triu"):
            facts = replace(facts, varied=True)
        elif name not in ("clone", "_to_copy", "lift_fresh_copy"):
            moved = getattr(_aten, name)(*ids_for(list(args)), **kwargs)
        for each in args[0] if name in ("cat", "stack") else ():
            known, more = self._traced(each)
            facts = facts if known is None else _joined(facts, more)
        self._learn(result, moved, facts)

    def _each(self, stem: str, args: Any, kwargs: Any, result: Tensor, known: list[Any]) -> None:
        """Follow an operator that works on each entry by itself."""
        whole = [each for each in known if each[0].numel() == result.numel() and each[0].dim() <= result.dim()]
        if not whole:
            return
        x, ids, facts = whole[0]
        if ids.shape != result.shape:
            try:
                ids = ids.expand(result.shape)
            except RuntimeError:  # a reduction that happens to have as many entries
                return
        rest = [y for y in args if isinstance(y, Tensor) and y is not x]
        single = next((y for y in rest if y.numel() == 1), None)
        number = next((y for y in args[1:] if isinstance(y, int | float) and not isinstance(y, bool)), None)
        if stem in ("mul", "div"):
            by = number if number is not None else None if single is None else float(single.detach().to(torch.float64))
            if result.is_complex() and by is None:
                facts = replace(facts, turned=1)
            noise = next((self.noise[key] for y in rest if (key := _key(y)) in self.noise), None)
            if noise is not None:
                facts = replace(facts, dropout=noise[1])
            elif stem == "mul" and by is not None:
                facts = replace(facts, gain=facts.gain * by)
            elif by is not None and x is args[0] and by != 0:
                facts = replace(facts, gain=facts.gain / by)
            else:
                facts = replace(facts, varied=True)
        elif stem == "neg":
            facts = replace(facts, gain=-facts.gain)
        elif stem in ("add", "sub") and len(whole) > 1:
            facts = self._summed(ids, facts, whole[1])
        elif stem == "add" and any(y.dtype == torch.bool for y in rest):
            facts = replace(facts, booleans=True)
        elif stem in ("native_dropout", "dropout"):
            facts = replace(facts, dropout=float(args[1]))
        self._learn(result, ids, facts)

    def _summed(self, ids: Tensor, facts: Facts, other: Any) -> Facts:
        """Return what is known of a sum: a rotation adds entries of one product, which lie some features apart."""
        _, others, more = other
        mine, theirs = (product_of(self.events, int(i.flatten()[0])) if i.numel() else None for i in (ids, others))
        if mine is None or mine != theirs or more.softmax != facts.softmax:
            return facts
        gap = int((others.expand(ids.shape) - ids).flatten()[0])
        return replace(facts, varied=facts.varied and more.varied, turned=facts.turned or abs(gap))


def _pointwise(x: Tensor, weight: Tensor, bias: Any, stride: Any, padding: Any, *more: Any) -> bool:
    """Whether a convolution has a kernel of one pixel, and neither strides nor pads nor groups."""
    _, transposed, _, groups = more
    alone = weight.dim() > 2 and weight[0, 0].numel() == 1 and {*stride} == {1} and {*padding} == {0}
    return alone and groups == 1 and not transposed


def product_of(events: list[Event], id_: int) -> int | None:
    """Return the index of the product whose result has the entry with this id; None for the id of none."""
    if id_ < 0:
        return None
    last_first = range(len(events) - 1, -1, -1)
    return next((n for n in last_first if events[n].kind == "product" and events[n].first <= id_), None)


def _joined(one: Facts, other: Facts) -> Facts:
    gain = one.gain if math.isclose(one.gain, other.gain) else math.nan
    softmax = one.softmax if one.softmax is not None else other.softmax
    varied, booleans = one.varied or other.varied, one.booleans or other.booleans
    return Facts(softmax, gain, max(one.turned, other.turned), varied, max(one.dropout, other.dropout), booleans)


def _key(x: Any) -> tuple[int, int] | None:
    """Return what tells a tensor's storage from others; None for what has no plain storage."""
    if not isinstance(x, Tensor) or x.layout is not torch.strided or x.is_nested or x.is_quantized:
        return None
    return x.untyped_storage()._cdata, x.element_size()


def heard(run: Callable[[], Any], put: Put | None = None, where: Callable[[], str] = str) -> tuple[list[Event], Any]:
    """Call ``run`` and listen; return the events, on the CPU, and what ``run`` returned."""
    listener = Listener(put, where)
    with uncompiled(), written_out(), listener:
        result = run()
    for event in listener.events:
        event.inputs, event.result = tuple(x.to("cpu") for x in event.inputs), event.result.to("cpu")
    return listener.events, result
