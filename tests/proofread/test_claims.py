"""Claims are asserts: each has a condition that must hold, and quotes the words of the page that it proves."""

import json
from pathlib import Path

import pytest

from proofread.checks.fix import fixes
from proofread.checks.unproved import unproved
from proofread.cli import main
from proofread.pages import asserts
from proofread.pages.conditions import is_fixed, why_fixed
from proofread.pages.plain import Plain
from proofread.pages.prose import read
from proofread.settings import Settings

from .conftest import Command, Project, Proofreader, found, planted

PAGE = """\
# %% [markdown]
# # Who takes more?
#
# The *ship* takes **more** than
# the [crew](//crew), and no weight is negative.

# %%
#| caption: Of both, the ship is the taller
#| alt: two bars, the first the taller
import matplotlib.pyplot as plt

ship, crew, weights = 3, 2, [0.25, 0.75]
plt.bar(["ship", "crew"], [ship, crew]);

# %% tags=["claims"]
assert ship > crew, "The ship takes more than the crew"
assert min(weights) >= 0, "no weight is negative"
assert ship > crew, "the ship is the taller"
assert ship == max(ship, crew), "the first the taller"
"""


def said(text: str, fragment: str) -> int:
    """How often a fragment stands in a text."""
    return sum(1 for _ in Plain(read(text), {}).places(fragment))


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("the *ship* is **larger**", "ship is larger"),
        ("the ship is\nlarger than\n  all", "ship is larger than all"),
        ("> the ship is\n> larger", "ship is larger"),
        ("the [ship](a_(b).md) is larger", "the ship is larger"),
        ('the [ship](a.md "Title"), the [crew][c] too', "the ship, the crew too"),
        ("the “ship” and the ship’s crew", 'the "ship" and the ship\'s crew'),
        ("it is `softmax(x)` of $a_i$", "is softmax(x) of $a_i$"),
        ("of 55%<!--= x --> it\n<!-- a comment -->\nkeeps half", "55% it keeps half"),
        ("a term[^1] that is\n\n[^1]: A note on it", "a term that is"),
        ("a term[^1] that is\n\n[^1]: A note on it", "A note on it"),
        ("## A heading goes on { #here }", "heading goes on"),
        ("Setext goes on\n---", "Setext goes on"),
        ("| a | b |\n| --- | --- |\n| the *ship* | larger |", "the ship larger"),
        ("- one item goes\n  on\n- another", "one item goes on"),
        ('!!! note "A title here"\n\n    And a body.', "A title here"),
        ('<img src="a.svg" alt="a ship at sea">', "a ship at sea"),
        ("![a ship at sea](a.svg)", "a ship at sea"),
        ("one<br>line, a<b>b</b>c&nbsp;d", "one line, abc d"),
        ("---\ntitle: What it is\n---\n", "What it is"),
    ],
)
def test_a_fragment_is_found_whatever_its_markup(text: str, fragment: str) -> None:
    assert said(text, fragment) == 1


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("the ship\n\nis larger", "ship is larger"),
        ("> the ship\n>\n> is larger", "ship is larger"),
        ("# The ship\nis larger\n# Or not", "larger Or"),
        ("The ship\n===\nis larger", "ship is larger"),
        ("- the ship\n- is larger", "ship is larger"),
        ("1. the ship\n2. is larger", "ship is larger"),
        ("| a | the ship |\n| --- | --- |\n| is larger | b |", "ship is larger"),
        ("<p>the ship</p><p>is larger</p>", "ship is larger"),
        ("the shipping", "the ship"),
        ("in 13 of them", "3 of them"),
        ("the ship\n<!-- is larger -->", "ship is larger"),
        ("```text\nthe ship is larger\n```", "ship is larger"),
    ],
)
def test_a_fragment_stands_in_one_paragraph_item_or_row_and_in_whole_words(text: str, fragment: str) -> None:
    assert said(text, fragment) == 0


