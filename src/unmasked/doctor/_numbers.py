"""What no output shows: gradients, half precision, rows that see nothing, returned weights, inputs written into."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from unmasked import probes
from unmasked.doctor._patient import Patient, said
from unmasked.probes import Evidence


def numbers(patient: Patient, explained: bool) -> None:
    if not (explained or patient.notes.findings):
        _gradients(patient)
    if not patient.notes.findings:
        large(patient)
        epsilon(patient)
    _half(patient)
    _blind(patient)
    _returned_weights(patient)
    if patient.options.training:
        trained(patient)


def leaves_inputs(patient: Patient) -> None:
    check = "inputs left as they were"

    def question(items: int, tokens: int) -> Evidence | None:
        three = (patient.noise(items, tokens, place, place) for place in range(3))
        given = (x.to(patient.target.device) for x in patient.target.given(*three))  # a copy would be written into
        return probes.overwrites_inputs(patient.target.raw, *given)

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
        except NotImplementedError as error:
            patient.open(check, f"a backward pass, which is not implemented here: {said(error)}")
            return
        except Exception as error:
            patient.find(check, "gradient-cut", "it cannot be trained: its backward pass fails", said(error))
            return
    heads_used(patient)
    if patient.target.dtype != torch.float64:
        patient.open(check, "a target that computes in float64, where a derivative can be measured")
        return

    def question(items: int, tokens: int) -> Evidence | None:
        full = (items, tokens) == (patient.items, patient.tokens)
        if items < 2 or (patient.embed_dim > 256 if full else tokens == 3):  # each size takes a pass for each parameter
            return None
        return probes.cuts_gradients(patient.f, patient.noise(items, tokens), parameters)

    cut = patient.ask(check, question)
    if cut is not None:
        unused = "nor does the output depend on it" in cut.text
        note = patient.caution if unused else patient.find
        note(check, "gradient-cut", "a parameter is not used" if unused else "a gradient is cut off", cut)


def heads_used(patient: Patient) -> None:
    """Find linear layers of which the rows of whole heads get no gradient at all: nothing depends on them."""
    named = [(n, t) for n, t in patient.target.tensors.items() if t.requires_grad and t.is_leaf and t.dim() == 2]
    named = [(n, t) for n, t in named if isinstance(patient.target.owners[n], nn.Linear)]
    dim = patient.embed_dim // (patient.num_heads or 1)
    if not named or dim < 2:
        return
    with torch.enable_grad():
        output = patient.f(patient.noise(patient.items, patient.tokens))
        if not output.requires_grad:
            return
        gradients = torch.autograd.grad(output.sum(), [t for _, t in named], allow_unused=True)
    for (name, _), gradient in zip(named, gradients, strict=True):
        idle = torch.zeros(1, dtype=torch.bool) if gradient is None else (gradient == 0).all(1)
        if idle.any() and not idle.all() and len(idle) % dim == 0:
            by_head = idle.view(-1, dim)
            if torch.equal(by_head.any(1), by_head.all(1)):
                told = "some heads are not used: nothing depends on the rows of a layer that make them"
                evidence = patient.sized(f"{int(idle.sum())} of {len(idle)} rows of {name} get no gradient")
                patient.find("every head is used", None, told, evidence)
                return


def large(patient: Patient) -> None:
    """Make the inputs a hundred times as large: exponentials overflow where no maximum is subtracted."""
    check, x = "large inputs", patient.noise(patient.items, patient.tokens)
    before = patient.f(x)
    with _Exponentials() as exponentials:
        after = patient.f(100 * x)
    if before.isfinite().all() and not after.isfinite().all() and exponentials.overflow:
        told = "it overflows with large inputs: its softmax does not subtract the maximum of the scores first"
        count = int((~after.isfinite()).sum())
        evidence = patient.sized(f"a hundred times as large, they make {count} numbers of the output infinite or NaN")
        patient.find(check, None, told, evidence)
    else:
        patient.notes.passed.append(check)


class _Exponentials(TorchFunctionMode):
    """Hears exponentials, and whether one overflows: zero divided by zero is another matter, and may be no mistake."""

    names = ("exp", "exp_", "exp2", "expm1", "pow", "__pow__", "__rpow__")
    within = ("softmax", "log_softmax", "scaled_dot_product_attention", "multi_head_attention_forward")
    heard = overflow = False

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        name = getattr(function, "__name__", "")
        self.heard = self.heard or name in self.names[:4] + self.within
        if name in self.names and isinstance(result, Tensor):
            self.overflow = self.overflow or bool(result.isinf().any())
        return result


def epsilon(patient: Patient) -> None:
    """Find a norm whose epsilon counts, though it should only keep a norm of zero from being divided by.

    With norms of queries and keys, or of the input, and no biases, the output of c times the input is c times one
    tensor plus another, but for what epsilon changes: this vanishes as the inverse of c, or its square, every number of
    it alike. Positions that are added to tokens vanish so, too.
    """
    if patient.positions or patient.target.dtype != torch.float64 or not patient.target.copied:
        return
    bare = patient.admit()
    bare.mask_axes = patient.target.mask_axes
    for name, tensor in bare.tensors.items():
        last = name.rpartition(".")[2]
        if (last.startswith("b") or "bias" in last) and tensor.dim() == 1:
            tensor.zero_()
    x = patient.noise(patient.items, patient.tokens)
    with _Exponentials() as exponentials:
        given = {c: bare(c * x) for c in (-16.0, 1.0, 16.0, 32.0, 64.0, 1e5, 2e5)}
    patient.dismiss(bare)
    if not exponentials.heard:  # what is a quotient of other functions comes near its limit so, too
        return
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
        alike = all(
            (rest[n] * 2 ** (n * power) - rest[0]).norm().item() < 0.1 * sizes[0] for n in (1, 2)
        )  # fmt: skip
        if alike and sizes[0] * 16**power > 0.05 * given[1.0].norm().item():
            told = "a norm's epsilon is as large as what it is added to: scores depend on the size of the input"
            gap = sizes[0] * 16**power / x.numel() ** 0.5
            evidence = patient.sized(f"it moves the output by about {gap:.2g}, and less with larger inputs")
            patient.find("the epsilon of norms", None, told, evidence)
            return


def trained(patient: Patient) -> None:
    """Compare the mean of what it gives in training with what it gives in evaluation."""
    check, copies = "in training, on average the same as in evaluation", 64
    x = patient.noise(1, patient.tokens)
    many = x.repeat(copies, 1, 1)
    draws = []
    with torch.no_grad():
        expected = patient.f(x)
        with patient.target.training():
            try:
                for seed in range(16):
                    torch.manual_seed(seed)
                    draws.append(patient.f(many))
            except Exception as error:
                patient.open(check, f"a target that runs in training mode: it raised {said(error)}")
                return
    drawn = torch.cat(draws)
    if not drawn.isfinite().all():
        told = "in training its output is not finite: dropout of a score of -inf is not a number"
        patient.find(check, None, told, patient.sized(f"{int((~drawn.isfinite()).sum())} numbers are not finite"))
        return
    gap, chance = (drawn.mean(0) - expected[0]).abs(), drawn.std(0) / len(drawn) ** 0.5
    sure = gap > 6 * chance + 1e-6
    if bool(sure.any()) and gap[sure].max() > 0.01 * expected.abs().max():
        worst = gap[sure].max().item()
        told = "its mean over dropout is not what it computes in evaluation: dropout stands before the softmax"
        evidence = f"{len(drawn)} draws: their mean is off by {worst:.2g}, many times what chance allows"
        patient.find(check, None, told, evidence)
    else:
        patient.notes.passed.append(check)


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
        patient.caution(check, "float16-overflow", told, evidence)


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
        if evidence is not None:  # scores, a bias, or weights of which a sink took a part
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
