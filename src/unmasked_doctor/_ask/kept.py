"""What is kept from call to call: a cache must give what the whole sequence gives, and nothing else may be kept."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from unmasked_doctor._ask.promises import CACHE
from unmasked_doctor._report import Finding, Outcome, Passed
from unmasked_doctor._subject import Because, Subject, brief, explained
from unmasked_doctor._words import KEPT
from unmasked_doctor.probes import changed, differs, moved

__all__ = ["caches", "keeps_nothing"]


def keeps_nothing(subject: Subject) -> Iterator[Outcome]:
    """Call it with few tokens, then with many: a mask or a table that it keeps from the first call must fit both."""
    few, many = subject.tokens, 2 * subject.tokens + 3
    if subject.fixed or subject.failure(2, many) is not None:  # it takes no sequence that long
        return
    short, long = subject.noise(2, few), subject.noise(2, many, 11)
    check, fresh, used = KEPT, subject.like(), subject.like()
    used(short)
    after, alone = used(long), fresh(long)
    leak = differs(used(changed(long, many - 1))[:, few:-1], after[:, few:-1]) if subject.causal else 0.0
    if leak:
        text = f"after calls with {few} tokens or fewer, a longer sequence is not masked beyond them"
        evidence = f"{many} tokens: changing the last moves outputs before it, after the first {few}, by {leak:.3g}"
        yield Finding(check, None, text, evidence, also=("no-causal-mask",))
    elif gap := differs(after, alone):
        text = "a call with fewer tokens changes what it gives for more: something is kept from call to call"
        yield Finding(check, None, text, f"{many} tokens at first and after {few}: off by {gap:.3g}")
    else:
        yield Passed(check)


def caches(subject: Subject) -> Iterator[Outcome]:
    """Give it a sequence in pieces, with its cache, cut in several ways: the outputs must be those of the whole."""
    if subject.options.cache is None:
        return
    tokens = subject.fixed or max(subject.tokens, 8)
    x = subject.noise(subject.items, tokens)
    plans = [[1] * tokens, [tokens - 2, 1, 1], [2, tokens - 2], [3, 2, tokens - 5]]
    try:
        whole = subject.f(x)
        pieces = [_in_pieces(subject, x, plan) for plan in plans]
    except Exception as error:  # cache= says that it takes a cache: whatever it raises is a finding
        text = "it does not go on with the cache that it returns, though cache= says that it takes one"
        yield Finding(CACHE, None, text, f"{tokens} tokens in pieces: {brief(error)}")
        return
    for plan, output in zip(plans, pieces, strict=True):
        if gap := differs(output, whole):
            first = moved(output, whole).any(0).nonzero()[0].item()
            steps = " + ".join(map(str, plan))
            evidence = f"{tokens} tokens given as {steps}: the output of token {first} is off by {gap:.3g}"
            yield explained(_why(subject, x, whole, plans, pieces), CACHE, evidence)
            return
    yield Passed(CACHE)


def _in_pieces(subject: Subject, x: Tensor, plan: list[int]) -> Tensor:
    """Return the outputs of a sequence in pieces of these sizes, joined."""
    cache, outputs = None, []
    for piece in x.split(plan, 1):
        output, cache = subject.target.step(piece, cache)
        outputs.append(output)
        if cache is None:
            raise ValueError("it returned no cache")
    return torch.cat(outputs, 1)


def _why(subject: Subject, x: Tensor, whole: Tensor, plans: list[list[int]], pieces: list[Tensor]) -> Iterator[Because]:
    """Yield the possible causes of outputs that differ with a cache, the surest first, each with whether it holds."""
    single, chunk = plans[0], plans[2]
    by_token = not differs(pieces[0], whole)
    text = "with a cache, tokens that are given at once see what comes after them"
    ahead = any(_sees_ahead(subject, x, plan) for plan in (plans[2:] if by_token else [single]))
    yield Because("no-causal-mask", text, ahead)
    last, plan = x.size(1) - 1, chunk if by_token else single
    output = _in_pieces(subject, x, plan)
    sees, should = [], []
    for early in range(last):
        other = changed(x, early)
        sees.append(bool(moved(_in_pieces(subject, other, plan), output)[:, last].any()))
        should.append(bool(moved(subject.f(other), whole)[:, last].any()))
    lost = [early for early in range(last) if should[early] and not sees[early]]
    text = "with a cache, a new token sees the first keys alone: its mask begins at the left"
    yield Because("top-left-causal", text, bool(lost) and sees[0] and not any(sees[1:]))
    text = f"with a cache, token {last} no longer sees token {lost[0] if lost else 0}, which it sees without"
    yield Because(None, text, lost)
    yield Because(None, "with a cache, a token sees others that it does not see without", sees != should)
    order = torch.arange(x.size(1))
    order[:2] = order[:2].flip(0)
    without_positions = not differs(subject.f(x[:, order])[:, last], whole[:, last])
    text = "what it keeps of keys and values is not in the same order, or not of the same tokens"
    yield Because(None, text, without_positions)
    wrong_positions = by_token or not bool(moved(_in_pieces(subject, x, single), whole)[:, 1].any())
    yield Because(None, "keys in the cache are not at their positions: turned twice, or never", wrong_positions)
    yield Because("positions-restart", "with a cache, new tokens have other positions than in the whole sequence")


def _sees_ahead(subject: Subject, x: Tensor, plan: list[int]) -> bool:
    """Whether a token notices a later one of its own piece."""
    output, start = _in_pieces(subject, x, plan), 0
    for size in plan:
        for late in range(start + 1, start + size):
            if differs(_in_pieces(subject, changed(x, late), plan)[:, start:late], output[:, start:late]):
                return True
        start += size
    return False
