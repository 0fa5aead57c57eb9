"""The program of the last page of learn grows: each page shows lines of it, and the last line is met in the end."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from bs4 import BeautifulSoup
from mkdocs.exceptions import PluginError

from .hooks import hook

ROOT = Path(__file__).parents[2]
LEARN = ROOT / "docs/learn"
program = hook("program")
CODE = program.program(LEARN / "generating.py")
LINES = CODE.splitlines()


def shown(here: str) -> tuple[list[str], list[str], list[str]]:
    """The lines that a page shows, dots left out, those of them that are marked as new, and all that were met."""
    fold = BeautifulSoup(program.so_far(CODE, here), "html.parser")
    boxes = fold.select("pre")
    first, last = (
        [line for line in box.get_text().splitlines() if line.strip() != "…"] for box in (boxes[0], boxes[-1])
    )
    assert boxes[0].select("mark") == boxes[-1].select("mark")
    return first, [mark.get_text() for mark in boxes[0].select("mark")], last


def test_each_page_marks_what_it_adds_and_folds_up_what_came_before_and_all_are_lines_of_the_program():
    before: list[str] = []
    for here in program.ADDED:
        _, new, lines = shown(here)
        remaining = iter(LINES)
        assert all(line in remaining for line in lines), f"{here} shows lines in another order than the program"
        assert len(lines) == len(before) + len(new)
        assert sorted(lines) == sorted([*before, *new])
        before = lines
    last = [line for line, page in zip(LINES, program.adders(LINES), strict=True) if page == program.LAST]
    assert sorted([*before, *last]) == sorted(LINES)
    # What the last page adds is its own: reading the next word out, and the loop that writes.
    own = (
        "self.read =",
        "return self.read",
        "words =",
        "while ",
        "grades = model(words",
        "words =",
        "for line",
        "print(",
    )
    assert all(line.strip().startswith(begin) for line, begin in zip(last, own, strict=True))


@pytest.mark.parametrize("here", program.ADDED)
def test_beside_its_new_lines_a_page_shows_those_alone_that_they_belong_to(here: str):
    lines, new, met = shown(here)
    for line in lines:
        assert line in met
        assert line in new or re.match(r" *(class|def|for)\b.*:", line), f"{line!r} is neither new nor holds others"


def test_new_lines_stand_in_the_class_and_the_function_that_they_belong_to():
    lines, new, _ = shown("learn/heads.py")
    assert [line.split("(")[0].strip() for line in lines if line not in new] == ["class Block", "def attention"]


@pytest.mark.parametrize("page", [*LEARN.glob("*.py")], ids=lambda path: path.stem)
def test_a_page_that_adds_lines_asks_for_them_once_and_the_last_has_them_all(page: Path):
    expected = 0 if page.stem in ("cross", "generating") else 1
    assert page.read_text(encoding="utf-8").count(f"# {program.MARK}\n") == expected
    assert (f"learn/{page.name}" in program.ADDED) is (expected == 1)


def test_pages_come_in_the_order_of_the_navigation():
    order = re.findall(r"learn/\w+\.py", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert [page for page in order if page in program.ADDED] == [*program.ADDED]


def test_it_says_how_many_lines_there_are_and_how_many_are_new():
    _, new, lines = shown("learn/masks.py")
    summaries = BeautifulSoup(program.so_far(CODE, "learn/masks.py"), "html.parser").select("summary")
    assert [each.get_text() for each in summaries] == [
        f"The program grows: {len(new)} new lines, {len(lines)} of {len(LINES)} so far",
        f"All {len(lines)} lines",
    ]
    assert program.so_far(CODE, "learn/attention.py").count("<summary>") == 1, "all lines of the first page are new"


def test_a_line_that_the_program_does_not_have_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(program.ADDED, "learn/heads.py", ("slice =",))
    with pytest.raises(PluginError, match=r"learn/heads.py adds 'slice =', with which no line of docs/learn/gen"):
        program.adders(LINES)


def test_a_program_that_is_not_there_is_named(tmp_path: Path):
    (tmp_path / "page.py").write_text("# %%\nclass Module:\n    pass\n")
    with pytest.raises(PluginError, match=r"page.py has 0 cells with a `class Model`"):
        program.program(tmp_path / "page.py")
