"""Tables measure the mistake that their row links to."""

import re
from pathlib import Path

import markdown
import pytest

from proofread.pages.page import find_pages, read

DOCS = Path(__file__).parents[2] / "docs"


def unmeasured(text: str) -> list[str]:
    """The rows of a room's table that measure something else than the mistake to which they link."""
    sections = dict(re.findall(r"^# ## [^\n]*\{ ?#([\w-]+) ?\}\n(.*?)(?=^# ## |\Z)", text, re.MULTILINE | re.DOTALL))
    found = []
    rows = re.findall(r"^# \| .*?\[([^\]]*)\]\(#([\w-]+)\)(.*)", text, re.MULTILINE)
    assert {slug for _, slug, _ in rows} == {*sections}, "a row for each mistake"
    for title, slug, rest in rows:
        expressions = re.findall(r"<!--=(.*?)-->|\{\{(.*?):[^:]*\}\}", rest)
        own = "\n".join(line for line in sections[slug].splitlines() if not line.startswith("#"))
        if not expressions:  # a word that a claim of the section holds
            row = re.sub(r"<!--.*?-->|[|`]", " ", title + rest).split()
            assert " ".join(row[: len(title.split()) + 1]) in own, f"{slug}: nothing is measured"
        for expression in map("".join, expressions):
            keys = re.findall(r'off\["([^"]+)"\]', expression)
            names = re.findall(r"(?<![\w.\"])[a-z]\w{2,}", re.sub(r'off\["[^"]+"\]|"[^"]*"', "", expression))
            measured = [rf'(?:exhibit\(\s*|off\[)"{re.escape(key)}"' for key in keys]
            measured += [
                rf"^ *(?:\w+, )*{name}\b[^=\n]*= " for name in names if name not in ("else", "and", "all", "any")
            ]
            if not measured or not any(re.search(each, own, re.MULTILINE) for each in measured):
                found.append(f"{slug}: {expression.strip()}")
    return found


ROOMS = sorted(path.stem for path in (DOCS / "museum").glob("*.py") if path.stem != "index")


@pytest.mark.parametrize("page", ROOMS)
def test_a_row_measures_the_mistake_that_it_links_to(page: str):
    text = (DOCS / "museum" / f"{page}.py").read_text()
    assert unmeasured(text) == []


@pytest.mark.parametrize("page", ROOMS)
def test_two_rows_that_have_changed_their_figures_are_found(page: str):
    text = (DOCS / "museum" / f"{page}.py").read_text()
    one, other = re.findall(r'^# \| .*?\(#[\w-]+\).*?off\["([^"]+)"\]', text, re.MULTILINE)[:2]
    swapped = {f'off["{one}"]': f'off["{other}"]', f'off["{other}"]': f'off["{one}"]'}
    changed = re.sub(
        r"^# \| .*",
        lambda row: re.sub(r'off\["[^"]+"\]', lambda key: swapped.get(key[0], key[0]), row[0]),
        text,
        flags=re.M,
    )
    assert len(unmeasured(changed)) == 2


def taught() -> list[Path]:
    """The pages that say what PyTorch does."""
    return sorted(path for path in find_pages([DOCS]) if path.suffix == ".py" and path.parent.name != "proofread")


def page(path: Path) -> str:
    """The page's place among the pages, without its ending."""
    return path.relative_to(DOCS).with_suffix("").as_posix()


# Its code says of a table that no PyTorch and no device changes it: its cells are the package's own, or counts.
OURS = '"any-version"'
NAMED = (
    r"\*Computed with torch \{\{=? ?torch\.__version__\.split\(\"\+\"\)\[0\] \}\} on the\s+(?:# )?"
    r"\{\{=? ?[\w.]+\.device\.type\.upper\(\) \}\}\.\*"
)


@pytest.mark.parametrize("path", taught(), ids=page)
def test_a_table_of_what_pytorch_does_names_the_version_and_the_device_below_it(path: Path):
    cells = re.split(r"^# %%", path.read_text(), flags=re.MULTILINE)
    for cell, below in zip(cells, [*cells[1:], ""], strict=True):
        if cell.startswith(" [markdown]"):  # whose tables are read by whoever reads the prose below them
            continue
        tables, ours = cell.count("plot.table("), OURS in cell.partition("\n")[0]
        told = f"{cell.strip()[:200]}\n\nBelow a table stands *Computed with torch ...*, as on the other pages; "
        told += f"if no PyTorch and no device changes it, its cell has the tag {OURS}, and no other cell has"
        named = re.match(rf" \[markdown\]\n# {NAMED}\n", below) is not None
        assert (ours or named) if tables else not ours, told


def test_versions_are_named_in_one_form():
    for path in taught():
        text = path.read_text()
        assert len(re.findall(r"\{\{=?\s*torch\.__version__", text)) == len(re.findall(NAMED, text)), path.name


def undrawn(html: str) -> list[str]:
    """Paragraphs that show the bars of a table: its rule has more or fewer columns than its head, so it is none."""
    paragraphs = re.findall(r"<p>(.*?)</p>", html, re.DOTALL)
    return [each for each in paragraphs if re.search(r"\| *:?-{3,}:? *\|", re.sub(r"<code.*?</code>", "", each))]


def test_every_table_is_drawn_as_one(site: Path):
    pages = sorted(site.rglob("index.html"))
    assert pages
    found = {page.parent.name: bars for page in pages if (bars := undrawn(page.read_text(encoding="utf-8")))}
    assert found == {}


def test_a_table_whose_rule_has_other_columns_than_its_head_is_found():
    text = "| a | b |\n| --- | --- | --- |\n| 1 | 2 |"
    broken, right = (markdown.markdown(each, extensions=["tables"]) for each in (text, text.replace(" --- |", "", 1)))
    assert undrawn(broken)
    assert not undrawn(right + "<p><code>| --- |</code></p>")


def torn(markdown: str) -> list[str]:
    """Rows of Markdown tables that have more or fewer cells than their head: Markdown cuts or fills them silently."""
    text = re.sub(r"^( *)(```+|~~~+).*?^\1\2", "", markdown, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)|\{\{.*?\}\}|\\\|", "x", text)
    found, cells = [], 0
    lines = text.splitlines()
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if not cells and "|" in line and re.fullmatch(r"[ |:-]*-{3,}[ |:-]*\|[ |:-]*", below):
            cells = counted(line)
        elif cells and not line.strip():
            cells = 0
        elif cells and counted(line) != cells:
            found.append(line.strip())
    return found


def counted(row: str) -> int:
    """How many cells a row has."""
    return row.strip().removeprefix("|").removesuffix("|").count("|") + 1


@pytest.mark.parametrize("path", find_pages([DOCS]), ids=lambda path: path.relative_to(DOCS).as_posix())
def test_every_row_of_a_table_has_as_many_cells_as_its_head(path: Path):
    told = [cell.source for cell in read(path, DOCS.parent).cells if not cell.is_code]
    assert torn("\n\n".join(told)) == []


def test_a_row_that_is_broken_in_two_or_lacks_a_cell_is_found():
    head = "| a | b |\n| --- | --- |\n"
    assert torn(f"{head}| 1 | 2 |\n| `x | y` | 2<!--= a | b --> |\n\nno | row | of it") == []
    assert torn(f"{head}| 1 | 2\n  and more |") == ["and more |"]
    assert torn(f"{head}| 1 |\n| 1 | 2 | 3 |\n| {{{{ a | b }}}} | 2 |") == ["| 1 |", "| 1 | 2 | 3 |"]
    assert torn(f"```md\n{head}| 1 |\n```\n") == []
