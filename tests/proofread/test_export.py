"""Exported pages, in builds by MkDocs alone."""

import re
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

from proofread.publish.export import ExportError, export

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
INDEX = """\
# Home

See [the named page](parts/page.py#named), `[x](parts/page.py)` and ![a logo](logo.svg).

```python
x = 3
```

It has 3<!--= x --> parts, and
$x_1^2$ begins a line.

[named]: parts/page.py
"""
PAGE = r"""
# %% [markdown]
# # Page of {{ rows }}
#
# Back [home](../index.md), [what is named](#named).
#
# !!! note "Only 3<!--= rows --> rows"
#
#     Inside.
#
# $$\sqrt{n} = m \tag{1.2}$$
# <!-- unchecked: a drawing -->
#
# ## Named

# %%
rows = 3
print("shown\n```\nquoted")
rows

# %%
#| alt: a line of [3<!--= rows -->]
import matplotlib.pyplot as plt
from IPython.display import HTML, SVG, Latex, Markdown, display

plt.plot([1, 2, 3]);

# %%
#| alt: an angle
path = '<path fill="currentColor" d="M0 0h9v9z"/>'
display(SVG(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9">{path}</svg>'))
display(HTML("<table><tr><td>rich</td></tr></table>\n\n    <p>*plain* $5 or $6</p>"))
display(Markdown("Some *words*."))
Latex(r"$\frac{1}{2}$")

# %% tags=["hide-input"]
print("input is hidden")

# %% tags=["hide-output"]
print("output is hidden")

# %% tags=["remove-cell"]
print("cell is removed")

# %% [markdown] tags=["solution"]
# The *answer*.

# %% tags=["solution"]
6 * 7

# %%
#| raises: ZeroDivisionError
1 / 0
"""


def project(root: Path, **changed: str) -> Path:
    for name, text in (
        {"index.md": INDEX, "parts/page.py": PAGE.lstrip(), "logo.svg": "<svg/>", "parts/data.py": "x = 1\n"} | changed
    ).items():
        (root / "docs" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "docs" / name).write_text(text)
    (root / "docs/.hidden").write_text("")
    (root / "mkdocs.yml").write_text(CONFIG)
    return root


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = project(tmp_path_factory.mktemp("project"))
    report = export(root / "docs", root / "plain", root=root)
    assert report.findings == []
    return root


@pytest.fixture(scope="module")
def plain(exported: Path) -> str:
    return (exported / "plain/parts/page.md").read_text()


@pytest.fixture(scope="module")
def built(exported: Path) -> str:
    build(load_config(str(exported / "mkdocs.yml"), strict=True))
    page = (exported / "site/parts/page/index.html").read_text()
    return page[page.index("<article") : page.index("</article>")]


def test_mkdocs_alone_builds_it_strictly(built: str) -> None:
    assert '<p class="admonition-title">Only 3 rows</p>' in built
    assert '<h1 id="page-of-3">Page of 3</h1>' in built
    assert re.search(r'href="../../(index.html)?">home</a>', built)


def test_a_strict_build_of_it_checks_the_links(exported: Path, tmp_path: Path) -> None:
    root = project(tmp_path, **{"index.md": "# Home\n\n[a](parts/page.py#no-such-part)\n"})
    export(root / "docs", root / "plain", root=root)
    with pytest.raises(Abort):
        build(load_config(str(root / "mkdocs.yml"), strict=True))


def test_what_proofread_reads_is_gone_and_what_readers_see_is_there(plain: str) -> None:
    for gone in ("<!--=", "{{", "unchecked", "#| alt", "# %%", "cell is removed", '"input is hidden"'):
        assert gone not in plain, gone
    for kept in ('print("output is hidden")', "\ninput is hidden\n", "ZeroDivisionError", "rows = 3"):
        assert kept in plain, kept
    assert "\noutput is hidden\n" not in plain


def test_links_lead_to_the_markdown_that_a_script_became(exported: Path) -> None:
    home = (exported / "plain/index.md").read_text()
    assert "[the named page](parts/page.md#named)" in home
    assert "[named]: parts/page.md" in home
    assert "`[x](parts/page.py)`" in home


