"""Planted faults: each is caught, by a message of its own, on its own line."""

from pathlib import Path

import pytest

import proofread.checks.check as checking
from proofread.pages.page import find_pages

from .conftest import Project, Proofreader, found, planted

SOUND = """
# %% [markdown]
# # All 13<!--= len(words) --> words
#
# The answer is 55%<!--= share -->, in 2017<!--~ year -->.

# %%
import torch

words = ["ship"] * 13
share = torch.tensor(0.5512)

# %% [markdown]
# It keeps 55%<!--= share --> and `0.551`<!--= share -->, which is more than half.
#
# | word | weight |
# |------|--------|
# | ship | {{ share :.2f}} |
# | crew | 0.45<!--= 1 - share --> |
#
# $$s = 0.5512$$
# <!-- where: s = share -->
#
# It is over 50%.
#
# !!! note "Of 12.0<!--= len(words) - 1 --> others"
#
#     Twice that is 1.1<!--= 2 * share -->.

# %%
#| alt: a line through 13<!--= len(words) --> words
import matplotlib.pyplot as plt

plt.plot([1, 2]);

# %%
#| raises: AttributeError: no attribute 'missing'
words.missing

# %% tags=["claims"]
assert share > 0.5, "more than half"
assert share > 0.5, "over 50%"

# %% [markdown]
# - All 13<!--= len(words) --> in a list.[^1]
#
# [^1]: Of 26<!--= 2 * len(words) --> in a note.
"""


def test_a_sound_page_has_no_findings_and_is_counted(proofread: Proofreader) -> None:
    report = proofread(SOUND)
    assert found(report) == []
    assert str(report) == (
        "1 page checked; 1 of them run now; cells: 3 ran; values: 11 held, 1 waived; claims: 2 held; "
        "formulas: 1 held; 0 of 9 sentences with none of these; 1 of 1 captions and alt texts quoted by no claim; "
        "0 findings"
    )
    (page,) = report.pages
    assert page.of_cell(0) == ["# All 13 words\n\nThe answer is 55%, in 2017."]
    assert "| ship | 0.55 |" in page.of_cell(2)[0]
    assert page.of_cell(3) == ["a line through 13 words"]


PLANTED = [
    ("All 13<", "All 14<", "2: it says 14, but len(words) gives 13"),
    ("is 55%<", "is 56%<", "4: it says 56%, but share gives 55%"),
    ("keeps 55%<", "keeps 65%<", "13: it says 65%, but share gives 55%"),
    ("`0.551`", "`0.552`", "13: it says 0.552, but share gives 0.551"),
    ("| 0.45<", "| 0.46<", "18: it says 0.46, but 1 - share gives 0.45"),
    ("Of 12.0<", "Of 13.0<", "25: it says 13.0, but len(words) - 1 gives 12.0"),
    ("is 1.1<", "is 1.2<", "27: it says 1.2, but 2 * share gives 1.1"),
    ("- All 13<", "- All 14<", "44: it says 14, but len(words) gives 13"),
    (": Of 26<", ": Of 27<", "46: it says 27, but 2 * len(words) gives 26"),
    ("through 13<", "through 12<", "30: it says 12, but len(words) gives 13"),
    ("in 2017<!--~ year -->", "in 2017", "4: nothing proves the value 2017"),
    ("half.", "half, 1/2.", "13: nothing proves the value 1"),
    ("| ship |", "| ship 7 |", "17: nothing proves the value 7"),
    ("13<!--= len(words)", "13<!--= len(words) > 2", "2: len(words) > 2 compares, and would stand there whatever 13"),
    ("= share", "= shares", "4: 55% cannot be checked: shares fails with NameError: name 'shares' is not"),
    ("{{ share ", "{{ shares ", "17: {{ shares }} fails with NameError: name 'shares' is not defined"),
    ("{{ share ", "{{ torch.rand(1).item() ", "13: an expression or formula here draws from torch's global random"),
    ("which is", "where $d = 64$, which is", "13: `d = 64` is a part of no formula that this page displays"),
    ("over 50%", "over 50%, so $$ it is", "23: this $$ is never closed"),
    ("$$s = 0.5512$$", "$$s = \\frac{1}$$", "20: "),
    ("#| alt: a line through 13<!--= len(words) --> words\n", "", "cell 4 draws 1 figure but has 0 alt texts; say"),
    (
        "plt.plot([1, 2]);",
        "plt.plot([1]); plt.figure(); plt.plot([1]);",
        "30: cell 4 draws 2 figures but has 1 alt text",
    ),
    (
        "words.missing",
        "words",
        "36: cell 5 says `#| raises: AttributeError: no attribute 'missing'` but raises nothing;",
    ),
    (
        "words.missing",
        "missing",
        "37: cell 5 says `#| raises: AttributeError: no attribute 'missing'` but failed with N",
    ),
    (
        "'missing'",
        "'mising'",
        "37: cell 5 says `#| raises: AttributeError: no attribute 'mising'` but failed with Attr",
    ),
    ("raises: Attr", "raises: Attrs: Attr", "37: cell 5 says `#| raises: Attrs: Attr"),
    (
        "raises: Attr",
        "raises: 3 Attr",
        "36: raises (3 AttributeError: no attribute 'missing') must be an exception, and",
    ),
    ("raises: Attr", "fails: Attr", "36: `#| fails:` is no option; there are alt, caption, raises, timeout"),
    ("#| alt", "#| timeout: long\n#| alt", "30: timeout (long) must be a number of seconds, such as 300"),
    ('words = ["ship"]', 'words = ["ship"', "9: cell 2 failed with SyntaxError: '[' was never closed"),
    ("share = torch.t", "share = torch.rand(2) + torch.t", "7: cell 2 draws from torch's global random generator w"),
    ("= torch.tensor(0", "= torch.tensr(0", "10: cell 2 failed with AttributeError: module 'torch' has no attribute"),
]


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    return planted(tmp_path_factory.mktemp("planted"), SOUND, PLANTED)


