"""Exported pages, in builds by MkDocs alone."""

import re
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

from proofread.publish.export import ExportError, export

from .conftest import Project
from .samples import PAGES

pytestmark = pytest.mark.filterwarnings("default")  # a site's own plugins may warn

CONFIG = """
site_name: Site
docs_dir: plain
theme: {name: material, font: false}
markdown_extensions: [admonition, attr_list, footnotes, md_in_html, tables, pymdownx.superfences]
plugins: [search]
validation:
  links: {anchors: warn, unrecognized_links: warn}
"""


def project(root: Path, **pages: str) -> Path:
    for name, text in {"index.md": "# Home\n", "logo.svg": "<svg/>", **pages}.items():
        Project(root).write(f"docs/{name}", text)
    Project(root).write("mkdocs.yml", CONFIG)
    return root


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shown = {name: text for name, text in PAGES.items() if name.endswith((".py", "index.md")) and "dialect" not in name}
    root = project(tmp_path_factory.mktemp("project"), **shown, **{"parts/data.py": "x = 1\n", ".hidden": ""})
    report = export(root / "docs", root / "plain", root=root)
    assert report.findings == []
    build(load_config(str(root / "mkdocs.yml"), strict=True))
    return root


def plain(exported: Path, page: str) -> str:
    return (exported / f"plain/lessons/{page}.md").read_text()


def built(exported: Path, page: str) -> str:
    text = (exported / f"site/lessons/{page}/index.html").read_text()
    return text[text.index("<article") : text.index("</article>")]


def test_mkdocs_alone_builds_it_strictly(exported: Path) -> None:
    first = built(exported, "first")
    assert '<p class="admonition-title">Only 3 rows</p>' in first
    assert '<h2 id="a-heading-of-3">A heading of 3</h2>' in first
    assert re.search(r'href="../../(index.html)?">home</a>', first)


def test_a_strict_build_of_it_checks_the_links(tmp_path: Path) -> None:
    pages = {"index.md": "# Home\n\n[a page](page.py#no-such-part)\n", "page.py": "# %% [markdown]\n# # Page\n"}
    root = project(tmp_path, **pages)
    export(root / "docs", root / "plain", root=root)
    with pytest.raises(Abort):
        build(load_config(str(root / "mkdocs.yml"), strict=True))


def test_what_proofread_reads_is_gone_and_what_readers_see_is_there(exported: Path) -> None:
    first = plain(exported, "first")
    for gone in ("<!--=", "{{", "unchecked", "#| alt", "# %%", "cell is removed", '"input is hidden"'):
        assert gone not in first, gone
    for kept in ('print("output is hidden")', "\ninput is hidden\n", "RuntimeError", "rows = torch"):
        assert kept in first, kept
    assert "\noutput is hidden\n" not in first


def test_links_lead_to_the_markdown_that_a_script_became(exported: Path) -> None:
    assert "[the second](second.md)" in plain(exported, "first")
    home = (exported / "plain/index.md").read_text()
    assert "[named]: lessons/first.md#a-heading-of-3" in home
    assert "`[x](lessons/first.py)`" in home


def test_figures_are_files_with_alt_text_for_light_and_dark(exported: Path) -> None:
    assert '![a line of \\[3\\] "points"](first/figure-1.svg)' in plain(exported, "first")
    assert 'alt="a line of [3] &quot;points&quot;" src="figure-1.svg"' in built(exported, "first")
    square = "![a square](rich/figure-1-light.svg#only-light)\n![a square](rich/figure-1-dark.svg#only-dark)"
    assert square in plain(exported, "rich")
    for name in ("first/figure-1.svg", "rich/figure-1-light.svg", "rich/figure-1-dark.svg"):
        assert "<svg" in (exported / "plain/lessons" / name).read_text()


def test_outputs_keep_their_order_and_whatever_they_hold(exported: Path) -> None:
    assert "````text\nshown\n```\nquoted\n````\n\n```text\ntensor([[" in plain(exported, "first")
    assert '```json\n{\n  "a": "b"\n}\n```' in plain(exported, "rich")
    assert "red green white on blue yellow" in plain(exported, "rich")
    rich = built(exported, "rich")
    order = ["<td>styled</td>", "<p>*plain* $5 or $6</p>", "<mfrac>", "before", "after", "<p>By a <em>cell</em>.</p>"]
    places = [rich.index(shown) for shown in order]
    assert places == sorted(places)


