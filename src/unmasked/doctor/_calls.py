"""What calls alone tell: what each output depends on, in which order, under which mask, and with which numbers.

Each question is asked of a target about which nothing was found yet, and gives what it found; where something is wrong,
the row that fits its evidence names the cause.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from unmasked import probes
from unmasked.doctor._hear import heard
from unmasked.doctor._report import Finding, Open, Outcome, Passed
from unmasked.doctor._subject import Subject, said
from unmasked.doctor._target import is_triangle
from unmasked.probes import Evidence, changed, differs, enlarged, moved

__all__ = ["TRAINING", "Because", "behaviour", "leaves_inputs", "numbers"]

_MASK = "mask polarity, and padding respected"
_SUM = "weights sum to one"
_FUTURE = "no leak from the future, in value and gradient"
_ORDER = "the order of its tokens counts"
_ITSELF = "an output belongs to its own token"
GRADIENTS = "gradients reach the input and every parameter"
TRAINING = "in training, on average the same as in evaluation"
_CLEAR = 1e-3  # a leak of so much, or a part of another gap so small, is no rounding


class Because(NamedTuple):
    """A cause, and the evidence that fits it."""

    cause: str | None
    told: str
    fits: Callable[[], object] = lambda: True
    also: tuple[str, ...] = ()

    def found(self, check: str, evidence: object) -> Finding:
        return Finding(check, self.cause, self.told, str(evidence), also=self.also)


def _named(rows: Iterable[Because], check: str, evidence: object) -> Finding:
    return next(row for row in rows if row.fits()).found(check, evidence)


def behaviour(subject: Subject, calls: list[dict[str, Any]], *, equal: bool) -> Iterator[Outcome]:
    """Ask what needs only calls, and stop at what would only show the same again.

    Of what is equal to attention, at several sizes, only the mask's other shapes and fewer queries are left to ask.
    """
    own, plain, rest = subject.options.own, not subject.positions, not equal
    questions: list[tuple[bool, Callable[[], Iterator[Outcome]]]] = [
        (subject.options.masked, lambda: obeys_its_mask(subject)),
        (rest, lambda: _keeps_items_apart(subject)),
        (rest, lambda: _sees_others(subject)),
        (rest and subject.inputs.startswith("x_context"), lambda: _reads_its_context(subject)),
        (rest and subject.causal is True, lambda: _is_causal(subject, calls)),
        (rest and subject.causal is not True, lambda: _has_no_order(subject)),
        (not plain and own, lambda: _has_order(subject)),
        (rest and own, lambda: _notices_itself(subject)),
        (plain and rest, lambda: _averages(subject)),
        (subject.inputs.startswith("qkv") and bool(subject.causal), lambda: _aligned(subject)),
    ]
    for asked, question in questions:
        for outcome in question() if asked else ():
            yield outcome
            if isinstance(outcome, Finding):
                return


# Masks that are given


class _Seen(NamedTuple):
    """Which outputs noticed which keys, (items, queries, keys); and of which that can be said."""

    before: Tensor
    reached: Tensor
    sure: Tensor


def _reached(subject: Subject, allowed: Tensor, change: Callable[[Tensor, int], Tensor] = changed) -> _Seen:
    items, queries, keys = allowed.shape
    query, key, value = subject.three(items, queries, keys)
    own = subject.options.own
    before = subject.masked(query, key, value, allowed)
    columns = []
    for token in range(keys):
        other = change(key, token)
        values = other if value is key else change(value, token)
        columns.append(moved(subject.masked(other if own else query, other, values, allowed), before))
    sure = ~before.isnan().any(-1, keepdim=True).expand_as(allowed)
    if own:  # a token's output may notice the token itself, whether it attends to itself or not
        sure = sure & ~torch.eye(queries, dtype=torch.bool)
    return _Seen(before, torch.stack(columns, -1), sure)


def obeys_its_mask(subject: Subject) -> Iterator[Outcome]:
    """Change each key under several masks, and see which outputs notice."""
    found = list(_obeys(subject))
    if found[-1:] == [Passed(_MASK)] and subject.target.mask_axes == 4:
        found = [*_of_three_axes(subject), *found][:1]
    yield from found


def _obeys(subject: Subject) -> Iterator[Outcome]:
    items, tokens, axes = subject.items, subject.tokens, subject.target.mask_axes
    everything = torch.ones(items, tokens, tokens, dtype=torch.bool)
    open_ = _reached(subject, everything)
    if open_.before.isnan().all():
        told = "where the mask says True, for may see, the target does not look: with all True it sees nothing"
        evidence = f"{items} items of {tokens} tokens, everything allowed: every output is NaN"
        yield Finding("mask polarity", "mask-polarity", told, evidence)
        return
    padding = everything.clone()
    for item in range(items):
        padding[item if axes != 2 else slice(None), :, 1 + (item if axes != 2 else 0) % (tokens - 1)] = False
    for allowed in (padding, subject.drawn(items, tokens, tokens).expand(items, -1, -1)):
        seen = _reached(subject, allowed)
        if not differs(seen.before, open_.before):
            evidence = subject.sized("with some keys hidden, every output is as with none hidden")
            yield Finding("padding respected", "padding-ignored", "the mask changes nothing", evidence)
            return
        should = open_.reached & allowed
        if bool((seen.reached[seen.sure] != should[seen.sure]).any()):
            yield _named(_why_not_obeyed(subject, open_, seen, allowed), _MASK, _shown(subject, seen, should))
            return
    for large in (0, 1):
        seen = _reached(subject, padding, lambda x, token, n=large: enlarged(x, token)[n])  # type: ignore[misc]
        if bool((seen.reached & ~padding)[seen.sure].any()):
            told = "what the mask hides still counts where it is large: the mask adds too little"
            evidence = _shown(subject, seen, open_.reached & padding)
            yield Finding(_MASK, "boolean-mask-added", told, evidence, also=("float-mask-of-ones",))
            return
    yield Passed(_MASK)


def _of_three_axes(subject: Subject) -> Iterator[Outcome]:
    """Ask whether a mask without an axis of heads belongs to its item, where one with that axis was obeyed."""
    items, tokens = subject.items, subject.tokens
    three, drawn = subject.three(items, tokens, tokens), subject.drawn(items, tokens, tokens)
    right, of_first = (subject.masked(*three, mask) for mask in (drawn, drawn[:1].expand_as(drawn)))
    subject.target.mask_axes = 3  # what is no longer right then may be misused; but this is a mistake of its own
    with contextlib.suppress(Exception):
        given = subject.masked(*three, drawn)
        if differs(right, of_first) and not differs(given, of_first):
            told = "of masks of (batch, queries, keys), that of the first item is used for every item"
            evidence = subject.sized("with the first item's mask for every item, outputs are the same")
            yield Finding(_MASK, "only-first-item", told, evidence)
    subject.target.mask_axes = 4


def _why_not_obeyed(subject: Subject, open_: _Seen, seen: _Seen, allowed: Tensor) -> tuple[Because, ...]:
    """Look for a mask that it obeys, if not this one."""

    def obeys(mask: Tensor) -> bool:
        return torch.equal(seen.reached[seen.sure], (open_.reached & mask)[seen.sure])

    def as_queries() -> bool:
        rows = moved(seen.before, open_.before) | seen.before.isnan().any(-1)
        return torch.equal(rows, ~allowed.all(1)) and not bool(allowed.all())

    def counts_in_the_sum() -> bool:
        query, key, value = (x[:, :1].expand_as(x).clone() for x in subject.three(*allowed.shape))
        if subject.options.own:
            key = value = query
        masked, free = (subject.masked(query, key, value, mask) for mask in (allowed, torch.ones_like(allowed)))
        return bool(differs(masked, free))

    return (
        Because("mask-polarity", "where the mask says True, for may see, the target does not look",
                lambda: obeys(~allowed)),
        Because("only-first-item", "the mask of the first item is used for every item",
                lambda: obeys(allowed[:1].expand_as(allowed))),
        Because(None, "the mask's queries and keys are exchanged", lambda: obeys(allowed.mT)),
        Because(None, "heads are given the masks of other items: repeated in another order than the items are",
                lambda: _mixed_up(subject, open_, *allowed.shape[::2]), ("only-first-item",)),
        Because(None, "the mask hides a token as a query, and not as a key: others still see it", as_queries,
                ("padding-ignored",)),
        Because(None, "what the mask lets a query see does not count for it",
                lambda: not (seen.reached & ~allowed)[seen.sure].any()),
        Because("mask-after-softmax", "what the mask hides still counts in the sum that weights are divided by",
                counts_in_the_sum, ("boolean-mask-added", "float-mask-of-ones")),
        Because("boolean-mask-added", "what the mask hides still counts",
                also=("float-mask-of-ones", "mask-after-softmax")),
    )  # fmt: skip


def _mixed_up(subject: Subject, open_: _Seen, items: int, tokens: int) -> bool:
    """Whether each item sees what the masks of several items allow together, as if heads were dealt to them."""
    if subject.target.mask_axes == 2:
        return False
    few = torch.zeros(items, tokens, tokens, dtype=torch.bool)
    few[..., 0] = True
    few[torch.arange(items), :, 1 + torch.arange(items) % (tokens - 1)] = True
    seen = _reached(subject, few)
    for heads in [subject.num_heads] if subject.num_heads else range(2, items):
        each = torch.arange(items)[:, None] * heads + torch.arange(heads)
        turned = torch.arange(items)[:, None] + torch.arange(heads) * items
        for whose in (each % items, turned // heads):
            mask = open_.reached & few[whose].any(1)
            if torch.equal(seen.reached[seen.sure], mask[seen.sure]) and not torch.equal(mask, open_.reached & few):
                return True
    return False


def _shown(subject: Subject, seen: _Seen, should: Tensor) -> str:
    item, query, key = ((seen.reached != should) & seen.sure).nonzero()[0].tolist()
    may, does = ("may not", "moves its output") if seen.reached[item, query, key] else ("may", "leaves it as it was")
    return subject.sized(f"changing key {key} of item {item}, which query {query} {may} see, {does}")


# Who is seen by whom


def _reach(subject: Subject, x: Tensor) -> Tensor:
    """Tell which outputs notice which tokens: (outputs, tokens)."""
    before = subject.f(x)
    columns = [moved(subject.f(changed(x, token)), before).any(0) for token in range(x.size(1))]
    return torch.stack(columns, -1)


def _keeps_items_apart(subject: Subject) -> Iterator[Outcome]:
    check, f = "batch items independent", subject.f
    mixed = subject.ask(check, lambda b, t: probes.mixes_items(f, subject.noise(max(b, 2), t)))
    if isinstance(mixed, Evidence):
        yield _named(_why_mixed(subject), check, mixed)
        return
    yield mixed
    check, x = "an item is the same anywhere in the batch", subject.noise(subject.items, subject.tokens)
    gap = differs(f(x.flip(0)).flip(0), f(x))
    if gap:
        told = "an item's output depends on its place in the batch: something that heads should have is dealt to items"
        evidence = subject.sized(f"with the items in reverse order, outputs are off by {gap:.3g}")
        yield Finding(check, None, told, evidence, also=("batch-indexed-for-head",))
    else:
        yield Passed(check)


def _why_mixed(subject: Subject) -> Iterator[Because]:
    """Tell mistakes from each other by which items, and which tokens, move others."""
    f, x = subject.f, subject.noise(subject.items, subject.tokens)
    before, other = f(x), subject.noise(subject.items, subject.tokens, 4)
    flat = x.flatten(0, 1)

    def with_item(item: int) -> Tensor:
        y = x.clone()
        y[item] = other[item]
        return f(y)

    moves = [i for i in range(len(x)) if differs(*(y[torch.arange(len(x)) != i] for y in (with_item(i), before)))]
    first, head = "only-first-item", "batch-indexed-for-head"
    yield Because(first, "every item hangs on the first one of the batch", lambda: moves == [0], (head,))
    token = x.clone()
    token[:, -1] += 1
    alone = not differs(f(token)[:, :-1], before[:, :-1])
    modules = (m for module in subject.target.modules.values() for m in module.modules())
    forgets = any(getattr(m, "batch_first", None) is False for m in modules)
    told = "attention runs across the batch: an item sees other items, and no other token of its own"
    batch, forgotten = "batch-and-tokens-swapped", "batch-first-forgotten"
    yield Because(forgotten, told, lambda: alone and forgets, (batch,))
    yield Because(batch, told, lambda: alone, (forgotten,))

    def in_blocks() -> bool:
        for place in (0, len(flat) // 2, len(flat) - 1):
            y = flat.clone()
            y[place] = other.flatten(0, 1)[place]
            seen = moved(f(y.view_as(x)), before).flatten().nonzero().flatten()
            if not len(seen) or bool((seen // len(x) != place // len(x)).any()):
                return False
        return True

    yield Because(batch, "a view exchanges batch and tokens, and items run into each other", in_blocks, (forgotten,))
    told = "items hang on as many of the first ones as there are heads: the index meant for the head went to the batch"
    yield Because(head, told, lambda: moves == list(range(len(moves))) and 1 < len(moves) < len(x))
    yield Because(head, "items of the batch reach each other", also=(batch,))


def _sees_others(subject: Subject) -> Iterator[Outcome]:
    """Ask whether any token counts for another at all."""
    x, other = subject.noise(subject.items, subject.tokens), subject.noise(subject.items, subject.tokens, 4)
    first, last = x.clone(), x.clone()
    first[:, 0], last[:, -1] = other[:, 0], other[:, -1]
    before = subject.f(x)
    if differs(subject.f(first)[:, 1:], before[:, 1:]) or differs(subject.f(last)[:, :-1], before[:, :-1]):
        return
    reach = _reach(subject, x[:1])  # the ends may be in windows of their own
    if not (reach & ~torch.eye(len(reach), dtype=torch.bool)).any():
        evidence = subject.sized("changing any token moves no other token's output")
        yield Finding("other tokens are seen", None, "no output depends on another token: nothing attends", evidence)


def _reads_its_context(subject: Subject) -> Iterator[Outcome]:
    """Ask whether every token of the context counts."""
    check, keys = "every token of the context counts", subject.fixed or subject.tokens + 3
    query, context, _ = subject.three(subject.items, subject.tokens, keys)
    try:
        before = subject.target(query, context)
        lost = [n for n in range(keys) if not differs(subject.target(query, changed(context, n)), before)]
    except Exception as error:  # a length that it does not take
        yield Open(check, f"a target that takes a context of another length: it raised {said(error)}")
        return
    evidence = f"{subject.items} items of {subject.tokens} tokens, a context of {keys}: changing token"
    if len(lost) == keys:
        told = "no output depends on the context: its tokens attend to something else"
        yield Finding(check, None, told, f"{evidence} 0 of it, or any other, leaves the output as it was")
    elif lost:
        needs = f"whether some may be out of sight: {evidence} {lost[0]} of it leaves the output as it was"
        yield Open(check, needs)
    else:
        yield Passed(check)


def _is_causal(subject: Subject, calls: list[dict[str, Any]]) -> Iterator[Outcome]:
    leak = subject.ask(_FUTURE, lambda b, t: probes.sees_the_future(subject.f, subject.noise(b, t)))
    x = subject.noise(subject.items, subject.tokens)
    if isinstance(leak, Evidence):
        yield _named(_why_it_leaks(subject, x, calls), _FUTURE, leak)
        return
    yield leak
    past = subject.ask("the past is seen", lambda b, t: probes.misses_the_past(subject.f, subject.noise(b, t)))
    if isinstance(past, Evidence):
        past = Open("the past is seen", f"whether earlier tokens may be out of sight, as in a sliding window: {past}")
    yield past
    if isinstance(leak, Passed):
        yield from _stays_causal(subject, x)


def _stays_causal(subject: Subject, x: Tensor) -> Iterator[Outcome]:
    """Ask once more with the opposite numbers in its matrices, which were drawn, and as likely as not the others."""
    kept = [t for t in subject.target.tensors.values() if t.requires_grad and t.is_leaf and t.dim() > 1]
    kept = [t for t in kept if min(t.shape[-2:]) > 1 and t.isfinite().all() and not is_triangle(t)]
    if not subject.target.copied or not kept:
        return
    signs = {id(t): t for t in kept}.values()
    for tensor in signs:
        tensor.neg_()
    try:
        leak = probes.sees_the_future(subject.f, x)
    finally:
        for tensor in signs:
            tensor.neg_()
    if leak is not None and leak.difference > _CLEAR:
        told = "which tokens are hidden hangs on the signs of its weights: what was masked is mixed before the softmax"
        yield Finding(_FUTURE, None, told, f"with the opposite weights: {leak}")


def _why_it_leaks(subject: Subject, x: Tensor, calls: list[dict[str, Any]]) -> Iterator[Because]:
    """Tell mistakes from each other by which outputs notice which tokens."""
    f, hint = subject.f, any(call.get("is_causal") for call in calls)
    told = "is_causal=True is passed to nn.MultiheadAttention as if it were a mask"
    yield Because("is-causal-is-a-hint", told, lambda: hint)
    everything = functools.partial(probes.breaks_equivariance, f, x)
    yield Because("no-causal-mask", "every token sees every other", lambda: everything() is None)
    reach = _reach(subject, x)
    early, ones, tokens = reach.tril(), torch.ones_like(reach), x.size(1)
    told = "a token does not see itself: the mask hides the diagonal too, and the first sees nothing"
    yield Because(None, told, lambda: torch.equal(reach[1:], early[1:]))
    ahead = next((n for n in range(1, tokens - 1) if torch.equal(reach, ones.tril(n))), 0)
    told = f"each token sees {ahead} of those that come after it: the mask is moved by so many places"
    yield Because(None, told, lambda: ahead)
    told = "a token sees what comes after it, and not what came before"
    yield Because("mask-polarity", told, lambda: not early[:-1].tril(-1).any())
    last = _last_alone_averages(subject, x)
    silent = last and not _Heard.in_(lambda: f(x), (*_Heard.softmaxes, "exp", "exp_", "exp2"))
    yield Because(None, "later tokens count in the sum that the weights of earlier ones are divided by", lambda: silent)
    told = "weights are masked after the softmax: later tokens still count in the sum that they are divided by"
    yield Because("mask-after-softmax", told, lambda: last)
    yield Because("boolean-mask-added", "later tokens count, though not as much as earlier ones: the mask adds too "
                  "little", lambda: reach.all(),
                  ("float-mask-of-ones", "merge-without-transpose", "view-without-transpose"))  # fmt: skip
    told = "later tokens move the weights of earlier ones, and are hidden after that: by a mask that comes too late"
    moves = torch.equal(reach[0], early[0]) and bool(reach[1:].all())
    yield Because(None, told, lambda: moves, ("mask-after-softmax",))
    told = "some later tokens get through the mask, while all earlier ones are seen"
    yield Because(None, told, lambda: torch.equal(early, ones.tril()))
    told = "some outputs are read off other tokens, so that later ones get through the mask"
    yield Because("merge-without-transpose", told, also=("view-without-transpose", "swapped-view"))


def _last_alone_averages(subject: Subject, x: Tensor) -> bool:
    """Whether among copies of a token the last has the output of the token alone, and those before it do not."""
    try:
        alone, among = subject.f(x[:, :1])[:, 0], subject.f(x[:, :1].expand_as(x).clone())
    except Exception:  # it takes no single token
        return False
    return differs(among[:, -1], alone) < _CLEAR * differs(among[:, 0], alone)  # it may add something to the sum


def _has_no_order(subject: Subject) -> Iterator[Outcome]:
    """Ask what the order of the tokens does, where none should be hidden, or nobody said so."""
    f, check = subject.f, "permutation equivariance"
    if subject.causal is None:
        yield Open("leaks from the future", "whether no token may see a later one: pass causal=True or False")
    else:
        yield from _windows(subject)
    if subject.positions:
        return
    x = subject.noise(subject.items, subject.tokens)
    evidence = subject.ask(check, lambda b, t: probes.breaks_equivariance(f, subject.noise(b, t)))
    if not isinstance(evidence, Evidence):
        yield evidence
        return
    causal = probes.sees_the_future(f, x) is None
    if subject.causal is None and causal:
        return
    alike = f(x[:, :1].expand_as(x).clone())
    if causal:
        told = "no output sees a later token: it is causal, and causal=False was given"
        yield Finding(check, None, told, str(evidence))
    elif not differs(alike, alike[:, :1].expand_as(alike)):  # equal tokens have equal outputs, wherever they are
        yield Open(check, f"whether its scores depend on positions: pass positions=True if they do ({evidence})")
    else:
        told = "its outputs depend on the order of the tokens (if it adds positions, pass positions=True)"
        also: tuple[str, ...] = ("view-without-transpose", "swapped-view")
        also += () if subject.causal is False else ("boolean-mask-added", "mask-after-softmax")
        yield Finding(check, "merge-without-transpose", told, str(evidence), also=also)


def _windows(subject: Subject) -> Iterator[Outcome]:
    """Ask how far each token sees to both sides, where it does not see all."""
    tokens = subject.fixed or 2 * subject.tokens + 3
    try:
        reach = _reach(subject, subject.noise(1, tokens))
    except Exception:  # it takes no sequence that long
        return
    row, middle = reach[tokens // 2].tolist(), tokens // 2
    near = next((n for n, seen in enumerate(row[middle + 1 :]) if not seen), tokens)
    back = next((n for n, seen in enumerate(row[:middle][::-1]) if not seen), tokens)
    band = torch.ones_like(reach).tril(near).triu(-back)
    check = "as many tokens before it as behind it"
    if reach.all() or not torch.equal(reach, band) or near == back:
        return
    evidence = f"1 item of {tokens} tokens: each sees {back} before it and {near} behind it"
    if near == back + 1:
        yield Finding(check, None, "its window is one longer ahead than back: one end of it is off by one", evidence)
    else:
        yield Open(check, f"whether its window should be longer on one side: {evidence}")


def _has_order(subject: Subject) -> Iterator[Outcome]:
    """Where positions are said to count, exchange tokens: an output that sees both must notice.

    In a short sequence all may be in one window, and order counts for nothing: so the sequence is a long one. The mask
    of one that sees later tokens may be where the positions count, as in frames: then all outputs are asked.
    """
    for tokens in [subject.fixed] if subject.fixed else (160, 64, 32, 16):
        if subject.failure(1, tokens) is not None:  # it takes no sequence that long
            continue
        x = subject.noise(1, tokens)
        before = subject.f(x)
        seen = differs(subject.f(changed(x, 0))[:, -1], before[:, -1])
        break
    else:
        return
    if x.size(1) < 3:
        return
    order = torch.arange(x.size(1)).roll(1)
    order[-1], order[0] = x.size(1) - 1, x.size(1) - 2  # the last keeps its place, and sees the others in any mask
    after = subject.f(x[:, order])
    masked = bool(differs(subject.f(changed(x, x.size(1) - 1))[:, :-1], before[:, :-1]))
    masked = masked and bool(differs(after, before[:, order]))
    if seen and not masked and not differs(after[:, -1], before[:, -1]):
        told = "positions=True says that the order of its tokens counts, and it does not: no position reaches the "
        evidence = f"1 item of {x.size(1)} tokens: with all but the last in another order, the last output is the same"
        yield Finding(_ORDER, None, f"{told}scores", evidence)
    else:
        yield Passed(_ORDER)


def _notices_itself(subject: Subject) -> Iterator[Outcome]:
    """Ask whether outputs stand where their own tokens do: each must notice its token, as its query."""
    x = subject.noise(1, subject.tokens)
    reach = _reach(subject, x)
    lost = ((reach.sum(-1) > 1) & ~reach.diagonal()).nonzero().flatten().tolist()  # of one key any query has the value
    if not lost:
        yield Passed(_ITSELF)
        return
    seen = reach[lost[0]].nonzero().flatten().tolist()
    told = "an output depends on other tokens and not on its own: what it gives stands at other places than its tokens"
    yield Finding(_ITSELF, None, told, f"1 item of {x.size(1)} tokens: output {lost[0]} depends on the tokens {seen}")


def _aligned(subject: Subject) -> Iterator[Outcome]:
    x, check = subject.noise(subject.items, subject.tokens), "causal alignment with a cache"
    try:
        subject.target(x[:, -1:], x, x)
    except Exception:  # it wants as many queries as keys
        yield Open(check, "a target that takes fewer queries than keys")
        return
    evidence = subject.ask(check, lambda b, t: probes.misaligns_a_cache(subject.target, subject.noise(b, t)))
    if isinstance(evidence, Evidence):
        told = "the first query is aligned with the first key, not the last with the last"
        evidence = Finding(check, "top-left-causal", told, str(evidence))
    yield evidence


# Weights that sum to one


class _Heard(TorchFunctionMode):
    """Hears whether one of these functions is called."""

    softmaxes = ("softmax", "log_softmax", "scaled_dot_product_attention", "multi_head_attention_forward",
                 "flex_attention")  # fmt: skip

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self.heard, self.names = False, names

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.heard = self.heard or getattr(function, "__name__", "") in self.names
        return function(*args, **(kwargs or {}))

    @classmethod
    def in_(cls, call: Callable[[], object], names: tuple[str, ...] = softmaxes) -> bool:
        with cls(names) as mode:
            call()
        return bool(mode.heard)


def _averages(subject: Subject) -> Iterator[Outcome]:
    evidence = subject.ask(_SUM, lambda b, t: probes.is_no_average(subject.f, subject.noise(b, t)))
    if not isinstance(evidence, Evidence) and subject.inputs.startswith("qkv"):
        evidence = subject.ask(_SUM, functools.partial(_averages_values, subject))
        exponentials = ("exp", "exp_", "exp2")
        if isinstance(evidence, Evidence) and _Heard.in_(lambda: subject.f(subject.noise(2, 3)), exponentials):
            # What counts beside the keys, such as a sink, would show among equal keys too.
            told = "where all values are equal the output is not that value, though it is where keys are equal too"
            yield Finding(_SUM, "weights-not-normalized", told, str(evidence))
            return
    if not isinstance(evidence, Evidence):
        yield evidence
        return
    cause, blocks = "weights-not-normalized", "weights are divided by the sums of blocks of keys: the more blocks there"
    grown = "the more copies of a token there are, the larger is its output: weights are not divided by their sum"
    rows = (
        Because(cause, f"{blocks} are, the larger is the output", lambda: _jumps(subject)),
        Because(cause, grown, lambda: _grows(subject), ("mask-after-softmax", "softmax-over-queries")),
    )
    found = next((row for row in rows if row.fits()), None)
    needs = "whether something beside its tokens counts in the sum, as sinks or learned keys do, or a mixing of heads"
    yield found.found(_SUM, evidence) if found else Open(_SUM, f"{needs}: {evidence}")


def _copies(subject: Subject, counts: Iterable[int]) -> list[Tensor]:
    x = subject.noise(1, 1)
    return [subject.f(x.expand(-1, n, -1).clone())[:, -1] for n in counts]


def _grows(subject: Subject) -> bool:
    """Whether the output grows with every copy of a token alike, and no softmax is called that would prevent it.

    What a learned key adds to the sum weighs less with every copy; and heads that are mixed with a bias after the
    softmax grow as well, though the softmax did its work.
    """
    first, second, fourth, eighth = _copies(subject, (1, 2, 4, 8))
    step = second - first
    linear = not differs(fourth - second, 2 * step) and not differs(eighth - fourth, 4 * step)
    return bool(linear and differs(second, first)) and not _Heard.in_(lambda: subject.f(subject.noise(1, 1)))


def _jumps(subject: Subject) -> bool:
    """Whether the output of copies of a token stays, and after every so many of them grows by the same step."""
    if subject.fixed or not subject.options.own or subject.options.masked:
        return False
    given = _copies(subject, range(1, 26))
    grown = [n for n in range(1, 25) if differs(given[n], given[n - 1])]
    if len(grown) < 2 or grown[0] < 3:
        return False
    steps = [given[n] - given[n - 1] for n in grown]
    return {b - a for a, b in itertools.pairwise(grown)} == {grown[0]} and all(
        not differs(step, steps[0]) for step in steps
    )


def _averages_values(subject: Subject, items: int, tokens: int) -> Evidence | None:
    """Keep the values equal, and let queries and keys differ: each query alone with a key is as among all of them."""
    query, key, value = (subject.noise(items, tokens, place, place) for place in range(3))
    same = value[:, :1].expand_as(value).clone()
    among = subject.target(query, key, same)
    alone = [subject.target(query[:, n : n + 1], key[:, :1], same[:, :1]) for n in range(tokens)]
    gap = differs(among, torch.cat(alone, 1))
    told = f"{items} items of {tokens} tokens: with equal values, a query has another output than with one, off by"
    told = f"{told} {gap:.3g}: weights do not sum to one, or features are mixed between tokens"
    return Evidence(told, gap, ()) if gap else None


# Numbers that only some inputs show


def leaves_inputs(subject: Subject) -> Outcome:
    check = "inputs left as they were"

    def question(items: int, tokens: int) -> Evidence | None:
        three = (subject.noise(items, tokens, place, place) for place in range(3))
        given = (x.to(subject.target.device) for x in subject.target.given(*three))  # a copy would be written into
        return probes.overwrites_inputs(subject.target.raw, *given)

    evidence = subject.ask(check, question)
    if isinstance(evidence, Evidence):
        return Finding(check, "input-overwritten", "it writes into its input", str(evidence))
    return evidence


def numbers(subject: Subject, found: list[Finding]) -> Iterator[Outcome]:
    """Ask for gradients, for what large and small inputs do, and for half precision."""
    if not found:
        for outcome in itertools.chain(gradients(subject), large(subject), epsilon(subject)):
            yield outcome
            if isinstance(outcome, Finding) and not outcome.caution:
                break
    yield from _half(subject)
    if subject.options.masked and not {"mask-polarity", "padding-ignored"} & {each.cause for each in found}:
        yield from _blind(subject)
    yield from _returned_weights(subject)
    if subject.options.training:
        yield from trained(subject)


def gradients(subject: Subject) -> Iterator[Outcome]:
    parameters = [(n, t) for n, t in subject.target.tensors.items() if t.requires_grad and t.is_leaf]
    with torch.enable_grad():
        try:
            output = subject.f(subject.noise(subject.items, subject.tokens).requires_grad_() * 1)  # it may write there
            if output.requires_grad:
                output.sum().backward()
        except NotImplementedError as error:
            yield Open(GRADIENTS, f"a backward pass, which is not implemented here: {said(error)}")
            return
        except Exception as error:  # whatever a target may raise is what is wrong with it
            told = "it cannot be trained: its backward pass fails"
            yield Finding(GRADIENTS, "gradient-cut", told, said(error))
            return
    yield from heads_used(subject)
    items, tokens = (2, subject.fixed or 3) if subject.embed_dim > 256 else (subject.items, subject.tokens)
    try:
        cut = probes.cuts_gradients(subject.f, subject.noise(items, tokens), parameters)
    except Exception as error:  # as above, at the sizes of this question
        yield Open(GRADIENTS, f"the target raised {said(error)}")
        return
    if cut is None:
        yield Passed(GRADIENTS)
        return
    unused = not cut.difference  # else the output moves along the parameter
    told = "a parameter is not used" if unused else "a gradient is cut off"
    yield Finding(GRADIENTS, "gradient-cut", told, str(cut), caution=unused)


def heads_used(subject: Subject) -> Iterator[Outcome]:
    """Find linear layers of which the rows of whole heads get no gradient at all: nothing depends on them."""
    named = [(n, t) for n, t in subject.target.tensors.items() if t.requires_grad and t.is_leaf and t.dim() == 2]
    named = [(n, t) for n, t in named if isinstance(subject.target.owners[n], nn.Linear)]
    dim = subject.embed_dim // (subject.num_heads or 1)
    if not named or dim < 2:
        return
    with torch.enable_grad():
        output = subject.f(subject.noise(subject.items, subject.tokens))
        if not output.requires_grad:
            return
        given = torch.autograd.grad(output.sum(), [t for _, t in named], allow_unused=True)
    for (name, _), gradient in zip(named, given, strict=True):
        idle = torch.zeros(1, dtype=torch.bool) if gradient is None else (gradient == 0).all(1).cpu()
        if idle.any() and not idle.all() and len(idle) % dim == 0:
            by_head = idle.view(-1, dim)
            if torch.equal(by_head.any(1), by_head.all(1)):
                told = "some heads are not used: nothing depends on the rows of a layer that make them"
                evidence = subject.sized(f"{int(idle.sum())} of {len(idle)} rows of {name} get no gradient")
                yield Finding("every head is used", None, told, evidence)
                return


class _Exponentials(TorchFunctionMode):
    """Hears exponentials, and whether one overflows: zero divided by zero is another matter, and may be no mistake."""

    names = ("exp", "exp_", "exp2", "expm1", "pow", "__pow__", "__rpow__")
    heard = overflow = False

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        name = getattr(function, "__name__", "")
        self.heard = self.heard or name in self.names[:4] + _Heard.softmaxes[:4]
        if name in self.names and isinstance(result, Tensor):
            self.overflow = self.overflow or bool(result.isinf().any())
        return result


def large(subject: Subject) -> Iterator[Outcome]:
    """Make the inputs a hundred times as large: exponentials overflow where no maximum is subtracted."""
    check, x = "large inputs", subject.noise(subject.items, subject.tokens)
    before = subject.f(x)
    with _Exponentials() as exponentials:
        after = subject.f(100 * x)
    if before.isfinite().all() and not after.isfinite().all() and exponentials.overflow:
        told = "it overflows with large inputs: its softmax does not subtract the maximum of the scores first"
        count = int((~after.isfinite()).sum())
        evidence = subject.sized(f"a hundred times as large, they make {count} numbers of the output infinite or NaN")
        yield Finding(check, None, told, evidence)
    else:
        yield Passed(check)


def epsilon(subject: Subject) -> Iterator[Outcome]:
    """Find a norm whose epsilon counts, though it should only keep a norm of zero from being divided by.

    With norms of queries and keys, or of the input, and no biases, the output of c times the input is c times one
    tensor plus another, but for what epsilon changes: this vanishes as the inverse of c, or its square, every number of
    it alike. Positions that are added to tokens vanish so, too.
    """
    if subject.positions or subject.rough or not subject.target.copied:
        return
    x = subject.noise(subject.items, subject.tokens)
    with _Exponentials() as exponentials:
        subject.f(x)
    if not exponentials.heard:  # what is a quotient of other functions comes near its limit so, too
        return
    bare = subject.like()
    for name, tensor in bare.tensors.items():
        last = name.rpartition(".")[2]
        if (last.startswith("b") or "bias" in last) and tensor.dim() == 1:
            tensor.zero_()
    given = {c: bare(c * x) for c in (-16.0, 1.0, 16.0, 32.0, 64.0, 1e5, 2e5)}
    slope = (given[2e5] - given[1e5]) / 1e5
    base = given[1e5] - 1e5 * slope
    rest = [given[c] - c * slope - base for c in (16.0, 32.0, 64.0)]
    sizes = [each.norm().item() for each in rest]
    if not all(math.isfinite(size) for size in sizes) or sizes[2] <= 1e-7 * given[16.0].norm().item():
        return
    # Without biases, minus the input gives minus the output; with one of the values, one vector for all tokens more.
    even = (given[16.0] + given[-16.0]) / 2
    if (even - even.flatten(0, -2).mean(0)).norm().item() > 0.05 * sizes[0]:
        return  # a bias of another name, which vanishes beside large inputs as epsilon does
    for power in (1, 2):
        alike = all((rest[n] * 2 ** (n * power) - rest[0]).norm().item() < 0.1 * sizes[0] for n in (1, 2))
        if alike and sizes[0] * 16**power > 0.05 * given[1.0].norm().item():
            told = "a norm's epsilon is as large as what it is added to: scores depend on the size of the input"
            gap = sizes[0] * 16**power / x.numel() ** 0.5
            evidence = subject.sized(f"it moves the output by about {gap:.2g}, and less with larger inputs")
            yield Finding("the epsilon of norms", None, told, evidence)
            return


def trained(subject: Subject) -> Iterator[Outcome]:
    """Compare the mean of what it gives in training with what it gives in evaluation.

    A norm or a ReLU behind dropout leaves a gap too: so a gap alone is open, and dropout of scores is heard.
    """
    check = TRAINING
    x = subject.noise(1, subject.tokens)
    many, draws = x.repeat(64, 1, 1), []
    with torch.no_grad():
        expected = subject.f(x)
        with subject.target.training():
            try:
                for seed in range(16):
                    torch.manual_seed(seed)
                    draws.append(subject.f(many))
                events, _ = heard(lambda: subject.f(x))
            except Exception as error:  # whatever it raises in training alone
                yield Open(check, f"a target that runs in training mode: it raised {said(error)}")
                return
    drawn = torch.cat(draws)
    if not drawn.isfinite().all():
        told = "in training its output is not finite: dropout of a score of -inf is not a number"
        yield Finding(check, None, told, subject.sized(f"{int((~drawn.isfinite()).sum())} numbers are not finite"))
        return
    gap, chance = (drawn.mean(0) - expected[0]).abs(), drawn.std(0) / len(drawn) ** 0.5
    sure = gap > 6 * chance + 1e-6
    if not (bool(sure.any()) and gap[sure].max() > 0.01 * expected.abs().max()):
        yield Passed(check)
        return
    evidence = f"{len(drawn)} draws: their mean is off by {gap[sure].max().item():.2g}, more than chance allows"
    if any(facts.dropout for event in events if event.kind == "softmax" for facts in event.facts):
        told = "its mean over dropout is not what it computes in evaluation: dropout stands before the softmax"
        yield Finding(check, None, told, evidence, how="followed")
    else:
        yield Open(check, f"whether a norm or a nonlinearity behind dropout may move the mean: {evidence}")


def _half(subject: Subject) -> Iterator[Outcome]:
    check, half = "float16 range", subject.like()
    if not half.copied:
        yield Open(check, "a target that copy.deepcopy can copy: its own numbers are left as they are")
        return
    for module in half.modules.values():
        module.half()
    tokens = subject.tokens
    allowed = torch.ones(tokens, tokens, dtype=torch.bool).tril() if subject.options.masked else None
    x = subject.noise(subject.items, tokens)
    if not subject.f(x).isfinite().all():
        return
    evidence = None
    try:
        evidence = probes.fails_in_half(lambda x: half(x, allowed=allowed), x)
        half(x.half(), allowed=allowed)
    except Exception as error:  # whatever it raises in half precision alone
        if evidence is None or "overflow" not in str(error):
            yield Open(check, f"a target that runs in float16: it raised {said(error)}")
            return
    if evidence is None:
        yield Passed(check)
    else:
        told = "it does not survive float16: a number of its own, such as -1e9, is beyond 65504"
        yield Finding(check, "float16-overflow", told, str(evidence), caution=True)


def _blind(subject: Subject) -> Iterator[Outcome]:
    check = "no NaN where a query may see nothing"
    q, k, v = (subject.noise(subject.items, subject.tokens, place, place) for place in range(3))
    allowed = torch.ones(subject.tokens, subject.tokens, dtype=torch.bool)
    try:
        evidence = probes.is_blinded(subject.masked, q, k, v, allowed)
    except Exception as error:  # whatever it raises where nothing may be seen
        yield Open("rows that may see nothing", f"the target raised {said(error)}")
        return
    if evidence is None:
        yield Passed(check)
        return
    told = "a query that may see nothing gives NaN: a softmax over -inf alone"
    yield Finding(check, "fully-masked-row", told, str(evidence), caution="others" not in evidence.text)


def _returned_weights(subject: Subject) -> Iterator[Outcome]:
    x = subject.noise(subject.items, subject.tokens)
    with torch.no_grad():
        subject.f(x)
        returned = subject.target.weights
        if returned is None or probes.weights_sum_to_one(returned) is not None:
            return  # scores, a bias, or weights of which a sink took a part
        with subject.target.training():
            try:
                subject.f(x)
            except Exception:  # training is asked about elsewhere
                return
            trained_ = subject.target.weights
            evidence = None if trained_ is None else probes.weights_sum_to_one(trained_)
    if evidence is not None:
        told = "the weights that it returns in training are taken after dropout"
        yield Finding("weights sum to one, in training", "weights-after-dropout", told, str(evidence), caution=True)
