"""Derivatives, evaluated."""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from .arrays import Array, is_array, is_tensor, library, numbers, shape
from .numerics import TOLERANCE, UnsettledError, slope
from .ranges import Assignment, Indexed
from .tree import Node

T = TypeVar("T")


class Derivatives(Indexed):
    """Evaluates derivatives, by autograd or by differences."""

    def _prime(self, node: Node, at: Assignment) -> float:
        argument, order = node.kids
        function, point = self.scope.value(node.value), self(argument, at)
        if not isinstance(point, int | float):
            raise self.fail(argument, "is no number: index it")

        def derived(times: int, x: float) -> float:
            if times == 0:
                value = self._plain(function(x))
                if not isinstance(value, int | float):
                    raise self.fail(node, f"{node.value} of a number is no number")
                return value
            return float(self._slope(lambda step: np.asarray(derived(times - 1, x + step)), x))

        return self._settled(node, lambda: derived(int(order.value), point))

    def _settled(self, node: Node, compute: Callable[[], T]) -> T:
        try:
            value = compute()
        except UnsettledError as error:
            raise self.fail(node, f"no number can be found for it: {error}") from error
        self.precision = max(self.precision, TOLERANCE**2)
        return value

    def _slope(self, function: Callable[[float], np.ndarray], scale: float) -> np.ndarray:
        return slope(function, abs(scale), max(1e-8, math.sqrt(self.precision) / 10))

    def _derivative(self, node: Node, at: Assignment) -> Any:
        top, by = node.kids
        name = by.kids[0].value if by.kind == "index" else by.value
        leaf = self._shifted.get(name, self.scope.value(name))
        if name in top.names and top.kind != "name" and not (is_tensor(leaf) and leaf.requires_grad):
            return self._difference(node, name, at)
        if not is_tensor(leaf):
            raise self.fail(
                node,
                f"nothing says how {self.text(top)} depends on {self.text(by)}: write it out, as in "
                rf"\frac{{\partial}}{{\partial x}} f(x), or bind {self.text(by)} to a tensor with .requires_grad_()",
            )
        here = sorted((name, value) for name, value in at.items() if name in self.indices(top))
        gradient = self.scope.derivative((top, by.kids[:1] or by, here), leaf)
        if gradient is None:
            self._tracks = True
            value = self(top, at)
            self._tracks = False
            if not (is_tensor(value) and value.requires_grad and leaf.requires_grad):
                raise self.fail(
                    node, f"{self.text(by)} needs .requires_grad_() in `where`, before what is differentiated"
                )
            torch = library(leaf)
            if value.ndim == leaf.ndim == 1 and by.kind != "index":
                # A row for each entry of what is differentiated.
                return torch.stack([torch.autograd.grad(v, leaf, retain_graph=True)[0] for v in value])
            if value.ndim:
                raise self.fail(node, "only a number is differentiated: index it")
            (gradient,) = torch.autograd.grad(value, leaf, retain_graph=True, materialize_grads=True)
        if by.kind != "index":
            return gradient
        self(by, at)  # its subscripts are within range
        return self._plain(gradient[tuple(self.integer(kid, at) - self.parsed.origin for kid in by.kids[1:])])

    def _difference(self, node: Node, name: str, at: Assignment) -> Any:
        """Return the derivative of an expression by a name in it, from differences."""
        top, by = node.kids
        x = self(Node("name", (), name, by.span), at)
        dims = len(shape(self(top, at)))
        if by.kind == "index":
            self(by, at)  # its subscripts are within range
            entries = [tuple(self.integer(kid, at) - self.parsed.origin for kid in by.kids[1:])]
        else:
            entries = [*np.ndindex(shape(x))]
        if dims and (by.kind == "index" or dims > 1 or len(shape(x)) > 1):
            raise self.fail(node, "only a number is differentiated: index it")

        def moved(entry: tuple[int, ...], step: float) -> np.ndarray:
            outer = self._shifted
            self._shifted = {**outer, name: _moved(x, entry, step)}
            try:
                return numbers(self(top, at))
            finally:
                self._shifted = outer

        def slope_by(entry: tuple[int, ...]) -> np.ndarray:
            return self._slope(lambda step: moved(entry, step), float(numbers(x)[entry]))

        found = self._settled(node, lambda: [slope_by(entry) for entry in entries])
        if by.kind == "index" or not shape(x):
            return self._plain(found[0])
        return np.stack(found, -1) if dims else np.stack(found).reshape(shape(x))


def _moved(x: Any, entry: tuple[int, ...], step: float) -> Array:
    if not is_array(x):
        return x + step
    moved = x + 0 * x
    moved[entry] += step
    return moved
