"""Holds an answer to its exercise, and says what came of it: one body for all exercises.

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


class Wrong(Exception):  # noqa: N818  # it is what a check finds, not a fault of the program
    """What is wrong with an answer: a sentence or two for its author, and the museum's entry for the mistake.

    Args:
        message: What was given, what came out, and what should have; behind it may stand the cause, in brackets.
        cause: The slug of the mistake in the museum, if it is one of those shown there.
    """

    def __init__(self, message: str, cause: str | None = None):
        told, slug = re.fullmatch(r"(.*?)(?: \[([a-z0-9-]+)\])?", message.strip(), re.DOTALL).groups()  # type: ignore[union-attr]
        super().__init__(told)
        self.cause = cause or slug
        assert self.cause is None or self.cause in ENTRIES, f"the museum has no {self.cause!r}"


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
        return told if self.cause is None else f"{told}\nSee the museum of mistakes, {ENTRIES[self.cause].address}"


@dataclass(frozen=True)
class Exercise:
    """An exercise: its name, the page it stands on, what it asks for, and the check that its answers are held to."""

    name: str
    page: str
    task: str
    check: Check


_EXERCISES: dict[str, Exercise] = {}


def exercise(name: str, task: str) -> Callable[[Check], Check]:
    """Register a check: it raises `Wrong` if the answer is not right, and may return what is to be said if it is.

    The exercise stands on the page that the check's module is called after: `pytorch/masks`.

    Args:
        name: What readers call it by: lower case, words joined by hyphens.
        task: What is asked for, in one sentence.
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
        told = f"Your answer raised {type(error).__name__}: {error}"
        if not callable(answer) and "object is not callable" in str(error):
            told = f"Your answer is of the type {type(answer).__name__}; give the function itself, not what it returns."
        return Feedback(name, False, told)
    return Feedback(name, True, said or asked.task)


