"""What a formula's tree says, computed with numpy."""

import functools
import math
import operator
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from .arrays import describe, is_tensor, shape
from .ranges import Assignment, Indexed
from .tree import Node


def _softmax(value: np.ndarray) -> Any:
    raised = np.exp(value - value.max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)


_FUNCTIONS: dict[str, Callable[[Any], Any]] = {  # the others go by the names that numpy has for them
    "det": np.linalg.det,
    "ln": np.log,
    "softmax": _softmax,
    "tr": np.trace,
}
_WHOLE = {"softmax", "det", "tr", "diag"}
_COMBINED: dict[str, Callable[[Any, Any], Any]] = {
    "max": max,
    "min": min,
    "prod": lambda one, other: one @ other if shape(one) and shape(other) else one * other,
    "sum": operator.add,
}


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
        if not isinstance(value, int | float | np.ndarray):
            raise self.fail(node, f"is {describe(value)}, not a number or an array")
        return value

    def _of_call(self, node: Node, *values: Any) -> Any:
        if self.scope.library is not np:
            torch = self.scope.library
            values = tuple(torch.tensor(value) if isinstance(value, np.ndarray) else value for value in values)
        value = self._plain(self.scope.value(node.value)(*values))
        if not isinstance(value, int | float | np.ndarray):
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
                return self._plain(one @ other)
            remedy = "rows: transpose the second" if rows[0] else r"columns: write x^\top y, x \cdot y or x \odot y"
            raise self.fail(node, f"a product of two {remedy}")
        if one.ndim == 1 and other.ndim == 2 and other.shape[0] == 1:
            return self._plain(one[:, None] @ other)
        if one.shape[-1] != other.shape[-2 if other.ndim > 1 else 0]:
            raise self.fail(node, f"shapes {shape(one)} and {shape(other)} do not multiply")
        return self._plain(one @ other)

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
            return self._plain(one @ other)
        return self._juxtaposed(node, at)

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
        return one * other

    def _of_fraction(self, node: Node, one: Any, other: Any) -> Any:
        if shape(other):
            raise self.fail(node, f"divides by {describe(other)}: divide entry by entry, with subscripts")
        return one / other if shape(one) or other != 0 else one * math.inf

    def _of_power(self, node: Node, base: Any, power: Any) -> Any:
        if shape(power) or shape(base):
            square = len(shape(base)) >= 2 and base.shape[-1] == base.shape[-2]
            if square and isinstance(power, int):
                return np.linalg.matrix_power(base, power)
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
        return value[None, :] if value.ndim == 1 else value.swapaxes(-1, -2)

    def _of_sqrt(self, node: Node, value: Any) -> Any:
        if shape(value):
            raise self.fail(node, f"the root of {describe(value)}")
        return math.sqrt(value) if value >= 0 else math.nan

    def _of_apply(self, node: Node, *values: Any) -> Any:
        name, (value, *others) = node.value, values
        if name in ("max", "min"):
            if not others and shape(value):
                return self._plain(getattr(value, name)())
            shapes = {shape(each) for each in values} - {()}
            if len(shapes) > 1:
                raise self.fail(node, f"{name} of arrays whose shapes {' and '.join(map(str, sorted(shapes)))} differ")
            return self._plain(functools.reduce(getattr(np, f"{name}imum"), values))
        if name in _WHOLE and not shape(value):
            if name == "softmax":
                return 1.0  # of the one number there is, as for the first token
            raise self.fail(node, f"{name} of a number")
        return self._plain((_FUNCTIONS.get(name) or getattr(np, name))(np.asarray(value, np.float64)))

    def _big(self, node: Node, at: Assignment) -> Any:
        kind, index = node.value.split()
        body, *domains = node.kids
        domain = domains[0] if domains else None
        values: list[int] | range | None
        if domain is not None and domain.kind == "limits":
            low, high = (self.integer(kid, at) for kid in domain.kids)
            values, domain = range(low, high + 1), None
        else:
            values = self._range(index, body, at)
        if values is None:
            raise self.fail(node, f"nothing says which values {index} takes: write limits")
        places = ({**at, index: value} for value in values)
        terms = [self(body, place) for place in places if domain is None or self(domain, place)]
        if kind in ("max", "min") and (not terms or any(map(shape, terms))):
            raise self.fail(node, f"the {kind} of {'arrays' if terms else 'nothing'}")
        return functools.reduce(_COMBINED[kind], terms) if terms else int(kind == "prod")

    def _derivative(self, node: Node, at: Assignment) -> Any:
        top, by = node.kids
        variable = by.kids[0] if by.kind == "index" else by
        here = sorted((name, value) for name, value in at.items() if name in self.indices(top))
        gradient = self.scope.derivative((top, variable, here), self.scope.value(variable.value))
        if gradient is None:
            gradient = self._gradient(node, variable, at)
        if by is variable:
            return self._plain(gradient)
        self(by, at)  # its subscripts are within range
        return self._plain(gradient[self._places(by, at)])

    def _places(self, node: Node, at: Assignment) -> tuple[int, ...]:
        return tuple(self.integer(kid, at) - self.parsed.origin for kid in node.kids[1:])

    def _gradient(self, node: Node, variable: Node, at: Assignment) -> Any:
        """The gradient that autograd gives, of a number by an array."""
        top = node.kids[0]
        name = top.kids[0] if top.kind == "index" else top
        leaf, value = self.scope.value(variable.value), self.scope.value(name.value)
        if not all(is_tensor(each) and each.requires_grad for each in (leaf, value)):
            one, other = self.text(name), self.text(variable)
            remedy = f"in `where`, bind {other} to a tensor with .requires_grad_(), and compute {one} from it"
            raise self.fail(node, f"nothing tracks how {one} depends on {other}: {remedy}")
        if top is not name:
            self(top, at)  # its subscripts are within range
            value = value[self._places(top, at)]
        if value.ndim:
            raise self.fail(node, "only a number is differentiated: index it")
        grad = sys.modules["torch"].autograd.grad
        return grad(value, leaf, retain_graph=True, materialize_grads=True)[0].detach()

    def _of_norm(self, node: Node, value: Any) -> Any:
        if len(shape(value)) != 1:
            raise self.fail(
                node, f"the norm is of an array with one axis, |x| of a number, and this is {describe(value)}"
            )
        return self._plain(np.linalg.norm(value))

    def _of_abs(self, node: Node, value: Any) -> Any:
        if shape(value):
            raise self.fail(node, rf"|x| is for numbers, this is {describe(value)}: write \lVert x \rVert")
        return abs(value)
