"""Numbers, arrays and the indices of a formula: which values they take, and for which its conditions hold."""

import math
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from .arrays import (
    alike,
    describe,
    double,
    entries,
    is_array,
    is_list,
    is_real,
    is_rounded,
    numbers,
    precision,
    shape,
)
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
    # Much less is a tenth at most.
    compare: dict[str, Callable[[], Any]] = {
        "<": lambda: one < other,
        ">": lambda: one > other,
        "≤": lambda: one <= other + slack,
        "≥": lambda: one >= other - slack,
        "≪": lambda: np.abs(one) * 10 <= np.abs(other),
        "≫": lambda: np.abs(one) >= np.abs(other) * 10,
    }
    return bool(np.all(compare[relation]()))


# Nodes that need no more than the values of their kids.
_SIMPLE: dict[str, Callable[..., Any]] = {
    "ceil": math.ceil,
    "floor": math.floor,
    "indicator": int,
    "members": lambda *values: [*values],
    "series": lambda first, *others: sum(others, first),
}
_OF_LISTS = {"abs", "call", "members"}  # what takes lists as they are


class Indexed:
    """Evaluates entries, conditions and sets of one formula; what depends on no index is computed once.

    Attributes:
        precision: The coarsest machine epsilon of the values that were met.
    """

    def __init__(self, latex: str, parsed: Parsed, scope: Scope):
        self.latex, self.parsed, self.scope = latex, parsed, scope
        self.precision = sys.float_info.epsilon
        self._tracks = False  # gradients, inside what is differentiated
        self._closed: dict[tuple[int, bool], Any] = {}
        self._indices: dict[int, frozenset[str]] = {}

    def __call__(self, node: Node, at: Assignment) -> Any:
        """Return the value of a node, given the values of the indices."""
        if not self.indices(node):
            key = id(node), self._tracks
            if key not in self._closed:
                self._closed[key] = self._compute(node, at)
            return self._closed[key]
        return self._compute(node, at)

    def indices(self, node: Node) -> frozenset[str]:
        """Return the indices that a node's value depends on."""
        if id(node) not in self._indices:
            names = frozenset().union(*(self.indices(kid) for kid in node.kids))
            if node.kind == "name" and (node.value in self.parsed.indices or node.value.startswith("#")):
                names |= {node.value}
            if node.kind in ("big", "sequence", "builder"):
                names -= {node.value.split()[-1]}
            self._indices[id(node)] = names
        return self._indices[id(node)]

    def assignments(
        self, statement: Node, condition: Node | None, at: Assignment | None = None
    ) -> Iterator[Assignment]:
        """Yield every value of the statement's free indices that fulfils the condition under which it holds."""
        at = at or {}
        depends = self.indices(statement) | (self.indices(condition) if condition else frozenset())
        names = [name for name in self.parsed.free if name in depends and name not in at]
        if not names:
            if condition is None or self(condition, at):
                yield at
            return
        # An index whose range needs another one's value comes after it.
        for name in names:
            values = self._range(name, statement, at)
            if values is None and condition:
                values = self._bounded(name, condition, at)
            if values is not None:
                break
        else:
            raise FormulaError(rf"nothing says which values {names[0]} takes: add `, {names[0]} = 1, \dots, n`")
        for value in values:
            yield from self.assignments(statement, condition, {**at, name: value})

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
                for part in kid.kids if kid.kind == "slice" else (kid,):
                    if name in self.indices(part) and not self.indices(part) - at.keys() - {name}:
                        size = self._size(node, axis, at)
                        if part.kind == "name":
                            alone[self.text(node)] = range(self.parsed.origin, self.parsed.origin + size)
                        else:
                            composed.append((part, size))
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
            entries = ((self(part, {**at, name: value}), size) for part, size in composed)
            if all(not shape(i) and i == int(i) and 0 <= i - self.parsed.origin < size for i, size in entries):
                values.append(value)
        if not values:
            raise FormulaError(f"{name} has no value for which all its subscripts are within range")
        return values

    def _bounded(self, name: str, condition: Node, at: Assignment) -> list[int] | None:
        """Return the values between a condition's bounds on an index, or those of its set; None if there are none."""
        if condition.kind == "and":
            sets = [self._bounded(name, kid, at) for kid in condition.kids]
            return next((values for values in sets if values is not None), None)
        if condition.kind == "limits":
            low, high = (self.integer(kid, at) for kid in condition.kids)
            return list(range(low, high + 1))
        if condition.kind != "condition":
            return None
        lows: list[int] = []
        highs: list[int] = []
        for relation, (one, other) in zip(condition.value.split(), pairwise(condition.kids), strict=True):
            if one.value == name and relation == "∈":
                members = self(other.kids[0] if other.kind == "sized" and len(other.kids) == 1 else other, at)
                if not is_list(members):
                    raise self.fail(other, f"is {describe(members)}, not a set")
                return sorted({int(member) for member in members})
            above = relation in ("<", "≤")
            if relation not in ("<", "≤", ">", "≥") or (one.value == name) == (other.value == name):
                continue
            bound = self(other if one.value == name else one, at)
            if (one.value == name) == above:
                highs.append(math.ceil(bound) - 1 if relation in "<>" else math.floor(bound))
            else:
                lows.append(math.floor(bound) + 1 if relation in "<>" else math.ceil(bound))
        return list(range(max(lows), min(highs) + 1)) if lows and highs else None

    def _size(self, node: Node, axis: int, at: Assignment) -> int:
        base = self(node.kids[0], at)
        if is_list(base) and axis == 0:
            return len(base)
        sizes = shape(entries(base, self.scope.library))
        if axis >= len(sizes):
            raise self.fail(node, f"has no subscript {axis + 1}: {self.text(node.kids[0])} is {describe(base)}")
        return sizes[axis]

    def integer(self, node: Node, at: Assignment) -> int:
        """Return the value of a limit, an index or a size."""
        value = self(node, at)
        if not isinstance(value, int | float) or not math.isfinite(value) or value != int(value):
            raise self.fail(node, f"a limit, an index or a size is an integer, not {describe(value)}")
        return int(value)

    def _index(self, node: Node, at: Assignment) -> Any:
        base, origin = self(node.kids[0], at), self.parsed.origin
        sizes = shape(entries(base, self.scope.library))
        key: list[int | slice] = []
        for axis, kid in enumerate(node.kids[1:]):
            size = self._size(node, axis, at)
            if kid.kind == "slice":
                first, last = kid.kids
                low = 0 if first.kind == "missing" else self.integer(first, at) - origin
                high = size if last.kind == "missing" else self.integer(last, at) - origin + 1
                inside = 0 <= low <= high <= size
                key.append(slice(low, high))
            elif kid.kind == "number" and len(kid.value) > 1 and len(node.kids) == 2 and len(sizes) > 1:
                raise self.fail(node, f"{kid.value} could be one index or several: separate them with commas")
            else:
                entry = self.integer(kid, at) - origin
                inside = 0 <= entry < size
                key.append(entry)
            if not inside:
                values = ", ".join(f"{name} = {value}" for name, value in at.items() if not name.startswith("#"))
                where = " where " * bool(values) + values
                raise self.fail(node, f"subscript {axis + 1} is outside {origin}..{origin + size - 1}{where}")
        if is_list(base) and len(key) > 1:
            base = entries(base, self.scope.library)
        return self._plain(base[key[0] if is_list(base) else tuple(key)])

    def _plain(self, value: Any) -> Any:
        """Make a number of an array with one entry, and a list of a set; what is differentiated carries gradients."""
        if isinstance(value, range | set | frozenset):
            return sorted(value)
        if isinstance(value, np.generic) or (hasattr(value, "__array__") and not is_array(value)):
            value = np.asarray(value)  # a numpy scalar, or what numpy reads as an array
        if not is_array(value):
            return int(value) if isinstance(value, bool) else value
        if not is_real(value):
            raise FormulaError(f"formulas are read over real numbers, and `where` or the page gives {describe(value)}")
        if not is_rounded(value):
            value = double(value)
        elif precision(value) > sys.float_info.epsilon and bool((value != value.round()).any()):  # whole ones are exact
            self.precision = max(self.precision, precision(value))
        if isinstance(value, np.ndarray):
            value = np.asarray(value)  # no matrix, whose products are others
        single = math.prod(value.shape) == 1 and value.ndim <= 2
        if self._tracks:
            return value.reshape(()) if single else value
        if isinstance(value, np.ndarray):
            return float(value.item()) if single else value
        return value.detach().item() if single else value.detach()

    def _compute(self, node: Node, at: Assignment) -> Any:
        method = getattr(self, f"_{node.kind}", None)
        try:
            if method:
                return method(node, at)
            values = self._kids(node, at)
            if node.kind in _SIMPLE:
                return _SIMPLE[node.kind](*values)
            return getattr(self, f"_of_{node.kind}")(node, *values)
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
        if node.kind in _OF_LISTS:
            return alike(values)
        values = [entries(value, self.scope.library) for value in values]
        for kid, value in zip(node.kids, values, strict=False):
            if is_list(value):
                raise self.fail(kid, "is a list, and no list of numbers: index it")
        return alike(values)

    def _cases(self, node: Node, at: Assignment) -> Any:
        for value, condition in zip(node.kids[::2], node.kids[1::2], strict=True):
            if self(condition, at):
                return self(value, at)
        raise self.fail(node, "no case applies")

    def _condition(self, node: Node, at: Assignment) -> bool:
        return all(
            bool(self.outside(self(one, at), other, at)) == (relation == "∉")
            if relation in "∈∉"
            else holds(relation, self(one, at), self(other, at), 0.0)
            for relation, (one, other) in zip(node.value.split(), pairwise(node.kids), strict=True)
        )

    def _limits(self, node: Node, at: Assignment) -> bool:
        return True  # whose index runs between them already

    def _and(self, node: Node, at: Assignment) -> bool:
        return all(self(kid, at) for kid in node.kids)

    def _or(self, node: Node, at: Assignment) -> bool:
        return any(self(kid, at) for kid in node.kids)

    def _builder(self, node: Node, at: Assignment) -> Any:
        (condition,) = node.kids
        values = self._bounded(node.value, condition, at)
        if values is None:
            raise self.fail(node, f"nothing says between which values {node.value} lies")
        return [value for value in values if self(condition, {**at, node.value: value})]

    def outside(self, value: Any, node: Node, at: Assignment) -> str:
        """Say why a value is not in a set, if it is not."""
        if node.kind == "sized":
            node, *sizes = node.kids
            expected = tuple(self.integer(kid, at) for kid in sizes)
            for item in value if is_list(value) else [value]:
                if shape(item) != expected:
                    alone = not sizes and node.kind != "space"
                    fault = f"it is {describe(item)}, not a number"
                    return fault if alone else f"its shape is {shape(item)}, not {expected}"
        items = value if isinstance(value, list) else [value]
        entries = np.concatenate([numbers(item).ravel() for item in items])
        slack = math.sqrt(self.precision)
        if node.kind == "space":
            whole = entries == entries.round()
            inside = {"R": ~np.isnan(entries), "Z": whole, "N": whole & (entries >= 0)}[node.value]
        elif node.kind == "interval":
            low, high = (self(kid, at) for kid in node.kids)
            slack = slack * max([abs(end) for end in (low, high) if math.isfinite(end)], default=0.0)
            above = entries >= low - slack if node.value[0] == "[" else entries > low
            inside = above & (entries <= high + slack if node.value[1] == "]" else entries < high)
        else:
            members = self(node, at)
            if not is_list(members):
                raise self.fail(node, f"is {describe(members)}, not a set")
            inside = np.array([any(holds("=", entry, m, 1e-8) for m in members) for entry in entries.tolist()], bool)
        wrong = entries[~inside]
        if not len(wrong):
            return ""
        return f"it {'has entries' if len(entries) > 1 else 'is'} {', '.join(f'{x:.4g}' for x in wrong[:3].tolist())}"
