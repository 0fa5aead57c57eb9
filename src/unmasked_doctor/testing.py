"""The doctor in a test suite: one line that holds an attention module to everything that `unmasked.diagnose` asks."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Literal

from unmasked_doctor import Report, diagnose, reaches
from unmasked_doctor._report import known

__all__ = ["assert_attention"]


def assert_attention(
    target: Callable[..., Any],
    *,
    but: Collection[str] = (),
    at_least: Literal["followed", "equal"] | None = None,
    **options: Any,
) -> Report:
    """Fail unless an attention module or function keeps its promises, and differs from the textbook as is meant.

    Args:
        target: A module or a function.
        but: What it may do: slugs of mistakes that are known and stay, and steps of `unmasked_doctor.STEPS` in which it
            is meant to differ, such as "scale"; "items" where items of a batch are meant to reach each other.
        at_least: How well it must be known what it computes, to pass: see `Report.verdict`.
        options: As `unmasked.diagnose` takes them: embed_dim, num_heads, causal, inputs and more.

    Returns:
        The report, for what else a test may ask of it.

    Raises:
        AssertionError: A promise is broken, a difference is not accepted, or less is known than was asked for; its text
            is the report.
        TypeError: ``but`` is a name itself.
        ValueError: A name in ``but`` is no mistake of the museum and no step, or ``at_least`` is no verdict.

    Examples:
        >>> from unmasked import CausalSelfAttention as MyLayer
        >>> def test_my_layer_attends():
        ...     assert_attention(MyLayer(12, 12, 3), embed_dim=12, causal=True)
        >>> test_my_layer_attends()
    """
    __tracebackhide__ = True
    if isinstance(but, str):
        raise TypeError(f"but is {but!r}; pass a collection of names: [{but!r}]")
    known(but)
    if at_least not in (None, "followed", "equal"):
        raise ValueError(f'at_least is {at_least!r}; choose "followed" or "equal"')
    report = diagnose(target, **options)
    less = at_least is not None and not reaches(report.verdict, at_least)
    if less or not all(each.accepted(but) for each in report.named):
        raise AssertionError(report.text())
    return report
