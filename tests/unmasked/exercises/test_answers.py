"""What the files beside this one hold of each page's exercises: right answers are accepted, and wrong ones are named.

Each has `RIGHT`, the names of exercises with answers, and `WRONG`: by the name of an exercise and what is wrong, the
answer, the mistake of the museum that it makes, and a part of what is said of it.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from unmasked.exercises import check

HERE = Path(__file__).parent
PAGES = [
    import_module(f".{path.parent.name}.{path.stem}", __package__)
    for path in sorted(HERE.glob("*/*.py"))
    if not path.stem.startswith("test_")
]
RIGHT = [(name, answer) for page in PAGES for name, answer in page.RIGHT]
WRONG = [(*key, *told) for page in PAGES for key, told in page.WRONG.items()]


@pytest.mark.parametrize(("name", "answer"), RIGHT)
def test_right_answers_are_accepted(name: str, answer: Any):
    feedback = check(name, answer)
    assert feedback, feedback.message


@pytest.mark.parametrize(
    ("name", "answer", "cause", "told"),
    [(name, *rest) for name, _, *rest in WRONG],
    ids=[f"{name}-{wrong}" for name, wrong, *_ in WRONG],
)
def test_wrong_answers_are_named(name: str, answer: Any, cause: str | None, told: str):
    feedback = check(name, answer)
    assert told in feedback.message
    assert (bool(feedback), feedback.cause) == (False, cause)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.__name__.rpartition(".")[2])
def test_who_has_right_answers_has_wrong_ones_too(page: Any):
    assert {name for name, _ in page.RIGHT} == {name for name, _ in page.WRONG}
