"""Source with its syntax tree: each part as it was written, with its comments and line breaks."""

import ast
import re
from itertools import accumulate

from ..syntax import module


class Source:
    """A text in Python; without statements if it cannot be parsed, as in a cell that shows what that looks like."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.lines = text.splitlines(keepends=True)
        self._starts = [0, *accumulate(map(len, self.lines))]
        try:
            self.tree = module(text)
        except SyntaxError:
            self.tree = ast.Module([], [])

    def _offset(self, line: int, column: int) -> int:
        """Where in the text a position of the syntax tree is."""
        text = self.lines[line - 1] if line <= len(self.lines) else ""
        column = column if text.isascii() else len(text.encode()[:column].decode())
        return self._starts[line - 1] + column

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Where in the text a node stands."""
        assert isinstance(node, ast.stmt | ast.expr)
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._offset(node.lineno, node.col_offset), self._offset(node.end_lineno, node.end_col_offset)

    def of(self, node: ast.AST) -> str:
        """A node as it was written."""
        return self.text[slice(*self.span(node))]

    def first_line(self, statement: ast.stmt) -> int:
        """The line on which a statement begins, with its decorators and the comments directly above it."""
        first: int = min([statement.lineno, *(each.lineno for each in getattr(statement, "decorator_list", ()))])
        while first > 1 and re.match(r"#(?! %%|\|)", self.lines[first - 2]):
            first -= 1
        return first

    def whole(self, statement: ast.stmt) -> str:
        """The lines of a statement, or the statement alone where it shares a line with another."""
        if not self._is_alone(statement):
            return self.of(statement)
        return "".join(self.lines[self.first_line(statement) - 1 : statement.end_lineno])

    def _is_alone(self, statement: ast.stmt) -> bool:
        start, end = self.span(statement)
        before = self.text[self._starts[statement.lineno - 1] : start]
        after = self.text[end : self._starts[statement.end_lineno or 0]].strip()
        return not before.strip() and (after in ("", ";") or after.startswith("#"))
