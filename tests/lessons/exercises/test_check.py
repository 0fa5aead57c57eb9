"""Every exercise stands on its page, and what is said of an answer says where to read on."""

import re
from pathlib import Path

import pytest
import torch

from unmasked_lessons.exercises import Feedback, check, exercises
from unmasked_lessons.exercises._check import same

DOCS = Path(__file__).parents[3] / "docs"


def asked(page: str) -> dict[str, str]:
    """What stands under each question of a page: its hints, the reader's cell, the solution."""
    text = page[page.index("# ## Exercises") :].split("\n# ## What to read next")[0]
    questions = [*re.finditer(r"^# \*\*[^*]+\*\*[^`\n]*\(`([\w-]+)`\)", text, re.MULTILINE)]
    ends = [*(question.start() for question in questions[1:]), len(text)]
    return {question[1]: text[question.start() : end] for question, end in zip(questions, ends, strict=True)}


def amiss(name: str, told: str) -> str:
    """What an exercise lacks in what stands under its question."""
    checked = re.findall(r'check\("([\w-]+)", ', told)
    cells = re.split(r"^# %%", told, flags=re.MULTILINE)
    solved = any('"solution"' in cell.split("\n")[0] and f'check("{name}", ' in cell for cell in cells)
    if name not in checked[:1] or not solved:
        return f"its own answer is not checked, but {checked}"
    return "" if '??? question "Hint' in told else "it has no hint"


@pytest.mark.parametrize("name", exercises())
def test_each_exercise_is_asked_and_solved_on_its_page(name: str):
    page = (DOCS / f"{exercises()[name].page}.py").read_text()
    assert amiss(name, asked(page)[name]) == ""


def test_an_exercise_whose_page_checks_another_is_found():
    page = (DOCS / "learn/positions.py").read_text()
    swapped = page.replace('check("bag-of-words", ', 'check("tell-apart", ')
    assert amiss("bag-of-words", asked(swapped)["bag-of-words"]) == "its own answer is not checked, but ['tell-apart']"
    told = asked(page)["bag-of-words"]
    assert amiss("bag-of-words", told.replace("question", "note")) == "it has no hint"
    assert amiss("bag-of-words", told.replace('"solution"', '"hide-input"')).startswith("its own answer is not checked")


def test_an_exercise_that_is_not_there_is_told_with_those_that_are_near():
    with pytest.raises(ValueError, match=r"name \('causal-msk'\) is no exercise; try 'causal-mask'"):
        check("causal-msk", None)
    with pytest.raises(ValueError, match=r"name \('qqqq'\) is no exercise; try '"):
        check("qqqq", None)


def test_an_answer_that_raises_is_told_what_it_raised():
    feedback = check("causal-mask", lambda tokens: 1 / 0)
    assert repr(feedback) == "causal-mask: not yet. Your answer raised ZeroDivisionError: division by zero"


def test_what_a_function_returns_in_its_place_is_told():
    feedback = check("causal-mask", torch.ones(3, 3))
    assert feedback.message == "Your answer is of the type Tensor; give the function itself, not what it returns."
    raised = check("causal-mask", lambda tokens: tokens()).message
    assert raised == "Your answer raised TypeError: 'int' object is not callable"


@pytest.mark.parametrize(
    ("result", "right", "is_same"),
    [(0.1 + 0.2 - 0.3, 0.0, True), (1e-4, 0.0, False), (2.001, 2.0, False), (1e8 + 1, 1e8, True), (3, 2, False)],
)
def test_numbers_are_the_same_up_to_rounding(result: float, right: float, is_same: bool):
    assert same(result, right) == is_same


def test_feedback_is_true_if_the_answer_is_right_and_else_leads_to_the_museum():
    assert repr(check("causal-mask", lambda tokens: torch.ones(tokens, tokens).tril().bool())) == (
        "causal-mask: right. Each token may see itself and what stands before it, and nothing else."
    )
    wrong = Feedback("causal-mask", False, "It leaks.", "mask-polarity")
    assert not wrong
    assert repr(wrong) == ("causal-mask: not yet. It leaks.\nSee the museum of mistakes, museum/masks/#mask-polarity")
