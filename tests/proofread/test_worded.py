"""A claim's words and its expression say the same: what is refused everywhere, and what on strict pages."""

from collections.abc import Callable

import pytest

from proofread.checks.checked import Report
from proofread.checks.worded import unnamed, unproved
from proofread.pages.conditions import is_fixed
from proofread.pages.numbers import Value
from proofread.pages.prose import read
from proofread.settings import Settings

Proofreader = Callable[..., Report]


def refused(text: str, value: Value, strict: bool = False) -> list[str]:
    """What is wrong with the one claim of a text, whose expression gives the value."""
    (claim,) = read(text).claims
    before, after = text[: claim.span[0]], text[text.find("-->", claim.span[1]) + 3 :]
    return [*unproved(claim, value, before), *(unnamed(claim, value, before, after) if strict else ())]


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("x == x", True),
        ("x.shape == x.shape", True),
        ("(x == x).all()", True),
        ("not (x != x)", True),
        ("torch.equal(a, a)", True),
        ("a.allclose(a)", True),
        ("all(w == w for w in words)", True),
        ("'larger' if True or a else 'smaller'", "larger"),
        ("'larger' if a == a else 'smaller'", "larger"),
        ("'larger' if a > b else 'larger'", "larger"),
        ("3 if n else 3", 3),
        ("(x * 0 == 0).all()", True),
        ("0 * x + 3", 3),
        ("x - x == 0", True),
        ("n // n", 1),
        ("abs(d) >= 0", True),
        ("x.abs().min() >= 0", True),
        ("(x**2).sum() >= 0", True),
        ("x.norm() > -1", True),
        ("len(words) >= 0", True),
        ("x.size(0) > -1", True),
        ("len((a, b, c))", 3),
        ("len([a, b]) == 2", True),
        ("sum(i for i in (1, 2))", 3),
        ("all(1 > 0 for w in words)", True),
        ("a > b or a <= b", True),
        ("a or not a", True),
        ("max(a, b) >= a", True),
        ("x.max() >= x.min()", True),
        ("[3, n][0]", 3),
        ("['smaller', 'larger'][a == a]", "larger"),
    ],
)
def test_what_nothing_can_change_proves_nothing(expression: str, value: Value) -> None:
    assert is_fixed(expression, value)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("torch.allclose(weights.sum(-1), torch.ones(11))", True),
        ("(softmax(x) > 0).all()", True),
        ("x.isfinite().all()", True),
        ("(nan * 0 * x).isnan().all()", True),
        ("x.shape == (11, 50)", True),
        ("x.shape != (n, d)", True),
        ("x.dtype != torch.float32", True),
        ("x.size(0) != 5", True),
        ("len(words) > 0", True),
        ("x != y", True),
        ("a != 3 and b != 4", True),
        ("a != b and b != c and a != c", True),
        ("not (a == 0.12 and b == 0.5)", True),
        ("round(x, 2) != 2.34", True),
        ("abs(a - 1.39 * b) > 1e-9", True),
        ("a.data_ptr() != b.data_ptr()", True),
        ("x < float('inf')", True),
        ("len(text) < 10**9", True),
        ("name != 'ship'", True),
        ("'x' not in words", True),
        ("all(len(set(cells)) == 1 for cells in table.values())", True),
        ("all(abs(d[k] / k - 1) < 0.02 for k in d)", True),
        ("any(a != b for a, b in zip(x, y))", True),
        ("'causal' if not same else 'open'", "causal"),
        ("11 / 12 if abs(rows[1] - 11 / 12) < 1e-6 else None", 11 / 12),
        ("math.exp(1)", 2.718281828459045),
        ("len(words)", 0),
        ("a * b", 0),
    ],
)
def test_what_the_page_sees_to_is_no_tautology(expression: str, value: Value) -> None:
    assert not is_fixed(expression, value)


@pytest.mark.parametrize(
    ("text", "value", "message"),
    [
        (
            "larger<!--= x == x -->",
            True,
            "x == x takes nothing from the page, so it proves nothing of larger: x == x compares x with itself; let "
            'the page give it, as larger<!--= "larger" if one > other else "smaller" -->',
        ),
        ("same<!--= torch.equal(a, a) -->", True, "torch.equal(a, a) compares a with itself; let"),
        (
            'Larger<!--= "Larger" if a > b else "Larger" -->',
            "Larger",
            "both branches of 'Larger' if a > b else 'Larger' are the same; let the page give it, as "
            'Larger<!--= "Larger" if one > other else "Smaller" -->',
        ),
        ("none<!--= x * 0 == 0 -->", True, "x * 0 is zero; let"),
        ("three<!--= len((a, b, c)) -->", 3, "len((a, b, c)) counts what is written in it; let"),
        ("3<!--= 3 if n or True else 4 -->", 3, "nothing that the page gives can change that; let"),
        ("3<!--= 0 * n + 3 -->", 3, "let the page give it, as 3<!--= computed -->"),
    ],
)
def test_a_claim_that_nothing_can_change_is_refused_with_the_cause(text: str, value: Value, message: str) -> None:
    (told,) = refused(text, value)
    assert message in told


