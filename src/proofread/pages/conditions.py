"""What the expression of a claim can prove: whether it could give anything else.

An expression proves nothing if it gives what it gives whatever the page gave. To find out, it is tried with stand-ins:
all that comes from the page or a library (a name, a subscript, an attribute, a call) is replaced by numbers drawn at
random, the same for the same code, among them zeros, equal ones and the constants of the expression. What is left is
the logic of the expression itself: operators, comparisons, branches, and what makes one number of many. So `x == x`,
`x * 0 == 0`, `abs(x) >= 0`, equal branches and literals are found, while what a page or PyTorch sees to (weights that
sum to one, a shape) can fail, as a stand-in knows nothing of it: no true claim about them is refused.
"""

import ast
import math
import operator
import random
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from ..syntax import expression as parse

_TRIALS, _ENOUGH = 1000, 50
_TURNS = 100  # of comprehensions in one trial, which stand in each other
_BINARY: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.eq,
    ast.IsNot: operator.ne,
    ast.In: lambda one, of: one in of,
    ast.NotIn: lambda one, of: one not in of,
}
_UNARY: dict[type, Callable[[Any], Any]] = {ast.Invert: operator.not_, ast.USub: operator.neg, ast.UAdd: operator.pos}
_SAME = {"equal", "allclose", "isclose", "eq", "array_equal", "assert_close"}
_LIBRARIES = {"torch", "np", "numpy", "math"}
_ONE: dict[str, Callable[[Any], Any]] = {"abs": abs, "float": float, "int": int, "bool": bool, "round": round}
_OF_MANY: dict[str, Callable[[Any], Any]] = {
    "all": all,
    "any": any,
    "sum": sum,
    "min": min,
    "max": max,
    "mean": lambda many: sum(many) / len(many),
    "norm": lambda many: math.hypot(*many),
    "item": lambda many: many[0],
    "count_nonzero": lambda many: sum(map(bool, many)),
}
_COUNTS = {"len", "size", "numel", "dim", "ndimension"}  # never negative
_DISPLAYS = (ast.Tuple, ast.List, ast.Set)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp)
_ALWAYS = {"str", "repr", "ascii", "type", "id", "iter", "enumerate", "zip", "map", "filter", "reversed"}  # are true
_COPIES = {"list", "tuple", "set", "frozenset", "sorted"}


class _Many(list[Any]):
    """Stand-in for a tensor: the operators take its numbers one by one."""


def is_fixed(expression: str, value: object) -> bool:
    """Tell whether the expression gives this value whatever the page gave."""
    tree = parse(expression)
    held = 0
    for seed in range(_TRIALS):
        try:
            trial = _Trial(tree, seed)
            tried = trial.holds(tree) if isinstance(value, bool) else trial.value(tree)
        except (ArithmeticError, TypeError, ValueError, LookupError):
            continue
        if tried != value:
            return False
        held += 1
    return held >= _ENOUGH


def why_fixed(expression: str) -> str:
    """Return why an expression proves nothing, as far as that is known."""
    tree = parse(expression)
    if source := next((ast.unparse(node) for node in _asked(tree) if _is_true(node)), ""):
        return f"{source} is never false"
    for node in (each for each in ast.walk(tree) if isinstance(each, ast.expr)):
        source = ast.unparse(node)
        if isinstance(node, ast.IfExp) and ast.dump(node.body) == ast.dump(node.orelse):
            return f"both branches of {source} are the same"
        if isinstance(node, ast.Compare):
            for one, other in zip([node.left, *node.comparators], node.comparators, strict=False):
                if ast.dump(one) in map(ast.dump, getattr(other, "elts", ())):
                    return f"{source} looks for {ast.unparse(one)} among what it stands in"
                if ast.dump(one) == ast.dump(other):
                    return f"{source} compares {ast.unparse(one)} with itself"
        if len({ast.dump(each) for each in _compared(node)}) == 1:
            return f"{source} compares {ast.unparse(_compared(node)[0])} with itself"
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and 0 in map(number, (node.left, node.right)):
            return f"{source} is zero"
        if isinstance(node, ast.Call) and _called(node) == "len" and node.args and isinstance(node.args[0], _DISPLAYS):
            return f"{source} counts what is written in it"
    return "nothing that the page gives can change that"


