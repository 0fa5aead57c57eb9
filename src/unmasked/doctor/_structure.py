"""What only modules have: hooks, shared memory, buffers."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn

from unmasked import probes
from unmasked.doctor._patient import Patient
from unmasked.doctor._target import is_triangle


def structure(patient: Patient, calls: list[dict[str, Any]]) -> None:
    modules = patient.target.modules
    if not modules:
        return
    x = patient.noise(patient.items, patient.tokens)
    for module in modules.values():
        if isinstance(module, torch.jit.ScriptModule):  # which takes no hooks
            continue
        with torch.no_grad():
            skipped = probes.skips_hooks(module, functools.partial(patient.target, x))
        if skipped is not None:
            told = "a submodule is called as .forward(...), which skips its hooks"
            patient.find("hooks run", "forward-called-directly", told, skipped)
    _repeated(patient)
    shared = None
    for original in patient.target.originals.values():
        if isinstance(original, nn.Module):
            shared = shared or probes.shares_memory(original)
            _buffers(patient, original)
    if shared is not None:
        told = "a parameter was copied by aliasing it: training one moves the other"
        patient.find("parameters have their own memory", "aliased-weights", told, shared)
    else:
        patient.notes.passed.append("parameters have their own memory")
    if any(call.get("need_weights") for call in calls) and patient.target.weights is None:
        told = "nn.MultiheadAttention is asked for weights, off the fused kernels, and they are dropped"
        patient.caution("what it costs", "need-weights-costs", told, "need_weights is not False in the call")


def _buffers(patient: Patient, module: nn.Module) -> None:
    kept = module.state_dict()
    for name, buffer in module.named_buffers():
        if name in kept and buffer.is_floating_point() and is_triangle(buffer):
            size = buffer.numel() * buffer.element_size()
            told = "a mask is kept as a floating buffer in the state_dict: it grows with the square of the context"
            evidence = f"{name!r} of shape {tuple(buffer.shape)} takes {size} bytes"
            patient.caution("no mask in the state_dict", "mask-buffer", told, evidence, certain=True)


def _repeated(patient: Patient) -> None:
    """Look for lists that hold one module several times."""
    for name, original in patient.target.originals.items():
        for inner, module in original.named_modules() if isinstance(original, nn.Module) else ():
            if isinstance(module, nn.ModuleList | nn.Sequential) and len(module) > 1:
                held = [each for each in module if any(True for _ in each.parameters())]
                if len(held) > 1 and len({id(each) for each in held}) == 1:
                    full = ".".join(part for part in (name, inner) if part)
                    told = (
                        f"the list holds one module {len(held)} times: what should be heads of their own share weights"
                    )
                    place = patient.find if len(held) == patient.num_heads else patient.caution
                    place("heads have their own weights", None, told, f"{full!r}, of {type(held[0]).__name__}")