def test_formulas_are_mathml_with_their_numbers_also_where_a_line_begins(exported: Path) -> None:
    assert "<msqrt>" in built(exported, "first")
    assert 'id="eq-1.2"' in built(exported, "first")
    home = (exported / "site/index.html").read_text()
    assert re.search(r"parts, and\n<span><math [^>]*><msubsup>.*?</math></span> begins a line.</p>", home)


def test_a_solution_is_folded_with_its_prose(exported: Path) -> None:
    first = built(exported, "first")
    folded = first[first.index("<details") : first.index("</details>")]
    assert "<p>Folded prose, too.</p>" in folded
    assert "folded away" in folded
    assert "No longer folded." not in folded


def test_other_files_come_along_but_no_hidden_ones(exported: Path) -> None:
    assert (exported / "plain/logo.svg").read_text() == "<svg/>"
    assert (exported / "plain/parts/data.py").exists()  # Python, and no page
    assert not (exported / "plain/lessons/first.py").exists()
    assert not (exported / "plain/.hidden").exists()


LATEX = "# %%\nfrom IPython.display import Latex\n\nLatex(r'$TEX$')\n"


def test_formulas_stay_tex_where_that_is_wanted(tmp_path: Path) -> None:
    prose = "# Home\n\n$$\\sqrt{n} = m \\tag{1.2}$$ <!-- unchecked: a drawing -->\n"
    root = project(tmp_path, **{"index.md": prose, "page.py": LATEX.replace("TEX", r"\frac{1}{2}")})
    export(root / "docs", root / "plain", root=root, tex=True)
    text = (root / "plain/index.md").read_text() + (root / "plain/page.md").read_text()
    assert "$$\\sqrt{n} = m \\tag{1.2}$$" in text
    assert "$\\frac{1}{2}$" in text
    assert "<math" not in text


def test_an_export_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    root = project(tmp_path)
    export(root / "docs", root / "plain", root=root)
    (root / "docs/logo.svg").unlink()
    (root / "docs/index.md").write_text("# New home\n")
    export(root / "docs", root / "plain", root=root)
    assert (root / "plain/index.md").read_text() == "# New home\n"
    assert not (root / "plain/logo.svg").exists()
    assert not [*root.glob(".plain*")]


def test_a_finding_leaves_what_was_there(tmp_path: Path) -> None:
    root = project(tmp_path)
    export(root / "docs", root / "plain", root=root)
    (root / "docs/index.md").write_text("# Home 7\n")
    report = export(root / "docs", root / "plain", root=root)
    assert "nothing proves the value 7" in report.findings[0].message
    assert (root / "plain/index.md").read_text() == "# Home\n"


@pytest.mark.parametrize("target", ["docs", "docs/plain", "."])
def test_pages_are_not_exported_into_themselves(tmp_path: Path, target: str) -> None:
    root = project(tmp_path)
    with pytest.raises(ExportError, match=r"must not lie in docs \(.*\), nor docs in it; choose a folder beside it"):
        export(root / "docs", root / target, root=root)


def test_latex_that_a_cell_shows_and_none_can_read_is_named(tmp_path: Path) -> None:
    root = project(tmp_path, **{"page.py": LATEX.replace("TEX", r"\frac{1")})
    with pytest.raises(ExportError, match=r"docs/page\.py: a cell shows .*\$\\frac\{1\$ is not TeX"):
        export(root / "docs", root / "plain", root=root)
    assert not (root / "plain").exists()


def test_tex_that_cannot_be_typeset_is_found_unless_it_stays_tex(tmp_path: Path) -> None:
    root = project(tmp_path, **{"index.md": "# Home\n\nSo $\\frac{a}$ it is.\n"})
    (found,) = export(root / "docs", root / "plain", root=root).findings
    assert str(found).startswith("docs/index.md:3: $\\frac{a}$ is not TeX: ")
    assert not (root / "plain").exists()
    assert export(root / "docs", root / "plain", root=root, tex=True).findings == []
    assert "$\\frac{a}$" in (root / "plain/index.md").read_text()


def test_two_pages_of_one_name_are_named(tmp_path: Path) -> None:
    root = project(tmp_path, **{"parts/page.md": "# Page\n", "parts/page.py": "# %%\nx = 1\n"})
    with pytest.raises(ExportError, match=r"page\.py would become parts/page\.md, which there is already; rename one"):
        export(root / "docs", root / "plain", root=root)
