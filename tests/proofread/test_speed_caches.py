"""A site that is built again is the same as one built anew, whatever has changed in between."""

import json
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from packaging.version import Version

from .conftest import Project

pytestmark = pytest.mark.filterwarnings("default")  # a site's own plugins may warn

CONFIG = """
site_name: Site
site_url: https://example.org/
theme: mkdocs
markdown_extensions: [admonition]
plugins:
  - proofread
  - mkdocs-jupyter:
      cache: false
      ignore: ["*.md"]
"""
FIRST = """
# %% [markdown]
# # First
#
# There are 2<!--= n --> parts, and a [second page](second.md), of {{ n }}.

# %%
n = 2
n

# %%
from IPython.display import Markdown

Markdown("~~gone~~")

# %%
from IPython.display import Math

Math(r"\\sqrt{n}")
"""
BUILD = """
import json, sys
from mkdocs.commands.build import build
from mkdocs.config import load_config
from packaging.version import Version
build(load_config("mkdocs.yml"))
print(json.dumps([name in sys.modules for name in ("nbconvert", "jupytext.formats", "nbformat", "torch")]))
"""


@pytest.fixture(scope="module")
def built_once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    for name, text in {"mkdocs.yml": CONFIG, "docs/first.py": FIRST, "docs/second.md": "# Second\n"}.items():
        Project(folder).write(name, text)
    assert built(folder) == made_anew(folder)
    return folder


@pytest.fixture
def site(built_once, tmp_path):
    """A site that was built before, with what was kept of that."""
    return shutil.copytree(built_once, tmp_path / "site")


def built(site: Path) -> dict[str, bytes]:
    """Build, and read what the site holds."""
    build(load_config(str(site / "mkdocs.yml")))
    return contents(site)


def contents(site: Path) -> dict[str, bytes]:
    """What the site holds, but for the times in it."""
    folder = site / "site"
    files = {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    return {name: content for name, content in files.items() if not name.startswith("sitemap")}


def made_anew(site: Path) -> dict[str, bytes]:
    """The same, of which nothing is kept but the runs."""
    shutil.rmtree(site / ".cache/proofread/made")
    return built(site)


@pytest.mark.parametrize(
    ("file", "old", "new", "shown"),
    [
        ("mkdocs.yml", "[admonition]", "[pymdownx.tilde]", ("first/index.html", "<del>gone</del>")),
        ("mkdocs.yml", "example.org", "example.com", ("first/first.ipynb", "https://example.com/second/")),
        ("mkdocs.yml", "theme:", "repo_url: https://example.org/r\ntheme:", ("first/first.ipynb", "")),
        ("mkdocs.yml", "theme:", "use_directory_urls: false\ntheme:", ("first/first.py", "second.html")),
        ("docs/first.py", "There are", "They are", ("first/first.ipynb", "They are 2")),
        ("docs/first.py", "\nn = 2\nn", "\nn = 1 + 1\nn, n", ("first/index.html", "(2, 2)")),
        ("docs/first.py", "# %%\nn", '# %% tags=["hide-input"]\nn', ("first/index.html", "sqrt")),
        ("docs/first.py", "{n}", "{m}", ("first/index.html", "<mi>m</mi>")),
    ],
)
def test_whatever_changes_is_in_the_next_build(site, file, old, new, shown):
    before = contents(site)
    Project(site).edit(file, old, new)
    after = built(site)
    name, text = shown
    assert text in after[name].decode()
    assert after != before
    assert after == made_anew(site)


def test_a_build_in_which_nothing_has_changed_reads_no_library_that_renders_or_runs(site):
    def loaded() -> list[bool]:
        ran = subprocess.run([sys.executable, "-c", BUILD], cwd=site, capture_output=True, text=True, check=True)
        return list(json.loads(ran.stdout.splitlines()[-1]))

    shutil.rmtree(site / ".cache/proofread/made")
    assert loaded() == [True, True, True, False]
    by_themselves = Version(version("mkdocs-jupyter")) >= Version("0.27")  # which reads its pages in each build
    assert loaded() == [by_themselves] * 3 + [False]
