"""Whether each parameter counts: one backward pass says of which the output is made, and which of them move nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from unmasked_doctor import probes
from unmasked_doctor._judge.names import role_of
from unmasked_doctor._report import Finding, Open, Outcome, Passed
from unmasked_doctor._subject import Subject, brief, gradients

__all__ = ["GRADIENTS", "trainable"]

GRADIENTS = "gradients reach the input and every parameter"
_NOTHING = 1e-12  # of the largest gradient: a parameter with as little moves nothing


def trainable(subject: Subject) -> Iterator[Outcome]:
    """Ask whether a backward pass runs, uses every head, and is cut off nowhere."""
    try:
        grads = gradients(subject)
    except NotImplementedError as error:
        yield Open(GRADIENTS, f"a backward pass, which is not implemented here: {brief(error)}")
        return
    except Exception as error:  # whatever a target may raise is what is wrong with it
        text = "it cannot be trained: its backward pass fails"  # as may be meant of what only infers
        yield Finding(GRADIENTS, "gradient-cut", text, brief(error), step="parameters")
        return
    target = subject.target
    # PyTorch gives the row of padding in an embedding no gradient, whatever it does to the output.
    by_autograd = [each for each in target.trained if getattr(target.owners[each], "padding_idx", None) is None]
    parameters = [(name, target.tensors[name]) for name in by_autograd]
    items, tokens = (2, subject.fixed or 3) if subject.embed_dim > 256 else (subject.items, subject.tokens)
    x = subject.noise(items, tokens)
    try:
        cut = probes.cuts_gradients(subject.f, x, parameters)
        rest = probes.cuts_gradients(lambda _: subject.f(x), x, parameters) if cut is not None and parameters else cut
    except Exception as error:  # as above, at the sizes of this question
        yield Open(GRADIENTS, f"the target raised {brief(error)}")
        return
    if cut is not None and cut.difference and rest is not None and not rest.difference:
        text = "a part of what it makes of its input has no gradient, though every parameter has its own"
        yield Finding(GRADIENTS, "gradient-cut", text, str(cut), step="inputs")
        return
    if cut is not None and cut.difference:
        yield Finding(GRADIENTS, "gradient-cut", "a gradient is cut off", str(cut))
        return
    yield from _idle_heads(subject, grads)
    if cut is not None:  # the output does not move along the parameter
        yield Finding(GRADIENTS, "gradient-cut", "a parameter is not used", str(cut), step="parameters")
    lost = [*_lost(subject, grads), *_unread(subject, grads)]
    yield from lost
    if cut is None and not lost:
        yield Passed(GRADIENTS)


def _idle_heads(subject: Subject, grads: Mapping[str, Tensor | None]) -> Iterator[Outcome]:
    """Find matrices of which whole heads get no gradient at all: nothing depends on what makes them."""
    dim = subject.embed_dim // (subject.num_heads or 1)
    for name, gradient in grads.items():
        if gradient is None or gradient.dim() != 2:
            continue
        linear = isinstance(subject.target.owners[name], nn.Linear)
        lines = gradient if linear else gradient.mT  # a bare matrix stands to the right of what it multiplies
        idle = (lines == 0).all(1).cpu()
        if dim > 1 and idle.any() and not idle.all() and len(idle) % dim == 0:
            by_head = idle.view(-1, dim)
            if torch.equal(by_head.any(1), by_head.all(1)):
                called = "rows" if linear else "columns"
                text = f"some heads are not used: nothing depends on the {called} of a layer that make them"
                evidence = subject.sized(f"{int(idle.sum())} of {len(idle)} {called} of {name} get no gradient")
                yield Finding("every head is used", None, text, evidence, step="parameters")
                return


def _unread(subject: Subject, grads: Mapping[str, Tensor | None]) -> Iterator[Outcome]:
    """Find tables whose rows are never read: all but one, or some by a target that takes no other number of tokens."""
    for name, gradient in grads.items():
        if gradient is None or gradient.dim() != 2 or isinstance(subject.target.owners[name], nn.Linear):
            continue
        rows = gradient.any(1)
        padding = getattr(subject.target.owners[name], "padding_idx", None)
        if padding is not None:  # which has no gradient, read or not
            rows[padding] = True
        count = int(rows.sum())
        told = f"only {count} of {len(gradient)} rows of {name} are ever read"
        if count == 1 < len(rows) - 1 or (subject.fixed and 0 < count < len(rows) and not rows[:count].all()):
            yield Finding(GRADIENTS, None, told, subject.sized("the others get no gradient"), step="parameters")
        elif subject.fixed and 0 < count < len(rows) and _is_of_grid(len(rows), subject.fixed):
            text = f"pairs of tokens at different offsets share rows of {name}: {told}"
            evidence = subject.sized(
                f"a row for each offset of {subject.fixed} tokens in a grid, and the others unread"
            )
            yield Finding(GRADIENTS, None, text, evidence, step="bias")
        elif subject.fixed and 0 < count < len(rows):  # the first ones, of a table for more tokens
            yield Open(GRADIENTS, f"whether it is right that {told}")


def _is_of_grid(rows: int, tokens: int) -> bool:
    """Whether a table has a row for each offset of two tokens in a grid of so many, of two or three axes."""
    sizes = [n for n in range(1, tokens + 1) if tokens % n == 0]
    grids = [(a, b, tokens // a // b) for a in sizes for b in sizes if tokens % (a * b) == 0]
    return any((2 * a - 1) * (2 * b - 1) * (2 * c - 1) == rows for a, b, c in grids if max(a, b, c) < tokens)


def _lost(subject: Subject, grads: Mapping[str, Tensor | None]) -> Iterator[Outcome]:
    """Find values' biases and sinks that move nothing.

    A bias of keys rightly moves nothing: it adds the same to all scores of a query.
    """
    size = max((grad.abs().max().item() for grad in grads.values() if grad is not None and grad.numel()), default=0.0)
    for name, grad in grads.items() if subject.target.copied else ():
        meant = grad is not None and ("sink" in name.lower() or (role_of(name) == "value" and grad.dim() == 1))
        if meant and grad is not None and grad.numel() and grad.abs().max().item() <= _NOTHING * size:
            text = f"{name} goes into the computation and has no effect on what it gives"
            yield Finding(GRADIENTS, None, text, subject.sized("its gradient is zero"), step="parameters")
            return
