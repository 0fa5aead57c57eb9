"""What no output shows: gradients, half precision, rows that see nothing, returned weights, inputs written into."""

from __future__ import annotations

import torch
from torch import Tensor

from unmasked import probes
from unmasked.doctor._patient import Patient, said
from unmasked.probes import Evidence


def numbers(patient: Patient, explained: bool) -> None:
    if not explained:
        _gradients(patient)
    _half(patient)
    _blind(patient)
    _returned_weights(patient)


def leaves_inputs(patient: Patient) -> None:
    check = "inputs left as they were"

    def question(items: int, tokens: int) -> Evidence | None:
        three = (patient.noise(items, tokens, place, place) for place in range(3))
        return probes.overwrites_inputs(patient.target.raw, *patient.target.given(*three))

    evidence = patient.ask(check, question)
    if evidence is not None:
        patient.find(check, "input-overwritten", "it writes into its input", evidence)


def _gradients(patient: Patient) -> None:
    parameters = [(n, t) for n, t in patient.target.tensors.items() if t.requires_grad and t.is_leaf]
    check = "gradients reach the input and every parameter"
    with torch.enable_grad():
        try:
            output = patient.f(
                patient.noise(patient.items, patient.tokens).requires_grad_() * 1
            )  # it may be written into
            if output.requires_grad:
                output.sum().backward()
        except Exception as error:
            patient.find(check, "gradient-cut", "it cannot be trained: its backward pass fails", said(error))
            return
    if patient.target.dtype != torch.float64:
        patient.open(check, "a target that computes in float64, where a derivative can be measured")
        return
    cut = patient.ask(check, lambda b, t: probes.cuts_gradients(patient.f, patient.noise(b, t), parameters)
                    if t > 1 and b > 1 else None)  # fmt: skip
    if cut is not None:
        unused = "nor does the output depend on it" in cut.text
        note = patient.caution if unused else patient.find
        note(check, "gradient-cut", "a parameter is not used" if unused else "a gradient is cut off", cut)


def _half(patient: Patient) -> None:
    check = "float16 range"
    half = patient.admit()
    if not half.copied:
        patient.open(check, "a target that copy.deepcopy can copy: its own numbers are left as they are")
        return
    half.mask_axes = patient.target.mask_axes
    for module in half.modules.values():
        module.half()
    allowed = None
    if patient.options.masked:
        allowed = torch.ones(patient.tokens, patient.tokens, dtype=torch.bool).tril()

    def f(x: Tensor) -> Tensor:
        return half(x) if allowed is None else half(x, allowed=allowed[: x.size(1), : x.size(1)])

    with torch.no_grad():
        x = patient.noise(patient.items, patient.tokens)
        if not patient.f(x).isfinite().all():
            return
        try:
            evidence = probes.fails_in_half(f, x)
            f(x.half())
        except Exception as error:
            evidence = None if "overflow" not in str(error) else evidence
            if evidence is None:
                patient.open(check, f"a target that runs in float16: it raised {said(error)}")
                return
    if evidence is None:
        patient.notes.passed.append(check)
    else:
        told = "it does not survive float16: a number of its own, such as -1e9, is beyond 65504"
        patient.find(check, "float16-overflow", told, evidence)


def _blind(patient: Patient) -> None:
    hidden = {"mask-polarity", "padding-ignored"} & {finding.cause for finding in patient.notes.findings}
    if not patient.options.masked or hidden:
        return
    q, k, v = (patient.noise(patient.items, patient.tokens, place, place) for place in range(3))
    allowed = torch.ones(patient.tokens, patient.tokens, dtype=torch.bool)
    try:
        evidence = probes.is_blinded(patient.masked, q, k, v, allowed)
    except Exception as error:
        patient.open("rows that may see nothing", f"the target raised {said(error)}")
        return
    if evidence is None:
        patient.notes.passed.append("no NaN where a query may see nothing")
        return
    told = "a query that may see nothing gives NaN: a softmax over -inf alone"
    place = patient.find if "others" in evidence.text else patient.caution
    place("no NaN where a query may see nothing", "fully-masked-row", told, evidence)


def _returned_weights(patient: Patient) -> None:
    x = patient.noise(patient.items, patient.tokens)
    with torch.no_grad():
        patient.target(x)
        if patient.target.weights is None:
            return
        evidence = probes.weights_sum_to_one(patient.target.weights)
        if evidence is not None:
            if not patient.notes.findings:
                told = "the weights that it returns do not sum to one"
                patient.find("weights sum to one", "weights-not-normalized", told, evidence)
            return
        with patient.target.training():
            try:
                patient.target(x)
            except Exception:
                return
            if patient.target.weights is not None:
                evidence = probes.weights_sum_to_one(patient.target.weights)
    if evidence is not None:
        told = "the weights that it returns in training are taken after dropout"
        patient.caution("weights sum to one, in training", "weights-after-dropout", told, evidence)
