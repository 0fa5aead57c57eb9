"""Mutants that a formula's check does not notice, each with what to write: to tell it apart, or to accept it.

A mutant that survives shows a weakness of `where` (two symbols bound to one value, a bias of zeros), or it is as true
as the formula. ``<!-- equivalent: ... -->`` says why it is: an identity that holds of the symbols, such as
``C_{ij} = C_{ji}``, accepts all mutants that say the same as the formula wherever it holds; and a mutant's own LaTeX
accepts that one.
"""

import ast
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .agreement import check, holds_in
from .arrays import is_array, is_rounded, shape
from .finding import Formula
from .grammar import parse
from .mutation import Mutant, mutants
from .sameness import Fresh, redrawn, say_the_same
from .scope import Scope
from .tree import FormulaError, Node

_APART = "bind its symbols to values that tell them apart"


_Settles = Callable[[Mutant], bool]  # whether what is written does away with a mutant, too


def survivors(formula: Formula, namespace: Mapping[str, object]) -> list[Mutant]:
    """Return the mutants that the formula's check takes for true though they say something else.

    A mutant says the same if its sides equal the formula's also where every symbol has another random value,
    independent of the others but for the identities that the author declares.
    """
    return _alive(formula, namespace)[0]


def complaints(formula: Formula, namespace: Mapping[str, object]) -> list[str]:
    """Say what is wrong with a formula that holds: which mutants survive, with the remedy, and what accepts none.

    Mutants that one remedy settles are told of once.
    """
    alive, told = _alive(formula, namespace)
    while alive:
        mutant, *others = alive
        remedy, settles = _remedy(formula, mutant, namespace)
        alive = [other for other in others if not settles(other)]
        more = len(others) - len(alive)
        start, end, text = mutant.edit
        was, now = formula.latex[start:end].strip(), text.strip()
        change = f"`{now}` for `{was}`" if was and now else f"without `{was}`" if was else f"with `{now}`"
        alike = f", and {more} more mutant{'s' * (more > 1)} like it" * bool(more)
        told.append(f"`{formula.latex}` would pass as `{mutant.latex}` too ({mutant.what}: {change}){alike}: {remedy}")
    return told


def _alive(formula: Formula, namespace: Mapping[str, object]) -> tuple[list[Mutant], list[str]]:
    """The mutants that survive, and what is wrong with what the author declares equivalent."""
    if formula.where is None:
        return [], []
    scope = Scope(formula.where, namespace)
    fresh = redrawn(scope)
    found = [mutant for mutant in mutants(formula, namespace) if holds_in(mutant.latex, scope)]
    alive = [mutant for mutant in found if not say_the_same(formula.latex, mutant.latex, fresh)]
    if not formula.equivalent:
        return alive, []
    read, told, identities = {mutant.latex: _tree(mutant.latex, scope) for mutant in alive}, [], []
    for latex in formula.equivalent:
        tree = _tree(latex, scope)
        accepted = {mutant for mutant in alive if tree is not None and read[mutant.latex] == tree}
        alive = [mutant for mutant in alive if mutant not in accepted]
        if accepted:
            continue
        if wrong := _unfit(latex, scope):
            told.append(f"`equivalent: {latex}` is no mutant that survives, and as an identity it {wrong}")
        else:
            identities.append(latex)

    def left(declared: Sequence[str]) -> list[Mutant]:
        scopes = redrawn(scope, declared)
        return [mutant for mutant in alive if not say_the_same(formula.latex, mutant.latex, scopes)]

    try:
        remain = left(identities)
        for latex in [*identities]:
            others = [other for other in identities if other != latex]
            if left(others) == remain:  # each must accept what the others do not
                identities = others
                told.append(f"`equivalent: {latex}` accepts no mutant that survives; remove it")
        return remain, told
    except FormulaError as error:
        return alive, [*told, str(error)]


def _tree(latex: str, scope: Scope) -> tuple[Node, ...] | None:
    """What LaTeX says, however it is spaced and braced; None if it cannot be read."""
    try:
        return parse(latex, scope).statements
    except FormulaError:
        return None


def _unfit(latex: str, scope: Scope) -> str:
    """Why an identity cannot be declared; "" if it can."""
    try:
        parse(latex, scope)
    except FormulaError as error:
        return f"cannot be read: {error}"
    return "" if holds_in(latex, scope) else "does not hold for what `where` binds; remove it"


