"""From query times key to the average of values: one table of rows for each step, the right row first.

A row describes one thing that a step may do. The first row that fits names the step: as right, as a mistake, as a
choice that is taken as given, or as a question that stays open. `STAGES` has the tables in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from unmasked import masks
from unmasked.positions import alibi_slopes
from unmasked_doctor._listen.view import Run, View, changed, drawn, unclear
from unmasked_doctor._report import Given, Outcome

__all__ = ["Fit", "Scores", "judged"]

_CAPS = (5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0, 50.0, 100.0)
_SHUT = -1e3  # a score as low as this hides
_LOWERED = 20.0  # by as much, a key counts for next to nothing
_FIT, _FIT_ROUGH = 1e-8, 1e-3  # of scores, by how much they may miss a multiple of the products
_COUNTS = 1e-6  # a weight, or a step of a score, as small as this counts for nothing

Kind = Literal["right", "wrong", "choice", "open"]


@dataclass(frozen=True)
class Fit:
    """A description of scores: they are scale * product + added, with a scale for each head.

    Attributes:
        of: Which scores it describes: "all", "capped" (before the cap), or "shown" (those that should be seen).
        scale: By what each head's products are multiplied: (heads,).
        added: What is added to them, the same for every item: (heads, queries, keys).
        rest: The scores less scale * product: (batch, heads, queries, keys).
    """

    of: Literal["all", "capped", "shown"]
    scale: Tensor
    added: Tensor
    rest: Tensor


class Scores:
    """The scores of one run, and questions about them; nothing that is asked changes them.

    Attributes:
        shut: True where a score hides its key: (batch, heads, queries, keys).
        future: True where the key comes after the query: (queries, keys).
        causal: Whether every later key is hidden.
    """

    def __init__(self, view: View, run: Run):
        self.view, self.run, self.call = view, run, run.call
        self.shut = (self.call.scores <= _SHUT) | ~self.call.scores.isfinite()
        queries, keys = self.shut.shape[-2:]
        self.future = ~masks.causal(queries, keys)
        self.causal = bool(self.shut[..., self.future].all()) and bool(self.future.any())

    def near(self, a: Tensor, b: Tensor, size: float = 1.0) -> bool:
        return self.view.near(a, b, size)

    @cached_property
    def allowed(self) -> Tensor | None:
        may = self.run.case.allowed
        return None if may is None else (may if may.dim() == 3 else may[None]).unsqueeze(1)

    @cached_property
    def hidden(self) -> Tensor | None:
        """What should be hidden, as far as that is known: (batch, heads, queries, keys)."""
        if self.allowed is not None and self.allowed.shape[-2:] != self.shut.shape[-2:]:
            return None
        may = self.view.subject.may(self.run.case, *self.shut.shape[-2:])
        return None if may is None else ~may.unsqueeze(1).expand_as(self.shut)

    @property
    def should(self) -> Tensor:
        """The same, where it is known."""
        assert self.hidden is not None
        return self.hidden

    @property
    def by_mask(self) -> bool:
        """Whether a mask that was given says what is hidden, and not the order alone."""
        return bool((self.should != self.should[:1]).any()) or not self.view.subject.causal

    @property
    def first_hides_more(self) -> bool:
        """Whether the first item's mask hides what another's shows: else one that is ignored would look the same."""
        return bool((self.should[:1] & ~self.should.all(0, keepdim=True)).any())

    # What the scores are made of

    @cached_property
    def fit(self) -> Fit | None:
        """What the scores are made of; None where that is not known, or where no softmax runs over the keys."""
        if self.call.over != "keys":
            return None
        return next(self._fits(), None)

    def _fits(self) -> Iterator[Fit]:
        scores, candidates = self.call.scores, [("all", self.call.scores, self.shut)]
        for cap in self.caps:
            if bool((scores[~self.shut].abs() < cap * (1 - 1e-12)).all()):
                candidates.append(("capped", cap * (scores / cap).clamp(-1, 1).atanh(), self.shut))
        if self.hidden is not None:
            candidates.append(("shown", scores, self.hidden | ~scores.isfinite()))
        of: Any
        for of, uncapped, left_out in candidates:
            if (fitted := self.fitted(self.call.product, uncapped, left_out)) is not None:
                scale, added = fitted
                yield Fit(of, scale, added, uncapped - scale[:, None, None] * self.call.product)

    def fits(self, of: str) -> bool:
        return self.fit is not None and self.fit.of == of

    @property
    def described(self) -> Fit:
        """The fit, where there is one."""
        assert self.fit is not None
        return self.fit

    def fitted(self, product: Tensor, scores: Tensor, shut: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return scale and added of scores = scale * product + added, or None; what is shut counts for nothing."""
        shown = (~shut).to(product.dtype)
        scores = scores.masked_fill(shut, 0.0)
        size = max(scores.abs().max().item(), 1e-3)
        fitted = self._fitted(product, scores, shown, size)
        if fitted is None:  # a row's maximum, or another number of its own, may have been taken off
            count = shown.sum(-1, keepdim=True).clamp(min=1)
            rows = [x - (x * shown).sum(-1, keepdim=True) / count for x in (product, scores)]
            fitted = self._fitted(rows[0], rows[1], shown, size)
        return fitted

    def _fitted(self, product: Tensor, scores: Tensor, shown: Tensor, size: float) -> tuple[Tensor, Tensor] | None:
        count = shown.sum(0).clamp(min=1)
        means = [(x * shown).sum(0) / count for x in (product, scores)]
        m, s = ((x - mean) * shown for x, mean in zip((product, scores), means, strict=True))
        power = m.square().sum((0, 2, 3))
        if not bool((power > 1e-12).all()):
            return None
        c = (m * s).sum((0, 2, 3)) / power
        size = max(size, product.abs().max().item() * c.abs().max().item())
        if (s - c[:, None, None] * m).abs().max().item() > (_FIT_ROUGH if self.view.subject.rough else _FIT) * size:
            return None
        return c, means[1] - c[:, None, None] * means[0]

    @cached_property
    def caps(self) -> list[float]:
        kept = self.view.constants("cap")
        return [*_CAPS, *(c for c in kept if c < -_SHUT and c not in _CAPS)]

    def filled(self, value: float | None) -> bool:
        """Whether what should be hidden has one finite score: this one, or any."""
        if not self.fits("shown"):
            return False
        values = self.call.scores[self.should]
        if value is None:
            return bool(values.isfinite().all()) and bool((values - values[0]).abs().max() < _COUNTS)
        return self.near(values, torch.full_like(values, value))

    @cached_property
    def late_cap(self) -> float:
        """The cap that gives what should be hidden its score, because it comes after the mask; or else 0."""
        if self.hidden is None:
            return 0.0
        values = self.call.scores[self.should]
        return next((c for c in self.caps if self.near(values, torch.full_like(values, -c), c)), 0.0)

    def softmaxed_before(self) -> bool:
        """Whether a softmax of the products stands in their place."""
        numbers, call = self.call.numbers, self.call
        for event in self.run.events[call.first + 1 : call.at]:
            alike = event.kind == "softmax" and event.result.numel() > int(numbers.max())
            if alike and self.fitted(event.result.reshape(-1)[numbers], call.scores, self.shut) is not None:
                return True
        return False

    def differs_by_item(self) -> bool:
        """Whether what is added to the products is another for each item, and stays when the tokens change."""
        call, view = self.call, self.view
        if self.run.case.allowed is not None or len(self.run.calls) > 1:
            return False
        turned = view.run(changed(self.run.case, lambda x: x.flip(-1) + 0.1))
        if len(turned.calls) != 1 or turned.call.scores.shape != call.scores.shape:
            return False
        shut = self.shut | (turned.call.scores <= _SHUT)
        m = (call.product - turned.call.product).masked_fill(shut, 0.0)
        s = (call.scores - turned.call.scores).masked_fill(shut, 0.0)
        c = (m * s).sum((0, 2, 3)) / m.square().sum((0, 2, 3)).clamp(min=1e-30)
        return bool(c.abs().min() > 0) and self.near(s, c[:, None, None] * m, s.abs().max().item())

    # Who is hidden from whom

    def shuts(self, mask: Tensor) -> bool:
        return torch.equal(self.shut, mask.expand_as(self.shut))

    def top_left(self) -> bool:
        if not self.view.subject.causal or self.shut.size(-1) == self.shut.size(-2):
            return False
        left = torch.ones(self.shut.shape[-2:], dtype=torch.bool).triu(1)
        both = left if self.allowed is None else left | ~self.allowed
        return self.shuts(left) or self.shuts(both)

    @property
    def all_hidden(self) -> bool:
        return bool((self.shut | ~self.should).all())

    def none_sees_itself(self) -> bool:
        own = torch.eye(*self.shut.shape[-2:], dtype=torch.bool).roll(self.shut.size(-1) - self.shut.size(-2), 1)
        may = ~self.should[:, :, 1:] & own[1:]
        return self.all_hidden and bool(may.any()) and bool(self.shut[:, :, 1:][may].all())

    def inverted(self) -> bool:
        leak = bool((self.should & ~self.shut).any())
        return self.shuts(~self.should) or (bool((self.shut | self.should).all()) and leak)

    def transposed(self) -> bool:
        return self.by_mask and self.shut.size(-1) == self.shut.size(-2) and self.shuts(self.should.mT)

    def of_other_items(self) -> bool:
        """Whether masks are repeated item after item, where every head of an item needs the same."""
        if not self.by_mask:
            return False
        items, heads, queries, keys = self.shut.shape
        turned = self.should[:, 0][torch.arange(items * heads) % items].view(items, heads, queries, keys)
        return self.shuts(turned) and bool((turned != self.should).any())

    def levels(self, hidden: float, shown: float) -> bool:
        """Whether keys that should be hidden get ``hidden`` added to their scores, and the others ``shown``."""
        rest = self.described.rest
        values, others = rest[self.should], rest[~self.should]
        return self.near(values, torch.full_like(values, hidden)) and self.near(others, torch.full_like(others, shown))

    def lowered(self) -> bool:
        rest = self.described.rest
        values, others = rest[self.should & ~self.shut], rest[~self.should & ~self.shut]
        return bool((values < (0.0 if not others.numel() else others.median().item()) - _LOWERED).all())

    def weights_hidden(self) -> bool:
        return self.near(self.call.weights * self.should, torch.zeros_like(self.call.weights))

    def one_ahead(self) -> bool:
        """Whether each query sees one token of the future, and no more."""
        further = torch.ones(self.shut.shape[-2:], dtype=torch.bool).triu(2 + self.shut.size(-1) - self.shut.size(-2))
        seen = bool((self.shut & self.future & ~further).any())
        return not self.by_mask and bool((self.shut | ~further).all()) and not seen

    # Windows, where nobody said what is hidden

    @cached_property
    def band(self) -> tuple[int, int] | None:
        """How many tokens to the left and to the right are seen, if that is all that hides."""
        one, (queries, keys) = self.shut[0, 0], self.shut.shape[-2:]
        if not bool((self.shut == one).all()) or queries != keys or bool(one.all()):
            return None
        distance = torch.arange(queries)[:, None] - torch.arange(keys)
        left, right = int(distance[~one].max()), int(-distance[~one].min())
        return (left, right) if torch.equal(one, (distance > left) | (distance < -right)) else None

    @property
    def ahead(self) -> int:
        """How many later tokens are seen, where all earlier ones are, and not all later ones; or else 0."""
        left, right = self.band or (0, 0)
        return right if right < left == self.shut.size(-1) - 1 else 0

    @cached_property
    def sizes(self) -> list[float]:
        return self.view.constants("window", "win", "span", "radius", "local", "band", "reach")

    def lopsided(self) -> bool:
        left, right = self.band or (0, 0)
        causal = self.view.subject.causal is True
        return not causal and 0 < min(left, right) != max(left, right) < self.shut.size(-1) - 1

    def window_as_said(self) -> bool:
        """Whether a window is as long as an attribute says, where one does."""
        left, right = self.band or (0, 0)
        return not self.sizes or bool({left + 1, left + right + 1} & set(self.sizes)) or (
            left == right and left in self.sizes
        )  # fmt: skip

    # From the softmax to the values

    @property
    def sums(self) -> Tensor:
        return self.call.weights.sum(-1)

    def renormalized(self) -> bool:
        """Whether weights are masked, and then divided by their sums."""
        if self.hidden is None or not self.near(self.sums, torch.ones_like(self.sums)):
            return False
        shown = self.call.softmax * ~self.hidden
        return self.near(self.call.weights, shown / shown.sum(-1, keepdim=True))

    def undone(self) -> bool:
        total = self.call.softmax.sum(-1, keepdim=True).clamp(min=1e-30)
        return self.call.sinks and self.near(self.call.weights, self.call.softmax / total)

    # Weights that no softmax made

    @cached_property
    def exponentials(self) -> bool:
        """Whether they are exponentials of the products, or sum to one in a row."""
        call = self.call
        if call.over in ("keys", "logarithms"):
            return True
        shut = ~call.scores.isfinite()
        if self.fitted(call.product, call.scores, shut) is not None:
            return True
        if call.over == "heads" or shut.any():
            return call.over != "nothing"
        rows = [x - x.mean(-1, keepdim=True) for x in (call.product, call.scores)]  # divided by a number for each key
        product, scores = (x - x.mean(-2, keepdim=True) for x in rows)
        return self.fitted(product, scores, shut) is not None

    @cached_property
    def evened(self) -> str | None:
        """Why exponentials whose rows do not sum to one may be right: what is moved by scores, and what is not."""
        view = self.view
        same = view.run(view.case(self.run.case.query.size(0), same=True))
        other = view.run(same.case, {same.call.first: lambda x: x + drawn(x, 5)})
        if view.near(other.output, same.output, same.output.abs().max().item()):
            return "its weights are divided by their sums only after the values are averaged"
        more = view.again(view.run(self.run.case, {self.call.first: lambda x: x + 0.5}))
        sums = [each.call.weights.sum(-1) for each in (self.run, more) if each.calls]
        if len(sums) == 2 and all(bool((x < 1).all()) for x in sums):  # something else counts in the sum, and stays
            step = sums[1].logit() - sums[0].logit()
            one = step.mean((0, 2), keepdim=True).expand_as(step)
            if view.near(step, one) and bool((step > _COUNTS).all()):
                return "something beside its tokens counts in the sum of the weights"
        return None

    # What is added to the scores

    def slopes(self, which: Literal["ahead", "far"]) -> bool:
        """Whether what is added grows towards what comes later, or with the distance, by ALiBi's own slopes."""
        added = self.described.added
        heads, queries, keys = added.shape
        if queries != keys or heads < 2 or queries < 3:
            return False
        if which == "ahead":
            return not bool(self.shut[:, :, 0].any()) and self._geometric(added[:, 0, 1:] - added[:, 0, :-1])
        row = added[:, -1] - added[:, -1, -1:]
        return not bool(self.shut[:, :, -1].any()) and self._geometric(row[:, :-1] - row[:, 1:])

    def _geometric(self, steps: Tensor) -> bool:
        """Whether steps from key to key are slopes above zero, each head's the same part of that of the head before.

        Or those that ALiBi has for a number of heads that is no power of two.
        """
        slope = steps.mean(-1)
        if not (self.near(steps, slope[:, None].expand_as(steps)) and bool((slope > _COUNTS).all())):
            return False
        if self.near(slope, alibi_slopes(len(slope)).to(slope)):
            return True
        ratio = slope[1:] / slope[:-1]
        return self.near(ratio, ratio[:1].expand_as(ratio)) and abs(ratio[0].item() - 1) > 1e-3

    @property
    def biased(self) -> bool:
        """Whether something is added to what should be seen."""
        if self.fit is None:
            return False
        return float(self.fit.added.masked_fill(self.shut.any(0), 0.0).abs().max()) > 1e-6

    @property
    def windowed(self) -> bool:
        """Whether more is hidden than should be, or nobody said what should."""
        return self.hidden is None or (self.all_hidden and self.allowed is None and not self.shuts(self.should))


