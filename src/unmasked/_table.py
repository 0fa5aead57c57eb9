"""A table of text cells: aligned or tab-separated in print, HTML in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Table"]


@dataclass(frozen=True)
class Table:
    """Cells of text under a header; the first cell of a row names it.

    Attributes:
        header: One title for each column.
        rows: The cells, row by row, as many as the header has titles.
        tabs: Whether the cells are numbers, which print separates by tabs, with one after the last, or texts, which it
            pads with spaces.

    Examples:
        >>> print(Table(("", "a", "b"), [("x", "1", "2")], tabs=False))
           a  b
        x  1  2
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    tabs: bool = True

    def __str__(self) -> str:
        lines = [self.header, *self.rows]
        if self.tabs:
            return "\n".join("".join(f"{cell}\t" for cell in line) for line in lines)
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)

    __repr__ = __str__

    def markdown(self) -> str:
        """The table as Markdown, which cells may contain, too.

        >>> print(Table(("mask", "True means"), [("attn_mask", "*blocked*")]).markdown())
        | mask | True means |
        | --- | --- |
        | attn_mask | *blocked* |
        """
        lines = [self.header, ["---"] * len(self.header), *self.rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def _repr_html_(self) -> str:
        head = "".join(f'<th scope="col">{escape(title)}</th>' if title else "<td></td>" for title in self.header)
        body = "".join(
            f'<tr><th scope="row">{escape(name)}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
            for name, *cells in self.rows
        )
        side = "" if self.tabs else ' style="text-align:left"'  # numbers stand below each other, texts begin there
        return f"<table{side}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
