"""Hold an answer to its exercise, and say whether it is right: one function for all exercises.

A mistake is known by a sentence, which may end in its slug in the museum: "The scale is missing. [missing-scale]".
"""

import copy
import difflib
import importlib
import math
import pkgutil
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from unmasked import masks
from unmasked_doctor.museum import ENTRIES

Known = Mapping[str, Any]
Check = Callable[[Any], str | None]


class Wrong(Exception):  # noqa: N818  # a check finds it; it is no fault of the program
    """A mistake in an answer: a sentence or two for its author, and the museum's entry for the mistake.

    Args:
        message: The inputs, the result and the right one; the cause may follow, in brackets.
        cause: The slug of the mistake in the museum, if it is one of those shown there.
    """

    def __init__(self, message: str, cause: str | None = None):
        text, slug = re.fullmatch(r"(.*?)(?: \[([a-z0-9-]+)\])?", message.strip(), re.DOTALL).groups()  # type: ignore[union-attr]
        super().__init__(text)
        self.cause = cause or slug
        assert self.cause is None or self.cause in ENTRIES, f"the museum has no {self.cause!r}"


@dataclass(frozen=True)
class Feedback:
    """The verdict on an answer. It is true if the answer is right, and prints as a sentence.

    Attributes:
        exercise: The exercise's name.
        ok: Whether the answer is right.
        message: The reason why it is right or wrong.
        cause: The slug of the mistake in the museum, where it is known.
    """

    exercise: str
    ok: bool
    message: str
    cause: str | None = None

    def __bool__(self) -> bool:
        return self.ok

    def __repr__(self) -> str:
        text = f"{self.exercise}: {'right' if self.ok else 'not yet'}. {self.message}"
        return text if self.cause is None else f"{text}\nSee the museum of mistakes, {ENTRIES[self.cause].address}"


@dataclass(frozen=True)
class Exercise:
    """An exercise: its name, its page, its task, and the check that its answers are held to."""

    name: str
    page: str
    task: str
    check: Check


_EXERCISES: dict[str, Exercise] = {}


def exercise(name: str, task: str) -> Callable[[Check], Check]:
    """Register a check: it raises `Wrong` for a wrong answer, and may return a message for a right one.

    The exercise stands on the page that the check's module is called after: `pytorch/masks`.

    Args:
        name: The name that readers use: lower case, words joined by hyphens.
        task: The task, in one sentence.
    """

    def register(check: Check) -> Check:
        assert name not in _EXERCISES, f"two exercises are called {name!r}"
        page = check.__module__.removeprefix(f"{__package__}.").replace(".", "/")
        _EXERCISES[name] = Exercise(name, page, task, check)
        return check

    return register