@dataclass(frozen=True)
class Row:
    """One thing that a step may do.

    Attributes:
        kind: "right", "wrong", "choice" (any is attention), or "open".
        text: What the step does, in which braces stand for attributes of the scores ``s``.
        fits: Whether the step does it.
        cause: The museum's slug of a mistake.
    """

    kind: Kind
    text: str
    fits: Callable[[Scores], bool]
    cause: str | None = None

    def outcome(self, step: str, scores: Scores) -> Iterator[Outcome]:
        text = self.text.format(s=scores)
        if self.kind == "wrong":
            yield scores.view.wrong(step, self.cause, text)
        elif self.kind == "choice":
            yield Given(text)
        elif self.kind == "open":
            yield unclear(text)


@dataclass(frozen=True)
class Stage:
    """A step of the weights.

    Attributes:
        step: Its name.
        rows: What it may do, of which the first that fits is reported.
        stops: The kinds of rows after which later steps cannot be judged.
        asked: Whether it is judged at all.
    """

    step: str
    rows: tuple[Row, ...]
    stops: tuple[Kind, ...] = ()
    asked: Callable[[Scores], bool] = lambda s: True


_Q, _N = "softmax-over-queries", "weights-not-normalized"
_NOT_ONE = "the weights of a query do not sum to one"
_HANDMADE = "the exponentials of the scores are divided by"

