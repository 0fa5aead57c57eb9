"""What moved is found where it was: the table leads to pages and headings that are there."""

import re
import tomllib
from pathlib import Path

import pytest
from mkdocs.exceptions import PluginError

from .hooks import hook

DOCS = Path(__file__).parents[2] / "docs"
moved = hook("moved")
TABLE = tomllib.loads((DOCS / moved.TABLE).read_text(encoding="utf-8"))


@pytest.mark.parametrize(("old", "new"), TABLE["pages"].items())
def test_where_a_page_was_something_leads_to_the_page_that_it_is_now(site: Path, old: str, new: str):
    stub = (site / old / "index.html").read_text(encoding="utf-8")
    for address in re.findall(r'(?:href="|url=|replace\(")([^"]+)"', stub):
        assert (site / old / address / "index.html").resolve() == (site / new / "index.html").resolve()
        assert "location.replace" not in (site / new / "index.html").read_text(encoding="utf-8"), "it leads on at once"


@pytest.mark.parametrize("page", TABLE["headings"])
def test_a_heading_is_found_by_the_name_that_it_had(site: Path, page: str):
    html = (site / page / "index.html").read_text(encoding="utf-8")
    for old, new in TABLE["headings"][page].items():
        assert html.count(f' id="{old}"') == 1
        assert re.search(rf'<span id="{re.escape(old)}"></span>(<span[^>]*></span>)*<[^>]* id="{re.escape(new)}"', html)


@pytest.mark.parametrize(("old", "new"), TABLE["modules"].items())
def test_what_a_module_has_is_found_by_the_names_that_it_had(site: Path, old: str, new: str):
    html = (site / "reference" / new.rpartition(".")[2].removeprefix("unmasked_") / "index.html").read_text("utf-8")
    names = moved.in_modules(html, {old: new})
    assert names[old] == new
    assert names.keys() <= set(re.findall(r'<span id="([^"]+)"></span>', html))


def test_a_heading_that_is_gone_must_leave_the_table():
    assert moved.named('<h2 id="new">', {"old": "new"}, "a/") == '<span id="old"></span><h2 id="new">'
    with pytest.raises(PluginError, match=r"leads to a/#gone, and the page has no such heading"):
        moved.named('<h2 id="new">', {"old": "gone"}, "a/")
