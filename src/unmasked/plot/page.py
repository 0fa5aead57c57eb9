"""A matplotlib figure whose lines and text take the colour of the page that shows it."""

from __future__ import annotations

import codecs
import io
from typing import Any

import matplotlib
from matplotlib import cbook
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

__all__ = ["INK", "PageFigure"]

# As far from a white page as from Material's dark one (#1e2129): 4.0 to 1, the most that one colour can reach on both.
INK = "#7f8081"


class PageFigure(Figure):
    """A transparent figure, drawn without pyplot; notebooks show it as SVG."""

    def __init__(self, width: float, height: float) -> None:
        super().__init__(figsize=(width, height), layout="compressed", facecolor="none")
        _PageCanvas(self)

    def _repr_svg_(self) -> str:
        buffer, dpi = io.StringIO(), self.dpi
        try:
            self.canvas.print_svg(buffer)  # type: ignore[attr-defined]  # savefig would draw everything twice
        finally:
            self.dpi = dpi  # which SVG has set to its own
        return buffer.getvalue()


class _PageCanvas(FigureCanvasSVG):
    def print_svg(self, filename: Any, *, bbox_inches_restore: Any = None, metadata: Any = None, **_: Any) -> None:
        buffer = io.StringIO()
        metadata = {"Date": None, **(metadata or {})}  # neither a date nor random ids: the same figure, the same bytes
        with matplotlib.rc_context({"svg.hashsalt": "unmasked"}):
            super().print_svg(buffer, bbox_inches_restore=bbox_inches_restore, metadata=metadata)
        svg = buffer.getvalue().replace(INK, "currentColor")
        # Within a page the text has the page's colour; as a file of its own it has no page, and falls back on INK.
        svg = svg.replace("<defs>", f"<style>svg:root{{color:{INK}}}</style>\n <defs>", 1)
        with cbook.open_file_cm(filename, "w", encoding="utf-8") as file:
            out = file if cbook.file_requires_unicode(file) else codecs.getwriter("utf-8")(file)
            out.write(svg)
