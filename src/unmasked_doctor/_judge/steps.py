"""From query times key to the average of values: one table of rows for each stage.

A row describes one thing that a stage may do. The first row that fits says what the stage does: what is right, a
mistake, a choice that any attention may make, or something that leaves the question open. `STAGES` has the tables in
their order.
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
from unmasked_doctor._ask.promises import SEEN
from unmasked_doctor._listen.view import Run, View, changed, drawn, unclear
from unmasked_doctor._report import Given, Outcome

__all__ = ["Fit", "Scores", "judged"]

_CAPS = (5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0, 50.0, 100.0)
_HIDES = -1e3  # a score as low as this hides its key
_LOWERED = 20.0  # a score that is lower by as much leaves its key next to no weight
_FIT, _FIT_ROUGH = 1e-8, 1e-3  # how far scores may be from a multiple of the products, as a share of their size
_COUNTS = 1e-6  # a weight, or a difference of scores, as small as this counts for nothing

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
    """The scores of one run, and questions about them; no question changes them.

    Attributes:
        hidden: True where a score hides its key from its query: (batch, heads, queries, keys).
        future: True where the key comes after the query: (queries, keys).
        causal: Whether every later key is hidden.
    """

    def __init__(self, view: View, run: Run):
        self.view, self.run, self.call = view, run, run.call
        self.hidden = (self.call.scores <= _HIDES) | ~self.call.scores.isfinite()
        queries, keys = self.hidden.shape[-2:]
        self.future = ~masks.causal(queries, keys)
        self.causal = bool(self.hidden[..., self.future].all()) and bool(self.future.any())

    def near(self, a: Tensor, b: Tensor, size: float = 1.0) -> bool:
        return self.view.near(a, b, size)

    @cached_property
    def allowed(self) -> Tensor | None:
        """The mask that the call was given: (batch, 1, queries, keys)."""
        may = self.run.case.allowed
        return None if may is None else (may if may.dim() == 3 else may[None]).unsqueeze(1)

    @cached_property
    def _known_to_hide(self) -> Tensor | None:
        if self.allowed is not None and self.allowed.shape[-2:] != self.hidden.shape[-2:]:
            return None
        may = self.view.subject.may(self.run.case, *self.hidden.shape[-2:])
        return None if may is None else ~may.unsqueeze(1).expand_as(self.hidden)

    @property
    def knows_what_to_hide(self) -> bool:
        """Whether the mask of the call, or a promise to be causal, says what should be hidden."""
        return self._known_to_hide is not None

    @property
    def should_hide(self) -> Tensor:
        """True where a key should be hidden, if that is known: (batch, heads, queries, keys)."""
        assert self._known_to_hide is not None
        return self._known_to_hide

    @property
    def by_mask(self) -> bool:
        """Whether the mask of the call says what should be hidden, and not only the order of the tokens."""
        return bool((self.should_hide != self.should_hide[:1]).any()) or not self.view.subject.causal

    @property
    def first_hides_more(self) -> bool:
        """Whether the first item's mask hides what another's shows: else one that is ignored would look the same."""
        return bool((self.should_hide[:1] & ~self.should_hide.all(0, keepdim=True)).any())

    # What the scores are made of

    @cached_property
    def fit(self) -> Fit | None:
        """What the scores are made of; None where that is not known, or where no softmax runs over the keys."""
        if self.call.over != "keys":
            return None
        return next(self._fits(), None)

    def _fits(self) -> Iterator[Fit]:
        """Try all scores as they are, all before a cap that they may have, and those alone that should be seen."""
        scores, candidates = self.call.scores, [("all", self.call.scores, self.hidden)]
        for cap in self.caps:
            if bool((scores[~self.hidden].abs() < cap * (1 - 1e-12)).all()):
                candidates.append(("capped", cap * (scores / cap).clamp(-1, 1).atanh(), self.hidden))
        if self.knows_what_to_hide:
            candidates.append(("shown", scores, self.should_hide | ~scores.isfinite()))
        of: Any
        for of, uncapped, left_out in candidates:
            if (fitted := self.fitted(self.call.product, uncapped, left_out)) is not None:
                scale, added = fitted
                yield Fit(of, scale, added, uncapped - scale[:, None, None] * self.call.product)

    def fits(self, of: str) -> bool:
        """Whether the scores are described, as "all", "capped" or "shown"."""
        return self.fit is not None and self.fit.of == of

    @property
    def described(self) -> Fit:
        """The fit, if there is one."""
        assert self.fit is not None
        return self.fit

    def fitted(self, product: Tensor, scores: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor] | None:
        """Solve scores = scale * product + added for scale and added, without what is hidden; None if none fits."""
        shown = (~hidden).to(product.dtype)
        scores = scores.masked_fill(hidden, 0.0)
        size = max(scores.abs().max().item(), 1e-3)
        fitted = self._fitted(product, scores, shown, size)
        if fitted is None:  # the maximum of each row, or another number for each row, may have been subtracted
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
        """The caps to try: those that models have, and those that attributes of the target's modules name."""
        kept = self.view.constants("cap")
        return [*_CAPS, *(c for c in kept if c < -_HIDES and c not in _CAPS)]

    def filled(self, value: float | None) -> bool:
        """Whether all that should be hidden has one finite score: this value, or for None any."""
        if not self.fits("shown"):
            return False
        values = self.call.scores[self.should_hide]
        if value is None:
            return bool(values.isfinite().all()) and bool((values - values[0]).abs().max() < _COUNTS)
        return self.near(values, torch.full_like(values, value))

    @cached_property
    def late_cap(self) -> float:
        """The cap that comes after the mask, so that all that should be hidden has minus this cap as score; or 0."""
        if not self.knows_what_to_hide:
            return 0.0
        values = self.call.scores[self.should_hide]
        return next((c for c in self.caps if self.near(values, torch.full_like(values, -c), c)), 0.0)

    def softmaxed_before(self) -> bool:
        """Whether the scores are made of a softmax of the products, and not of the products."""
        numbers, call = self.call.numbers, self.call
        for event in self.run.events[call.first + 1 : call.at]:
            alike = event.kind == "softmax" and event.result.numel() > int(numbers.max())
            if alike and self.fitted(event.result.reshape(-1)[numbers], call.scores, self.hidden) is not None:
                return True
        return False

    def differs_by_item(self) -> bool:
        """Whether what is added to the products differs from item to item, and stays the same for other tokens."""
        call, view = self.call, self.view
        if self.run.case.allowed is not None or len(self.run.calls) > 1:
            return False
        other = view.run(changed(self.run.case, lambda x: x.flip(-1) + 0.1))
        if len(other.calls) != 1 or other.call.scores.shape != call.scores.shape:
            return False
        hidden = self.hidden | (other.call.scores <= _HIDES)
        # If the same is added for both tokens, the differences of scores are a multiple of those of products.
        m = (call.product - other.call.product).masked_fill(hidden, 0.0)
        s = (call.scores - other.call.scores).masked_fill(hidden, 0.0)
        c = (m * s).sum((0, 2, 3)) / m.square().sum((0, 2, 3)).clamp(min=1e-30)
        return bool(c.abs().min() > 0) and self.near(s, c[:, None, None] * m, s.abs().max().item())

    # Who is hidden from whom

    @property
    def longer(self) -> int:
        """How many more keys than queries there are: the last query sees the last key."""
        return self.hidden.size(-1) - self.hidden.size(-2)

    def hides(self, mask: Tensor) -> bool:
        """Whether just these keys are hidden."""
        return torch.equal(self.hidden, mask.expand_as(self.hidden))

    def top_left(self) -> bool:
        """Whether a causal mask of fewer queries than keys begins at the first of both, not at the last."""
        if not self.view.subject.causal or self.hidden.size(-1) == self.hidden.size(-2):
            return False
        left = torch.ones(self.hidden.shape[-2:], dtype=torch.bool).triu(1)
        both = left if self.allowed is None else left | ~self.allowed
        return self.hides(left) or self.hides(both)

    @property
    def all_hidden(self) -> bool:
        """Whether all that should be hidden is; more may be."""
        return bool((self.hidden | ~self.should_hide).all())

    def none_sees_itself(self) -> bool:
        """Whether all that should be hidden is, and so is each query's own key, but for the first one's."""
        own = torch.eye(*self.hidden.shape[-2:], dtype=torch.bool).roll(self.longer, 1)
        may = ~self.should_hide[:, :, 1:] & own[1:]
        return self.all_hidden and bool(may.any()) and bool(self.hidden[:, :, 1:][may].all())

    def inverted(self) -> bool:
        """Whether all that should be seen is hidden, and something that should be hidden is seen."""
        leak = bool((self.should_hide & ~self.hidden).any())
        return self.hides(~self.should_hide) or (bool((self.hidden | self.should_hide).all()) and leak)

    def transposed(self) -> bool:
        """Whether the mask has its queries and keys exchanged."""
        return self.by_mask and self.hidden.size(-1) == self.hidden.size(-2) and self.hides(self.should_hide.mT)

    def of_other_items(self) -> bool:
        """Whether heads have the masks of other items, as `repeat` deals them out instead of `repeat_interleave`."""
        if not self.by_mask:
            return False
        items, heads, queries, keys = self.hidden.shape
        repeated = self.should_hide[:, 0][torch.arange(items * heads) % items].view(items, heads, queries, keys)
        return self.hides(repeated) and bool((repeated != self.should_hide).any())

    def levels(self, hidden: float, shown: float) -> bool:
        """Whether keys that should be hidden get ``hidden`` added to their scores, and the others ``shown``."""
        rest = self.described.rest
        values, others = rest[self.should_hide], rest[~self.should_hide]
        return self.near(values, torch.full_like(values, hidden)) and self.near(others, torch.full_like(others, shown))

    def lowered(self) -> bool:
        """Whether what should be hidden has lower scores, by so much that its weights are next to nothing."""
        rest = self.described.rest
        values, others = rest[self.should_hide & ~self.hidden], rest[~self.should_hide & ~self.hidden]
        return bool((values < (0.0 if not others.numel() else others.median().item()) - _LOWERED).all())

    def weights_hidden(self) -> bool:
        """Whether the weights of all that should be hidden are zero."""
        return self.near(self.call.weights * self.should_hide, torch.zeros_like(self.call.weights))

    def added_late(self) -> bool:
        """Whether one number is added to the weights of all that should be hidden, and another to the others'."""
        more = self.call.weights - self.call.softmax
        late, rest = more[self.should_hide], more[~self.should_hide]
        if not late.numel() or not rest.numel() or abs(float(late[0] - rest[0])) < _COUNTS:
            return False
        size = max(1.0, float(late[0].abs()))
        return self.near(late, late[:1].expand_as(late), size) and self.near(rest, rest[:1].expand_as(rest), size)

    def one_ahead(self) -> bool:
        """Whether each query sees one token of the future, and no more."""
        further = torch.ones(self.hidden.shape[-2:], dtype=torch.bool).triu(2 + self.longer)
        seen = bool((self.hidden & self.future & ~further).any())
        return not self.by_mask and bool((self.hidden | ~further).all()) and not seen

    # Windows

    @cached_property
    def band(self) -> tuple[int, int] | None:
        """How many tokens to the left and to the right each query sees; None where anything else is hidden."""
        one, (queries, keys) = self.hidden[0, 0], self.hidden.shape[-2:]
        if not bool((self.hidden == one).all()) or queries != keys or bool(one.all()):
            return None
        distance = torch.arange(queries)[:, None] - torch.arange(keys)
        left, right = int(distance[~one].max()), int(-distance[~one].min())
        return (left, right) if torch.equal(one, (distance > left) | (distance < -right)) else None

    @property
    def ahead(self) -> int:
        """How many later tokens each query sees, if it sees all earlier ones and not all later ones; or else 0."""
        left, right = self.band or (0, 0)
        return right if right < left == self.hidden.size(-1) - 1 else 0

    @cached_property
    def sizes(self) -> list[float]:
        """The sizes of a window that attributes of the target's modules name."""
        return self.view.constants("window", "win", "span", "radius", "local", "band", "reach")

    def lopsided(self) -> bool:
        """Whether a window that is not causal is longer on one side."""
        left, right = self.band or (0, 0)
        causal = self.view.subject.causal is True
        return not causal and 0 < min(left, right) != max(left, right) < self.hidden.size(-1) - 1

    def window_as_said(self) -> bool:
        """Whether a window is as long as an attribute says, where one does."""
        left, right = self.band or (0, 0)
        return not self.sizes or bool({left + 1, left + right + 1} & set(self.sizes)) or (
            left == right and left in self.sizes
        )  # fmt: skip

    # From the softmax to the values

    @property
    def sums(self) -> Tensor:
        """What the weights of each query sum to: (batch, heads, queries)."""
        return self.call.weights.sum(-1)

    def renormalized(self) -> bool:
        """Whether weights are masked, and then divided by their sums."""
        if not self.knows_what_to_hide or not self.near(self.sums, torch.ones_like(self.sums)):
            return False
        shown = self.call.softmax * ~self.should_hide
        return self.near(self.call.weights, shown / shown.sum(-1, keepdim=True))

    def undone(self) -> bool:
        """Whether weights that a sink had its share of are divided by their sum again."""
        total = self.call.softmax.sum(-1, keepdim=True).clamp(min=1e-30)
        return self.call.sinks and self.near(self.call.weights, self.call.softmax / total)

    # Weights that no softmax made

    @cached_property
    def exponentials(self) -> bool:
        """Whether the weights are exponentials of the products, or sum to one in each row."""
        call = self.call
        if call.over in ("keys", "logarithms"):
            return True
        hidden = ~call.scores.isfinite()
        if self.fitted(call.product, call.scores, hidden) is not None:
            return True
        if call.over == "heads" or hidden.any():
            return call.over != "nothing"
        rows = [x - x.mean(-1, keepdim=True) for x in (call.product, call.scores)]  # divided by a number for each key
        product, scores = (x - x.mean(-2, keepdim=True) for x in rows)
        return self.fitted(product, scores, hidden) is not None

    @cached_property
    def evened(self) -> str | None:
        """Why exponentials whose rows do not sum to one may still be right, by what moves with the scores; or None."""
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
        """Whether what is added grows by ALiBi's slopes, towards later keys ("ahead") or with the distance ("far")."""
        added = self.described.added
        heads, queries, keys = added.shape
        if queries != keys or heads < 2 or queries < 3:
            return False
        if which == "ahead":
            return not bool(self.hidden[:, :, 0].any()) and self._geometric(added[:, 0, 1:] - added[:, 0, :-1])
        row = added[:, -1] - added[:, -1, -1:]
        return not bool(self.hidden[:, :, -1].any()) and self._geometric(row[:, :-1] - row[:, 1:])

    def _geometric(self, steps: Tensor) -> bool:
        """Whether the steps from key to key are one slope above zero for each head, and the slopes are ALiBi's.

        ALiBi's are a geometric sequence, or for a number of heads that is no power of two those of `alibi_slopes`.
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
        return float(self.fit.added.masked_fill(self.hidden.any(0), 0.0).abs().max()) > 1e-6

    @property
    def windowed(self) -> bool:
        """Whether more is hidden than should be, or nobody said what should."""
        if not self.knows_what_to_hide:
            return True
        return self.all_hidden and self.allowed is None and not self.hides(self.should_hide)


@dataclass(frozen=True)
class Row:
    """One thing that a stage may do.

    Attributes:
        kind: "right", "wrong", "choice" (any is attention), or "open".
        text: What the stage does; braces stand for attributes of the scores ``s``.
        fits: Whether the stage does it.
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
    """A part of the way from scores to weights that one table judges.

    Attributes:
        step: The step that its findings name, one of `STEPS`; several stages may have the same.
        rows: What it may do; the first row that fits is reported.
        stops: The kinds of rows after which later stages cannot be judged.
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
    Row("right", "", lambda s: s.hides(s.should_hide)),
    Row("wrong", "the first query is aligned with the first key, and the last query misses the newest keys",
        Scores.top_left, "top-left-causal"),
    Row("wrong", "no query sees its own token", Scores.none_sees_itself),
    Row("open", "more is hidden than the mask says", lambda s: s.all_hidden and s.allowed is not None),
    Row("right", "", lambda s: s.all_hidden),  # a window, which is judged next
    Row("wrong", "what may be seen is hidden, and what may not is seen", Scores.inverted, "mask-polarity"),
    Row("wrong", "the mask is transposed: where a query may see a key, the key sees the query", Scores.transposed),
    Row("wrong", "every item is masked as the first one of the batch is",
        lambda s: s.by_mask and s.first_hides_more and s.hides(s.should_hide[:1]), "only-first-item"),
    Row("wrong", "masks are repeated item after item, where every head of an item needs the same: they are mixed up",
        Scores.of_other_items),
    Row("wrong", "the mask of what is hidden is added: those scores grow by one",
        lambda s: s.levels(1.0, 0.0), "boolean-mask-added"),
    Row("wrong", "the mask of what may be seen is added: what is hidden stays only one behind",
        lambda s: s.call.booleans and s.levels(0.0, 1.0), "boolean-mask-added"),
    Row("wrong", "zeros and ones are added: what is hidden stays only one behind",
        lambda s: s.levels(0.0, 1.0), "float-mask-of-ones"),
    Row("open", "what should be hidden is only lowered", Scores.lowered),
    Row("wrong", "the weights are masked after the softmax, in which what is hidden still takes its share: the rest no "
        "longer sums to one",
        lambda s: s.weights_hidden() and s.near(s.call.weights, s.call.softmax * ~s.should_hide), "mask-after-softmax"),
    Row("right", "", Scores.weights_hidden),
    Row("wrong", "the mask is added after the softmax, to the weights: what is hidden still takes its share",
        Scores.added_late, "mask-after-softmax"),
    Row("wrong", "the mask is ignored", lambda s: not s.hidden.any() and s.by_mask, "padding-ignored"),
    Row("wrong", "no query is kept from later keys", lambda s: not s.hidden.any(), "no-causal-mask"),
    Row("wrong", "each query sees one token of the future", Scores.one_ahead),
    Row("wrong", SEEN, lambda s: True),
)  # fmt: skip

# Where more is hidden, or nobody said what should be.
WINDOW = (
    Row("right", "", lambda s: not s.hidden.any() or (s.hides(s.future) and s.view.subject.causal is not False)),
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
    Stage("mask", HIDDEN, stops=("wrong",), asked=lambda s: s.knows_what_to_hide),
    Stage("mask", WINDOW, asked=lambda s: s.windowed),
    Stage("softmax", WEIGHTS),
    Stage("bias", ADDED),
)


def judged(scores: Scores) -> Iterator[Outcome]:
    """Judge each stage, and stop where later ones cannot be judged."""
    for stage in STAGES:
        row = next((row for row in stage.rows if row.fits(scores)), None) if stage.asked(scores) else None
        if row is not None:
            yield from row.outcome(stage.step, scores)
            if row.kind in stage.stops:
                return
