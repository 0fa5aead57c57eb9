"""The examination: every check, in order, and what its failure means."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

from unmasked import _generators
from unmasked.doctor._behaviour import behaviour
from unmasked.doctor._caching import caches, keeps_nothing
from unmasked.doctor._equality import explain
from unmasked.doctor._numbers import leaves_inputs, numbers
from unmasked.doctor._patient import Patient
from unmasked.doctor._report import Notes, Report
from unmasked.doctor._running import is_still, runs, uncompiled
from unmasked.doctor._structure import structure
from unmasked.doctor._target import Inputs, Options

__all__ = ["diagnose"]


def diagnose(
    target: Callable[..., Any],
    *,
    embed_dim: int,
    num_heads: int | None = None,
    causal: bool | None = None,
    inputs: Inputs = "x",
    batch_first: bool = True,
    weights: Mapping[str, Any] | None = None,
    positions: bool = False,
    strict: bool = False,
    tokens: int | None = None,
    key_dim: int | tuple[int, int] | None = None,
    cache: str | None = None,
    training: bool = False,
) -> Report:
    """Examine an attention module or function: what holds of it, what does not, and which mistake explains it.

    The target is copied, and the copy examined where its parameters are, in evaluation mode, in float64, with
    parameters drawn anew, since those of a fresh module (biases of zero) hide mistakes. Neither the target nor a global
    random generator is moved.

    Args:
        target: A module, or any function. It returns a tensor, or a tuple or a dict that begins with it.
        embed_dim: Features of its input.
        num_heads: Number of heads; None to take it from the module's attributes, or to try.
        causal: Whether no token may see a later one, of itself; None if that is not known.
        inputs: What it takes: "x", one tensor; "x_context", its tokens and those that they attend to; "qkv", three
            tensors; and each with "_allowed", such as "x_allowed", if a boolean mask follows, whose True means that a
            query may see a key.
        batch_first: Whether its tensors are (batch, tokens, features), and not (tokens, batch, features).
        weights: Where each weight is, if names do not tell: by "query", "key", "value", "out" or "qkv", and the same
            with "_bias", a parameter's name, a parameter or a view of one, (out, in), or an nn.Linear. Their order
            then counts: another is a mistake.
        positions: Whether it adds positions to its tokens, or turns queries and keys by them, so that order matters.
        strict: Count as findings what PyTorch's own functions do too: NaN for a query that may see nothing, weights
            that are returned after dropout.
        tokens: The number of tokens that it was built for, if it takes no other.
        key_dim: Features of keys and values, or of the context, if not embed_dim; a pair if those of values differ.
        cache: "kv" if it is called as ``target(x, cache=None)`` and returns its output and a cache, to be passed with
            the tokens that follow; or the name that this argument has, such as "past_key_value".
        training: Whether to examine what it computes in training too, whose mean over dropout is what it computes in
            evaluation.

    Returns:
        The report: ``report.ok``, and findings with their causes.

    Raises:
        TypeError: target cannot be called.
        ValueError: an option is out of range, or the target does not take these inputs.

    Examples:
        >>> module = torch.nn.MultiheadAttention(12, 3, batch_first=True)
        >>> diagnose(module, embed_dim=12, inputs="qkv").ok
        True
        >>> class Merged(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.qkv, self.proj = torch.nn.Linear(12, 36), torch.nn.Linear(12, 12)
        ...     def forward(self, x):
        ...         q, k, v = self.qkv(x).unflatten(-1, (9, 4)).transpose(1, 2).chunk(3, 1)
        ...         context = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        ...         return self.proj(context.reshape(x.shape))
        >>> diagnose(Merged(), embed_dim=12, num_heads=3).causes
        ('merge-without-transpose',)
    """
    if not callable(target):
        raise TypeError(f"target is a {type(target).__name__}; pass a module or a function")
    if inspect.isclass(target):
        raise TypeError(f"target is the class {target.__name__}; pass an object of it: {target.__name__}(...)")
    options = Options(
        embed_dim, num_heads, causal, inputs, batch_first, weights, positions, tokens, key_dim, cache, training
    )
    with _generators.forked():
        patient = Patient(target, options)
        try:
            notes = _examine(patient)
        finally:
            patient.release()
    findings = [*notes.findings, *(notes.cautions if strict else [])]
    findings.sort(key=lambda finding: not finding.certain)
    name = getattr(target, "__name__", type(target).__name__)
    return Report(
        name,
        tuple(findings),
        () if strict else tuple(notes.cautions),
        tuple(notes.passed),
        tuple(notes.inconclusive),
        notes.decided,
    )


def _examine(patient: Patient) -> Notes:
    """Ask everything that can be asked."""
    with uncompiled(), torch.no_grad():
        running = runs(patient)
    if not running:
        return patient.notes
    calls = [dict(call) for call in patient.target.spied]
    with uncompiled(), torch.no_grad():
        if is_still(patient):
            leaves_inputs(patient)
            explained = explain(patient)
            if not explained:
                behaviour(patient, calls)
                if not patient.notes.findings:
                    keeps_nothing(patient)
            caches(patient)
            numbers(patient, explained)
    structure(patient, calls)
    return patient.notes
