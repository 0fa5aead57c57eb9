"""Renders code cells to HTML: mkdocs-jupyter's markup for cells and outputs, without its page, styles and scripts."""

import functools
import html
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
from mkdocs_jupyter.config import settings
from nbconvert.exporters import HTMLExporter
from nbformat import NotebookNode
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name

from . import math
from .check import PICTURES, Checked
from .notebook import notebook

_CUT = "<!--cut-->"
# What stands for the page's text colour in a picture, which as a file of its own knows no page.
_INKS = {"light": "#1f2328", "dark": "#e6e8ea"}
_TEMPLATES = Path(__file__).parent / "templates"


def cells(checked: Checked, picture: Callable[[str, str], str]) -> dict[int, str]:
    """The HTML of each code cell that the page shows, by its place.

    Args:
        checked: The page, with what its cells gave.
        picture: Takes a picture's MIME type and data; returns the URL under which the page will find it.
    """
    shown = {}
    executed = notebook(checked)
    for index, (cell, made) in enumerate(zip(checked.page.cells, executed.cells, strict=True)):
        if cell.is_code and "remove-cell" not in cell.tags:
            alts = iter(checked.of_cell(index))
            made["source"] = cell.shown
            made["outputs"] = [] if "hide-output" in cell.tags else [_linked(o, alts, picture) for o in made["outputs"]]
            # The marks by which nbconvert's own TagRemovePreprocessor hides a cell's input.
            made["metadata"].update(tags=list(cell.tags), transient={"remove_source": "hide-input" in cell.tags})
            shown[index] = made
    executed["cells"] = list(shown.values())
    body, _ = _exporter().from_notebook_node(executed)
    return dict(zip(shown, map(str.strip, body.split(_CUT)[1:]), strict=True))


def _linked(output: NotebookNode, alts: Iterator[str], picture: Callable[[str, str], str]) -> NotebookNode:
    """The output with its picture, if it has one, as a link to a file."""
    kind = next((kind for kind in PICTURES if kind in output.get("data", {})), None)
    if kind is None:
        return output
    data = output["data"][kind]
    alt = html.escape(next(alts, ""))
    versions = {"figure": data}
    if kind == "image/svg+xml" and "currentColor" in data:
        versions = {f"figure only-{theme}": _inked(data, ink) for theme, ink in _INKS.items()}
    tags = [
        f'<img class="{name}" src="{picture(kind, version)}" alt="{alt}" loading="lazy"{_size(kind, version)}>'
        for name, version in versions.items()
    ]
    output["data"] = nbformat.from_dict({"text/html": "".join(tags)})
    return output


def _inked(svg: str, ink: str) -> str:
    return re.sub(r"(<svg\b[^>]*>)", rf"\1<style>svg:root{{color:{ink} !important}}</style>", svg, count=1)


def _size(kind: str, data: str) -> str:
    # So that the text below does not jump when the picture comes.
    size = re.search(r'<svg\b[^>]*?viewBox="0 0 ([\d.]+) ([\d.]+)"', data) if kind == "image/svg+xml" else None
    return ' width="{:.0f}" height="{:.0f}"'.format(*(float(pt) * 4 / 3 for pt in size.groups())) if size else ""


@functools.cache
def _exporter() -> HTMLExporter:
    return HTMLExporter(
        template_file="cells.html.j2",
        extra_template_paths=[str(_TEMPLATES), settings.templates_dir],
        exclude_input_prompt=True,
        exclude_output_prompt=True,
        preprocessors=[],
        default_preprocessors=[],
        filters={"highlight_code": _highlight, "mathml": _mathml},
    )


def _highlight(source: str, metadata: object = None) -> str:
    formatter = HtmlFormatter(cssclass="highlight", wrapcode=True)
    marked = str(highlight(source, get_lexer_by_name("ipython3"), formatter))
    # Names and blanks have the colour of code anyway; marking them would be a third of the page.
    return re.sub(r'<span class="[nw]">([^<]*)</span>', r"\1", marked)


def _mathml(latex: str) -> str:
    return math.to_mathml(latex.strip().strip("$").strip(), display=not latex.lstrip().startswith("$") or "$$" in latex)
