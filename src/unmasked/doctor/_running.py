"""Whether it runs at all, at sizes that all differ, and computes something that can be examined."""

from __future__ import annotations

import inspect
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from unmasked import probes
from unmasked.doctor._patient import Patient, said
from unmasked.doctor._target import INPUTS, WrongShape


def uncompiled() -> AbstractContextManager[Any]:
    """Run what is compiled as it was written, if what compiles was loaded: nobody can look into compiled code."""
    loaded = {"torch._dynamo", "torch.nn.attention.flex_attention"} & sys.modules.keys()
    return torch.compiler.set_stance("force_eager") if loaded else nullcontext()


def runs(patient: Patient) -> bool:
    """Call it; if that fails, find out whether it is the sizes."""
    error = patient.failure(patient.items, patient.tokens)
    if error is not None and not isinstance(error, WrongShape):
        error = _in_its_own_precision(patient, error)
    pools = isinstance(error, WrongShape) and error.pooled  # then a length at which the shapes agree is chance
    if error is not None and patient.fixed is None and not pools:
        error = _at_its_own_length(patient, error)
    if error is None and patient.fixed is None:  # as many outputs as tokens may have been chance
        more = patient.failure(patient.items, patient.tokens + 4)
        error = more if isinstance(more, WrongShape) and more.pooled else None
    if error is None:
        sized = "it runs" if patient.fixed else "it runs, with sizes that all differ"
        patient.notes.passed.append(sized)
        return _answers(patient) and _computes(patient)
    if isinstance(error, WrongShape) and error.pooled and _pools(patient, error):
        return False
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
    if "same device" in told_of:
        told = "it does not run where its parameters are: a tensor of its own, such as a mask, is on another device"
        patient.find("it runs", None, told, patient.sized(told_of))
    elif isinstance(error, WrongShape):
        told = "its output has not the shape of an attention's: see inputs and batch_first"
        also = ("batch-first-forgotten", "batch-and-tokens-swapped") if "no tensor" not in told_of else ()
        patient.find("it runs", None, told, patient.sized(told_of), also=also)
    else:
        patient.find("it runs", None, told, patient.sized(told_of))
    return False


def _in_its_own_precision(patient: Patient, error: Exception) -> Exception | None:
    """Try float32, and what its parameters have, where float64 is refused: by a kernel, or by a number kept inside."""
    own = [t.dtype for thing in patient.target.originals.values() for t in _tensors(thing) if t.is_floating_point()]
    first = patient.target
    for dtype in dict.fromkeys([torch.float32, *own]):
        if dtype != torch.float64:
            patient.target = patient.admit(dtype)
            if patient.failure(patient.items, patient.tokens) is None:
                return None
    patient.target = first
    return error


def _tensors(thing: nn.Module | Tensor) -> list[Tensor]:
    return [thing] if isinstance(thing, Tensor) else [*thing.parameters(), *thing.buffers()]


def _at_its_own_length(patient: Patient, error: Exception) -> Exception | None:
    """Look for the number of tokens that it was built for, among the sizes of what it holds, and in multiples."""
    held = {size for thing in patient.target.originals.values() for t in _tensors(thing) for size in t.shape}
    tokens = patient.tokens
    lengths = sorted(n for n in held | {n - 1 for n in held} if 1 < n <= 1024 and n not in (patient.items, tokens))
    for length in dict.fromkeys([8, 16, *lengths, 4, 9, 49, 64]):
        patient.tokens = length
        if patient.failure(1, length) is None and patient.failure(patient.items, length) is None:
            patient.fixed = length
            patient.open("other numbers of tokens", f"how many it is built for: pass tokens={length}, which it takes")
            return None
    patient.tokens = tokens
    return error


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


def _pools(patient: Patient, error: WrongShape) -> bool:
    """Whether it makes as many outputs of any number of tokens: queries of its own read them."""
    more = patient.failure(patient.items, patient.tokens + 4)
    if not isinstance(more, WrongShape) or more.pooled != error.pooled:
        return False
    count = error.pooled
    patient.notes.passed.append("it runs, with sizes that all differ")
    patient.open(
        "every check of its outputs",
        f"an output for each token: of any number of tokens it makes {count}; pass what makes them, with x_context",
    )
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
    if _is_quantized(patient):
        needs = "a target that is not quantized: its rounding moves every output; examine it before it is quantized"
        patient.open("every other check of its outputs", needs)
        return False
    if patient.target.dtype != torch.float64:
        return patient.target.dtype == torch.float32 or _is_narrow(patient)
    with uncompiled(), _Precision() as seen:
        patient.f(patient.noise(patient.items, patient.tokens))
    if seen.softmax < 32 and patient.target.copied:
        told = "the softmax is computed in 16 bits, inside of what computes in more"
        patient.find("the softmax keeps its precision", None, told, patient.sized(f"it has {seen.softmax} bits"))
        return False
    if seen.bits < 32:
        return _is_narrow(patient)
    if seen.bits < 64:
        patient.target = patient.admit(torch.float32)
        patient.target.mask_axes = patient.admitted[-2].mask_axes
        return patient.failure(patient.items, patient.tokens) is None
    return True


def _is_narrow(patient: Patient) -> bool:
    needs = "a target that computes in float32 or float64: somewhere inside it computes in 16 bits"
    patient.open("every other check of its outputs", needs)
    return False


def _is_quantized(patient: Patient) -> bool:
    """Whether any of its modules rounds what it is given to whole numbers."""
    modules = (module for thing in patient.target.modules.values() for module in thing.modules())
    return any(".quantized" in type(module).__module__ for module in modules)


def is_still(patient: Patient) -> bool:
    """Ask whether anything is random, or kept: nothing else can be asked of what is."""
    check = "the same at every call, in evaluation"
    drawn = patient.ask(check, lambda b, t: probes.changes_from_call_to_call(patient.f, patient.noise(b, t)))
    if drawn is None:
        return True
    x, between = (patient.noise(patient.items, patient.tokens, seed) for seed in (0, 9))
    outputs = []
    for _ in range(3):
        torch.manual_seed(1)
        outputs.append(patient.f(x))
        patient.f(between)
    if any(probes.differs(output, outputs[0]) for output in outputs[1:]):
        told = (
            "a call changes what the next one gives, with nothing drawn at random: it keeps something, and never resets"
        )
        patient.find(check, None, told, drawn)
    else:
        patient.find(check, "dropout-in-eval", "its output is random though it is in evaluation mode", drawn)
    patient.open("every other check of its outputs", "outputs that do not change from call to call")
    return False


class _Precision(TorchDispatchMode):
    """Sees in how many bits, at the fewest, the operations within it compute.

    Attributes:
        bits: The fewest bits of a floating result.
        softmax: The same of a softmax.
    """

    supports_higher_order_operators = True  # FlexAttention is one

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or else its first call imports the compiler, which takes longer than all of an examination

    def __init__(self) -> None:
        super().__init__()
        self.bits = self.softmax = 64

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for each in result if isinstance(result, tuple | list) else [result]:
            if isinstance(each, Tensor) and each.is_floating_point():
                bits = torch.finfo(each.dtype).bits
                self.bits = min(self.bits, bits)
                if function is torch.ops.aten._softmax.default:
                    self.softmax = min(self.softmax, bits)
        return result
