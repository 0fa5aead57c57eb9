import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from unmasked import probes, self_attention
from unmasked.exercises import Feedback, check
from unmasked.museum import ENTRIES

Map = Callable[[Tensor], Tensor]
UNUSED = "The counts change nothing: each must multiply the shares of its column."


def numbers(tokens: int, features: int) -> Tensor:
    return torch.randn(tokens, features, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def every_order(f: Map) -> bool:
    x = numbers(4, 6)
    return all(torch.allclose(f(x[list(order)]), f(x)[list(order)]) for order in itertools.permutations(range(4)))


def by_matrices(f: Map) -> Tensor:
    x = numbers(5, 4).float()
    shuffled = [torch.eye(5)[torch.randperm(5, generator=torch.Generator().manual_seed(seed))] for seed in range(8)]
    return torch.stack([(f(P @ x) - P @ f(x)).abs().max() < 1e-5 for P in shuffled]).all()


def by_neighbours(f: Map) -> bool:
    x = numbers(6, 5)
    swaps = [[*range(i), i + 1, i, *range(i + 2, 6)] for i in range(5)]
    return all(torch.allclose(f(x[swap]), f(x)[swap]) for swap in swaps)


@pytest.mark.parametrize(
    "answer",
    [
        every_order,
        by_matrices,
        by_neighbours,
        lambda f: probes.breaks_equivariance(lambda x: f(x[0])[None], x3()) is None,
    ],
)
def test_any_test_that_tells_both_kinds_apart_is_right(answer: object) -> None:
    assert repr(check("is-equivariant", answer)) == (
        "is-equivariant: right. It tells the functions that know order from those that do not."
    )


def x3() -> Tensor:
    return numbers(5, 6)[None]


def one_order(order: list[int]) -> Callable[[Map], bool]:
    x = numbers(len(order), 4)
    return lambda f: torch.allclose(f(x[order]), f(x)[order])


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda f: True, "It says True of every function; of 'a running sum' it should say False."),
        (one_order([0, 1, 2]), "It says True of every function; of 'a running sum' it should say False."),
        (lambda f: False, "It says False of every function; of 'a running sum' it should say False."),
        (
            lambda f: torch.allclose(f(numbers(5, 4).flip(0)), f(numbers(5, 4))),
            "It says False of 'doubling every number', which is equivariant. "
            "Compare f(x[order]) with f(x)[order], and not with f(x): the rows of the output move too.",
        ),
        (
            # doubling is exact in float32, but a sum of float64 does not fit into it, on any machine
            lambda f: torch.equal(
                f(numbers(9, 200).float().flip(0)).double(), f(numbers(9, 200).float().double()).flip(0)
            ),
            "Allow for rounding, with torch.allclose: sums in another order end in other digits.",
        ),
        (
            one_order([4, 3, 2, 1, 0]),
            "It says True of 'adding the rows in reverse', which is not equivariant. "
            "One order is not enough, nor are numbers that are all alike: try several, on random numbers.",
        ),
        (
            one_order([3, 0, 1, 2]),
            "It says True of 'adding the row before, and to the first row the last', which is not equivariant. "
            "One order is not enough, nor are numbers that are all alike: try several, on random numbers.",
        ),
        (
            lambda f: torch.allclose(f(numbers(5, 4).flip(0)), f(numbers(5, 4)).flip(0), atol=0.1),
            "It says True of 'adding",
        ),
    ],
)
def test_a_wrong_test_is_told_by_a_function_that_it_judges_wrongly(answer: object, message: str) -> None:
    wrong(check("is-equivariant", answer), message, None)


def written_out(x: Tensor, counts: Tensor) -> Tensor:
    sentence = x.repeat_interleave(counts, dim=0)
    places = counts.cumsum(0) - 1
    return self_attention(sentence).context[places]


def one_by_one(x: Tensor, counts: Tensor) -> Tensor:
    rows = []
    for query in x:
        shares = [
            float(count) * torch.exp(query @ key / x.size(-1) ** 0.5) for key, count in zip(x, counts, strict=True)
        ]
        rows.append(sum(share * value for share, value in zip(shares, x, strict=True)) / sum(shares))
    return torch.stack(rows)


@pytest.mark.parametrize(
    "answer",
    [
        lambda x, c: self_attention(x, bias=c.to(x).log()).context,
        lambda x, c: torch.softmax(x.float() @ x.float().T / x.size(-1) ** 0.5 + c.log(), dim=-1) @ x.float(),
        written_out,
        one_by_one,
    ],
)
def test_any_way_from_the_bag_is_right(answer: object) -> None:
    assert check("bag-of-words", answer)


