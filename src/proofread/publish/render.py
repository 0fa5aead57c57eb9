"""Renders code cells to HTML: mkdocs-jupyter's markup for cells and outputs, without its page, styles and scripts."""

import base64
import functools
import html
import itertools
import json
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checks.checked import PICTURES, Checked, count, figures
from ..pages.page import PageError, leading_imports
from ..runs.steps import Output
from . import mathematics as math
from .installing import UNKNOWN, Installing
from .notebook import notebook, unlinked

if TYPE_CHECKING:  # it takes a second to import, and a build in which no cell has changed needs it not at all
    from nbconvert.exporters import HTMLExporter
    from nbformat import NotebookNode

# The forms in which a cell shows a value, the best first; neither JavaScript nor any that needs it.
SHOWN = (
    *("text/html", "text/markdown", "image/svg+xml", "text/latex", "image/png", "image/jpeg"),
    *("application/json", "text/plain"),
)
# The colour that stands for the page's text colour in a picture, which as a file of its own knows no page.
_INKS = {"light": "#1f2328", "dark": "#e6e8ea"}
_SUFFIXES = {"image/svg+xml": "svg", "image/png": "png", "image/jpeg": "jpg"}
_LONG = 30  # lines of JSON that are shown without a fold
_CUT = "\x1e"  # between cells; HTML cannot hold it
_TEMPLATES = Path(__file__).parent / "templates"


class RenderError(RuntimeError):
    """mkdocs-jupyter no longer has what cells are rendered with."""


@dataclass(frozen=True)
class Picture:
    """A figure, as the files it becomes: one that is seen by day and by night, or one for each."""

    files: Mapping[str, bytes]  # by name; the first alone, or the one for light and the one for dark
    alt: str  # what it shows
    size: tuple[int, int] | None  # width and height in pixels of the page, if they are known

    @property
    def themes(self) -> list[str]:
        """Where each file is seen: light, dark, or "" for both."""
        return list(_INKS) if len(self.files) == len(_INKS) else [""]


@dataclass
class Rendered:
    """A page's code cells as HTML, and the files that they show or link to."""

    cells: dict[int, str] = field(default_factory=dict)  # of each that the page shows, by its place
    files: dict[str, bytes] = field(default_factory=dict)  # by name, in the folder that the HTML was told of


def from_latex(latex: str) -> str:
    """Return LaTeX that a cell shows, dollars included, as MathML."""
    tex = latex.strip()
    return math.to_mathml(tex.strip("$").strip(), display=not tex.startswith("$") or tex.startswith("$$"))


def render(
    checked: Checked,
    beside: str = "",
    markdown: Callable[[str], str] = html.escape,
    latex: Callable[[str], str] = from_latex,
    installing: Installing = UNKNOWN,
) -> Rendered:
    """Render what a page shows of its code cells; the same arguments always give the same.

    A Markdown page shows its code itself: its cells are the links to their programs, and what they gave. How the page
    addresses the folder of its files, beside it, is "" or "page/".

    Raises:
        RenderError: mkdocs-jupyter no longer has what this needs.
        PageError: A cell shows LaTeX that cannot be read.
    """
    rendered = Rendered()
    executed = notebook(checked)
    drawn, captions = pictures(checked), checked.captions
    shows: dict[int, Any] = {}
    for index, (cell, made) in enumerate(zip(checked.page.cells, executed.cells, strict=True)):
        if not cell.is_code or "remove-cell" in cell.tags or not cell.shown:
            continue
        links = ""
        prints = cell.shown.count("\n") + 1 > ("imports" in cell.tags) * leading_imports(cell.shown)
        if prints and (program := checked.program(index)):
            name, program = f"cell-{index + 1}.py", installing.headed(program)
            rendered.files[name] = program.encode()
            links = _menu(f"{beside}{name}", program)
        if cell.fence:  # which the page shows itself; the links to its programs belong to that
            rendered.cells |= {index: links} if links and cell.fenced else {}
            made["source"] = links = ""
        made["outputs"] = [] if "hide-output" in cell.tags else made["outputs"]
        drawn_in = figures(made["outputs"])[:1] if cell.option("script") else []
        for place, output in enumerate(made["outputs"]):
            if picture := drawn.get((index, place)):
                rendered.files |= picture.files
                output["data"] = {"text/html": _images(picture, beside)}
            elif shown(output) == "text/latex":
                try:
                    output["data"] = {"text/html": latex(output["data"]["text/latex"])}
                except math.MathError as error:
                    if checked.mode == "run":
                        output["data"].pop("text/latex")
                        continue
                    raise PageError(checked.page.path, cell.line, f"cell {index + 1} shows {error}", "math") from None
            elif shown(output) == "application/json":
                said = html.escape(json.dumps(output["data"]["application/json"], indent=2, ensure_ascii=False))
                length, said = said.count("\n") + 1, f'<div class="jp-RenderedText"><pre>{said}</pre></div>'
                folded = f"<details><summary>JSON ({count(length, 'line')})</summary>{said}</details>"
                output["data"] = {"text/html": folded if length > _LONG else said}
            elif "data" in output and not shown(output):
                output["data"] = {"text/plain": f"({', '.join(output['data'])})"}
            figure = _tables_of_the_site("".join(output.get("data", {}).get("text/html", "")))
            if figure and place in drawn_in:
                figure = _live(figure, checked, index, beside, rendered)
            if figure and (index, place) in captions:
                number, caption = captions[index, place]
                said = re.sub(r"\A<p>|</p>\Z", "", markdown(caption).strip())
                below = f"<figcaption><b>Figure {number}.</b> {said}</figcaption>"
                figure = f"<figure>{figure}{below}</figure>"
            if figure:
                output["data"] = {"text/html": figure}
        imports = ""
        if "imports" in cell.tags and not cell.fence:
            lines = cell.shown.split("\n")
            length = leading_imports(cell.shown)
            first, made["source"] = "\n".join(lines[:length]), "\n".join(lines[length:]).strip("\n")
            imports = f'<details class="proofread-imports"><summary>imports</summary>{_highlight(first)}</details>'
        # The mark by which nbconvert's own TagRemovePreprocessor hides a cell's input.
        made["metadata"].update(transient={"remove_source": "hide-input" in cell.tags}, imports=imports, programs=links)
        if made["outputs"] or not cell.fence:
            shows[index] = made
    if shows:
        executed["cells"] = list(shows.values())
        parts = _show(executed, markdown).split(_CUT)[1:]
        if len(parts) != len(shows):
            raise RenderError(f"{_version()} does not show each cell by itself, as 0.26 did")
        for index, part in zip(shows, parts, strict=True):
            rendered.cells[index] = rendered.cells.get(index, "") + part.strip()
    return rendered


