"""A table of text cells: aligned in print, HTML in a notebook."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Table", "Tabular", "aligned", "html_table", "table"]


def aligned(lines: Sequence[Sequence[str]], justify: Callable[[str, int], str] = str.ljust) -> list[str]:
    """Write cells in columns, as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(map(justify, line, widths)) for line in lines]


def html_table(
    attributes: str, caption: str, corner: str, header: Sequence[str], rows: Iterable[tuple[str, str]]
) -> str:
    """Write a table of titles, and of rows that are a name and the HTML of its cells, under the HTML of the corner."""
    above = f"<caption>{escape(caption)}</caption>" if caption else ""
    head = corner + "".join(f'<th scope="col">{escape(title)}</th>' for title in header)
    body = "".join(f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>' for name, cells in rows)
    return f"<table {attributes}>{above}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


@dataclass(frozen=True)
class Table:
    """Cells of text under a header; the first cell of a row names it.

    Attributes:
        header: One title for each column.
        rows: The cells, row by row, as many as the header has titles.

    Examples:
        >>> print(Table(("", "a", "b"), [("x", "1", "2")]))
           a  b
        x  1  2
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __str__(self) -> str:
        return "\n".join(map(str.rstrip, aligned([self.header, *self.rows])))

    __repr__ = __str__

    def markdown(self) -> str:
        """The table as Markdown, which cells may contain, too.

        Examples:
            >>> print(Table(("mask", "True means"), [("attn_mask", "*blocked*")]).markdown())
            | mask | True means |
            | --- | --- |
            | attn_mask | *blocked* |
        """
        lines = [self.header, ["---"] * len(self.header), *self.rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def _repr_html_(self) -> str:
        return self._html('style="text-align:left"')

    def _html(self, attributes: str, caption: str = "") -> str:
        corner, *titles = self.header
        first = f'<th scope="col">{escape(corner)}</th>' if corner else "<td></td>"
        rows = ((name, "".join(f"<td>{escape(cell)}</td>" for cell in cells)) for name, *cells in self.rows)
        return html_table(attributes, caption, first, titles, rows)


class Tabular:
    """A result that prints as its `table`, with its notes below, and is shown so by a notebook."""

    @property
    def table(self) -> Table:
        """The result as text."""
        raise NotImplementedError

    def _notes(self) -> Sequence[str]:
        return ()

    def __repr__(self) -> str:
        return "\n".join([str(self.table), *self._notes()])

    def _repr_html_(self) -> str:
        return self.table._repr_html_() + "".join(f"<p>{escape(note)}</p>" for note in self._notes())


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[object]] | Mapping[str, Sequence[object]],
    form: str | Sequence[str] = "{}",
) -> Table:
    """A table of text and numbers, the first cell of each row being its name.

    Args:
        header: One title for each column.
        rows: The cells, row by row, as many as the header has titles; or the cells beside each name, under the names.
        form: How `str.format` writes cells that are not text, such as "{:.0%}" or "{:.1f} MiB": one for all columns, or
            one for each column beside the first.

    Returns:
        A table that a notebook shows as HTML, and prints as aligned columns. Its `markdown()` goes into prose.

    Raises:
        ValueError: A row has more or fewer cells than the header has titles, or there are more or fewer forms than
            columns beside the first.

    Examples:
        >>> table(["mask", "True means"], [["attn_mask", "blocked"]])
        mask       True means
        attn_mask  blocked
        >>> table(["", "error", "time"], {"fused": [1.2e-7, 3.0]}, ["{:.0e}", "{:.1f} s"])
               error  time
        fused  1e-07  3.0 s
    """
    lines = [(name, *cells) for name, cells in rows.items()] if isinstance(rows, Mapping) else list(rows)
    for index, line in enumerate(lines):
        if len(line) != len(header):
            raise ValueError(f"rows[{index}] has {len(line)} cells, {list(line)}: header has {len(header)} titles")
    forms = [form] * (len(header) - 1) if isinstance(form, str) else list(form)
    if len(forms) != len(header) - 1:
        raise ValueError(f"form has {len(forms)} items, {forms}: pass one text, or {len(header) - 1}, one a column")
    written = [
        [
            str(name),
            *(each if isinstance(each, str) else how.format(each) for how, each in zip(forms, cells, strict=True)),
        ]
        for name, *cells in lines
    ]
    return Table(header, written)
