"""The order in which a page is read: as it was written, but that each section folds its checks away at its end."""

import re
from collections.abc import Callable, Iterator

from ..checks.checked import Checked
from ..pages.page import FENCE

SOLUTION, CHECK = "Solution", "How this is checked"
_HEADING = re.compile(rf"(?ms:{FENCE})|(?P<heading>^#{{1,6}}[ \t])", re.MULTILINE)


def parts(checked: Checked, text: Callable[[int], str]) -> Iterator[tuple[str, int, str]]:
    """Yield each cell that the reader sees, in order: the fold around it, its place, and its text if it is prose.

    A Markdown cell in whose middle a section ends comes in two parts.
    """
    checks: list[tuple[str, int, str]] = []
    for index, cell in enumerate(checked.page.cells):
        said = "" if cell.is_code else text(index)
        if "remove-cell" in cell.tags:
            continue
        if {"check", "claims"} & {*cell.tags}:
            checks.append((CHECK, index, said))
            continue
        fold = SOLUTION if "solution" in cell.tags else ""
        ends = next((found.start() for found in _HEADING.finditer(said) if found["heading"]), None)
        if checks and ends is not None:
            if said[:ends].strip():
                yield fold, index, said[:ends]
            yield from checks
            checks, said = [], said[ends:]
        yield fold, index, said
    yield from checks
