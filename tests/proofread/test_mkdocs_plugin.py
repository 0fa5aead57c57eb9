"""The plugin in whole builds of a small foreign project; the first build serves most tests."""

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

pytestmark = pytest.mark.filterwarnings("default")  # a site's own plugins may warn

CONFIG = """
site_name: Site
theme:
  name: material
  font: false
nav: [index.md, lessons/first.py, lessons/second.py]
markdown_extensions: [admonition, footnotes, pymdownx.details, pymdownx.superfences]
plugins:
  - search
  - mkdocs-jupyter:
      cache: false
  - proofread
"""
INDEX = """
# Home

See [the first lesson](lessons/first.py#a-heading-of-3), with $x_1^2$.

```python
x = 3
```

It has 3<!--= x --> parts.
"""
FIRST = """
# %% [markdown]
# # A first lesson
#
# !!! note "Only 3<!--== len(rows) --> rows"
#
#     Back [home](../index.md), on to [the second](second.py).[^1]
#
# [^1]: A note.
#
# ## A heading of {{= len(rows) }}
#
# $$\\sqrt{n} = m \\tag{1.2}$$
# <!-- unchecked: a drawing -->

# %%
import torch

rows = torch.arange(48).reshape(3, 16)
rows

# %%
#| alt: a line of 3<!--= len(rows) --> "points"
import matplotlib.pyplot as plt

plt.plot([1, 2, 3]);

# %% tags=["hide-input"]
print("input is hidden")

# %% tags=["hide-output"]
print("output is hidden")

# %% tags=["remove-cell"]
print("cell is removed")

# %% tags=["solution"]
print("folded away")

# %% tags=["raises-exception"]
rows @ rows

# %%
from IPython.display import HTML, Latex, display

display(HTML("<table><tr><td>rich</td></tr></table>"))
Latex("$$\\\\frac{1}{2}$$")
"""
SECOND = """
# %% [markdown]
# # A second lesson
#
# Text.

# %%
y = 1
"""


def write(root: Path, **changed: str) -> Path:
    pages = {"index.md": INDEX, "lessons/first.py": FIRST, "lessons/second.py": SECOND} | changed
    for name, text in pages.items():
        path = root / "docs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.lstrip("\n"))
    (root / "mkdocs.yml").write_text(CONFIG)
    return root


def build_site(root: Path) -> None:
    config = load_config(str(root / "mkdocs.yml"), strict=True)
    config.plugins.on_startup(command="build", dirty=False)
    build(config)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = write(tmp_path_factory.mktemp("project"))
    build_site(root)
    return root / "site"


@pytest.fixture(scope="module")
def first(site: Path) -> str:
    page = (site / "lessons/first/index.html").read_text()
    return page[page.index("<article") : page.index("</article>")]


def test_prose_goes_through_the_sites_own_markdown(first: str) -> None:
    assert '<p class="admonition-title">Only 3 rows</p>' in first
    assert 'href="../second/">the second</a>' in first
    assert 'href="../..">home</a>' in first or 'href="../../">home</a>' in first
    assert 'class="footnote"' in first
    assert '<h2 id="a-heading-of-3">A heading of 3' in first


def test_the_reader_sees_figures_and_no_directives(site: Path, first: str) -> None:
    assert "<!--" not in first
    assert "{{" not in first
    assert "It has 3 parts." in (site / "index.html").read_text()


def test_mathematics_is_mathml_with_its_number(site: Path, first: str) -> None:
    assert "<msqrt>" in first
    assert 'id="eq-1.2"' in first
    assert "<mfrac>" in first  # a cell's LaTeX output
    assert "<msubsup>" in (site / "index.html").read_text()


def test_cells_show_code_and_outputs_once_and_without_prompts(first: str) -> None:
    assert first.count("<table><tr><td>rich</td></tr></table>") == 1
    assert "In&nbsp;[" not in first
    assert "In [" not in first
    assert "data-cell" not in first
    assert re.search(r"<pre>tensor\(\[\[ 0, .* 15\],\n", first)


def test_tags_hide_what_they_say(first: str) -> None:
    assert "input is hidden\n" in first
    assert '"input is hidden"' not in first
    assert '"output is hidden"' in first
    assert "<pre>output is hidden" not in first
    assert "cell is removed" not in first
    assert re.search(r"<details class=\"success\"><summary>Solution</summary>.*?folded away.*?</details>", first, re.S)
    assert "RuntimeError" in first


def test_figures_are_files_with_their_alt_text(site: Path, first: str) -> None:
    (image,) = re.findall(r"<img [^>]*>", first)
    assert "alt='a line of 3 \"points\"'" in image
    assert 'src="figure-1.svg"' in image
    assert re.search(r'width="\d+"', image)
    assert "<svg" in (site / "lessons/first/figure-1.svg").read_text()


def test_a_page_is_small_and_its_styles_are_served_once(site: Path, first: str) -> None:
    assert len(first) < 12_000
    assert "<style" not in first
    assert "<script" not in first
    assert (site / "assets/proofread.css").exists()
    assert "assets/proofread.css" in (site / "lessons/first/index.html").read_text()


def test_the_search_index_holds_prose_and_code_but_no_outputs(site: Path) -> None:
    index = json.loads((site / "search/search_index.json").read_text())
    text = " ".join(entry["text"] for entry in index["docs"])
    assert "import torch" in text
    assert "tensor([[" not in text
    assert "folded away\n</pre>" not in text
    assert "Copied" not in text
    assert len(index["docs"]) == len({entry["location"] for entry in index["docs"]})


def test_nothing_is_asked_of_another_origin(site: Path) -> None:
    for page in site.rglob("*.html"):
        fetched = re.findall(r'<(?:link|script|img|iframe)\b[^>]*(?:href|src)="(https?:[^"]*)"', page.read_text())
        assert fetched == [], page


def test_any_finding_ends_the_build_with_all_of_them_listed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    wrong = {
        "lessons/first.py": FIRST.replace("Only 3<", "Only 4<"),
        "lessons/second.py": SECOND.replace("y = 1", "y = 1 / 0"),
        "index.md": INDEX.replace("# Home", "# Home 7"),
    }
    root = write(tmp_path, **wrong)
    with caplog.at_level(logging.ERROR), pytest.raises(Abort):
        build_site(root)
    told = caplog.text
    assert "docs/index.md:1: nothing proves the figure 7" in told
    assert "docs/lessons/first.py:4: it says 4, but len(rows) gives 3" in told
    assert "docs/lessons/second.py:7: cell 2 failed with ZeroDivisionError: division by zero" in told
    assert not (root / "site/index.html").exists()


def test_a_dead_link_in_a_page_ends_a_strict_build(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = write(tmp_path, **{"lessons/second.py": SECOND.replace("Text.", "A [dead](nowhere.md) link.")})
    with caplog.at_level(logging.WARNING), pytest.raises(Abort):
        build_site(root)
    assert "contains a link 'nowhere.md'" in caplog.text
