"""Words that a page could turn round: which of them something holds."""

from pathlib import Path

import pytest

from proofread import cli
from proofread.checks import mutate
from proofread.checks.check import check
from proofread.settings import Settings, SettingsError

PAGE = """
# %% [markdown]
# # The first is larger
#
# **The first number is *larger*<!--== "larger" if a > b else "smaller" --> than the second.**
#
# | The last | May |
# | --- | --- |
# | *smaller*<!--== "smaller" if b < a else "larger" --> | {{= "above" if a > b else "below" }} |
#
# It is never below, `True` and `a.first` say, and may not be [above](#below) <span class="last">it</span>. `a.last`
#
# !!! question "What is less?"
#
#     The one after it.

# %%
#| alt: A row above a column<!--= axes.get_xlabel() -->.
import matplotlib.pyplot as plt

a, b = 3, 2
_, axes = plt.subplots()
axes.set_xlabel("column")
axes.set_ylabel("row")
axes.plot([a, b], label=f"before {a}");
"""


@pytest.fixture
def swapped(tmp_path: Path) -> list[mutate.Swap]:
    (tmp_path / "page.py").write_text(PAGE)
    report = check([tmp_path / "page.py"], root=tmp_path)
    assert report.findings == []
    return mutate.every(report)


def of(swaps: list[mutate.Swap], kind: str) -> list[tuple[str, str, bool]]:
    return [(swap.word, swap.other, swap.held) for swap in swaps if swap.kind == kind]


def test_a_claim_holds_its_words_and_nothing_else_does(swapped: list[mutate.Swap]) -> None:
    assert of(swapped, "heading") == [("first", "last", False), ("larger", "smaller", False)]
    assert of(swapped, "first") == [("first", "last", False), ("larger", "smaller", True)]
    assert of(swapped, "prose") == [
        ("never", "always", False),
        ("below", "above", False),
        ("True", "False", False),
        ("may not", "may", False),
        ("above", "below", False),
    ]


def test_each_place_has_its_kind(swapped: list[mutate.Swap]) -> None:
    assert of(swapped, "table") == [
        ("last", "first", False),
        ("May", "May not", False),
        ("smaller", "larger", True),
        ("above", "below", True),
    ]
    assert of(swapped, "task") == [("less", "greater", False), ("after", "before", False)]
    assert of(swapped, "alt") == [("row", "column", False), ("above", "below", False), ("column", "row", True)]


def test_a_label_is_held_by_a_claim_that_reads_it(swapped: list[mutate.Swap]) -> None:
    assert of(swapped, "label") == [("column", "row", True), ("row", "column", False), ("before", "after", False)]


@pytest.mark.parametrize(
    ("word", "other"),
    [("Larger", "Smaller"), ("MiB", "GiB"), ("True", "False"), ("FIRST", "last"), ("may not", "may"), ("ship", None)],
)
def test_a_word_becomes_its_opposite_in_its_case(word: str, other: str | None) -> None:
    assert mutate.opposite(word) == other


def test_every_row_of_opposites_comes_round() -> None:
    for word, other in mutate.OPPOSITES.items():
        assert other != word
        assert other in mutate.OPPOSITES


@pytest.mark.parametrize(("own", "others"), [((), []), (("query key value", "last final"), ["key", "query", "final"])])
def test_a_project_has_opposites_of_its_own(tmp_path: Path, own: tuple[str, ...], others: list[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text("The query has a `value` at last, and head or `None` are left.\n")
    report = check([page], root=tmp_path, settings=Settings(opposites=own), keep=False)
    told = [swap.other for swap in mutate.every(report)]
    assert told == [*others, "right"] if own else told == ["first", "right"]


def test_a_strict_page_that_holds_too_little_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "page.py").write_text(PAGE)
    settings = Settings(strict=("*.py",), words={"table": 0.6, "alt": 0.3})
    found = check([tmp_path / "page.py"], root=tmp_path, settings=settings, whole=True).findings
    assert list(map(str, found)) == [
        "pyproject.toml:1: claims hold 2 of 4 words in table cells of strict pages, fewer than 60%; "
        "`proofread mutate --kind table` lists the others"
    ]
    settings = Settings(strict=("other.py",), words={"table": 0.5})
    assert check([tmp_path / "page.py"], root=tmp_path, settings=settings, whole=True).findings == []


def test_the_command_lists_what_survives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "page.py").write_text(PAGE)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["mutate", "page.py", "--kind", "table"]) == 0
    told = capsys.readouterr()
    assert told.out.splitlines() == [
        "page.py:7: table: nothing notices first for last",
        "page.py:7: table: nothing notices May not for May",
    ]
    assert told.err.splitlines()[-1] == (
        "words that no swap could turn round unnoticed: 1 of 2 in first sentences, 0 of 2 in headings, 2 of 4 in table "
        "cells, 1 of 3 in labels of figures, 1 of 3 in alt texts, 0 of 2 in tasks and hints, 0 of 5 in prose"
    )


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("[tool.proofread.words]\ntables = 1", "names tables, where no word stands; there are first, heading, table, "),
        ("[tool.proofread.words]\ntable = 95", "must be a table of shares between 0 and 1, such as table = 0.95"),
        ("[tool.proofread]\nstrict = 'docs'", 'must be a list of patterns of pages, such as ["docs/*.md"]'),
    ],
)
def test_settings_that_cannot_be_meant(tmp_path: Path, said: str, message: str) -> None:
    (tmp_path / "pyproject.toml").write_text(said)
    with pytest.raises(SettingsError) as raised:
        Settings.load(tmp_path)
    assert message in str(raised.value)


PHRASES = """
# %%
tall = True
shape = ("row", "column")

# %% [markdown]
# **A mask has a *row* for
# each query**<!--= "A mask has a row for each query" if tall else "A mask has a column for each query" -->. It has a
# column for each key<!--= f"a {shape[1]} for each key" -->, not a row<!--= "not a row" if tall else "a row" -->.
"""


def test_a_claim_takes_in_all_words_that_its_expression_spells(tmp_path: Path) -> None:
    (tmp_path / "page.py").write_text(PHRASES)
    report = check([tmp_path / "page.py"], root=tmp_path, settings=Settings(opposites=("query key",)))
    assert report.findings == []
    (text,) = report.pages[0].texts
    assert [claim.typed for claim in text.prose.claims] == [
        "A mask has a row for each query",
        "a column for each key",
        "not a row",
    ]
    assert all(swap.held for swap in mutate.every(report)), mutate.every(report)
    assert len(mutate.every(report)) == 5


@pytest.mark.parametrize(
    ("said", "instead"),
    [("# column for", "# row for"), ("not a row<", "a row<"), ("# each query**", "# no query**")],
)
def test_a_phrase_that_is_not_what_its_expression_gives_is_a_finding(tmp_path: Path, said: str, instead: str) -> None:
    assert said in PHRASES
    (tmp_path / "page.py").write_text(PHRASES.replace(said, instead))
    assert len(check([tmp_path / "page.py"], root=tmp_path).findings) == 1