class _Trial:
    """One evaluation with stand-ins."""

    def __init__(self, tree: ast.expr, seed: int):
        self._random = random.Random(seed)
        written = [node for node in ast.walk(tree) if isinstance(node, ast.expr)]
        numbers = [value for node in written if (value := number(node)) is not None]
        self._pool = [_literal(node) for node in written if _is_literal(node)] or [1]
        self._pool += [value + step for value in numbers for step in (-1, 0, 1)]
        self._alike = self._drawn() if seed % 5 == 0 else None  # everything the same
        self._known: dict[str, list[Any]] = {}
        self._bound: dict[str, Any] = {}
        self._held: dict[tuple[ast.expr, int, bool], bool] = {}
        self._turn = 0
        self._many = False

    def holds(self, node: ast.expr) -> bool:
        """Tell whether the expression is true in this trial."""
        key = node, self._turn, self._many  # what stands in an expression is asked for more than once
        if key not in self._held:
            self._held[key] = self._holds(node)
        return self._held[key]

    def _holds(self, node: ast.expr) -> bool:
        if _is_true(node):
            return True
        if isinstance(node, _COMPREHENSIONS):  # which may be empty
            return _truth(self._stand_in(node))
        if isinstance(node, ast.BoolOp):
            return (any if isinstance(node.op, ast.Or) else all)(self.holds(each) for each in node.values)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return not self.holds(node.operand)
        if isinstance(node, ast.IfExp):
            return self.holds(node.body if self.holds(node.test) else node.orelse)
        return _truth(self.value(node))

    def value(self, node: ast.expr) -> Any:
        """Return the value of the expression in this trial."""
        if isinstance(node, ast.NamedExpr):
            self._bound[node.target.id] = self.value(node.value)
            return self._bound[node.target.id]
        if isinstance(node, ast.JoinedStr):
            parts = (each.value if isinstance(each, ast.FormattedValue) else each for each in node.values)
            return "".join(str(self.value(each)) for each in parts)
        if _is_literal(node):
            return _literal(node)
        if isinstance(node, ast.Name) and node.id in self._bound:
            return self._bound[node.id]
        if isinstance(node, _DISPLAYS) and not any(isinstance(each, ast.Starred) for each in node.elts):
            return [self.value(each) for each in node.elts]
        listed = isinstance(node, ast.Subscript) and isinstance(node.value, (ast.List, ast.Tuple))
        if listed and isinstance(node, ast.Subscript) and not isinstance(node.slice, (ast.Slice, ast.Tuple)):
            return self.value(node.value)[self.value(node.slice)]
        if isinstance(node, ast.IfExp):
            return self.value(node.body if self.holds(node.test) else node.orelse)
        if isinstance(node, ast.BoolOp):
            for each in node.values:
                value = self.value(each)
                if self.holds(each) is isinstance(node.op, ast.Or):
                    break
            return value
        if isinstance(node, ast.UnaryOp):
            is_not = isinstance(node.op, ast.Not)
            return self.holds(node) if is_not else _each(_UNARY[type(node.op)], self.value(node.operand))
        if isinstance(node, ast.BinOp) and self._is_plain(node):
            return _each(_BINARY[type(node.op)], self.value(node.left), self.value(node.right))
        if isinstance(node, ast.Compare):
            return self._compare(node)
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, (ast.GeneratorExp, ast.ListComp)) and len(node.generators) == 1:
            return self._comprehension(node, node.generators[0])
        return self._stand_in(node)

    def _is_plain(self, node: ast.BinOp) -> bool:
        """Tell whether an operator is tried: not a power that may be huge, and none that repeats or formats a text."""
        if isinstance(node.op, ast.Pow):
            power = number(node.right)
            return power is not None and abs(power) <= 10
        texts = any(
            isinstance(side, (*_DISPLAYS, ast.JoinedStr))
            or (isinstance(side, ast.Constant) and isinstance(side.value, (str, bytes)))
            for side in (node.left, node.right)
        )
        return type(node.op) in _BINARY and not (texts and isinstance(node.op, (ast.Mult, ast.Mod)))

    def _compare(self, node: ast.Compare) -> Any:
        operands = [node.left, *node.comparators]
        result: Any = True
        for left, op, right in zip(operands, node.ops, operands[1:], strict=False):
            if _dumped(left) == _dumped(right):
                holds: Any = type(op) in (ast.Eq, ast.LtE, ast.GtE, ast.Is)
            elif isinstance(right, _DISPLAYS) and _dumped(left) in map(_dumped, right.elts):
                holds = isinstance(op, ast.In) or bool(self._stand_in(ast.Compare(left, [op], [right])))
            elif any(isinstance(side, _DISPLAYS) and not _is_literal(side) for side in (left, right)) or (
                isinstance(op, (ast.In, ast.NotIn)) and not isinstance(right, _DISPLAYS)
            ):
                holds = bool(self._stand_in(ast.Compare(left, [op], [right])))
            else:
                holds = _each(_BINARY[type(op)], self.value(left), self.value(right))
            if len(node.ops) == 1:
                return holds
            result = result and _truth(holds)
        return result

    def _call(self, node: ast.Call) -> Any:
        name, compared = _called(node), _compared(node)
        if isinstance(node.func, ast.Lambda) and not (node.args or node.keywords):
            return self.value(node.func.body)
        if compared:
            same = ast.dump(compared[0]) == ast.dump(compared[1])
            return same or bool(self._stand_in(node))
        if name == "len" and node.args and isinstance(node.args[0], _DISPLAYS) and not node.keywords:
            return len(self.value(node.args[0]))
        inner, more = _reduced(node)
        if name in ("min", "max") and isinstance(node.func, ast.Name) and len(node.args) > 1:
            return _OF_MANY[name]([self.value(each) for each in node.args])
        if inner is None or not all(_is_literal(each) for each in more) or (name == "round" and more):
            return self._stand_in(node)
        of_many = name in _OF_MANY and not isinstance(inner, _DISPLAYS)
        before, self._many = self._many, of_many or self._many
        value = self.value(inner)
        self._many = before
        if name in _OF_MANY:
            return _OF_MANY[name](value if isinstance(value, (list, tuple)) else [value])
        return _each(_ONE[name], value)

    def _comprehension(self, node: ast.GeneratorExp | ast.ListComp, over: ast.comprehension) -> Any:
        if over.ifs or over.is_async or self._turn > _TURNS:
            return self._stand_in(node)
        items = self.value(over.iter) if isinstance(over.iter, _DISPLAYS) else [None] * self._random.randint(1, 3)
        names = [each.id for each in ast.walk(over.target) if isinstance(each, ast.Name)]
        before, many, made = dict(self._bound), self._many, []
        self._many = False
        for item in items:
            self._turn += 1
            self._bound |= {name: self._drawn() for name in names}
            if isinstance(over.iter, _DISPLAYS) and isinstance(over.target, ast.Name):
                self._bound[over.target.id] = item
            made.append(self.value(node.elt))
        self._bound, self._many = before, many
        return made

    def _stand_in(self, node: ast.expr) -> Any:
        turns = any(isinstance(each, ast.Name) and each.id in self._bound for each in ast.walk(node))
        key = f"{self._turn if turns else ''} {_dumped(node)}"
        if key not in self._known:
            drawn = [self._drawn() for _ in range(3)]
            if _called(node) in _COUNTS:
                counts = (isinstance(each, (int, float)) and math.isfinite(each) for each in drawn)
                drawn = [abs(int(each)) if is_number else 1 for each, is_number in zip(drawn, counts, strict=True)]
            self._known[key] = drawn
        return _Many(self._known[key]) if self._many else self._known[key][0]

    def _drawn(self) -> Any:
        if getattr(self, "_alike", None) is not None and self._random.random() < 0.8:
            return self._alike
        way = self._random.randrange(4)
        if way == 0:
            return self._random.randint(-3, 3)
        if way == 1:
            return self._random.gauss(0, 1) * 10.0 ** self._random.randint(-8, 6)
        return self._random.choice(self._pool)


