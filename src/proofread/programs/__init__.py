"""Programs of a page's cells: each the shortest that runs alone and prints what its cell shows.

A program has, of the cells before its own, the statements that matter to it, and of the documented packages, the
source that it needs (or imports them, in its other form). While a page runs, its statements are watched (record.py);
from that and from the names that they use (names.py), what a cell needs of them is found (program.py). What it needs of
the packages (library.py) is found and named (inline.py) and taken out of their source (excerpt.py, source.py), and the
program is written. That it prints what the page shows is tried when the page is checked: in an interpreter that cannot
import these packages, in an empty folder (trial.py).
"""

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .excerpt import tools_comments
from .inline import Inliner
from .library import CannotInlineError, Library, read_ahead
from .program import needed, write
from .record import ADDRESS, CellRun
from .record import Recorder as Recorder  # what a page's run watches its statements with
from .trial import Ran, Trial

NO_SNIPPET = "no-snippet"
SNIPPET_REMEDY = f"let it take what it needs from its page alone, or tag it {NO_SNIPPET}"
# A program that shows source shows it as it stands.
_READS_SOURCE = re.compile(r"\binspect\b|\b__annotations__\b|\bget_type_hints\b")
_ANYTHING = "\0"  # stands for what a program may print of a value whose page shows it otherwise than as text
_FIGURE = re.compile(r"<\w*Figure size [^>]*>")


@dataclass(frozen=True)
class Snippet:
    """The programs of a cell.

    Attributes:
        runnable: The program that carries what it needs of the packages; "" if there is none.
        importing: The program that imports the packages; the same text where nothing comes from them, "" if there is
            none.
        shows: What both print.
        raises: The exception that ends both, where the page shows one: ``ValueError: ...``.
        requires: What must be installed to run the first: ("torch",) or ("matplotlib", "torch").
        reason: Why a form is missing.
    """

    runnable: str = ""
    importing: str = ""
    shows: str = ""
    raises: str = ""
    requires: tuple[str, ...] = ()
    reason: str = ""

    def lines(self, importing: bool = False) -> int:
        """How many lines one copies with a form, with the one above it that says where it is from; 0 without it."""
        text = self.importing if importing else self.runnable
        return len(text.splitlines()) + 1 if text else 0


@dataclass
class Request:
    """What it takes to make a page's programs: its cells as they ran, and what they took of the packages."""

    cells: Mapping[int, CellRun]
    programs: Sequence[int]  # the cells that have one
    packages: Sequence[str]
    modules: Sequence[str] = ()
    data: Mapping[str, Sequence[str]] = field(default_factory=dict)


def ahead(folder: Path, path: Path) -> None:
    """Read a file of a package, which lies in this folder, before pages make programs of it."""
    tools_comments(read_ahead(folder.name, folder, path))


def make(request: Request) -> dict[int, Snippet]:
    """Make the programs of all cells."""
    library = Library(request.packages, request.modules)
    return {place: _make(request, place, library) for place in request.programs}


def _make(request: Request, place: int, library: Library) -> Snippet:
    cell = request.cells[place]
    shows = printed_by(cell)
    if reason := _beyond_python(cell):
        return Snippet(shows=shows, reason=reason)
    earlier = needed(request.cells, place)
    importing, requires = write(request.cells, place, earlier, Inliner(Library(()), {}))
    try:
        inliner = Inliner(library, request.data, annotations=_READS_SOURCE.search(importing) is not None)
        carrying, requires = write(request.cells, place, earlier, inliner)
    except CannotInlineError as error:
        return Snippet("", importing, shows, cell.raised, requires, reason=str(error))
    return Snippet(carrying, importing, shows, cell.raised, requires)


def trials(snippet: Snippet, packages: Sequence[str], seconds: float) -> dict[str, Trial]:
    """Its programs, to be tried: each by how it is called."""
    found = {}
    if snippet.runnable:
        found["alone"] = Trial(snippet.runnable, tuple(packages), snippet.requires, seconds)
    if snippet.importing != snippet.runnable:
        found["importing " + " and ".join(packages)] = Trial(snippet.importing, (), None, seconds)
    return found


def disagreement(snippet: Snippet, ran: Ran, packages: Sequence[str]) -> tuple[str, str] | None:
    """What a program of the snippet did instead of what its page shows, and both in full; None if it did that."""
    said, wanted = (ran.printed, ran.raised), (snippet.shows, snippet.raises)
    if all(_agree(_plain(one, packages), _plain(other, packages)) for one, other in zip(said, wanted, strict=True)):
        return None
    in_full = (
        f"alone:\n{ran.printed}{ran.trace or ran.raised}".rstrip()
        + "\non the page:\n"
        + "".join(wanted).replace(_ANYTHING, "...").rstrip()
    )
    fails = ran.raised and ran.raised != snippet.raises
    return f"does not run: {ran.raised}" if fails else "prints something else", in_full


def _beyond_python(cell: CellRun) -> str:
    try:
        ast.parse(cell.code)
    except SyntaxError:
        return "it is no Python, which is what it shows"
    if found := re.search(r"get_ipython\(\)\.(\w+)\(([^)]*)\)", cell.code):
        return f"it uses IPython's own syntax: {found[0]}"
    return ""


def printed_by(cell: CellRun) -> str:
    """What a program prints that shows what the cell shows."""
    text = ""
    for output in cell.outputs:
        if output.get("name") == "stdout":
            text += "".join(output["text"])
        elif output["output_type"] == "execute_result" and cell.shown is not None:
            text += "" if cell.shown.figure else cell.shown.text + "\n"
        elif output["output_type"] == "display_data":
            plain = output["data"].get("text/plain", _ANYTHING)
            text += _ANYTHING if ADDRESS.search(plain) else _FIGURE.sub("", plain) + "\n"
    return text


def _agree(printed: str, wanted: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, wanted.split(_ANYTHING))), printed, re.DOTALL) is not None


def _plain(text: str, packages: Sequence[str]) -> str:
    """A text without white space, addresses and the names of modules, which may differ."""
    modules = "|".join(["__main__", *(rf"{re.escape(package)}(?:\.\w+)*" for package in packages)])
    text = re.sub(rf"\b(?:{modules})\.(?=\w)", "", ADDRESS.sub("0x", _FIGURE.sub("", text)))
    return "".join(text.split())