@pytest.mark.parametrize(
    ("text", "negated"),
    [
        ("It is not equal.", "not"),
        ("They differ (not equal).", "not"),
        ("So they are—Never equal.", "Never"),
        ("It is unequal here, not equal there.", "not"),
        ("It is equal, not more.", ""),
        ("A knot equal to it.", ""),
    ],
)
def test_a_negation_is_the_whole_word_before_the_whole_fragment(text: str, negated: str) -> None:
    assert Plain(read(text), {}).negation("equal") == negated


def test_what_a_page_computes_is_part_of_what_it_says() -> None:
    prose = read("It has {{ n }} rows:\n\n{{ table }}")
    page = Plain(prose, dict(zip(prose.computed, ["3", "| a | b |\n| --- | --- |\n| c | d |"], strict=True)))
    assert [len([*page.places(fragment)]) for fragment in ("has 3 rows", "c d", "b c")] == [1, 1, 0]


def test_sentences_are_counted_without_code_and_rules() -> None:
    text = "# Title\n\nOne of three words. Another\nhas.\n\n| a | b | c |\n| - | - | - |\n\n```sh\nno prose here\n```"
    assert [text[start:end] for start, end, _ in Plain(read(text), {}).sentences()] == [
        "One of three words.",
        "a | b | c",
    ]


def test_a_page_whose_claims_hold_has_no_findings_and_they_are_counted(proofread: Proofreader) -> None:
    report = proofread(PAGE)
    assert found(report) == []
    assert str(report).endswith(
        "cells: 1 ran; claims: 4 held; 1 of 4 sentences with none of these; "
        "0 of 2 captions and alt texts quoted by no claim; 0 findings"
    )
    assert [subject.name for subject in report.pages[0].subjects if subject.kind == "claims"] == [
        "16 claim The ship takes more than the crew",
        "17 claim no weight is negative",
        "18 claim the ship is the taller",
        "19 claim the first the taller",
    ]
    (wrong,) = proofread(PAGE.replace("**more**", "**less**")).pages
    assert wrong.tally["claims"] == {"held": 3, "failed": 1}


PLANTED = {
    "flipped word": (
        "**more**",
        "**less**",
        '16: "The ship takes more than the crew" is not on the page; line 4 says "The ship takes less than the crew, '
        'and no weight is negative": if ship > crew proves that, quote it',
    ),
    "a negation before it": (
        '"no weight',
        '"weight',
        '17: "weight is negative" is quoted without the "no" before it, which turns it round: quote that, too',
    ),
    "nothing like it": (" and no weight is negative", "", '17: "no weight is negative" is not on the page: quote'),
    "twice": (
        "the first the taller\n",
        "the first the taller, and the ship is the taller\n",
        '18: "the ship is the taller" stands on the page 2 times, on the lines 8, 9: quote more of the sentence',
    ),
    "false": (
        "ship, crew, weights = 3, 2",
        "ship, crew, weights = 2, 3",
        '16: "The ship takes more than the crew" does not hold: ship > crew is false, where ship is 2, crew is 3',
    ),
    "one part of it": (
        "min(weights) >= 0",
        "ship > crew and min(weights) > 0.5",
        '17: "no weight is negative" does not hold: ship > crew and min(weights) > 0.5 is false, where min(weights) is '
        "0.25",
    ),
    "a part without sides": (
        "min(weights) >= 0",
        "ship > crew and all(w > 0.5 for w in weights)",
        "is false, where all((w > 0.5 for w in weights)) is False",
    ),
    "nothing of the page": ("min(weights) >= 0", "1 > 0", "17: 1 > 0 takes nothing from the page"),
    "fixed": (
        "min(weights) >= 0",
        "len(weights) >= 0",
        '17: len(weights) >= 0 takes nothing from the page, so it proves nothing of "no weight is negative": nothing '
        "that the page gives can change that; compare what the page gave",
    ),
    "to the bit": (
        "min(weights) >= 0",
        "min(weights) == weights[0]",
        "17: min(weights) == weights[0] compares computed",
    ),
    "failing": (
        "min(weights)",
        "least(weights)",
        "17: no weight is negative cannot be checked: least(weights) >= 0 fails with NameError: name 'least' is not",
    ),
    "no truth": (
        "min(weights) >= 0",
        "plt.np.array(weights) >= 0",
        "fails with ValueError: The truth value of an array",
    ),
    "bound further down": (
        "[markdown]\n",
        '[markdown]\n# Text.\n\n# %% tags=["claims"]\nassert ship > 1, "Who takes more"\n\n# %% [markdown]\n',
        "5: Who takes more cannot be checked: ship > 1 fails with NameError: name 'ship' is not defined; cell 4, "
        "further down, binds it: put the claim below that cell",
    ),
    "no assert": (
        "assert min",
        "for w in weights:\n    print(w)\nassert min",
        "17: a cell of claims holds asserts alone, and for w in weights: is none: let a cell above do that, tagged",
    ),
    "no Python": ("assert min", "assert) min", "17: the claims cannot be read: unmatched ')'"),
}


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    told = planted(tmp_path_factory.mktemp("planted"), PAGE, PLANTED.values())
    return dict(zip(PLANTED, told, strict=True))


