"""What calls alone tell: what each output depends on, in which order, and under which mask."""

from __future__ import annotations

import functools
from typing import Any

from torch import Tensor

from unmasked import probes
from unmasked.doctor._masking import obeys_its_mask
from unmasked.doctor._patient import Patient, forgets_batch_first
from unmasked.probes import Evidence, differs


def behaviour(patient: Patient, calls: list[dict[str, Any]]) -> None:
    """Ask what needs only calls, and stop at what would only show the same again."""
    f, before = patient.f, len(patient.notes.findings)
    if patient.options.masked:
        obeys_its_mask(patient)
    if len(patient.notes.findings) == before:
        mixed = patient.ask("batch items independent", lambda b, t: probes.mixes_items(f, patient.noise(max(b, 2), t)))
        if mixed is not None:
            cause, told, also = _why_mixed(patient)
            patient.find("batch items independent", cause, told, mixed, also=also)
    if len(patient.notes.findings) == before and not patient.equal:
        _sees_others(patient)
    if len(patient.notes.findings) == before:
        _keeps_time(patient, calls)
    if len(patient.notes.findings) == before and not patient.positions and not patient.equal:
        _averages(patient)
    if len(patient.notes.findings) == before and patient.inputs.startswith("qkv") and patient.causal:
        _aligned(patient)


def _sees_others(patient: Patient) -> None:
    """Ask whether any token counts for another at all."""
    x, other = patient.noise(patient.items, patient.tokens), patient.noise(patient.items, patient.tokens, 4)
    first, last = x.clone(), x.clone()
    first[:, 0], last[:, -1] = other[:, 0], other[:, -1]
    before = patient.f(x)
    if not (differs(patient.f(first)[:, 1:], before[:, 1:]) or differs(patient.f(last)[:, :-1], before[:, :-1])):
        evidence = patient.sized("changing the first or the last token moves no other token's output")
        patient.find("other tokens are seen", None, "no output depends on another token: nothing attends", evidence)


def _keeps_time(patient: Patient, calls: list[dict[str, Any]]) -> None:
    """Ask what the order of the tokens does."""
    f, check = patient.f, "permutation equivariance"
    if patient.causal:
        _is_causal(patient, calls)
        return
    if patient.causal is None:
        patient.open("leaks from the future", "whether no token may see a later one: pass causal=True or False")
    if patient.positions:
        return
    if patient.causal is None and probes.sees_the_future(f, patient.noise(patient.items, patient.tokens)) is None:
        return
    moved = patient.ask(check, lambda b, t: probes.breaks_equivariance(f, patient.noise(b, t)))
    if moved is not None and probes.sees_the_future(f, patient.noise(patient.items, patient.tokens)) is None:
        patient.find(check, None, "no output sees a later token: it is causal, and causal=False was given", moved)
    elif moved is not None:
        told = "its outputs depend on the order of the tokens (if it adds positions, pass positions=True)"
        also: tuple[str, ...] = ("view-without-transpose", "swapped-view")
        also += () if patient.causal is False else ("boolean-mask-added", "mask-after-softmax")
        patient.find(check, "merge-without-transpose", told, moved, also=also)


def _averages(patient: Patient) -> None:
    check = "weights sum to one"
    evidence = patient.ask(check, lambda b, t: probes.is_no_average(patient.f, patient.noise(b, t)))
    if evidence is None and patient.inputs.startswith("qkv"):
        patient.notes.passed.remove(check)
        evidence = patient.ask(check, functools.partial(_averages_values, patient))
    if evidence is not None:
        also = ("mask-after-softmax", "softmax-over-queries")
        patient.find(check, "weights-not-normalized", "the weights of a query do not sum to one", evidence, also=also)


def _averages_values(patient: Patient, items: int, tokens: int) -> Evidence | None:
    """Keep the values equal, and let queries and keys differ."""
    query, key = patient.noise(items, tokens), patient.noise(items, tokens, 1)

    def f(value: Tensor) -> Tensor:
        count = value.size(1)
        return patient.target(query[:, :count], key[:, :count], value)

    value = patient.noise(items, tokens, 2)
    same = value[:, :1].expand_as(value).clone()
    return probes.is_no_average(lambda v: f(v) if v.size(1) == 1 else f(same), value)