SOFTMAX = (
    Row("right", "", lambda s: s.call.over == "keys"),
    Row("wrong", "the values are averaged with the logarithms of the weights",
        lambda s: s.call.over == "logarithms", _N),
    Row("open", "{s.evened}",
        lambda s: s.call.at == s.call.place and s.call.over == "nothing" and s.evened is not None),
    Row("wrong", f"{_HANDMADE} their sums over the queries: {_NOT_ONE}",
        lambda s: s.call.at == s.call.place and s.call.over == "queries", _Q),
    Row("wrong", f"{_HANDMADE} their sums over the heads: {_NOT_ONE}",
        lambda s: s.call.over == "heads", _N),
    Row("wrong", f"{_HANDMADE} their sums over all queries and keys: {_NOT_ONE}",
        lambda s: s.call.over == "all queries and keys", _N),
    Row("wrong", f"{_HANDMADE} what is not the sum of their row: {_NOT_ONE}",
        lambda s: s.call.over == "nothing", _N),
    Row("wrong", "the softmax runs over the queries: columns sum to one",
        lambda s: s.call.over == "queries" and torch.equal(s.call.softmax, s.call.weights), _Q),
    Row("open", "its softmax runs over the queries, and something follows", lambda s: s.call.over == "queries"),
    Row("wrong", "the softmax does not run over the keys", lambda s: True, _N),
)  # fmt: skip