@pytest.mark.parametrize("place", PLANTED)
def test_a_planted_fault_is_found(faulty: dict[str, list[str]], place: str) -> None:
    assert any(PLANTED[place][2] in each for each in faulty[place]), faulty[place]


@pytest.mark.parametrize(
    ("claim", "remedy"),
    [
        ("assert close(a, b)", 'assert close(a, b), "a few words of the page"'),
        ("assert a > b, x", 'assert a > b, "a few words of the page"'),
        ("assert a > b, f'{a} ships'", 'assert a > b, "a few words of the page"'),
        ("assert a > b, '**'", 'assert a > b, "a few words of the page"'),
        ("assert (a > b, 'the ship')", 'assert a > b, "a few words of the page"'),
    ],
)
def test_a_claim_without_a_fragment_is_told_how_to_quote_one(claim: str, remedy: str) -> None:
    ((line, message),) = asserts.read(f"\n{claim}").problems
    assert line == 1
    assert message.endswith(f" names no sentence of the page: quote a fragment of what it proves, {remedy}")


def test_an_assert_may_go_over_lines_and_has_comments(proofread: Proofreader) -> None:
    page = """
    # %%
    x = [1 / 3, 2 / 3]

    # %% [markdown]
    # Both are *less than* one, é and 2 of 3.

    # %% tags=["claims"]
    # What follows is known.
    assert (
        max(x) < 1  # of two
        and x == x[:]  # to the bit: a copy
    ), (
        "Both are less "
        "than one"
    ); assert len(x) == 2, "é and 2 of 3"
    """
    assert found(proofread(page)) == []
    assert found(proofread(page.replace("  # to the bit: a copy", ""))) != []
    assert found(proofread(page.replace('"é and', '"e and'))) != []


def test_figures_of_a_fragment_are_proved_and_no_others(proofread: Proofreader) -> None:
    page = "# %%\nn = 3\n\n# %% [markdown]\n# It is over 2, or 4.\n\n# %% tags=['claims']\nassert n > 2, 'is over 2'\n"
    assert [each.split(": assert")[0] for each in found(proofread(page))] == ["5: nothing proves the value 4"]


MARKDOWN = """\
# Who takes more

The *ship* takes more than the crew.

```python
ship, crew = 3, 2
```

<!--
```claims
assert ship > crew, "ship takes more than the crew"
```
-->

A ship is taller.

```claims
assert ship > 2, "ship is taller"
```
"""


def test_a_fence_of_claims_is_read_in_a_comment_and_bare(proofread: Proofreader) -> None:
    report = proofread(MARKDOWN, name="page.md")
    assert found(report) == []
    assert [text.published for text in report.pages[0].texts if "-->" in text.published] == []
    wrong = MARKDOWN.replace("> crew,", "< crew,").replace("> 2", "> 3")
    assert [each.partition(" does")[0] for each in found(proofread(wrong, name="page.md"))] == [
        '11: "ship takes more than the crew"',
        '18: "ship is taller"',
    ]


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [("<!--\n```claims", "<!-- ```claims", 9), ("\n```claims\nassert ship > 2", "\n  ```claims\nassert ship > 2", 17)],
)
def test_a_fence_of_claims_that_is_not_read_is_found(proofread: Proofreader, old: str, new: str, line: int) -> None:
    told = found(proofread(MARKDOWN.replace(old, new), name="page.md"))
    assert told[0].startswith(
        f"{line}: these claims are not read: on a Markdown page let the line of their fence begin"
    )


