"""Whether two formulas say the same: their sides are equal wherever the symbols have other values."""

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from .agreement import sides
from .arrays import array, is_rounded, numbers, shape
from .grammar import parse
from .scope import Scope
from .tree import FormulaError

# The sides of statements: which statement, the values of its indices, which side.
Sides = dict[tuple[int, tuple[tuple[str, int], ...], int], np.ndarray]


class Fresh(Scope):
    """A scope whose symbols have other random values, independent of each other."""

    def __init__(self, scope: Scope, *, positive: bool):
        vars(self).update(vars(scope))
        self._positive = positive
        self._drawn: dict[str, Any] = {}

    def value(self, name: str) -> Any:
        """Return what the name is bound to here."""
        if name not in self._drawn:
            # By name, as two formulas may mention theirs in different orders.
            generator = np.random.default_rng(zlib.crc32(name.encode()))
            self._drawn[name] = self._redraw(array(super().value(name)), generator)
        return self._drawn[name]

    def derivative(self, key: object, leaf: Any) -> Any:
        """Return a random value to stand for a derivative, the same for the same key."""
        return np.random.default_rng(zlib.crc32(repr(key).encode())).standard_normal(shape(leaf))

    def _redraw(self, value: Any, generator: np.random.Generator) -> Any:
        if isinstance(value, float):
            number = generator.standard_normal()
            return abs(number) + 0.1 if self._positive else number
        if not isinstance(value, np.ndarray):
            return value
        if value.dtype == bool:
            return generator.random(shape(value)) < 0.5
        is_identity = shape(value)[1:] and np.array_equal(value, np.eye(shape(value)[-2], shape(value)[-1]))
        if not is_rounded(value) or is_identity:
            return value  # the identity is a constant, not a variable
        drawn = generator.standard_normal(shape(value)).astype(value.dtype)
        return np.abs(drawn) + value.dtype.type(0.1) if self._positive else drawn


def redrawn(scope: Scope) -> list[Fresh]:
    """Scopes to try two formulas in: their numbers are positive, and any."""
    return [Fresh(scope, positive=positive) for positive in (True, False)]


def say_the_same(latex: str, other: str, scopes: Sequence[Fresh]) -> bool:
    """Tell whether two formulas have equal sides for random values of all symbols: then they say the same."""
    for scope in scopes:
        ones, others = _sides(latex, scope), _sides(other, scope)
        if ones is None or others is None or len(ones) != len(others):
            return False
        # Paired by their indices, or in the order in which they were met.
        pairings = zip(sorted(ones, key=repr), sorted(others, key=repr), strict=True), zip(ones, others, strict=True)
        if not any(all(_equal(ones[a], others[b]) for a, b in pairing) for pairing in pairings):
            return False
    return True


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and np.allclose(one, other, 1e-4, 1e-7, equal_nan=True)


@np.errstate(all="ignore")
def _sides(latex: str, scope: Scope) -> Sides | None:
    """The values of a formula's sides, by statement, values of its indices, and place."""
    by_place: Sides = {}
    try:
        parsed = parse(latex, scope)
        for statement, at, values, _ in sides(latex, parsed, scope):
            for place, value in enumerate(values):
                key = parsed.statements.index(statement), tuple(sorted(at.items())), place
                by_place[key] = numbers(value)
    except FormulaError:
        return None
    return by_place
