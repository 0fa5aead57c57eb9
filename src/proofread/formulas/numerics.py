"""What formulas say of infinitely many numbers, found from finitely many: limits, infinite sums, integrals, slopes.

What does not settle is refused: no number stands for it.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise

import numpy as np

TOLERANCE = 1e-6  # to which formulas with such values are compared, relative to the largest number
_SETTLED = 1e-8  # what two ways to the same value may differ by
_HALVINGS = 12
_DEEPEST = 60  # bisections of an interval, towards an end where the integrand is infinite
_PARTS = 1000  # of an interval
_NODES = 15


class UnsettledError(ValueError):
    """No number is approached."""


def settled(values: Sequence[float], tolerance: float = _SETTLED) -> float:
    """Return what values approach, each of which is taken at half the distance of the one before.

    Extrapolation by powers of the distance (Richardson), or by its own pace (Aitken): what agrees best with itself.
    """
    if len(values) < 4 or not all(map(math.isfinite, values)):
        raise UnsettledError("it grows without end, or is no number on the way")
    steps = [abs(after - before) for before, after in pairwise(values)]
    size = max(1.0, abs(values[-1]))
    if steps[-1] > max(0.9 * steps[0], 1e-12 * size):  # it would be extrapolated to a number all the same
        raise UnsettledError("it does not come nearer to any number")
    found = [(steps[-1], values[-1])]
    row = [values[0]]
    for value in values[1:]:
        before, row = row, [value]
        for power, old in enumerate(before, 1):
            row.append(row[-1] + (row[-1] - old) / (2**power - 1))
            found.append((max(abs(row[-1] - row[-2]), abs(row[-1] - old)), row[-1]))
    paced = [*values]
    while len(paced) > 4:
        bends = [(a, b, c) for a, b, c in zip(paced, paced[1:], paced[2:], strict=False)]
        paced = [c - (c - b) ** 2 / bend if (bend := (c - b) - (b - a)) else c for a, b, c in bends]
        found.append((abs(paced[-1] - paced[-2]), paced[-1]))
    error, value = min(found)
    if not error <= tolerance * size:
        raise UnsettledError("it does not come near enough to any number")
    return value


def series(term: Callable[[int], float], first: int, *, product: bool = False) -> float:
    """Return a sum, or a product, of infinitely many terms."""
    total, small, partial, sizes = (1.0 if product else 0.0), 0, list[float](), list[float]()
    for count in range(2**_HALVINGS):
        value = term(first + count)
        total = total * value if product else total + value
        sizes.append(abs(value - product))
        small = small + 1 if sizes[-1] <= 1e-18 * abs(total) else 0
        if small >= 8:  # what follows is smaller still
            return total
        if count + 1 >= 4 and (count + 1) & count == 0:
            partial.append(total)
    if not max(sizes[-8:]) <= 0.1 * max(sizes[:8]):  # what alternates, partial sums of even length do not tell
        raise UnsettledError(f"its terms do not come near {int(product)}")
    return settled(partial)


def limit(function: Callable[[float], float], target: float, side: str = "") -> float:
    """Return what a function approaches towards a number, from one side or from both, or towards infinity."""
    if math.isinf(target):
        sign = 1 if target > 0 else -1
        return settled([function(sign * 2**power) for power in range(2, 2 + _HALVINGS)])
    found = []
    for sign in {"+": (1,), "-": (-1,)}.get(side, (1, -1)):
        distances = [sign * 0.25 * max(1.0, abs(target)) * 0.5**power for power in range(_HALVINGS)]
        found.append(settled([function(target + distance) for distance in distances]))
    if max(found) - min(found) > 10 * _SETTLED * max(1.0, abs(found[0])):
        raise UnsettledError(f"it comes to {found[0]:.4g} from above, and to {found[1]:.4g} from below")
    return found[0]


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


def integral(function: Callable[[float], float], low: float, high: float) -> float:
    """Return an integral, by Gauss and Legendre's rule on parts that are halved until halving changes nothing."""
    if low > high:
        return -integral(function, high, low)
    if math.isinf(low) and math.isinf(high):
        return integral(function, low, 0.0) + integral(function, 0.0, high)
    if math.isinf(high):
        return integral(lambda t: function(low + (1 - t) / t) / t**2, 0.0, 1.0)
    if math.isinf(low):
        return integral(lambda t: function(high - (1 - t) / t) / t**2, 0.0, 1.0)
    total, waiting = 0.0, [(low, high, _part(function, low, high), 0)]
    size, parts = abs(waiting[0][2]), 1
    while waiting:
        a, b, whole, depth = waiting.pop()
        middle = (a + b) / 2
        halves = _part(function, a, middle), _part(function, middle, b)
        better = sum(halves)
        size = max(size, abs(better))
        if abs(better - whole) <= _SETTLED / 100 * max(size, 1e-3):
            total += better
        elif depth == _DEEPEST or parts == _PARTS or not math.isfinite(better):
            raise UnsettledError("it has no end, or jumps too often")
        else:
            parts += 1
            waiting += [(a, middle, halves[0], depth + 1), (middle, b, halves[1], depth + 1)]
    return total


def _part(function: Callable[[float], float], low: float, high: float) -> float:
    middle, half = (low + high) / 2, (high - low) / 2
    return half * sum(weight * function(middle + half * node) for node, weight in _rule())


@cache
def _rule() -> list[tuple[float, float]]:
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    return [*zip(nodes.tolist(), weights.tolist(), strict=True)]
