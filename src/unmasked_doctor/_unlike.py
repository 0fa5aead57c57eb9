"""The layer that is unlike its likes: what is compared, and what a difference means."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unmasked_doctor._listen.calls import Call
from unmasked_doctor._listen.hear import Facts
from unmasked_doctor._listen.wires import Wires
from unmasked_doctor._report import Standing

__all__ = ["FACTS", "TURNED_ALIKE", "Seen", "may_be_a_mistake", "odd_ones", "step_of", "tiled"]

TURNED_ALIKE = "queries and keys are turned alike at every place, as where heads are counted as places"

Difference = tuple[str | None, str, str]  # a cause, what is told, and the evidence


@dataclass
class Seen:
    """One call: what was heard of it, how it is connected, and what follows from that.

    Attributes:
        name: The innermost module that called.
        place: Its name without numbers, which call of its module it is, and the shapes of its parameters: calls of one
            place are likes.
        call: What went through it.
        facts: What was done to its scores before the softmax.
        kernel: What ran.
        native: Whether PyTorch's own layer made the call.
        wires: How it is connected.
        hides_padding: Whether no token looks at padding; None where that was not asked.
        by_distance: Whether scores of tokens that are the same depend on the distance alone; None likewise.
        kin: Its place without the shapes of parameters.
        declared: What its module, those around it and their configs say of windows and types of layers.
        span: The window that its module declares.
        padding: The argument that says which tokens are padding.
        whole: Whether weights of its module are kept in whole numbers, as quantization keeps them.
    """

    name: str
    place: str
    call: Call
    facts: Facts
    kernel: str
    native: bool
    wires: Wires = field(default_factory=Wires)
    hides_padding: bool | None = None
    by_distance: bool | None = None
    kin: str = ""
    declared: tuple[tuple[str, Any], ...] = ()
    span: int | None = None
    padding: str = "attention_mask"
    whole: bool = False

    @cached_property
    def shown(self) -> Tensor:
        """Which keys are no mask's, of any head: (items, queries, keys)."""
        scores = self.call.scores
        most = scores.masked_fill(scores == torch.inf, 0.0).amax(-1, keepdim=True)
        return ((scores > most - 5000) & scores.isfinite()).any(1)

    @cached_property
    def ahead(self) -> bool:
        """Whether queries see later keys and no earlier ones."""
        queries, keys = self.call.weights.shape[-2:]
        if queries != keys or queries < 4 or self.call.over != "keys":
            return False
        inner = (self.call.weights > 0).flatten(0, 1).any(0)[1:-1]  # the last may see nothing, and then all alike
        earlier, later = (inner.tril(0), inner.triu(2))
        return bool(later.any()) and not bool(earlier.any())

    @property
    def pools(self) -> bool:
        """Whether it has fewer queries than keys, as what pools its queries has."""
        return self.call.query.size(-2) < self.call.weights.size(-1)

    def size(self, role: str) -> float:
        """The root of the mean square of its queries, keys or values."""
        return float(getattr(self.call, role).to(torch.float64).square().mean().sqrt())

    def normed(self, role: str) -> bool | None:
        """Whether its vectors have one length, as a norm makes them; None where that cannot be told."""
        x = getattr(self.call, role)
        size = x.to(torch.float64).square().mean(-1).sqrt()
        if x.size(-1) < 2 or size.numel() < 4 or not bool(size.isfinite().all()) or not bool(size.max() > 0):
            return None
        apart = float((size.max() - size.min()) / size.max())
        return None if 2e-3 < apart < 0.25 else apart < 0.25  # a norm's epsilon moves small ones

    @property
    def raw_roles(self) -> tuple[str, ...]:
        """Which of queries, keys and values read tokens without the norm that the others read them with."""
        return tuple(self.wires.raw) if len(self.wires.raw) < len(self.wires.tokens) else ()

    @cached_property
    def reach(self) -> int | None:
        """How many keys a query sees at most, itself the last; None where one sees a later key."""
        queries, keys = self.call.weights.shape[-2:]
        seen = (self.call.weights > 0).flatten(0, 1).any(0)
        far = torch.arange(keys - queries, keys)[:, None] - torch.arange(keys)
        if queries < 2 or keys < queries or bool(seen[far < 0].any()):
            return None
        return int(far[seen].max()) + 1 if seen.any() else 0

    @property
    def causal(self) -> bool:
        """Whether no query sees a later key."""
        return self.reach is not None

    @property
    def window(self) -> int | None:
        """How many keys a query sees, if these are not all that it may."""
        return self.reach if self.reach and self.reach < self.call.weights.size(-1) else None

    @property
    def scale(self) -> float | None:
        """What the products of what the layers gave are multiplied by."""
        scale = math.nan if self.facts.varied else self.facts.gain
        for turn in self.wires.turns.values():
            scale *= math.nan if turn.gain is None else turn.gain
        return None if math.isnan(scale) else float(f"{scale:.4g}")

    @property
    def finite(self) -> bool:
        """Whether what went in were numbers: or else it is an earlier layer's fault."""
        return bool(self.call.query.isfinite().all() and self.call.key.isfinite().all())

    @property
    def sums(self) -> bool:
        total = self.call.weights.sum(-1)
        return bool(((total - 1).abs().lt(1e-3) | total.eq(0) | total.isnan()).all()) or self.call.dropout > 0

    @property
    def unchanged(self) -> bool:
        """Whether the values meet what the softmax gave."""
        same = torch.allclose(self.call.weights, self.call.softmax, atol=1e-6, equal_nan=True)
        return same or self.call.dropout > 0

    @cached_property
    def rest(self) -> Tensor:
        """What the scores have beside the products, where keys are seen; zeros if that cannot be told."""
        call, shown = self.call, self.call.softmax > 0
        if self.facts.varied or math.isnan(self.facts.gain):
            return torch.zeros(())
        rest = (call.scores - self.facts.gain * call.product).masked_fill(~shown, 0.0)
        size = call.scores.masked_fill(call.scores < -1e4, 0.0).abs().max() + 1
        return rest if float(rest.abs().max()) > 1e-4 * float(size) else torch.zeros(())

    @property
    def bias(self) -> bool:
        """Whether something else than a mask is added to the scores."""
        return bool(self.rest.any())

    @property
    def ones(self) -> bool:
        """Whether what is added has only zeros and ones."""
        rest = self.rest.masked_fill(self.rest.abs() < 1e-4, 0.0)
        if not self.bias or float((rest - rest.round()).abs().max()) > 1e-4 or bool((rest.round().abs() > 1).any()):
            return False
        return not bool((rest.round() == 1)[self.call.softmax > 0].all())  # one number for all is no mask

    @property
    def kv_heads(self) -> int:
        reads = self.wires.reads.get("key")
        return len(set(reads)) if reads else self.call.key.size(1)

    @property
    def verdict(self) -> Standing:
        """Whether it is known from the layers before it to the layer behind it."""
        if self.native:
            return "equal"
        right = self.wires.known and self.sums and self.unchanged and self.call.over == "keys"
        return "followed" if right and self.scale is not None else "open"