def test_of_a_page_that_stops_midway_only_the_failure_is_told(proofread: Proofreader) -> None:
    page = "# %% [markdown]\n# Of 3<!--= n -->, {{ n }} ships.\n\n# %%\n1 / 0\n\n# %%\nn = 3\n\n# %% tags=['claims']\n"
    report = proofread(page + "assert n > 2, 'Of 3, 3 ships'\n")
    assert [finding.line for finding in report.findings] == [5]
    assert report.pages[0].tally["claims"] == {"not looked at": 1}


def test_the_claims_of_a_page_that_is_only_run_are_not_looked_at(proofread: Proofreader) -> None:
    report = proofread(PAGE.replace("ship > crew", "ship < crew"), settings=Settings(modes={"page.py": "run"}))
    assert found(report) == []
    assert "; claims: 4 not looked at; 0 findings" in str(report)


@pytest.mark.parametrize(
    ("fragment", "quoted"),
    [
        ("A ship takes more than a crew", "The ship takes more than the crew"),
        ("The ship also takes more, than the crew", "The ship takes more than the crew"),
        ("the ship takes more than that crew", "The ship takes more than the crew"),
        ("no weight was negative", "no weight is negative"),
        ("The ship takes more. Than the crew", "The ship takes more than the crew"),
        ("The ship gets more than the crew", None),
        ("The ship seldom takes more than the crew", None),
        ("The shíp takes more than the crew", None),
        ("The ship takes less than the crew", None),
        ("The crew takes more than the ship", None),
        ("The ship doesn't take more than the crew", None),
        ("The ship cannot take more than the crew", None),
        ("The ship takes less, than the crew", None),
        ("The ship takes 3 more than the crew", None),
        ("The ship takes two more than the crew", None),
    ],
)
def test_fix_quotes_what_was_reworded_and_nothing_that_was_turned_round(
    project: Project, fragment: str, quoted: str | None
) -> None:
    page = PAGE.split("# %%\n")[0] + f"# %%\nship = 3\n\n# %% tags=['claims']\nassert ship > 2, '{fragment}'  # so\n"
    for fix in fixes(project.proofread(page).findings, project.root):
        fix.apply()
    assert project.read("page.py") == (page.replace(f"'{fragment}'", f'"{quoted}"') if quoted else page)


def test_fix_leaves_what_is_false_or_stands_twice_and_a_page_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    reworded = PAGE.replace("*ship* takes", "*ship* also takes")
    for text in (
        reworded.replace('assert ship > crew, "The', 'assert ship < crew, "The'),
        reworded.replace("is negative.", "is negative. The ship also takes more than the crew."),
        reworded + "\n# %%\n1 / 0\n",
    ):
        Path("page.py").write_text(text)
        assert main(["fix", "page.py"]) == 1
        assert Path("page.py").read_text() == text
    Path("page.py").write_text(reworded)
    assert main(["fix", "page.py"]) == 0
    assert Path("page.py").read_text() == reworded.replace('"The ship takes', '"The ship also takes')
    assert 'page.py:16: "The ship takes more than the crew" -> "The ship also takes more' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("condition", "cause"),
    [
        ("x == x", "x == x compares x with itself"),
        ("not (x != x)", "compares x with itself"),
        ("torch.equal(a, a)", "torch.equal(a, a) compares a with itself"),
        ("a.allclose(a)", "a.allclose(a) compares a with itself"),
        ("all(w == w for w in words)", "compares w with itself"),
        ("(x * 0 == 0).all()", "x * 0 is zero"),
        ("len([a, b]) == 2", "len([a, b]) counts what is written in it"),
        ("(1 if a == a else 0) == 1", "a == a compares a with itself"),
        ("(3 if n else 3) == 3", "both branches of 3 if n else 3 are the same"),
        *((each, "nothing that the page gives can change that") for each in ("abs(d) >= 0", "(x**2).sum() >= 0")),
        *((each, "nothing that the page gives can change that") for each in ("x.norm() > -1", "len(words) >= 0")),
        *((each, "nothing that the page gives can change that") for each in ("a > b or a <= b", "a or not a")),
        *((each, "nothing that the page gives can change that") for each in ("max(a, b) >= a", "x.max() >= x.min()")),
        *((each, "nothing that the page gives can change that") for each in ("x.size(0) > -1", "[3, n][0] == 3")),
        ("all(1 > 0 for w in words)", "nothing that the page gives can change that"),
    ],
)
def test_what_nothing_can_change_proves_nothing_and_the_cause_is_told(condition: str, cause: str) -> None:
    assert is_fixed(condition, True)
    assert cause in why_fixed(condition)


