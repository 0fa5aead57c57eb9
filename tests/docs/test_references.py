"""The list of references has what the pages and the docstrings cite, and nothing that none of them cites."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIST = ROOT / "docs/references.md"
SOURCES = [
    *sorted((ROOT / "docs").rglob("*.py")),
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if path != LIST),
    *sorted((ROOT / "src/unmasked").rglob("*.py")),
]
# As pages cite: a name, perhaps others or "et al.", and a year in brackets; the first name is what is compared.
CITED = re.compile(
    r"(?P<who>[A-Z]\w+(?:-\w+)?)(?:(?:,| and) [A-Z]\w+(?:-\w+)?)*(?: et al\.| Team)?"
    r"(?:,? |\n[# ]*)\((?P<year>(?:19|20)\d\d)\)"
)
LISTED = re.compile(r"^- (?P<who>[A-Z]\w+(?:-\w+)?)(?:(?!\n- )[^(])*\((?P<year>\d{4})\)\.", re.MULTILINE)
WITHOUT_YEAR = {"ONNX", "PyTorch"}


def cited(source: Path) -> set[tuple[str, str]]:
    return {(found["who"], found["year"]) for found in CITED.finditer(source.read_text(encoding="utf-8"))}


def listed() -> list[tuple[str, str]]:
    return [(found["who"], found["year"]) for found in LISTED.finditer(LIST.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_what_a_source_cites_is_listed(source: Path) -> None:
    assert cited(source) <= {*listed()}


def test_what_is_listed_is_cited_and_in_the_order_of_the_alphabet() -> None:
    assert {*listed()} <= set().union(*map(cited, SOURCES))
    names = re.findall(r"^- ([^,.(]+)", LIST.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(names) == len(listed()) + len(WITHOUT_YEAR)
    assert [name.casefold() for name in names] == sorted(name.casefold() for name in names)
    everything = " ".join(source.read_text(encoding="utf-8") for source in SOURCES)
    assert all(name in everything for name in WITHOUT_YEAR)
