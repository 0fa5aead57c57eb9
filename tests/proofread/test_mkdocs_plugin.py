"""The plugin in whole builds of a small foreign project; the first build serves most tests."""

import json
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

from .conftest import Project
from .samples import FIRST, INDEX, PAGES, SECOND

pytestmark = pytest.mark.filterwarnings("default")  # a site's own plugins may warn

CONFIG = """
site_name: Site
theme:
  name: material
  font: false
nav: [index.md, lessons/first.py, lessons/second.py, lessons/dialect.py, lessons/again.md, lessons/rich.py]
markdown_extensions:
  - abbr
  - admonition
  - attr_list
  - def_list
  - footnotes
  - md_in_html
  - tables
  - toc: {permalink: true}
  - pymdownx.details
  - pymdownx.snippets: {check_paths: true}
  - pymdownx.superfences
  - pymdownx.tabbed: {alternate_style: true}
  - pymdownx.tasklist
plugins:
  - search
  - mkdocs-jupyter:
      cache: false
  - proofread
validation:
  links: {anchors: warn, unrecognized_links: warn, absolute_links: warn}
"""


def write(root: Path, config: str = CONFIG, **changed: str) -> Path:
    for name, text in (PAGES | changed).items():
        Project(root).write(f"docs/{name}", text)
    (root / "mkdocs.yml").write_text(config)
    return root


def build_site(root: Path, **options: object) -> None:
    config = load_config(str(root / "mkdocs.yml"), **{"strict": True, **options})
    config.plugins.on_startup(command="build", dirty=False)
    build(config)


Ended = Callable[[Path], str]


