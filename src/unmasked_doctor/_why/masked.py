"""What a mask should hide, beside the weights of each attention that was heard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from unmasked_doctor._ask.hidings import Hiding, hidings
from unmasked_doctor._ask.user_call import UserCall
from unmasked_doctor._call import as_given
from unmasked_doctor._model_run import hear_model
from unmasked_doctor._report import Finding
from unmasked_doctor._unlike import Seen

__all__ = ["future_in_attention", "hidden"]

_LEAST = 1e-9  # a weight that is smaller counts for nothing
_LOW = -1e3  # a score as low hides its key


@dataclass(frozen=True)
class _Weights:
    """The weights of one attention, and what they should hide.

    Attributes:
        seen: The attention.
        should: What the mask hides: (items, heads, queries, keys).
        zero: Which weights are nothing: the same shape.
        name: The argument that hides.
    """

    seen: Seen
    should: Tensor
    zero: Tensor
    name: str

    @property
    def leaks(self) -> bool:
        """Whether a query that may see something sees what is hidden."""
        return bool((self.should & ~self.zero & ~self.should.all(-1, keepdim=True)).any())

    @property
    def scores(self) -> Tensor:
        return self.seen.call.scores

    @property
    def of_keys(self) -> bool:
        """Whether the mask hides the same keys from every query."""
        return bool((self.should == self.should[:, :, :1]).all())

    # What the weights hide instead

    def ignored(self) -> bool:
        return not bool(self.zero.any())

    def after_softmax(self) -> bool:
        soft = self.seen.call.softmax[self.should]
        return bool(self.zero[self.should].all()) and bool((soft > _LEAST).any())

    def filled(self) -> float | None:
        """The one finite score that all hidden keys have, where others' differ."""
        values = self.scores[self.should & ~self.should.all(-1, keepdim=True)]
        same = values.numel() > 1 and bool(((values - values[0]).abs() < 1e-6).all()) and bool(values[0] > _LOW)
        return float(values[0]) if same and bool((self.scores[~self.should].std() > 1e-6).all()) else None

    def on_queries(self) -> bool:
        """Whether rows of padded queries are all alike or hidden, and no key of theirs is hidden from others."""
        items, _, queries, keys = self.should.shape
        if queries != keys or not self.of_keys:
            return False
        rows = self.should[:, :, 0][:, :, :, None].expand_as(self.should)
        weights = self.seen.call.weights
        even = (weights - weights[..., :1]).abs().lt(1e-6).all(-1, keepdim=True) | weights.isnan().all(-1, keepdim=True)
        even = even | self.zero.all(-1, keepdim=True)
        return torch.equal(even.expand_as(rows), rows) and not bool((self.zero & ~rows & ~self.should.mT).any())

    def transposed(self) -> bool:
        square = self.should.size(-1) == self.should.size(-2)
        return square and not self.of_keys and torch.equal(self.zero, self.should.mT)

    def of_the_first(self) -> bool:
        return len(self.should) > 1 and torch.equal(self.zero, self.should[:1].expand_as(self.should))

    def in_other_order(self) -> bool:
        """Whether heads hide what masks of other items hide, as when masks are repeated in another order."""
        items, heads = self.should.shape[:2]
        one, count = self.should[:, 0], torch.arange(items * heads)
        for order in (count % items, count // heads):
            by_heads = one[order].view(heads, items, *one.shape[1:]).transpose(0, 1)
            for laid in (one[order].view_as(self.should), by_heads):
                if not torch.equal(laid, self.should) and torch.equal(self.zero, laid):
                    return True
        return False

    def in_some_heads(self) -> bool:
        by_head = (self.zero | ~self.should).all(-1).all(-1).all(0)
        return bool(by_head.any()) and not bool(by_head.all())

    def inverted(self) -> bool:
        return torch.equal(self.zero, ~self.should) or bool((self.zero | self.should).all())

    def moved_by(self) -> int:
        """By how many places the hidden keys lie beside those that should be; 0 where that is not the difference."""
        size = self.should.size(-1)
        both = [(by, self.should.roll(by, -1)) for n in range(1, min(size - 1, 9)) for by in (n, -n)]
        return next((by for by, rolled in both if torch.equal(rolled, self.zero)), 0)

    def mirrored(self) -> bool:
        return torch.equal(self.should.flip(-1), self.zero)

    def one_less(self) -> int:
        """How many more keys of each item are seen than should be, where just these lie at the border; or 0."""
        counts = (self.should & ~self.zero).sum(-1)
        counts = counts[self.should.any(-1) & ~self.should.all(-1)]
        more = int(counts.max()) if counts.numel() else 0
        edge = self.should & (~self.should).roll(1, -1)  # the first that is hidden, behind what is not
        edge[..., 0] = False
        return more if more == 1 and torch.equal(self.should & ~self.zero, edge & ~self.zero) else 0


def hidden(asked: UserCall, found: Finding) -> Finding:
    """Tell what the weights hide in the place of what a mask says."""
    every = list(_weights(asked, found))
    leaking = [each for each in every if each.leaks]
    where = f" in {leaking[0].seen.name}" if leaking and len(every) > len(leaking) else ""
    if every and not leaking:
        late = next((each for each in every if each.after_softmax()), None)
        if late is not None:
            text = f"what {late.name} hides is taken away after the softmax, in which it still takes its share"
            return replace(found, cause="mask-after-softmax", told=text)
        return found
    for each in leaking:
        for holds, cause, text in _tried(each):
            if holds:
                return replace(found, cause=cause, told=f"{text}{where}")
    return found


def _tried(each: _Weights) -> Iterator[tuple[bool, str | None, str]]:
    """What may stand in the place of the mask that is asked for, the narrowest first."""
    name, value = each.name, each.filled()
    shares = "and a softmax gives what has a finite score its share: put -inf there"
    cause = "float-mask-of-ones" if value == 0 else "boolean-mask-added"
    yield value is not None, cause, f"the scores of what {name} hides become {value:.3g}, {shares}" if value else (
        f"the scores of what {name} hides become 0, {shares}"
    )
    yield each.after_softmax(), "mask-after-softmax", (
        f"what {name} hides is taken away after the softmax, in which it still takes its share"
    )
    yield each.on_queries(), "padding-ignored", (
        f"{name} is laid on the axis of queries, not of keys: what it hides sees nothing, and is seen by all"
    )
    yield each.ignored(), "padding-ignored", f"{name} is ignored: no key that it hides is kept from any query"
    yield each.inverted(), "mask-polarity", f"what {name} shows is hidden, and what it hides is seen"
    yield each.transposed(), None, f"{name} is transposed: where a query may not see a key, the key may not see it"
    yield each.of_the_first(), "only-first-item", f"every item is masked as the first one by {name}"
    yield each.in_other_order(), None, (
        f"{name} is repeated for the heads in the order of another layout: heads hide what other items' masks hide "
        "(repeat in the place of repeat_interleave, or the reverse)"
    )
    yield each.in_some_heads(), None, f"some heads hide what {name} hides, and others see it"
    by = each.moved_by()
    yield by != 0, None, f"{name} hides keys that lie {abs(by)} {'behind' if by > 0 else 'before'} those that it says"
    yield each.mirrored(), None, f"{name} hides keys in the reverse order, as with padding at the other end"
    yield each.one_less() == 1, None, f"of what {name} hides, the first token behind what it shows is seen: one too many"


def _weights(asked: UserCall, found: Finding) -> Iterator[_Weights]:
    """The weights of each attention that has an axis of the keys that the mask of a finding is for."""
    calls = _heard(asked)
    for at, leaf in enumerate(asked.leaves):
        if leaf.name not in found.told.split():
            continue
        ways = [way for reach in asked.reaches.values() for some in hidings(asked, at, reach) for way in some]
        for seen in calls:
            fitting = [each for way in ways if (each := _beside(seen, way, leaf.name)) is not None]
            if fitting:
                yield min(fitting, key=lambda each: int((each.should != each.zero).sum()))


def _beside(seen: Seen, way: Hiding, name: str) -> _Weights | None:
    weights = seen.call.weights
    items, _, queries, keys = weights.shape
    if way.hidden.size(-1) != keys or way.hidden.size(0) not in (1, items) or way.hidden.size(1) not in (1, queries):
        return None
    should = way.hidden[:, None].expand(items, weights.size(1), queries, keys)
    return _Weights(seen, should, weights.abs() < _LEAST, name)


def _heard(asked: UserCall) -> list[Seen]:
    if not isinstance(asked.target, nn.Module):
        return []
    args, kwargs = as_given(asked.form)
    return hear_model(asked.target, args, kwargs, asked.default).calls


def future_in_attention(asked: UserCall) -> str | None:
    """What each attention with as many queries as keys does to later keys.

    Returns:
        "hidden", "seen", or "all seen" but for keys that are hidden from every query; None where there is none.
    """
    square = [x for seen in _heard(asked) if (x := seen.call.weights).size(-1) == x.size(-2) > 2]
    shown = [x > _LEAST for x in square]
    if not any(bool(each.triu(1).any()) for each in shown):
        return "hidden" if shown else None
    return "all seen" if any(bool((each | ~each.any(-2, keepdim=True)).all()) for each in shown) else "seen"
