"""The doctor in a test suite: one line that holds an attention module to everything that `unmasked.diagnose` asks.

>>> from unmasked import CausalSelfAttention as MyLayer
>>> def test_my_layer_attends():
...     assert_attention(MyLayer(12, 12, 3), embed_dim=12, num_heads=3, causal=True)
>>> test_my_layer_attends()
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from unmasked import museum
from unmasked.doctor import Report, diagnose

__all__ = ["assert_attention"]


def assert_attention(
    target: Callable[..., Any], *, but: Collection[str] = (), decided: bool = False, **options: Any
) -> Report:
    """Fail unless the doctor finds nothing wrong with an attention module or function.

    Args:
        target: A module or a function.
        but: Slugs of mistakes that it may have: those that are known, and stay.
        decided: Whether to fail also where it was not settled that it is attention: see `Report.decided`.
        options: As `unmasked.diagnose` takes them: embed_dim, num_heads, causal, inputs and more.

    Returns:
        The report, for what else a test may ask of it.

    Raises:
        AssertionError: There is a finding, or nothing was decided; its text is the report.
        TypeError: ``but`` is a name itself.
        ValueError: A name in ``but`` is no mistake of the museum.

    Examples:
        >>> from unmasked import CausalSelfAttention
        >>> assert_attention(CausalSelfAttention(12, 12, 3), embed_dim=12, causal=True).ok
        True
    """
    __tracebackhide__ = True
    if isinstance(but, str):
        raise TypeError(f"but is {but!r}; pass a collection of names: [{but!r}]")
    for slug in but:
        if slug not in museum.ENTRIES:
            raise ValueError(f"but names {slug!r}, which is no mistake of unmasked.museum.ENTRIES")
    report = diagnose(target, **options)
    open_ = decided and not report.decided
    if open_ or any(finding.cause is None or finding.cause not in but for finding in report.findings):
        raise AssertionError(report.text())
    return report
