"""Every exercise stands on its page, and what is said of an answer says where to read on."""

from pathlib import Path

import pytest
import torch

from unmasked.exercises import Feedback, check, exercises

DOCS = Path(__file__).parents[3] / "docs" / "tutorials"


@pytest.mark.parametrize("name", exercises())
def test_each_exercise_is_asked_and_solved_on_its_page(name: str):
    page = (DOCS / f"{exercises()[name].page}.py").read_text()
    assert f'check("{name}", ' in page


@pytest.mark.parametrize("page", sorted(path.stem for path in DOCS.glob("*.py")))
def test_each_page_has_exercises_with_hints_and_solutions(page: str):
    text = (DOCS / f"{page}.py").read_text()
    asked = [each for each in exercises().values() if each.page == page]
    assert asked
    assert text.count('??? question "Hint') >= len(asked)
    assert text.count("solution") >= len(asked)


def test_an_exercise_that_is_not_there_is_told_with_those_that_are_near():
    with pytest.raises(ValueError, match=r"name \('causal-msk'\) is no exercise; try 'causal-mask'"):
        check("causal-msk", None)
    with pytest.raises(ValueError, match=r"name \('qqqq'\) is no exercise; try '"):
        check("qqqq", None)


def test_an_answer_that_raises_is_told_what_it_raised():
    feedback = check("causal-mask", lambda tokens: 1 / 0)
    assert repr(feedback) == "causal-mask: not yet. Your answer raised ZeroDivisionError: division by zero"


def test_feedback_is_true_if_the_answer_is_right_and_else_leads_to_the_museum():
    assert repr(check("causal-mask", lambda tokens: torch.ones(tokens, tokens).tril().bool())) == (
        "causal-mask: right. Each token may see itself and what stands before it, and nothing else."
    )
    wrong = Feedback("causal-mask", False, "It leaks.", "mask-polarity")
    assert not wrong
    assert repr(wrong) == (
        "causal-mask: not yet. It leaks.\nSee the museum of mistakes, tutorials/09_masks/#mask-polarity"
    )
