"""Figures as they are printed, figures about something, and tables: what a page says of them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from proofread.checks.check import check
from proofread.checks.checked import Report
from proofread.checks.fix import fixes
from proofread.pages import tables
from proofread.pages.prose import read

Proofreader = Callable[..., Report]
PAGE = """
# %%
x, rows = [0.5, 0.25], 2441

# %% [markdown]
"""


def said(proofread: Proofreader, text: str) -> list[str]:
    page = PAGE.lstrip() + "".join(f"# {line}".rstrip() + "\n" for line in text.strip("\n").split("\n"))
    return [finding.message for finding in proofread(page).findings]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2400<!--= rows -->", "it says 2400, but rows gives 2441; say that, or about 2400"),
        ("2300<!--= rows -->", "it says 2300, but rows gives 2441"),
        ("some 2500<!--= rows -->", "it says 2500, but rows gives some 2400"),
        ("nearly 2400<!--= rows -->", "it says 2400, but rows gives over 2400"),
        ("almost half<!--= x[1] * 2.08 -->", "it says half, but x[1] * 2.08 gives over half"),
        ("`[0.5 ... 0.25]`<!--= x -->", "leaves numbers out: type all of them, or give a part of them, such as x[:3]"),
        ("array([0.5, 0.26])<!--= x -->", "it says array([0.5, 0.26]), but x gives array([0.5, 0.25])"),
    ],
)
def test_what_is_not_is_told(proofread: Proofreader, text: str, message: str) -> None:
    (told,) = said(proofread, text)
    assert told.endswith(message) if "leaves" in message else told == message


def test_fix_leaves_alone_what_is_about_and_mends_what_is_not(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```python\nrows = 2441\n```\n\nabout 2400<!--= rows -->, about 2700<!--= rows -->, *some 90*<!--= rows -->\n"
    )
    (fix,) = fixes(check([page], root=tmp_path, keep=False).findings, tmp_path)
    fix.apply()
    assert page.read_text().endswith("about 2400<!--= rows -->, about 2400<!--= rows -->, *some 2400*<!--= rows -->\n")
    assert check([page], root=tmp_path, keep=False).findings[1:] == []


@pytest.mark.parametrize(
    "typed",
    [
        "`array([0.5, 0.25])`",
        "array([0.5, 0.25])",
        "`[0.5 0.25]`",
        "[0.5 0.25]",
        "`array([0.5,\n  0.25])`",
        "```text\n[0.5\n 0.25]\n```\n",
    ],
)
def test_an_array_is_compared_as_it_is_printed(proofread: Proofreader, typed: str) -> None:
    assert said(proofread, f"It gives\n\n{typed}<!--= x -->") == []
    (told,) = said(proofread, f"It gives\n\n{typed.replace('0.25', '0.26')}<!--= x -->")
    assert "but x gives" in told
    assert "0.25" in told


TABLE = """
| planet | **mass** | `year` |
| --- | ---: | --- |
| Mars | 0.5 | 1610 |
| Eris 2 | *0.25* | `2005` |
"""


def test_a_column_is_held_against_a_list(proofread: Proofreader) -> None:
    waived = "<!--~ year: of discovery -->\n<!--~ planet: a name -->"
    assert said(proofread, f"<!--= mass: x -->\n{waived}\n{TABLE}") == []
    assert said(proofread, f"<!--= mass: x -->\n{waived}\n{TABLE.replace('0.25', '0.26')}") == [
        "it says 0.26, but x[1:] gives 0.25"
    ]
    short = TABLE.replace("| Eris 2 | *0.25* | `2005` |\n", "")
    assert said(proofread, f"<!--= mass: x -->\n<!--~ year: of discovery -->\n{short}") == [
        "it says 0.5, but x[0:] gives [0.5, 0.25]"
    ]
    more = TABLE + "| Sol | 1 | 0 |"
    assert "x[2:] gives" in said(proofread, f"<!--= mass: x -->\n{waived}\n{more}")[0]


def test_a_comma_may_part_the_thousands_of_a_columns_last_row(proofread: Proofreader, tmp_path: Path) -> None:
    def told(rows: str, expression: str = "big") -> list[str]:
        page = f"```python\nbig = [1000.2, 333724.45]\n```\n\n<!--= km: {expression} -->\n\n| km |\n| --- |\n{rows}"
        (tmp_path / "page.md").write_text(page)
        return [finding.message for finding in check([tmp_path / "page.md"], root=tmp_path, keep=False).findings]

    assert told("| 1,000 |\n| 333,724 |\n") == []
    assert told("| 1,000 |\n| 333,725 |\n") == ["it says 333,725, but big[1:] gives 333,724"]
    assert told("| 333,724 |\n") == ["it says 333,724, but big[0:] gives [1000.2, 333724]"]
    assert told("| 1,000 |\n| 333,724 |\n| 0 |\n")[0].startswith("it says 0, but big[2:] gives")


def test_a_cell_of_the_column_may_have_a_word_of_its_own(proofread: Proofreader) -> None:
    table = TABLE.replace("| 0.5 |", "| 0.6<!--~ as published --> |")
    assert said(proofread, f"<!--= mass: x -->\n<!--~ year: of discovery -->\n<!--~ planet: a name -->\n{table}") == []


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (f"<!--~ table: as published -->\n{TABLE}", 1),
        (f"<!--~ table: as published -->\n\n{TABLE}", 1),
        (f"Table of planets <!--~ table: as published -->\n{TABLE}", 1),
        (f"{TABLE}\nTable of planets <!--~ table: as published -->", 1),
        (f"<!--~ mass: measured -->\n<!--~ year: of discovery -->\n<!--~ planet: a name -->\n{TABLE}", 3),
    ],
)
def test_a_table_is_waived_as_a_whole_or_by_columns(text: str, number: int) -> None:
    prose = read(text)
    assert ([*prose.bare("")], len(prose.waivers), prose.problems) == ([], number, [])


@pytest.mark.parametrize(
    ("text", "problem", "bare"),
    [
        (f"<!--~ as published -->\n{TABLE}", "or <!--~ table: as published --> for all of it", 5),
        ("<!--~ table: as published -->\nNo table, but 5.", "must name the figures of its block", 1),
        ("| a |\n|---|\n| b |\n\nText 5 <!--~ table: as published -->", "covers no figure; remove it", 1),
        ("Text <!--~ table: as published -->", "covers no figure; remove it", 0),
        (f"<!--~ mass: measured -->\n{TABLE}", "", 3),
        (f"<!--= weight: x -->\n{TABLE}", "must directly follow what it speaks of", 5),
        (f"<!--= mass: x[ -->\n{TABLE}", "is not an expression", 5),
        (f"<!--= mass: [0.5, 0.25] -->\n{TABLE}", "takes nothing from the page", 5),
    ],
)
def test_what_is_said_of_a_table_that_is_not_so_is_told(text: str, problem: str, bare: int) -> None:
    prose = read(text)
    assert len([*prose.bare("")]) == bare
    assert [problem in message for _, message in prose.problems] == [True] * bool(problem)


def test_cells_are_those_that_markdown_has() -> None:
    text = r"""
> | `a|b` | c \| d | <!-- e | f --> |
> |:-|-:|:-:|
> | 1 | | 3
> 4 | 5<!--= x |
> y --> | 6 |
>
> 7 | 8
"""
    table = tables.after(text, 0)
    assert table is not None
    cells = {title: [text[slice(*span)] for span in spans] for title, spans in table.columns.items()}
    assert cells == {"a|b": ["1", "4"], r"c \| d": ["", "5<!--= x |\n> y -->"], "": ["3", "6"]}
    assert tables.after("no | table\nat all | here", 0) is None