def draw(*shapes: tuple[int, ...], seed: int = 0, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Draw a tensor of normal numbers for each shape, the same ones at every call."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]


def short(row: Tensor) -> list[float]:
    """The numbers of a row, as a reader wants to see them."""
    return [round(number, 3) for number in row.tolist()]


def ask(answer: Callable[..., Any], *inputs: Any, keep: str = "") -> Any:
    """Call an answer with copies of what it is given, which have a name to `keep` if they must stay as they were."""
    given = [each.clone() if isinstance(each, Tensor) else copy.copy(each) for each in inputs]
    result = answer(*given)
    if keep and not all(torch.equal(*pair) for pair in zip(inputs, given, strict=True) if isinstance(pair[0], Tensor)):
        told = f"The {keep} that you were given {_be(keep, past=True)} changed: clone before you write."
        raise Wrong(told, "input-overwritten")
    return result


def tensor(
    given: object,
    where: str = "",
    like: Tensor | None = None,
    what: str = "it",
    axes: str = "",
    known: Known | None = None,
) -> Tensor:
    """Require a tensor, of the shape of another one and boolean if that is; take it off its graph and its device.

    The others are those of `hold`. A known mistake that is a tensor may have another shape.
    """
    if not isinstance(given, Tensor):
        raise Wrong(_sentence(where, f"it returned {type(given).__name__}; return a tensor."))
    if like is not None and like.dtype == torch.bool != given.dtype:
        raise Wrong(_sentence(where, f"the dtype is {given.dtype}; return torch.bool."))
    if like is not None and given.shape != like.shape:
        of = "" if what == "it" else f" of {what}"
        told = f"the shape{of} is {tuple(given.shape)}; it should be {tuple(like.shape)}{axes}."
        others = {sentence: mistake for sentence, mistake in (known or {}).items() if isinstance(mistake, Tensor)}
        name(given, _sentence(where, told), others)
    return given.detach().cpu()


def parts(given: object, *names: str) -> list[Any]:
    """Require something for each of the names."""
    found = list(given) if isinstance(given, Iterable) and not isinstance(given, Tensor) else [given]
    if len(found) != len(names):
        raise Wrong(f"It returned {len(found)}; return {len(names)}: {', '.join(names)}.")
    return found


def rows(given: object) -> Tensor:
    """Require numbers, as lists or as a tensor."""
    try:
        return torch.as_tensor(given, dtype=torch.float64).detach()
    except (TypeError, ValueError, RuntimeError):
        raise Wrong(f"It is {given!r:.60}; give numbers, in lists or as a tensor.") from None


def hold(
    given: Any,
    right: Any,
    where: str = "",
    what: str = "it",
    known: Known | None = None,
    *,
    axes: str = "",
    shown: Callable[[Any], Any] | None = None,
    tolerance: float = 1e-5,
) -> None:
    """Require what is right: a tensor of its shape, with its numbers, or a number.

    Args:
        given: What the answer gave.
        right: What it should have given. If it is boolean, so must be what was given.
        where: For which inputs: "For 3 tokens".
        what: What is compared: "the mask".
        known: The mistakes that can be named: for each sentence what the mistake gives, or whether it was made, which a
            function of what was given may tell.
        axes: What is told of the right shape, behind it.
        shown: What a message shows of both; by default whole numbers, and of others how far they are off.
        tolerance: How far a number may be off; whole numbers must be equal.

    Raises:
        Wrong: What was given, what came out and what should have; and the mistake, if it is known.
    """
    if isinstance(right, Tensor):
        given = tensor(given, where, right, "it" if shown else what, axes, known)
    elif isinstance(given, bool) or not (
        isinstance(given, int | float) or (isinstance(given, Tensor) and not given.dim())
    ):
        raise Wrong(_sentence(where, f"it returned {type(given).__name__}; return a number."))
    if not same(given, right, tolerance):
        name(given, _sentence(where, f"{_apart(given, right, what, shown)}."), known or {}, tolerance)


def name(given: Any, told: str, known: Known, tolerance: float = 1e-5) -> NoReturn:
    """Say that an answer is wrong, and by which of the known mistakes, if it is one of them."""
    for sentence, mistake in known.items():
        made = bool(mistake(given)) if callable(mistake) else mistake
        if made if isinstance(made, bool) else same(given, made, tolerance):
            raise Wrong(f"{told} {sentence}")
    raise Wrong(told)


def survives(weights: object) -> str | None:
    """What is to be said of right weights, of what large scores make of them."""
    if tensor(weights).isfinite().all():
        return None
    return "Right, but large scores give NaN: subtract each row's largest first, as softmax does."


def judge(answer: Callable[[Any], object], tried: Sequence[tuple[str, bool, Any, str]]) -> None:
    """Require a test of one thing to accept and to refuse what it should.

    What is tried are rows: what a thing is, what should be said of it, the thing, and what is told, if only "".
    """
    said = [bool(answer(thing)) for _, _, thing, _ in tried]
    always = " It says so of everything." if len(set(said)) == 1 else ""
    for mine, (what, right, _, told) in zip(said, tried, strict=True):
        if mine != right:
            raise Wrong(f"It says {mine} of {what}; it should say {right}.{always} {told}")


def same(given: Any, right: Any, tolerance: float = 1e-5) -> bool:
    """Whether two tensors or numbers are equal, up to rounding where they are no whole numbers."""
    if not isinstance(right, Tensor):
        return math.isclose(given, right, rel_tol=0.0 if isinstance(right, int) else tolerance)
    if given.shape != right.shape:
        return False
    if not right.is_floating_point():
        return torch.equal(given.double(), right.double())
    return torch.allclose(given.double(), right.double(), rtol=1e-4, atol=tolerance, equal_nan=True)


def _sentence(where: str, told: str) -> str:
    return f"{where} {told}" if where else told[0].upper() + told[1:]


def _be(what: str, past: bool = False) -> str:
    many, one = ("were", "was") if past else ("are", "is")
    return many if what.endswith("s") else one


def _apart(given: Any, right: Any, what: str, shown: Callable[[Any], Any] | None) -> str:
    if shown is None and isinstance(right, Tensor) and right.is_floating_point():
        if not given.isfinite().all():
            return f"{what} {_be(what)} NaN or infinite in places"
        return f"{what} {_be(what)} off by up to {(given.double() - right.double()).abs().max().item():.2f}"
    shown = shown or _whole
    return f"{what} {_be(what)} {shown(given)}; it should be {shown(right)}"


def _whole(given: Any) -> Any:
    """Numbers as a message shows them, truth as ones and zeros."""
    if isinstance(given, Tensor) and given.dim():
        return (given.int() if given.dtype == torch.bool else given).tolist()
    number = float(given)
    return f"{number:,.0f}" if number.is_integer() else f"{number:,.4g}"


def of_attention(q: Tensor, k: Tensor, v: Tensor) -> dict[str, Any]:
    """What is given by the mistakes that can be made with attention, by what is said of them: `known` of `hold`."""
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
    """The mistakes that can be made with a causal mask (queries, keys), by what is said of them: `known` of `hold`."""
    later = ~masks.causal(*right.shape)
    return {
        "True must say what a query may see, not what it may not. [mask-polarity]": (
            lambda given: given.any() and (torch.equal(given, ~right) or torch.equal(given, right.mT))
        ),
        "A query sees a key that comes later. [no-causal-mask]": lambda given: (given & later).any(),
        "Some query may see nothing; each sees at least itself. [fully-masked-row]": (
            lambda given: not given.any(-1).all()
        ),
    }