def _menu(address: str, program: str) -> str:
    """The menu of what can be copied of a cell: a link to its program, to which a script of the site adds the cell."""
    link = f'<a href="{address}">Copy with imports ({count(len(program.splitlines()), "line")})</a>'
    return f'<details class="proofread-copy" data-search-exclude="true"><summary>Copy</summary>{link}</details>'


def _tables_of_the_site(html: str) -> str:
    """HTML whose tables of pandas and polars have no styles of their own, so that they have those of the site."""
    html = re.sub(r"<style[^>]*>[^<]*\.dataframe[^<]*</style>\s*", "", html)
    bare = re.sub(r'<table border="1" class="dataframe">', "<table>", html)
    rows = re.compile(r"<tbody>.*?</tbody>", re.DOTALL)
    return rows.sub(lambda body: re.sub(r"<th(?=[ >])", '<th scope="row"', body[0]), bare) if bare != html else html


def _live(figure: str, checked: Checked, index: int, beside: str, rendered: Rendered) -> str:
    """A figure in the element in which a script of the page may draw, with the address of what it draws."""
    name = f"cell-{index + 1}.json"
    if sent := checked.sent(index):
        rendered.files[name] = sent.encode()
    data = f' data-json="{beside}{name}" data-bytes="{len(sent.encode())}"' if sent else ""
    module = Path(checked.page.cells[index].option("script") or "").stem
    return f'<div class="proofread-live" data-live="{html.escape(module)}"{data}>{figure}</div>'


def pictures(checked: Checked) -> dict[tuple[int, int], Picture]:
    """The figures of a page, by the places of their cell and output."""
    drawn: dict[tuple[int, int], Picture] = {}
    for index, cell in enumerate(checked.page.cells):
        if not cell.is_code or {"remove-cell", "hide-output"} & {*cell.tags}:
            continue
        alts = iter(checked.of_cell(index))
        for place, output in enumerate(checked.outputs(index)):
            if not any(kind in output.get("data", {}) for kind in PICTURES):
                continue
            alt = unlinked(next(alts, ""))
            if (kind := shown(output)) in PICTURES:
                drawn[index, place] = _picture(f"figure-{len(drawn) + 1}", kind, output, alt)
    return drawn


def shown(output: Output) -> str:
    """The form of a value that its page shows; "" if it has none of them."""
    return next((kind for kind in SHOWN if kind in output.get("data", {})), "")