@dataclass(frozen=True)
class _Bias:
    """What is added to the scores, equal to another where it is the same for all that both see."""

    rest: Tensor
    shown: Tensor

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Bias) or self.rest.shape != other.rest.shape:
            return False
        apart = (self.rest - other.rest).masked_fill(~(self.shown & other.shown), 0.0).abs().max()
        return float(apart) < 1e-3 * float(self.rest.abs().max())

    def __hash__(self) -> int:
        return 0  # what is equal must have one


def tiled(reads: tuple[Any, ...] | None) -> bool:
    if reads is None or not 1 < len(set(reads)) < len(reads):
        return False
    own = len(set(reads))
    return all(reads[head] == reads[head % own] for head in range(len(reads)))


@dataclass(frozen=True)
class _Mask:
    """Which keys a query may see, equal to another where it is the same for all items."""

    shown: Tensor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Mask) and torch.equal(self.shown, other.shown)

    def __hash__(self) -> int:
        return hash((tuple(self.shown.shape), int(self.shown.sum())))


def odd_ones(group: list[Seen], of: Callable[[Seen], Any]) -> Iterator[tuple[Seen, Any, Any, int]]:
    """Those whose value differs from that of at least three quarters, or of two where there are three."""
    values = [(seen, value) for seen in group if (value := of(seen)) is not None]
    if len(values) < 3:
        return
    (usual, count), *_ = Counter(value for _, value in values).most_common(1)
    if count >= 0.75 * len(values) or (len(values) == 3 and count == 2):
        yield from ((seen, value, usual, count) for seen, value in values if value != usual)


