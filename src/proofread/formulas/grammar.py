"""LaTeX to a tree: a recursive-descent parser that refuses what could be read in two ways."""

from __future__ import annotations

import dataclasses
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
    """Reads statements, and what they hold for."""

    def formula(self) -> Parsed:
        statements: list[Node] = []
        conditions: list[Node | None] = []
        depth = 0
        while self.next.kind != "end":
            token = self.next
            if token.kind == "environment" and re.search(r"\{(aligned|align|split|gathered|gather)\}", token.text):
                self.at += 1
                depth += 1 if "begin" in token.text else -1
            elif token.kind in ("word", "break") or self.peek(",", ";", ".", ":", "&"):
                self.at += 1
                qualifies = token.text in ("if", "whenever", "and")
                if (qualifies and not statements) or token.text in ("otherwise", "else", "or"):
                    self.fail(f"`{token.text}` must follow what it qualifies", token.start)
                if token.text in ("if", "whenever") or (token.text == "for" and statements and self.compares()):
                    conditions[-1] = self.both(conditions[-1], self.condition())
                if token.kind == "break" and self.peek("+"):
                    self.fail("a new formula or the rest of the last? Begin a line that goes on with &")
                if token.text in ("for", "for all"):
                    self.quantified()
            elif self.take("\\forall"):
                self.quantified()
            elif not self.listed():
                outer = self.free, self.summed
                self.free, self.summed = {}, {}
                statement = self.statement()
                if statements and self.is_condition(statement, {*outer[0], *self.free, *self.ranges}):
                    conditions[-1] = self.both(conditions[-1], dataclasses.replace(statement, kind="condition"))
                else:
                    statements.append(statement)
                    conditions.append(None)
                for name in self.free.keys() & self.summed.keys():
                    self.fail(f"{name} is the index of a sum and free as well: rename one of them", token.start)
                self.free, self.summed = outer[0] | self.free, outer[1] | self.summed
                if not self.ends("environment") and not self.peek(",", ";", ".", ":", "\\forall"):
                    self.unknown("the formula does not go on like this")
        if depth:
            self.fail(r"\begin and \end do not match")
        if not statements:
            self.fail("it states nothing: add a relation, or `<!-- unchecked: reason -->`")
        free = tuple(dict.fromkeys([*self.free, *self.ranges]))
        for name, token in self.unbound:
            if name not in free:
                self.fail(f"{name} is not bound: bind it in `where`, or use it as a subscript", token.start)
        indices = frozenset({*free, *self.summed})
        return Parsed(tuple(statements), tuple(conditions), free, self.ranges, self.origin, indices)

    def compares(self) -> bool:
        """Tell whether a comparison comes next, and not the range of an index or a list of names."""
        resume = self.at
        listed = self.listed()
        self.at = resume
        return not listed and self.ahead({*RELATIONS, ","}) in RELATIONS

    def is_condition(self, statement: Node, indices: set[str]) -> bool:
        r"""Tell whether a statement is about indices alone, as in ``s_{ij} = 0, \quad j > i``: it claims nothing."""
        compares = set(statement.value.split()) <= {"<", ">", "≤", "≥", "≠", "∈", "∉"}
        claims = any(node.kind in ("index", "call") for node in statement.walk())
        return compares and not claims and bool(statement.names & indices)

    def statement(self) -> Node:
        """A chain of relations; it may go on over the lines of ``aligned``."""
        start, kids, signs = self.next.start, [self.expression()], list[Token]()
        if self.peek(",") and self.ahead(RELATIONS) == "\\in":
            while self.take(","):
                kids.append(self.expression())
            kids = [self.node("members", start, *kids)]
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
            if self.peek("+", "-") and kids[-1].kind != "space":
                kids[-1] = self.expression(kids[-1])
            elif self.peek("\\cdot", "\\times"):
                self.fail("a product that goes on in the next line can be read in two ways: use parentheses")
            elif not self.compared(kids, signs) and self.next.kind != "break":
                break
        for kid in kids:
            for node in kid.walk():
                if node.kind == "vector" and node is not kid:
                    self.fail("a list has no value here", node.span[0])
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

    def quantified(self) -> None:
        """Skip the names in "for all i, j"."""
        while self.next.is_name:
            token, after = self.tokens[self.at : self.at + 2]
            if after.kind not in ("end", "word", "break") and after.text not in (",", ".", ":"):
                break
            self.unbound.append((token.text, token))
            self.at += 1 + (after.text == ",")
