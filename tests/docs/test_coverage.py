"""Every row of the table of what covers what leads to headings and names that exist, and that speak of the same."""

import ast
import re
from pathlib import Path

import pytest
from markdown.extensions.toc import slugify

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TABLE = DOCS / "contributing" / "coverage.md"
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


def lines(page: Path) -> list[tuple[bool, str]]:
    """The lines of a page, each with whether it is prose."""
    text = re.sub(r"<!--.*?-->", "", page.read_text(), flags=re.DOTALL)
    if page.suffix != ".py":
        return [(True, line) for line in text.split("\n")]
    told: list[tuple[bool, str]] = []
    for cell in re.split(r"^# %%", text, flags=re.MULTILINE):
        prose = "[markdown]" in cell[:20]
        told += [(prose, re.sub(r"^# ?", "", line) if prose else line) for line in cell.split("\n")]
    return told


def section(page: Path, anchor: str) -> str:
    """What stands under a heading, code included; or the source of what the API reference documents."""
    if anchor.startswith("unmasked."):
        module, _, name = anchor.rpartition(".")
        text = (ROOT / "src" / f"{module.replace('.', '/')}.py").read_text()
        (node,) = (node for node in ast.parse(text).body if getattr(node, "name", "") == name)
        return ast.get_source_segment(text, node) or ""
    found, depth = [], 0
    for prose, line in lines(page):
        heading = HEADING.match(line) if prose else None
        level = len(line) - len(line.lstrip("#"))
        if heading and depth and level <= depth:
            break
        if heading and anchor == (heading["anchor"] or slugify(re.sub(r"[*`]", "", heading["title"]), "-")):
            depth = level
        found += [line] if depth else []
    return "\n".join(found)


# Words that say how something is told, and not what.
PLAIN = {
    "with",
    "their",
    "from",
    "over",
    "told",
    "into",
    "taking",
    "apart",
    "printed",
    "other",
    "than",
    "every",
    "same",
}


def words(text: str) -> set[str]:
    """The words of a text by how they begin, so that *masks* and *masked* are one."""
    return {word.lower()[:5] for word in re.findall(r"[^\W\d_]{4,}", text) if word.lower() not in PLAIN}


def unfit(row: str) -> list[str]:
    """What the sections to which a row links do not speak of, though the row says so."""
    _, taught, links = row.split(" | ")
    linked = [(link["anchor"], section(TABLE.parent / link["page"], link["anchor"])) for link in LINK.finditer(links)]
    everything = "\n".join(text for _, text in linked)
    said = words(re.sub(r"`[^`]*`", "", taught))
    told = [f"nothing of {code}" for code in re.findall(r"`([^`]+)`", taught) if code not in everything]
    told += [f"#{anchor} has no word of it" for anchor, text in linked if said and not said & words(text)]
    if said and len(said & words(everything)) <= len(said) / 2:
        told.append(f"nothing of {sorted(said - words(everything))}")
    return told


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
        page = TABLE.parent / link["page"]
        assert page.exists(), link["page"]
        assert link["anchor"], f"name the heading of {link['page']}"
        assert link["anchor"] in anchors(page), f"{link['page']} has no #{link['anchor']}; it has {anchors(page)}"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split(" | ")[1][:40])
def test_what_a_row_says_is_what_its_sections_speak_of(row: str):
    assert unfit(row) == []


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (
            "| 002 | `d_in` other than `d_model` | [a](../learn/cross.py#which-input-decides-what) |",
            ["nothing of d_in", "nothing of d_model"],
        ),
        (
            "| 003 | cosine similarity | [a](../pytorch/masks.py#nothing-leaks) |",
            ["#nothing-leaks has no word of it", "nothing of ['cosin', 'simil']"],
        ),
    ],
)
def test_a_row_that_leads_to_another_section_is_found(row: str, told: list[str]):
    assert unfit(row) == told


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