def _is_turned(seen: Seen) -> bool:
    return len(seen.wires.turns) == 2 and all(turn.kind == "turned" for turn in seen.wires.turns.values())


def _explain_reads(seen: Seen, value: Any, usual: Any) -> Difference:
    now, then = dict(value), dict(usual)
    by = "its heads read other layers, or other features of them"
    if now["value"] == then["key"] and now["key"] == then["value"]:
        return "wrong-value", "its keys and values are exchanged", "its value reads what is the key in the others"
    for role in ("query", "key"):
        if now["value"] == then[role]:
            text = f"its {role} is passed as the value"
            return "wrong-value", text, f"its value reads what is the {role} in the others"
    for role in ("key", "value"):
        if now[role] != then[role] and tiled(now[role]) and set(now[role]) == set(then[role]):
            text = f"its {role} heads are repeated in the order 0 1 0 1, not 0 0 1 1"
            return "repeat-for-repeat-interleave", text, "query heads read other key heads"
    which = [role for role in now if now[role] != then[role]]
    if len(which) == 1 and set(now[which[0]]) == set(then[which[0]]):
        return None, f"the heads of its {which[0]} are in another order", by
    return None, f"its {' and '.join(which)} come from elsewhere", by


def _explain_scale(seen: Seen, value: Any, usual: Any) -> Difference:
    evidence = f"they are multiplied by {value:g}, not by {usual:g}"
    root = float(f"{seen.call.query.size(-1) ** -0.5:.4g}")
    if usual == root and abs(value - 1) < 1e-3:
        return "missing-scale", "its scores are not divided by the root of head_dim", evidence
    return "wrong-d-in-scale", "its scores are scaled by another number", evidence


def _explain_softmax(seen: Seen, value: Any, usual: Any) -> Difference:
    if value[0] == usual[0]:
        return "mask-after-softmax", "its weights are changed after the softmax", "they are not what the softmax gave"
    cause = "softmax-over-queries" if value[0] == "queries" else None
    return cause, f"its softmax runs over {value[0]}", f"over {usual[0]} in the others"


def _explain_causal(seen: Seen, value: Any, usual: Any) -> Difference:
    weights = seen.call.weights
    if usual:
        later = torch.ones(weights.shape[-2:], dtype=torch.bool, device=weights.device).triu(1)
        dense = bool((weights > 0).all())
        evidence = f"a weight of {float(weights[..., later].max()):.2g} on a later token"
        return "no-causal-mask" if dense else None, "its queries see later tokens", evidence
    return None, "its queries see no later tokens", "all weights on later tokens are zero"


def _explain_mask(seen: Seen, value: Any, usual: Any) -> Difference:
    mine, theirs = value.shown, usual.shown
    more, fewer = int((mine & ~theirs).sum()), int((theirs & ~mine).sum())
    widths = [int(shown.any(0).sum(-1).max()) for shown in (mine, theirs)]
    counts = f"it shows {more} pairs that they hide, and hides {fewer} that they show"
    if bool(mine.all()):
        return None, "it has no mask, and the other layers like it have one", counts
    if bool(theirs.all()):
        return None, "it has a mask, and the other layers like it have none", counts
    if abs(widths[0] - widths[1]) == 1 and not (more and fewer):
        text = f"a query sees {widths[0]} keys, and {widths[1]} in the other layers like it"
        return "window-off-by-one" if more else None, text, counts
    return None, "its mask is not that of the other layers like it", counts