SCORES = (
    Row("right", "", lambda s: s.fits("all")),
    Row("choice", "a cap on its scores", lambda s: s.fits("capped")),
    Row("wrong", "the scores are multiplied by zeros and ones, and a score of zero is no mask",
        lambda s: s.filled(0.0), "float-mask-of-ones"),
    Row("wrong", "what should be hidden gets a finite score, and is seen",
        lambda s: s.filled(None), "boolean-mask-added"),
    Row("right", "", lambda s: s.fits("shown")),
    Row("wrong", "scores are capped at {s.late_cap:g} after the mask: what is hidden gets the score "
        "-{s.late_cap:g}, and is seen", lambda s: s.late_cap > 0, "softcap-after-mask"),
    Row("wrong", "a softmax is taken before the mask, and another one after it", Scores.softmaxed_before),
    Row("wrong", "what is added to the scores differs from item to item", Scores.differs_by_item),
    Row("open", "its scores are not a multiple of query times key plus something fixed", lambda s: True),
)  # fmt: skip

# Where it is known what should be hidden.
HIDDEN = (
    Row("right", "", lambda s: s.shuts(s.should)),
    Row("wrong", "the first query is aligned with the first key, and the last query misses the newest keys",
        Scores.top_left, "top-left-causal"),
    Row("wrong", "no query sees its own token", Scores.none_sees_itself),
    Row("open", "more is hidden than the mask says", lambda s: s.all_hidden and s.allowed is not None),
    Row("right", "", lambda s: s.all_hidden),  # a window, which is judged next
    Row("wrong", "what may be seen is hidden, and what may not is seen", Scores.inverted, "mask-polarity"),
    Row("wrong", "the mask is transposed: where a query may see a key, the key sees the query", Scores.transposed),
    Row("wrong", "every item is masked as the first one of the batch is",
        lambda s: s.by_mask and s.first_hides_more and s.shuts(s.should[:1]), "only-first-item"),
    Row("wrong", "masks are repeated item after item, where every head of an item needs the same: they are mixed up",
        Scores.of_other_items),
    Row("wrong", "the mask of what is hidden is added: those scores grow by one",
        lambda s: s.levels(1.0, 0.0), "boolean-mask-added"),
    Row("wrong", "the mask of what may be seen is added: what is hidden stays only one behind",
        lambda s: s.call.booleans and s.levels(0.0, 1.0), "boolean-mask-added"),
    Row("wrong", "zeros and ones are added: what is hidden stays only one behind",
        lambda s: s.levels(0.0, 1.0), "float-mask-of-ones"),
    Row("open", "what should be hidden is only lowered", Scores.lowered),
    Row("wrong", "the weights are masked after the softmax, and no longer sum to one",
        lambda s: s.weights_hidden() and s.near(s.call.weights, s.call.softmax * ~s.should), "mask-after-softmax"),
    Row("right", "", Scores.weights_hidden),
    Row("wrong", "the mask is ignored", lambda s: not s.shut.any() and s.by_mask, "padding-ignored"),
    Row("wrong", "no query is kept from later keys", lambda s: not s.shut.any(), "no-causal-mask"),
    Row("wrong", "each query sees one token of the future", Scores.one_ahead),
    Row("wrong", "some keys that should be hidden are seen", lambda s: True),
)  # fmt: skip