@pytest.fixture
def ended(caplog: pytest.LogCaptureFixture) -> Ended:
    """Begins a build that must end, and gives what is said of it."""

    def end(root: Path) -> str:
        caplog.clear()
        with caplog.at_level(logging.WARNING), pytest.raises(Abort):
            build_site(root)
        return caplog.text

    return end


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = write(tmp_path_factory.mktemp("project"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)  # where snippets are looked for
        build_site(root)
    return root / "site"


def test_a_page_that_the_navigation_calls_something_else_ends_the_build(tmp_path: Path, monkeypatch, ended: Ended):
    (tmp_path / "docs").mkdir()
    for name, title in (("rivers", "Which river is longest?"), ("lakes", "Which lake is deepest?"), ("index", "Home")):
        (tmp_path / f"docs/{name}.md").write_text(f"# {title}\n")
    monkeypatch.chdir(tmp_path)

    def called(rivers: str, lakes: str) -> Path:
        nav = f"nav:\n  - index.md\n  - {rivers}: rivers.md\n  - {lakes}: lakes.md\n"
        (tmp_path / "mkdocs.yml").write_text(f"site_name: Water\n{nav}plugins: [proofread]\n")
        return tmp_path

    build_site(called("Rivers", "The deepest lake"))
    told = "mkdocs.yml: the navigation calls rivers.md 'Mountains', but its title is 'Which river is longest?'\n"
    assert ended(called("Mountains", "The longest, and a deep lake")).endswith(told)
    told = "lakes.md 'The longest river', but its title is 'Which lake is deepest?'; 'The longest river' fits rivers.md"
    assert ended(called("Rivers", "The longest river")).endswith(f"mkdocs.yml: the navigation calls {told}\n")


def test_a_page_beside_the_sites_is_checked_and_not_published(tmp_path: Path, monkeypatch, ended: Ended):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text("# Home\n")
    (tmp_path / "pyproject.toml").write_text('[tool.proofread]\npages = ["README.md"]\n')
    (tmp_path / "mkdocs.yml").write_text("site_name: Water\nplugins: [proofread]\n")
    monkeypatch.chdir(tmp_path)
    assert "pages names README.md, which does not exist" in ended(tmp_path)
    (tmp_path / "README.md").write_text("The Nile has 6650 km.\n")
    assert "README.md:1: nothing proves the value 6650" in ended(tmp_path)
    (tmp_path / "README.md").write_text("The Nile is long.\n")
    build_site(tmp_path)
    assert not list((tmp_path / "site").rglob("README*"))


def article(site: Path, page: str) -> str:
    text = (site / page).read_text()
    return text[text.index("<article") : text.index("</article>")]


@pytest.fixture(scope="module")
def first(site: Path) -> str:
    return article(site, "lessons/first/index.html")


@pytest.fixture(scope="module")
def rich(site: Path) -> str:
    return article(site, "lessons/rich/index.html")


@pytest.fixture(scope="module")
def entries(site: Path) -> dict[str, str]:
    index = json.loads((site / "search/search_index.json").read_text())
    assert len(index["docs"]) == len({entry["location"] for entry in index["docs"]})
    return {entry["location"]: entry["text"] for entry in index["docs"]}


@pytest.mark.parametrize(
    "markup",
    [
        '<p class="admonition-title">Mind</p>',
        '<label for="__tabbed_1_2">Two</label>',
        'class="footnote"',
        'Of <abbr title="Hyper Text">HTML</abbr>',
        'class="special" href="../../#home"',
        "<dt>Term</dt>",
        'type="checkbox" disabled checked',
        "<td>c</td>",
        "Included <em>text</em>.",
        "<em>inside</em>",
        '<h2 id="part">Named<a class="headerlink" href="#part"',
        '<a href="#below" class="md-nav__link">',
        "<msub><mi>a</mi><mi>i</mi></msub>",
    ],
)
def test_one_markdown_dialect_on_every_page(site: Path, markup: str) -> None:
    for page in ("dialect", "again"):
        assert markup in (site / f"lessons/{page}/index.html").read_text()


def test_a_percent_page_and_a_markdown_page_read_alike(site: Path) -> None:
    percent, markdown = article(site, "lessons/dialect/index.html"), article(site, "lessons/again/index.html")
    assert re.sub(r'<p class="proofread-(downloads|about)".*?</p>\s*', "", percent, flags=re.DOTALL) == markdown


def test_links_between_pages_lead_where_the_site_has_them(first: str) -> None:
    assert 'href="../second/">the second</a>' in first
    assert 'href="../..">home</a>' in first or 'href="../../">home</a>' in first


def test_the_reader_sees_figures_and_no_directives(site: Path, first: str) -> None:
    assert '<p class="admonition-title">Only 3 rows</p>' in first
    assert '<h2 id="a-heading-of-3">A heading of 3' in first
    assert "<!--" not in first
    assert "{{" not in first
    assert "It has 3 parts" in (site / "index.html").read_text()


def test_mathematics_is_mathml_with_its_number(site: Path, first: str) -> None:
    assert "<msqrt>" in first
    assert 'id="eq-1.2"' in first
    assert "alttext" not in first
    assert "<msubsup>" in (site / "index.html").read_text()


def test_cells_show_code_and_outputs_once_and_without_prompts(first: str) -> None:
    assert first.count("arange") == 1
    assert "In&nbsp;[" not in first
    assert "In [" not in first
    assert "data-cell" not in first
    assert "data-fold" not in first


def test_a_row_of_a_tensor_is_one_line(first: str) -> None:
    assert re.search(r"<pre>tensor\(\[\[ 0,[ \d,]* 15\],\n", first)


def test_tags_hide_what_they_say(first: str) -> None:
    assert "input is hidden\n" in first
    assert '"input is hidden"' not in first
    assert '"output is hidden"' in first
    assert "<pre>output is hidden" not in first
    assert "cell is removed" not in first
    assert "RuntimeError" in first


def test_neighbours_of_one_solution_fold_together_prose_and_all(first: str) -> None:
    (folded,) = re.findall(r'<details class="success"><summary>Solution</summary>(.*?)</details>', first, re.DOTALL)
    assert "Folded prose, too." in folded
    assert '"folded away"' in folded
    assert "No longer folded." not in folded


def test_figures_are_files_with_their_alt_text_and_size(site: Path, first: str, rich: str) -> None:
    (image,) = re.findall(r"<img [^>]*>", first)
    assert 'alt="a line of [3] &quot;points&quot;"' in image
    assert 'src="figure-1.svg"' in image
    assert re.search(r'width="\d+"', image)
    assert "<svg" in (site / "lessons/first/figure-1.svg").read_text()
    assert re.search(r'<img[^>]* src="figure-2.jpg"[^>]* alt="a photo"', rich)
    assert re.search(r'<img[^>]* src="figure-3.png" alt="a dot"[^>]* width="4" height="3"', rich)
    assert re.search(r'<img[^>]* src="figure-4.png" alt="a patch"[^>]* width="5" height="2"', rich)
    assert (site / "lessons/rich/figure-3.png").read_bytes().startswith(b"\x89PNG")


def test_a_figure_in_the_pages_colour_comes_for_light_and_for_dark(site: Path, rich: str) -> None:
    for theme, ink in {"light": "#1f2328", "dark": "#e6e8ea"}.items():
        assert re.search(rf'<img class="figure only-{theme}" src="figure-1-{theme}.svg" alt="a square"', rich)
        assert f"svg:root{{color:{ink} !important}}" in (site / f"lessons/rich/figure-1-{theme}.svg").read_text()


def test_outputs_are_shown_in_their_best_form_and_in_their_order(rich: str) -> None:
    order = ["<table id=", "figure-1-light", "figure-2.jpg", "<mfrac>", "<pre>before", "figure-3.png", "<pre>after"]
    places = [rich.index(mark) for mark in order]
    assert places == sorted(places)
    assert "#t td {color: red}" in rich
    assert rich.count("IPython.core.display.J") == 1  # JavaScript, of which only the text is shown
    assert "<pre>{\n  &quot;a&quot;: &quot;b&quot;\n}</pre>" in rich
    assert "alert()" not in rich[rich.index("<pre>after") :]


def test_markdown_that_a_cell_shows_is_the_sites(rich: str) -> None:
    assert '<p class="admonition-title">Told</p>' in rich
    assert "By a <em>cell</em>." in rich


def test_colours_of_a_terminal_are_classes_that_follow_the_theme(rich: str) -> None:
    assert '<span class="ansi-red-fg">red</span>' in rich
    assert '<span class="ansi-green-intense-fg ansi-bold">green</span>' in rich
    assert '<span class="ansi-white-fg ansi-blue-bg">white on blue</span>' in rich
    assert '<span style="--ansi: rgb(255,255,0)">yellow</span>' in rich


def test_a_page_is_small_and_its_styles_are_served_once(site: Path, first: str) -> None:
    assert len(first) < 7_000
    assert "<style" not in first
    assert "<script" not in first
    page = (site / "lessons/first/index.html").read_text()
    assert page.count("assets/proofread.css") == page.count("assets/proofread.js") == 1
    assert (site / "assets/proofread.css").exists()
    assert (site / "assets/proofread.js").exists()


def test_white_space_between_tags_is_dropped_but_not_that_of_code(site: Path, first: str) -> None:
    page = (site / "lessons/first/index.html").read_text()
    assert not re.search(r"\n[ \t]*\n", re.sub(r"<(pre|script)\b.*?</\1>", "-", page, flags=re.DOTALL))
    assert "torch</i>\n\nrows" in first


def test_each_cell_offers_its_programs_as_files_beside_the_page(site: Path, first: str) -> None:
    assert '<a href="cell-2.py">Copy with imports (6 lines)</a>' in first
    assert "rows = torch.arange(48)" in (site / "lessons/first/cell-2.py").read_text()
    assert "cell-6.py" not in first  # a cell that is removed
    start = (site / "index.html").read_text()
    assert '<a href="index/cell-2.py">Copy with imports (2 lines)</a>' in start
    assert "x = 3" in (site / "index/cell-2.py").read_text()


def test_a_page_says_below_its_title_when_it_was_checked(site: Path, first: str) -> None:
    run = r'Checked on <time datetime="[\d-]{10}">[\d-]{10}</time>, torch 2\.[^<]+'
    assert re.search(rf'</h1>\s*<details class="proofread-about"[^>]*><summary>\d min · {run}</summary>', first)
    assert "Checked on" not in article(site, "lessons/again/index.html")  # it has no code
    assert ", torch" not in article(site, "lessons/second/index.html")


def test_a_page_offers_its_notebook_and_script_once_below_its_title(site: Path, first: str) -> None:
    above = r'</h1>\s*<details class="proofread-about".*?</details>\s*<p class="proofread-downloads"[^>]*>'
    assert re.search(above + '<a href="first.ipynb" download', first)
    assert first.count("download") == 3
    notebook = json.loads((site / "lessons/first/first.ipynb").read_text())
    assert notebook["cells"][0]["source"][0] == "# A first lesson\n"
    assert "# # A first lesson" in (site / "lessons/first/first.py").read_text()


def test_the_search_index_holds_prose_and_code_but_no_outputs(entries: dict[str, str]) -> None:
    text = " ".join(entries.values())
    assert "import torch" in text
    assert "Folded prose" in text
    for output in ("tensor([[", "folded away\n</pre>", "Copied", "Copy with", "Notebook", "<td>styled", "<p>By a"):
        assert output not in text, output


def test_the_search_index_spells_no_displayed_formula(entries: dict[str, str]) -> None:
    assert "=m" not in entries["lessons/first/#a-heading-of-3"].replace(" ", "")
    assert "with x" in entries[""]


def test_nothing_is_asked_of_another_origin(site: Path) -> None:
    for page in site.rglob("*.html"):
        fetched = re.findall(r'<(?:link|script|img|iframe)\b[^>]*(?:href|src)="(https?:[^"]*)"', page.read_text())
        assert fetched == [], page


def test_any_finding_ends_the_build_with_all_of_them_listed(tmp_path: Path, ended: Ended) -> None:
    wrong = {
        "lessons/first.py": FIRST.replace("Only 3<", "Only 4<"),
        "lessons/second.py": SECOND.replace("y = 1", "y = 1 / 0"),
        "index.md": INDEX.replace("# Home", "# Home 7"),
    }
    root = write(tmp_path, **wrong)
    told = ended(root)
    assert "docs/index.md:1: nothing proves the value 7" in told
    assert "docs/lessons/first.py:4: it says 4, but len(rows) gives only 3" in told
    assert "docs/lessons/second.py:7: cell 2 failed with ZeroDivisionError: division by zero" in told
    assert not (root / "site/index.html").exists()


SMALL = CONFIG.replace(
    "lessons/first.py, lessons/second.py, lessons/dialect.py, lessons/again.md, lessons/rich.py", "page.py"
)


def small(root: Path, page: str, config: str = SMALL) -> Path:
    for name, text in {"docs/index.md": "# Home\n", "docs/page.py": page, "mkdocs.yml": config}.items():
        Project(root).write(name, text)
    return root


DEAD = {  # links of a page, one a line from its fifth on, and why a strict build ends
    "nowhere.md": "the target is not found among documentation files",
    "nowhere.py": "the target is not found among documentation files",
    "nowhere.png": "the target is not found among documentation files",
    "index.md#nowhere": "the doc 'index.md' does not contain an anchor '#nowhere'",
    "#nowhere": "there is no such anchor on this page",
    "page/": "an unrecognized relative link",
    "/page.py": "an absolute link",
}


def test_each_dead_link_ends_a_strict_build_with_page_and_line(tmp_path: Path, ended: Ended) -> None:
    links = "".join(f"# a [link]({target}),\n" for target in DEAD)
    root = small(tmp_path, f"# %% [markdown]\n# # Title\n#\n# Some text and\n{links}")
    (root / "docs/index.md").write_text("# Home\n\nTo [the title](page.py#title), [not there](page.py#nothing).\n")
    told = [line for line in ended(root).splitlines() if "Doc file" in line]
    assert len(told) == len(DEAD) + 1
    for line, (target, reason) in enumerate(DEAD.items(), 5):
        (said,) = [each for each in told if f" docs/page.py:{line}: Doc file 'page.py' contains" in each]
        assert target in said
        assert reason in said
    (said,) = [each for each in told if " docs/index.md:3: " in each]
    assert "page.py#nothing" in said


def test_a_cell_whose_place_another_plugin_takes_away_is_named(tmp_path: Path, ended: Ended) -> None:
    root = small(tmp_path, "# %% [markdown]\n# # Title\n\n# %%\nx = 1\n", f"{SMALL}\nhooks: [hook.py]\n")
    (root / "hook.py").write_text('def on_page_markdown(text, **_):\n    return text.partition("<div")[0]\n')
    assert 'docs/page.py:5: cell 2 has no place: a plugin took <div data-cell="2"></div> out of' in ended(root)


def test_another_plugin_may_read_the_sources_as_mkdocs_jupyter_does_from_0_27_on(tmp_path: Path, caplog) -> None:
    hook = """
        def on_page_read_source(page, config):
            return "---\\ntitle: Theirs\\n---\\n" if page.file.src_uri == "page.py" else None
    """
    page = "# %% [markdown]\n# ---\n# title: Ours\n# template: mine.html\n# ---\n# # Page\n\n# %%\n2 + 3\n"
    files = {"docs/index.md": "# Home\n", "docs/page.py": page, "hook.py": hook}
    files["theme/mine.html"] = "{{ page.title }}: {{ page.content }}"
    files["mkdocs.yml"] = """
        site_name: Site
        theme: {name: mkdocs, custom_dir: theme}
        hooks: [hook.py]
        plugins: [proofread, mkdocs-jupyter: {include: ["*.py"]}]
    """
    for name, text in files.items():
        Project(tmp_path).write(name, text)
    build_site(tmp_path)
    shown = (tmp_path / "site/page/index.html").read_text(encoding="utf-8")
    assert shown.startswith("Ours: ")
    assert "<pre>5</pre>" in shown
    assert not re.search("on_page_read_source.*'proofread'", caplog.text)  # MkDocs warns where two read


def test_latex_that_a_cell_shows_and_none_can_read_is_named(tmp_path: Path, ended: Ended) -> None:
    root = small(tmp_path, '# %%\nfrom IPython.display import Latex\n\nLatex("$\\\\frac{1$")\n')
    assert "docs/page.py:2: cell 1 shows $\\frac{1$ is not TeX" in ended(root)


def test_a_page_whose_download_shadows_a_module_of_python_is_refused(tmp_path: Path, ended: Ended) -> None:
    page, message = "# %% [markdown]\n# # Title\n", "readers save numbers.py, and whatever runs beside it imports that"
    root = small(tmp_path, page, SMALL.replace("page.py", "numbers.py"))
    script = (root / "docs/page.py").rename(root / "docs/numbers.py")
    assert f"docs/numbers.py:1: {message} for Python's own module; rename the page" in ended(root)
    # A Markdown page offers no script.
    script.rename(root / "docs/numbers.md").write_text("# Title\n")
    (root / "mkdocs.yml").write_text(SMALL.replace("page.py", "numbers.md"))
    build_site(root)


def test_tex_that_cannot_be_typeset_is_found_on_its_line(tmp_path: Path, ended: Ended) -> None:
    page = "# %% [markdown]\n# # Title\n#\n# So $\\frac{a}$ it is.\n#\n# $$\\boxed{a}$$ <!-- unchecked: a name -->\n"
    told = ended(small(tmp_path, page))
    assert "the pages cannot be published:\ndocs/page.py:4: $\\frac{a}$ is not TeX: " in told
    assert "\ndocs/page.py:6: $$\\boxed{a}$$ would lose \\boxed on the way to MathML" in told


PICTURED = """\
# %% [markdown]
# # Title
#
# To [home](../index.md).

# %%
#| alt: a line
import matplotlib.pyplot as plt

plt.plot([1, 2]);
"""


@pytest.mark.parametrize("theme", ["material", "mkdocs", "readthedocs"])
@pytest.mark.parametrize("directories", [True, False])
def test_addresses_hold_in_nested_folders_with_any_theme_and_form_of_url(
    tmp_path: Path, theme: str, directories: bool
) -> None:
    config = SMALL.replace("nav: [index.md, page.py]", "").replace("material", theme).replace("  font: false\n", "")
    root = small(tmp_path, "# %% [markdown]\n# # Page\n", f"{config}\nsite_url: https://example.org/some/where/\n")
    (root / "docs/a/b").mkdir(parents=True)
    for name in ("a/b/deep.py", "a/index.py"):
        (root / "docs" / name).write_text(PICTURED.replace("../", "../" * name.count("/")))
    build_site(root, use_directory_urls=directories)
    pages = {"a/b/deep": "a/b/deep/index.html" if directories else "a/b/deep.html", "a/index": "a/index.html"}
    for folder, name in pages.items():
        page = root / "site" / name
        for address in re.findall(
            r'(?:src|href)="((?:[^":]*/)?(?:figure|cell|deep|index)[\w-]*\.(?:svg|py|ipynb))"', page.read_text()
        ):
            assert (page.parent / address).resolve().is_relative_to(root / "site" / folder)
            assert (page.parent / address).exists()
        assert page.read_text().count("figure-1.svg") == 1
        notebook = json.loads((root / "site" / folder / f"{Path(folder).name}.ipynb").read_text())
        assert "[home](https://example.org/some/where/" in "".join(notebook["cells"][0]["source"])


def test_a_notebook_is_published_with_the_outputs_that_it_stores(tmp_path: Path) -> None:
    stored = {"output_type": "stream", "name": "stdout", "text": ["stored once\n"]}
    code = {"cell_type": "code", "metadata": {}, "source": "1 / 0", "outputs": [stored], "execution_count": 9}
    prose = {"cell_type": "markdown", "metadata": {}, "source": "# Book\n\nAll 12 of them."}
    book = {"cells": [prose, code], "metadata": {}, "nbformat": 4, "nbformat_minor": 4}
    root = small(tmp_path, "# %% [markdown]\n# # Title\n\n# See [the book](book.ipynb).\n")
    (root / "docs/book.ipynb").write_text(json.dumps(book))
    build_site(root)
    assert "stored once" in (html := (root / "site/book/index.html").read_text())
    assert "All 12 of them." in html


def test_a_repository_at_github_lets_colab_open_what_is_deployed_there(tmp_path: Path) -> None:
    config = f"{SMALL}\nrepo_url: https://github.com/some/project\nremote_branch: pages\n"
    root = small(tmp_path, "# %% [markdown]\n# # Title\n", config)
    build_site(root)
    address = "https://colab.research.google.com/github/some/project/blob/pages/page/page.ipynb"
    assert f'<a href="{address}">Open in Colab</a>' in (root / "site/page/index.html").read_text()
    assert (root / "site/page/page.ipynb").exists()


@pytest.mark.parametrize(
    ("told", "arguments"),
    [
        ("", ""),
        ("repo_url: https://example.org/r", "git+https://example.org/r"),
        ("repo_url: https://example.org/r\nextra: {install: 'ohm[plot]'}", "ohm[plot]"),
    ],
)
def test_downloads_and_programs_say_what_pip_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str, arguments: str
) -> None:
    root = small(tmp_path, "# %% [markdown]\n# # Title\n\n# %%\nimport ohm\n\nohm.unit\n", f"{SMALL}\n{told}\n")
    (root / "ohm.py").write_text('unit = "ohm"\n')
    monkeypatch.syspath_prepend(root)
    (root / "pyproject.toml").write_text('[tool.proofread]\npackages = ["ohm"]\ndocstrings = "off"\n')
    build_site(root)
    cells = json.loads((root / "site/page/page.ipynb").read_text())["cells"]
    assert any(f"%pip install --quiet {arguments}" in "".join(cell["source"]) for cell in cells) is bool(arguments)
    program = (root / "site/page/cell-2.py").read_text()
    assert program.startswith("# docs/page.py, cell 2\n" + f"# pip install {arguments}\n" * bool(arguments) + "import")


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("mkdocs_jupyter.config.settings.templates_dir", "lacks a part of 0.26 that shows cells"),
        ("proofread.publish.mkdocs_plugin.Page.render", "does not leave its pages to MkDocs as 0.26 did"),
    ],
)
def test_another_mkdocs_jupyter_is_told_from_a_fault_of_the_page(
    tmp_path: Path, ended: Ended, monkeypatch: pytest.MonkeyPatch, part: str, message: str
) -> None:
    from proofread.publish import render

    root = small(tmp_path, "# %%\nx = 1\n")
    if "render" in part:
        from mkdocs.structure.pages import Page

        from proofread.publish import mkdocs_plugin

        monkeypatch.setattr(mkdocs_plugin, "Page", type("Page", (Page,), {"render": lambda self: None}))
    else:
        monkeypatch.setattr(part, str(tmp_path))
    render._exporter.cache_clear()
    told = ended(root)
    render._exporter.cache_clear()
    assert re.search(rf"mkdocs-jupyter 0\.\d+\.\d+ {message}", told)
