"""The doctor in a test suite: one line that holds an attention module to everything that `unmasked.diagnose` asks."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Literal

from unmasked_doctor import Report, diagnose, museum, reaches

__all__ = ["assert_attention"]


def assert_attention(
    target: Callable[..., Any],
    *,
    but: Collection[str] = (),
    at_least: Literal["followed", "equal"] | None = None,
    **options: Any,
) -> Report:
    """Fail unless the doctor finds nothing wrong with an attention module or function.

    Args:
        target: A module or a function.
        but: Slugs of mistakes that it may have: those that are known, and stay.
        at_least: How well it must be known what it computes, to pass: see `Report.verdict`.
        options: As `unmasked.diagnose` takes them: embed_dim, num_heads, causal, inputs and more.

    Returns:
        The report, for what else a test may ask of it.

    Raises:
        AssertionError: There is a finding, or less is known than was asked for; its text is the report.
        TypeError: ``but`` is a name itself.
        ValueError: A name in ``but`` is no mistake of the museum, or ``at_least`` is no verdict.

    Examples:
        >>> from unmasked import CausalSelfAttention as MyLayer
        >>> def test_my_layer_attends():
        ...     assert_attention(MyLayer(12, 12, 3), embed_dim=12, causal=True)
        >>> test_my_layer_attends()
    """
    __tracebackhide__ = True
    if isinstance(but, str):
        raise TypeError(f"but is {but!r}; pass a collection of names: [{but!r}]")
    for slug in but:
        if slug not in museum.ENTRIES:
            raise ValueError(f"but names {slug!r}, which is no mistake of unmasked_doctor.museum.ENTRIES")
    if at_least not in (None, "followed", "equal"):
        raise ValueError(f'at_least is {at_least!r}; choose "followed" or "equal"')
    report = diagnose(target, **options)
    less = at_least is not None and not reaches(report.verdict, at_least)
    if less or any(finding.cause is None or finding.cause not in but for finding in report.findings):
        raise AssertionError(report.text())
    return report