@pytest.mark.parametrize(
    "text",
    [
        "over 1.35<!--= ratio > 1.35 -->",
        "over 1.35<!--= 1.35 < ratio -->",
        "more than **1.35**<!--= ratio > 1.35 -->",
        "over 1.35 times<!--= a > 1.35 * b -->",
        "not over 1.35<!--= ratio <= 1.35 -->",
        "not over 1.35<!--= not ratio > 1.35 -->",
        "at least half<!--= share >= 0.5 -->",
        "at most 4 MiB<!--= x.nbytes <= 4 * 2**20 -->",
        "less than\n0.00001<!--= max(gaps) < 0.00001 -->",
        "nearly twice<!--= 1.9 < ratio < 2 -->",
        "about 2<!--= abs(ratio - 2) < 0.1 -->",
        "2<!--= abs(ratio - 2) < 1e-6 -->",
        "is one<!--= torch.allclose(x.sum(-1), torch.ones(11)) -->",
        "is zero<!--= bool((x == 0).all()) -->",
        "is 3<!--= a == b == 3 -->",
        "**over 55% of 12 words**<!--= x > 0.55 and n == 12 -->",
        "*GPT-2 is larger*<!--= x > y -->",
        "is True<!--= x > y -->",
    ],
)
def test_a_number_that_is_compared_by_its_bound_is_proved(text: str) -> None:
    assert refused(text, True) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "over 1.5<!--= x > 1.4 -->",
            "it says 1.5, but x > 1.4 holds for any figure: compare with 1.5 in it, as over 1.5<!--= x > 1.5 -->",
        ),
        ("3<!--= f(3) > x -->", "compare with 3 in it, as 3<!--= f(3) == 3 -->"),
        ("3<!--= x[3] == y -->", "holds for any figure"),
        ("**over 55% of 12 words**<!--= x > 0.55 -->", "it says 12, but x > 0.55 holds for any figure"),
        ("twice<!--= x > y -->", "compare with twice in it, as twice<!--= x == 2 -->"),
        ("half<!--= x == 2 -->", "compare with half in it, as half<!--= x == 0.5 -->"),
        ("4 GiB<!--= x == 4 * 2**20 -->", "compare with 4 GiB in it, as 4 GiB<!--= x == 4294967296 -->"),
        (
            "under 1.5<!--= x > 1.5 -->",
            "it says under 1.5, but x > 1.5 compares by >: let word and sign agree, as under 1.5<!--= x < 1.5 -->",
        ),
        ("at least 3<!--= n <= 3 -->", "compares by <="),
        ("over 3<!--= n >= 3 -->", "it says over 3, but n >= 3 compares by >="),
        ("not over 3<!--= n > 3 -->", "it says not over 3, but n > 3 compares by >"),
        ("at most 3<!--= not n <= 3 -->", "compares by >"),
        ("3<!--= n > 3 -->", "it says 3 without a bound, but n > 3 compares by >"),
        ("exactly 3<!--= n >= 3 -->", "it says exactly 3, but n >= 3 compares by >="),
    ],
)
def test_a_number_that_is_not_compared_is_refused(text: str, message: str) -> None:
    (told,) = refused(text, True)
    assert message in told


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("larger<!--= a > b -->", True),
        ("larger<!--= (a > b).all() -->", True),
        ("larger<!--= 0 < a - b -->", True),
        ("smaller<!--= not a > b -->", True),
        ("same<!--= torch.allclose(a, b) -->", True),
        ("same<!--= a.shape == b.shape and torch.equal(a, b) -->", True),
        ("differ<!--= not torch.allclose(a, b) -->", True),
        ("different<!--= a != b -->", True),
        ("every<!--= all(x > 0 for x in xs) -->", True),
        ("none<!--= not any(x > 0 for x in xs) -->", True),
        ("nothing<!--= off == 0 -->", True),
        ("some<!--= (x > 0).any() -->", True),
        ("larger<!--= 'larger' if a > b else 'smaller' -->", "larger"),
        ("True<!--= a > b -->", True),
        ("yes<!--= a > b -->", True),
        ("at most 3<!--= n <= 3 -->", True),
        ("at most 2.30<!--= x.max() -->", 2.3012),
        ("at least 0.98<!--= min(x) -->", 0.9812),
        ("**at most 3**<!--= n -->", 2),
        ("about 3<!--= n -->", 3.01),
        ("only 3<!--= n --> are left", 3),
        ("exactly 3<!--= n -->", 3),
        ("4 MiB<!--= n -->", 4 * 2**20),
        ("4<!--= n --> heads", 4),
    ],
)
def test_a_strict_page_takes_words_that_name_what_is_compared(text: str, value: Value) -> None:
    assert refused(text, value, strict=True) == []


