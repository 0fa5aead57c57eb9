"""What a formula's tree says, computed with torch."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from .scope import Scope
from .tree import FormulaError, Node, Parsed

Assignment = dict[str, int]

_ELEMENTWISE: dict[str, Callable[[Tensor], Tensor]] = {
    name: getattr(torch, name)
    for name in ("exp", "log", "sin", "cos", "tan", "sinh", "cosh", "tanh", "arcsin", "arccos", "arctan", "sign")
}
_ELEMENTWISE |= {
    "ln": torch.log,
    "softmax": lambda x: x.softmax(-1),
    "det": torch.det,
    "tr": torch.trace,
    "diag": torch.diag,
}
_FAST = {"exp": math.exp, "log": math.log, "ln": math.log, "sin": math.sin, "cos": math.cos, "tanh": math.tanh}
_WHOLE = {"softmax", "det", "tr", "diag"}


class Evaluator:
    """Evaluates the nodes of one formula; what depends on no index is computed once.

    Attributes:
        precision: The coarsest machine epsilon of the values that were met.
    """

    def __init__(self, latex: str, parsed: Parsed, scope: Scope):
        self.latex, self.parsed, self.scope = latex, parsed, scope
        self.precision = torch.finfo(torch.float64).eps
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
            found = frozenset().union(*(self.indices(kid) for kid in node.kids))
            if node.kind == "name" and (node.value in self.parsed.indices or node.value.startswith("#")):
                found |= {node.value}
            if node.kind in ("big", "sequence", "builder"):
                found -= {node.value.split()[-1]}
            self._indices[id(node)] = found
        return self._indices[id(node)]

    def assignments(self, statement: Node, given: Node | None, at: Assignment | None = None) -> Iterator[Assignment]:
        """Yield every value of the statement's free indices that fulfils the condition under which it holds."""
        at = at or {}
        depends = self.indices(statement) | (self.indices(given) if given else frozenset())
        names = [name for name in self.parsed.free if name in depends and name not in at]
        if not names:
            if given is None or self(given, at):
                yield at
            return
        # An index whose range needs another one's value comes after it.
        for name in names:
            values = self._range(name, statement, at)
            if values is None and given:
                values = self._bounded(name, given, at)
            if values is not None:
                break
        else:
            raise FormulaError(rf"nothing says which values {names[0]} takes: add `, {names[0]} = 1, \dots, n`")
        for value in values:
            yield from self.assignments(statement, given, {**at, name: value})

    def text(self, node: Node) -> str:
        """Return how a node is written."""
        return " ".join(self.latex[slice(*node.span)].split())

    def fail(self, node: Node, message: str) -> FormulaError:
        """Return an error about a node."""
        return FormulaError(f"`{self.text(node)}`: {message}")

    # Indices

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
            if all(not _shape(i) and i == int(i) and 0 <= i - self.parsed.origin < size for i, size in entries):
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
                if not isinstance(members, list | tuple):
                    raise self.fail(other, f"is {_describe(members)}, not a set")
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
        if isinstance(base, list | tuple) and axis == 0:
            return len(base)
        if not isinstance(base, Tensor) or axis >= base.dim():
            raise self.fail(node, f"has no subscript {axis + 1}: {self.text(node.kids[0])} is {_describe(base)}")
        return base.shape[axis]

    def integer(self, node: Node, at: Assignment) -> int:
        """Return the value of a limit, an index or a size."""
        value = self(node, at)
        if isinstance(value, Tensor) or value != int(value):
            raise self.fail(node, f"a limit, an index or a size is an integer, not {_describe(value)}")
        return int(value)

    def _index(self, node: Node, at: Assignment) -> Any:
        base = self(node.kids[0], at)
        key: list[int | slice] = []
        for axis, kid in enumerate(node.kids[1:]):
            size = self._size(node, axis, at)
            if kid.kind == "slice":
                first, last = kid.kids
                low = 0 if first.kind == "missing" else self.integer(first, at) - self.parsed.origin
                high = size if last.kind == "missing" else self.integer(last, at) - self.parsed.origin + 1
                if not 0 <= low <= high <= size:
                    raise self._outside(node, axis, size, at)
                key.append(slice(low, high))
                continue
            if kid.kind == "number" and len(kid.value) > 1 and len(node.kids) == 2 and getattr(base, "ndim", 1) > 1:
                raise self.fail(node, f"{kid.value} could be one index or several: separate them with commas")
            entry = self.integer(kid, at) - self.parsed.origin
            if not 0 <= entry < size:
                raise self._outside(node, axis, size, at)
            key.append(entry)
        if isinstance(base, list | tuple):
            item = base[key[0]]
            return sorted(item) if isinstance(item, range | set | frozenset) else self._plain(item)
        return self._plain(base[tuple(key)])

    def _outside(self, node: Node, axis: int, size: int, at: Assignment) -> FormulaError:
        origin = self.parsed.origin
        values = ", ".join(f"{name} = {value}" for name, value in at.items() if not name.startswith("#"))
        return self.fail(
            node, f"subscript {axis + 1} is outside {origin}..{origin + size - 1}{' where ' if values else ''}{values}"
        )

    # Values

    def _plain(self, value: Any) -> Any:
        """Make a number of a tensor with one entry; only what is differentiated carries gradients."""
        if not isinstance(value, Tensor):
            return value
        if value.dtype == torch.bool or not value.dtype.is_floating_point:
            value = value.double()
        elif value.dtype != torch.float64 and bool((value != value.round()).any()):  # whole numbers are exact
            self.precision = max(self.precision, torch.finfo(value.dtype).eps)
        single = value.numel() == 1 and value.dim() <= 2
        if self._tracks:
            return value.reshape(()) if single else value
        return value.detach().item() if single else value.detach()

    def _compute(self, node: Node, at: Assignment) -> Any:
        method: Callable[[Node, Assignment], Any] = getattr(self, f"_{node.kind}")
        try:
            return method(node, at)
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
                values += [
                    self(template, {**at, kid.value: index})
                    for index in range(self.integer(low, at), self.integer(high, at) + 1)
                ]
            else:
                values.append(self(kid, at))
        return values

    def _number(self, node: Node, at: Assignment) -> Any:
        return float(node.value) if "." in node.value else int(node.value)

    def _constant(self, node: Node, at: Assignment) -> Any:
        return getattr(math, node.value)

    def _name(self, node: Node, at: Assignment) -> Any:
        if node.value in at:
            return at[node.value]
        value = self._plain(self.scope.value(node.value))
        if isinstance(value, bool):
            return int(value)
        if isinstance(value, range | set | frozenset):
            return sorted(value)
        if not isinstance(value, int | float | Tensor | list | tuple):
            raise self.fail(node, f"is {_describe(value)}, not a number or a tensor")
        return value

    def _call(self, node: Node, at: Assignment) -> Any:
        value = self._plain(self.scope.value(node.value)(*self._kids(node, at)))
        if not isinstance(value, int | float | Tensor | list | tuple):
            raise self.fail(node, f"returns {_describe(value)}: bind a function that returns a tensor in `where`")
        return value

    def _sum(self, node: Node, at: Assignment) -> Any:
        values = self._kids(node, at)
        total = values[0] if node.value[0] == "+" else -values[0]
        for sign, value in zip(node.value[1:], values[1:], strict=True):
            self._fits(node, total, value)
            total = total + value if sign == "+" else total - value
        return total

    def _fits(self, node: Node, one: Any, other: Any) -> None:
        small, large = sorted((_shape(one), _shape(other)), key=len)
        if large[len(large) - len(small) :] != small:
            raise self.fail(node, f"shapes {_shape(one)} and {_shape(other)} do not fit")

    def _series(self, node: Node, at: Assignment) -> Any:
        values = self._kids(node, at)
        return sum(values[1:], values[0])

    def _juxtaposed(self, node: Node, at: Assignment) -> Any:
        one, other = self._kids(node, at)
        if not _shape(one) or not _shape(other):
            return one * other
        if isinstance(one, Tensor) and one.dim() == other.dim() == 1:
            rows = [self._is_row(kid, at) for kid in node.kids]
            if rows == [True, False]:
                return self._plain(_matmul(one, other))
            what = "rows: transpose the second" if rows[0] else r"columns: write x^\top y, x \cdot y or x \odot y"
            raise self.fail(node, f"a product of two {what}")
        if one.dim() == 1 and other.dim() == 2 and other.shape[0] == 1:
            return self._plain(_matmul(one[:, None], other))
        if one.shape[-1] != other.shape[-2 if other.dim() > 1 else 0]:
            raise self.fail(node, f"shapes {_shape(one)} and {_shape(other)} do not multiply")
        return self._plain(_matmul(one, other))

    def _is_row(self, node: Node, at: Assignment) -> bool:
        """Tell whether a 1-D tensor stands for a row, as ``x W`` does."""
        if node.kind == "sum":
            return any(self._is_row(kid, at) for kid in node.kids)
        if node.kind == "fraction":
            return self._is_row(node.kids[0], at)
        if node.kind not in ("juxtaposed", "dot"):
            return False
        left, right = (_shape(self(kid, at)) for kid in node.kids)
        if left and right:
            return len(left) == 1 and len(right) == 2
        return self._is_row(node.kids[0 if left else 1], at)

    def _dot(self, node: Node, at: Assignment) -> Any:
        one, other = self._kids(node, at)
        if isinstance(one, Tensor) and isinstance(other, Tensor) and one.dim() == other.dim() == 1:
            return self._plain(_matmul(one, other))
        return self._juxtaposed(node, at)

    _inner = _dot

    def _times(self, node: Node, at: Assignment) -> Any:
        one, other = self._kids(node, at)
        if _shape(one) and _shape(other):
            raise self.fail(node, r"\times multiplies numbers: write \cdot or \odot")
        return one * other

    def _odot(self, node: Node, at: Assignment) -> Any:
        one, other = self._parted(node, at)
        if _shape(one) != _shape(other):
            raise self.fail(node, f"shapes {_shape(one)} and {_shape(other)} differ")
        return one * other if node.kind == "odot" else one / other

    _oslash = _odot

    def _parted(self, node: Node, at: Assignment) -> list[Any]:
        """Return the values of factors, none of which may be a bare product of tensors: it could end either way."""
        for kid in node.kids:
            bare = kid.kind in ("juxtaposed", "dot") and kid.span[0] == kid.kids[0].span[0]
            if bare and all(_shape(self(factor, at)) for factor in kid.kids):
                raise self.fail(node, "what is multiplied first can be read in two ways: use parentheses")
        return self._kids(node, at)

    def _kron(self, node: Node, at: Assignment) -> Any:
        one, other = self._parted(node, at)
        if len(_shape(one)) != 2 or len(_shape(other)) != 2:
            raise self.fail(node, r"\otimes is for matrices: write x y^\top for the product of two columns")
        return torch.kron(one.contiguous(), other.contiguous())

    def _mod(self, node: Node, at: Assignment) -> Any:
        one, other = (self.integer(kid, at) for kid in node.kids)
        return one % other

    def _fraction(self, node: Node, at: Assignment) -> Any:
        one, other = self._kids(node, at)
        if _shape(other):
            raise self.fail(node, rf"divides by {_describe(other)}: write \oslash to divide entry by entry")
        if isinstance(one, Tensor) or isinstance(other, Tensor) or other != 0:
            return one / other
        return one * math.inf

    def _power(self, node: Node, at: Assignment) -> Any:
        base, power = self._kids(node, at)
        if _shape(power) or (_shape(base) and node.value != "of entries"):
            square = isinstance(base, Tensor) and base.dim() >= 2 and base.shape[-1] == base.shape[-2]
            if square and isinstance(power, int):
                return torch.linalg.matrix_power(base, power)
            what = f"{_describe(power)} as a power" if _shape(power) else f"a power of {_describe(base)}"
            raise self.fail(node, rf"{what}: functions of entries are written \exp(x) or x \odot x")
        value = base**power
        if isinstance(value, complex):
            return math.nan
        return value

    def _transpose(self, node: Node, at: Assignment) -> Any:
        (value,) = self._kids(node, at)
        if not _shape(value):
            raise self.fail(node, r"transposes a number; for an entry of a transposed matrix write (A^\top)_{ij}")
        if value.dim() == 1 and self._is_row(node.kids[0], at):
            return value
        if value.dim() == 2 and value.shape[0] == 1:
            return value[0]
        return value[None, :] if value.dim() == 1 else value.mT

    def _inverse(self, node: Node, at: Assignment) -> Any:
        (value,) = self._kids(node, at)
        return torch.linalg.inv(value) if _shape(value) else 1 / value

    def _sqrt(self, node: Node, at: Assignment) -> Any:
        value, *root = self._kids(node, at)
        if _shape(value):
            raise self.fail(node, f"the root of {_describe(value)}")
        if isinstance(value, Tensor):
            return value ** (1 / (root[0] if root else 2))
        return value ** (1 / (root[0] if root else 2)) if value >= 0 else math.nan

    def _apply(self, node: Node, at: Assignment) -> Any:
        name, values = node.value, self._kids(node, at)
        if name in ("max", "min"):
            reduce = max if name == "max" else min
            if len(values) == 1 and isinstance(values[0], Tensor):
                return self._plain(getattr(values[0], name)())
            shapes = {_shape(value) for value in values} - {()}
            if len(shapes) > 1:
                raise self.fail(node, f"{name} of tensors whose shapes {' and '.join(map(str, sorted(shapes)))} differ")
            if shapes:
                whole = [torch.as_tensor(value, dtype=None if _shape(value) else torch.float64) for value in values]
                return functools.reduce(torch.maximum if name == "max" else torch.minimum, whole)
            return reduce(values)
        value, *base = values
        if name in _WHOLE and not _shape(value):
            if name == "softmax":
                return 1.0  # of the one number there is, as for the first token
            raise self.fail(node, f"{name} of a number")
        try:
            if not isinstance(value, Tensor) and name in _FAST:
                result = _FAST[name](value)
            else:
                result = self._plain(
                    _ELEMENTWISE[name](torch.as_tensor(value, dtype=None if _shape(value) else torch.float64))
                )
        except (ValueError, OverflowError):
            result = self._plain(_ELEMENTWISE[name](torch.tensor(value, dtype=torch.float64)))
        return result / math.log(base[0]) if base else result

    def _softmax(self, node: Node, at: Assignment) -> Any:
        (body,) = node.kids
        values = self._range(node.value, body, {name: value for name, value in at.items() if name != node.value})
        if not values or at[node.value] not in values:
            raise self.fail(node, f"nothing says which values {node.value} takes: index by it")
        scores = [self(body, {**at, node.value: value}) for value in values]
        if any(_shape(score) for score in scores):
            raise self.fail(node, f"softmax over {node.value} is of numbers: index what it is of")
        weights = torch.stack([torch.as_tensor(score, dtype=torch.float64) for score in scores]).softmax(0)
        return self._plain(weights[values.index(at[node.value])])

    def _big(self, node: Node, at: Assignment) -> Any:
        kind, index = node.value.split()
        body, *domains = node.kids
        domain = domains[0] if domains else None
        exact = domain is not None and any(part.kind == "limits" or "∈" in part.value for part in domain.walk())
        values = self._bounded(index, domain, at) if domain and exact else self._range(index, body, at)
        if values is None and domain:
            values = self._bounded(index, domain, at)
        if values is None:
            raise self.fail(node, f"nothing says which values {index} takes: write limits")
        if domain and domain.kind != "limits":
            values = [value for value in values if self(domain, {**at, index: value})]
        terms = [self(body, {**at, index: value}) for value in values]
        if kind in ("max", "min"):
            if not terms or any(_shape(term) for term in terms):
                raise self.fail(node, f"the {kind} of {'tensors' if terms else 'nothing'}")
            return max(terms) if kind == "max" else min(terms)
        if kind in ("argmax", "argmin"):
            best = (max if kind == "argmax" else min)(terms, default=math.nan)
            if any(_shape(term) for term in terms) or terms.count(best) != 1:
                raise self.fail(
                    node, f"no single {index} has the {'largest' if kind == 'argmax' else 'smallest'} value"
                )
            return values[terms.index(best)]
        if kind == "sum":
            return sum(terms[1:], terms[0]) if terms else 0
        product: Any = terms[0] if terms else 1
        for term in terms[1:]:
            product = _matmul(product, term) if _shape(product) and _shape(term) else product * term
        return product

    def _norm(self, node: Node, at: Assignment) -> Any:
        (value,) = self._kids(node, at)
        order = {"": 2, "1": 1, "2": 2, "F": "fro", "\\infty": math.inf}[node.value]
        dims = len(_shape(value))
        if dims == 0 or (dims > 1 and not node.value) or (dims == 1 and node.value == "F") or dims > 2:
            raise self.fail(node, f"say which norm of {_describe(value)}: _F or _2 of a matrix, |x| of a number")
        norm = torch.linalg.vector_norm if dims == 1 else torch.linalg.matrix_norm
        return self._plain(norm(value, order))

    def _abs(self, node: Node, at: Assignment) -> Any:
        (value,) = self._kids(node, at)
        if isinstance(value, list | tuple):
            return len(value)
        if _shape(value):
            raise self.fail(node, rf"|x| is for numbers, this is {_describe(value)}: write \lVert x \rVert")
        return abs(value)

    def _floor(self, node: Node, at: Assignment) -> Any:
        (value,) = self._kids(node, at)
        return math.floor(value) if node.kind == "floor" else math.ceil(value)

    _ceil = _floor

    def _concat(self, node: Node, at: Assignment) -> Any:
        values = [torch.as_tensor(v, dtype=None if _shape(v) else torch.float64) for v in self._kids(node, at)]
        axis, most = int(node.value), max(value.dim() for value in values)
        if most == 0 or (most == 1 and axis and node.kind == "concat" and {v.dim() for v in values} == {1}):
            return torch.stack(values, -1)  # numbers make a column, and columns a matrix
        if axis and any(value.dim() < most for value in values):
            raise self.fail(node, "numbers beside tensors: write [a; b] to put them below each other")
        return torch.cat([value[None] if value.dim() < most else value for value in values], axis)

    def _vector(self, node: Node, at: Assignment) -> Any:
        values = self._kids(node, at)
        if any(_shape(value) for value in values):
            raise self.fail(node, "a list in parentheses is of numbers: write [a; b] to put tensors below each other")
        return torch.stack([torch.as_tensor(value, dtype=torch.float64) for value in values])

    def _labelled(self, node: Node, at: Assignment) -> Any:
        value, sizes = self(node.kids[0], at), tuple(self.integer(kid, at) for kid in node.kids[1:])
        if _shape(value) != sizes:
            raise self.fail(node, f"is labelled {sizes}, but is {_describe(value)}")
        return value

    def _matrix(self, node: Node, at: Assignment) -> Any:
        values = [torch.as_tensor(v, dtype=None if _shape(v) else torch.float64) for v in self._kids(node, at)]
        width = len(values) // (int(node.value) or len(values))  # of one column where its rows are dots
        if any(value.dim() for value in values):
            blocks = [value if value.dim() > 1 else value.reshape(-1, 1) for value in values]
            rows = [blocks[i : i + width] for i in range(0, len(blocks), width)]
            heights = [max(block.shape[0] for block in row) for row in rows]
            widths = [max(block.shape[1] for block in column) for column in zip(*rows, strict=True)]
            for row, height in zip(rows, heights, strict=True):
                for i, block in enumerate(row):
                    if block.numel() == 1 and not block.any():
                        row[i] = block.expand(height, widths[i])  # 0 is a block of zeros
            return torch.cat([torch.cat(row, -1) for row in rows], -2)
        stacked = torch.stack(values)
        return stacked if width == 1 else stacked.reshape(-1, width)

    def _cases(self, node: Node, at: Assignment) -> Any:
        for value, condition in zip(node.kids[::2], node.kids[1::2], strict=True):
            if self(condition, at):
                return self(value, at)
        raise self.fail(node, "no case applies")

    def _condition(self, node: Node, at: Assignment) -> bool:
        return all(
            self._compares(relation, one, other, at)
            for relation, (one, other) in zip(node.value.split(), pairwise(node.kids), strict=True)
        )

    def _compares(self, relation: str, one: Node, other: Node, at: Assignment) -> bool:
        if relation in "∈∉":
            outside = self.outside(self(one, at), other, at)
            return bool(outside) == (relation == "∉")
        return holds(relation, self(one, at), self(other, at), 0.0)

    def _limits(self, node: Node, at: Assignment) -> bool:
        return True  # whose index runs between them already

    def _and(self, node: Node, at: Assignment) -> bool:
        return all(self(kid, at) for kid in node.kids)

    def _or(self, node: Node, at: Assignment) -> bool:
        return any(self(kid, at) for kid in node.kids)

    def _parity(self, node: Node, at: Assignment) -> bool:
        return self.integer(node.kids[0], at) % 2 == (node.value == "odd")

    def _indicator(self, node: Node, at: Assignment) -> int:
        return int(self(node.kids[0], at))

    def _members(self, node: Node, at: Assignment) -> Any:
        return self._kids(node, at)

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
            shape = tuple(self.integer(kid, at) for kid in sizes)
            for item in value if isinstance(value, list | tuple) else [value]:
                if sizes or node.kind == "space":
                    if _shape(item) != shape:
                        return f"its shape is {_shape(item)}, not {shape}"
                elif _shape(item):
                    return f"it is {_describe(item)}, not a number"
        entries = torch.cat(
            [torch.as_tensor(v, dtype=torch.float64).flatten() for v in (value if isinstance(value, list) else [value])]
        )
        slack = math.sqrt(self.precision)
        if node.kind == "space":
            whole = entries == entries.round()
            inside = {"R": entries.isnan().logical_not(), "Z": whole, "N": whole & (entries >= 0)}[node.value]
        elif node.kind == "interval":
            low, high = (self(kid, at) for kid in node.kids)
            slack = slack * max([abs(end) for end in (low, high) if math.isfinite(end)], default=0.0)
            above = entries >= low - slack if node.value[0] == "[" else entries > low
            inside = above & (entries <= high + slack if node.value[1] == "]" else entries < high)
        else:
            members = self(node, at)
            if not isinstance(members, list | tuple):
                raise self.fail(node, f"is {_describe(members)}, not a set")
            inside = torch.tensor([any(holds("=", entry, m, 1e-8) for m in members) for entry in entries.tolist()])
        wrong = entries[~inside]
        if not len(wrong):
            return ""
        return f"it {'has entries' if len(entries) > 1 else 'is'} {', '.join(f'{x:.4g}' for x in wrong[:3].tolist())}"

    def _derivative(self, node: Node, at: Assignment) -> Any:
        top, by = node.kids
        leaf = self.scope.value(by.kids[0].value if by.kind == "index" else by.value)
        if not isinstance(leaf, Tensor):
            raise self.fail(node, f"{self.text(by)} is not a tensor")
        here = sorted((name, value) for name, value in at.items() if name in self.indices(top))
        gradient = self.scope.derivative((top, by.kids[:1] or by, here), leaf.shape)
        if gradient is None:
            self._tracks = True
            value = self(top, at)
            self._tracks = False
            if not (isinstance(value, Tensor) and value.requires_grad and leaf.requires_grad):
                raise self.fail(
                    node, f"{self.text(by)} needs .requires_grad_() in `where`, before what is differentiated"
                )
            if value.dim() == leaf.dim() == 1 and by.kind != "index":
                # A row for each entry of what is differentiated.
                return torch.stack([torch.autograd.grad(v, leaf, retain_graph=True)[0] for v in value])
            if value.dim():
                raise self.fail(node, "only a number is differentiated: index it")
            (gradient,) = torch.autograd.grad(value, leaf, retain_graph=True, materialize_grads=True)
        if by.kind != "index":
            return gradient
        self(by, at)  # its subscripts are within range
        return self._plain(gradient[tuple(self.integer(kid, at) - self.parsed.origin for kid in by.kids[1:])])


