"""A whole site, exported and built by Zensical: its pages hold what they hold where MkDocs builds it."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import pytest
import yaml
from bs4 import BeautifulSoup, Comment
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File
from mkdocs.structure.pages import Page

pytest.importorskip("zensical", reason="the generator that exported sites are built with; pip install zensical")
from proofread.publish.site import ExportError, _page, _plain, export_site

FOREIGN = Path(__file__).parent / "foreign"
RICH = r"""
# %% [markdown]
# # All that a page shows
#
# As in [a circuit](circuit.py#a-circuit) and [outputs](#rich-outputs-x2),
# [the index](../index.md), ![a logo](../logo.svg).
#
# ## Rich outputs: $x^2$
#
# The equation (7) is in a list:
#
# - one
# - $$U = R I \tag{7}$$ <!-- unchecked: an example -->

# %%
#| alt: an angle
#| caption: What is *drawn*.
from IPython.display import HTML, SVG, display

path = '<path fill="currentColor" d="M0 0h9v9z"/>'
display(SVG(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9">{path}</svg>'))

# %%
print("a\tb\n   \n    [no link](nowhere.md#none)\n/// html | div\n```\n<b> & co")

# %%
display(HTML("<ul>\n\n    <li>one</li>\n\n</ul>\n<svg viewBox='0 0 9 9'><g><path d='M0 0h9'/></g></svg>"))

# %%
#| alt: squares
#| script: live.js
#| data: squares
squares = [1, 4, 9]
display(SVG('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9"><path d="M0 0h9"/></svg>'))

# %% [markdown]
# !!! note "A *box*"
#
#     ### Inside of a box
#
#     | a | b |
#     |---|---|
#     | `x` | {{ sum(squares) }} |

# %% [markdown] tags=["solution"]
# It is 14<!--= sum(squares) -->, and on average 4.7<!--= sum(squares) / 3 -->.

# %% [markdown]
# ## The end \* of [it]
"""
SITE = """\
site_name: Ohm
docs_dir: manual
nav:
  - index.md
  - Guide:
      - A circuit: guide/circuit.py
      - guide/series.py
      - Rich: guide/rich.py
  - Laws: reference.md
  - Elsewhere: https://example.org/
theme: {name: material, font: false, custom_dir: frame, features: [navigation.tabs]}
markdown_extensions: [admonition, attr_list, tables, toc: {permalink: true}]
extra_javascript: [{path: more.js, type: module}]
plugins:
  - search: {separator: '[\\s]+'}
  - proofread
  - mkdocs-jupyter: {include: ["guide/*.py"], ignore: ["*.md"], execute: false}
  - mkdocstrings:
      handlers: {python: {paths: [source], options: {show_symbol_type_toc: true, show_root_heading: true}}}
"""


def run(root: Path, *arguments: str, code: int = 0, path: str = "source") -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment |= {
        "PYTHONPATH": os.pathsep.join(str(root / each) for each in path.split()),
        "NO_COLOR": "1",
        "NO_MKDOCS_2_WARNING": "1",
    }
    told = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=root, env=environment, text=True, capture_output=True, check=False
    )
    assert told.returncode == code, told.stdout + told.stderr
    return told.stdout + told.stderr


def both(root: Path) -> tuple[Path, Path]:
    """The site as MkDocs builds it, and as Zensical builds what is exported."""
    run(root, "mkdocs", "build", "--strict", "--site-dir", "built")
    (root / "bare").mkdir()
    (root / "bare/sitecustomize.py").write_text("import sys\nsys.modules['material'] = None\n")  # who imports it fails
    told = run(root, "proofread", "export", "mkdocs.yml", "--output", "moved", path="source bare")
    assert "moved holds the site; `zensical build` makes it there" in told
    run(root / "moved", "zensical", "build", "--strict")
    return root / "built", root / "moved/site"


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("foreign") / "ohm"
    shutil.copytree(FOREIGN, root)
    return both(root)


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("rich") / "ohm"
    shutil.copytree(FOREIGN, root)
    for name, text in {
        "mkdocs.yml": SITE,
        "manual/guide/rich.py": RICH.lstrip(),
        "manual/guide/live.js": "export default 1\n",
        "manual/more.js": "",
        "manual/logo.svg": "<svg/>",
        "manual/reference.md": "---\ntitle: Laws\ndescription: What holds\n---\n\n::: ohm.laws\n",
        "frame/main.html": '{% extends "base.html" %}{% block announce %}Of the frame{% endblock %}',
    }.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    return both(root)


class Contents:
    """What a page holds: its text, elements and their attributes, and where its links lead."""

    def __init__(self, site: Path, name: str):
        page = BeautifulSoup((site / name).read_text(encoding="utf-8"), "html.parser")
        self.ids = {element["id"] for element in page.find_all(id=True)}
        self.held: list[object] = []
        self.links: list[str] = []
        framed = page.find("article") or page.find(itemprop="articleBody")  # as themes call what they frame
        for own in framed.select(".headerlink, #__skip"):
            own.decompose()
        for comment in framed.find_all(string=lambda text: isinstance(text, Comment)):
            comment.extract()
        framed.smooth()
        depth = len([*framed.parents])
        for node in framed.descendants:
            if isinstance(node, str):
                self.held += [node.strip()] if node.strip() else []
                continue
            for attribute in {"href", "src", "data-figures", "data-json"} & node.attrs.keys():
                node[attribute] = urljoin(f"http://site/{name}", node[attribute])
                self.links.append(node[attribute])
            node.attrs.pop("data-search-exclude", None)  # which is for the search
            node.attrs.pop("alttext", None)  # TeX, which pages drop when all else is done
            node["class"] = sorted(node.get("class", []))
            self.held.append((len([*node.parents]) - depth, node.name, sorted(node.attrs.items())))


def contents(site: Path) -> dict[str, Contents]:
    names = [page.relative_to(site).as_posix() for page in site.rglob("*.html")]
    return {name: Contents(site, name) for name in names if name not in ("404.html", "search.html")}


@pytest.mark.parametrize("which", ["foreign", "rich"])
def test_pages_hold_the_same_and_every_link_leads_somewhere(which: str, request: pytest.FixtureRequest) -> None:
    ours, theirs = request.getfixturevalue(which)
    pages, moved = contents(ours), contents(theirs)
    assert pages.keys() == moved.keys()
    assert len(pages) == {"foreign": 3, "rich": 5}[which]
    for name, page in pages.items():
        assert moved[name].held == page.held, name
        assert len(page.held) > 10, name
        for link in map(urlsplit, moved[name].links):
            if link.netloc != "site":
                continue
            path = unquote(link.path).removeprefix("/")
            path += "index.html" if path.endswith("/") or not path else ""
            assert (theirs / path).is_file(), (name, path)
            assert not link.fragment or unquote(link.fragment) in moved[path].ids, (name, link)


def test_files_beside_the_pages_are_the_same(rich: tuple[Path, Path]) -> None:
    ours, theirs = rich
    for name in ("figure-1-light.svg", "figure-1-dark.svg", "cell-2.py", "cell-5.json", "figures.json", "rich.ipynb"):
        assert (theirs / "guide/rich" / name).read_bytes() == (ours / "guide/rich" / name).read_bytes(), name
    for name in ("assets/proofread.css", "assets/proofread.js", "assets/proofread-math.woff2", "guide/live.js"):
        assert (theirs / name).read_bytes() == (ours / name).read_bytes(), name
    assert not (theirs / "search").exists()


def test_navigation_contents_frame_and_scripts_are_the_others(rich: tuple[Path, Path]) -> None:
    _, theirs = rich
    page = (theirs / "guide/rich/index.html").read_text()
    assert "Of the frame" in page
    assert '<script src="../../more.js" type="module"></script>' in page
    listed = page[page.index("md-nav--primary") :]
    assert listed.index('href="../circuit/"') < listed.index('href="../series/"') < page.index("https://example.org/")
    assert 'href="#inside-of-a-box"' in listed.split("<article")[0]
    assert page.count('href="#rich-outputs-x2"') >= 3  # the link, the permalink, the contents
    reference = (theirs / "reference/index.html").read_text()
    assert re.search(r'href="#ohm\.laws\.\w+".*?<code class="doc-symbol doc-symbol-toc', reference, re.DOTALL)
    assert '<meta name="description" content="What holds">' in reference
    found = (theirs / "search.json").read_text()
    assert "Inside of a box" in found
    for outside_of_prose in ("Checked on", "Copy with imports", "Notebook"):
        assert outside_of_prose not in found


def test_findings_are_told_and_refuse_an_export_unless_it_shall_be_anyway(tmp_path: Path) -> None:
    root = tmp_path / "ohm"
    shutil.copytree(FOREIGN, root)
    text = (root / "manual/guide/circuit.py").read_text()
    assert "drive 1.5<!--=" in text
    (root / "manual/guide/circuit.py").write_text(text.replace("drive 1.5<!--=", "drive 1.7<!--="))
    export = ("proofread", "export", "mkdocs.yml", "--output", "moved")
    told = run(root, *export, code=1)
    assert "it says 1.7, but single gives 1.5" in told
    assert "Nothing is exported" in told
    assert not (root / "moved").exists()
    assert not [*root.glob(".moved*")]
    assert "it says 1.7, but single gives 1.5" in run(root, *export, "--anyway")
    run(root / "moved", "zensical", "build", "--strict")
    page = (root / "moved/site/guide/circuit/index.html").read_text()
    assert "Not to be published" in page
    assert "drive <p-f>1.7</p-f>" in page


def test_a_folder_of_others_is_never_written_over(tmp_path: Path) -> None:
    shutil.copytree(FOREIGN, tmp_path / "ohm")
    (tmp_path / "ohm/mine").mkdir()
    (tmp_path / "ohm/mine/file").write_text("mine")
    with pytest.raises(ExportError, match="holds something that was not exported"):
        export_site(tmp_path / "ohm/mkdocs.yml", tmp_path / "ohm/mine")
    with pytest.raises(ExportError, match="must not lie in docs"):
        export_site(tmp_path / "ohm/mkdocs.yml", tmp_path / "ohm/manual/moved")
    assert [each.name for each in (tmp_path / "ohm/mine").iterdir()] == ["file"]


def test_a_site_without_proofread_is_named_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "mkdocs.yml").write_text("site_name: Plain\nplugins: [search]\n")
    with pytest.raises(ExportError, match=r"mkdocs\.yml is no configuration .* lack proofread, which stands before"):
        export_site(tmp_path / "mkdocs.yml", tmp_path / "moved")
    assert not (tmp_path / "moved").exists()


def test_a_page_whose_address_is_a_file_keeps_its_links() -> None:
    config = MkDocsConfig()
    config.load_dict({"site_name": "Site", "docs_dir": "/docs", "site_dir": "/site", "use_directory_urls": False})
    page = Page("Page", File("guide/page.md", "/docs", "/site", use_directory_urls=False), config)
    page.content = '<p><a href="other.html#x">o</a> <img src="../a.svg"> <a href="https://example.org/a">e</a></p>'
    page.toc = []
    assert _page(page) == page.content.replace('.svg">', '.svg"/>') + "\n"
    page = Page("Page", File("guide/page.md", "/docs", "/site", use_directory_urls=True), config)
    page.content, page.toc = (
        '<a href="./#x">s</a><a href="../">u</a><a href="f.py?a">f</a><!-- c -->loose<a href="#y">',
        [],
    )
    assert _page(page) == (
        '<div><a href="page/#x">s</a><a href="./">u</a><a href="page/f.py?a">f</a>loose<a href="#y"></a></div>\n'
    )


def test_what_only_python_knows_is_left_out_of_yaml() -> None:
    told = _plain({"a": [1, (2.5, "x")], "slugify": str.lower, 3: {"b": True, "c": None}})
    assert yaml.safe_load(yaml.safe_dump(told)) == {"a": [1, [2.5, "x"]], "3": {"b": True}}