def _remedy(formula: Formula, mutant: Mutant, namespace: Mapping[str, object]) -> tuple[str, _Settles]:
    """What to write about a mutant that survives: the first of these that is found to do."""
    assert formula.where is not None
    for where, said in _bound_otherwise(formula, namespace):
        if not check(replace(formula, where=where), namespace):
            apart = functools.partial(_fails_in, scope=Scope(where, namespace))
            if apart(mutant):
                return f"tell them apart in its `where`, by {said}", apart
    scope = Scope(formula.where, namespace)

    def tried(identities: Sequence[str]) -> list[Fresh]:
        """Where the mutant says the same if these hold; nothing if there is no such place."""
        try:
            scopes = redrawn(scope, [*formula.equivalent, *identities])
        except FormulaError:
            return []
        return scopes if _same_in(mutant, formula, scopes) else []

    for identities in (_symmetries(formula, scope), *([each] for each in _parts_alike(formula.latex, mutant, scope))):
        if scopes := tried(identities):
            for identity in [*identities]:
                fewer = [each for each in identities if each != identity]
                if found := tried(fewer):
                    identities, scopes = fewer, found
            said = r", \quad ".join(identities)
            same = functools.partial(_same_in, formula=formula, scopes=scopes)
            return f"{_APART}, or if it is meant, say `<!-- equivalent: {said} -->`", same
    return f"{_APART}, or if it is as true, say `<!-- equivalent: {mutant.latex} -->`", lambda _: False


def _fails_in(mutant: Mutant, scope: Scope) -> bool:
    return not holds_in(mutant.latex, scope)


def _same_in(mutant: Mutant, formula: Formula, scopes: Sequence[Fresh]) -> bool:
    return say_the_same(formula.latex, mutant.latex, scopes)


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
        for said in () if name in scope.computed else _others(scope.value(name), scope):
            said = f"{name} = {said}"
            yield "; ".join([*body[:place], said, *body[place:]]), f"`{said}`"


def _others(value: Any, scope: Scope) -> Iterator[str]:
    """What a symbol could be bound to instead."""
    if is_array(value) and is_rounded(value):
        axes = {size: name for name, size in reversed(scope.where.items()) if type(size) is int}
        yield f'random("{" ".join(str(axes.get(size, size)) for size in shape(value))}")'
    elif isinstance(value, float | np.floating):
        yield 'random("")'
    elif type(value) is int:
        yield from (str(value + 1), str(value + 2))


def _symmetries(formula: Formula, scope: Scope) -> list[str]:
    """The symmetries that hold of the formula's arrays."""
    found = []
    for node in {node.value: node for node in parse(formula.latex, scope).walk() if node.kind == "name"}.values():
        sizes, name = shape(scope.value(node.value)), formula.latex[slice(*node.span)]
        i, j = [letter for letter in "ijklpq" if not scope.bound(letter)][:2]
        last = next((axis for axis, size in scope.where.items() if type(size) is int and sizes == (size,)), "")
        turned = f"{name}_{{{last or sum(sizes)} + 1 - {i}}}"
        said = [f"{name}_{i} = {turned}", f"{name}_{i} = -{turned}"] if len(sizes) == 1 else []
        said += [f"{name}_{{{i}{j}}} = {name}_{{{j}{i}}}"] if len(sizes) == 2 and sizes[0] == sizes[1] else []
        found += [identity for identity in said if holds_in(identity, scope)]
    return found


def _parts_alike(latex: str, mutant: Mutant, scope: Scope) -> Iterator[str]:
    """What makes a mutant say the same: that the part which was changed equals what it was, the smallest part first."""
    start, end, text = mutant.edit
    parts = {node.span for node in parse(latex, scope).walk() if node.kind not in ("relation", "condition")}
    for first, last in sorted(parts, key=lambda span: span[1] - span[0]):
        if first <= start and end <= last and first < last:
            was, now = latex[first:last], latex[first:start] + text + latex[end:last]
            now = now[1:-1] if (start, end) == (first, last) and re.fullmatch(r"\{.*\}", now) else now
            identity = " ".join(f"{was} = {now}".split())
            if holds_in(identity, scope):
                yield identity
