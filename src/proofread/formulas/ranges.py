"""Numbers, arrays and the indices of a formula: which values they take, and which relations hold between values."""

import math
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from .arrays import array, describe, is_real, is_rounded, numbers, precision, shape
from .scope import Scope
from .tree import FormulaError, Node, Parsed

Assignment = dict[str, int]


def holds(relation: str, one: Any, other: Any, tolerance: float) -> bool:
    """Tell whether a relation holds between all entries, to a tolerance relative to the largest of them."""
    if shape(one) != shape(other) and (relation in ("=", "≈", "≠") or (shape(one) and shape(other))):
        return False
    one, other = numbers(one), numbers(other)
    finite = [value[np.isfinite(value)] for value in (one, other)]
    largest = [float(np.abs(value).max()) for value in finite if value.size]
    # Where one side is zero all over, the other's rounding has nothing to be measured by.
    slack = tolerance * (max(largest) if largest and all(largest) else 1.0)
    if relation in ("=", "≈", "≠"):
        return np.allclose(one, other, rtol=0.0, atol=slack) == (relation != "≠")
    compare: dict[str, Callable[[], Any]] = {
        "<": lambda: one < other,
        ">": lambda: one > other,
        "≤": lambda: one <= other + slack,
        "≥": lambda: one >= other - slack,
    }
    return bool(np.all(compare[relation]()))


