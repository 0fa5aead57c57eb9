"""Whether two formulas say the same: their sides are equal wherever the symbols have other values."""

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from .agreement import sides
from .arrays import is_array, is_list, is_rounded, like, numbers, precision, shape
from .grammar import parse
from .scope import Scope
from .tree import FormulaError, Node

# The sides of statements: which statement, the values of its indices, which side.
Sides = dict[tuple[int, tuple[tuple[str, int], ...], int], np.ndarray]

_MOST = 400  # entries that are found so that identities hold
_APART = 0.1  # by how much an inequality then holds


class Fresh(Scope):
    """A scope whose symbols have other random values, independent of each other but for identities that hold of them.

    Raises:
        FormulaError: No such values were found.
    """

    def __init__(self, scope: Scope, *, positive: bool, identities: Sequence[str] = ()):
        vars(self).update(vars(scope))
        self._positive = positive
        self._drawn: dict[str, Any] = {}
        if identities:
            self._settle(identities)

    def value(self, name: str) -> Any:
        """Return what the name is bound to here."""
        if name not in self._drawn:
            # By name, as two formulas may mention theirs in different orders.
            generator = np.random.default_rng(zlib.crc32(name.encode()))
            self._drawn[name] = self._redraw(super().value(name), generator)
        return self._drawn[name]

    def derivative(self, key: object, leaf: Any) -> Any:
        """Return a random value to stand for a derivative, the same for the same key."""
        return like(np.random.default_rng(zlib.crc32(repr(key).encode())).standard_normal(shape(leaf)), leaf)

    def _redraw(self, value: Any, generator: np.random.Generator) -> Any:
        if is_list(value):
            return [self._redraw(item, generator) for item in value]
        if not is_array(value):
            if not isinstance(value, float | np.floating):
                return value
            number = generator.standard_normal()
            return abs(number) + 0.1 if self._positive else number
        if "bool" in str(value.dtype):
            return like(generator.random(shape(value)) < 0.5, value)
        if not is_rounded(value) or (
            shape(value)[1:] and np.array_equal(numbers(value), np.eye(shape(value)[-2], shape(value)[-1]))
        ):
            return value  # the identity is a constant, not a variable
        drawn = generator.standard_normal(shape(value))
        return like(np.abs(drawn) + 0.1 if self._positive else drawn, value)

    def _settle(self, identities: Sequence[str]) -> None:
        """Move what was drawn to the nearest place where the identities hold, by Newton's steps of least length."""
        named = sorted(set().union(*(parse(latex, self).names for latex in identities)))
        bound = {name: super(Fresh, self).value(name) for name in named if self.bound(name)}
        free = [name for name, value in bound.items() if _is_free(value)]
        self._drawn |= {name: value for name, value in bound.items() if name not in free}
        drawn = {name: numbers(self.value(name)) for name in free}
        sizes = np.cumsum([value.size for value in drawn.values()])
        told = " and ".join(f"`{latex}`" for latex in identities)
        if len(free) and sizes[-1] > _MOST:
            raise FormulaError(f"{told}: {', '.join(free)} have {sizes[-1]:,} entries, more than {_MOST}: bind less")

        def off(place: np.ndarray) -> np.ndarray:
            for name, part in zip(free, np.split(place, sizes[:-1]), strict=True):
                like_it = bound[name]
                self._drawn[name] = like(part.reshape(shape(like_it)), like_it) if is_array(like_it) else float(part[0])
            return np.concatenate([_off(latex, self) for latex in identities])

        place = np.concatenate([value.ravel() for value in drawn.values()] or [np.zeros(0)])
        coarse = max([precision(bound[name]) for name in free if is_array(bound[name])] or [np.finfo(float).eps])
        for _ in range(50):
            wrong = off(place)
            if not np.isfinite(wrong).all() or np.abs(wrong).max(initial=0) <= 100 * coarse:
                break
            step = coarse ** (1 / 3)
            slopes = [(off(place + step * unit) - wrong) / step for unit in np.eye(place.size)]
            place = place - np.linalg.lstsq(np.array(slopes).T, wrong, 1e-8)[0] if slopes else place
        if not np.abs(off(place)).max(initial=0) <= coarse**0.5:
            raise FormulaError(f"{told} holds, but no other values are found for which it does: write out the mutants")


def _is_free(value: Any) -> bool:
    return is_rounded(value) if is_array(value) else isinstance(value, float | np.floating)


@np.errstate(all="ignore")
def _off(latex: str, scope: Scope) -> np.ndarray:
    """By how much each relation of a formula does not hold."""
    found, parsed = list[np.ndarray](), parse(latex, scope)
    for statement, _, values, _ in sides(latex, parsed, scope):
        for place, relation in enumerate(statement.value.split()):
            try:
                off = numbers(values[place]) - numbers(values[place + 1])
            except (TypeError, ValueError):
                raise FormulaError(f"`{latex}` is no identity of numbers: write out the mutants") from None
            if relation in "<≤":
                off = np.maximum(off + _APART, 0)
            elif relation in ">≥":
                off = np.minimum(off - _APART, 0)
            elif relation not in "=≈":
                raise FormulaError(f"`{latex}` is no identity: write out the mutants")
            found.append(off.ravel())
    return np.concatenate(found)


def redrawn(scope: Scope, identities: Sequence[str] = ()) -> list[Fresh]:
    """Scopes to try two formulas in: their numbers are positive, and any."""
    return [Fresh(scope, positive=positive, identities=identities) for positive in (True, False)]


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
    found: Sides = {}
    try:
        parsed = parse(latex, scope)
        for statement, at, values, _ in sides(latex, parsed, scope):
            for place, value in enumerate(values):
                if not (isinstance(value, Node) or is_list(value)):
                    key = parsed.statements.index(statement), tuple(sorted(at.items())), place
                    found[key] = numbers(value)
    except FormulaError:
        return None
    return found