@pytest.mark.parametrize(
    ("text", "value", "message"),
    [
        (
            "faster<!--= ours < theirs -->",
            True,
            "faster does not name what ours < theirs compares, and would stand there whatever it says: let the "
            'expression give the word, faster<!--= "faster" if ours < theirs else "slower" -->',
        ),
        ("smaller<!--= a > b -->", True, "smaller says the contrary of what a > b compares"),
        ("larger<!--= a > b or c < d -->", True, "larger does not name"),
        ("larger<!--= flag -->", True, 'larger<!--= "larger" if flag else "smaller" -->'),
        ("every<!--= any(x > 0 for x in xs) -->", True, "every says the contrary of"),
        ("none<!--= all(x > 0 for x in xs) -->", True, "none says the contrary of"),
        ("other<!--= a == b -->", True, "other says the contrary of"),
        ("[the larger is smaller](a.md)<!--= a > b -->", True, "the larger is smaller says the contrary of"),
        ("always<!--= x > 0 -->", True, "always says the contrary of"),
        (
            "4<!--= n --> MiB",
            4,
            "MiB stands outside the claim 4, which says nothing of it: take it in, 4 MiB<!--= n -->, with the value in "
            "bytes",
        ),
        ("four<!--= n -->\ntimes as wide", 4, "take it in, four times<!--= n -->, with the ratio itself"),
        ("`4`<!--= n -->&nbsp;**MiB**", 4, "MiB stands outside the claim 4"),
        ("at **most** 3<!--= n -->", 3, "at most 3 is held against n"),
        ("2<!--= n -->-fold", 2, "take it in, 2-fold<!--= n -->"),
        ("5<!--= n --> percentage points", 5, "percentage points stands outside the claim 5"),
        ("3<!--= n --> hours", 3, "take it in, 3 hours<!--= n -->, with the value in seconds"),
        (
            "at most 3<!--= n -->",
            3,
            "at most 3 is held against n, which gives that very figure and would hold turned round: compare, "
            "at most 3<!--= n <= 3 -->, or say it without at most",
        ),
        ("at least **0.98**<!--= x.max() -->", 0.9812, "at least 0.98<!--= x.max() >= 0.98 -->"),
        ("over 3<!--= x.max() -->", 3, "over 3<!--= x.max() > 3 -->"),
        ("**under 4 MiB**<!--= n -->", 4 * 2**20, "under 4 MiB<!--= n < 4194304 -->"),
        ("exactly 2.5<!--= x -->", 2.51, "it says exactly 2.5, but x gives 2.51: say about, or 2.51"),
    ],
)
def test_a_strict_page_refuses_what_its_words_do_not_name(text: str, value: Value, message: str) -> None:
    (told,) = refused(text, value, strict=True)
    assert message in told
    assert not any("stands outside" in each or "contrary" in each for each in refused(text, value))


PAGE = """
# %%
n, size = 2, 4 * 2**20

# %% [markdown]
# Of at most 3<!--= n --> words, larger<!--= n < 3 --> by 4 MiB<!--= size -->, or 4<!--= size / 2**20 --> MiB.
"""


def test_strict_rules_hold_on_the_pages_that_the_setting_names(proofread: Proofreader) -> None:
    told = [finding.message for finding in proofread(PAGE, settings=Settings(strict=("pa*.py",))).findings]
    assert [message.split(",")[0] for message in told] == [
        "MiB stands outside the claim 4",
        "larger says the contrary of what n < 3 compares",
    ]
    others = proofread(PAGE, settings=Settings(strict=("docs/*",))).findings
    assert [finding.message for finding in others] == ["it says 3, but n gives 2"]