def _why_mixed(patient: Patient) -> tuple[str, str, tuple[str, ...]]:
    f, x = patient.f, patient.noise(patient.items, patient.tokens)
    before = f(x)
    changed = x.clone()
    changed[1:] += patient.noise(patient.items, patient.tokens, 4)[1:]
    if not differs(f(changed), before):
        return "only-first-item", "every output is computed from the first item of the batch", ()
    tokens = x.clone()
    tokens[:, -1] += 1
    alone = not differs(f(tokens)[:, :-1], before[:, :-1])
    if alone:
        told = "attention runs across the batch: an item sees other items, and no other token of its own"
        if forgets_batch_first(patient.target):
            return "batch-first-forgotten", told, ("batch-and-tokens-swapped",)
        return "batch-and-tokens-swapped", told, ("batch-first-forgotten",)
    first = x.clone()
    first[0] += 1
    if differs(f(first)[1:], before[1:]):
        last = x.clone()
        last[-1] += 1
        if not differs(f(last)[:-1], before[:-1]):
            return (
                "only-first-item",
                "other items reach into the first item of the batch",
                ("batch-indexed-for-head",),
            )
    return "batch-indexed-for-head", "items of the batch reach each other", ("batch-and-tokens-swapped",)


def _is_causal(patient: Patient, calls: list[dict[str, Any]]) -> None:
    f = patient.f
    also: tuple[str, ...]
    leak = patient.ask("no leak from the future, in value and gradient",
                     lambda b, t: probes.sees_the_future(f, patient.noise(b, t)))  # fmt: skip
    x = patient.noise(patient.items, patient.tokens)
    if leak is None:
        past = patient.ask("the past is seen", lambda b, t: probes.misses_the_past(f, patient.noise(b, t)))
        if past is not None:
            needs = f"whether earlier tokens may be out of sight, as in a sliding window: {past}"
            patient.open("the past is seen", needs)
        return
    if any(call.get("is_causal") for call in calls):
        told = "is_causal=True is passed to nn.MultiheadAttention as if it were a mask"
        patient.find("no leak from the future", "is-causal-is-a-hint", told, leak)
    elif probes.breaks_equivariance(f, x) is None:
        patient.find("no leak from the future", "no-causal-mask", "every token sees every other", leak)
    elif _blind_to_the_past(patient, x):
        told = "a token sees what comes after it, and not what came before"
        patient.find("no leak from the future", "mask-polarity", told, leak)
    elif _last_alone_averages(patient, x):
        told = "weights are masked after the softmax: later tokens still count in the sum that they are divided by"
        patient.find("no leak from the future", "mask-after-softmax", told, leak)
    elif probes.misses_the_past(f, x) is None and _all_reach_all(patient, x):
        told = "later tokens count, though not as much as earlier ones: the mask adds too little"
        also = ("float-mask-of-ones", "merge-without-transpose", "view-without-transpose")
        patient.find("no leak from the future", "boolean-mask-added", told, leak, also=also)
    else:
        told = "some outputs are read off other tokens, so that later ones get through the mask"
        also = ("view-without-transpose", "swapped-view")
        patient.find("no leak from the future", "merge-without-transpose", told, leak, also=also)


def _blind_to_the_past(patient: Patient, x: Tensor) -> bool:
    changed = x.clone()
    changed[:, 0] += 1
    return not differs(patient.f(changed)[:, 1:-1], patient.f(x)[:, 1:-1])


def _last_alone_averages(patient: Patient, x: Tensor) -> bool:
    """Whether among copies of a token the last has the output of the token alone, and those before it do not."""
    alone, among = patient.f(x[:, :1])[:, 0], patient.f(x[:, :1].expand_as(x).clone())
    return not differs(among[:, -1], alone) and differs(among[:, 0], alone) > 0


def _all_reach_all(patient: Patient, x: Tensor) -> bool:
    before = patient.f(x)
    for token in range(x.size(1)):
        changed = x.clone()
        changed[:, token] += 1
        after = patient.f(changed)
        if not all(differs(after[:, t], before[:, t]) for t in range(x.size(1))):
            return False
    return True


def _aligned(patient: Patient) -> None:
    x = patient.noise(patient.items, patient.tokens)
    try:
        patient.target(x[:, -1:], x, x)
    except Exception:
        patient.open("causal alignment with a cache", "a target that takes fewer queries than keys")
        return
    check = "causal alignment with a cache"
    evidence = patient.ask(check, lambda b, t: probes.misaligns_a_cache(patient.target, patient.noise(b, t)))
    if evidence is not None:
        told = "the first query is aligned with the first key, not the last with the last"
        patient.find(check, "top-left-causal", told, evidence)
