"""The files of the built site, before any browser opens them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST = 120_000  # bytes of HTML that a phone can still take without a pause


def pages(site: Path) -> dict[str, str]:
    """The HTML of each page, by its address."""
    return {path.relative_to(site).as_posix(): path.read_text(encoding="utf-8") for path in site.rglob("*.html")}


def test_no_page_is_too_heavy_for_a_phone(site: Path):
    sizes = {name: len(html.encode()) for name, html in pages(site).items()}
    assert len(sizes) > 40
    assert {name: size for name, size in sizes.items() if size > MOST} == {}


def test_each_module_has_a_page_of_its_own_in_the_reference_and_shows_no_source(site: Path):
    public = {
        path.parent.name if path.stem == "__init__" else path.stem
        for path in [*(ROOT / "src/unmasked").glob("[!_]*.py"), *(ROOT / "src/unmasked").glob("*/__init__.py")]
    }
    reference = {path.parent.name: path for path in (site / "reference").glob("*/index.html")}
    # What pages draw, which nobody else calls; and an old name, which the page of the changes tells.
    assert reference.keys() == public - {"figures", "viewer"}
    for name, path in reference.items():
        html = path.read_text(encoding="utf-8")
        assert re.findall(r'<h1 id="([^"]+)"', html) == [f"unmasked.{name}"]
        assert "mkdocstrings-source" not in html


@pytest.mark.parametrize("call", ["functional/#unmasked.functional.self_attention", "masks/#unmasked.masks"])
def test_the_table_by_task_leads_to_the_pages(site: Path, call: str):
    assert f'href="{call}"' in (site / "reference/index.html").read_text(encoding="utf-8")