def holds(relation: str, one: Any, other: Any, tolerance: float) -> bool:
    """Tell whether a relation holds between all entries, to a tolerance relative to the largest of them."""
    if _shape(one) != _shape(other) and (relation in ("=", "≈", "≠") or (_shape(one) and _shape(other))):
        return False
    one, other = (torch.as_tensor(value, dtype=torch.float64).detach() for value in (one, other))
    largest = [value[value.isfinite()].abs().max().item() for value in (one, other) if value.isfinite().any()]
    # Where one side is zero all over, the other's rounding has nothing to be measured by.
    slack = tolerance * (max(largest) if largest and all(largest) else 1.0)
    if relation in ("=", "≈", "≠"):
        return torch.allclose(one, other, rtol=0.0, atol=slack) == (relation != "≠")
    # Much less is a tenth at most.
    compare: dict[str, Callable[[], Tensor]] = {
        "<": lambda: one < other,
        ">": lambda: one > other,
        "≤": lambda: one <= other + slack,
        "≥": lambda: one >= other - slack,
        "≪": lambda: one.abs() * 10 <= other.abs(),
        "≫": lambda: one.abs() >= other.abs() * 10,
    }
    return bool(compare[relation]().all())


def _matmul(one: Tensor, other: Tensor) -> Tensor:
    dtype = torch.promote_types(one.dtype, other.dtype)
    return one.to(dtype) @ other.to(dtype)


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(value.shape) if isinstance(value, Tensor) else ()


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"{value:g}" if isinstance(value, int | float) else f"a {type(value).__name__}"