def exercises() -> dict[str, Any]:
    """All exercises by name, in the order of their pages.

    Returns:
        Each `Exercise`: its name, its page, its task and its check.

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
        answer: A function, a module, a tensor or a number, as the exercise asks.

    Returns:
        The verdict with its reason; it is true if the answer is right.

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
        praise = asked.check(answer)
    except Wrong as wrong:
        return Feedback(name, False, str(wrong), wrong.cause)
    except Exception as error:
        message = f"Your answer raised {type(error).__name__}: {error}"
        if not callable(answer) and "object is not callable" in str(error):
            message = (
                f"Your answer is of the type {type(answer).__name__}; give the function itself, not what it returns."
            )
        return Feedback(name, False, message)
    return Feedback(name, True, praise or asked.task)


def draw(*shapes: tuple[int, ...], seed: int = 0, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Draw a tensor of normal numbers for each shape, the same ones at every call."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]


def short(row: Tensor) -> list[float]:
    """Return the numbers of a row, rounded to three digits."""
    return [round(number, 3) for number in row.tolist()]


def ask(answer: Callable[..., Any], *inputs: Any, keep: str = "") -> Any:
    """Call an answer with copies of the inputs; `keep` names those that the answer must not change."""
    copies = [each.clone() if isinstance(each, Tensor) else copy.copy(each) for each in inputs]
    result = answer(*copies)
    if keep and not all(torch.equal(*pair) for pair in zip(inputs, copies, strict=True) if isinstance(pair[0], Tensor)):
        message = f"The {keep} that you were given {_be(keep, past=True)} changed: clone before you write."
        raise Wrong(message, "input-overwritten")
    return result


def tensor(
    result: object,
    where: str = "",
    like: Tensor | None = None,
    subject: str = "it",
    axes: str = "",
    known: Known | None = None,
) -> Tensor:
    """Require a tensor, of the shape of another one and boolean if that is; take it off its graph and its device.

    The others are those of `hold`. A known mistake that is a tensor may have another shape.
    """
    if not isinstance(result, Tensor):
        raise Wrong(_sentence(where, f"it returned {type(result).__name__}; return a tensor."))
    if like is not None and like.dtype == torch.bool != result.dtype:
        raise Wrong(_sentence(where, f"the dtype is {result.dtype}; return torch.bool."))
    if like is not None and result.shape != like.shape:
        of = "" if subject == "it" else f" of {subject}"
        message = f"the shape{of} is {tuple(result.shape)}; it should be {tuple(like.shape)}{axes}."
        others = {sentence: mistake for sentence, mistake in (known or {}).items() if isinstance(mistake, Tensor)}
        name(result, _sentence(where, message), others)
    return result.detach().cpu()


def parts(result: object, *names: str) -> list[Any]:
    """Require something for each of the names."""
    results = list(result) if isinstance(result, Iterable) and not isinstance(result, Tensor) else [result]
    if len(results) != len(names):
        raise Wrong(f"It returned {len(results)}; return {len(names)}: {', '.join(names)}.")
    return results


def rows(result: object) -> Tensor:
    """Require numbers, as lists or as a tensor."""
    try:
        return torch.as_tensor(result, dtype=torch.float64).detach()
    except (TypeError, ValueError, RuntimeError):
        raise Wrong(f"It is {result!r:.60}; give numbers, in lists or as a tensor.") from None


def hold(
    result: Any,
    right: Any,
    where: str = "",
    subject: str = "it",
    known: Known | None = None,
    *,
    axes: str = "",
    shown: Callable[[Any], Any] | None = None,
    tolerance: float = 1e-5,
) -> None:
    """Require the right result: a tensor of its shape, with its numbers, or a number.

    Args:
        result: The answer's result.
        right: The right result. If it is boolean, the answer's must be, too.
        where: The inputs, as a message begins: "For 3 tokens".
        subject: The name of the result: "the mask".
        known: The mistakes that can be named: by the sentence on each, the result that it leads to, or whether it was
            made, or a function of the answer's result that says so.
        axes: The names of the axes, which a message adds to the right shape.
        shown: A function that picks the part of both results that a message shows; by default whole numbers are shown,
            and of others the largest difference.
        tolerance: The largest difference of a number from the right one, or share of it; whole numbers must be equal.

    Raises:
        Wrong: The result is not right; the message names the inputs, both results and the mistake, if it is known.
    """
    if isinstance(right, Tensor):
        result = tensor(result, where, right, "it" if shown else subject, axes, known)
    elif isinstance(result, bool) or not (
        isinstance(result, int | float) or (isinstance(result, Tensor) and not result.dim())
    ):
        raise Wrong(_sentence(where, f"it returned {type(result).__name__}; return a number."))
    if not same(result, right, tolerance):
        name(result, _sentence(where, f"{_apart(result, right, subject, shown)}."), known or {}, tolerance)


def name(result: Any, message: str, known: Known, tolerance: float = 1e-5) -> NoReturn:
    """Say that an answer is wrong, and by which of the known mistakes, if it is one of them."""
    for sentence, mistake in known.items():
        made = bool(mistake(result)) if callable(mistake) else mistake
        if made if isinstance(made, bool) else same(result, made, tolerance):
            raise Wrong(f"{message} {sentence}")
    raise Wrong(message)


def survives(weights: object) -> str | None:
    """Return a warning for right weights that large scores turn into NaN, or None."""
    if tensor(weights).isfinite().all():
        return None
    return "Right, but large scores give NaN: subtract each row's largest first, as softmax does."


def judge(answer: Callable[[Any], object], tried: Sequence[tuple[str, bool, Any, str]]) -> None:
    """Require a test of one thing to accept and to refuse what it should.

    A row of `tried` has the name of a thing, the right verdict on it, the thing, and a hint, or "".
    """
    answers = [bool(answer(thing)) for _, _, thing, _ in tried]
    always = " It says so of everything." if len(set(answers)) == 1 else ""
    for mine, (subject, right, _, hint) in zip(answers, tried, strict=True):
        if mine != right:
            raise Wrong(f"It says {mine} of {subject}; it should say {right}.{always} {hint}")


def same(result: Any, right: Any, tolerance: float = 1e-5) -> bool:
    """Say whether two tensors or numbers are equal, up to rounding where they are no whole numbers."""
    if not isinstance(right, Tensor):
        tolerance = 0.0 if isinstance(right, int) else tolerance
        return math.isclose(result, right, rel_tol=tolerance, abs_tol=tolerance)
    if result.shape != right.shape:
        return False
    if not right.is_floating_point():
        return torch.equal(result.double(), right.double())
    return torch.allclose(result.double(), right.double(), rtol=1e-4, atol=tolerance, equal_nan=True)


def _sentence(where: str, message: str) -> str:
    return f"{where} {message}" if where else message[0].upper() + message[1:]


def _be(subject: str, past: bool = False) -> str:
    many, one = ("were", "was") if past else ("are", "is")
    return many if subject.endswith("s") else one


def _apart(result: Any, right: Any, subject: str, shown: Callable[[Any], Any] | None) -> str:
    if shown is None and isinstance(right, Tensor) and right.is_floating_point():
        if not result.isfinite().all():
            return f"{subject} {_be(subject)} NaN or infinite in places"
        return f"{subject} {_be(subject)} off by up to {(result.double() - right.double()).abs().max().item():.2f}"
    shown = shown or _whole
    return f"{subject} {_be(subject)} {shown(result)}; it should be {shown(right)}"


def _whole(result: Any) -> Any:
    """Return numbers as a message shows them, booleans as ones and zeros."""
    if isinstance(result, Tensor) and result.dim():
        return (result.int() if result.dtype == torch.bool else result).tolist()
    number = float(result)
    return f"{number:,.0f}" if number.is_integer() else f"{number:,.4g}"


def of_attention(q: Tensor, k: Tensor, v: Tensor) -> dict[str, Any]:
    """Return the results of mistakes with attention, by the sentence on each: `known` of `hold`."""
    products, d, alike = q @ k.mT, q.size(-1), q.shape == k.shape == v.shape
    scores = products / math.sqrt(d)
    exchanged = alike and scores.mT.softmax(-1) @ v

    def divided(by: float) -> Tensor:
        return (products / by).softmax(-1) @ v

    of_keys, of_a_value = divided(math.sqrt(k.size(-2))), divided(math.sqrt(v.size(-1)))
    return {
        "The scores are not divided by the root. [missing-scale]": divided(1),
        "Divide by the root of the number, not by the number. [wrong-d-in-scale]": divided(d),
        "Divide by the root of the features of a key, not of the number of keys. [wrong-d-in-scale]": of_keys,
        "Divide by the root of the features of a key, not of a value. [wrong-d-in-scale]": of_a_value,
        "The weights sum to one by column; they should by row. [softmax-over-queries]": scores.softmax(-2) @ v,
        "The exponentials are not divided by their sum. [weights-not-normalized]": scores.exp() @ v,
        "The scores themselves are no weights. [weights-not-normalized]": scores @ v,
        "These are the weights; average the values with them.": scores.softmax(-1),
        "It averages the queries; average the values. [wrong-value]": alike and scores.softmax(-1) @ q,
        "It averages the keys; average the values. [wrong-value]": scores.softmax(-1) @ k,
        "The keys ask, and the queries are asked; it should be the other way round.": exchanged,
    }


def of_masks(right: Tensor) -> dict[str, Any]:
    """Return the mistakes with a causal mask, (queries, keys), by the sentence on each: `known` of `hold`."""
    later = ~masks.causal(*right.shape)
    return {
        "True must say what a query may see, not what it may not. [mask-polarity]": (
            lambda result: result.any() and (torch.equal(result, ~right) or torch.equal(result, right.mT))
        ),
        "A query sees a key that comes later. [no-causal-mask]": lambda result: (result & later).any(),
        "Some query may see nothing; each sees at least itself. [fully-masked-row]": (
            lambda result: not result.any(-1).all()
        ),
    }
