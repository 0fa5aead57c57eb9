"""Whether it is the reference with its own weights; where it is not, which mistake gives its own numbers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from unmasked.doctor._mistakes import Mistake, Steps, _and, attend, mistakes
from unmasked.doctor._patient import Patient, forgets_batch_first
from unmasked.doctor._rows import told_of_one
from unmasked.doctor._stages import Inside, look, weigh
from unmasked.doctor._weights import Weights, listed, named, originals, readings
from unmasked.probes import differs

_EQUAL = "equality with the reference"
_MUCH, _LITTLE = 1.2e9, 2e8  # multiplications, where a hypothesis costs a million by itself


def explain(patient: Patient) -> bool:
    """Compare with the reference, and, where it disagrees, with every mistake; say whether that explained it."""
    comparison = _Comparison(patient)
    equal = comparison.equal()
    if equal is not None and comparison.is_one_head():
        told = "the heads are one head: their queries, keys and values are made by the same rows"
        patient.find(_EQUAL, None, told, f"{comparison.weights.heads} times the same rows", certain=True)
        return True
    if equal is not None and (pair := comparison.is_one_layer()):
        patient.find(
            _EQUAL, None, told_of_one(*pair), patient.sized("their numbers are those of one layer"), certain=True
        )
        return True
    undone = weigh(patient).wrong if equal is not None and comparison.has_more() else []
    if undone:  # equal, and what else it has is without effect
        _told_inside(patient, undone)
        return True
    if comparison.mixed and equal is not None:
        told = f"multiplied by the matrix of {_and(comparison.mixed)} as it is kept, and by others' transposes"
        evidence = "weights= says that all are kept (out, in): pass views of them, such as .mT, where they are not"
        patient.find(_EQUAL, "weight-not-transposed", told, evidence)
        return True
    if equal is not None:
        patient.notes.passed.append(_EQUAL)
        patient.equal = True
        patient.notes.settled = comparison.pads(equal)
        if not patient.notes.settled:
            patient.open(_EQUAL, "whether queries should be hidden too where no query may see their keys")
        patient.causal = equal if patient.causal is None else patient.causal
        return False  # equal here; the probes still ask whether it is everywhere
    inside = look(patient)
    if inside.right and not comparison.pinned:
        return _right_inside(patient, inside)
    comparison.inside = inside
    proved = bool(inside.wrong) and all(each[2] for each in inside.wrong)
    if not patient.positions and comparison.mistaken(_LITTLE if proved and not comparison.pinned else _MUCH):
        return True
    if inside.right:
        return _right_inside(patient, inside)
    _told_inside(patient, inside.wrong)
    if inside.wrong or (not inside.seen and not patient.positions and comparison.mistaken_oddly()):
        return True
    if comparison.left_out:
        patient.open("every mistake of the museum", comparison.left_out)
    patient.open(_EQUAL, "; ".join(inside.unclear) or _what_weights(patient))
    return False


def _told_inside(patient: Patient, wrong: list[tuple[str | None, str, bool]]) -> None:
    for cause, told, proved in wrong:
        name = cause
        if cause == "no-causal-mask" and any(call.get("is_causal") for call in patient.target.spied):
            name = "is-causal-is-a-hint"
        also = () if name == cause or cause is None else (cause,)
        evidence = patient.sized("seen in what its own forward pass multiplies")
        patient.find(_EQUAL, name, told, evidence, certain=proved, also=also)


def _right_inside(patient: Patient, inside: Inside) -> bool:
    patient.notes.passed.append(f"{_EQUAL}, step by step")
    patient.equal = patient.notes.settled = True
    if patient.causal is None:
        patient.causal = inside.causal
    return False


class _Comparison:
    """A target's answers beside those of whole references and of whole mistakes."""

    def __init__(self, patient: Patient):
        self.patient, self.left_out, self.inside = patient, "", Inside()
        self.bases = [bool(patient.causal)] if patient.causal is not None else [False, True]
        full = (patient.items, patient.tokens, patient.tokens)
        self.answers: dict[tuple[int, int, int], Tensor] = {}
        shapes = [(1, 2, 2), full]
        shapes += [] if patient.options.own else [(patient.items, patient.tokens, patient.tokens + 3)]
        for shape in shapes:
            try:
                self.answers[shape] = patient.answer(*shape)
            except Exception:  # self-attention in three arguments, or built for one size
                if shape == full:
                    raise
        self.last = list(self.answers)[-1]
        given = patient.given
        self.given = None if given is None else named(patient.target, given, originals(patient.target))
        every = readings(patient.target, embed_dim=patient.embed_dim, num_heads=patient.num_heads, given=self.given)
        self.read = list(itertools.islice(every, 400))
        self.asked: dict[Any, Any] = {}
        self.work = _MUCH
        self.weights = Weights({}, {}, 1, 1)
        if self.read:
            self.asked = {(s, c): patient.case(*s, self.read[0], causal=c) for s in self.answers for c in self.bases}

    @property
    def pinned(self) -> bool:
        """Whether the order of rows counts."""
        return any(weights.pinned for weights in self.read)

    def fits(self, weights: Weights, causal: bool, steps: Steps | None = None) -> bool:
        for shape, answer in self.answers.items():
            case = replace(self.asked[shape, causal], weights=weights)
            self.work -= 1e6 + 4 * shape[0] * shape[1] * self.patient.embed_dim**2
            try:
                expected = attend(case, steps)
            except (RuntimeError, IndexError, ValueError, TypeError):
                return False
            if expected.shape != answer.shape:
                return False
            if case.allowed is not None:  # a row that may see nothing is another question
                shut = ~case.allowed.any(-1)
                if steps is not None and "weigh" in _changes(steps):  # what is inverted sees nothing here
                    shut = shut | case.allowed.all(-1)
                expected = torch.where(shut[..., None].expand_as(expected), torch.nan, expected)
            if expected.isnan().all():
                if shape == self.last:
                    return False
                continue
            gap, size = differs(answer, expected), max(1.0, expected.nan_to_num().abs().max().item())
            if gap > (1e-6 * size if answer.dtype == torch.float64 else 0.0):
                return False  # a constant of it may have been kept in float32
        return True

    def equal(self) -> bool | None:
        """Whether it is the reference, and causal or not; None where it is not."""
        for weights, causal in itertools.product(self.read, self.bases):
            if self.work < _MUCH / 2:
                self.left_out = "more readings of its weights than are tried: pass weights=, num_heads and causal"
                break
            if self.fits(weights, causal):
                self.weights = weights
                return causal
        return None

    def pads(self, causal: bool) -> bool:
        """Whether it is the reference too where a key of each item is hidden from every query, as padding is."""
        patient = self.patient
        if not patient.options.masked or patient.target.mask_axes < 3:
            return True
        case = self.asked[self.last, causal]
        items, queries, keys = self.last
        hidden = torch.zeros(items, queries, keys, dtype=torch.bool)
        hidden[torch.arange(items), :, 1 + torch.arange(items) % (keys - 1)] = True
        shown = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries) if causal else ~hidden
        case = replace(case, weights=self.weights, allowed=shown & ~hidden)
        answer = patient.target(case.query, case.key, case.value, allowed=~hidden)
        expected = attend(case)
        return differs(answer, expected) <= 1e-6 * max(1.0, expected.abs().max().item())  # a constant kept in float32

    def has_more(self) -> bool:
        """Whether the target holds parameters that the reading does not use."""
        weights = self.weights
        used = sum(x.numel() for part in (weights.matrices, weights.biases, weights.extra) for x in part.values())
        every = {id(x): x.numel() for x in self.patient.target.tensors.values() if x.requires_grad}
        return sum(every.values()) > used

    @property
    def mixed(self) -> tuple[str, ...]:
        """Roles whose square matrix is multiplied another way than the others', where the caller said what is what."""
        turned = self.weights.turned
        square = [r for r, m in self.weights.matrices.items() if m.size(0) == m.size(1) and r not in self.weights.fixed]
        if self.given is None or not turned or not square or len(square) < len(self.weights.matrices):
            return ()
        return tuple(r for r in square if r in turned) if turned < set(square) else ()

    def is_one_head(self) -> bool:
        """Whether every head has the same matrices."""
        weights = self.weights
        heads = {"query": weights.heads, "key": weights.kv_heads, "value": weights.kv_heads}
        if weights.kv_heads < 2 or not heads.keys() <= weights.matrices.keys():
            return False
        split = [weights.matrices[role].unflatten(0, (count, -1)) for role, count in heads.items()]
        return all(torch.equal(each, each[:1].expand_as(each)) for each in split)

    def is_one_layer(self) -> tuple[str, str] | None:
        """Two roles whose matrices are one, which stands several times in a list."""
        shared = [self.patient.target.tensors[name].to("cpu") for name in listed(self.patient.target)]
        made = {role: matrix for role, matrix in self.weights.matrices.items() if role != "out"}
        pairs = ((a, b) for a, b in itertools.combinations(made, 2) if torch.equal(made[a], made[b]))
        return next(((a, b) for a, b in pairs if any(torch.equal(made[a], each) for each in shared)), None)

    def mistaken(self, work: float) -> bool:
        """Look for a mistake that gives the target's own numbers, and name it."""
        patient = self.patient
        self.work = work
        for weights, causal in itertools.product(self.read, self.bases):
            found = []
            for mistake in mistakes(patient.case(*self.last, weights, causal=causal)):
                if self.inside.dealt and mistake.cause == "repeat-for-repeat-interleave" and not weights.pinned:
                    continue  # nothing is repeated
                if self.inside.unscaled and mistake.cause == "missing-scale":
                    continue
                if self.fits(weights, causal, mistake.steps):
                    found.append(mistake)
            if found:
                return _named(patient, found, weights, causal)
            if self.work < 0:
                if work == _MUCH:
                    self.left_out = "more time than the doctor takes: pass weights=, num_heads and causal"
                return False
        return False

    def mistaken_oddly(self) -> bool:
        """Look for a number from elsewhere as the scale, and for two mistakes at once."""
        patient, self.work = self.patient, _MUCH
        for weights, causal in itertools.product([] if patient.notes.findings else self.read[:1], self.bases):

            def fits(steps: Steps, w: Weights = weights, c: bool = causal) -> bool:
                return self.work > 0 and self.fits(w, c, steps)

            if _constant_scale(patient, fits, weights, causal) or _two_at_once(patient, fits, weights, causal):
                return True
        return False


