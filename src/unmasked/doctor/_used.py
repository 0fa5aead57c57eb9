"""Whether each parameter counts: one backward pass says of which the output is made, and which of them move nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from unmasked import probes
from unmasked.doctor._report import Finding, Open, Outcome, Passed
from unmasked.doctor._rows import role_of
from unmasked.doctor._subject import Subject, gradients, said

__all__ = ["GRADIENTS", "lost", "trainable"]

GRADIENTS = "gradients reach the input and every parameter"
_NOTHING = 1e-12  # of the largest gradient: a parameter with as little moves nothing


def trainable(subject: Subject) -> Iterator[Outcome]:
    """Ask whether a backward pass runs, uses every head, and is cut off nowhere."""
    try:
        given = gradients(subject)
    except NotImplementedError as error:
        yield Open(GRADIENTS, f"a backward pass, which is not implemented here: {said(error)}")
        return
    except Exception as error:  # whatever a target may raise is what is wrong with it
        yield Finding(GRADIENTS, "gradient-cut", "it cannot be trained: its backward pass fails", said(error))
        return
    yield from _idle_heads(subject, given)
    parameters = [(name, subject.target.tensors[name]) for name in subject.target.trained]
    items, tokens = (2, subject.fixed or 3) if subject.embed_dim > 256 else (subject.items, subject.tokens)
    try:
        cut = probes.cuts_gradients(subject.f, subject.noise(items, tokens), parameters)
    except Exception as error:  # as above, at the sizes of this question
        yield Open(GRADIENTS, f"the target raised {said(error)}")
        return
    if cut is None:
        yield Passed(GRADIENTS)
        return
    unused = not cut.difference  # else the output moves along the parameter
    told = "a parameter is not used" if unused else "a gradient is cut off"
    yield Finding(GRADIENTS, "gradient-cut", told, str(cut), caution=unused)


def _idle_heads(subject: Subject, given: Mapping[str, Tensor | None]) -> Iterator[Outcome]:
    """Find linear layers of which the rows of whole heads get no gradient at all: nothing depends on them."""
    dim = subject.embed_dim // (subject.num_heads or 1)
    for name, gradient in given.items():
        if gradient is None or gradient.dim() != 2 or not isinstance(subject.target.owners[name], nn.Linear):
            continue
        idle = (gradient == 0).all(1).cpu()
        if dim > 1 and idle.any() and not idle.all() and len(idle) % dim == 0:
            by_head = idle.view(-1, dim)
            if torch.equal(by_head.any(1), by_head.all(1)):
                told = "some heads are not used: nothing depends on the rows of a layer that make them"
                evidence = subject.sized(f"{int(idle.sum())} of {len(idle)} rows of {name} get no gradient")
                yield Finding("every head is used", None, told, evidence)
                return


def lost(subject: Subject) -> Iterator[Outcome]:
    """Find values' biases and sinks that move nothing, and tables that were read once, when the module was made.

    A bias of keys rightly moves nothing: it adds the same to all scores of a query.
    """
    if not subject.target.copied:
        return
    try:
        given = gradients(subject)
    except Exception:  # which `trainable` tells
        return
    size = max((grad.abs().max().item() for grad in given.values() if grad is not None and grad.numel()), default=0.0)
    for name, grad in given.items():
        if grad is None:
            yield from _made_once(subject, name)
            continue
        meant = "sink" in name.lower() or (role_of(name) == "value" and grad.dim() == 1)
        if meant and grad.numel() and grad.abs().max().item() <= _NOTHING * size and not _moves(subject, name):
            told = f"{name} goes into the computation and has no effect on what it gives"
            evidence = subject.sized("its gradient is zero, and other numbers in its place leave the output as it was")
            yield Finding(GRADIENTS, None, told, evidence)
            return


def _moves(subject: Subject, name: str) -> bool:
    """Whether the output notices other numbers in a parameter's place."""
    tensor, x = subject.target.tensors[name], subject.noise(2, subject.tokens)
    with torch.no_grad():
        before, kept = subject.f(x), tensor.detach().clone()
        steps = torch.linspace(1, 2, tensor.numel(), dtype=tensor.dtype, device=tensor.device)
        tensor.add_(steps.view(tensor.shape))
        after = subject.f(x)
        tensor.copy_(kept)
    return (after - before).abs().max().item() > 1e-9 * max(1.0, before.abs().max().item())


def _made_once(subject: Subject, name: str) -> Iterator[Outcome]:
    """Find a buffer made of the numbers of a parameter that nothing else uses."""
    for prefix, original in subject.target.originals.items():
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
                yield Finding(GRADIENTS, None, told, evidence)
                return
