"""Programs of a page's cells: each the shortest that runs alone and prints what its cell shows.

A program has, of the cells before its own, the statements that matter to it. While a page runs, its statements are
watched (record.py); from that and from the names that they use (names.py), what a cell needs of them is found, and the
program is written (program.py). That it prints what the page shows is tried when the page is checked, in an empty
folder and an interpreter that has nothing of the page (trial.py).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..syntax import module
from .program import write
from .record import ADDRESS, CellRun
from .record import Recorder as Recorder  # what a page's run watches its statements with
from .trial import Ran

NO_SNIPPET = "no-snippet"
SNIPPET_REMEDY = f"let it take what it needs from its page alone, or tag it {NO_SNIPPET}"
_ANYTHING = "\0"  # stands for what a program may print of a value whose page shows it otherwise than as text
_FIGURE = re.compile(r"<\w*Figure size [^>]*>")


@dataclass(frozen=True)
class Snippet:
    """The program of a cell.

    Attributes:
        text: The program; "" if there is none.
        shows: The text that it prints.
        raises: The exception that ends it, where the page shows one: ``ValueError: ...``.
        reason: Why there is no program.
    """

    text: str = ""
    shows: str = ""
    raises: str = ""
    reason: str = ""


def make(cells: Mapping[int, CellRun], wanted: Iterable[int]) -> dict[int, Snippet]:
    """Make the programs of the wanted ones of a page's cells, which all ran."""
    return {place: _make(cells, place) for place in wanted}


def _make(cells: Mapping[int, CellRun], place: int) -> Snippet:
    cell = cells[place]
    shows = printed_by(cell)
    if reason := _beyond_python(cell):
        return Snippet(shows=shows, reason=reason)
    return Snippet(write(cells, place), shows, cell.raised)


def disagreement(snippet: Snippet, ran: Ran) -> tuple[str, str] | None:
    """Return how the program differs from its page, in short and in full; None if it does not."""
    result, wanted = (ran.printed, ran.raised), (snippet.shows, snippet.raises)
    if all(map(_agree, map(_plain, result), map(_plain, wanted))):
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
        module(cell.code)
    except SyntaxError:
        return "it is no Python, which is what it shows"
    if match := re.search(r"get_ipython\(\)\.(\w+)\(([^)]*)\)", cell.code):
        return f"it uses IPython's own syntax: {match[0]}"
    return ""


def printed_by(cell: CellRun) -> str:
    """Return the text that a program prints if it shows the same as its cell."""
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


def _plain(text: str) -> str:
    """A text without white space and addresses, which may differ."""
    return "".join(ADDRESS.sub("0x", _FIGURE.sub("", text)).split())