def _what_weights(patient: Patient) -> str:
    names = ", ".join(patient.target.tensors) or "none that could be seen"
    return (
        "which weights are the query's, key's, value's and output's: no reading of them gives the target's output; "
        f"pass weights=dict(query=..., key=..., value=..., out=...) and num_heads; it has {names}"
    )


def _named(patient: Patient, found: list[Mistake], weights: Weights, causal: bool) -> bool:
    wrong = [m for m in found if weights.pinned or not m.is_order]
    if not wrong:  # its own order of rows, and nobody said that there is another
        patient.notes.passed.append(f"{_EQUAL}, in an order of rows of its own")
        patient.notes.settled = True
        return False
    first = next((m for m in wrong if m.cause), wrong[0])
    also = tuple(dict.fromkeys(m.cause for m in wrong if m.cause and m.cause != first.cause))
    cause = first.cause
    if cause == "batch-and-tokens-swapped" and forgets_batch_first(patient.target):
        cause, also = "batch-first-forgotten", (cause, *also)
    if cause == "no-causal-mask" and any(call.get("is_causal") for call in patient.target.spied):
        cause, also = "is-causal-is-a-hint", (cause, *also)
    patient.find(_EQUAL, cause, first.told, _smallest(patient, weights, causal), certain=True, also=also)
    return True


