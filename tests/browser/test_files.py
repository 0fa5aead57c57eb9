"""The files of the built site, before any browser opens them."""

from __future__ import annotations

import ast
import builtins
import json
import re
from pathlib import Path

import pytest
from bs4 import BeautifulSoup, SoupStrainer

from proofread.programs.names import uses

from ..conftest import pages

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "src/unmasked_lessons/figures"
MOST = 120_000  # bytes of HTML that a phone can still take without a pause
LONGER = {
    "pytorch/atlas/": 340_000,  # a row for each of 400 models, which are there without a script
    "pytorch/watching/": 135_000,  # grids of weights, whose columns have names that turn where they are narrow
    "pytorch/heads/": 130_000,  # the same
}


def test_no_page_is_too_heavy_for_a_phone(site: Path):
    sizes = {name: len(html.encode()) for name, html in pages(site).items()}
    assert len(sizes) > 40
    assert {name: size for name, size in sizes.items() if size > LONGER.get(name, MOST)} == {}


def test_each_module_has_a_page_of_its_own_in_the_reference_and_shows_no_source(site: Path):
    packages = ["unmasked", "unmasked_doctor", "unmasked_lessons"]
    modules = {
        path.parent.name if path.stem == "__init__" else path.stem: package
        for package in packages
        for path in [*(ROOT / "src" / package).glob("[!_]*.py"), *(ROOT / "src" / package).glob("[!_]*/__init__.py")]
    }
    reference = {name.split("/")[1]: html for name, html in pages(site).items() if re.match(r"reference/\w+/", name)}
    # The doctor is a page itself. Nobody but the pages calls what they compute and draw, nor the doctor's examples.
    assert reference.keys() == {*modules, "doctor"} - {"experiments", "figures", "examples"}
    for name, html in reference.items():
        module = "unmasked_doctor" if name == "doctor" else f"{modules[name]}.{name}"
        assert re.findall(r'<h1 id="([^"]+)"', html) == [module]
        assert "mkdocstrings-source" not in html


@pytest.mark.parametrize("call", ["functional/#unmasked.functional.self_attention", "masks/#unmasked.masks"])
def test_the_table_by_task_leads_to_the_pages(site: Path, call: str):
    assert f'href="{call}"' in (site / "reference/index.html").read_text(encoding="utf-8")


def test_what_a_copied_program_defines_finds_every_name_that_it_looks_up_once_it_is_called(site: Path):
    programs = {path.relative_to(site): ast.parse(path.read_text()).body for path in site.rglob("cell-*.py")}
    assert len(programs) > 400
    known = {*vars(builtins), "__name__", "__file__"}
    for name, body in programs.items():
        bound = known.union(*(uses(statement).binds for statement in body))
        assert set().union(*(uses(statement).read for statement in body)) - bound == set(), name


def shown_by(notebook: Path) -> list[str]:
    """The values that the cells of a notebook show at their ends, as text, but for what is drawn."""
    outputs = [
        each for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"] for each in cell.get("outputs", ())
    ]
    texts = ["".join(each["data"]["text/plain"]) for each in outputs if each["output_type"] == "execute_result"]
    return [text for text in texts if not re.match(r"<\w*Figure|\[?<matplotlib", text)]


def test_each_script_prints_what_the_cells_of_its_page_show(site: Path):
    scripts = {notebook.with_suffix(".py"): shown_by(notebook) for notebook in site.rglob("*.ipynb")}
    assert len(scripts) > 35
    assert sum(map(len, scripts.values())) > 100
    for script, shown in scripts.items():
        body = ast.parse(script.read_text(encoding="utf-8")).body
        ends = [node for each in body for node in (each.body if isinstance(each, ast.Try) else [each])]
        bare = [
            node for node in ends if isinstance(node, ast.Expr) and isinstance(node.value, ast.Name | ast.Attribute)
        ]
        assert [ast.unparse(node) for node in bare] == [], f"{script} ends cells with values that it does not print"
        printed = [node for node in ends if isinstance(node, ast.Expr) and ast.unparse(node).startswith("print(")]
        assert len(printed) >= len(shown), (
            f"{script} prints {len(printed)} times, and its page shows {len(shown)} values"
        )


def nested(html: str) -> list[str]:
    """Where the links lead that stand in other links, which browsers tear apart."""
    return [
        str(link["href"]) for link in BeautifulSoup(html, "html.parser", parse_only=SoupStrainer("a")).select("a a")
    ]


def test_no_link_stands_in_another(site: Path):
    assert {name: found for name, html in pages(site).items() if (found := nested(html))} == {}
    assert nested('<a href="x">one <a href="y">two</a></a> <a href="z">three</a>') == ["y"]


def test_every_picture_has_a_size_before_it_is_there(site: Path):
    for name, html in pages(site).items():
        bare = [tag for tag in re.findall(r"<img [^>]*>", html) if not re.search(r"\bwidth=.*\bheight=|logo", tag)]
        assert bare == [], f"{name}: what stands below would jump"


def test_the_search_has_words_of_each_page_but_of_those_for_contributors(site: Path):
    index = json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))["docs"]
    told = {entry["location"].partition("#")[0] for entry in index if entry["text"]}
    assert told == pages(site).keys() - {"404.html", "contributing/", "contributing/coverage/"}


def test_the_site_serves_each_script_and_style_as_it_stands_in_the_package(site: Path):
    here = {file.name: file.read_bytes() for file in FIGURES.iterdir() if file.suffix in (".js", ".css")}
    assert here
    assert {file.name: file.read_bytes() for file in (site / "live").iterdir()} == here
    vectors = ROOT / "src/unmasked_lessons/data/glove.6B.50d.u8"
    assert (site / "assets" / vectors.name).read_bytes() == vectors.read_bytes()


def test_a_page_loads_the_script_that_its_source_names(site: Path):
    source = (ROOT / "docs/learn/attention.py").read_text(encoding="utf-8")
    named = re.findall(r"^#\| script: .*/(\w+\.js)$", source, re.MULTILINE)
    html = (site / "learn/attention/index.html").read_text(encoding="utf-8")
    loaded = re.findall(r'<script type="module" src="\.\./\.\./live/(\w+\.js)"', html)
    assert loaded == named == ["sentence.js", "arrows.js", "strip.js"]
