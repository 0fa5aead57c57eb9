"""A tensor as small coloured cells: HTML in a notebook, digits in print."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import product

import torch
from torch import Tensor

from unmasked._checks import require_values, tensor
from unmasked._shapes import Shaped
from unmasked.plot.tables import aligned, html_table

__all__ = ["Grid", "Labels", "Matrices", "digits_of", "grid"]

Matrices = Shaped[Tensor, "..."] | Mapping[str, Shaped[Tensor, "..."]]
Labels = Sequence[str] | None

# Half transparent: the page's colour shines through, light or dark, and its text can be read on all of them.
_BLOCKED = "×"
_POSITIVE, _NEGATIVE, _STRONGEST = "42,163,173", "224,138,60", 0.55


@dataclass(frozen=True)
class Grid:
    """Matrices of numbers whose cells are as strong in colour as their values are large.

    Attributes:
        title: A name for the numbers.
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
            lines += [title] * bool(title) + aligned(cells, str.rjust)
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        values = [abs(value) for _, matrix in self.panels for row in matrix for value in row if math.isfinite(value)]
        largest = float(max(values, default=0)) or 1.0
        corner = f"{escape(self.axes[0])} ↓<br>{escape(self.axes[1])} →" if self.axes else ""
        panels = []
        for (title, matrix), texts in zip(self.panels, self._written, strict=True):
            rows = [
                (name, "".join(_cell(value, text, largest) for value, text in zip(values, line, strict=True)))
                for name, values, line in zip(self.rows, matrix, texts, strict=True)
            ]
            caption = f"{self.title} {title}".strip() if title else self._caption
            corner_cell = f'<td class="axes">{corner}</td>'
            panels.append(html_table(self._attributes, caption, corner_cell, self.columns, rows))
        inside, group = "".join(panels), f' role="group" aria-label="{escape(self._caption)}"'
        return f'<style>{_STYLE}</style><div class="tensors"{group * (len(panels) > 1)}>{inside}</div>'

    @property
    def _attributes(self) -> str:
        """How long the names of the columns are, since all columns are as wide, and whether they have to be turned."""
        longest, beside = (max(map(len, names), default=0) for names in (self.columns, self.rows))
        kind = "tensor"
        for room, least, suffix in ((_ROOM, _CELL, "turned"), (_ROOM_OF_PHONE, _CELL_OF_PHONE, "turned-on-phones")):
            if _LETTER * beside + len(self.columns) * max(least, _LETTER * longest + 0.7) > room and longest > _SHORT:
                kind += f" {suffix}"
        return f'class="{kind}" style="--letters:{longest}"'

    @property
    def _written(self) -> list[list[list[str]]]:
        """The text of each cell of each panel."""
        plain = self.axes != ("queries", "keys")
        texts = [
            [[digits_of(value) if plain or value else "" for value in row] for row in matrix]
            for _, matrix in self.panels
        ]
        for matrix, allowed in zip(texts, self.allowed or [], strict=False):
            for row, line in zip(matrix, allowed, strict=True):
                row[:] = [text if shown else _BLOCKED for text, shown in zip(row, line, strict=True)]
        return texts

    @property
    def _caption(self) -> str:
        return f"{self.title} {self.shape}".strip()


# Widths in the size of the grid's letters: of a page and of a phone, of a cell, and of a letter in the mean.
_ROOM, _CELL = 48, 3.0
_ROOM_OF_PHONE, _CELL_OF_PHONE = 28, 2.5
_LETTER = 0.6
_SHORT = 4  # letters of a name that is no wider than a cell
_TURN = "{writing-mode:vertical-rl;transform:rotate(180deg);min-width:0;text-align:left;vertical-align:bottom}"