def _explain_norms(seen: Seen, value: Any, usual: Any) -> Difference:
    sides = ("query", "key")
    without = [side for side, now, then in zip(sides, value, usual, strict=True) if then and not now]
    with_ = [side for side, now, then in zip(sides, value, usual, strict=True) if now and not then]
    text = f"its {' and its '.join(without or with_)} is {'not ' if without else ''}normed"
    return None, text, f"that of the other layers like it is {'' if without else 'not'}".rstrip()


def _norms(seen: Seen) -> Any:
    both = seen.normed("query"), seen.normed("key")
    return None if None in both else both


def _explain_values(seen: Seen, value: Any, usual: Any) -> Difference:
    if value[1] != usual[1] and value[0] == usual[0]:
        return None, "its values are multiplied by another number", f"by {value[1]}, not by {usual[1]}"
    names = {"plain": "as their layer gives them", "turned": "turned by positions", "other": "normed or weighted"}
    how = f"its values are {names[value[0]]}"
    return None, how, f"those of the other layers like it are {names[usual[0]]}"


def _explain_gain(seen: Seen, value: Any, usual: Any) -> Difference:
    cause = "missing-scale" if abs(value - 1) < 1e-3 and abs(usual - 1) > 1e-3 else "wrong-d-in-scale"
    return cause, "its scores are scaled by another number", f"they are multiplied by {value:g}, not by {usual:g}"


def _gain(seen: Seen) -> float | None:
    """What scores of normed queries and keys are multiplied by."""
    turns = seen.wires.turns.values()
    if seen.scale is not None or seen.facts.varied or len(turns) < 2 or math.isnan(seen.facts.gain):
        return None
    return float(f"{seen.facts.gain * seen.call.gain:.4g}")


def _explain_biased(seen: Seen, value: Any, usual: Any) -> Difference:
    text = "it adds something to its scores" if value else "it adds nothing to its scores"
    return None, text, f"the other layers like it add {'something' if usual else 'nothing'}"


def _explain_keys(seen: Seen, value: Any, usual: Any) -> Difference:
    return (
        None,
        f"it has {value} keys, and the other layers like it have {usual}",
        "some of the tokens are none of its keys",
    )


class Fact(NamedTuple):
    """A property that similar layers share.

    Attributes:
        of: Read it off a layer; None where it is not asked.
        explain: Give the cause of a deviation, its text and the evidence.
        follows: Whether a deviation may be only a consequence of another mistake.
        good: Whether a layer may have it rightly, though the others have it not.
        among: Whose it is compared with: calls of one "place"; those of it that are "declared" alike; or its "kin",
            whatever parameters they have.
    """

    of: Callable[[Seen], Any]
    explain: Callable[[Seen, Any, Any], Difference]
    follows: bool = False
    good: bool = False
    among: str = "place"


