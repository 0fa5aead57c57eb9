"""What only modules have: hooks, shared memory, buffers, lists, and parameters that move nothing."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from torch import nn

from unmasked_doctor import probes
from unmasked_doctor._report import Finding, Outcome, Passed
from unmasked_doctor._subject import Subject
from unmasked_doctor._target import is_triangle

__all__ = ["structure"]


def structure(subject: Subject) -> Iterator[Outcome]:
    modules = subject.target.modules
    if not modules:
        return
    x = subject.noise(subject.items, subject.tokens)
    for module in modules.values():
        if isinstance(module, torch.jit.ScriptModule):  # which takes no hooks
            continue
        with torch.no_grad():
            skipped = probes.skips_hooks(module, functools.partial(subject.target, x))
        if skipped is not None:
            text = "a submodule is called as .forward(...), which skips its hooks"
            yield Finding("hooks run", "forward-called-directly", text, str(skipped))
    yield from _repeated(subject)
    wholes = [each for each in subject.target.originals.values() if isinstance(each, nn.Module)]
    for whole in wholes:
        yield from _buffers(whole)
    shared = next((shared for whole in wholes if (shared := probes.shares_memory(whole)) is not None), None)
    if shared is not None:
        text = "a parameter was copied by aliasing it: training one moves the other"
        yield Finding("parameters have their own memory", "aliased-weights", text, str(shared))
    else:
        yield Passed("parameters have their own memory")
    if subject.target.called_with("need_weights") and subject.target.weights is None:
        text = "nn.MultiheadAttention is asked for weights, off the fused kernels, and they are dropped"
        evidence = "need_weights is not False in the call"
        yield Finding("what it costs", "need-weights-costs", text, evidence, caution=True)


def _buffers(module: nn.Module) -> Iterator[Outcome]:
    kept = module.state_dict()
    for name, buffer in module.named_buffers():
        if name in kept and buffer.is_floating_point() and is_triangle(buffer):
            size = buffer.numel() * buffer.element_size()
            text = "a mask is kept as a floating buffer in the state_dict: it grows with the square of the context"
            evidence = f"{name!r} of shape {tuple(buffer.shape)} takes {size} bytes"
            yield Finding("no mask in the state_dict", "mask-buffer", text, evidence, how="followed", caution=True)


def _repeated(subject: Subject) -> Iterator[Outcome]:
    """Look for lists that hold one module several times."""
    for name, original in subject.target.originals.items():
        for inner, module in original.named_modules() if isinstance(original, nn.Module) else ():
            if isinstance(module, nn.ModuleList | nn.Sequential) and len(module) > 1:
                held = [each for each in module if any(True for _ in each.parameters())]
                if len(held) > 1 and len({id(each) for each in held}) == 1:
                    full = ".".join(part for part in (name, inner) if part)
                    text = f"the list holds one module {len(held)} times: what should be heads of their own share "
                    evidence = f"{full!r}, of {type(held[0]).__name__}"
                    check, alone = "heads have their own weights", len(held) != subject.num_heads
                    yield Finding(check, None, f"{text}weights", evidence, caution=alone, step="heads")
