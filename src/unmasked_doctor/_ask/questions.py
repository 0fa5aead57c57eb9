"""What calls alone tell: whether inputs stay, and whom an output depends on: mask, item, other tokens, their order.

Each question is asked of a target about which nothing was found yet. Where the answer is evidence of a mistake, the
first row that fits it names the cause; a row is made only where none before it fits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from unmasked_doctor import probes
from unmasked_doctor._ask.promises import ALONE, FUTURE, MASK, ORDER, ORDERED
from unmasked_doctor._listen.hear import heard
from unmasked_doctor._report import Finding, Open, Outcome, Passed
from unmasked_doctor._subject import Because, Subject, explained
from unmasked_doctor.probes import Evidence, changed, differs, moved

__all__ = ["behaviour", "leaves_inputs", "obeys_its_mask"]

Question = Callable[[Subject], Iterator[Outcome]]
Probe = Callable[[Callable[[Tensor], Tensor], Tensor], Evidence | None]
_SUM = "weights sum to one"
_CLEAR = 1e-3  # a leak of so much, or a part of another gap so small, is no rounding


def leaves_inputs(subject: Subject) -> Outcome:
    check = "inputs left as they were"

    def question(items: int, tokens: int) -> Evidence | None:
        three = (subject.noise(items, tokens, place, place) for place in range(3))
        inputs = (x.to(subject.target.device) for x in subject.target.chosen(*three))  # a copy would be written into
        return probes.overwrites_inputs(subject.target.raw, *inputs)

    return subject.ask(check, question, [Because("input-overwritten", "it writes into its input")])


def behaviour(subject: Subject, *, equal: bool) -> Iterator[Outcome]:
    """Ask what needs only calls, and stop at what would only show the same again.

    Of what is equal to attention, at several sizes, only the mask's other shapes are left to ask.
    """
    own, plain, rest = subject.options.own, not subject.positions, not equal
    questions: list[tuple[bool, Question]] = [
        (subject.options.masked, obeys_its_mask),
        (rest, _asked(ALONE, _mixes_items, _why_mixed)),
        (rest, _sees_others),
        (rest and subject.inputs.startswith("x_context"), _reads_its_context),
        (rest and subject.causal is True, _asked(FUTURE, probes.sees_the_future, _why_it_leaks)),
        (rest and subject.causal is True, _asked("the past is seen", probes.misses_the_past, _why_it_misses)),
        (rest and subject.causal is not True, _has_no_order),
        (not plain and own, _has_order),
        (plain and rest, _asked(_SUM, probes.is_no_average, _why_no_average)),
    ]
    for asked, question in questions:
        for outcome in question(subject) if asked else ():
            yield outcome
            if isinstance(outcome, Finding) and not outcome.step:
                return


def _asked(check: str, probe: Probe, why: Callable[[Subject], Iterable[Because]]) -> Question:
    """The question that a probe asks, and the rows that say what its evidence means."""

    def question(subject: Subject) -> Iterator[Outcome]:
        yield subject.ask(check, lambda b, t: probe(subject.f, subject.noise(b, t)), why(subject))

    return question


# Masks that are given


class _Seen(NamedTuple):
    """Which outputs noticed which keys, (items, queries, keys); and of which that can be said."""

    before: Tensor
    reached: Tensor
    sure: Tensor


def _reached(subject: Subject, allowed: Tensor) -> _Seen:
    items, queries, keys = allowed.shape
    query, key, value = subject.three(items, queries, keys)
    own = subject.options.own
    before = subject.target(query, key, value, allowed)
    columns = []
    for token in range(keys):
        other = changed(key, token)
        values = other if value is key else changed(value, token)
        columns.append(moved(subject.target(other if own else query, other, values, allowed), before))
    sure = ~before.isnan().any(-1, keepdim=True).expand_as(allowed)
    if own:  # a token's output may notice the token itself, whether it attends to itself or not
        sure = sure & ~torch.eye(queries, dtype=torch.bool)
        sure = sure & allowed.any(1)[..., None]  # and what is hidden from all is padding, whose own output is nobody's
    return _Seen(before, torch.stack(columns, -1), sure)


def obeys_its_mask(subject: Subject) -> Iterator[Outcome]:
    """Change each key under several masks, and see which outputs notice.

    What is hidden and seen breaks a promise, at two sizes; what may be seen and is not is a difference.
    """
    outcome = _obeyed(subject, subject.items, subject.tokens)
    if isinstance(outcome, Finding) and not outcome.step and not subject.fixed:
        with contextlib.suppress(Exception):  # a size that it does not take
            again = _obeyed(subject, subject.items + 1, subject.tokens + 2)
            outcome = outcome if isinstance(again, Finding) else again
    yield outcome
    if isinstance(outcome, Passed) and subject.target.mask_axes == 4:
        yield from _of_three_axes(subject)


def _obeyed(subject: Subject, items: int, tokens: int) -> Outcome:
    axes = subject.target.mask_axes
    everything = torch.ones(items, tokens, tokens, dtype=torch.bool)
    open_ = _reached(subject, everything)
    padding = everything.clone()
    for item in range(items):
        padding[item if axes != 2 else slice(None), :, 1 + (item if axes != 2 else 0) % (tokens - 1)] = False
    for allowed in (padding, subject.drawn(items, tokens, tokens).expand(items, -1, -1)):
        seen = _reached(subject, allowed)
        if not differs(seen.before, open_.before):
            evidence = subject.sized("with some keys hidden, every output is as with none hidden")
            return Finding("padding respected", "padding-ignored", "the mask changes nothing", evidence)
        should = open_.reached & allowed
        if bool((seen.reached[seen.sure] != should[seen.sure]).any()):
            found = explained(_why_not_obeyed(open_, seen, allowed), MASK, _shown(subject, seen, should))
            seen_though_hidden = bool((seen.reached & ~allowed)[seen.sure].any())
            return found if seen_though_hidden or isinstance(found, Open) else replace(found, step="mask")
    return Passed(MASK)


def _of_three_axes(subject: Subject) -> Iterator[Outcome]:
    """Ask whether a mask without an axis of heads belongs to its item, where one with that axis was obeyed."""
    items, tokens = subject.items, subject.tokens
    three, drawn = subject.three(items, tokens, tokens), subject.drawn(items, tokens, tokens)
    right, of_first = (subject.target(*three, mask) for mask in (drawn, drawn[:1].expand_as(drawn)))
    with contextlib.suppress(Exception):  # one that takes no such mask
        output = subject.target.with_axes(3)(*three, drawn)
        if differs(right, of_first) and not differs(output, of_first):
            text = "of masks of (batch, queries, keys), that of the first item is used for every item"
            evidence = subject.sized("with the first item's mask for every item, outputs are the same")
            yield Finding(MASK, "only-first-item", text, evidence)


def _why_not_obeyed(open_: _Seen, seen: _Seen, allowed: Tensor) -> Iterator[Because]:
    """Look for a mask that it obeys, if not this one."""

    def obeys(mask: Tensor) -> bool:
        return torch.equal(seen.reached[seen.sure], (open_.reached & mask)[seen.sure])

    text = "where the mask says True, for may see, the target does not look"
    yield Because("mask-polarity", text, obeys(~allowed))
    first = "only-first-item"
    yield Because(first, "the mask of the first item is used for every item", obeys(allowed[:1].expand_as(allowed)))
    text = "what the mask lets a query see does not count for it"
    yield Because(None, text, not (seen.reached & ~allowed)[seen.sure].any())
    also = ("float-mask-of-ones", "mask-after-softmax", "padding-ignored", first)
    yield Because("boolean-mask-added", "what the mask hides still counts", also=also)


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


def _mixes_items(f: Callable[[Tensor], Tensor], x: Tensor) -> Evidence | None:
    return probes.mixes_items(f, x if len(x) > 1 else torch.cat([x, x.flip(-1)]))


def _why_mixed(subject: Subject) -> Iterator[Because]:
    """Tell mistakes from each other by which tokens of which items a token moves."""
    f, x = subject.f, subject.noise(subject.items, subject.tokens)
    before, flat = f(x), x.flatten(0, 1)
    batch, forgotten, head = "batch-and-tokens-swapped", "batch-first-forgotten", "batch-indexed-for-head"
    alone = not differs(f(changed(x, x.size(1) - 1))[:, :-1], before[:, :-1])
    modules = (m for module in subject.target.modules.values() for m in module.modules())
    forgets = any(getattr(m, "batch_first", None) is False for m in modules)
    text = "attention runs across the batch: an item sees other items, and no other token of its own"
    yield Because(forgotten if forgets else batch, text, alone, (batch if forgets else forgotten,))
    blocks = []
    for place in (0, len(flat) // 2, len(flat) - 1):
        seen = moved(f(changed(flat[None], place)[0].view_as(x)), before).flatten().nonzero().flatten()
        blocks.append(len(seen) > 0 and bool((seen // len(x) == place // len(x)).all()))
    yield Because(batch, "a view exchanges batch and tokens, and items run into each other", all(blocks), (forgotten,))
    yield Because(head, "items of the batch reach each other", also=(batch, "only-first-item"))


def _sees_others(subject: Subject) -> Iterator[Outcome]:
    """Ask whether any token counts for another at all."""
    reach = _reach(subject, subject.noise(1, subject.tokens))
    if not (reach & ~torch.eye(len(reach), dtype=torch.bool)).any():
        evidence = subject.sized("changing any token moves no other token's output")
        yield Finding("other tokens are seen", None, "no output depends on another token: nothing attends", evidence)


def _reads_its_context(subject: Subject) -> Iterator[Outcome]:
    """Ask whether the context counts."""
    check, (query, context, _) = "the context counts", subject.three(subject.items, subject.tokens, subject.tokens)
    other = subject.noise(subject.items, subject.tokens, 4, place=1)
    if differs(subject.target(query, other), subject.target(query, context)):
        yield Passed(check)
    else:
        text = "no output depends on the context: its tokens attend to something else"
        yield Finding(check, None, text, subject.sized("another context leaves the outputs as they were"))


def _why_it_misses(subject: Subject) -> Iterator[Because]:
    """A window hides what is far; what begins anew with each block of queries hides a token from itself."""
    reach = _reach(subject, subject.noise(subject.items, subject.tokens))
    text = "a token sees the first ones and not itself: where its queries are a block, they count from its beginning"
    blind = ~reach.diagonal() & reach[:, 0]
    yield Because("top-left-causal", text, bool(reach[0, 0] and blind[1:].any()), step="mask")
    yield Because(None, "whether earlier tokens may be out of sight, as in a sliding window", open=True)


def _why_it_leaks(subject: Subject) -> Iterator[Because]:
    """Tell mistakes from each other by which outputs notice which tokens."""
    f, x = subject.f, subject.noise(subject.items, subject.tokens)
    after, merged, viewed = "mask-after-softmax", "merge-without-transpose", "view-without-transpose"
    yield Because("no-causal-mask", "every token sees every other", probes.breaks_equivariance(f, x) is None)
    reach = _reach(subject, x)
    text = "a token sees what comes after it, and not what came before"
    yield Because("mask-polarity", text, not reach[:-1].tril(-1).any())
    last = _last_alone_averages(subject, x)
    silent = last and not _softmaxed(subject, x)
    text = "later tokens count in the sum that the weights of earlier ones are divided by"
    yield Because(None if silent else after, text, last)
    text = "later tokens count, though not as much as earlier ones: the mask adds too little"
    yield Because("boolean-mask-added", text, reach.all(), ("float-mask-of-ones", merged, viewed, after))
    text = "some outputs are read off other tokens, so that later ones get through the mask"
    yield Because(None, text, also=(merged, viewed, "swapped-view"))


def _last_alone_averages(subject: Subject, x: Tensor) -> bool:
    """Whether among copies of a token the last has the output of the token alone, and those before it do not."""
    try:
        alone, among = subject.f(x[:, :1])[:, 0], subject.f(x[:, :1].expand_as(x).clone())
    except Exception:  # it takes no single token
        return False
    return differs(among[:, -1], alone) < _CLEAR * differs(among[:, 0], alone)  # it may add something to the sum


def _has_no_order(subject: Subject) -> Iterator[Outcome]:
    """Ask what the order of the tokens does, where none should be hidden, or nobody said so."""
    f, x = subject.f, subject.noise(subject.items, subject.tokens)
    if subject.causal is None:
        yield Open("leaks from the future", "whether no token may see a later one: pass causal=True or False")
    if subject.positions or (subject.causal is None and probes.sees_the_future(f, x) is None):
        return

    def why() -> Iterator[Because]:
        text = "no output sees a later token: it is causal, and causal=False was given"
        yield Because(None, text, probes.sees_the_future(f, x) is None, step="mask")
        text = "the order of its keys counts where they differ, and not where they are alike: what is summed block by "
        text += "block is not brought to one size"
        yield Because("weights-not-normalized", text, _ordered_by_scores(subject), step="softmax")
        text = (
            "whether its scores depend on positions: pass positions=True if they do, or positions=False if the order "
        )
        yield Because(None, f"{text}of its tokens must not count", subject.positions is None, open=True)
        text = "its outputs depend on the order of the tokens, and positions=False says that it must not count"
        also: tuple[str, ...] = ("merge-without-transpose", "view-without-transpose", "swapped-view")
        also += () if subject.causal is False else ("boolean-mask-added", "mask-after-softmax")
        yield Because(None, text, also=also)

    yield subject.ask(ORDER, lambda b, t: probes.breaks_equivariance(f, subject.noise(b, t)), why())


def _ordered_by_scores(subject: Subject) -> bool:
    """Whether order counts for nothing where all keys are alike: positions in the scores would count there, too."""
    if subject.inputs != "qkv":
        return False
    query, key, value = subject.three(subject.items, subject.tokens, subject.tokens)
    alike = key[:, :1].expand_as(key).clone()
    return not differs(subject.target(query, alike, value), subject.target(query, alike, value.roll(1, 1)))


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
        text = "positions=True says that the order of its tokens counts, and it does not: no position reaches the "
        evidence = f"1 item of {x.size(1)} tokens: with all but the last in another order, the last output is the same"
        yield Finding(ORDERED, None, f"{text}scores", evidence)
    else:
        yield Passed(ORDERED)


# Weights that sum to one


def _softmaxed(subject: Subject, x: Tensor) -> bool:
    return any(event.kind == "softmax" for event in heard(lambda: subject.f(x))[0])


def _why_no_average(subject: Subject) -> Iterator[Because]:
    """Tell what weights are divided by; what counts beside the keys, as a sink does, shows among equal keys too."""
    cause = "weights-not-normalized"
    text = "the more copies of a token there are, the larger is its output: weights are not divided by their sum"
    also = ("mask-after-softmax", "softmax-over-queries")
    yield Because(cause, text, _grows(subject), also, step="softmax")
    text = "whether something beside its tokens counts in the sum, as sinks or learned keys do, or a mixing of heads"
    yield Because(None, text, open=True)


def _grows(subject: Subject) -> bool:
    """Whether the output grows with every copy of a token alike, and no softmax is called that would prevent it.

    What a learned key adds to the sum weighs less with every copy; and heads that are mixed with a bias after the
    softmax grow as well, though the softmax did its work.
    """
    x = subject.noise(1, 1)
    first, second, fourth, eighth = (subject.f(x.expand(-1, n, -1).clone())[:, -1] for n in (1, 2, 4, 8))
    step = second - first
    linear = not differs(fourth - second, 2 * step) and not differs(eighth - fourth, 4 * step)
    grows = bool(linear and differs(second, first))
    return grows and not _softmaxed(subject, x)