def scores(x: Tensor) -> Tensor:
    return x @ x.mT / x.size(-1) ** 0.5


@pytest.mark.parametrize(
    ("answer", "told", "cause"),
    [
        (
            lambda x, c: self_attention(x).context,
            UNUSED,
            None,
        ),
        (
            lambda x, c: scores(x).softmax(-1) * c @ x,
            "The weights no longer sum to one: count before you divide.",
            "weights-not-normalized",
        ),
        (
            lambda x, c: (scores(x) + c).softmax(-1) @ x,
            "A count multiplies the exponential; added to the score it must be a logarithm.",
            None,
        ),
        (
            lambda x, c: (scores(x) * c).softmax(-1) @ x,
            "A count multiplies the exponential of the score, not the score.",
            None,
        ),
        (
            # a number that is added to a whole row leaves its softmax as it was
            lambda x, c: (scores(x) + c.log()[:, None]).softmax(-1) @ x,
            UNUSED,
            None,
        ),
        (lambda x, c: x, "it should be [", None),
        (
            lambda x, c: x.repeat_interleave(c, dim=0),
            "For x of (3, 2) the shape is (6, 2); it should be the same.",
            None,
        ),
    ],
)
def test_a_wrong_bag_is_told_by_what_became_of_the_counts(answer: object, told: str, cause: str | None) -> None:
    feedback = check("bag-of-words", answer)
    wrong(feedback, told, cause)
    if "shape" not in told:
        first = "With the counts [3, 1, 2] the context of the first word is "
        assert feedback.message.startswith(first), feedback.message
        assert "it should be [0.91, 0.454]" in feedback.message, feedback.message


def test_the_context_that_a_bag_should_give_is_that_of_a_hand() -> None:
    e = torch.tensor(2.0).sqrt().reciprocal().exp().item()  # of the score of the first word with itself and the third
    assert round((3 * e + 2 * e) / (3 * e + 1 + 2 * e), 3) == 0.91
    assert round((1 + 2 * e) / (3 * e + 1 + 2 * e), 3) == 0.454


def in_place(x: Tensor) -> Tensor:
    x += torch.arange(len(x))[:, None] / 10
    return x


@pytest.mark.parametrize(
    "answer",
    [
        lambda x: x + torch.arange(len(x))[:, None] / 10,
        lambda x: x + torch.sin(torch.arange(len(x))[:, None] / 10 ** torch.linspace(0, 2, x.size(-1))),
        lambda x: x.float() + torch.randn(20, x.size(-1), generator=torch.Generator().manual_seed(0))[: len(x)] / 2,
        lambda x: torch.stack([row + 0.1 * number for number, row in enumerate(x)]),
    ],
)
def test_any_positions_that_tell_twins_apart_are_right(answer: object) -> None:
    assert check("tell-apart", answer)


@pytest.mark.parametrize(
    ("answer", "message", "cause"),
    [
        (
            lambda x: x + 0.5,
            "Of 2 rows, 0 and 1 were equal and still get the same context. "
            "What is added to them is the same: make it depend on the row's number.",
            None,
        ),
        (
            lambda x: x + torch.arange(x.size(-1)),
            "Of 2 rows, 0 and 1 were equal and still get the same context. "
            "What is added to them is the same: make it depend on the row's number.",
            None,
        ),
        (
            lambda x: x + (torch.arange(len(x)) % 2)[:, None] / 10,
            "Of 4 rows, 0 and 2 were equal and still get the same context. "
            "What is added to them is the same: make it depend on the row's number.",
            None,
        ),
        (
            lambda x: x + 100.0 * torch.arange(len(x))[:, None],
            "What is added is so large that both give all weight to one row: make it smaller.",
            None,
        ),
        (in_place, "The input was changed; return a new tensor.", "input-overwritten"),
        (
            lambda x: torch.cat([x, torch.arange(len(x))[:, None]], dim=-1),
            "x has the shape (2, 6); what was returned has (2, 7).",
            None,
        ),
        (
            lambda x: x + torch.randn(len(x), 1),
            "Two calls with the same x gave different results; a place must have the same vector each time.",
            None,
        ),
        (lambda x: x + torch.zeros(3, 6), "Your answer raised RuntimeError", None),
    ],
)
def test_wrong_positions_are_told_by_the_rows_that_stay_alike(answer: object, message: str, cause: str | None) -> None:
    wrong(check("tell-apart", answer), message, cause)


def wrong(feedback: Feedback, message: str, cause: str | None) -> None:
    assert not feedback
    assert message in feedback.message, feedback.message
    assert feedback.cause == cause
    assert cause is None or cause in ENTRIES