@pytest.mark.parametrize(("place", "expected"), [(place, expected) for place, (_, _, expected) in enumerate(PLANTED)])
def test_a_planted_fault_is_found(faulty: list[list[str]], place: int, expected: str) -> None:
    assert any(expected in each for each in faulty[place]), faulty[place]


def test_a_cell_that_must_fail_names_the_exception(proofread: Proofreader) -> None:
    page = """
        # %% tags=["raises-exception"]
        int("x")

        # %% tags=["raises-exception"]
        1

        # %% tags=["raises-exception"]
        #| raises: ValueError: invalid
        #|   literal
        int("x")

        # %%
        #| raises: json.JSONDecodeError
        import json
        json.loads("x")

        # %%
        #| raises: ValueError
        json.loads("x")
        """
    assert found(proofread(page)) == [
        "2: cell 1 is tagged raises-exception, which any failure would do for; say which instead, at its top: "
        "`#| raises: ValueError: invalid literal for int() with base 10: 'x'`",
        "5: cell 2 is tagged raises-exception but raises nothing; drop the tag or let it fail",
        "15: cell 4 says `#| raises: json.JSONDecodeError` but failed with json.decoder.JSONDecodeError: "
        "Expecting value: line 1 column 1 (char 0)",
        "19: cell 5 says `#| raises: ValueError` but failed with json.decoder.JSONDecodeError: Expecting value: "
        "line 1 column 1 (char 0)",
    ]


TRY = """
        # %%
        def f():
            try:
                int("x")
            except ValueError as error:
                print(error)
"""


@pytest.mark.parametrize(
    ("old", "new", "is_found"),
    [
        ("", "", True),
        ("print(error)", "print(error)\n            else:\n                pass", True),
        ("print(error)", "print(error)\n            else:\n                raise AssertionError", False),
        ("print(error)", "print(error)\n            else:\n                assert True", True),
        ("print(error)", "print(error)\n            else:\n                print(1)", True),
        ("print(error)", "print(error)\n            except TypeError:\n                raise", True),
        ("print(error)", "print(error)\n            finally:\n                pass", True),
        ("print(error)", "return False", False),
        ("print(error)", "raise", False),
        ('int("x")', 'int("x")\n                raise RuntimeError', False),
        ('int("x")', "import spam", True),
        ("ValueError as", "ImportError as", False),
    ],
)
def test_a_try_that_would_not_miss_its_failure_is_found(
    proofread: Proofreader, old: str, new: str, is_found: bool
) -> None:
    assert found(proofread(TRY.replace(old, new, 1) if old else TRY)) == is_found * [
        "3: nothing tells if this try does not fail: end it with `else: raise AssertionError(...)`, or let the cell "
        "fail and say so, `#| raises: ValueError`"
    ]


def test_a_failure_shows_its_traceback_in_the_lines_of_the_page(proofread: Proofreader) -> None:
    report = proofread(
        """
        # %% [markdown]
        # Text.

        # %%
        def divide():
            return 1 / 0

        divide()
        """
    )
    (finding,) = report.findings
    assert str(finding).startswith("page.py:6: cell 2 failed with ZeroDivisionError: division by zero\nTraceback")
    assert 'File "page.py", line 8, in <module>\n    divide()' in finding.detail
    assert 'File "page.py", line 6, in divide\n    return 1 / 0' in finding.detail
    assert "IPython" not in finding.detail


