"""A place in the tokens of a formula, and what comes next there."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, NoReturn, TypeVar

from .tokens import RELATIONS, Token, tokenize
from .tree import FormulaError, Node, Place

if TYPE_CHECKING:
    from .scope import Scope  # without torch

T = TypeVar("T")

DOTS = (r"\dots", r"\ldots", r"\cdots")
STARS = {"*": "star", r"\ast": "star", r"\star": "star"}
_CLOSING = {"(": ")", "[": "]", "{": "}", r"\{": r"\}"}


class Cursor:
    """Takes one token after the other, and knows the names around them."""

    def __init__(self, latex: str, names: Scope):
        self.latex, self.names = latex, names
        self.tokens, self.at = tokenize(latex), 0
        if names.bound("pi", by_where=True):
            self.tokens = [
                dataclasses.replace(t, kind="font", text="pi") if t.text == "\\pi" else t for t in self.tokens
            ]
        self.limit, self.end = len(self.tokens), self.tokens[-1]
        self.subscript = False  # whether one is being read
        self.commas = False  # part the subscripts that are being read
        self.closers: list[str] = []  # what ends the |...| around
        self.locals: list[str] = []  # indices of the sums around
        self.free: dict[str, None] = {}
        self.summed: dict[str, None] = {}
        self.unbound: list[tuple[str, Token]] = []
        self.spellings: dict[str, str] = {}
        self.ranges: dict[str, tuple[Node, Node]] = {}
        self.origin = 1

    @property
    def next(self) -> Token:
        """The token that comes next; what is read ends at the limit."""
        return self.tokens[self.at] if self.at < self.limit else self.end

    @property
    def last(self) -> Token:
        """The token that was taken last."""
        return self.tokens[self.at - 1]

    def peek(self, *texts: str) -> bool:
        """Tell whether one of some signs or commands comes next."""
        return self.next.says(texts)

    def ends(self, *kinds: str) -> bool:
        """Tell whether the formula, a line or a part of the statement ends here."""
        return self.next.kind in ("end", "word", "break", *kinds)

    def take(self, *texts: str) -> Token | None:
        """Take one of some signs or commands, if it comes next."""
        if not self.peek(*texts) or self.next.kind == "end":
            return None
        self.at += 1
        return self.last

    def word(self, *texts: str) -> str:
        """Take one of some words; "" if none comes next."""
        if self.next.kind != "word" or self.next.text not in texts:
            return ""
        self.at += 1
        return self.last.text

    def expect(self, text: str, why: str) -> Token:
        """Take a sign or command that must come next."""
        return self.take(text) or self.fail(f"expected {text} {why}")

    def close(self, opening: Token, why: str) -> None:
        """Take what closes a bracket."""
        self.expect(_CLOSING[opening.text], why)

    def fail(self, message: str, at: int | None = None) -> NoReturn:
        """Refuse the formula, at a character."""
        position = self.next.start if at is None else at
        rest = self.latex[position : position + 12].split("\n")[0] or "the end"
        raise FormulaError(f"cannot read `{self.latex}` at character {position + 1} ({rest}): {message}")

    def unknown(self, expected: str) -> NoReturn:
        """Refuse what comes next."""
        operators = {*RELATIONS, "\\cdot", "\\times", "\\odot", "\\oslash"}
        if self.next.kind in ("command", "environment") and self.next.text not in operators:
            self.fail(f"{self.next.text} is not in the grammar: rewrite it, or add `<!-- unchecked: reason -->`")
        self.fail(expected)

    def node(self, kind: str, start: int, *kids: Node, value: str = "", marks: tuple[Place, ...] = ()) -> Node:
        """Make a node that ends here."""
        return Node(kind, kids, value, (start, self.last.end), marks)

    def wider(self, node: Node, start: int) -> Node:
        """Return a node with the brackets around it, which end here."""
        return dataclasses.replace(node, span=(start, self.last.end))

    def level(self) -> Iterator[Token]:
        """Yield what comes outside brackets, up to the end of those around."""
        depth = 0
        for token in self.tokens[self.at : self.limit]:
            depth += (token.text in _CLOSING) - (token.text in _CLOSING.values())
            if depth < 0:
                return
            if depth == 0:
                yield token

    def ahead(self, among: Collection[str]) -> str:
        """Return which of some signs comes first outside brackets in this statement; "" if none does."""
        for token in self.level():
            if token.kind in ("word", "break", "end"):
                break
            if token.says(among):
                return token.text
        return ""

    def related(self) -> bool:
        """Tell whether a relation stands within the bracket that was just opened."""
        return any(token.says(RELATIONS) or token.kind == "word" for token in self.level())

    def script(self, mark: str) -> range | None:
        """Skip a script; return which tokens it holds."""
        if not self.take(mark):
            return None
        if not self.take("{"):
            token = self.next
            if token.kind == "number" and len(token.text) > 1:
                self.fail(f"TeX takes only {token.text[0]} into the script: use braces")
            if token.kind not in ("number", "letter", "font", "command") and token.text not in STARS:
                self.fail("expected a script")
            self.at += 1
            return range(self.at - 1, self.at)
        start, depth = self.at, 1
        while depth:
            if self.next.kind == "end":
                self.fail("a brace is not closed")
            depth += self.peek("{") - self.peek("}")
            self.at += 1
        return range(start, self.at - 1)

    def inside(self, tokens: range, rule: Callable[[], T], *, subscript: bool = False) -> T:
        """Apply a rule to all the tokens of a script."""
        resume = self.at, self.limit, self.subscript
        self.at, self.limit, self.subscript = tokens.start, tokens.stop, subscript
        result = rule()
        if self.at != tokens.stop:
            self.unknown("the script does not go on like this")
        self.at, self.limit, self.subscript = resume
        return result

    def texts(self, tokens: range) -> list[str]:
        """Return what some tokens say."""
        return [token.text for token in self.tokens[tokens.start : tokens.stop]]

    @contextlib.contextmanager
    def local(self, *indices: str) -> Iterator[None]:
        """Let indices have a meaning of their own in what is read meanwhile."""
        for index in indices:
            if index in self.locals or self.names.bound(index, by_where=True):
                self.fail(f"{index} has a value already: sum over another letter")
            self.summed[index] = None
        self.locals += indices
        yield
        del self.locals[-len(indices) :]

    def starts_at(self, low: Node) -> None:
        """Count indices from 0 if a range, a list or a subscript does."""
        if low.kind == "number" and low.value == "0":
            self.origin = 0
