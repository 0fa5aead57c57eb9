"""Links of captions, of what cells show, and of downloads lead where those of the prose do."""

import json
import re
from pathlib import Path
from urllib.parse import urljoin

import pytest

from .test_mkdocs_plugin import Ended, build_site, ended, small

__all__ = ["ended"]
pytestmark = pytest.mark.filterwarnings("default")  # a site's own plugins may warn

PAGE = """\
# %% [markdown]
# # Title
#
# ## More of it
#
# To [more](#more-of-it), to [its part](sub/other.py#its-part) and to [home](index.md).

# %%
#| alt: a line, as in [the other](sub/other.py)
#| caption: As [its *part*](sub/other.py#its-part) has it, not `[x](y.py)`; ![logo](logo.svg)
import matplotlib.pyplot as plt

plt.plot([1, 2]);

# %%
from IPython.display import HTML, Markdown, display

display(Markdown("Shown by a cell: [other](sub/other.py), [out](https://example.org/a.py)."))
HTML('<a class="x" href="sub/other.py#its-part">other</a> <a href="ADDRESS">address</a> <img src="logo.svg">')
"""
OTHER = "# %% [markdown]\n# # Other\n#\n# ## Its part\n#\n# Back to [the title](../page.py).\n"
DEAD = """\
# %% [markdown]
# # Title
#
# To [f](f.md).

# %%
#| caption: To [a](a.py) and [b](sub/other.py#b)
from IPython.display import HTML, Markdown, display

HTML("<p>shown</p>")

# %%
#| caption: Another.
display(
    Markdown("To [c](c.md)"),
    HTML('<a href="d.py">d</a> <a href="sub/other.py#e">e</a> <a href="address/">address</a>')
)
"""
ANY = re.compile(r'(?:href|src)="([^"]*)"|\]\(([^)]*)\)')


def project(root: Path, page: str = PAGE) -> Path:
    small(root, page)
    (root / "docs/sub").mkdir()
    (root / "docs/sub/other.py").write_text(OTHER)
    (root / "docs/logo.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg"/>')
    config = root / "mkdocs.yml"
    config.write_text(config.read_text().replace("page.py", "page.py, sub/other.py"))
    return root


def targets(html: str) -> list[str]:
    """Where the article of a page leads."""
    html = re.sub(r"(?s)<pre.*?</pre>", "", html)
    return re.findall(r'(?:href|src)="([^"]*)"', html.partition("<article")[2].partition("</article")[0])


def test_what_a_cell_shows_leads_where_the_prose_leads_and_no_alternative_text_holds_a_link(tmp_path: Path) -> None:
    root = project(tmp_path, PAGE.replace("ADDRESS", "../sub/other/"))
    build_site(root)
    html = (root / "site/page/index.html").read_text()
    led = targets(html)
    assert led.count("../sub/other/#its-part") == 3
    assert led.count("../sub/other/") >= 2
    assert led.count("../logo.svg") == 2
    assert "https://example.org/a.py" in led
    assert 'alt="a line, as in the other"' in html
    assert "<code>[x](y.py)</code>" in html
    for target in led:
        is_there = (root / "site/page" / target.partition("#")[0]).exists()
        assert is_there or re.match("https?:|data:", target), target


def test_each_dead_link_of_a_cell_ends_a_strict_build_with_its_line(tmp_path: Path, ended: Ended) -> None:
    told = ended(project(tmp_path, DEAD))
    gone = "but the target is not found among documentation files"
    for line, target, reason in (
        (4, "f.md", gone),
        (7, "a.py", gone),
        (7, "sub/other.py#b", "but the doc 'sub/other.py' does not contain an anchor '#b'"),
        (15, "c.md", gone),
        (16, "d.py", gone),
        (16, "sub/other.py#e", "but the doc 'sub/other.py' does not contain an anchor '#e'"),
    ):
        assert f"docs/page.py:{line}: Doc file 'page.py' contains a link '{target}', {reason}" in told
    assert told.count("Doc file") == 6


@pytest.mark.parametrize("address", [None, "https://example.org/some/where/"])
@pytest.mark.parametrize("directories", [True, False])
def test_downloads_lead_to_the_pages_of_the_site(tmp_path: Path, address: str | None, directories: bool) -> None:
    root = project(tmp_path, PAGE.replace("ADDRESS", "../sub/other/" if directories else "sub/other.html"))
    build_site(root, site_url=address, use_directory_urls=directories)
    shown, script = (root / f"site/page/page.{end}" for end in ("ipynb", "py"))
    cells = json.loads(shown.read_text())["cells"]
    outputs = [output["data"] for cell in cells for output in cell.get("outputs", ())]
    texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
    texts += ["".join(data[kind]) for data in outputs for kind in ("text/markdown", "text/html") if kind in data]
    notes = "".join(line for line in script.read_text().splitlines(True) if line.startswith("# "))
    for text, least in (("\n".join(texts), 9), (notes, 5)):
        links = (first or second for first, second in ANY.findall(text.replace("`[x](y.py)`", "")))
        led = [link for link in links if link != "https://example.org/a.py"]
        assert len(led) >= least
        for link in led:
            assert link.startswith(address or ("../", "index.html"))
            path = urljoin("/page/page.ipynb", link.partition("#")[0]).removeprefix(address or "/")
            assert (root / "site" / path).exists(), link
            assert address or not path.endswith("/")
    own = {True: "page/", False: "page.html"}[directories]
    beside = {True: "index.html", False: "../page.html"}[directories]
    assert f"[more]({address + own if address else beside}#more-of-it)" in texts[0]
