"""Formulas with one mistake in them: a check is worth what it catches of these.

A mutant that survives shows a weakness of `where`: two symbols bound to one value, or a bias of zeros.
"""

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from .agreement import check, holds_in
from .arrays import array, is_rounded, shape
from .finding import Formula
from .grammar import parse
from .sameness import redrawn, say_the_same
from .scope import Scope
from .tree import FormulaError, Node, Parsed, Place

_PAIRS = [(r"\sum", r"\prod"), (r"\max", r"\min"), (r"\sin", r"\cos"), (r"\le", r"\ge"), (r"\leq", r"\geq")]
_PAIRS += [("<", ">"), (r"\lt", r"\gt")]
_OPPOSITES = dict(_PAIRS) | {other: one for one, other in _PAIRS}
_CHANGED: dict[str, tuple[str, ...]] = {"<": (r"\le", ">"), "≤": ("<", r"\ge"), ">": (r"\ge", "<"), "≥": (">", r"\le")}
_CHANGED |= {"≠": ("=",), "=": (r"\ne",)}
_Edit = tuple[int, int, str, str]  # where in the LaTeX, what shall stand there, and what that changes


@dataclass(frozen=True)
class Mutant:
    """A formula with one mistake.

    Attributes:
        latex: The mistaken formula.
        what: What was changed.
        edit: Where in the formula's LaTeX, and what stands there now.
    """

    latex: str
    what: str
    edit: tuple[int, int, str] = field(default=(0, 0, ""), compare=False, repr=False)


def mutants(formula: Formula, namespace: Mapping[str, object]) -> Iterator[Mutant]:
    """Yield the formula with one sign, transposition, index, root, symbol, factor, limit, number or operator changed.

    Raises:
        FormulaError: If the formula cannot be read.
    """
    scope = Scope(formula.where or "", namespace)
    seen = {_squeezed(formula.latex)}
    parsed = parse(formula.latex, scope)
    for start, end, text, change in _edits(_Source(formula.latex, parsed, scope)):
        latex = formula.latex[:start] + text + formula.latex[end:]
        if _squeezed(latex) not in seen and not _explains_by_itself(latex, parsed, scope):
            seen.add(_squeezed(latex))
            yield Mutant(latex, change, (start, end, text))


def survivors(formula: Formula, namespace: Mapping[str, object]) -> list[Mutant]:
    """Return the mutants that the formula's check takes for true though they say something else.

    A mutant says the same if its sides equal the formula's also where every symbol has another random value,
    independent of the others.
    """
    if formula.where is None:
        return []
    scope = Scope(formula.where, namespace)
    fresh = redrawn(scope)
    passing = [mutant for mutant in mutants(formula, namespace) if holds_in(mutant.latex, scope)]
    return [mutant for mutant in passing if not say_the_same(formula.latex, mutant.latex, fresh)]


def complaints(formula: Formula, namespace: Mapping[str, object]) -> list[str]:
    """Say what is wrong with a formula that holds: which mutants survive, with the remedy.

    Mutants that one binding tells apart are told of once.
    """
    messages, alive = list[str](), survivors(formula, namespace)
    while alive:
        mutant, *others = alive
        where, remedy = _remedy(formula, mutant, namespace)
        scope = Scope(where, namespace)
        alive = [other for other in others if where == formula.where or holds_in(other.latex, scope)]
        more = len(others) - len(alive)
        start, end, text = mutant.edit
        was, now = formula.latex[start:end].strip(), text.strip()
        change = f"`{now}` for `{was}`" if was and now else f"without `{was}`" if was else f"with `{now}`"
        alike = f", nor from {more} more wrong version{'s' * (more > 1)}" * bool(more)
        told = f"`{formula.latex}` from `{mutant.latex}` ({mutant.what}: {change}){alike}"
        messages.append(f"the values in its `where` cannot tell {told}; {remedy}")
    return messages


def _remedy(formula: Formula, mutant: Mutant, namespace: Mapping[str, object]) -> tuple[str, str]:
    """The `where` that tells a mutant apart, the first that is found, and what to write."""
    assert formula.where is not None
    for where, binding in _bound_otherwise(formula, namespace):
        holds = not check(replace(formula, where=where), namespace)
        if holds and not holds_in(mutant.latex, Scope(where, namespace)):
            return where, f"write {binding} there"
    remedy = "bind its symbols to other values there, or, if the other version is true as well, let a claim say which"
    return formula.where, f"{remedy} of the two is meant, and waive the formula, `<!-- unchecked: reason -->`"