def _picture(name: str, kind: str, output: Output, alt: str) -> Picture:
    data = "".join(output["data"][kind])
    if kind != "image/svg+xml":
        content, told = base64.b64decode(data), output.get("metadata", {}).get(kind, {})
        width, height = struct.unpack(">II", content[16:24]) if kind == "image/png" else (0, 0)
        if {"width", "height"} <= told.keys():
            width, height = int(told["width"]), int(told["height"])
        return Picture({f"{name}.{_SUFFIXES[kind]}": content}, alt, (width, height) if width else None)
    box = re.search(r'<svg\b[^>]*?viewBox="0 0 ([\d.]+) ([\d.]+)"', data)
    size = (round(float(box[1]) * 4 / 3), round(float(box[2]) * 4 / 3)) if box else None
    if "currentColor" not in data:
        return Picture({f"{name}.svg": data.encode()}, alt, size)
    inked = {theme: f"\\1<style>svg:root{{color:{ink} !important}}</style>" for theme, ink in _INKS.items()}
    drawn = {theme: re.sub(r"(<svg\b[^>]*>)", style, data, count=1) for theme, style in inked.items()}
    return Picture({f"{name}-{theme}.svg": svg.encode() for theme, svg in drawn.items()}, alt, size)


def _images(picture: Picture, beside: str) -> str:
    # With its size, so that the text below does not jump when the picture comes.
    size = ' width="{}" height="{}"'.format(*picture.size) if picture.size else ""
    return "".join(
        f'<img class="figure{theme and f" only-{theme}"}" src="{beside}{name}" alt="{html.escape(picture.alt)}"'
        f' loading="lazy"{size}>'
        for name, theme in zip(picture.files, picture.themes, strict=True)
    )


def _show(executed: "NotebookNode", markdown: Callable[[str], str]) -> str:
    from jinja2 import TemplateError
    from nbconvert.exporters.templateexporter import TemplateExporter

    try:
        # HTMLExporter's own would read and write all HTML again, for what the template has seen to.
        body, _ = TemplateExporter.from_notebook_node(_exporter(), executed, {"markdown": markdown})
    except (ImportError, AttributeError, TemplateError) as error:
        raise RenderError(f"{_version()} lacks a part of 0.26 that shows cells: {error}") from error
    return str(body)


@functools.cache
def _exporter() -> "HTMLExporter":
    from mkdocs_jupyter.config import settings
    from nbconvert.exporters import HTMLExporter
    from traitlets.config import Config

    return HTMLExporter(
        config=Config(NbConvertBase={"display_data_priority": list(SHOWN)}),
        template_file="cells.html.j2",
        extra_template_paths=[str(_TEMPLATES), settings.templates_dir],
        exclude_input_prompt=True,
        exclude_output_prompt=True,
        preprocessors=[],
        default_preprocessors=[],
        filters={"highlight_code": _highlight, "ansi2html": _terminal},
    )


@functools.cache
def _lexer() -> tuple[Any, dict[Any, str]]:
    """The lexer, and the kinds of token that have a colour; those of one colour share a class, and so a tag."""
    from pygments.lexers import get_lexer_by_name
    from pygments.token import Comment, Keyword, Name, Number, Operator, String, Token

    # Names, blanks and punctuation have the colour of code; marking them would be half of the page.
    colours = {
        Token: "",
        Comment: "c",
        Keyword: "k",
        Keyword.Constant: "",
        Name.Builtin: "nb",
        Name.Class: "nf",
        Name.Constant: "nb",
        Name.Decorator: "k",
        Name.Exception: "nf",
        Name.Function: "nf",
        Name.Namespace: "nf",
        Number: "m",
        Operator.Word: "k",
        String: "s",
        String.Doc: "c",
        String.Escape: "se",
    }
    return get_lexer_by_name("ipython3"), colours


def _highlight(source: str, metadata: object = None) -> str:
    lexer, colours = _lexer()
    kinds = (
        (next(colours[each] for each in reversed(kind.split()) if each in colours), text)
        for kind, text in lexer.get_tokens(source)
    )
    marked = ""
    for colour, same in itertools.groupby(kinds, key=lambda each: each[0]):
        text = html.escape("".join(text for _, text in same), quote=False)
        marked += f'<i class="{colour}">{text}</i>' if colour else text
    return f'<div class="highlight"><pre><code>{marked}</code></pre></div>'


def _terminal(text: str) -> str:
    from nbconvert.filters import ansi2html

    # A colour that a page gives in full keeps its hue; the style sheet sees to it that it can be read by day and night.
    return re.sub(
        r"(?<=<span )([^>]*)(?=>)",
        lambda tag: tag[0].replace("background-color:", "--ansi-behind:").replace('"color:', '"--ansi:'),
        str(ansi2html(text)),
    )


def _version() -> str:
    return f"mkdocs-jupyter {metadata.version('mkdocs-jupyter')}"
