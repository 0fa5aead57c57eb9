"""Programs of a page's cells: each the shortest that runs alone and prints what its cell shows.

A program has, of the cells before its own, the statements that matter to it, and of the documented packages, the
source that it needs (or imports them, in its other form). It was run before it is offered: in an interpreter that
cannot import these packages, in an empty folder. Where it printed something else than the page shows, it takes in more
of the page, in the end all that ran before the cell; where that does not help, this is a finding.
"""

import ast
import functools
import os
import re
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing import Pipe

from .inline import CannotInlineError, Inliner, Library
from .program import Extent, Program, needed, write
from .record import ADDRESS, CellRun, Recorder
from .trial import Making, Ran, Trial, load, prepare, run_all, run_alone

NO_SNIPPET = "no-snippet"
SNIPPET_REMEDY = f"let it take what it needs from its page alone, or tag it {NO_SNIPPET}"
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
        whole: Whether they have all that ran before the cell, as a part of it was not enough.
        reason: Why a form is missing although the cell is as it may be.
        problem: What is wrong with the cell where it has no program; a finding.
        detail: What the program printed, and what the page shows.
    """

    runnable: str = ""
    importing: str = ""
    shows: str = ""
    raises: str = ""
    requires: tuple[str, ...] = ()
    whole: bool = False
    reason: str = ""
    problem: str = ""
    detail: str = ""

    def titled(self, title: str) -> "Snippet":
        """The same, with programs that begin with a comment which says where they come from."""
        runnable, importing = (text and f"# {title}\n{text}" for text in (self.runnable, self.importing))
        return replace(self, runnable=runnable, importing=importing)


@dataclass
class Request:
    """What it takes to make a page's programs: its cells as they ran, and what they took of the packages."""

    cells: Mapping[int, CellRun]
    programs: Mapping[int, float]  # the cells that have one, and the seconds that it may take
    packages: Sequence[str]
    modules: Sequence[str] = ()
    data: Mapping[str, Sequence[str]] = field(default_factory=dict)
    seconds: float = 120.0  # for all of them


class Workshop:
    """A process that makes a page's programs; forked before the page runs, so that it has nothing of the page."""

    def __init__(self) -> None:
        self._connection, theirs = Pipe()
        self._pid = os.fork()
        if not self._pid:
            self._connection.close()
            try:
                theirs.send(make(theirs.recv()))
            except BaseException:
                theirs.send(traceback.format_exc())
            finally:
                os._exit(0)
        theirs.close()

    def make(self, request: Request) -> dict[int, Snippet]:
        """The programs, by the place of their cells."""
        self._connection.send(request)
        made: dict[int, Snippet] | str = self._connection.recv()
        os.waitpid(self._pid, 0)
        if isinstance(made, str):
            raise RuntimeError(made)
        return made


def verify(
    snippet: Snippet, packages: Sequence[str] = (), importing: bool = False, timeout: float = 120.0
) -> str | None:
    """Run a snippet's program in a new interpreter and an empty folder, as one who pasted it would.

    Args:
        snippet: What to run. It must have that form of the program.
        packages: The packages that the interpreter must not be able to import: those that the page documents.
        importing: Whether to run the form that imports them. Then none is kept from it.
        timeout: The seconds that it may take.

    Returns:
        None if it did what the page shows, else what it did instead.
    """
    program = snippet.importing if importing else snippet.runnable
    ran = run_alone(program, () if importing else packages, None if importing else snippet.requires, timeout)
    if agrees(ran, snippet.shows, snippet.raises, packages):
        return None
    return _difference(ran, snippet.shows, snippet.raises)


def _difference(ran: Ran, shows: str, raises: str) -> str:
    return f"alone:\n{ran.printed}{ran.trace or ran.raised}".rstrip() + f"\non the page:\n{shows}{raises}".rstrip()


def make(request: Request) -> dict[int, Snippet]:
    """Make and try the programs of all cells."""
    library = Library(request.packages, request.modules)
    prepare(request.modules)
    places = list(request.programs)
    cores = getattr(os, "process_cpu_count", os.cpu_count)() or 1
    makings = [_make(request, place, library) for place in places]
    imports = functools.partial(load, request.modules, request.packages)
    return dict(zip(places, run_all(makings, min(2, cores), request.seconds, imports), strict=True))


def _make(request: Request, place: int, library: Library) -> Making[Snippet]:
    try:
        return (yield from _tried(request, place, library))
    except TimeoutError as error:
        return Snippet(reason=str(error))


def _tried(request: Request, place: int, library: Library) -> Making[Snippet]:
    cell = request.cells[place]
    shows = printed_by(cell)
    if reason := _beyond_python(cell):
        return Snippet(shows=shows, reason=reason)
    tried: dict[str, Ran] = {}
    reason, ran, program = "", Ran(""), Program("", ())

    def forms(annotations: Sequence[bool] | None) -> Making[tuple[Program, Extent] | None]:
        nonlocal ran, program
        for extent in Extent:
            earlier = needed(request.cells, place, extent)
            for kept in (None,) if annotations is None else annotations:
                inliner = None if kept is None else Inliner(library, request.data, kept)
                program = write(request.cells, place, earlier, library, inliner)
                if program.text not in tried:
                    blocked = () if kept is None else library.packages
                    ran = tried[program.text] = yield Trial(
                        program.text, blocked, program.requires, request.programs[place]
                    )
                    if agrees(ran, shows, cell.raised, library.packages):
                        return program, extent
        return None

    try:
        if found := (yield from forms((False, True))):
            runnable, extent = found
            importing = write(request.cells, place, needed(request.cells, place, extent), library, None)
            if importing.text not in tried:
                ran = yield Trial(importing.text, (), importing.requires, request.programs[place])
            if agrees(ran, shows, cell.raised, library.packages):
                whole = extent is Extent.WHOLE
                return Snippet(runnable.text, importing.text, shows, cell.raised, runnable.requires, whole)
        failed = ran
    except CannotInlineError as error:
        reason, failed = str(error), None
    if found := (yield from forms(None)):
        importing, extent = found
        if failed is None:
            whole = extent is Extent.WHOLE
            return Snippet("", importing.text, shows, cell.raised, importing.requires, whole, reason)
    else:
        failed = failed or ran
    if missing := re.match(r"FileNotFoundError: .*'(.*)'$", failed.raised):
        return Snippet(shows=shows, raises=cell.raised, reason=f"it reads {missing[1]}, which lies beside its page")
    problem = "does not run alone" if failed.raised and failed.raised != cell.raised else "prints something else alone"
    detail = _difference(failed, shows, cell.raised)
    return Snippet(shows=shows, raises=cell.raised, problem=f"{problem}: {failed.raised or 'see below'}", detail=detail)


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
            text += _FIGURE.sub("", output["data"].get("text/plain", "")) + "\n"
    return text


def agrees(ran: Ran, shows: str, raises: str, packages: Sequence[str]) -> bool:
    """Whether a program did what the page shows, but for white space, addresses and the names of modules."""
    return _plain(ran.printed, packages) == _plain(shows, packages) and _plain(ran.raised, packages) == _plain(
        raises, packages
    )


def _plain(text: str, packages: Sequence[str]) -> str:
    modules = "|".join(["__main__", *(rf"{re.escape(package)}(?:\.\w+)*" for package in packages)])
    text = re.sub(rf"\b(?:{modules})\.(?=\w)", "", ADDRESS.sub("0x", _FIGURE.sub("", text)))
    return "".join(text.split())


__all__ = ["NO_SNIPPET", "SNIPPET_REMEDY", "Recorder", "Request", "Snippet", "Workshop", "make", "verify"]