# Once for each grid, since a notebook's output stands by itself; a page has them from the first on.
_STYLE = (
    ".tensors{display:flex;flex-wrap:wrap;gap:1em;overflow-x:auto}"
    "table.tensor{border-collapse:separate;border-spacing:2px;font-size:.7rem;line-height:1.3;width:auto;margin:0}"
    "table.tensor caption{caption-side:top;text-align:left;font-size:.7rem;padding:0 0 .2em .2em}"
    "table.tensor th{font-weight:400;opacity:.8;padding:.25em .35em;text-align:right;vertical-align:baseline;border:0;"
    "white-space:nowrap}"
    "table.tensor td{padding:.25em .35em;min-width:max(3em,var(--letters,0)*.6em + .7em);box-sizing:border-box;"
    "text-align:right;border:0;"
    "border-radius:2px;font-variant-numeric:tabular-nums}"
    "table.tensor td.axes{text-align:left;opacity:.8;white-space:nowrap}"
    "table.tensor td.blocked{background:"
    "repeating-linear-gradient(45deg,rgba(128,128,128,.5) 0 1px,transparent 1px 6px)}"
    f"table.tensor.turned td{{min-width:3em}}table.tensor.turned thead th{_TURN}"
    f"@media(max-width:30em){{table.tensor.turned-on-phones td{{min-width:2.5em}}"
    f"table.tensor.turned-on-phones thead th{_TURN}}}"
    "table.tensor td.axes{min-width:0}"
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


def drawable(name: str, x: Tensor) -> Tensor:
    """Refuse a tensor whose numbers cannot be read, and bring them to the CPU."""
    tensor(name, x)
    require_values(**{name: x})
    return x.detach().cpu()


def require_labels(axis: str, labels: Labels, size: int, kind: str) -> None:
    """Refuse labels that are not one for each row or column."""
    if labels is not None and not hasattr(labels, "__len__"):
        raise TypeError(
            f"{axis} is of the type {type(labels).__name__}; pass a text for each, as sentence.split() makes"
        )
    if labels is not None and len(labels) != size:
        raise ValueError(f"{axis} has {len(labels)} {kind}: pass {size}")


def digits_of(value: float | int) -> str:
    """Write a number in two decimals, if it is no whole one, without a sign where that rounds to zero."""
    return f"{value:{'d' if isinstance(value, int) else 'z.2f'}}".replace("inf", "∞").replace("-", "−")


def grid(
    values: Matrices,
    name: str = "",
    *,
    rows: Labels = None,
    columns: Labels = None,
    queries: Sequence[object] | None = None,
    keys: Sequence[object] | None = None,
    allowed: Matrices | None = None,
    axes: tuple[str, str] | None = None,
) -> Grid:
    """A small tensor as coloured cells that keep their digits: the stronger the colour, the larger the number.

    Args:
        values: Up to 256 numbers, or several tensors of one shape under their titles. The last two axes are rows and
            columns; each place on the axes before them is a panel of its own, as a head of (heads, queries, keys) is.
        name: A name for the numbers.
        rows: The names of the rows; by default their places.
        columns: The names of the columns.
        queries: The names of the rows of attention weights or of a boolean mask. The axes then say that rows are
            queries and columns are keys, zeros stay unprinted, and a mask is hatched where it blocks.
        keys: The names of the columns beside `queries`; by default the same names, where the matrix is square.
        allowed: Boolean, of the shape of `values` or (rows, columns) for all of them, True where a number is shown;
            other cells are hatched. Or several, under the titles of `values`.
        axes: What the rows are and what the columns are, such as ("queries", "keys").

    Returns:
        A grid that a notebook shows as HTML, and prints as digits.

    Raises:
        ValueError: There are no numbers or too many, names that are not as many as rows or columns, names both of
            rows or columns and of queries or keys, an `allowed` that is not boolean or has another shape or titles.

    Examples:
        >>> grid(torch.tensor([[1.0, -0.5]]), "scores")
        scores (1, 2)
              0      1
        0  1.00  −0.50
    """
    tensors = {"": values} if isinstance(values, Tensor) else values
    shapes = {title: tuple(x.shape) for title, x in tensors.items()}
    if len(set(shapes.values())) != 1:
        raise ValueError(f"values must hold tensors of one shape to share their names, not {shapes}")
    (shape,) = set(shapes.values())
    if not 0 < len(tensors) * math.prod(shape) <= 256:
        raise ValueError(
            f"values has {len(tensors) * math.prod(shape)} numbers, shape {shape}, expected 1 to 256: "
            "cut out a part, or draw it with plot.heatmap"
        )
    *outer, height, width = (1, 1, *shape)[-max(2, len(shape)) :]
    attention = queries is not None or keys is not None
    if attention and (rows is not None or columns is not None):
        raise ValueError("pass rows and columns, or queries and keys, not both: they name the same two axes")
    if attention:
        keys = queries if keys is None and height == width else keys
        rows, columns = (None if names is None else list(map(str, names)) for names in (queries, keys))
        axes = ("queries", "keys")
        boolean = all(x.dtype == torch.bool for x in tensors.values())
        allowed = tensors if allowed is None and boolean else allowed
    named = ("queries", "keys") if attention else ("rows", "columns")
    for axis, names, size in zip(named, (rows, columns), (height, width), strict=True):
        require_labels(axis, names, size, f"names, but values is {shape}")
    masks = dict.fromkeys(tensors, allowed) if allowed is None or isinstance(allowed, Tensor) else dict(allowed)
    if masks.keys() != tensors.keys():
        raise ValueError(f"allowed has the titles {list(masks)}, expected those of values, {list(tensors)}")
    panels, shown = [], []
    for title, x in tensors.items():
        mask = masks[title]
        if mask is not None and (mask.dtype != torch.bool or mask.shape not in (shape, (height, width))):
            raise ValueError(
                f"allowed is {mask.dtype} of shape {tuple(mask.shape)}, expected torch.bool of {(height, width)}, "
                "True where a number is to be shown"
            )
        cells = torch.ones(height, width, dtype=torch.bool) if mask is None else mask.cpu()
        cells = cells.expand(*outer, height, width)
        matrices = drawable("values", x).reshape(*outer, height, width)
        if matrices.dtype != torch.bool or not attention:
            matrices = matrices.double() if matrices.is_floating_point() else matrices.long()
        for place in product(*map(range, outer)):
            panels.append(
                (f"{title} [{', '.join(map(str, place))}]".lstrip() if place else title, matrices[place].tolist())
            )
            shown.append(cells[place].tolist())
    numbered = [list(map(str, range(size))) for size in (height, width)]
    cut = None if allowed is None else shown
    return Grid(name, shape, panels, rows or numbered[0], columns or numbered[1], cut, axes)