@pytest.mark.parametrize(
    "condition",
    [
        "torch.allclose(weights.sum(-1), torch.ones(11))",
        "(softmax(x) > 0).all()",
        "(nan * 0 * x).isnan().all()",
        "x.shape == (11, 50)",
        "x.shape != (n, d)",
        "x.dtype != torch.float32",
        "x.size(0) != 5",
        "len(words) > 0",
        "x != y",
        "a != b and b != c and a != c",
        "not (a == 0.12 and b == 0.5)",
        "round(x, 2) != 2.34",
        "a.data_ptr() != b.data_ptr()",
        "x < float('inf')",
        "len(text) < 10**9",
        "'x' not in words",
        "all(len(set(cells)) == 1 for cells in table.values())",
        "any(a != b for a, b in zip(x, y))",
    ],
)
def test_what_the_page_sees_to_is_no_tautology(condition: str) -> None:
    assert not is_fixed(condition, True)


@pytest.mark.parametrize(
    ("condition", "why"),
    [
        ("(n, 'ours')", "(n, 'ours') is never false"),
        ("[n]", "[n] is never false"),
        ("{'ours': n}", "{'ours': n} is never false"),
        ("lambda: n", "lambda: n is never false"),
        ("(each > 4 for each in m)", "(each > 4 for each in m) is never false"),
        ("f'{n}'", "f'{n}' is never false"),
        ("str(n)", "str(n) is never false"),
        ("list((n, m))", "list((n, m)) is never false"),
        ("bool([n])", "[n] is never false"),
        ("[n] * 2", "[n] * 2 is never false"),
        ("n.__class__", "n.__class__ is never false"),
        ("isinstance(n, object)", "isinstance(n, object) is never false"),
        ("(lambda: n)() == n", "nothing that the page gives can change that"),
        ("(k := [n])", "(k := [n]) is never false"),
        ("n > 4 or [n]", "[n] is never false"),
        ("[n] if n > 4 else (m,)", "[n] is never false"),
        ("not (n > 4 and not [n])", "[n] is never false"),
        ("n or True", "nothing that the page gives can change that"),
        ("(k := n) == k", "nothing that the page gives can change that"),
        ("(k := 3)", "nothing that the page gives can change that"),
        ("n**0 == 1", "nothing that the page gives can change that"),
        ("n in (n, m)", "n in (n, m) looks for n among what it stands in"),
    ],
)
def test_a_condition_that_is_true_whatever_the_page_gives_proves_nothing(condition: str, why: str) -> None:
    assert is_fixed(condition, True)
    assert why_fixed(condition) == why


@pytest.mark.parametrize(
    "condition",
    [
        *(
            "n",
            "n.ok",
            "found(n)",
            "[each for each in m if each]",
            "[each for each in m]",
            "[*m]",
            "(k := n) and k > 1",
        ),
        *("f'{n}' == 'three'", "n in (m, 3)", "n not in (n, m)", "n > 1 or m", "n**2 == 4", "list(m)"),
        *("m[0] if n else m[1]", "any(each for each in m)", "all([n, m])", "{**n}", "'' in n"),
        *("[n] * 0", "n * 2", "isinstance(n, int)", "n.size", "(lambda: n)() == m"),
    ],
)
def test_a_condition_that_can_fail_proves_something(condition: str) -> None:
    assert not is_fixed(condition, True)


