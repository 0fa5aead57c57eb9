"""What the sources of the pages, of the library and of what checks them weigh: each measure has a limit.

Directives are the comments in the prose, which bind figures and formulas to the code; captions and alternative texts
are prose. Hidden code is what a page runs and does not show, but for claims, imports and solutions.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SCRIPTS = sorted(path for path in DOCS.rglob("*.py") if path.parent.name != "hooks")
PAGES = [*SCRIPTS, *sorted(path for path in DOCS.rglob("*.md") if path.parent.name != "reference")]
MARKER = re.compile(r"(?m)^# %%(.*)\n")
DIRECTIVE = re.compile(r"<!--.*?-->", re.DOTALL)
FENCED = re.compile(r"(?ms)^([ ]*)(`{3,})[^\n]*\n.*?^\1\2[ ]*$")
HIDDEN = ("hide-input", "remove-cell", '"check"')


class Cell(NamedTuple):
    """A cell of a page: what its marker says, and its lines."""

    marker: str
    source: str

    @property
    def prose(self) -> str:
        """What it says to a reader: its Markdown, or its captions and alternative texts."""
        if "[markdown]" in self.marker:
            return re.sub(r"(?m)^# ?", "", self.source)
        return "\n".join(line[2:] for line in self.source.split("\n") if line.startswith("#|"))

    @property
    def code(self) -> int:
        """How many lines of code it has, imports apart."""
        if "[markdown]" in self.marker:
            return 0
        return len(re.findall(r"(?m)^(?!#\||import |from )[ ]*\S", self.source))


def cells(page: Path) -> Iterator[Cell]:
    """The cells of a page; a Markdown page is one of prose, its fences apart."""
    if page.suffix == ".md":
        yield Cell("[markdown]", FENCED.sub("", page.read_text()))
    else:
        yield from map(Cell._make, zip(*[iter(MARKER.split(page.read_text())[1:])] * 2, strict=True))


def lines(*paths: Path) -> int:
    """How many lines the files have."""
    return sum(path.read_text().count("\n") for path in paths)


def weight(page: Path) -> tuple[int, int]:
    """The characters of directives in a page's prose, and those of all of it."""
    prose = "".join(cell.prose for cell in cells(page))
    return sum(map(len, DIRECTIVE.findall(prose))), len(prose)


def code(pages: list[Path], *tags: str, without: tuple[str, ...] = ("claims", "solution")) -> int:
    """The lines of code of the cells with one of these tags, or of those with none that hides."""
    found = (cell for page in pages for cell in cells(page) if not any(tag in cell.marker for tag in without))
    return sum(cell.code for cell in found if any(tag in cell.marker for tag in tags or HIDDEN) is bool(tags))


def claims() -> int:
    """The lines of code of the cells and fences that hold claims."""
    fences = (re.findall(r"(?ms)^```claims\n(.*?)^```", page.read_text()) for page in PAGES if page.suffix == ".md")
    return code(SCRIPTS, "claims", without=()) + sum(fence.count("\n") for every in fences for fence in every)


def pages() -> int:
    """The lines of the pages that are scripts, without their cells of claims."""
    proofs = (cell for page in SCRIPTS for cell in cells(page) if '"claims"' in cell.marker)
    return lines(*SCRIPTS) - sum(cell.source.count("\n") + 1 for cell in proofs)


def hidden() -> float:
    """The hidden lines for each visible one of the pages that teach."""
    taught = [page for page in SCRIPTS if page.parent.name in ("learn", "pytorch")]
    return code(taught, *HIDDEN) / code(taught)


def directives() -> float:
    """The share of the prose's characters that directives take."""
    weights = list(map(weight, PAGES))
    return sum(own for own, _ in weights) / sum(every for _, every in weights)


MEASURES = {
    "directives of all prose": (directives, 0.10),
    "hidden code for each visible line of learn and pytorch": (hidden, 1.2),
    "lines of claims": (claims, 2_000 + 70),
    # With models, linear and gpu; serving; flex; what a config says of positions, and four plates of it.
    "lines of pages, claims apart": (pages, 14_700 + 3 * 300 + 450 + 390 + 250),
    "lines of proofread": (lambda: lines(*(ROOT / "src/proofread").rglob("*.py")), 13_300),
    "lines of proofread's tests": (lambda: lines(*(ROOT / "tests/proofread").rglob("*.py")), 9_400),
    "lines of unmasked": (lambda: lines(*(ROOT / "src/unmasked").rglob("*.py")), 21_300),
    "lines of the doctor": (lambda: lines(*(ROOT / "src/unmasked/doctor").rglob("*.py")), 6_300),
    "lines of tests": (lambda: lines(*(ROOT / "tests").rglob("*.py")), 35_600),
}


@pytest.mark.parametrize("name", MEASURES)
def test_the_sources_stay_light(name):
    measure, limit = MEASURES[name]
    assert measure() <= limit, f"{name}: find the smaller idea; a denser line is none"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_directives_leave_the_prose_to_its_reader(page):
    own, every = weight(page)
    assert own <= 0.15 * every, "put what needs more than a figure into a cell of claims"
