"""What a formula's tree says, computed with numpy or torch."""

import functools
import math
from collections.abc import Callable
from typing import Any

from .arrays import Array, alike, arrays, describe, is_array, is_list, is_tensor, library, matmul, shape, softmax
from .ranges import Assignment, Indexed
from .tree import Node

_FUNCTIONS: dict[str, Callable[[Array], Array]] = {  # the others go by the names that numpy and torch have for them
    "det": lambda x: library(x).linalg.det(x),
    "ln": lambda x: library(x).log(x),
    "softmax": softmax,
    "tr": lambda x: library(x).trace(x),
}
_FAST = {"exp": math.exp, "log": math.log, "ln": math.log, "sin": math.sin, "cos": math.cos, "tanh": math.tanh}
_WHOLE = {"softmax", "det", "tr", "diag"}


class Evaluator(Indexed):
    """Evaluates the nodes of one formula: those called _of_... from the values of their kids."""

    def _number(self, node: Node, at: Assignment) -> Any:
        return float(node.value) if "." in node.value else int(node.value)

    def _constant(self, node: Node, at: Assignment) -> Any:
        return getattr(math, node.value)

    def _name(self, node: Node, at: Assignment) -> Any:
        if node.value in at:
            return at[node.value]
        value = self._plain(self.scope.value(node.value))
        if not (isinstance(value, int | float) or is_array(value) or is_list(value)):
            raise self.fail(node, f"is {describe(value)}, not a number or an array")
        return value

    def _of_call(self, node: Node, *values: Any) -> Any:
        value = self._plain(self.scope.value(node.value)(*values))
        if not (isinstance(value, int | float) or is_array(value) or is_list(value)):
            raise self.fail(
                node, f"returns {describe(value)}: bind a function that returns a number or an array in `where`"
            )
        return value

    def _of_sum(self, node: Node, *values: Any) -> Any:
        total = values[0] if node.value[0] == "+" else -values[0]
        for sign, value in zip(node.value[1:], values[1:], strict=True):
            small, large = sorted((shape(total), shape(value)), key=len)
            if large[len(large) - len(small) :] != small:
                raise self.fail(node, f"shapes {shape(total)} and {shape(value)} do not fit")
            total = total + value if sign == "+" else total - value
        return total

    def _juxtaposed(self, node: Node, at: Assignment) -> Any:
        one, other = self._kids(node, at)
        if not shape(one) or not shape(other):
            return one * other
        if one.ndim == other.ndim == 1:
            rows = [self._is_row(kid, at) for kid in node.kids]
            if rows == [True, False]:
                return self._plain(matmul(one, other))
            remedy = "rows: transpose the second" if rows[0] else r"columns: write x^\top y, x \cdot y or x \odot y"
            raise self.fail(node, f"a product of two {remedy}")
        if one.ndim == 1 and other.ndim == 2 and other.shape[0] == 1:
            return self._plain(matmul(one[:, None], other))
        if one.shape[-1] != other.shape[-2 if other.ndim > 1 else 0]:
            raise self.fail(node, f"shapes {shape(one)} and {shape(other)} do not multiply")
        return self._plain(matmul(one, other))

    def _is_row(self, node: Node, at: Assignment) -> bool:
        """Tell whether a 1-D array stands for a row, as ``x W`` does."""
        if node.kind == "sum":
            return any(self._is_row(kid, at) for kid in node.kids)
        if node.kind == "fraction":
            return self._is_row(node.kids[0], at)
        if node.kind not in ("juxtaposed", "dot"):
            return False
        left, right = (shape(self(kid, at)) for kid in node.kids)
        if left and right:
            return len(left) == 1 and len(right) == 2
        return self._is_row(node.kids[0 if left else 1], at)

    def _dot(self, node: Node, at: Assignment) -> Any:
        one, other = self._kids(node, at)
        if len(shape(one)) == len(shape(other)) == 1:
            return self._plain(matmul(one, other))
        return self._juxtaposed(node, at)

    _inner = _dot

    def _of_times(self, node: Node, one: Any, other: Any) -> Any:
        if shape(one) and shape(other):
            raise self.fail(node, r"\times multiplies numbers: write \cdot or \odot")
        return one * other

    def _odot(self, node: Node, at: Assignment) -> Any:
        for kid in node.kids:
            bare = kid.kind in ("juxtaposed", "dot") and kid.span[0] == kid.kids[0].span[0]
            if bare and all(shape(self(factor, at)) for factor in kid.kids):
                raise self.fail(node, "what is multiplied first can be read in two ways: use parentheses")
        one, other = self._kids(node, at)
        if shape(one) != shape(other):
            raise self.fail(node, f"shapes {shape(one)} and {shape(other)} differ")
        return one * other if node.kind == "odot" else one / other

    _oslash = _odot

    def _mod(self, node: Node, at: Assignment) -> Any:
        one, other = (self.integer(kid, at) for kid in node.kids)
        return one % other

    def _of_fraction(self, node: Node, one: Any, other: Any) -> Any:
        if shape(other):
            raise self.fail(node, rf"divides by {describe(other)}: write \oslash to divide entry by entry")
        if is_array(one) or is_array(other) or other != 0:
            return one / other
        return one * math.inf

    def _of_power(self, node: Node, base: Any, power: Any) -> Any:
        if shape(power) or (shape(base) and node.value != "of entries"):
            square = len(shape(base)) >= 2 and base.shape[-1] == base.shape[-2]
            if square and isinstance(power, int):
                return library(base).linalg.matrix_power(base, power)
            operation = f"{describe(power)} as a power" if shape(power) else f"a power of {describe(base)}"
            remedy = r"functions of entries are written \exp(x) or x \odot x, and what inverts x is x_{\text{inv}}"
            raise self.fail(node, f"{operation}: {remedy}")
        try:
            value = base**power
        except OverflowError:
            return math.inf
        return math.nan if isinstance(value, complex) else value

    def _transpose(self, node: Node, at: Assignment) -> Any:
        (value,) = self._kids(node, at)
        if not shape(value):
            raise self.fail(node, r"transposes a number; for an entry of a transposed matrix write (A^\top)_{ij}")
        if value.ndim == 1 and self._is_row(node.kids[0], at):
            return value
        if value.ndim == 2 and value.shape[0] == 1:
            return value[0]
        return value[None, :] if value.ndim == 1 else library(value).swapaxes(value, -1, -2)

    def _of_sqrt(self, node: Node, value: Any, *root: float) -> Any:
        if shape(value):
            raise self.fail(node, f"the root of {describe(value)}")
        return value ** (1 / (root[0] if root else 2)) if is_array(value) or value >= 0 else math.nan

    def _of_apply(self, node: Node, *values: Any) -> Any:
        name = node.value
        if name in ("max", "min"):
            if len(values) == 1 and is_array(values[0]):
                return self._plain(getattr(values[0], name)())
            shapes = {shape(value) for value in values} - {()}
            if len(shapes) > 1:
                raise self.fail(node, f"{name} of arrays whose shapes {' and '.join(map(str, sorted(shapes)))} differ")
            if shapes:
                return functools.reduce(getattr(library(*values), f"{name}imum"), arrays(values, self.scope.library))
            return max(values) if name == "max" else min(values)
        value, *base = values
        if name in _WHOLE and not shape(value):
            if name == "softmax":
                return 1.0  # of the one number there is, as for the first token
            raise self.fail(node, f"{name} of a number")
        try:
            fast = name in _FAST and not is_array(value)
            result = _FAST[name](value) if fast else self._function(name, value)
        except (ValueError, OverflowError):
            result = self._function(name, value)
        return result / math.log(base[0]) if base else result

    def _function(self, name: str, value: Any) -> Any:
        (array,) = arrays([value], self.scope.library)
        return self._plain((_FUNCTIONS.get(name) or getattr(library(array), name))(array))

    def _softmax(self, node: Node, at: Assignment) -> Any:
        (body,) = node.kids
        values = self._range(node.value, body, {name: value for name, value in at.items() if name != node.value})
        if not values or at[node.value] not in values:
            raise self.fail(node, f"nothing says which values {node.value} takes: index by it")
        scores = [self(body, {**at, node.value: value}) for value in values]
        if any(shape(score) for score in scores):
            raise self.fail(node, f"softmax over {node.value} is of numbers: index what it is of")
        stacked = library(*scores).stack(arrays(scores, library(*scores)))
        return self._plain(softmax(stacked)[values.index(at[node.value])])

    def _big(self, node: Node, at: Assignment) -> Any:
        kind, index = node.value.split()
        body, *domains = node.kids
        domain = domains[0] if domains else Node("condition")
        exact = any(part.kind == "limits" or "∈" in part.value for part in domain.walk())
        values = None if exact else self._range(index, body, at)
        if values is None:
            values = self._bounded(index, domain, at)
        if values is None:
            raise self.fail(node, f"nothing says which values {index} takes: write limits")
        values = [value for value in values if self(domain, {**at, index: value})]
        terms = alike([self(body, {**at, index: value}) for value in values])
        if kind.endswith(("max", "min")):
            if not terms or any(shape(term) for term in terms):
                raise self.fail(node, f"the {kind} of {'arrays' if terms else 'nothing'}")
            best = max(terms) if kind.endswith("max") else min(terms)
            if kind in ("max", "min"):
                return best
            if terms.count(best) != 1:
                which = "largest" if kind == "argmax" else "smallest"
                raise self.fail(node, f"no single {index} has the {which} value")
            return values[terms.index(best)]
        if kind == "mean" and not terms:
            raise self.fail(node, "the mean of nothing")
        if kind == "mean":
            return sum(terms[1:], terms[0]) / len(terms)
        if kind == "sum":
            return sum(terms[1:], terms[0]) if terms else 0
        product: Any = terms[0] if terms else 1
        for term in terms[1:]:
            product = matmul(product, term) if shape(product) and shape(term) else product * term
        return product

    def _derivative(self, node: Node, at: Assignment) -> Any:
        top, by = node.kids
        variable = by.kids[0] if by.kind == "index" else by
        here = sorted((name, value) for name, value in at.items() if name in self.indices(top))
        gradient = self.scope.derivative((top, variable, here), self.scope.value(variable.value))
        if gradient is None:
            gradient = self._gradient(node, variable, at)
        if by is variable:
            return gradient
        self(by, at)  # its subscripts are within range
        return self._plain(gradient[tuple(self.integer(kid, at) - self.parsed.origin for kid in by.kids[1:])])

    def _gradient(self, node: Node, variable: Node, at: Assignment) -> Array:
        top, by = node.kids
        leaf = self.scope.value(variable.value)
        self._tracks = True
        value = self(top, at)
        self._tracks = False
        if not all(is_tensor(each) and each.requires_grad for each in (leaf, value)):
            one, other = self.text(top), self.text(variable)
            remedy = f"in `where`, bind {other} to a tensor with .requires_grad_(), and compute {one} from it"
            raise self.fail(node, f"nothing tracks how {one} depends on {other}: {remedy}")
        torch = library(leaf)
        if value.ndim == leaf.ndim == 1 and by is variable:
            # A row for each entry of what is differentiated.
            return torch.stack([torch.autograd.grad(v, leaf, retain_graph=True)[0] for v in value])
        if value.ndim:
            raise self.fail(node, "only a number is differentiated: index it")
        return torch.autograd.grad(value, leaf, retain_graph=True, materialize_grads=True)[0]

    def _of_norm(self, node: Node, value: Any) -> Any:
        order = {"1": 1, "F": "fro", "\\infty": math.inf}.get(node.value, 2)
        dims = len(shape(value))
        if dims not in (1, 2) or (dims == 2 and not node.value) or (dims == 1 and node.value == "F"):
            raise self.fail(node, f"say which norm of {describe(value)}: _F or _2 of a matrix, |x| of a number")
        return self._plain(library(value).linalg.norm(value, ord=order))

    def _of_abs(self, node: Node, value: Any) -> Any:
        if is_list(value):
            return len(value)
        if shape(value):
            raise self.fail(node, rf"|x| is for numbers, this is {describe(value)}: write \lVert x \rVert")
        return abs(value)

    def _of_concat(self, node: Node, *kids: Any) -> Any:
        values = arrays(kids, self.scope.library)
        xp, axis, most = library(*values), int(node.value), max(value.ndim for value in values)
        if most == 0 or (most == 1 and axis and node.kind == "concat" and {v.ndim for v in values} == {1}):
            return xp.stack(values, -1)  # numbers make a column, and columns a matrix
        if axis and any(value.ndim < most for value in values):
            raise self.fail(node, "numbers beside arrays: write [a; b] to put them below each other")
        return xp.concatenate([value[None] if value.ndim < most else value for value in values], axis)

    def _of_vector(self, node: Node, *values: Any) -> Any:
        if any(shape(value) for value in values):
            raise self.fail(node, "a list in parentheses is of numbers: write [a; b] to put arrays below each other")
        items = arrays(values, self.scope.library)
        return library(*items).stack(items)

    def _labelled(self, node: Node, at: Assignment) -> Any:
        value, sizes = self(node.kids[0], at), tuple(self.integer(kid, at) for kid in node.kids[1:])
        if shape(value) != sizes:
            raise self.fail(node, f"is labelled {sizes}, but is {describe(value)}")
        return value

    def _of_matrix(self, node: Node, *kids: Any) -> Any:
        values = arrays(kids, self.scope.library)
        xp = library(*values)
        width = len(values) // (int(node.value) or len(values))  # of one column where its rows are dots
        if any(value.ndim for value in values):
            blocks = [value if value.ndim > 1 else value.reshape(-1, 1) for value in values]
            rows = [blocks[i : i + width] for i in range(0, len(blocks), width)]
            heights = [max(block.shape[0] for block in row) for row in rows]
            widths = [max(block.shape[1] for block in column) for column in zip(*rows, strict=True)]
            for row, height in zip(rows, heights, strict=True):
                for i, block in enumerate(row):
                    if math.prod(block.shape) == 1 and not block.any():
                        row[i] = xp.broadcast_to(block, (height, widths[i]))  # 0 is a block of zeros
            return xp.concatenate([xp.concatenate(row, -1) for row in rows], -2)
        stacked = xp.stack(values)
        return stacked if width == 1 else stacked.reshape(-1, width)
