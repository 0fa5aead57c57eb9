"""Slopes, found from differences; what does not settle is refused: no number stands for it."""

import math
from collections.abc import Callable

import numpy as np

TOLERANCE = 1e-6  # to which formulas with such values are compared, relative to the largest number
_SETTLED = 1e-8  # what two ways to the same value may differ by


class UnsettledError(ValueError):
    """No number is approached."""


def slope(function: Callable[[float], np.ndarray], scale: float, tolerance: float = _SETTLED) -> np.ndarray:
    """Return a function's derivative at 0, entry by entry, from differences to both sides that grow smaller."""
    steps = [0.05 * max(0.1, scale) * 0.5**power for power in range(8)]
    table: list[np.ndarray] = []
    best, least = np.zeros(()), math.inf
    for step in steps:
        before, table = table, [(function(step) - function(-step)) / (2 * step)]
        for power, old in enumerate(before, 1):
            table.append(table[-1] + (table[-1] - old) / (4**power - 1))
            error = float(np.maximum(np.abs(table[-1] - table[-2]), np.abs(table[-1] - old)).max(initial=0.0))
            if error < least:
                best, least = table[-1], error
    if not least <= 10 * tolerance * max(1.0, float(np.abs(best).max(initial=0.0))):
        raise UnsettledError("it has no derivative there")
    return best