def number(node: ast.expr) -> float | None:
    """The number that was written down: ``-3``, ``2**20``, ``torch.tensor(1.0)``, ``torch.ones(11)``."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, (int, float)) and not isinstance(node.value, bool) else None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        value = number(node.operand)
        return -value if value is not None and isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        left, right = number(node.left), number(node.right)
        if left is None or right is None or (isinstance(node.op, ast.Pow) and abs(right) > 100):
            return None
        try:
            return float(_BINARY[type(node.op)](left, right))
        except (ArithmeticError, TypeError):
            return None
    if isinstance(node, ast.Call):
        name = _called(node)
        if name in ("ones", "ones_like", "zeros", "zeros_like"):
            return float(name.startswith("ones"))
        if name in ("tensor", "float", "int") and len(node.args) == 1:
            endless = isinstance(node.args[0], ast.Constant) and node.args[0].value in ("inf", "-inf")
            return float(ast.literal_eval(node.args[0])) if endless else number(node.args[0])
    return None


def _called(node: ast.expr) -> str:
    """The name of what a call calls; "" if it is no call."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


def _given(node: ast.Call) -> list[ast.expr]:
    """Return the inputs of a call: the object of a method, unless that is a library, and the arguments."""
    owner = node.func.value if isinstance(node.func, ast.Attribute) else None
    is_library = isinstance(owner, ast.Name) and owner.id in _LIBRARIES
    return [*([owner] if owner is not None and not is_library else []), *node.args]


