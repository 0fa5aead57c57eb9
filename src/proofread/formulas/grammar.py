"""LaTeX to a tree: a recursive-descent parser that refuses what could be read in two ways."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .expressions import Expressions
from .tokens import DOTS, RELATIONS, Token
from .tree import Node, Parsed

if TYPE_CHECKING:
    from .scope import Scope  # without torch


def parse(latex: str, names: Scope) -> Parsed:
    """Parse a formula, given the names that are bound.

    Raises:
        FormulaError: At the first character that is not understood.
    """
    return _Parser(latex, names).formula()


class _Parser(Expressions):
    """Reads statements, and the ranges of their indices."""

    def formula(self) -> Parsed:
        statements: list[Node] = []
        depth = 0
        while self.next.kind != "end":
            token = self.next
            if token.kind == "environment" and re.search(r"\{(aligned|align|split|gathered|gather)\}", token.text):
                self.at += 1
                depth += 1 if "begin" in token.text else -1
            elif token.kind in ("word", "break") or self.peek(",", ";", ".", ":", "&"):
                self.at += 1
                if token.kind == "break" and self.peek("+"):
                    self.fail("a new formula or the rest of the last? Begin a line that goes on with &")
            elif not self.listed():
                outer = self.free, self.summed
                self.free, self.summed = {}, {}
                statements.append(self.statement())
                for name in self.free.keys() & self.summed.keys():
                    self.fail(f"{name} is the index of a sum and free as well: rename one of them", token.start)
                self.free, self.summed = outer[0] | self.free, outer[1] | self.summed
                if not self.ends("environment") and not self.peek(",", ";", ".", ":"):
                    self.unknown("the formula does not go on like this")
        if depth:
            self.fail(r"\begin and \end do not match")
        if not statements:
            self.fail("it states nothing: add a relation, or `<!-- unchecked: reason -->`")
        free = tuple(dict.fromkeys([*self.free, *self.ranges]))
        for name, token in self.unbound:
            if name not in free:
                self.fail(f"{name} is not bound: bind it in `where`, or use it as a subscript", token.start)
        return Parsed(tuple(statements), free, self.ranges, self.origin, frozenset({*free, *self.summed}))

    def statement(self) -> Node:
        """A chain of relations; it may go on over the lines of ``aligned``."""
        start, kids, signs = self.next.start, [self.expression()], list[Token]()
        while True:
            if self.next.kind == "break":
                after, then = self.tokens[self.at + 1], self.tokens[self.at + 2 : self.at + 3]
                if after.text == "&":
                    goes_on = then and then[0].text in {*RELATIONS, "+", "-", "\\cdot", "\\times"}
                else:
                    goes_on = after.text in RELATIONS
                if not goes_on:
                    break
                self.at += 1
            self.take("&")
            if self.peek("+", "-"):
                kids[-1] = self.expression(kids[-1])
            elif self.peek("\\cdot", "\\times"):
                self.fail("a product that goes on in the next line can be read in two ways: use parentheses")
            elif not self.compared(kids, signs) and self.next.kind != "break":
                break
        if not signs:
            if self.starts_factor() or self.ends("environment") or self.peek(",", "."):
                text = self.latex[slice(*kids[0].span)]
                self.fail(f"`{text}` states nothing: add a relation, or `<!-- unchecked: reason -->`")
            self.unknown("expected a relation")
        return self.chain("relation", start, kids, signs)

    def listed(self) -> bool:
        r"""Read ``i = 1, \dots, n``, which states nothing: it is the range of an index."""
        token = self.next
        if not token.is_name or self.tokens[self.at + 1].text != "=":
            return False
        self.at += 2
        if self.ahead({*RELATIONS, *DOTS}) not in DOTS:
            self.at -= 2
            return False
        items = [self.expression()]
        while len(items) < 3 or items[-2].kind != "dots":
            self.expect(",", rf"in a range, {token.text} = first, \dots, last")
            items.append(self.argument())
        for step, item in enumerate(items[1:-2], 1):
            self.counts_up(items[0], item, step, item)
        self.ranges[token.text] = items[0], items[-1]
        self.starts_at(items[0])
        return True
