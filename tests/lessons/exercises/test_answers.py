"""What the files beside this one hold of each page's exercises: right answers are accepted, and wrong ones are named.

Each has, by the name of an exercise, `RIGHT`, answers, and `WRONG`, answers with a part of what is said of them, behind
which the mistake stands in brackets if the museum shows it. Of a right answer, too, something may be said.
"""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from unmasked_lessons.exercises import check, exercises

HERE = Path(__file__).parent
PAGES = [
    import_module("." + ".".join(path.relative_to(HERE).with_suffix("").parts), __package__)
    for path in sorted(HERE.glob("**/*.py"))
    if not path.stem.startswith("test_")
]
MORE = {  # what is said of a right answer where it is more than the task
    "test-of-your-own": "Your test passes",
    "get-past-the-doctor": "The doctor passes it, and with 128 tokens it leaks: what was not tried is not proved.",
    "plant-a-mistake": "The doctor names it: ",
}
RIGHT = [(name, answer) for page in PAGES for name, answers in page.RIGHT.items() for answer in answers]
WRONG = [(name, *row) for page in PAGES for name, rows in page.WRONG.items() for row in rows]


@pytest.mark.parametrize(("name", "answer"), RIGHT)
def test_right_answers_are_accepted(name: str, answer: Any):
    feedback = check(name, answer)
    assert feedback
    assert feedback.message == exercises()[name].task or feedback.message.startswith(MORE.get(name, "nothing else"))


@pytest.mark.parametrize(("name", "told", "answer"), WRONG)
@pytest.mark.filterwarnings("ignore:The use of `x.T` on tensors:UserWarning")
def test_wrong_answers_are_named(name: str, told: str, answer: Any):
    feedback = check(name, answer)
    told, _, cause = re.fullmatch(r"(.*?)( \[([a-z0-9-]+)\])?", told).groups()
    assert told in feedback.message
    assert (bool(feedback), feedback.cause) == (feedback.message.startswith("Right, but "), cause)


@pytest.mark.parametrize("name", exercises())
def test_what_cannot_be_an_answer_is_refused(name: str):
    for stray in (None, "many", torch.ones(2, 3)):
        feedback = check(name, lambda *_, stray=stray: stray)
        assert not feedback
        assert "AttributeError" not in feedback.message, "what asks a tensor sees first that it is one"


def test_every_exercise_has_right_and_wrong_answers():
    assert {*exercises()} == {name for name, _ in RIGHT} == {name for name, *_ in WRONG}