def _bound_otherwise(formula: Formula, namespace: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Each `where` that binds one more symbol at random, and what it then says of it.

    A symbol that calls what the page defines stays, as that is what the formula is held against.
    """
    assert formula.where is not None
    scope = Scope(formula.where, namespace)
    body = [ast.unparse(node) for node in ast.parse(re.sub(r";\s*", "; ", formula.where)).body]
    names = [(0, name) for name in sorted(parse(formula.latex, scope).names - scope.where.keys())]
    for place, statement in enumerate(ast.parse("\n".join(body)).body, 1):
        names += [
            (place, node.id) for node in ast.walk(statement) if isinstance(node, ast.Name) and node.id in scope.where
        ]
    for place, name in dict.fromkeys(names):
        for bound in () if name in scope.computed else _others(scope.value(name), scope):
            bound = f"{name} = {bound}"
            yield "; ".join([*body[:place], bound, *body[place:]]), f"`{bound}`"


def _others(value: Any, scope: Scope) -> Iterator[str]:
    """Yield other values to which a symbol could be bound."""
    value = array(value)
    if is_rounded(value) and shape(value):
        axes = {size: name for name, size in reversed(scope.where.items()) if type(size) is int}
        yield f'random("{" ".join(str(axes.get(size, size)) for size in shape(value))}")'
    elif isinstance(value, float) or is_rounded(value):
        yield 'random("")'
    elif type(value) is int:
        yield from (str(value + 1), str(value + 2))


def _squeezed(latex: str) -> str:
    return "".join(latex.split())


def _explains_by_itself(latex: str, formula: Parsed, scope: Scope) -> bool:
    """Tell whether a mutant explains a symbol by that symbol, as no author would: ``m = max(m, s)``."""
    try:
        statements = parse(latex, scope).statements
    except FormulaError:
        return False
    changed = zip(statements, formula.statements, strict=False)
    return any(_circular(statement) and not _circular(was) for statement, was in changed)


def _circular(statement: Node) -> bool:
    left, *others = statement.kids
    return left.kind in ("name", "index") and any(node == left for side in others for node in side.walk())


@dataclass(frozen=True)
class _Source:
    """A formula as it is written, and the scope of its names."""

    latex: str
    parsed: Parsed
    scope: Scope

    def text(self, node: Node) -> str:
        """Return how a node is written."""
        return self.latex[slice(*node.span)]

    def operand(self, node: Node) -> str:
        """Return how a node is written where it stands beside others."""
        bare = node.kind in ("name", "number", "index", "call", "sqrt") or self.text(node)[:1] in "({"
        return self.text(node) if bare else f"({self.text(node)})"

    def is_index(self, node: Node) -> bool:
        """Tell whether a node is the name of an index."""
        return node.kind == "name" and node.value in self.parsed.indices

    def swapped(self, nodes: Iterable[Node], change: str) -> Iterator[_Edit]:
        """Swap each two neighbors."""
        for one, other in pairwise(nodes):
            between = self.latex[one.span[1] : other.span[0]] or " "
            yield one.span[0], other.span[1], self.text(other) + between + self.text(one), f"{change} swapped"


def _edits(source: _Source) -> Iterator[_Edit]:
    """Yield edits of a formula's LaTeX."""
    for node in source.parsed.walk():
        if node.kind == "condition":
            for mark, relation in zip(node.marks, node.value.split(), strict=True):
                yield from ((*mark, instead + " ", "condition changed") for instead in _CHANGED.get(relation, ()))
    for statement in source.parsed.statements:
        relations = set(statement.value.split())
        if relations <= {"=", "≈"}:
            for node in statement.walk():
                yield from _EDITS.get(node.kind, _no_edits)(source, node)
            continue
        # What weakens an inequality is true as well: only its direction can be told.
        for start, end in statement.marks:
            if opposite := _OPPOSITES.get(source.latex[start:end]):
                yield start, end, opposite + " ", "relation turned round"


def _no_edits(source: _Source, node: Node) -> Iterator[_Edit]:
    return iter(())


def _opposite(source: _Source, mark: Place, change: str) -> Iterator[_Edit]:
    if opposite := _OPPOSITES.get(source.latex[slice(*mark)]):
        yield *mark, opposite, change


def _of_sum(source: _Source, node: Node) -> Iterator[_Edit]:
    for sign, (start, end) in zip(node.value, node.marks, strict=True):
        if sign == "+" or start != end:
            yield start, end, "-" if sign == "+" else "+", "sign flipped"
    for term, (start, _) in zip(node.kids[1:], node.marks[1:], strict=True):
        yield start, term.span[1], "", "term dropped"


def _of_transpose(source: _Source, node: Node) -> Iterator[_Edit]:
    yield *node.marks[0], "", "transposition dropped"


def _of_power(source: _Source, node: Node) -> Iterator[_Edit]:
    yield *node.marks[0], "", "power dropped"


def _of_sqrt(source: _Source, node: Node) -> Iterator[_Edit]:
    yield *node.span, source.operand(node.kids[0]), "root dropped"


def _of_fraction(source: _Source, node: Node) -> Iterator[_Edit]:
    one, other = node.kids
    yield *node.span, source.operand(one), "divisor dropped"
    turned = rf"\frac{{{source.text(other)}}}{{{source.text(one)}}}"
    yield *node.span, turned, "numerator and denominator swapped"


def _of_product(source: _Source, node: Node) -> Iterator[_Edit]:
    for kept in reversed(node.kids):
        yield *node.span, source.operand(kept), "factor dropped"
    yield from source.swapped(node.kids, "factors")


def _of_index(source: _Source, node: Node) -> Iterator[_Edit]:
    if not all(kid.span[1] for kid in node.kids):
        return
    yield from source.swapped(node.kids[1:], "indices")
    indices = {source.text(each) for each in source.parsed.walk() if source.is_index(each)}
    for kid in filter(source.is_index, node.kids[1:]):
        for index in sorted(indices - {source.text(kid)}):
            yield *kid.span, f" {index}", "index replaced"


def _of_big(source: _Source, node: Node) -> Iterator[_Edit]:
    yield from _opposite(source, node.marks[0], "operation replaced")
    limits = [part.kids for kid in node.kids[1:] for part in kid.walk() if part.kind == "limits"]
    for limit, shift in zip(limits[0] if limits else (), ("+1", "-1"), strict=False):
        yield limit.span[1], limit.span[1], shift, "limit off by one"


def _of_arguments(source: _Source, node: Node) -> Iterator[_Edit]:
    yield from source.swapped(node.kids, "arguments")
    if node.kind == "apply" and len(node.kids) == 1:
        yield *node.span, source.operand(node.kids[0]), "function dropped"
    start, word = node.span[0], "\\" + node.value
    if source.latex.startswith(word, start):
        yield from _opposite(source, (start, start + len(word)), "function replaced")


def _of_number(source: _Source, node: Node) -> Iterator[_Edit]:
    if "." not in node.value:
        yield *node.span, str(int(node.value) + 1), "number changed"


def _of_name(source: _Source, node: Node) -> Iterator[_Edit]:
    if source.is_index(node) or node.value.startswith("#"):
        return
    value, nodes = array(source.scope.value(node.value)), [*source.parsed.walk()]
    # An entry of a transposed tensor is what swapped indices give.
    is_entry = any(each.kind == "index" and len(each.kids) > 2 and each.kids[0] is node for each in nodes)
    if len(shape(value)) >= 2 and not is_entry:
        yield *node.span, rf"{{{source.text(node)}^\top}}", "transposition added"
    names = {source.text(each): each.value for each in nodes if each.kind == "name" and not source.is_index(each)}
    for written, name in names.items():
        if name != node.value and _alike(value, array(source.scope.value(name))):
            yield *node.span, f"{{{written}}}", "symbol replaced"


_EDITS: dict[str, Callable[[_Source, Node], Iterator[_Edit]]] = {
    "sum": _of_sum,
    "transpose": _of_transpose,
    "sqrt": _of_sqrt,
    "power": _of_power,
    "fraction": _of_fraction,
    **dict.fromkeys(("juxtaposed", "dot", "times", "odot"), _of_product),
    "index": _of_index,
    "big": _of_big,
    **dict.fromkeys(("call", "apply"), _of_arguments),
    "number": _of_number,
    "name": _of_name,
}


def _alike(one: Any, other: Any) -> bool:
    plain = isinstance(one, int | float) and isinstance(other, int | float)
    return plain or (isinstance(one, np.ndarray) and isinstance(other, np.ndarray) and shape(one) == shape(other))