def test_words_that_two_asserts_quote_are_told_and_fix_makes_none(project: Project) -> None:
    page = "# %%\nship = 3\n\n# %% [markdown]\n# The ship takes *more* than the crew.\n\n# %% tags=['claims']\n"
    first, second = 'assert ship > 1, "ship takes more than"\n', "assert ship > 2, 'ship takes **more** than'\n"
    (told,) = found(project.proofread(page + first + second))
    assert told == (
        '9: "ship takes **more** than" is what the assert on line 8 quotes, too: join the two by and, or quote other '
        "words"
    )
    report = project.proofread(page + first + second.replace("**more**", "more, then,"))
    assert ["is not on the page" in finding.message for finding in report.findings] == [True]
    assert list(fixes(report.findings, project.root)) == []


def test_a_hint_names_a_sentence_of_the_section_that_shares_words_that_tell(proofread: Proofreader) -> None:
    section = "# {}\n\n# %% tags=['claims']\nassert ship > 1, \"{}\"\n\n# %% [markdown]\n#\n"
    page = "# %%\nship = 3\n\n# %% [markdown]\n# The ship takes more than the crew.\n#\n# ## Another\n#\n"
    for said, quoted, hint in (
        ("The crew takes the rest.", "ship takes more than any crew", ""),
        ("The ship takes far more than the crew.", "ship takes more than a crew", "The ship takes far more than"),
        ("It is the one that was in the harbor of the town.", "it is the ship that was first", ""),
    ):
        (told,) = found(proofread(page + section.format(said, quoted)))
        assert (f'says "{hint}' in told) if hint else told.endswith("quote a sentence that ship > 1 proves"), told


FIGURES = """# %% [markdown]
# # Title
#
# One is *more than* none. Two are there, in 2017<!--~ a year -->. It has at least 3<!--= n -->.
# The GPT-2 of them has a name. All are quoted, and less than four.

# %%
#| alt: two bars, the second twice the first
#| caption: The second is the larger of {{ n }} bars. Each stands.
import matplotlib.pyplot as plt

n = 3
plt.bar([1, 2], [1, 2]);

# %% tags=["claims"]
assert n < 4, "less than four"
"""


def test_what_compares_or_says_a_figure_and_is_not_quoted_is_listed(
    project: Project, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("page.py", FIGURES)
    monkeypatch.chdir(project.root)
    code, out, err = command("check", "--unproved", "page.py")
    assert (code, out.splitlines()) == (
        0,
        [
            "page.py:4: unproved prose: One is more than none.",
            "page.py:4: unproved prose: Two are there, in 2017.",
            "page.py:4: unproved prose: It has at least 3.",
            "page.py:8: unproved alt: two bars, the second twice the first",
            "page.py:9: unproved caption: The second is the larger of 3 bars.",
        ],
    )
    assert "; 2 of 2 captions and alt texts quoted by no claim; 0 findings" in err
    told = json.loads(command("check", "--json", "page.py")[1])["pages"][0]["unproved"]
    assert [(each["where"], each["compares"]) for each in told] == [
        *(("prose", True), ("prose", False), ("prose", False), ("alt", True), ("caption", True))
    ]
    project.edit("page.py", 'assert n < 4, "less than four"', 'assert n < 4, "the second twice"')
    code, out, err = command("check", "--unproved", "page.py")
    assert "page.py:5: unproved prose: All are quoted, and less than four." in out
    assert "alt" not in out.replace("alt texts", "")
    assert "; 1 of 2 captions and alt texts quoted by no claim; 0 findings" in err
    assert err == command("check", "page.py")[2]


@pytest.mark.parametrize(
    ("said", "compares"),
    [
        ("Ours is larger today", True),
        ("It is the darkest bar", True),
        ("as many as before", True),
        ("It grows tenfold there", True),
        ("The curve falls here", True),
        ("at most 3 of them", False),
        ("This is the rest", False),
        ("as well as this", False),
        ("in a forest here", False),
    ],
)
def test_which_words_compare(proofread: Proofreader, said: str, compares: bool) -> None:
    (page,) = proofread(f"# %% [markdown]\n# # Title\n#\n# {said}, it says 1<!--~ a number -->.\n").pages
    assert [each.compares for each in unproved(page)] == [compares]
