"""Every row of the table of what covers what leads to headings that exist, and to sections that speak of the same."""

import re
from collections import Counter
from functools import cache
from pathlib import Path, PurePosixPath

import pytest
from bs4 import BeautifulSoup, NavigableString

TABLE = Path(__file__).parents[2] / "docs/contributing/coverage.md"
LINK = re.compile(r"\]\(\.\./(?P<page>[^)#]+)#(?P<anchor>[^)]+)\)")
ROWS = [line for line in TABLE.read_text().splitlines() if re.match(r"\| \d{3} \|", line)]
HEADING = re.compile("h[1-6]")


@cache
def parsed(path: Path) -> BeautifulSoup:
    return BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")


def section(site: Path, page: str, anchor: str) -> str:
    """What stands under a heading of a page, code included."""
    heading = parsed(site / PurePosixPath(page).with_suffix("") / "index.html").find(HEADING, id=anchor)
    assert heading, f"{page} has no heading #{anchor}"
    found = []
    for each in heading.next_elements:
        if isinstance(each, NavigableString):
            found.append(each)
        elif HEADING.fullmatch(each.name) and each.name <= heading.name:
            break
    return "".join(found)


# Words that say how something is told, and not what.
PLAIN = {"with", "their", "from", "over", "told", "into", "taking", "apart", "printed", "other", "than", "every",
         "same", "class"}  # fmt: skip


def words(text: str) -> set[str]:
    """The words of a text by how they begin, so that *masks* and *masked* are one."""
    return {word.lower()[:5] for word in re.findall(r"[^\W\d_]{4,}", text) if word.lower() not in PLAIN}


def unfit(site: Path, row: str) -> list[str]:
    """What the sections to which a row links do not speak of, though the row says so."""
    _, taught, links = row.split(" | ")
    linked = [(link["anchor"], section(site, **link.groupdict())) for link in LINK.finditer(links)]
    assert len(linked) == links.count("](") > 0, "name the heading that covers it"
    everything = "\n".join(text for _, text in linked)
    said = words(re.sub(r"`[^`]*`", "", taught))
    told = [f"nothing of {code}" for code in re.findall(r"`([^`]+)`", taught) if code not in everything]
    told += [f"#{anchor} has no word of it" for anchor, text in linked if said and not said & words(text)]
    if said and len(said & words(everything)) <= len(said) / 2:
        told.append(f"nothing of {sorted(said - words(everything))}")
    return told


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split(" | ")[1][:40])
def test_what_a_row_says_is_what_its_sections_speak_of(site: Path, row: str):
    assert unfit(site, row) == []


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (
            "| 002 | `d_in` other than `d_model` | [a](../learn/cross.py#one-sentence-asks-the-other) |",
            ["nothing of d_in", "nothing of d_model"],
        ),
        (
            "| 003 | cosine similarity | [a](../pytorch/masks.py#nothing-leaks) |",
            ["#nothing-leaks has no word of it", "nothing of ['cosin', 'simil']"],
        ),
    ],
)
def test_a_row_that_leads_to_another_section_is_found(site: Path, row: str, told: list[str]):
    assert unfit(site, row) == told


@pytest.mark.parametrize("link", ["", "[a](../learn/cross.py)", "[a](../learn/cross.py#gone)"])
def test_a_row_that_leads_to_no_heading_is_found(site: Path, link: str):
    with pytest.raises(AssertionError, match=r"name the heading that covers it|has no heading #gone"):
        unfit(site, f"| 002 | sequences | {link} |")


def test_every_notebook_is_covered():
    counts = Counter(row[2:5] for row in ROWS)
    assert counts.keys() == {"000", "001", "002", "003", "004"}
    assert min(counts.values()) >= 4, counts