def _compared(node: ast.expr) -> Sequence[ast.expr]:
    """The two things that ``torch.equal(a, b)`` or ``a.equal(b)`` compares."""
    both = _given(node)[:2] if isinstance(node, ast.Call) and _called(node) in _SAME else []
    return both if len(both) == 2 and not any(isinstance(each, ast.Starred) for each in both) else ()


def _reduced(node: ast.expr) -> tuple[ast.expr | None, Sequence[ast.expr]]:
    """Return the argument from which a known function takes its result, and its other arguments."""
    if not isinstance(node, ast.Call) or _called(node) not in _ONE.keys() | _OF_MANY.keys():
        return None, ()
    named = [each.value for each in node.keywords if each.arg == "dim"]
    inputs = _given(node)
    if not inputs or isinstance(inputs[0], ast.Starred) or len(named) < len(node.keywords):
        return None, ()
    return inputs[0], [*inputs[1:], *named]


def _each(op: Callable[..., Any], *operands: Any) -> Any:
    """Apply an operator, number by number where one operand is many."""
    sizes = [len(each) for each in operands if isinstance(each, _Many)]
    if not sizes:
        return op(*operands)
    return _Many(map(op, *(each if isinstance(each, _Many) else [each] * sizes[0] for each in operands)))


@lru_cache(maxsize=4096)
def _dumped(node: ast.AST) -> str:
    """A node as a text, which tells it from others; each trial asks for the same ones."""
    return ast.dump(node)


def _asked(node: ast.expr) -> Iterator[ast.expr]:
    """The parts of a condition of which it is asked whether they are true."""
    yield node
    parts = [node.operand] if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not) else []
    parts = node.values if isinstance(node, ast.BoolOp) else parts
    parts = [node.test, node.body, node.orelse] if isinstance(node, ast.IfExp) else parts
    parts = node.args if isinstance(node, ast.Call) and _called(node) == "bool" else parts
    for each in parts:
        yield from _asked(each)


def _is_true(node: ast.expr) -> bool:
    """Tell whether an expression is always true, such as a function, a class, a text, or a list with members."""
    if isinstance(node, (ast.Lambda, ast.GeneratorExp)):
        return True
    if isinstance(node, ast.NamedExpr):
        return _is_true(node.value)
    if isinstance(node, ast.Attribute):
        return node.attr == "__class__"
    if isinstance(node, ast.BinOp):
        sides = ((node.left, node.right), (node.right, node.left)) if isinstance(node.op, ast.Mult) else ()
        return any(_is_true(one) and (number(other) or 0) >= 1 for one, other in sides)
    if isinstance(node, ast.Call):
        of_builtin = isinstance(node.func, ast.Name) and len(node.args) > 0
        is_copy = _called(node) in _COPIES and isinstance(node.args[:1] and node.args[0], _DISPLAYS)
        is_any = _called(node) == "isinstance" and ast.unparse(node.args[-1]) == "object"
        return of_builtin and (is_any or _called(node) in _ALWAYS or (is_copy and _is_true(node.args[0])))
    if isinstance(node, ast.Dict):
        return any(node.keys)  # a part that is taken from elsewhere has none
    members = node.values if isinstance(node, ast.JoinedStr) else getattr(node, "elts", [])
    return any(not isinstance(each, ast.Starred) for each in members)


def _truth(value: Any) -> bool:
    return bool(value[0] if isinstance(value, _Many) else value)


def _is_literal(node: ast.AST) -> bool:
    if isinstance(node, _DISPLAYS):
        return all(map(_is_literal, node.elts))
    return isinstance(node, ast.Constant) or (
        isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and number(node) is not None
    )


def _literal(node: ast.AST) -> Any:
    value = ast.literal_eval(node) if isinstance(node, ast.expr) else None
    return [*value] if isinstance(value, (tuple, set)) else value