class Indexed:
    """Evaluates entries and conditions of one formula; what depends on no index is computed once.

    Attributes:
        precision: The coarsest machine epsilon of the values that were met.
    """

    def __init__(self, latex: str, parsed: Parsed, scope: Scope):
        self.latex, self.parsed, self.scope = latex, parsed, scope
        self.precision = sys.float_info.epsilon
        self._closed: dict[int, Any] = {}
        self._indices: dict[int, frozenset[str]] = {}

    def __call__(self, node: Node, at: Assignment) -> Any:
        """Return the value of a node, given the values of the indices."""
        if not self.indices(node):
            if id(node) not in self._closed:
                self._closed[id(node)] = self._compute(node, at)
            return self._closed[id(node)]
        return self._compute(node, at)

    def indices(self, node: Node) -> frozenset[str]:
        """Return the indices that a node's value depends on."""
        if id(node) not in self._indices:
            names = frozenset().union(*(self.indices(kid) for kid in node.kids))
            if node.kind == "name" and (node.value in self.parsed.indices or node.value.startswith("#")):
                names |= {node.value}
            if node.kind in ("big", "sequence"):
                names -= {node.value.split()[-1]}
            self._indices[id(node)] = names
        return self._indices[id(node)]

    def assignments(self, statement: Node, at: Assignment | None = None) -> Iterator[Assignment]:
        """Yield every value of the statement's free indices."""
        at = at or {}
        names = [name for name in self.parsed.free if name in self.indices(statement) and name not in at]
        if not names:
            yield at
            return
        # An index whose range needs another one's value comes after it.
        for name in names:
            values = self._range(name, statement, at)
            if values is not None:
                break
        else:
            raise FormulaError(rf"nothing says which values {names[0]} takes: add `, {names[0]} = 1, \dots, n`")
        for value in values:
            yield from self.assignments(statement, {**at, name: value})

    def text(self, node: Node) -> str:
        """Return how a node is written."""
        return " ".join(self.latex[slice(*node.span)].split())

    def fail(self, node: Node, message: str) -> FormulaError:
        """Return an error about a node."""
        return FormulaError(f"`{self.text(node)}`: {message}")

    def _range(self, name: str, scope: Node, at: Assignment) -> list[int] | None:
        """Return the values for which all subscripts with this index are within range; None if none says."""
        if name in self.parsed.ranges:
            low, high = (self.integer(end, at) for end in self.parsed.ranges[name])
            return list(range(low, high + 1))
        alone: dict[str, range] = {}
        composed: list[tuple[Node, int]] = []
        for node in scope.walk():
            if node.kind != "index" or self.indices(node.kids[0]) - at.keys():
                continue
            for axis, kid in enumerate(node.kids[1:]):
                if name in self.indices(kid) and not self.indices(kid) - at.keys() - {name}:
                    size = self._size(node, axis, at)
                    if kid.kind == "name":
                        alone[self.text(node)] = range(self.parsed.origin, self.parsed.origin + size)
                    else:
                        composed.append((kid, size))
        if not alone and not composed:
            return None
        if len(set(alone.values())) > 1:
            one, other = list({values: text for text, values in alone.items()}.items())[:2]
            raise FormulaError(
                f"{name} runs over {len(one[0])} values in `{one[1]}`, but over {len(other[0])} in `{other[1]}`"
            )
        widest = max((size for _, size in composed), default=0)
        start: list[int] | range = next(iter(alone.values()), range(-widest - 8, 2 * widest + 9))
        values = []
        for value in start:
            entries = ((self(kid, {**at, name: value}), size) for kid, size in composed)
            if all(not shape(i) and i == int(i) and 0 <= i - self.parsed.origin < size for i, size in entries):
                values.append(value)
        if not values:
            raise FormulaError(f"{name} has no value for which all its subscripts are within range")
        return values

    def _size(self, node: Node, axis: int, at: Assignment) -> int:
        sizes = shape(self(node.kids[0], at))
        if axis >= len(sizes):
            base = f"{self.text(node.kids[0])} is {describe(self(node.kids[0], at))}"
            raise self.fail(node, f"has no subscript {axis + 1}: {base}")
        return sizes[axis]

    def integer(self, node: Node, at: Assignment) -> int:
        """Return the value of a limit, an index or a size."""
        value = self(node, at)
        if not isinstance(value, int | float) or not math.isfinite(value) or value != int(value):
            raise self.fail(node, f"a limit or an index is an integer, not {describe(value)}")
        return int(value)

    def _index(self, node: Node, at: Assignment) -> Any:
        base, origin = self(node.kids[0], at), self.parsed.origin
        key = []
        for axis, kid in enumerate(node.kids[1:]):
            size = self._size(node, axis, at)
            if kid.kind == "number" and len(kid.value) > 1 and len(node.kids) == 2 and len(shape(base)) > 1:
                raise self.fail(node, f"{kid.value} could be one index or several: separate them with commas")
            key.append(self.integer(kid, at) - origin)
            if not 0 <= key[-1] < size:
                values = ", ".join(f"{name} = {value}" for name, value in at.items() if not name.startswith("#"))
                where = " where " * bool(values) + values
                raise self.fail(node, f"subscript {axis + 1} is outside {origin}..{origin + size - 1}{where}")
        return self._plain(base[tuple(key)])

    def _plain(self, value: Any) -> Any:
        """Return a number for an array with one entry, and arrays of double precision for exact ones."""
        epsilon, value = precision(value), array(value)
        if not isinstance(value, np.ndarray):
            return int(value) if isinstance(value, bool) else value
        if not is_real(value):
            raise FormulaError(f"formulas are read over real numbers, and `where` or the page gives {describe(value)}")
        if not is_rounded(value):
            value = value.astype(np.float64)
        elif epsilon > self.precision and bool((value != value.round()).any()):  # whole ones are exact
            self.precision = epsilon
        return float(value.item()) if value.size == 1 and value.ndim <= 2 else value

    def _compute(self, node: Node, at: Assignment) -> Any:
        method = getattr(self, f"_{node.kind}", None)
        try:
            if method:
                return method(node, at)
            return getattr(self, f"_of_{node.kind}")(node, *self._kids(node, at))
        except FormulaError:
            raise
        except ZeroDivisionError:
            return math.nan
        except Exception as error:
            raise self.fail(node, f"{type(error).__name__}: {error}") from error

    def _kids(self, node: Node, at: Assignment) -> list[Any]:
        values = []
        for kid in node.kids:
            if kid.kind == "sequence":
                template, low, high = kid.kids
                run = range(self.integer(low, at), self.integer(high, at) + 1)
                values += [self(template, {**at, kid.value: index}) for index in run]
            else:
                values.append(self(kid, at))
        return values

    def _indicator(self, node: Node, at: Assignment) -> int:
        return int(self(node.kids[0], at))

    def _condition(self, node: Node, at: Assignment) -> bool:
        relations = zip(node.value.split(), pairwise(node.kids), strict=True)
        return all(holds(relation, self(one, at), self(other, at), 0.0) for relation, (one, other) in relations)
