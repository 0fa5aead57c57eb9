"""The exercises on what attention is accept what is right in any style, and say what is wrong with what is not."""

import math

import pytest
import torch

from unmasked import cosine_weights, self_attention
from unmasked.exercises import check


def attend(rows, *, divisor=math.sqrt, exponential=math.exp, total=sum):
    context = []
    for row in rows:
        scores = [sum(a * b for a, b in zip(row, other, strict=True)) / divisor(len(row)) for other in rows]
        weights = [exponential(score) for score in scores]
        sums = total(weights)
        context.append(
            [sum(w / sums * other[i] for w, other in zip(weights, rows, strict=True)) for i in range(len(row))]
        )
    return context


def by_column(rows):
    x = torch.tensor(rows)
    return (x @ x.mT / x.size(-1) ** 0.5).softmax(0) @ x


def symmetric_and_small(table):
    return bool((table - table.mT).abs().max() < 1e-5 and table.abs().max() <= 1 + 1e-5)


RIGHT = [
    ("by-hand", attend),
    ("by-hand", lambda rows: self_attention(torch.tensor(rows)).context),
    ("by-hand", lambda rows: tuple(tuple(round(x, 4) for x in row) for row in attend(rows))),
    ("is-cosines", lambda table: bool(((table.diagonal() - 1).abs() < 1e-4).all())),
    ("is-cosines", lambda table: all(math.isclose(table[i, i], 1, abs_tol=1e-5) for i in range(len(table)))),
    ("sum-of-zero", torch.tensor([[3.0, 4.0], [-3.0, -4.0]])),
    ("sum-of-zero", [[1, 0, 2], [-2, 0, -4]]),
]
WRONG = {
    ("by-hand", "unscaled"): (
        lambda rows: attend(rows, divisor=lambda d: 1),
        "missing-scale",
        "not divided by the root",
    ),
    ("by-hand", "divided by d"): (lambda rows: attend(rows, divisor=lambda d: d), "wrong-d-in-scale", "not by it"),
    ("by-hand", "by column"): (by_column, "softmax-over-queries", "by column; they should by row."),
    ("by-hand", "no sum"): (
        lambda rows: attend(rows, total=lambda weights: 1),
        "weights-not-normalized",
        "For [[1.0, 2.0]] row 0 is [34.313, 68.627]; it should be [1.0, 2.0]. The exponentials are not divided",
    ),
    ("by-hand", "no softmax"): (
        lambda rows: attend(rows, exponential=lambda x: x, total=lambda weights: 1),
        "weights-not-normalized",
        "The scores themselves are no weights.",
    ),
    ("by-hand", "weights"): (
        lambda rows: self_attention(torch.tensor(rows)).weights,
        None,
        "For [[1.0, 2.0]] the shape is (1, 1); it should be (1, 2)",
    ),
    ("by-hand", "weights, where they fit"): (
        lambda rows: attend(rows) if len(rows) == 1 else self_attention(torch.tensor(rows)).weights,
        None,
        "it gives the weights; average the rows with them.",
    ),
    ("by-hand", "the rows"): (lambda rows: rows, None, "For [[1.0, 0.0], [0.0, 2.0]] row 0 is [1.0, 0.0]"),
    ("by-hand", "words"): (lambda rows: "no", None, "It is str; give rows of numbers"),
    ("is-cosines", "always"): (lambda table: True, "foreign-norms", "divided by the norms of other vectors is taken"),
    ("is-cosines", "never"): (lambda table: False, None, "A right table of cosines, of four vectors, is refused."),
    ("is-cosines", "no more than one"): (symmetric_and_small, "foreign-norms", "is taken for cosines."),
    ("is-cosines", "to the last bit"): (
        lambda table: table.dtype == torch.float64 and bool((table.diagonal() - 1).abs().max() < 1e-10),
        None,
        "float32 is refused",
    ),
    ("sum-of-zero", "orthogonal"): ([[1.0, 0.0], [0.0, 1.0]], None, "Their cosines sum to 1, by which one can divide."),
    ("sum-of-zero", "zeros"): (torch.zeros(2, 2), None, "A vector of zeros has no direction"),
    ("sum-of-zero", "three"): (torch.ones(3, 2), None, "The shape is (3, 2); give two rows"),
}


@pytest.mark.parametrize(("name", "answer"), RIGHT)
def test_right_answers_are_accepted(name: str, answer: object):
    feedback = check(name, answer)
    assert feedback, feedback.message


@pytest.mark.parametrize(("name", "wrong"), WRONG)
def test_wrong_answers_are_named(name: str, wrong: str):
    answer, cause, told = WRONG[name, wrong]
    feedback = check(name, answer)
    assert told in feedback.message
    assert (bool(feedback), feedback.cause) == (False, cause)


def test_norms_that_are_too_large_pass_where_only_the_size_of_cosines_is_looked_at():
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    assert symmetric_and_small(cosine_weights(x) / 4)
