"""Holds an answer to its exercise, and says what came of it."""

import difflib
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from unmasked.museum import ENTRIES

Check = Callable[[Any], str | None]


class Wrong(Exception):  # noqa: N818  # it is what a check finds, not a fault of the program
    """What is wrong with an answer: a sentence or two for its author, and the museum's entry for the mistake.

    Args:
        message: What was given, what came out, and what should have.
        cause: The slug of the mistake in the museum, if it is one of those shown there.
    """

    def __init__(self, message: str, cause: str | None = None):
        super().__init__(message)
        assert cause is None or cause in ENTRIES, f"the museum has no {cause!r}"
        self.cause = cause


@dataclass(frozen=True)
class Feedback:
    """What is said of an answer. It is true if the answer is right, and prints as a sentence.

    Attributes:
        exercise: The exercise's name.
        ok: Whether the answer is right.
        message: What is right, or what is wrong with it.
        cause: The slug of the mistake in the museum, where it is known.
    """

    exercise: str
    ok: bool
    message: str
    cause: str | None = None

    def __bool__(self) -> bool:
        return self.ok

    def __repr__(self) -> str:
        told = f"{self.exercise}: {'right' if self.ok else 'not yet'}. {self.message}"
        return told if self.cause is None else f"{told}\nSee the museum of mistakes, {ENTRIES[self.cause].link}"


@dataclass(frozen=True)
class Exercise:
    """An exercise: its name, the page it stands on, what it asks for, and the check that its answers are held to."""

    name: str
    page: str
    task: str
    check: Check


_EXERCISES: dict[str, Exercise] = {}


def exercise(name: str, *, page: str, task: str) -> Callable[[Check], Check]:
    """Register a check: it raises `Wrong` if the answer is not right, and may return what is to be said if it is.

    Args:
        name: What readers call it by: lower case, words joined by hyphens.
        page: The page's place among the site's pages, without its ending: `pytorch/masks`.
        task: What is asked for, in one sentence.
    """

    def register(check: Check) -> Check:
        assert name not in _EXERCISES, f"two exercises are called {name!r}"
        _EXERCISES[name] = Exercise(name, page, task, check)
        return check

    return register


def exercises() -> dict[str, Any]:
    """All exercises by name, in the order of their pages.

    Returns:
        Each `Exercise`: its name, its page, what it asks for and its check.

    Example:
        >>> exercises()["causal-mask"].task
        'Each token may see itself and what stands before it, and nothing else.'
    """
    package = importlib.import_module(__package__)
    for module in pkgutil.walk_packages(package.__path__, f"{__package__}."):
        importlib.import_module(module.name)
    return dict(sorted(_EXERCISES.items(), key=lambda each: each[1].page))


def check(name: str, answer: Any) -> Feedback:
    """Hold an answer to its exercise.

    Args:
        name: The exercise's name, as its page gives it.
        answer: What the exercise asks for: a function, a module, a tensor or a number.

    Returns:
        What is to be said of it; it is true if the answer is right.

    Raises:
        ValueError: There is no exercise of that name.

    Example:
        >>> import torch
        >>> check("causal-mask", lambda tokens: torch.ones(tokens, tokens, dtype=torch.bool).triu()).ok
        False
    """
    known = exercises()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.4) or sorted(known)
        raise ValueError(f"name ({name!r}) is no exercise; try {' or '.join(map(repr, near))}")
    asked = known[name]
    try:
        said = asked.check(answer)
    except Wrong as wrong:
        return Feedback(name, False, str(wrong), wrong.cause)
    except Exception as error:
        return Feedback(name, False, f"Your answer raised {type(error).__name__}: {error}")
    return Feedback(name, True, said or asked.task)
