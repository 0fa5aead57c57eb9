"""A tensor as small coloured cells: HTML in a notebook, digits in print."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Grid"]

# Half transparent: the page's colour shines through, light or dark, and its text can be read on all of them.
_BLOCKED = "×"
_POSITIVE, _NEGATIVE, _STRONGEST = "42,163,173", "224,138,60", 0.55


@dataclass(frozen=True)
class Grid:
    """Matrices of numbers whose cells are as strong in colour as their values are large.

    Attributes:
        title: What they are.
        shape: The tensor's shape.
        panels: The matrices under their titles, row by row; whole numbers are written without decimals.
        rows: The names of the rows.
        columns: The names of the columns.
        allowed: For each matrix, where its numbers are shown; other cells are hatched. None shows all.
        axes: What the rows are and what the columns are, for the corner.
    """

    title: str
    shape: tuple[int, ...]
    panels: Sequence[tuple[str, Sequence[Sequence[float | int]]]]
    rows: Sequence[str]
    columns: Sequence[str]
    allowed: Sequence[Sequence[Sequence[bool]]] | None = None
    axes: tuple[str, str] | None = None

    def __str__(self) -> str:
        lines = [self._caption]
        for (title, _), matrix in zip(self.panels, self._written, strict=True):
            cells = [
                [" / ".join(self.axes or ()), *self.columns],
                *([name, *row] for name, row in zip(self.rows, matrix, strict=True)),
            ]
            widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
            lines += [title] * bool(title)
            lines += ["  ".join(map(str.rjust, line, widths)) for line in cells]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        values = [abs(value) for _, matrix in self.panels for row in matrix for value in row if math.isfinite(value)]
        largest = float(max(values, default=0)) or 1.0
        head = "".join(f'<th scope="col">{escape(name)}</th>' for name in self.columns)
        panels = []
        for (title, matrix), texts in zip(self.panels, self._written, strict=True):
            cells = [
                "".join(_cell(value, text, largest) for value, text in zip(row, line, strict=True))
                for row, line in zip(matrix, texts, strict=True)
            ]
            body = "".join(
                f'<tr><th scope="row">{escape(name)}</th>{row}</tr>' for name, row in zip(self.rows, cells, strict=True)
            )
            above = f"{self.title} {title}".strip() if title else self._caption
            corner = f"{escape(self.axes[0])} ↓<br>{escape(self.axes[1])} →" if self.axes else ""
            top = f'<thead><tr><td class="axes">{corner}</td>{head}</tr></thead>'
            panels.append(f'<table class="tensor"><caption>{escape(above)}</caption>{top}<tbody>{body}</tbody></table>')
        inside, group = "".join(panels), f' role="group" aria-label="{escape(self._caption)}"'
        return f'<style>{_STYLE}</style><div class="tensors"{group * (len(panels) > 1)}>{inside}</div>'

    @property
    def _written(self) -> list[list[list[str]]]:
        """What stands in the cells of each panel."""
        plain = self.axes != ("queries", "keys")
        texts = [
            [[_write(value) if plain or value else "" for value in row] for row in matrix] for _, matrix in self.panels
        ]
        for matrix, allowed in zip(texts, self.allowed or [], strict=False):
            for row, line in zip(matrix, allowed, strict=True):
                row[:] = [text if shown else _BLOCKED for text, shown in zip(row, line, strict=True)]
        return texts

    @property
    def _caption(self) -> str:
        return f"{self.title} {self.shape}".strip()


# Once for each grid, since a notebook's output stands by itself; a page has them from the first on.
_STYLE = (
    ".tensors{display:flex;flex-wrap:wrap;gap:1em;overflow-x:auto}"
    "table.tensor{border-collapse:separate;border-spacing:2px;font-size:.7rem;line-height:1.3;width:auto;margin:0}"
    "table.tensor caption{caption-side:top;text-align:left;font-size:.7rem;padding:0 0 .2em .2em}"
    "table.tensor th{font-weight:400;opacity:.8;padding:.25em .35em;text-align:right;vertical-align:baseline;border:0;"
    "white-space:nowrap}"
    "table.tensor td{padding:.25em .35em;min-width:3em;box-sizing:border-box;text-align:right;border:0;"
    "border-radius:2px;font-variant-numeric:tabular-nums}"
    "table.tensor td.axes{text-align:left;opacity:.8;white-space:nowrap}"
    "table.tensor td.blocked{background:"
    "repeating-linear-gradient(45deg,rgba(128,128,128,.5) 0 1px,transparent 1px 6px)}"
    "table.tensor tbody tr:hover>*{outline:1px solid rgba(128,128,128,.5)}"
)


def _cell(value: float | int, written: str, largest: float) -> str:
    if written == _BLOCKED:
        return '<td class="blocked" aria-label="blocked"></td>'
    if isinstance(value, bool):
        return f'<td style="background:rgba({_POSITIVE},{_STRONGEST})" aria-label="allowed"></td>'
    strength = _STRONGEST * min(1.0, abs(value) / largest) if math.isfinite(value) else 0.0
    colour = f"rgba({_NEGATIVE if value < 0 else _POSITIVE},{strength:.3f})"
    return f'<td style="background:{colour}">{written}</td>'


def _write(value: float | int) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return f"{value:{'d' if isinstance(value, int) else 'z.2f'}}".replace("inf", "∞").replace("-", "−")
