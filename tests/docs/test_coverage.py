"""Every row of the table of what covers what leads to headings and names that exist."""

import ast
import re
from pathlib import Path

import pytest
from markdown.extensions.toc import slugify

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TABLE = DOCS / "coverage.md"
LINK = re.compile(r"\]\((?P<page>[^)#]+)(?:#(?P<anchor>[^)]+))?\)")
ROWS = [line for line in TABLE.read_text().splitlines() if re.match(r"\| \d{3} \|", line)]
HEADING = re.compile(r"^#{1,6} +(?P<title>.+?)(?: *\{ *#(?P<anchor>[\w-]+) *\})?$", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, and of what the API reference documents."""
    text = page.read_text()
    if page.suffix == ".py":
        cells = re.split(r"^# %%", text, flags=re.MULTILINE)
        text = "\n".join(re.sub(r"^# ?", "", cell, flags=re.MULTILINE) for cell in cells if "[markdown]" in cell[:20])
    found: set[str] = set()
    for heading in HEADING.finditer(re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)):
        plain = re.sub(r"[*`]|\{\{.*?\}\}", "", heading["title"])
        found.add(heading["anchor"] or slugify(plain, "-"))
    for module in re.findall(r"^::: (\S+)", text, re.MULTILINE):
        found |= documented(module)
    return found


def documented(name: str) -> set[str]:
    """A module's own name and those of its functions and classes; or the name of a class itself."""
    file = ROOT / "src" / f"{name.replace('.', '/')}.py"
    file = file if file.exists() else file.with_suffix("") / "__init__.py"
    if not file.exists():
        return {name}
    named = (ast.FunctionDef, ast.ClassDef)
    return {name, *(f"{name}.{node.name}" for node in ast.parse(file.read_text()).body if isinstance(node, named))}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split(" | ")[1][:40])
def test_what_the_notebooks_taught_is_on_a_page_that_has_this_heading(row: str):
    links = list(LINK.finditer(row.split(" | ")[2]))
    assert links, "nothing covers it"
    for link in links:
        page = DOCS / link["page"]
        assert page.exists(), link["page"]
        assert link["anchor"], f"name the heading of {link['page']}"
        assert link["anchor"] in anchors(page), f"{link['page']} has no #{link['anchor']}; it has {anchors(page)}"


def test_every_notebook_is_covered():
    counts = {
        number: sum(row.startswith(f"| {number}") for row in ROWS) for number in ("000", "001", "002", "003", "004")
    }
    assert len(ROWS) == sum(counts.values())
    assert all(count >= 4 for count in counts.values()), counts


def test_a_heading_that_is_gone_is_missed(tmp_path: Path):
    page = tmp_path / "page.py"
    page.write_text("# %% [markdown]\n# # What is `it`?\n#\n# ## Put *right* { #right }\n\n# %%\n# ## No heading\n")
    assert anchors(page) == {"what-is-it", "right"}
