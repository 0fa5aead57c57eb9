"""Whether a formula holds, and whether its check proves anything."""

import math
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from .arrays import array, describe, is_real, numbers, shape
from .evaluate import Evaluator
from .finding import Formula
from .grammar import parse
from .ranges import Assignment, holds
from .scope import Scope
from .tokens import ACCENTS, FUNCTIONS, RELATIONS, tokenize
from .tree import FormulaError, Node, Parsed

_OVER = re.compile(rf"\\({'|'.join(sorted(ACCENTS))})\s*\{{?\s*\Z")
_PRIMES = re.compile(r"\s*\}?('*)")


@np.errstate(all="ignore")  # a formula may say what is infinite
def check(formula: Formula, namespace: Mapping[str, object]) -> list[str]:
    """Check a formula in its page's namespace.

    Returns:
        What is wrong with it, each with its place, the values and the remedy; nothing if it holds.
    """
    if formula.unchecked is not None:
        if formula.where is not None:
            return [f"`{formula.latex}` has both `where` and `unchecked`: keep one"]
        return [] if formula.unchecked else [f"`{formula.latex}` is unchecked: say why, `<!-- unchecked: reason -->`"]
    if formula.where is None:
        where = f"<!-- where: {_suggested(formula.latex, namespace)}-->"
        return [f"`{formula.latex}` is not checked: add `{where}`, or `<!-- unchecked: reason -->`"]
    try:
        scope = Scope(formula.where, namespace)
        parsed = parse(formula.latex, scope)
        return [
            *_hides(formula, parsed, scope),
            *_proves_nothing(formula, parsed, scope),
            *_fails(formula.latex, parsed, scope),
        ]
    except FormulaError as error:
        return [str(error)]
    except RecursionError:
        return [f"`{formula.latex[:40]}...` is nested too deeply to be read"]


def _suggested(latex: str, page: Mapping[str, object]) -> str:
    """Suggest the text after `where:` of a formula, by its symbols that the page does not bind."""
    computed, drawn = list[str](), list[str]()
    tokens, within = tokenize(latex), 0
    for place, token in enumerate(tokens[:-1]):
        in_script = within or (place and tokens[place - 1].text in ("_", "^"))
        within += (token.text == "{" and bool(in_script)) - (token.text == "}" and within > 0)
        over, primes = _OVER.search(latex[: token.start]), _PRIMES.findall(latex, token.end)[0]
        name = token.text + (f"_{over[1]}" if over else "") + "_prime" * len(primes)
        if in_script or not token.is_name or name in {*page, *FUNCTIONS, "e"}:
            continue
        after = next(each for each in tokens[place + 1 :] if each.text not in ("'", "}"))
        stands_alone = after.text in RELATIONS and not latex[: over.start() if over else token.start].strip()
        (computed if stands_alone or after.text == "(" else drawn).append(name)
    drawn = [name for name in dict.fromkeys(drawn) if name not in computed][:3]
    parts = [f"{', '.join(drawn)} = random(...)"] * bool(drawn)
    parts += [f"{name} = ..." for name in dict.fromkeys(computed)]
    return "; ".join(parts) + " " * bool(parts)


@np.errstate(all="ignore")
def holds_in(latex: str, scope: Scope) -> bool:
    """Tell whether LaTeX can be read and holds in a scope."""
    try:
        parsed = parse(latex, scope)
        if any(left == right for statement in parsed.statements for left, right in pairwise(statement.kids)):
            return False  # a check refuses what says nothing
        return next(_fails(latex, parsed, scope), None) is None
    except FormulaError:
        return False


def sides(latex: str, parsed: Parsed, scope: Scope) -> Iterator[tuple[Node, Assignment, list[Any], Evaluator]]:
    """Yield each statement for each value of its free indices, with the values of its sides."""
    evaluator = Evaluator(latex, parsed, scope)
    for statement in parsed.statements:
        at = None
        for at in evaluator.assignments(statement):
            yield statement, at, [evaluator(kid, at) for kid in statement.kids], evaluator
        if at is None:
            raise FormulaError(f"`{evaluator.text(statement)}` says nothing: no value of its indices is within range")


def _fails(latex: str, parsed: Parsed, scope: Scope) -> Iterator[str]:
    """Yield for each relation that does not hold what its sides are, at the first values where they differ."""
    failed: set[tuple[int, int]] = set()
    for statement, at, values, evaluator in sides(latex, parsed, scope):
        for i, relation in enumerate(statement.value.split()):
            left, right = statement.kids[i : i + 2]
            if (id(statement), i) in failed:
                continue
            if fault := _differs(relation, left, right, values[i], values[i + 1], evaluator):
                failed.add((id(statement), i))
                where = ", ".join(f"{name} = {value}" for name, value in at.items())
                text = latex[left.span[0] : right.span[1]]
                yield f"`{text}` does not hold{' for ' if where else ''}{where}: {fault}"