@pytest.mark.parametrize(
    ("code", "draws"),
    [
        ("torch.manual_seed(0)\ntorch.rand(3)", False),
        ("torch.nn.Linear(2, 3)", True),
        ("torch.rand(3, generator=torch.Generator().manual_seed(0))", False),
        ("torch.rand(3)\ntorch.manual_seed(0)", True),
        ("from torch import manual_seed\nmanual_seed(0)\ntorch.rand(3)", False),
        ("torch.ones(3)", False),
    ],
)
def test_a_draw_must_follow_a_seed_in_its_own_cell(proofread: Proofreader, code: str, draws: bool) -> None:
    report = proofread(f"# %%\nimport torch\ntorch.manual_seed(1)\n\n# %%\n{code}\n")
    expected = (
        "6: cell 2 draws from torch's global random generator without seeding it; begin it with torch.manual_seed"
    )
    assert [finding.startswith(expected) for finding in found(report)] == [True] * draws


def test_figures_are_compared_where_they_stand_or_at_the_end_if_their_names_come_later(proofread: Proofreader) -> None:
    page = """
    # %%
    x = 1

    # %% [markdown]
    # Now 1<!--= x -->, and later 3<!--= y --> or 4<!--= y -->.

    # %%
    x, y = 2, 2

    # %%
    y = 3

    # %% [markdown]
    # Now 2<!--= x -->, never 1<!--= x -->.
    """
    told = "5: it says 4, but y gives 3 (y is bound in the cells 3, 4: what it is here counts, and if it is not yet,"
    assert found(proofread(page)) == [f"{told} at the end)", "14: it says 1, but x gives 2"]


def test_pages_are_markdown_files_and_scripts_with_cells(project: Project) -> None:
    files = {"a.md": "", "b/c.py": "# %%\n", "b/d.py": "#%%\n", "hook.py": "x = 1\n", "e.txt": "", ".venv/f.md": ""}
    for name, text in files.items():
        project.write(name, text)
    assert [path.name for path in find_pages([project.root, project.root / "a.md"])] == ["a.md", "c.py", "d.py"]
    assert [path.name for path in find_pages([project.root / ".venv"])] == ["f.md"]


def test_a_formula_is_told_which_cell_further_down_binds_what_it_names(proofread: Proofreader) -> None:
    page = """
# %% [markdown]
# It is 3<!--= later -->, or {{ later }}, and no 4<!--= never -->.
#
# $$u = 2 \\cdot 3$$
# <!-- where: u = later * 2 -->
#
# $$v = 2 \\cdot 3$$
# <!-- where: -->

# %%
later = len("abc")
v = later * 2
"""
    below = "; cell 2, further down, binds it: "
    never, made, unbound = sorted(found(proofread(page)))
    assert never.endswith("NameError: name 'never' is not defined")
    assert made.endswith(f"{below}state the formula below that cell")
    assert unbound.endswith(f"{below}state the formula below that cell")


def test_a_sentence_that_a_claim_no_longer_quotes_is_told_once_figures_and_all(proofread: Proofreader) -> None:
    prose = "# %%\nours = 0.4\n\n# %% [markdown]\n# It takes 43 seconds, or 44.\n\n"
    (said,) = found(proofread(f'{prose}# %% tags=["claims"]\nassert ours < 44, "It took 43 seconds, or 44"\n'))
    assert 'line 5 says "It takes 43 seconds, or 44"' in said


HELD = """
# %%
#| script: drawn.js
print(x := 4)
x

# %% [markdown]
# There are 5<!--= x --> of them. It is so.
"""


def test_a_page_is_held_again_to_the_same_run_where_something_was_wrong_alone(proofread, tmp_path, monkeypatch) -> None:
    (tmp_path / "drawn.js").touch()
    wrong = HELD.replace("#| script: drawn.js\n", "")
    first, again = (proofread(wrong, keep=True) for _ in range(2))
    assert [*map(vars, again.findings)] == [*map(vars, first.findings)]
    assert [finding.edit.new for finding in again.findings] == ["4"]
    right = wrong.replace("5<!", "4<!")
    assert proofread(right, keep=True).pages[0].sentences == (1, 2)
    with monkeypatch.context() as held:
        held.setattr(checking, "_findings", lambda *_: pytest.fail("it was held again"))
        assert proofread(right, keep=True).pages[0].sentences == (1, 2)
    assert proofread(right.replace("x := 4", "x := 6"), keep=True).findings
    assert proofread(wrong, keep=True).findings


def test_a_file_beside_a_page_is_looked_for_each_time(proofread, tmp_path: Path) -> None:
    page = HELD.replace("5<!", "4<!").replace("\nx\n", "\nfrom IPython.display import HTML\nHTML('a')\n")
    (tmp_path / "drawn.js").touch()
    assert not proofread(page, keep=True).findings
    (tmp_path / "drawn.js").unlink()
    (missed,) = proofread(page, keep=True).findings
    assert "script (drawn.js) must be a file" in missed.message
