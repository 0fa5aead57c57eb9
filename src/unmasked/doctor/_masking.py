"""Whether a mask that it is given hides what it should, from whom it should, and nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from unmasked.doctor._patient import Patient
from unmasked.probes import changed, differs, enlarged, moved

_CHECK = "mask polarity, and padding respected"


def obeys_its_mask(patient: Patient) -> None:
    """Ask what a mask does, and whether every item has its own, where the target takes masks of two shapes."""
    before = len(patient.notes.findings)
    _obeys(patient)
    if len(patient.notes.findings) > before or patient.target.mask_axes != 4:
        return
    items, tokens = patient.items, patient.tokens
    three, drawn = patient.three(items, tokens, tokens), patient.drawn(items, tokens, tokens)
    right, of_first = (patient.target(*three, allowed=mask) for mask in (drawn, drawn[:1].expand_as(drawn)))
    patient.target.mask_axes = 3  # what is no longer right then may be misused; but this is a mistake of its own
    with contextlib.suppress(Exception):
        given = patient.target(*three, allowed=drawn)
        if differs(right, of_first) and not differs(given, of_first):
            patient.notes.passed.remove(_CHECK)
            told = "of masks of (batch, queries, keys), that of the first item is used for every item"
            evidence = patient.sized("with the first item's mask for every item, outputs are the same")
            patient.find(_CHECK, "only-first-item", told, evidence)
    patient.target.mask_axes = 4


def _obeys(patient: Patient) -> None:
    """Change each key under several masks, and see which outputs notice."""
    items, tokens = patient.items, patient.tokens
    everything = torch.ones(items, tokens, tokens, dtype=torch.bool)
    open_ = _look(patient, everything)
    if open_.before.isnan().all():
        told = "where the mask says True, for may see, the target does not look: with all True it sees nothing"
        shape = f"{items} items of {tokens} tokens, everything allowed: every output is NaN"
        patient.find("mask polarity", "mask-polarity", told, shape)
        return
    padding = everything.clone()
    for item in range(items):
        padding[item if patient.target.mask_axes != 2 else slice(None), :, 1 + item % (tokens - 1)] = False
        if patient.target.mask_axes == 2:
            break
    drawn = patient.drawn(items, tokens, tokens).expand(items, -1, -1)
    for allowed in (padding, drawn):
        seen = _look(patient, allowed)
        if not differs(seen.before, open_.before):
            told = "the mask changes nothing"
            evidence = patient.sized("with some keys hidden, every output is as with none hidden")
            patient.find("padding respected", "padding-ignored", told, evidence)
            return
        should = open_.reached & allowed
        if bool((seen.reached[seen.sure] != should[seen.sure]).any()):
            cause, told, also = _why(patient, open_, seen, allowed)
            patient.find(_CHECK, cause, told, _shown(patient, seen, should), also=also)
            return
    for large in (0, 1):
        seen = _look(patient, padding, lambda x, token, n=large: enlarged(x, token)[n])  # type: ignore[misc]
        if bool((seen.reached & ~padding)[seen.sure].any()):
            told = "what the mask hides still counts where it is large: the mask adds too little"
            evidence = _shown(patient, seen, open_.reached & padding)
            patient.find(_CHECK, "boolean-mask-added", told, evidence, also=("float-mask-of-ones",))
            return
    patient.notes.passed.append(_CHECK)


@dataclass(frozen=True)
class _Seen:
    """Which outputs noticed which keys, (items, queries, keys); and of which that can be said."""

    before: Tensor
    reached: Tensor
    sure: Tensor


def _look(patient: Patient, allowed: Tensor, change: Callable[[Tensor, int], Tensor] = changed) -> _Seen:
    items, queries, keys = allowed.shape
    query, key, value = patient.three(items, queries, keys)
    own = patient.options.own
    before = patient.target(query, key, value, allowed=allowed)
    columns = []
    for token in range(keys):
        other = change(key, token)
        values = other if value is key else change(value, token)
        after = patient.target(other if own else query, other, values, allowed=allowed)
        columns.append(moved(after, before))
    sure = ~before.isnan().any(-1, keepdim=True).expand_as(allowed)
    if own:  # a token's output may notice the token itself, whether it attends to itself or not
        sure = sure & ~torch.eye(queries, dtype=torch.bool)
    return _Seen(before, torch.stack(columns, -1), sure)


def _why(patient: Patient, open_: _Seen, seen: _Seen, allowed: Tensor) -> tuple[str | None, str, tuple[str, ...]]:
    """Look for a mask that it obeys, if not this one."""

    def obeys(mask: Tensor) -> bool:
        return torch.equal(seen.reached[seen.sure], (open_.reached & mask)[seen.sure])

    if obeys(~allowed):
        return "mask-polarity", "where the mask says True, for may see, the target does not look", ()
    if obeys(allowed[:1].expand_as(allowed)):
        return "only-first-item", "the mask of the first item is used for every item", ()
    if obeys(allowed.mT):
        return None, "the mask's queries and keys are exchanged", ()
    if patient.target.mask_axes != 2 and _mixed_up(patient, open_, len(allowed), allowed.size(-1)):
        told = "heads are given the masks of other items: repeated in another order than the items are"
        return None, told, ("only-first-item",)
    rows = moved(seen.before, open_.before) | seen.before.isnan().any(-1)
    if torch.equal(rows, ~allowed.all(1)) and not allowed.all():
        return None, "the mask hides a token as a query, and not as a key: others still see it", ("padding-ignored",)
    hidden = bool((seen.reached & ~allowed)[seen.sure].any())
    if not hidden:
        return None, "what the mask lets a query see does not count for it", ()
    query, key, value = (x[:, :1].expand_as(x).clone() for x in patient.three(*allowed.shape))
    if patient.options.own:
        key = value = query
    masked, free = (patient.target(query, key, value, allowed=mask) for mask in (allowed, torch.ones_like(allowed)))
    if differs(masked, free):
        told = "what the mask hides still counts in the sum that weights are divided by"
        return "mask-after-softmax", told, ("boolean-mask-added", "float-mask-of-ones")
    return "boolean-mask-added", "what the mask hides still counts", ("float-mask-of-ones", "mask-after-softmax")


def _mixed_up(patient: Patient, open_: _Seen, items: int, tokens: int) -> bool:
    """Whether each item sees what the masks of several items allow together, as if heads were dealt to them."""
    few = torch.zeros(items, tokens, tokens, dtype=torch.bool)
    few[..., 0] = True
    few[torch.arange(items), :, 1 + torch.arange(items) % (tokens - 1)] = True
    seen = _look(patient, few)
    for heads in [patient.num_heads] if patient.num_heads else range(2, items):
        each = torch.arange(items)[:, None] * heads + torch.arange(heads)
        turned = torch.arange(items)[:, None] + torch.arange(heads) * items
        for whose in (each % items, turned // heads):
            mask = open_.reached & few[whose].any(1)
            if torch.equal(seen.reached[seen.sure], mask[seen.sure]) and not torch.equal(mask, open_.reached & few):
                return True
    return False


def _shown(patient: Patient, seen: _Seen, should: Tensor) -> str:
    item, query, key = ((seen.reached != should) & seen.sure).nonzero()[0].tolist()
    if seen.reached[item, query, key]:
        told = f"changing key {key} of item {item}, which query {query} may not see, moves its output"
    else:
        told = f"changing key {key} of item {item}, which query {query} may see, leaves its output as it was"
    return patient.sized(told)
