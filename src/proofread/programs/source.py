"""Source with its syntax tree, and edits of it by place: what no edit touches stays as it was written.

``ast.unparse`` would lose the comments and line breaks that a reader of a program wants. A concrete syntax tree keeps
them, but libcst took 20 times as long to parse a package, to find its scopes and to walk it once (5.6 s to 0.25 s), and
what a program needs would have to be found by the same code.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from .names import uses

Edit = tuple[int, int, str]  # where what is replaced begins and ends, and what stands there instead


class Source:
    """A text in Python; without statements if it cannot be parsed, as in a cell that shows what that looks like."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.lines = text.splitlines(keepends=True)
        self._starts = [0, *accumulate(map(len, self.lines))]
        try:
            self.tree = ast.parse(text)
        except SyntaxError:
            self.tree = ast.Module([], [])

    @cached_property
    def parents(self) -> dict[int, ast.AST]:
        """Each node's parent, by the node's id."""
        return {id(child): node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    def offset(self, line: int, column: int) -> int:
        """Where in the text a position of the syntax tree is."""
        text = self.lines[line - 1] if line <= len(self.lines) else ""
        column = column if text.isascii() else len(text.encode()[:column].decode())
        return self._starts[line - 1] + column

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Where in the text a node stands."""
        assert isinstance(node, ast.stmt | ast.expr | ast.arg)
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno, node.end_col_offset)

    def of(self, node: ast.AST) -> str:
        """A node as it was written."""
        return self.text[slice(*self.span(node))]

    def first_line(self, statement: ast.stmt) -> int:
        """The line on which a statement begins, with its decorators and the comments directly above it."""
        first: int = min([statement.lineno, *(each.lineno for each in getattr(statement, "decorator_list", ()))])
        while first > 1 and re.match(r"#(?! %%|\|)", self.lines[first - 2]):
            first -= 1
        return first

    def whole(self, statement: ast.stmt) -> tuple[int, int]:
        """Where the lines of a statement stand, or where it stands in a line that is not its own."""
        if not self.is_alone(statement):
            return self.span(statement)
        return self._starts[self.first_line(statement) - 1], self._starts[statement.end_lineno or 0]

    def is_alone(self, statement: ast.stmt) -> bool:
        """Whether a statement shares no line with another."""
        start, end = self.span(statement)
        before = self.text[self._starts[statement.lineno - 1] : start]
        after = self.text[end : self._starts[statement.end_lineno or 0]].strip()
        return not before.strip() and (after in ("", ";") or after.startswith("#"))

    def edited(self, edits: Iterable[Edit], start: int, end: int) -> str:
        """A part of the text; of two edits that overlap, the one counts that begins first."""
        text, at = "", start
        for first, last, new in sorted(set(edits)):
            if first >= at and last <= end:
                text += self.text[at:first] + new
                at = last
        return text + self.text[at:end]

    def replaced(self, node: ast.stmt, lines: Sequence[str]) -> Edit:
        """Other statements for one of a block; without any it goes, unless something must stay."""
        parent, alone = self.parents[id(node)], self.is_alone(node)
        block = next(value for _, value in ast.iter_fields(parent) if isinstance(value, list) and node in value)
        if not lines and alone and (len(block) > 1 or isinstance(parent, ast.Module)):
            return self._starts[node.lineno - 1], self._starts[node.end_lineno or 0], ""
        return *self.span(node), (f"\n{' ' * node.col_offset}" if alone else "; ").join(lines or ["pass"])

    def chain(self, node: ast.AST) -> list[str]:
        """The attributes that are read of a name, one of the other."""
        chain = []
        while isinstance(parent := self.parents[id(node)], ast.Attribute):
            chain.append(parent.attr)
            node = parent
        return chain

    def chains(self, statement: ast.stmt, name: str) -> Iterator[list[str]]:
        """The chains of attributes that a statement reads of a name."""
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
                yield self.chain(node)


@dataclass(frozen=True)
class Imported:
    """What an import binds: ``from module import name as bound``, or with no name ``import module as bound``."""

    module: str
    name: str
    bound: str

    @property
    def target(self) -> str:
        """The dotted name of what is bound."""
        if self.name:
            return f"{self.module}.{self.name}"
        return self.module if self.bound != self.root else self.bound

    @property
    def root(self) -> str:
        """The top-level module that it needs."""
        return self.module.partition(".")[0]

    @property
    def statement(self) -> str:
        """The import statement."""
        renamed = f" as {self.bound}" if self.bound != (self.name or self.root) else ""
        return (f"from {self.module} import {self.name}" if self.name else f"import {self.module}") + renamed


def required(statement: ast.stmt) -> set[str]:
    """The top-level modules that a statement imports; what it only tries to import does not count."""
    if not uses(statement).imports:
        return set()
    tried: set[int] = set()
    for attempt in ast.walk(statement):
        for handler in getattr(attempt, "handlers", ()):
            caught = ast.unparse(handler.type) if handler.type else "ImportError"
            if re.search("ImportError|ModuleNotFoundError", caught) and not isinstance(handler.body[-1], ast.Raise):
                tried |= {id(node) for part in getattr(attempt, "body", ()) for node in ast.walk(part)}
    found: set[str] = set()
    for node in uses(statement).imports:
        if id(node) not in tried and not getattr(node, "level", 0):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            found |= {module.partition(".")[0] for module in modules}
    return found