def test_figures_are_files_with_alt_text_for_light_and_dark(exported: Path, plain: str, built: str) -> None:
    assert "![a line of \\[3\\]](page/figure-1.svg)" in plain
    assert "![an angle](page/figure-2-light.svg#only-light)\n![an angle](page/figure-2-dark.svg#only-dark)" in plain
    assert 'alt="a line of [3]" src="figure-1.svg"' in built
    for name in ("figure-1.svg", "figure-2-light.svg", "figure-2-dark.svg"):
        assert "<svg" in (exported / "plain/parts/page" / name).read_text()


def test_outputs_keep_their_order_and_whatever_they_hold(plain: str, built: str) -> None:
    assert "````text\nshown\n```\nquoted\n````\n\n```text\n3\n```" in plain
    assert "<td>rich</td>" in built
    assert "<p>*plain* $5 or $6</p>" in built
    assert "<p>Some <em>words</em>.</p>" in built
    assert built.index("rich") < built.index("words") < built.index("<mfrac>")


def test_formulas_are_mathml_with_their_numbers_also_where_a_line_begins(exported: Path, built: str) -> None:
    assert "<msqrt>" in built
    assert 'id="eq-1.2"' in built
    home = (exported / "site/index.html").read_text()
    assert re.search(r"parts, and\n<span><math [^>]*><msubsup>.*?</math></span> begins a line.</p>", home)


def test_a_solution_is_folded_with_its_prose(built: str) -> None:
    folded = built[built.index("<details") : built.index("</details>")]
    assert "<p>The <em>answer</em>.</p>" in folded
    assert "42" in folded


def test_other_files_come_along_but_no_hidden_ones(exported: Path) -> None:
    assert (exported / "plain/logo.svg").read_text() == "<svg/>"
    assert (exported / "plain/parts/data.py").exists()  # Python, and no page
    assert not (exported / "plain/parts/page.py").exists()
    assert not (exported / "plain/.hidden").exists()


def test_formulas_stay_tex_where_that_is_wanted(tmp_path: Path) -> None:
    root = project(tmp_path)
    export(root / "docs", root / "plain", root=root, tex=True)
    text = (root / "plain/parts/page.md").read_text()
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
    assert [path.name for path in root.iterdir() if path.name.startswith(".plain")] == []


def test_a_finding_leaves_what_was_there(tmp_path: Path) -> None:
    root = project(tmp_path)
    export(root / "docs", root / "plain", root=root)
    (root / "docs/index.md").write_text("# Home 7\n")
    report = export(root / "docs", root / "plain", root=root)
    assert "nothing proves the figure 7" in report.findings[0].message
    assert (root / "plain/index.md").read_text().startswith("# Home\n")


def test_what_was_not_exported_is_not_overwritten(tmp_path: Path) -> None:
    root = project(tmp_path)
    (root / "plain").mkdir()
    (root / "plain/own.txt").write_text("mine")
    with pytest.raises(ExportError, match=r"target \(.*plain\) holds something that was not exported; remove it or"):
        export(root / "docs", root / "plain", root=root)
    assert (root / "plain/own.txt").read_text() == "mine"


@pytest.mark.parametrize("target", ["docs", "docs/plain", "."])
def test_pages_are_not_exported_into_themselves(tmp_path: Path, target: str) -> None:
    root = project(tmp_path)
    with pytest.raises(ExportError, match=r"must not lie in docs \(.*\), nor docs in it; choose a folder beside it"):
        export(root / "docs", root / target, root=root)


def test_latex_that_a_cell_shows_and_none_can_read_is_named(tmp_path: Path) -> None:
    root = project(tmp_path, **{"parts/page.py": '# %%\nfrom IPython.display import Latex\n\nLatex("$\\\\frac{1$")\n'})
    with pytest.raises(ExportError, match=r"docs/parts/page\.py: a cell shows .*\$\\frac\{1\$ is not TeX"):
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
    root = project(tmp_path, **{"parts/page.md": "# Page\n"})
    with pytest.raises(ExportError, match=r"page\.py would become parts/page\.md, which there is already; rename one"):
        export(root / "docs", root / "plain", root=root)
