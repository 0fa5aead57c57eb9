"""What is kept from call to call: a cache must give what the whole sequence gives, and nothing else may be kept."""

from __future__ import annotations

import torch
from torch import Tensor

from unmasked.doctor._patient import Patient, said
from unmasked.probes import changed, differs, moved

_CHECK = "with a cache, the same as without"


def keeps_nothing(patient: Patient) -> None:
    """Call it with few tokens, with many, and with few again: a mask or a table that was kept must fit both."""
    if patient.fixed:
        return
    few, many = patient.tokens, 2 * patient.tokens + 3
    short, long = patient.noise(2, few), patient.noise(2, many, 11)
    check, fresh = "calls do not change each other", patient.admit(patient.target.dtype)
    fresh.mask_axes = patient.target.mask_axes
    try:
        before, after = patient.f(short), patient.f(long)
        again, alone = patient.f(short), fresh(long)
    except Exception:  # it takes no sequence that long
        return
    finally:
        patient.dismiss(fresh)
    leak = differs(patient.f(changed(long, many - 1))[:, few:-1], after[:, few:-1]) if patient.causal else 0.0
    if leak:
        told = f"after calls with {few} tokens or fewer, a longer sequence is not masked beyond them"
        evidence = f"{many} tokens: changing the last moves outputs before it, after the first {few}, by {leak:.3g}"
        patient.find(check, None, told, evidence, also=("no-causal-mask",))
    elif gap := differs(again, before):
        told = "a call with more tokens changes what it gives for fewer: something is kept from call to call"
        patient.find(check, None, told, f"{few} tokens before and after {many}: off by {gap:.3g}")
    elif gap := differs(after, alone):
        told = "a call with fewer tokens changes what it gives for more: something is kept from call to call"
        patient.find(check, None, told, f"{many} tokens at first and after {few}: off by {gap:.3g}")
    else:
        patient.notes.passed.append(check)


def caches(patient: Patient) -> None:
    """Give a sequence in pieces, with a cache, in several ways."""
    if patient.options.cache is None:
        return
    tokens = patient.fixed or max(patient.tokens, 8)
    x = patient.noise(patient.items, tokens)
    plans = [[1] * tokens, [tokens - 2, 1, 1], [2, tokens - 2], [3, 2, tokens - 5]]
    try:
        whole = patient.target(x)
        pieces = [_in_pieces(patient, x, plan) for plan in plans]
    except Exception as error:
        patient.open(_CHECK, f"a target that goes on with the cache that it returns: it raised {said(error)}")
        return
    for plan, given in zip(plans, pieces, strict=True):
        if gap := differs(given, whole):
            first = moved(given, whole).any(0).nonzero()[0].item()
            steps = " + ".join(map(str, plan))
            cause, told = _why(patient, x, whole, plans, pieces)
            evidence = f"{tokens} tokens given as {steps}: the output of token {first} is off by {gap:.3g}"
            patient.find(_CHECK, cause, told, evidence)
            return
    patient.notes.passed.append(_CHECK)


def _in_pieces(patient: Patient, x: Tensor, plan: list[int]) -> Tensor:
    cache, outputs = None, []
    for piece in x.split(plan, 1):
        output, cache = patient.target.step(piece, cache)
        outputs.append(output)
        if cache is None:
            raise ValueError("it returned no cache")
    return torch.cat(outputs, 1)


def _why(
    patient: Patient, x: Tensor, whole: Tensor, plans: list[list[int]], pieces: list[Tensor]
) -> tuple[str | None, str]:
    """Find out what a token sees when it comes after a cache."""
    single, chunks = plans[0], plans[2:]
    by_token = not differs(pieces[0], whole)
    for plan in [single] if not by_token else chunks:
        given = _in_pieces(patient, x, plan)
        start = 0
        for size in plan:
            for late in range(start + 1, start + size):
                after = _in_pieces(patient, changed(x, late), plan)
                if differs(after[:, start:late], given[:, start:late]):
                    return "no-causal-mask", "with a cache, tokens that are given at once see what comes after them"
            start += size
    last = x.size(1) - 1
    plan = single if not by_token else chunks[0]
    given = _in_pieces(patient, x, plan)
    sees, should = [], []
    for early in range(last):
        other = changed(x, early)
        sees.append(bool(moved(_in_pieces(patient, other, plan), given)[:, last].any()))
        should.append(bool(moved(patient.f(other), whole)[:, last].any()))
    if sees != should:
        lost = [early for early in range(last) if should[early] and not sees[early]]
        if lost and sees[0] and not any(sees[1:]):
            return "top-left-causal", "with a cache, a new token sees the first keys alone: its mask begins at the left"
        if lost:
            return None, f"with a cache, token {last} no longer sees token {lost[0]}, which it sees without"
        return None, "with a cache, a token sees others that it does not see without"
    order = torch.arange(x.size(1))
    order[:2] = order[:2].flip(0)
    if not differs(patient.f(x[:, order])[:, last], whole[:, last]):
        return None, "what it keeps of keys and values is not in the same order, or not of the same tokens"
    if by_token or not moved(_in_pieces(patient, x, single), whole)[:, 1].any():
        return None, "keys in the cache are not at their positions: turned twice, or never"
    return (
        "positions-restart",
        "with a cache, new tokens have other positions than in the whole sequence",
    )