# Where more is hidden, or nobody said what should be.
WINDOW = (
    Row("right", "", lambda s: not s.shut.any() or (s.shuts(s.future) and s.view.subject.causal is not False)),
    Row("open", "some keys are hidden from some queries", lambda s: s.band is None),
    Row("open", "each query sees all tokens before it and {s.ahead} after it: pass causal=True if that is too many",
        lambda s: s.ahead > 0 and s.view.subject.causal is None),
    Row("open", "a window shows more tokens on one side than on the other", Scores.lopsided),
    Row("choice", "which tokens its window shows", Scores.window_as_said),
    Row("wrong", "its window is not as long as its attribute says, or counts the token itself as well",
        lambda s: True),
)  # fmt: skip

WEIGHTS = (
    Row("right", "", lambda s: s.near(s.call.softmax, s.call.weights) and not s.call.cut),
    Row("wrong", "weights of some keys meet no value: the last are cut off", lambda s: s.call.cut),
    Row("wrong", "after the sink is dropped the weights are divided by their sum again: the sink has no effect",
        Scores.undone, "sink-share-returned"),
    Row("right", "", Scores.renormalized),
    Row("open", "weights are changed between the softmax and the values", lambda s: True),
)  # fmt: skip

ADDED = (
    Row("wrong", "the bias grows with the distance to what comes later: it has a sign",
        lambda s: s.slopes("ahead"), "alibi-sign"),
    Row("wrong", "the bias grows with the distance: what is far is preferred",
        lambda s: s.slopes("far"), "alibi-sign"),
    Row("choice", "what it adds to its scores", lambda s: s.biased),
)  # fmt: skip


# Judged in this order.
STAGES = (
    Stage("softmax", SOFTMAX, stops=("wrong", "open")),
    Stage("mask", SCORES, stops=("wrong", "open")),
    Stage("mask", HIDDEN, stops=("wrong",), asked=lambda s: s.hidden is not None),
    Stage("mask", WINDOW, asked=lambda s: s.windowed),
    Stage("softmax", WEIGHTS),
    Stage("bias", ADDED),
)


def judged(scores: Scores) -> Iterator[Outcome]:
    """Judge each step of the weights, and stop where the later ones cannot be known."""
    for stage in STAGES:
        row = next((row for row in stage.rows if row.fits(scores)), None) if stage.asked(scores) else None
        if row is not None:
            yield from row.outcome(stage.step, scores)
            if row.kind in stage.stops:
                return
