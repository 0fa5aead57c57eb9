"""A live viewer of attention weights, for notebooks, pages and files: one piece of HTML that needs no network."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from unmasked._shapes import Shaped
from unmasked.plot.grids import digits_of, drawable, require_labels
from unmasked.plot.tables import Table

__all__ = ["Viewer", "show"]

_MOST, _LONGEST = 2**19, 2048  # numbers in all, rows or columns: a browser draws them at once
_ROWS, _COLUMNS = 24, 16  # of the table without JavaScript


@runtime_checkable
class _Watched(Protocol):
    """Calls that `unmasked.watch` saw: they know their weights, and a title."""

    def _shown(self) -> tuple[Tensor, str]: ...


@dataclass(frozen=True)
class Viewer:
    """Weights that a notebook shows as a live viewer, and without JavaScript as a table.

    Attributes:
        weights: (batch, heads, queries, keys), float32.
        shape: Their shape before axes were added.
        queries: The names of the rows.
        keys: The names of the columns.
        title: A line above.
    """

    weights: Tensor
    shape: tuple[int, ...]
    queries: Sequence[str]
    keys: Sequence[str]
    title: str

    def __repr__(self) -> str:
        axes = ("items", "heads", "queries", "keys")[-len(self.shape) :]
        sizes = ", ".join(f"{size} {axis}" for size, axis in zip(self.shape, axes, strict=True))
        return f"{self.title}: {sizes}; a notebook shows them live, and .save('weights.html') writes a page"

    def _repr_html_(self) -> str:
        numbers = self.weights.flatten().tolist()
        content = {
            "title": self.title,
            "shape": list(self.weights.shape),
            "queries": list(self.queries),
            "keys": list(self.keys),
            "weights": base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode(),
        }
        data = json.dumps(content, ensure_ascii=False)
        mark = hashlib.sha256(data.encode()).hexdigest()[:16]
        script = Path(__file__).with_suffix(".js").read_text(encoding="utf-8")
        # Scripts of outputs run wherever they please, so that this one finds its place by its mark.
        return (
            f'<div class="unmasked-show" data-mark="{mark}" data-show="{escape(data)}">{self._table()}'
            f"<script>{script.replace('MARK', mark)}</script></div>"
        )

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the viewer as one page that needs no network, and return its path; an older page is replaced whole.

        Args:
            path: A file whose name ends with .html or .htm, in a folder that exists.

        Raises:
            ValueError: path has another ending.
            FileNotFoundError: There is no such folder.
            IsADirectoryError: path is a folder.
        """
        path = Path(path)
        if path.suffix.lower() not in (".html", ".htm"):
            raise ValueError(f"path is {str(path)!r}; a page ends with .html: pass {str(path.with_suffix('.html'))!r}")
        if path.is_dir():
            raise IsADirectoryError(f"path is {str(path)!r}, which is a folder: pass a file in it")
        if not path.parent.is_dir():
            raise FileNotFoundError(
                f"path is {str(path)!r}, but there is no folder {str(path.parent)!r}: make it with "
                f"Path({str(path.parent)!r}).mkdir(parents=True)"
            )
        page = (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            # Whatever a title or a token holds, the page asks for nothing.
            '<meta http-equiv="Content-Security-Policy" '
            "content=\"default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'\">"
            f"<title>{escape(self.title)}</title>"
            "<style>:root{color-scheme:light dark;font-family:system-ui,sans-serif}body{margin:1rem}</style></head>\n"
            f"<body><main><h1>{escape(self.title)}</h1>{self._repr_html_()}</main></body></html>\n"
        )
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            part.write_text(page, encoding="utf-8")
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        return path

    def _table(self) -> str:
        """Write the first head of the first item, or its corner, for a reader without JavaScript."""
        _, _, rows, columns = self.weights.shape
        shown = self.weights[0, 0, :_ROWS, :_COLUMNS].tolist()
        notes = [f"{self.title} {self.shape}: rows are queries, columns are keys"]
        if len(self.shape) > 2:
            notes.append("item 0, head 0" if len(self.shape) > 3 else "head 0")
        if rows > _ROWS or columns > _COLUMNS:
            notes.append(
                f"the first {min(rows, _ROWS)} of {rows} rows and {min(columns, _COLUMNS)} of {columns} columns"
            )
        if any(weight == 0 for row in shown for weight in row):
            notes.append("0 is exactly zero, as blocked weights are")
        lines = [(name, *map(_write, row)) for name, row in zip(self.queries, shown, strict=False)]
        return Table(("", *self.keys[:_COLUMNS]), lines)._html('class="tensor"', "; ".join(notes))


