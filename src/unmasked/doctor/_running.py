"""Whether it runs at all, at sizes that all differ, and computes something that can be examined."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from unmasked import probes
from unmasked.doctor._patient import Patient, said
from unmasked.doctor._target import INPUTS, WrongShape


def runs(patient: Patient) -> bool:
    """Call it; if that fails, find out whether it is the sizes."""
    error = patient.failure(patient.items, patient.tokens)
    if error is not None and "dtype" in str(error):
        patient.target = patient.admit(torch.float32)
        error = patient.failure(patient.items, patient.tokens)
    if error is None:
        patient.notes.passed.append("it runs, with sizes that all differ")
        return _answers(patient) and _computes(patient)
    told_of = said(error)
    if isinstance(error, TypeError) and "argument" in str(error) and not _takes(patient):
        raise ValueError(
            f"inputs is {patient.inputs!r}, and the target refuses what that gives: {told_of}; choose "
            f"{', '.join(INPUTS[:-1])} or {INPUTS[-1]}, or wrap it: lambda x: target(...)"
        ) from error
    if "is_causal" in str(error):
        told = "is_causal=True is passed without a mask: it is a hint about a mask, not one"
        patient.find("it runs", "is-causal-is-a-hint", told, f"it raises {told_of}", certain=True)
        return False
    heads = patient.num_heads or 0
    dims = {patient.embed_dim, patient.embed_dim // heads if heads else patient.embed_dim}
    for dim in dims:
        if dim**3 <= 1_000_000 and patient.failure(dim, dim) is None:  # beyond, the input alone would be too large
            told = f"it runs only where batch, tokens and features are as many ({dim}): `.T` turns the batch too"
            patient.find("it runs", "batch-transposed", told, patient.sized(told_of))
            return False
    if heads and patient.failure(heads, patient.tokens) is None:
        told = f"it runs only with as many items as heads ({heads}): what should index the head indexes the batch"
        patient.find("it runs", "batch-indexed-for-head", told, patient.sized(told_of))
        return False
    told = "it does not run on what it was given: see embed_dim, num_heads, inputs and batch_first"
    if isinstance(error, WrongShape):
        told = "its output has not the shape of an attention's: see inputs and batch_first"
        also = ("batch-first-forgotten", "batch-and-tokens-swapped") if "no tensor" not in told_of else ()
        patient.find("it runs", None, told, patient.sized(told_of), also=also)
    else:
        patient.find("it runs", None, told, patient.sized(told_of))
    return False


def _takes(patient: Patient) -> bool:
    """Whether the target could be called with as many tensors as it is given."""
    count = {"x": 1, "x_context": 2, "qkv": 3}[patient.inputs.removesuffix("_allowed")] + patient.options.masked
    called = patient.original.forward if isinstance(patient.original, nn.Module) else patient.original
    try:
        inspect.signature(called).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # it tells no signature
        return False
    return True


def _answers(patient: Patient) -> bool:
    """Ask whether there is anything in its output to examine."""
    check = "its output is finite, and depends on its input"
    first, other = (patient.f(patient.noise(patient.items, patient.tokens, seed)) for seed in (0, 9))
    if not first.isfinite().any() and not patient.options.masked:  # a mask's polarity may be the reason
        patient.find(check, None, "no number of its output is finite", patient.sized(f"all are {first.flatten()[0]}"))
        return False
    same = torch.allclose(first, other, rtol=100 * torch.finfo(first.dtype).eps, atol=0.0)
    if first.isfinite().all() and same:
        told = "its output does not depend on its input"
        patient.find(check, None, told, patient.sized("two inputs drawn at random have the same output"))
        return False
    return True


def _computes(patient: Patient) -> bool:
    """Take the precision that it computes in, or what rounding does would be taken for mistakes."""
    if patient.target.dtype != torch.float64:
        return True
    with _Precision() as seen:
        patient.f(patient.noise(patient.items, patient.tokens))
    if seen.bits < 32:
        needs = "a target that computes in float32 or float64: somewhere inside it computes in 16 bits"
        patient.open("every other check of its outputs", needs)
        return False
    if seen.bits < 64:
        patient.target = patient.admit(torch.float32)
        patient.target.mask_axes = patient.admitted[-2].mask_axes
        return patient.failure(patient.items, patient.tokens) is None
    return True


def is_still(patient: Patient) -> bool:
    """Ask whether anything is random: nothing else can be asked of what is."""
    check = "the same at every call, in evaluation"
    drawn = patient.ask(check, lambda b, t: probes.changes_from_call_to_call(patient.f, patient.noise(b, t)))
    if drawn is not None:
        patient.find(check, "dropout-in-eval", "its output is random though it is in evaluation mode", drawn)
        patient.open("every other check of its outputs", "outputs that do not change from call to call")
    return drawn is None


class _Precision(TorchDispatchMode):
    """Sees in how many bits, at the fewest, the operations within it compute.

    Attributes:
        bits: The fewest bits of a floating result.
    """

    supports_higher_order_operators = True  # FlexAttention is one

    def __init__(self) -> None:
        super().__init__()
        self.bits = 64

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for each in result if isinstance(result, tuple | list) else [result]:
            if isinstance(each, Tensor) and each.is_floating_point():
                self.bits = min(self.bits, torch.finfo(each.dtype).bits)
        return result
