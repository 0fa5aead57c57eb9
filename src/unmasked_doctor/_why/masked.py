"""What a mask should hide, beside the weights of each attention that was heard."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from unmasked_doctor._ask.hidings import Hiding, hidden_seen, hidings, others_shown
from unmasked_doctor._ask.leaves import is_mask, mirrored
from unmasked_doctor._ask.user_call import UserCall
from unmasked_doctor._call import as_given
from unmasked_doctor._model_run import hear_model
from unmasked_doctor._report import Finding
from unmasked_doctor._tensors import gaps
from unmasked_doctor._unlike import Seen
from unmasked_doctor._words import LENGTHS

__all__ = ["future_in_attention", "hidden"]

_LEAST = 1e-9  # a weight that is smaller counts for nothing
_IN_OTHER_ORDER = (
    "is repeated for the heads in the order of another layout, so that heads hide what other items' masks hide: repeat "
    "stands in the place of repeat_interleave, or the reverse"
)
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

    def multiplied(self) -> bool:
        """Whether scores of what is hidden are far below all others, and some far above."""
        values = self.scores[self.should]
        return bool((values > -_LOW).any()) and bool((values < _LOW).any())

    def on_queries(self) -> bool:
        """Whether rows of padded queries are all alike or hidden, and no key of theirs is hidden from others."""
        queries, keys = self.should.shape[-2:]
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

    def one_less(self) -> bool:
        """Whether of each item one more key is seen than should be, the one at the border."""
        counts = (self.should & ~self.zero).sum(-1)
        counts = counts[self.should.any(-1) & ~self.should.all(-1)]
        edge = self.should & (~self.should).roll(1, -1)  # the first that is hidden, behind what is not
        edge[..., 0] = False
        at_edge = torch.equal(self.should & ~self.zero, edge & ~self.zero)
        return bool(counts.numel()) and int(counts.max()) == 1 and at_edge


def hidden(asked: UserCall, found: Finding) -> Finding:
    """Tell what the weights hide in the place of what a mask says."""
    names, calls = {*found.told.split()}, _heard(asked)
    every = list(_weights(asked, calls, names))
    leaking = [each for each in every if each.leaks]
    where = f" in {leaking[0].seen.name}" if leaking and len(every) > len(leaking) else ""
    if every and not leaking:
        late = next((each for each in every if each.after_softmax()), None)
        if late is not None:
            text = f"what {late.name} hides is masked after the softmax, in which it still takes its share"
            return replace(found, cause="mask-after-softmax", told=text)
        return found
    if text := _repeated(asked, calls, names):
        return replace(found, cause=None, told=text)
    for each in leaking:
        for holds, cause, text in _tried(each):
            if holds:
                return replace(found, cause=cause, told=f"{text}{where}")
    if name := only_the_longest(asked):
        return replace(found, told=f"{found.told}: of {name}, the largest of all items is used for each item")
    text = by_passing(asked, found)
    return replace(found, cause=None, told=text) if text else found


def between(asked: UserCall, which: Tensor, name: str) -> str:
    """Tell what scores between sequences become, of rows that ``which`` parts; or ""."""
    apart = (which[:, None] != which[None])[None]
    for seen in _heard(asked):
        each = _beside(seen, Hiding("", apart), name)
        for holds, _, text in _tried(each) if each is not None and each.leaks else ():
            if holds:
                return text
    return ""


def _tried(each: _Weights) -> Iterator[tuple[bool, str | None, str]]:
    """What may stand in the place of the mask that is asked for, the narrowest first."""
    name, value = each.name, each.filled()
    yield (
        each.multiplied(),
        None,
        f"the scores of what {name} hides are multiplied by a large number, which makes some of them the largest: "
        "put -inf there",
    )
    shares = "and a softmax gives what has a finite score its share: put -inf there"
    cause = "float-mask-of-ones" if value == 0 else "boolean-mask-added"
    yield (
        value is not None,
        cause,
        f"the scores of what {name} hides become {value or 0:.3g}, {shares}",
    )
    yield (
        each.after_softmax(),
        "mask-after-softmax",
        f"what {name} hides is masked after the softmax, in which it still takes its share",
    )
    yield (
        each.on_queries(),
        "padding-ignored",
        f"{name} is laid on the axis of queries, not of keys: what it hides sees nothing, and is seen by all",
    )
    added = "boolean-mask-added" if each.seen.call.booleans else "float-mask-of-ones"
    yield (
        each.seen.ones,
        added,
        f"{name} is added to the scores as zeros and ones: what is hidden stays only one behind",
    )
    yield each.ignored(), "padding-ignored", f"{name} is ignored: no key that it hides is kept from any query"
    yield each.inverted(), "mask-polarity", f"what {name} shows is hidden, and what it hides is seen"
    yield each.transposed(), None, f"{name} is transposed: where a query may not see a key, the key may not see it"
    yield each.of_the_first(), "only-first-item", f"every item is masked as the first one by {name}"
    yield each.in_some_heads(), None, f"some heads hide what {name} hides, and others see it"
    by = each.moved_by()
    yield by != 0, None, f"{name} hides keys that lie {abs(by)} {'behind' if by > 0 else 'before'} those that it says"
    yield each.mirrored(), None, f"{name} hides keys in the reverse order, as with padding at the other end"
    yield (
        each.one_less(),
        None,
        f"of what {name} hides, the first token behind what it shows is seen: one too many",
    )


def _weights(asked: UserCall, calls: list[Seen], names: set[str]) -> Iterator[_Weights]:
    """The weights of each attention that has an axis of the keys that the mask of a finding is for."""
    for seen in calls:
        fitting = [each for way, name in _ways(asked, names) if (each := _beside(seen, way, name)) is not None]
        if fitting:
            yield min(fitting, key=lambda each: int((each.should != each.zero).sum()))


def only_the_longest(asked: UserCall) -> str:
    """The mask, or the lengths, of which what any item shows counts for all items; or ""."""
    for at, leaf in enumerate(asked.leaves):
        x = leaf.given
        lengths = x.dim() == 1 and LENGTHS.search(leaf.name) and not x.is_floating_point()
        if asked.rows(at) != 0 or not (lengths or is_mask(leaf)) or torch.equal(x, x[:1].expand_as(x)):
            continue
        ends = [each(x, 0, keepdim=True).expand_as(x).clone() for each in (torch.amax, torch.amin)]
        for one, other in itertools.permutations(ends):
            if not asked.any_moves(set(), {at: one}) and asked.any_moves(set(), {at: other}):
                return leaf.name
    return ""


def of_another_item(asked: UserCall) -> str:
    """Tell how the mask of one item comes to another; or ""."""
    if name := only_the_longest(asked):
        return f"of {name}, the largest of all items is used in the place of each item's own"
    return _repeated(asked, _heard(asked), {leaf.name for leaf in asked.leaves})


def _repeated(asked: UserCall, calls: list[Seen], names: set[str]) -> str:
    """Tell of a mask that goes along with the rows of all heads in one order, where they stand in the other; or ""."""
    for seen in calls:
        laid = (seen.call.scores <= _LOW) | ~seen.call.scores.isfinite()
        rows = laid.flatten(0, 1)
        for way, name in _ways(asked, names):
            items, queries, keys = way.hidden.shape
            if keys != rows.size(-1) or queries not in (1, rows.size(1)) or items < 2 or len(rows) % items:
                continue
            if laid.shape[:2] == (items, items) and torch.equal(way.hidden[None].expand_as(laid), laid):
                text = f"{name} has no axis for the heads, of which there are as many as items"
                return f"{text}: head 0 hides what item 0 hides, in every item"
            count = torch.arange(len(rows))
            for order in (count % items, count // (len(rows) // items)):
                if torch.equal(way.hidden[order].expand_as(rows), rows) and bool(rows.any()):
                    return f"{name} {_IN_OTHER_ORDER}"
    return ""


def _ways(asked: UserCall, names: set[str]) -> Iterator[tuple[Hiding, str]]:
    """Each way to read the arguments of these names that may hide."""
    for at, leaf in enumerate(asked.leaves):
        if leaf.name in names:
            for reach in asked.reaches.values():
                yield from ((way, leaf.name) for some in hidings(asked, at, reach) for way in some)


def by_passing(asked: UserCall, found: Finding) -> str:
    """Pass another mask, and tell with which one what the first hides is not seen."""
    for at, leaf in enumerate(asked.leaves):
        if leaf.name not in found.told.split():
            continue
        for other, text in _others(leaf.given, leaf.name):
            if not torch.equal(other, leaf.given) and _obeyed(asked, at, other):
                return text
    return ""


def _others(x: Tensor, name: str) -> Iterator[tuple[Tensor, str]]:
    """Masks that say the same as one, if it is read with one thing changed, and what is told then."""
    if x.dim() == 1 and not x.is_floating_point() and x.dtype != torch.bool:
        for less in range(1, 5):
            many = f"{less} tokens" if less > 1 else "one token"
            yield (x - less).clamp(min=0), f"{name} hides {many} too few: those behind the last that it counts are seen"
        return
    if x.dim() > 1 and x.size(-1) == x.size(-2):
        yield (
            x.mT.contiguous(),
            f"{name} is transposed: what it says of a pair is taken for the pair turned round",
        )
    ends = x[..., :1], x[..., -1:]
    yield torch.cat([x[..., 1:], ends[1]], -1), f"{name} hides keys one place behind those that it says"
    yield torch.cat([ends[0], x[..., :-1]], -1), f"{name} hides keys one place before those that it says"
    yield x.flip(-1), f"{name} hides keys in the reverse order, as with padding at the other end"
    if len(x) > 1 and x.dim() > 1:
        yield x.roll(1, 0), f"items are masked by what {name} says of the item before them in the batch"
        yield x.roll(-1, 0), f"items are masked by what {name} says of the item behind them in the batch"


def _obeyed(asked: UserCall, at: int, other: Tensor) -> bool:
    """Whether nobody sees what an argument hides, where another is passed, and what it shows is seen."""
    put = {at: other}
    if asked.leaves[asked.main].given.dim() > 3:
        return any(_obeyed_in_all(asked, hides, put) for hides in _hidden_places(asked, at))
    for reach in asked.reaches.values():
        now = asked.reach(reach.leaf, reach.tokens, put)
        if now is None:
            return False
        for way in (way for some in hidings(asked, at, reach) for way in some):
            lives = others_shown(now, way) & ~way.hidden.all(-1, keepdim=True)
            if now.moved.size(1) == len(now.tokens):
                lives = lives & ~way.hidden.all(1)[:, :, None]
            lives = lives.any(1)
            seen = bool(hidden_seen(now, way).any())
            if not seen and bool(lives.any()) and bool((lives | way.hidden.all(1)).all()):
                return True
    return False


def _hidden_places(asked: UserCall, at: int) -> list[Tensor]:
    """Each way to read a mask of the places of an image, or of pairs: what it hides."""
    x = asked.leaves[at].given
    return [x.bool(), ~x.bool()] if x.shape == asked.leaves[asked.main].given.shape[:-1] else []


def _obeyed_in_all(asked: UserCall, hides: Tensor, put: dict[int, Tensor]) -> bool:
    """The same of a mask of places: all that is hidden is changed, and then all that is shown."""
    main = asked.leaves[asked.main].given
    before = asked.run([put.get(n, x) for n, x in enumerate(asked.given)])[0]
    gap = []
    for which in (hides, ~hides):
        made = [put.get(n, x) for n, x in enumerate(asked.given)]
        made[asked.main] = torch.where(which[..., None], mirrored(main), main)
        after = asked.run(made)[0]
        if before.shape[:-1] != hides.shape:
            return False
        gap.append(float(gaps(before, after).amax(-1).masked_fill(which, 0.0).max()))
    return bool(hides.any()) and gap[0] <= asked.share < gap[1]


def _beside(seen: Seen, way: Hiding, name: str) -> _Weights | None:
    weights = seen.call.weights
    items, _, queries, keys = weights.shape
    if way.hidden.size(-1) != keys or way.hidden.size(0) not in (1, items) or way.hidden.size(1) not in (1, queries):
        return None
    should = way.hidden[:, None].expand(items, weights.size(1), queries, keys)
    return _Weights(seen, should, _nothing(seen), name)


def _nothing(seen: Seen) -> Tensor:
    """Which weights are nothing, by a mask and not by chance."""
    scores = seen.call.scores
    return (seen.call.weights == 0) | (scores <= _LOW) | ~scores.isfinite()


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
