"""A claim that compares computed numbers to the last bit gives a reason: decided by what it really compares."""

import pytest

from proofread.runs.exact_equality import evaluate

from .conftest import Proofreader

PAGE = """
# %%
import math

import numpy as np
import torch

thirds = torch.tensor([1.0, 2.0]) / 3
twice = 2 * thirds / 2
whole = torch.arange(3.0)
third = float(thirds[0])

def equal(a, b):
    return torch.allclose(a, b)

# %% [markdown]
# The two are the same.

# %% tags=["claims"]
assert EXPRESSION, "the same"COMMENT
"""


@pytest.fixture(scope="module")
def namespace() -> dict[str, object]:
    made: dict[str, object] = {}
    exec(PAGE.split("# %% [markdown]")[0], made)
    return made


def page(expression: str, comment: str = "") -> str:
    return PAGE.replace("EXPRESSION", expression).replace("COMMENT", comment)


@pytest.mark.parametrize(
    "expression",
    [
        "torch.equal(thirds, twice)",
        "thirds.equal(twice)",
        "(thirds == twice).all()",
        "bool((thirds != twice).any()) is False",
        "thirds[0] == twice[0]",
        "float(thirds[0]) == float(twice[0])",
        "thirds.tolist() == twice.tolist()",
        "dict(a=third) == dict(a=third)",
        "third in thirds.tolist()",
        "torch.allclose(thirds, twice, rtol=0, atol=0)",
        "np.array_equal(thirds.numpy(), twice.numpy())",
        "third * (1 + 1j) == third * (1 + 1j)",
        "all(a == b for a, b in zip(thirds, twice))",
        "len(words := [0]) == 1 and third == (third if words == [0] else 0)",
        "1 < 2 == 2 and thirds.size(0) == 2 and third == third",
        "(thirds - twice).abs().max() == 0",
        "not (thirds - twice).any()",
        "(thirds - twice).count_nonzero() == 0",
        "0 == (whole[1:] - (thirds - twice)).sum() - (third - third)",
        "torch.allclose(thirds, twice, 0, 0)",
        "thirds.allclose(twice, 0, 0)",
        "math.isclose(third, third, rel_tol=0)",
    ],
)
def test_computed_numbers_are_noticed_however_they_are_compared(namespace: dict[str, object], expression: str) -> None:
    assert evaluate(expression, "page.py", namespace)[1]


@pytest.mark.parametrize(
    "expression",
    [
        "torch.allclose(thirds, twice)",
        "equal(thirds, twice)",
        "torch.equal(whole, whole)",
        "torch.equal(thirds > 0.5, twice > 0.5)",
        "thirds.shape == twice.shape == torch.Size([2])",
        "thirds.dtype == torch.float32",
        "(thirds != 0).all()",
        "third != 0.25 and third != -0.25",
        "thirds.tolist() != [0.25, 0.75]",
        "thirds.exp().max() != math.inf and third != float('inf')",
        "torch.equal(thirds.masked_fill(thirds > 0, -math.inf), thirds.masked_fill(thirds > 0, -math.inf))",
        "str(third) == str(third)",
        "len({third}) == round(3 * third)",
        "third <= third",
        "(whole - whole).sum() == 0",
        "not (thirds - twice).abs().max() > 1e-5",
        "math.isclose(third, third, rel_tol=1e-9)",
        "torch.allclose(thirds, twice, 0, 1e-6)",
        "math.isclose(third, third)",
        "third - 0 != 0",
    ],
)
def test_what_no_rounding_touches_needs_no_reason(namespace: dict[str, object], expression: str) -> None:
    value, compared = evaluate(expression, "page.py", namespace)
    assert value
    assert compared == ""


def test_watching_changes_nothing(namespace: dict[str, object]) -> None:
    calls: list[int] = []
    namespace["tell"] = lambda number: calls.append(number) or number
    before = set(namespace)
    assert evaluate("tell(1) < tell(2) > tell(3) < tell(4)", "page.py", namespace) == (False, "")
    assert calls == [1, 2, 3]  # Python stops at the first that does not hold
    with pytest.raises(NameError, match="missing"):
        evaluate("third == missing", "page.py", namespace)
    assert set(namespace) == before


def test_the_finding_names_the_comparison_and_the_remedy(proofread: Proofreader) -> None:
    (finding,) = proofread(page("len(whole) == 3 and torch.equal(thirds, twice)")).findings
    assert (finding.line, finding.kind) == (19, "bits")
    assert finding.message == (
        "torch.equal(thirds, twice) compares computed numbers to the last bit, which another processor may round "
        "otherwise: allow a tolerance, as torch.allclose does, or end the expression with why no bit can differ, "
        "# to the bit: a few words"
    )


def test_a_reason_allows_it_and_is_refused_where_it_allows_nothing(proofread: Proofreader) -> None:
    reason = "  # to the bit: by a power of two"
    assert proofread(page("torch.equal(thirds, twice)", reason)).findings == []
    (finding,) = proofread(page("torch.allclose(thirds, twice)", reason)).findings
    assert (finding.line, finding.kind) == (19, "bits")
    assert finding.message.startswith("nothing computed is compared to the bit in torch.allclose(thirds, twice)")


@pytest.mark.parametrize(
    "comment", ["  # to the bit", "  # to the bit:", "  # to the bit: so", "  # exact", " '# to the bit: no'"]
)
def test_no_reason_is_no_reason(proofread: Proofreader, comment: str) -> None:
    findings = proofread(page("torch.equal(thirds, twice)", comment)).findings
    assert "bits" in {finding.kind for finding in findings}


def test_the_directive_of_a_truth_takes_a_reason_too(proofread: Proofreader) -> None:
    text = page("whole.size(0) == 3") + "\n# %% [markdown]\n# It is True<!--= torch.equal(thirds, twice)REASON -->.\n"
    assert proofread(text.replace("REASON", "  # to the bit: by a power\n# of two")).findings == []
    assert [finding.kind for finding in proofread(text.replace("REASON", "")).findings] == ["bits"]