FACTS: dict[str, Fact] = {
    "causal": Fact(lambda seen: seen.causal if seen.call.query.size(-2) > 1 else None, _explain_causal),
    "keys": Fact(lambda seen: seen.call.weights.size(-1) if seen.wires.own is not None else None, _explain_keys,
                 among="queries"),
    "mask": Fact(lambda seen: _Mask(seen.shown) if seen.call.over == "keys" and seen.call.query.size(-2) > 1 else None,
                 _explain_mask, follows=True, among="declared"),
    "scale": Fact(lambda seen: seen.scale, _explain_scale),
    "gain": Fact(_gain, _explain_gain),
    "norms": Fact(_norms, _explain_norms, among="kin"),
    "raw": Fact(lambda seen: seen.raw_roles if len(seen.wires.reads) == 3 else None, lambda seen, value, usual: (
        None, f"its {' and '.join(value or usual)} read tokens {'without' if value else 'with'} the norm that the "
        "others read them with", "by what the layers that make them were given"), among="kin"),
    "values": Fact(lambda seen: seen.wires.value and (seen.wires.value.kind, seen.wires.value.gain), _explain_values,
                   follows=True),
    "weights": Fact(lambda seen: seen.sums, lambda seen, value, usual: (
        "weights-not-normalized", "its weights do not sum to one",
        f"those of the last query sum to {float(seen.call.weights[0, 0, -1].sum()):.3g}"), follows=True, good=True),
    "softmax": Fact(lambda seen: (seen.call.over, seen.unchanged), _explain_softmax, follows=True),
    "reads": Fact(lambda seen: tuple(sorted(seen.wires.reads.items())) if len(seen.wires.reads) == 3 else None,
                  _explain_reads),
    "tokens": Fact(lambda seen: tuple(sorted(seen.wires.tokens.items())) or None, lambda seen, value, usual: (
        None, "its heads read other tokens than those of the others",
        ", ".join(f"its {role} {tokens}" for role, tokens in value)), follows=True),
    "sources": Fact(lambda seen: seen.wires.own if not seen.pools else None, lambda seen, value, usual: (
        None, f"its keys are made of {'its own tokens' if value else 'another sequence'}",
        f"those of the others are made of {'their own tokens' if usual else 'another sequence'}")),
    "merge": Fact(lambda seen: seen.wires.merge and (seen.wires.merge, seen.wires.order), lambda seen, value, usual: (
        None,
        "its heads are merged in another order" if value[0] == usual[0] else "its merged heads mix several tokens",
        "the next layer reads other features"), follows=True),
    "bias": Fact(lambda seen: _Bias(seen.rest, seen.call.softmax > 0) if seen.bias else None,
                 lambda seen, value, usual: (
        None, "it adds something else to its scores",
        "what its scores have beside the products is not what those of the others have")),
    "biased": Fact(lambda seen: seen.bias and not seen.ones if seen.call.over == "keys" else None, _explain_biased,
                   follows=True, among="declared"),
    "pairs": Fact(lambda seen: tuple(turn.pair for turn in seen.wires.turns.values()) if _is_turned(seen) else None,
                  lambda seen, value, usual: (
        "rope-pairing", "its rotation pairs other features", f"they lie {value[0]} apart, not {usual[0]}")),
    "padding": Fact(lambda seen: seen.hides_padding, lambda seen, value, usual: (
        "padding-ignored", f"it attends to padding, which {seen.padding} hides in the other layers",
        "its weights are not zero where tokens are padding"), good=True),
    "positions": Fact(lambda seen: seen.by_distance, lambda seen, value, usual: (
        None, "where all tokens are the same, its scores depend on more than the distance",
        "those of the others depend on it alone"), follows=True, good=True),
}  # fmt: skip


# The step of `STEPS` in which a layer differs, where another name says more.
_STEP = {
    "causal": "mask", "keys": "mask", "padding": "mask", "gain": "scale", "values": "projections",
    "weights": "softmax", "reads": "heads", "tokens": "layout", "merge": "layout", "sources": "inputs",
    "biased": "bias", "raw": "norms", "pairs": "positions",
}  # fmt: skip


def step_of(fact: str) -> str:
    """The step of attention that a fact is of."""
    return _STEP.get(fact, fact)


def may_be_a_mistake(name: str, seen: Seen, value: Any, usual: Any) -> bool:
    """Whether a difference can be a mistake: norms on one side alone, keys that are fewer, a mask of the same sizes."""
    if name == "norms":
        return bool(usual == (True, True) and value[0] != value[1])
    if name == "keys":
        return bool(value < usual and seen.call.query.size(-2) > value and usual % value)
    if name == "causal":
        return not seen.ahead or bool(value)  # which is told by itself
    if name == "mask":
        return bool(value.shown.shape == usual.shown.shape)
    return True
