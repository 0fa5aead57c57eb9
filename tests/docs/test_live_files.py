"""The site serves the scripts and styles of live figures where pages name them, though they stand in the package."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "src/unmasked/figures"


def test_the_site_serves_each_script_and_style_as_it_stands_in_the_package(site: Path):
    here = {file.name: file.read_bytes() for file in FIGURES.iterdir() if file.suffix in (".js", ".css")}
    assert here
    assert {file.name: file.read_bytes() for file in (site / "live").iterdir()} == here
    vectors = ROOT / "src/unmasked/data/glove.6B.50d.u8"
    assert (site / "assets" / vectors.name).read_bytes() == vectors.read_bytes()


def test_a_page_loads_the_script_that_its_source_names(site: Path):
    source = (ROOT / "docs/learn/attention.py").read_text(encoding="utf-8")
    named = re.findall(r"^#\| script: .*/(\w+\.js)$", source, re.MULTILINE)
    html = (site / "learn/attention/index.html").read_text(encoding="utf-8")
    loaded = re.findall(r'<script type="module" src="\.\./\.\./live/(\w+\.js)"', html)
    assert loaded == named == ["sentence.js", "arrows.js"]