def _smallest(patient: Patient, weights: Weights, causal: bool) -> str:
    for items, tokens in ((1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3), (patient.items, patient.tokens)):
        for keys in (tokens,) if patient.options.own else (tokens, tokens + 3):
            case = patient.case(items, tokens, keys, weights, causal=causal)
            try:
                gap = differs(patient.answer(items, tokens, keys), attend(case))
            except Exception:
                continue
            if gap:
                counted = f"{items} {_s(items, 'item')} of {tokens} {_s(tokens, 'token')}"
                counted += f", {keys} keys" if keys != tokens else ""
                return f"{counted}: off by {gap:.3g} from attention with its weights; the mistake has its output"
    return "the mistake has its output"


def _constant_scale(patient: Patient, fits: Callable[[Steps], bool], weights: Weights, causal: bool) -> bool:
    """Try the root of every number as the scale: a number that no size here explains comes from elsewhere."""
    for number in [*range(2, 129), *range(160, 1025, 32)]:
        if fits(Steps(scale=lambda c, n=number: n**-0.5)):  # type: ignore[misc]
            told = f"the scores are divided by the root of {number}, none of its sizes: a name read from outside"
            patient.find(_EQUAL, "global-d-k", told, _smallest(patient, weights, causal), certain=True)
            return True
    return False


def _two_at_once(patient: Patient, fits: Callable[[Steps], bool], weights: Weights, causal: bool) -> bool:
    case = patient.case(patient.items, patient.tokens, patient.tokens, weights, causal=causal)
    by_cause: dict[str, list[Mistake]] = {}
    for mistake in mistakes(case):
        if mistake.cause and (weights.pinned or not mistake.is_order):
            by_cause.setdefault(mistake.cause, []).append(mistake)
    known = [mistake for group in by_cause.values() for mistake in group[:3]]  # pairs of all would be too many
    for one, other in itertools.combinations(known, 2):
        changes = [_changes(m.steps) for m in (one, other)]
        if changes[0].keys() & changes[1].keys():
            continue
        if fits(replace(Steps(), **changes[0], **changes[1])):
            for mistake in (one, other):
                patient.find(_EQUAL, mistake.cause, mistake.told, _smallest(patient, weights, causal), certain=True)
            return True
    return False


def _s(count: int, noun: str) -> str:
    return noun if count == 1 else f"{noun}s"


def _changes(steps: Steps) -> dict[str, Any]:
    right = Steps()
    return {name: step for name, step in vars(steps).items() if step is not getattr(right, name)}