def show(
    weights: Shaped[Tensor, "..."] | _Watched,
    *,
    queries: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    title: str | None = None,
) -> Viewer:
    """Show attention weights as a live viewer: choose a head, point at a cell, hide what is small.

    Rows are queries and columns are keys. A weight of exactly zero is hatched, as blocked weights are; NaN is crossed.

    Args:
        weights: (queries, keys), (heads, queries, keys) or (batch, heads, queries, keys); real numbers of any dtype, on
            any device, as many as a browser can draw at once. Or what `unmasked.watch` saw: a call of it, or all of
            them, whose first sequence is shown, an item for each call.
        queries: The tokens of the rows; by default their places.
        keys: The tokens of the columns; by default the queries', where the matrices are square.
        title: A name for the numbers; without one "weights", or the name of the module that was watched.

    Returns:
        A viewer that a notebook shows live, as a cell's last expression. ``.save("weights.html")`` writes it as a page.

    Raises:
        TypeError: weights is no tensor, or holds complex numbers.
        ValueError: weights has other axes, no numbers or too many; or names are not as many as rows or columns.

    Examples:
        >>> show(torch.eye(3).expand(2, 3, 3), queries=["to", "my", "ship"])
        weights: 2 heads, 3 queries, 3 keys; a notebook shows them live, and .save('weights.html') writes a page
    """
    name = "weights"
    if isinstance(weights, _Watched):
        weights, name = weights._shown()
    if not isinstance(weights, Tensor):
        kind = "None" if weights is None else f"a {type(weights).__name__}"
        raise TypeError(
            f"weights is {kind}; pass one layer's tensor, (heads, queries, keys). nn.MultiheadAttention returns it "
            "with need_weights=True and average_attn_weights=False"
        )
    if weights.is_complex():
        raise TypeError(f"weights is {weights.dtype}; pass real numbers, as weights.abs() holds them")
    shape = tuple(weights.shape)
    if not 2 <= len(shape) <= 4:
        raise ValueError(
            f"weights has shape {shape}, expected (queries, keys), (heads, queries, keys) or "
            "(batch, heads, queries, keys)"
        )
    if not weights.numel():
        raise ValueError(f"weights has shape {shape}, which holds no numbers: pass at least one query and one key")
    if weights.numel() > _MOST or max(shape[-2:]) > _LONGEST:
        raise ValueError(
            f"weights has shape {shape}, {math.prod(shape):,} numbers; a browser is shown up to {_MOST:,} of them, and "
            f"{_LONGEST:,} queries or keys: cut out a part, as weights[..., :128, :128], or choose some heads"
        )
    rows, columns = shape[-2:]
    keys = queries if keys is None and rows == columns else keys
    for axis, names, size in (("queries", queries, rows), ("keys", keys, columns)):
        require_labels(axis, names, size, f"names, but weights is {shape}, with {size} {axis}")
    four = drawable("weights", weights).to(torch.float32).reshape(*(1,) * (4 - len(shape)), *shape)
    of_rows, of_columns = (list(map(str, names or range(n))) for names, n in ((queries, rows), (keys, columns)))
    return Viewer(four, shape, of_rows, of_columns, name if title is None else title)


def _write(weight: float) -> str:
    return "NaN" if math.isnan(weight) else "0" if weight == 0 else digits_of(weight)
