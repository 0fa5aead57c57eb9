"""A page, read into cells that know the line they begin on."""

import ast
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ..formulas.finding import without_open
from ..keep.files import relative
from ..keep.shelf import Shelf
from ..syntax import module

_MARKER = re.compile(r"\s*#\s*(?:%%|<codecell>|In\[)")
# Lines for Python's splitlines, which jupytext takes, and for nobody else.
_ODD_BREAK = re.compile(r"[\v\f\x1c-\x1e\x85\u2028\u2029]|\r(?!\n)")
_HEADER = re.compile(r"\A(?:(?:#!.*\n)?# ---\n(?:#.*\n)*?# ---\n)?\s*")
_OPTION = re.compile(r"^#\|[ ]?(?P<key>[\w-]+)(?::|(?=[ ]*$))[ ]*(?P<value>.*(?:\n#\|[ ]{2,}.*)*)", re.MULTILINE)
_OPTIONS = re.compile(r"\A\s*(?:#\|.*\n?)+")
_MAGIC = re.compile(r"^([ \t]*)[%!?].*$", re.MULTILINE)
BYTE_ORDER_MARK = "\ufeff"  # with which some editors begin a file
FENCE = (
    r"^(?P<indent>[ \t>]*)(?P<fence>`{3,}+|~{3,}+)(?P<info>[^\n]*)\n(?P<body>.*?)(?:^(?P=indent)(?P=fence)[ \t]*$|\Z)"
)
# A fence that stands in a comment is hidden wherever the file is read; a comment around anything else is prose.
_FENCE = re.compile(rf"(?P<open><!--[ \t]*\n)?{FENCE}(?(open)\s*?-->)", re.MULTILINE | re.DOTALL)
OPEN = {"<!--": "-->", "{{": "}}"}  # what begins a directive, and what ends it
FRONT_MATTER = re.compile(r"\A---[ \t]*\n.*?\n(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)
_SCRIPT_HEAD = re.compile(r"\A(?:#!.*\n)?\s*(?:# ?%%.*\n)?")
_MODE = re.compile(r"""^proofread:[ \t]*["']?(.*?)["']?[ \t]*(?:[ ]#.*)?$""", re.MULTILINE)


class PageError(ValueError):
    """A page cannot be read or shown: its file, the line, the message, and the kind of the finding."""

    def __init__(self, path: str, line: int, message: str, kind: str):
        super().__init__(f"{path}:{line}: {message}")
        self.path, self.line, self.message, self.kind = path, line, message, kind


@dataclass(frozen=True)
class Option:
    """A ``#| key: value`` comment at the top of a code cell."""

    key: str
    value: str
    line: int


@dataclass(frozen=True)
class Cell:
    """One cell: its source without comment marks, and the file's line of its first line."""

    source: str
    line: int
    is_code: bool
    tags: tuple[str, ...] = ()
    fence: str = ""  # how a Markdown page shows this code: its own text, fence and all

    @cached_property
    def options(self) -> tuple[Option, ...]:
        """The cell's ``#|`` comments; only those before the first statement count."""
        head = _OPTIONS.match(self.source) if self.is_code else None
        return tuple(
            Option(m["key"], re.sub(r"\n#\|[ ]*", "\n", m["value"]), self.line + self.source.count("\n", 0, m.start()))
            for m in (_OPTION.finditer(head[0]) if head else ())
        )

    @property
    def holds_claims(self) -> bool:
        """Whether it is a cell of asserts, each of which proves a sentence of the page."""
        return self.is_code and "claims" in self.tags

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax of its code, magics left out; no statements where it is not Python, as what shows that may be."""
        for source in (self.source, _MAGIC.sub(r"\1pass", self.source)) if self.is_code else ():
            with suppress(SyntaxError):
                return module(source)
        return ast.Module([], [])

    def option(self, key: str) -> str | None:
        """The value of the first option of that name."""
        return next((option.value for option in self.options if option.key == key), None)

    @property
    def fails(self) -> bool:
        """Whether the cell is to end in an exception."""
        return "raises-exception" in self.tags or self.option("raises") is not None

    @property
    def shown(self) -> str:
        """The code as a reader sees it, without the ``#|`` comments."""
        return _OPTIONS.sub("", self.source).strip("\n")

    @property
    def fenced(self) -> str:
        """How a Markdown page shows this code, without the ``#|`` comments; "" if it does not."""
        if self.fence and self.holds_claims:  # wherever else the page is read, they are hidden
            return f"```python\n{self.shown}\n```"
        return "" if "hide-input" in self.tags else self.fence.replace(self.source, self.shown, 1)


@dataclass(frozen=True)
class Page:
    """A percent script or a Markdown file, as a sequence of cells."""

    path: str
    cells: tuple[Cell, ...]
    lines: tuple[str, ...] = ()  # of the file, as it is

    @property
    def is_script(self) -> bool:
        """Whether the page is a percent script, whose cells show their outputs."""
        return self.path.endswith(".py")

    def at(self, line: int) -> str:
        """The page and a line of it, as they are told."""
        return f"{self.path}:{line}"

    @property
    def code(self) -> str:
        """All code of the page, for finding what the prose quotes."""
        return "\n".join(cell.source for cell in self.cells if cell.is_code)


def leading_imports(code: str) -> int:
    """How many lines of code its first imports take; 0 if it begins with something else."""
    try:
        body = module(code).body
    except SyntaxError:
        return 0
    first = itertools.takewhile(lambda node: isinstance(node, (ast.Import, ast.ImportFrom)), body)
    return max((node.end_lineno or 0 for node in first), default=0)


def find_pages(paths: Iterable[Path]) -> list[Path]:
    """The pages among files and folders, each once: Markdown, and Python files that hold a ``# %%`` cell."""
    pages: dict[Path, Path] = {}
    for path in paths:
        for file in sorted(inside(path)) if path.is_dir() else [path]:
            if not file.is_symlink() or os.path.exists(file):  # a link may lead nowhere, or to itself
                pages.setdefault(file.resolve(), file)
    return [file for file in pages.values() if is_page(file)]


def inside(folder: Path) -> Iterator[Path]:
    """All files of a folder but hidden ones, which are tools' own."""
    for place, folders, files in os.walk(folder):
        folders[:] = (name for name in folders if not name.startswith("."))
        yield from (Path(place, name) for name in files if not name.startswith("."))


def is_page(path: Path) -> bool:
    """Tell whether a file is a page."""
    if path.suffix != ".py" or not path.is_file():
        return path.suffix == ".md" and path.is_file()
    return re.search(rb"(?:\A(?:\xef\xbb\xbf)?|[\r\n])[ \t]*#[ \t]*%%", path.read_bytes()) is not None


def own_mode(path: Path) -> str:
    """Return the mode that the front matter of a page names, as the settings do; "" if it names none."""
    data = path.read_bytes()
    if b"proofread:" not in data:
        return ""
    text = data.decode(errors="replace").removeprefix(BYTE_ORDER_MARK).replace("\r\n", "\n")
    if path.suffix == ".py":
        text = re.sub(r"(?m)^#[ ]?", "", _SCRIPT_HEAD.sub("", text))
    front = FRONT_MATTER.match(text)
    return ", ".join(_MODE.findall(front[0])) if front else ""


def read(path: Path, root: Path, shelf: Shelf | None = None) -> Page:
    """Read a page; its path is told relative to root, wherever a reader will meet it.

    The shelf keeps the cells of a script, which take longer to tell apart than all that follows.

    Raises:
        PageError: The file is not UTF-8, or nobody can tell what its lines are.
    """
    name = relative(path, root)
    data = path.read_bytes()
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line, byte = data.count(b"\n", 0, error.start) + 1, data[error.start]
        raise PageError(name, line, f"byte {byte:#04x} is not UTF-8; save the page as UTF-8", "encoding") from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise PageError(name, line, "the character '\\x00' is no text; take it out, or save the page anew", "encoding")
    if odd := _ODD_BREAK.search(text):
        line = text.count("\n", 0, odd.start()) + 1
        message = f"the character {odd[0]!a} ends a line for some programs and not for others; take it out, or save the"
        raise PageError(name, line, f"{message} page with other line ends", "encoding")
    text = text.removeprefix(BYTE_ORDER_MARK).replace("\r\n", "\n")
    lines = tuple(text.split("\n"))
    if path.suffix != ".py":
        return Page(name, _markdown(text), lines)
    cells = shelf.made(f"{name} cells", text, lambda: _script(text)) if shelf else _script(text)
    return Page(name, tuple(Cell(**cell | {"tags": tuple(cell["tags"])}) for cell in cells), lines)


def _script(text: str) -> list[dict[str, Any]]:
    # jupytext decides what a cell is, so that a page means here what it means in Jupyter; it does not say where the
    # cell stood, which the markers do.
    import jupytext  # takes a third of a second, and a page that is kept needs it not at all

    header = _HEADER.match(text)
    assert header is not None
    begin = header.end()
    lines = text.splitlines()
    cells = []
    starts = _starts(lines, text.count("\n", 0, begin))
    for start, cell in zip(starts, jupytext.reads(text[begin:], fmt="py:percent").cells, strict=True):
        source = cell.source.strip("\n")
        first = source.split("\n", 1)[0]
        # jupytext drops blank lines, comment marks and quotes around what a cell says.
        within = range(start + bool(_MARKER.match(lines[start])), len(lines))
        line = next((i for i in within if source and lines[i].endswith(first)), within.start)
        if cell.cell_type != "raw":
            is_code, tags = cell.cell_type == "code", cell.metadata.get("tags", [])
            cells.append({"source": source, "line": line + 1, "is_code": is_code, "tags": tags})
    return cells


def _starts(lines: Sequence[str], begin: int) -> Iterator[int]:
    """The lines on which jupytext has a cell begin: not all that look like it, such as a page quoted in a string."""
    from jupytext.cell_reader import DoublePercentScriptCellReader

    while begin < len(lines):
        yield begin
        _, length = DoublePercentScriptCellReader({"extension": ".py"}).read(lines[begin:])
        begin += length


def _markdown(text: str) -> tuple[Cell, ...]:
    """Split a Markdown page at its ```python fences: they run, in order; a fence that cannot run says ```py.

    The asserts of a ```claims fence prove what the page says; no reader sees it.
    """
    cells, end = [], 0
    for fence in _FENCE.finditer(without_open(text, OPEN)):
        kind = re.match(r"\s*(python|claims)\b", fence["info"])
        if not kind or fence["indent"]:
            continue
        cells.append(Cell(text[end : fence.start()], text.count("\n", 0, end) + 1, is_code=False))
        line = text.count("\n", 0, fence.start("body")) + 1
        body, whole = (text[slice(*fence.span(part))] for part in ("body", 0))
        code = Cell(body.rstrip("\n"), line, is_code=True, fence=whole)
        tags = re.findall(r"[\w-]+", code.option("tags") or "") if kind[1] == "python" else ["claims"]
        cells.append(replace(code, tags=tuple(tags)))
        end = fence.end()
    cells.append(Cell(text[end:], text.count("\n", 0, end) + 1, is_code=False))
    return tuple(cells)
