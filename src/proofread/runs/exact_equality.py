"""Notices where an expression compares computed numbers to the bit, as ``torch.equal(f(x), g(x))`` does.

Two processors, or two versions of a library, add in another order, and what is equal on one differs on the other in
the last bit. Whether a comparison rests on that is decided by what it really compares: not if one side is a literal, an
integer, a truth value, a text, a shape, or if it holds nothing but whole numbers and infinities, which rounding leaves
alone. A difference that is asked whether it is zero compares, too. A comparison inside of a function of the page is not
seen.
"""

import ast
import math
import re
from collections.abc import Mapping
from types import FunctionType
from typing import Any

_WATCH = "__proofread_bits__"
_EQUAL = {"equal", "eq", "ne", "not_equal", "array_equal", "array_equiv", "__eq__", "__ne__"}
_LOOKED_AT = 100_000  # numbers of a tensor
_CLOSE = {"allclose", "isclose", "assert_close", "assert_allclose"}  # to the bit only where they tolerate nothing
_OF_LIBRARY = re.compile(r"(numpy|torch)(\.|\Z)")
_TOLERANCES = ("rtol", "atol", "rel_tol", "abs_tol")


def evaluate(expression: str, file: str, namespace: dict[str, Any]) -> tuple[Any, str]:
    """Return the value of an expression, and the first comparison of computed numbers in it or ""."""
    source = f"({expression}\n)"
    watch = _Watch()
    tree = ast.fix_missing_locations(_Watched(source, watch).visit(ast.parse(source, file, "eval")))
    namespace[_WATCH] = watch
    try:
        return eval(compile(tree, file, "eval"), namespace), watch.comparison
    finally:
        del namespace[_WATCH]


class _Watch:
    def __init__(self) -> None:
        self.comparison = ""
        self.sources: list[str] = []  # the comparisons that are watched
        self._last: dict[int, Any] = {}  # the operand that came before, by the comparison

    def operand(self, value: Any, place: int, first: bool, compared: bool) -> Any:
        """Take note of an operand, which is compared with the one before it unless it is the first."""
        if not first and compared:
            self._compare(place, self._last[place], value)
        self._last[place] = value
        return value

    def function(self, function: Any, place: int) -> Any:
        """The function, or one that does the same and takes note of what it compares."""
        name, owner = getattr(function, "__name__", ""), getattr(function, "__self__", None)
        is_own = isinstance(function, FunctionType) and not _OF_LIBRARY.match(str(function.__module__))
        if is_own or name not in _EQUAL | _CLOSE:
            return function  # a page may call something of its own so

        def noted(*given: Any, **named: Any) -> Any:
            values = [*([owner] if hasattr(owner, "dtype") else []), *given]
            tolerances = [*values[2:4], *(named[key] for key in _TOLERANCES if key in named)]
            some = 1 if getattr(function, "__module__", "") == "math" else 2  # where one is enough, the other is 0
            exactly = name in _EQUAL or (len(tolerances) >= some and not any(tolerances[:2]))
            if exactly and len(values) >= 2:
                self._compare(place, values[0], values[1])
            return function(*given, **named)

        return noted

    def _compare(self, place: int, left: Any, right: Any) -> None:
        if not self.comparison and _rounded(left) and _rounded(right):
            self.comparison = self.sources[place]


class _Watched(ast.NodeTransformer):
    """Lets the watch see what is compared, and leaves what it gives as it is."""

    def __init__(self, source: str, watch: _Watch):
        self._source, self._watch = source, watch
        self._zero: int | None = None  # the place of what asks whether something, perhaps a difference, is zero

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        place, operands = self._place(node), [node.left, *node.comparators]
        asks_for_zero = isinstance(node.ops[0], (ast.Eq, ast.NotEq)) and any(map(_is_zero, operands))
        before, self._zero = self._zero, place if asks_for_zero else None
        exact = [isinstance(op, (ast.Eq, ast.NotEq, ast.In, ast.NotIn)) for op in node.ops]
        literal = [_literal(operand) for operand in operands]
        self.generic_visit(node)
        self._zero = before
        watched: list[ast.expr] = [
            self._call("operand", operand, place, not i, bool(i) and exact[i - 1] and not any(literal[i - 1 : i + 1]))
            for i, operand in enumerate([node.left, *node.comparators])
        ]
        node.left, node.comparators = watched[0], watched[1:]
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        before = self._zero
        self._zero = self._place(node) if isinstance(node.op, ast.Not) else self._zero
        self.generic_visit(node)
        self._zero = before
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        literal = _literal(node.left) or _literal(node.right)
        self.generic_visit(node)
        if self._zero is not None and isinstance(node.op, ast.Sub) and not literal:
            self._watch.sources.append(self._watch.sources[self._zero])
            place = len(self._watch.sources) - 1
            node.left = self._call("operand", node.left, place, True, False)
            node.right = self._call("operand", node.right, place, False, True)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        place = self._place(node)
        literal = any(_literal(given) and not _is_zero(given) for given in node.args[:2])
        self.generic_visit(node)
        if not literal:
            node.func = self._call("function", node.func, place)
        return node

    def _place(self, node: ast.expr) -> int:
        self._watch.sources.append(" ".join((ast.get_source_segment(self._source, node) or "").split()))
        return len(self._watch.sources) - 1

    def _call(self, method: str, value: ast.expr, *rest: int) -> ast.Call:
        watch = ast.Attribute(ast.Name(_WATCH, ast.Load()), method, ast.Load())
        return ast.copy_location(ast.Call(watch, [value, *map(ast.Constant, rest)], []), value)


def _is_zero(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float) and node.value == 0


def _literal(node: ast.expr) -> bool:
    """Whether a number was written down, not computed: ``0.5``, ``-1``, ``[0.25, 0.75]``, ``float("inf")``."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "float" and all(map(_literal, node.args))
    if isinstance(node, (ast.List, ast.Set, ast.Tuple)):
        return all(map(_literal, node.elts))
    return isinstance(node.operand if isinstance(node, ast.UnaryOp) else node, ast.Constant)


def _rounded(value: Any) -> bool:
    """Whether a value holds numbers that rounding may have touched: finite, and not whole."""
    if isinstance(value, Mapping):
        return any(map(_rounded, value.values()))
    if isinstance(value, (list, set, frozenset, tuple)):
        return any(map(_rounded, value))
    if isinstance(value, complex):
        return _rounded(value.real) or _rounded(value.imag)
    if isinstance(value, float):
        return math.isfinite(value) and not value.is_integer()
    if not hasattr(value, "dtype") or not hasattr(value, "reshape"):
        return False
    try:
        return _rounded(value.reshape(-1)[:_LOOKED_AT].tolist())
    except (RuntimeError, TypeError, ValueError):  # nested, sparse, without data
        return False
