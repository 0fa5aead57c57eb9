"""What only modules have: hooks, shared memory, buffers."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from unmasked import probes
from unmasked.doctor._patient import Patient
from unmasked.doctor._target import is_triangle
from unmasked.doctor._weights import role_of


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
    _offsets(patient)
    _lost(patient)
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


def _lost(patient: Patient) -> None:
    """Find values' biases and sinks that move nothing, and tables that were read once, when the module was made.

    A bias of keys rightly moves nothing: it adds the same to all scores of a query.
    """
    target = patient.target
    names = [n for n, t in target.tensors.items() if t.requires_grad and t.is_leaf and t.is_floating_point()]
    if patient.notes.findings or not names or not target.copied:
        return
    x = patient.noise(2, patient.tokens)
    try:
        with torch.enable_grad():
            asked = x.clone().requires_grad_()  # the input's gradient too, as in _rows: PyTorch 2.13 may fall without
            output = patient.f(asked)
            drawn = patient.noise(2, patient.tokens, 9)
            drawn = drawn[..., : output.size(-1)] if output.size(-1) <= drawn.size(-1) else output.detach()
            leaves = [*(target.tensors[n] for n in names), asked]
            grads = torch.autograd.grad((output * drawn.expand_as(output)).sum(), leaves, allow_unused=True)
    except Exception:
        return
    size = max((g.abs().max().item() for g in grads[:-1] if g is not None and g.numel()), default=0.0)
    for name, grad in zip(names, grads[:-1], strict=True):
        if grad is None:
            _made_once(patient, name)
            continue
        words = name.lower()
        meant = "sink" in words or (role_of(name) == "value" and grad.dim() == 1)
        if meant and grad.numel() and grad.abs().max().item() <= 1e-12 * size and not _moves(patient, name, x):
            told = f"{name} goes into the computation and has no effect on what it gives"
            evidence = patient.sized("its gradient is zero, and other numbers in its place leave the output as it was")
            patient.find("gradients reach the input and every parameter", None, told, evidence)
            return


def _moves(patient: Patient, name: str, x: Tensor) -> bool:
    """Whether the output notices other numbers in a parameter's place."""
    tensor = patient.target.tensors[name]
    with torch.no_grad():
        before, kept = patient.f(x), tensor.detach().clone()
        tensor.add_(torch.linspace(1, 2, tensor.numel(), dtype=tensor.dtype, device=tensor.device).view(tensor.shape))
        after = patient.f(x)
        tensor.copy_(kept)
    return (after - before).abs().max().item() > 1e-9 * max(1.0, before.abs().max().item())


def _made_once(patient: Patient, name: str) -> None:
    """Find a buffer made of the numbers of a parameter that nothing else uses."""
    for prefix, original in patient.target.originals.items():
        if not isinstance(original, nn.Module) or (prefix and not name.startswith(f"{prefix}.")):
            continue
        table = dict(original.named_parameters()).get(name.removeprefix(f"{prefix}.") if prefix else name)
        if table is None or nn.parameter.is_lazy(table) or table.detach().unique().numel() < 4:
            continue
        values = table.detach().flatten().double()
        for inner, buffer in original.named_buffers():
            if nn.parameter.is_lazy(buffer) or not buffer.is_floating_point() or buffer.unique().numel() < 4:
                continue
            if bool(torch.isin(buffer.flatten().double(), values).all()):
                told = f"{inner} was made of {name} when the module was: what is trained or loaded later has no effect"
                evidence = "every number of the buffer is one of the parameter's, which has no gradient"
                patient.find("gradients reach the input and every parameter", None, told, evidence)
                return


def _offsets(patient: Patient) -> None:
    """Find an index of relative places in a map, with an entry for each offset, in which several offsets share one."""
    for whole in patient.target.modules.values():
        for module in whole.modules():
            rows = {p.size(0) for p in module.parameters(recurse=False) if p.dim() == 2}
            for name, index in module.named_buffers(recurse=False):
                square = index.dim() == 2 and index.size(0) == index.size(1) and not index.is_floating_point()
                if not square or index.dtype == torch.bool or index.size(0) > 400:
                    continue
                count = index.size(0)
                shapes = [(h, count // h) for h in range(2, count // 2 + 1) if count % h == 0]
                shapes = [(h, w) for h, w in shapes if (2 * h - 1) * (2 * w - 1) in rows]
                if shapes and all(index.unique().numel() < (2 * h - 1) * (2 * w - 1) for h, w in shapes):
                    told = f"{name} gives several offsets in the map one entry, though the table has one for each"
                    height, width = shapes[0]
                    evidence = f"{index.unique().numel()} entries for {(2 * height - 1) * (2 * width - 1)} offsets"
                    patient.find("an entry for each offset", None, told, evidence)
                    return


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