def _differs(relation: str, left: Node, right: Node, one: Any, other: Any, evaluator: Evaluator) -> str:
    zero = Node("number", value="0")
    if left == zero and shape(other):
        one = np.zeros(shape(other))
    if right == zero and shape(one):
        other = np.zeros(shape(one))
    tolerance = math.sqrt(evaluator.precision)
    if relation == "≈":
        number = next((node for node in (right, left) if node.kind == "number"), None)
        tolerance = 0.05
        if number is not None and not shape(one) and not shape(other):
            digits = len(number.value.partition(".")[2])
            size = max(abs(one), abs(other))
            tolerance = 0.5 * 10.0**-digits * (1 + 1e-9) / size if size else 0.0
    if holds(relation, one, other, tolerance):
        return ""
    shown = next(
        pair
        for digits in (4, 8, 17)
        if len(set(pair := (_show(one, digits), _show(other, digits)))) > 1 or digits == 17
    )
    return f"{evaluator.text(left)} is {shown[0]}, {evaluator.text(right)} is {shown[1]}"


def _show(value: Any, digits: int = 4) -> str:
    if not shape(value):
        return f"{float(value):.{digits}g}"
    values = numbers(value).ravel()
    first = ", ".join(f"{entry:.{digits}g}" for entry in values[:3].tolist())
    return f"{describe(value)} ({first}{', ...' if values.size > 3 else ''})"


def _hides(formula: Formula, parsed: Parsed, scope: Scope) -> Iterator[str]:
    """Yield the values that `where` binds and that hide mistakes."""
    remedy = "bind it to what tells mistakes apart, such as random(...)"
    for name in sorted(name for name in parsed.names & scope.where.keys() if not name.startswith(("one", "zero"))):
        value = array(scope.where[name])
        if isinstance(value, int | float) and value in (0, 1):
            yield f"`{formula.latex}`: {name} = {value:g} hides factors and powers: {remedy}"
        if 0 in shape(value):
            yield f"`{formula.latex}`: {name} of shape {shape(value)} has no entries: {remedy}"
        elif shape(value) and is_real(value):
            values = numbers(value).ravel()
            if any(size < 2 for size in shape(value)) and len(shape(value)) < 3:
                yield f"`{formula.latex}`: {name} of shape {shape(value)} hides what its sizes do: {remedy}"
            elif bool((values == values[0]).all()):
                yield f"`{formula.latex}`: {name} with all entries {values[0]:g} hides mistakes: {remedy}"


def _proves_nothing(formula: Formula, parsed: Parsed, scope: Scope) -> Iterator[str]:
    """Yield why a check would prove nothing."""
    called = {node.value for node in parsed.walk() if node.kind == "call"}
    names = parsed.names | called
    alone = set()
    for statement in parsed.statements:
        for left, right in pairwise(statement.kids):
            same = left.kind == right.kind == "name" and scope.value(left.value) is scope.value(right.value)
            if left == right or (same and left.value in scope.where):
                yield f"`{formula.latex}` has the same on both sides: it proves nothing"
            typed = left.names | right.names
            calls = {node.value for side in (left, right) for node in side.walk() if node.kind == "call"}
            # What stands in a chain says more than that a name is what `where` types.
            restates = all(side.kind == "name" or not side.names for side in (left, right))
            restates |= len(statement.kids) == 2 and "name" in (left.kind, right.kind)
            if typed and typed <= scope.typed and restates and not any(map(scope.proves, calls)):
                yield (
                    f"`{formula.latex}` proves nothing: its `where` types {', '.join(sorted(typed))} itself: bind "
                    "it to what the page computes"
                )
        alone |= {_head(side).value for side in statement.kids if _head(side).kind == "name"}
    made = sorted(names & scope.self_made.keys())
    # What the page computed stands alone on a side, unless `where` made the other side from it.
    alone -= scope.where.keys() | {name for made_name in made for name in scope.self_made[made_name]}
    if made and not any(map(scope.proves, called)) and not names & scope.computed and not alone & scope.page.keys():
        yield (
            f"`{formula.latex}` proves nothing: its `where` computes {', '.join(made)} itself, and nothing calls what "
            f"the page or its packages define: bind {', '.join(made)} to what they compute"
        )


def _head(node: Node) -> Node:
    return _head(node.kids[0]) if node.kind in ("index", "transpose") else node
