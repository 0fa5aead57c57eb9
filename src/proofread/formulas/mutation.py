"""Formulas with one mistake in them: a check is worth what it catches of these."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from .arrays import is_array, shape
from .finding import Formula
from .grammar import parse
from .scope import Scope
from .tree import Node, Parsed

_PAIRS = [(r"\sum", r"\prod"), (r"\max", r"\min"), (r"\sin", r"\cos"), (r"\le", r"\ge"), (r"\leq", r"\geq")]
_PAIRS += [("<", ">"), (r"\lt", r"\gt")]
_OPPOSITES = dict(_PAIRS) | {other: one for one, other in _PAIRS}
_WIDENED = {"<": (r"\le", ">"), "≤": (r"\ge",), ">": (r"\ge", "<"), "≥": (r"\le",)}
_CHANGED = _WIDENED | {"≤": ("<", r"\ge"), "≥": (">", r"\le"), "≠": ("=",), "=": (r"\ne",)}
_CHANGED |= {"∈": (r"\notin",), "∉": (r"\in",)}


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
    for start, end, text, what in _edits(formula.latex, parsed, scope):
        latex = formula.latex[:start] + text + formula.latex[end:]
        if _squeezed(latex) not in seen:
            seen.add(_squeezed(latex))
            yield Mutant(latex, what, (start, end, text))


def _squeezed(latex: str) -> str:
    return "".join(latex.split())


def _edits(latex: str, parsed: Parsed, scope: Scope) -> Iterator[tuple[int, int, str, str]]:
    """Yield edits of the LaTeX: what to replace, by what, and what that changes."""
    nodes = list(parsed.walk())
    names = {latex[slice(*n.span)]: n.value for n in nodes if n.kind == "name" and n.value not in parsed.indices}
    indices = {latex[slice(*n.span)] for n in nodes if n.kind == "name" and n.value in parsed.indices}

    def text(node: Node) -> str:
        return latex[slice(*node.span)]

    def operand(node: Node) -> str:
        bare = node.kind in ("name", "number", "index", "call", "sqrt") or text(node)[:1] in "({"
        return text(node) if bare else f"({text(node)})"

    def swap(one: Node, other: Node, what: str) -> tuple[int, int, str, str]:
        between = latex[one.span[1] : other.span[0]] or " "
        return one.span[0], other.span[1], text(other) + between + text(one), f"{what} swapped"

    # An entry of a transposed tensor is what swapped indices give.
    entries = {id(node.kids[0]) for node in nodes if node.kind == "index" and len(node.kids) > 2}

    # What holds under a condition holds under a narrower one.
    given = [(node, _WIDENED) for tree in parsed.given if tree for node in tree.walk()]
    for node, changes in [*((node, _CHANGED) for node in nodes), *given]:
        if node.kind == "condition":
            for mark, relation in zip(node.marks, node.value.split(), strict=True):
                yield from ((*mark, instead + " ", "condition changed") for instead in changes.get(relation, ()))
    for statement in parsed.statements:
        relations = set(statement.value.split())
        if relations == {"∈"}:
            continue
        if not relations <= {"=", "≈", "∈"}:
            # What weakens an inequality is true as well: only its direction can be told.
            for start, end in statement.marks:
                if opposite := _OPPOSITES.get(latex[start:end]):
                    yield start, end, opposite + " ", "relation turned round"
            continue
        for node in statement.walk():
            start, end = node.span
            kids = node.kids
            if node.kind == "sum":
                for sign, (a, b) in zip(node.value, node.marks, strict=True):
                    if a != b:
                        yield a, b, "-" if sign == "+" else "+", "sign flipped"
                    elif sign == "+":
                        yield a, a, "-", "sign flipped"
                for term, (a, _) in zip(kids[1:], node.marks[1:], strict=True):
                    yield a, term.span[1], "", "term dropped"
            elif node.kind == "transpose":
                yield *node.marks[0], "", "transposition dropped"
            elif node.kind == "factorial":
                yield *node.marks[0], "", "factorial dropped"
            elif node.kind == "binomial":
                yield start, end, rf"\binom{{{text(kids[1])}}}{{{text(kids[0])}}}", "arguments swapped"
            elif node.kind == "prime":
                yield start, end, rf"{text(node).replace(chr(39), '')}", "derivative dropped"
            elif node.kind == "sqrt":
                yield start, end, operand(kids[0]), "root dropped"
            elif node.kind == "power":
                yield *node.marks[0], "", "power dropped"
            elif node.kind == "fraction":
                one, other = kids
                yield start, end, operand(one), "divisor dropped"
                yield start, end, rf"\frac{{{text(other)}}}{{{text(one)}}}", "numerator and denominator swapped"
            elif node.kind in ("juxtaposed", "dot", "times", "odot"):
                one, other = kids
                yield start, end, operand(other), "factor dropped"
                yield start, end, operand(one), "factor dropped"
                yield swap(one, other, "factors")
            elif node.kind == "index" and all(kid.span[1] for kid in kids):
                for one, other in pairwise(kids[1:]):
                    yield swap(one, other, "indices")
                for kid in kids[1:]:
                    for index in sorted(indices - {text(kid)}) if kid.kind == "name" and text(kid) in indices else ():
                        yield *kid.span, f" {index}", "index replaced"
            elif node.kind == "big":
                a, b = node.marks[0]
                if opposite := _OPPOSITES.get(latex[a:b]):
                    yield a, b, opposite, "operation replaced"
                limits = [part.kids for kid in kids[1:] for part in kid.walk() if part.kind == "limits"]
                for limit, shift in zip(limits[0] if limits else (), ("+1", "-1"), strict=False):
                    if limit.value == "inf":
                        continue
                    yield limit.span[1], limit.span[1], shift, "limit off by one"
            elif node.kind in ("call", "apply", "inner", "concat"):
                for one, other in pairwise(kids):
                    yield swap(one, other, "arguments")
                if node.kind == "apply" and len(kids) == 1:
                    yield start, end, operand(kids[0]), "function dropped"
                if (word := "\\" + node.value) in _OPPOSITES and latex.startswith(word, start):
                    yield start, start + len(word), _OPPOSITES[word], "function replaced"
            elif node.kind == "number" and "." not in node.value:
                yield start, end, str(int(node.value) + 1), "number changed"
            elif node.kind == "name" and node.value not in parsed.indices and not node.value.startswith("#"):
                value = scope.value(node.value)
                if len(shape(value)) >= 2 and id(node) not in entries:
                    yield start, end, rf"{{{text(node)}^\top}}", "transposition added"
                for written, name in names.items():
                    if name != node.value and _alike(value, scope.value(name)):
                        yield start, end, f"{{{written}}}", "symbol replaced"


def _alike(one: Any, other: Any) -> bool:
    plain = isinstance(one, int | float | np.number) and isinstance(other, int | float | np.number)
    return plain or (is_array(one) and is_array(other) and shape(one) == shape(other))
