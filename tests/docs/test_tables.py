"""Tables name the axes of what they measure, and measure the mistake that their row links to."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
SIZES = re.compile(r"^\| (?P<axis>\w+) \|.*?(?P<size>\d+)<!--==", re.MULTILINE)
AXES = re.compile(r"^\|.*\| (?P<axes>\w+(?:, \w+)*) \| `\((?P<shape>[\d, ]+)\)`<!--==.*\|$", re.MULTILINE)


def test_the_axes_of_the_notation_have_the_sizes_of_the_example():
    text = (DOCS / "notation.md").read_text()
    sizes = {row["axis"]: int(row["size"]) for row in SIZES.finditer(text)}
    sizes["tokens"] = sizes["queries"]
    rows = list(AXES.finditer(text))
    assert len(rows) >= 12
    for row in rows:
        shape = [int(size) for size in row["shape"].rstrip(",").split(",")]
        assert [sizes[axis] for axis in row["axes"].split(", ")] == shape, row[0]


@pytest.mark.parametrize("page", ["09_heads", "09_weights"])
def test_a_row_measures_the_mistake_that_it_links_to(page: str):
    text = (DOCS / "tutorials" / f"{page}.py").read_text()
    rows = re.findall(r"^# \| \[.*\]\(#([\w-]+)\) \|(.*)", text, re.MULTILINE)
    assert rows
    for slug, rest in rows:
        assert f'<!--== off["{slug}"] -->' in rest, slug
