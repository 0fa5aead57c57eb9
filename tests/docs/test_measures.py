"""What a page and a module weigh: each has a limit of its own, and takes no room from another.

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


def lines(path: Path) -> int:
    """How many lines a file has."""
    return path.read_text().count("\n")


def weight(page: Path) -> tuple[int, int]:
    """The characters of directives in a page's prose, and those of all of it."""
    prose = "".join(cell.prose for cell in cells(page))
    return sum(map(len, DIRECTIVE.findall(prose))), len(prose)


def claims(page: Path) -> int:
    """The lines of a page's cells, or fences, that hold claims."""
    if page.suffix == ".md":
        return sum(fence.count("\n") for fence in re.findall(r"(?ms)^```claims\n(.*?)^```", page.read_text()))
    return sum(cell.source.count("\n") + 1 for cell in cells(page) if '"claims"' in cell.marker)


def hidden(page: Path) -> int:
    """The lines of code that a page runs and does not show, apart from claims and solutions."""
    kept = (cell for cell in cells(page) if not any(tag in cell.marker for tag in ("claims", "solution")))
    return sum(cell.code for cell in kept if any(tag in cell.marker for tag in HIDDEN))


def named(paths: list[Path]) -> pytest.MarkDecorator:
    """A test of each of some files, by its place in the project."""
    return pytest.mark.parametrize("path", paths, ids=lambda path: str(path.relative_to(ROOT)))


@named(PAGES)
def test_directives_leave_the_prose_to_its_reader(path: Path):
    own, every = weight(path)
    assert own <= max(300, 0.15 * every), "put what needs more than a figure into a cell of claims"


@named(PAGES)
def test_claims_are_the_smaller_part_of_a_page(path: Path):
    told = "prove each sentence once, by the shortest assert that holds it, or give a part of the page one of its own"
    assert claims(path) <= max(20, lines(path) / 3), told


@named(PAGES)
def test_a_page_has_one_question(path: Path):
    told = (
        "a page of more than 850 lines, claims apart, answers more than one question: give the other a page of its own"
    )
    assert lines(path) - claims(path) <= 850, told


@named([page for page in SCRIPTS if page.parent.name in ("learn", "pytorch")])
def test_a_page_that_teaches_shows_its_code(path: Path):
    told = "show it, or move it to a module of unmasked_lessons.experiments: a page hides at most 150 lines of code"
    assert hidden(path) <= 150, told


# What exceeds the limit so far, and by how much at most: it may get better, and never worse.
LONGER = {"src/unmasked_doctor/probes.py": 750}


def test_a_module_does_one_thing():
    modules = [path for folder in ("src", "tests") for path in (ROOT / folder).rglob("*.py")]
    sizes = {path.relative_to(ROOT).as_posix(): lines(path) for path in modules}
    limits = {name: LONGER.get(name, 800 if name.startswith("tests/") else 600) for name in sizes}
    told = {name: f"{size} lines, and {limits[name]} are the limit" for name, size in sizes.items()}
    assert {name: told[name] for name in sizes if sizes[name] > limits[name]} == {}, "part it: no denser line helps"
