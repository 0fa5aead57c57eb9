"""Each mistake of the museum's list hangs in its room, wrong beside right, measured, found and mended."""

import re
from functools import cache
from pathlib import Path

import pytest

from unmasked_doctor.museum import ENTRIES, Entry
from unmasked_lessons.figures.gallery import ROOMS

DOCS = Path(__file__).parents[2] / "docs"

HEADING = re.compile(r"^# ## (?P<title>.+?) \{ ?#(?P<slug>[a-z0-9-]+) ?\}$", re.MULTILINE)


@cache
def sections(page: str) -> dict[str, str]:
    """The page's source from each heading with an anchor to the next heading."""
    text = (DOCS / f"{page}.py").read_text()
    found = {}
    for heading in HEADING.finditer(text):
        assert heading["slug"] not in found, f"{page} has two headings with the anchor {heading['slug']}"
        after = text[heading.end() :]
        found[heading["slug"]] = heading[0] + re.split(r"^# ## ", after, maxsplit=1, flags=re.MULTILINE)[0]
    return found


def code(section: str) -> str:
    return "\n".join(line for line in section.splitlines() if not line.startswith("#"))


def prose(section: str) -> str:
    text = " ".join(line.lstrip("# ") for line in section.splitlines() if line.startswith("#"))
    return re.sub(r"\s+", " ", re.sub(r"<!--.*?-->", "", text))


# What the words after "Caught by" name, and the probe that the section then runs.
PROBES = {"exchanging tokens": "breaks_equivariance", "changing one item": "mixes_items"}


def uncaught(section: str, room: str = "") -> list[str]:
    """What is missing for a mistake to be caught in its section, as it is told there.

    The probe of the room's `Exhibits` runs wherever a section calls it.
    """
    ran = code(section)
    if default := re.search(r"Exhibits\([^)]*probe=probes\.(\w+)", room):
        ran = re.sub(r"\bexhibit\(", f"exhibit({default[1]}, ", ran)
    checked = re.search(r"^ *(?:exhibit\(|assert )", ran, re.MULTILINE) or "<!--=" in section
    missing = [] if checked else ["nothing is checked"]
    by = re.search(r"\*\*Caught by\*\* (.*?)(?:\*\*Fix:\*\*|\Z)", prose(section))
    told = by[1].split(", which ")[0] if by else ""  # what follows is about it
    names = (name for span in re.findall(r"`([^`]+)`", told) for name in re.findall(r"[^\W\d]\w{2,}", span))
    missing += [f"{name} does not run" for name in names if not re.search(rf"\b{name}\b", ran)]
    wanted = {probe for words, probe in PROBES.items() if re.search(rf"\b{words}\b", told)}
    return missing + ([] if not wanted or any(probe in ran for probe in wanted) else [f"none of {wanted} runs"])


def test_a_mistake_that_nothing_catches_is_found():
    told = "# ## A {{ #a }}\n#\n# **Caught by** {}. **Fix:** `b`.\n\n# %%\n{}\n"
    assert uncaught(told.format("luck", "x = 1")) == ["nothing is checked"]
    assert uncaught(told.format("`is_bypassed`", "assert x")) == ["is_bypassed does not run"]
    assert uncaught(told.format("exchanging tokens", "assert x")) == ["none of {'breaks_equivariance'} runs"]
    assert uncaught(told.format("exchanging tokens", "exhibit()"), "Exhibits(probe=probes.breaks_equivariance)") == []
    assert uncaught(told.format("`is_bypassed(x)`, exchanging tokens", "assert is_bypassed(breaks_equivariance)")) == []


@pytest.mark.parametrize("page", sorted({entry.page for entry in ENTRIES.values()}))
def test_a_room_shows_what_the_list_says_and_nothing_else(page: str):
    assert list(sections(page)) == [slug for slug, entry in ENTRIES.items() if entry.page == page]


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
def test_an_entry_has_a_title_a_wrong_version_a_measured_figure_where_it_hides_the_check_and_the_fix(entry: Entry):
    section = sections(entry.page)[entry.slug]
    assert section.startswith(f"# ## {entry.title} {{")
    assert code(section).strip(), "no code"
    page = (DOCS / f"{entry.page}.py").read_text()
    table = [line for line in page.splitlines() if f"(#{entry.slug})" in line and line.startswith("# |")]
    measured = re.compile(r"<!--=|\{\{|^assert ", re.MULTILINE)
    assert any(measured.search(text) for text in [*table, section]), "nothing was measured"
    told = prose(section)
    assert re.search(r"\b[Hh]ides\b", told), "where does it hide?"
    assert uncaught(section, page) == []
    assert "**Fix:** " in told


def test_the_index_shows_the_gallery():
    assert "\nGallery(both)\n" in (DOCS / "museum/index.py").read_text()


@pytest.mark.parametrize("page", ROOMS)
def test_a_room_has_the_title_that_the_index_gives_it(page: str):
    assert f"\n# # {ROOMS[page]}\n" in (DOCS / f"{page}.py").read_text()


def flat(code: str) -> str:
    """Code without what a formatter may change."""
    return re.sub(r"[\s#]", "", code).replace("'", '"').replace(",)", ")")


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
def test_the_wrong_line_and_the_right_one_stand_in_what_runs(entry: Entry):
    section = flat(sections(entry.page)[entry.slug])
    assert flat(entry.wrong) in section
    assert flat(entry.right) in section
    assert flat(entry.wrong) != flat(entry.right)


def test_a_card_says_what_one_sees_in_a_sentence_of_its_own():
    assert len({entry.seen for entry in ENTRIES.values()}) == len(ENTRIES)
    for entry in ENTRIES.values():
        assert re.fullmatch(r"[A-Z][^.]*(?:`[^`]*`[^.]*)*\.", entry.seen), entry.slug
        assert 5 < len(entry.seen.split()) < 25
