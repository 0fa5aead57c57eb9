import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from unmasked import cosine_weights
from unmasked.exercises import Feedback, check
from unmasked.museum import ENTRIES


def by_hand(q: Tensor, k: Tensor) -> Tensor:
    scores = torch.empty(*q.shape[:-1], k.size(-2), dtype=q.dtype)
    for i in range(q.size(-2)):
        for j in range(k.size(-2)):
            scores[..., i, j] = (q[..., i, :] * k[..., j, :]).sum(-1) / math.sqrt(k.size(-1))
    return scores


def in_place(q: Tensor, k: Tensor) -> Tensor:
    q /= q.size(-1) ** 0.5
    return q @ k.mT


@pytest.mark.parametrize(
    "answer",
    [
        lambda q, k: q @ k.mT / q.size(-1) ** 0.5,
        lambda q, k: (q * q.size(-1) ** -0.5) @ k.transpose(-2, -1),
        lambda q, k: torch.einsum("...id,...jd->...ij", q, k) / math.sqrt(k.shape[-1]),
        lambda q, k: (q.float() @ k.float().mT) / q.size(-1) ** 0.5,
        lambda q, k: (q.clone().requires_grad_() @ k.mT) / q.size(-1) ** 0.5,
        by_hand,
    ],
)
def test_any_way_to_divide_by_the_root_of_the_features_is_right(answer: object) -> None:
    assert repr(check("scaled-scores", answer)) == (
        "scaled-scores: right. The dot products are divided by the root of the number of features."
    )


@pytest.mark.parametrize(
    ("answer", "message", "cause"),
    [
        (
            lambda q, k: q @ k.mT,
            "For 4 features the dot products are divided by 1; it should be 2. They are not scaled at all.",
            "missing-scale",
        ),
        (
            lambda q, k: q @ k.mT / q.size(-1),
            "For 4 features the dot products are divided by 4; it should be 2. "
            "Divide by the root of the number, not by the number.",
            "wrong-d-in-scale",
        ),
        (
            lambda q, k: q @ k.mT * q.size(-1) ** 0.5,
            "For 4 features the dot products are divided by 0.5; it should be 2. They are multiplied by the root.",
            "wrong-d-in-scale",
        ),
        (
            lambda q, k: q @ k.mT / 8,
            "For 4 features the dot products are divided by 8; it should be 2. "
            "Whatever the number of features, the divisor stays: read it from q.",
            "global-d-k",
        ),
        (
            lambda q, k: q @ k.mT / 2,  # right for the size that was tried first
            "For 9 features the dot products are divided by 2; it should be 3. "
            "Whatever the number of features, the divisor stays: read it from q.",
            "global-d-k",
        ),
        (
            lambda q, k: q @ k.mT / k.size(-2) ** 0.5,
            "For 4 features the dot products are divided by 1; it should be 2. The root is that of another number.",
            "wrong-d-in-scale",
        ),
        (
            lambda q, k: F.softmax(q @ k.mT / q.size(-1) ** 0.5, dim=-1),
            "For q of (4, 9) and k of (3, 9) these are the weights: leave the softmax to the next step.",
            None,
        ),
        (
            lambda q, k: k @ q.mT / q.size(-1) ** 0.5,
            "For q of (4, 9) and k of (3, 9) the shape is (3, 4); it should be (4, 3).",
            None,
        ),
        (lambda q, k: None, "For q of (1, 4) and k of (1, 4) it returned NoneType; return a tensor.", None),
        (in_place, "The queries or keys that you were given were changed.", "input-overwritten"),
        (
            lambda q, k: q @ k.mT / q.size(-1) ** 0.5 + torch.eye(q.size(-2), k.size(-2)),
            "For q of (4, 9) and k of (3, 9) the scores are off by up to 1.00, and no divisor explains it.",
            None,
        ),
        (
            lambda q, k: q @ k.mT * math.nan,
            "For q of (1, 4) and k of (1, 4) the scores are off by up to nan, and no divisor explains it.",
            None,
        ),
        (
            lambda q, k: q @ k.T / q.size(-1) ** 0.5,
            "Your answer raised",
            None,
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:The use of `x.T` on tensors:UserWarning")
def test_wrong_scores_are_told_by_which_divisor_they_have(answer: object, message: str, cause: str | None) -> None:
    wrong(check("scaled-scores", answer), message, cause)


@pytest.mark.parametrize(
    "answer",
    [
        lambda d, v: v * d**0.5,
        lambda d, v: math.sqrt(d * v * v),
        lambda d, v: torch.tensor(v) * torch.tensor(float(d)).sqrt(),
    ],
)
def test_the_divisor_is_the_variance_times_the_root_of_d(answer: object) -> None:
    assert check("divisor", answer)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            lambda d, v: d**0.5,
            "For d = 9 and v = 2 it is 3; it should be 6. "
            "That is the root of d alone: features of another variance make other products.",
        ),
        (
            lambda d, v: math.sqrt(d * v),
            "For d = 9 and v = 2 it is 4.243; it should be 6. "
            "That takes the variance once, but both factors of a product have it.",
        ),
        (
            lambda d, v: d * v**2,
            "For d = 4 and v = 1 it is 4; it should be 2. "
            "That is the variance of the dot products; divide by its root.",
        ),
        (
            lambda d, v: 1 / (v * math.sqrt(d)),
            "For d = 4 and v = 1 it is 0.5; it should be 2. "
            "That is what to multiply by; asked for is what to divide by.",
        ),
        (lambda d, v: d + v, "For d = 4 and v = 1 it is 5; it should be 2."),
        (lambda d, v: 0.0, "For d = 4 and v = 1 it is 0; it should be 2."),
    ],
)
def test_a_wrong_divisor_is_told_by_its_rule(answer: object, message: str) -> None:
    wrong(check("divisor", answer), message, None, whole=True)


def autograds(weights: Tensor, gradient: Tensor) -> Tensor:
    scores = weights.log().requires_grad_()
    return torch.autograd.grad(scores.softmax(-1), scores, gradient)[0]


def with_jacobian(weights: Tensor, gradient: Tensor) -> Tensor:
    jacobian = torch.diag_embed(weights) - weights[..., :, None] * weights[..., None, :]
    return (jacobian @ gradient[..., None])[..., 0]


@pytest.mark.parametrize(
    "answer",
    [
        lambda a, g: a * (g - (a * g).sum(-1, keepdim=True)),
        lambda a, g: (a * g).float() - a.float() * (a * g).float().sum(-1, keepdim=True),
        autograds,
        with_jacobian,
    ],
)
def test_any_way_back_through_the_softmax_is_right(answer: object) -> None:
    assert check("softmax-backward", answer)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda a, g: a * g, "A score moves the other weights too, since they share its denominator."),
        (lambda a, g: a * (1 - a) * g, "These are the terms of the diagonal alone."),
        (lambda a, g: a * (g - (a * g).sum()), "Each row has a sum of its own: sum over the last axis."),
        (lambda a, g: a * (g + (a * g).sum(-1, keepdim=True)), "The gradient of a row of scores sums to zero;"),
        (lambda a, g: g - (a * g).sum(-1, keepdim=True), "The gradient of a row of scores sums to zero;"),
        (lambda a, g: (a * g).sum(-1), "For weights of (2,) the shape is (); it should be (2,)."),
    ],
)
def test_a_wrong_way_back_is_told_by_what_is_missing(answer: object, message: str) -> None:
    feedback = check("softmax-backward", answer)
    assert feedback.message.startswith("For weights of ")
    wrong(feedback, message, None)


def wrong(feedback: Feedback, message: str, cause: str | None, *, whole: bool = False) -> None:
    assert not feedback
    assert feedback.message == message if whole else message in feedback.message, feedback.message
    assert feedback.cause == cause
    assert cause is None or cause in ENTRIES


def symmetric_and_small(table: Tensor) -> bool:
    return bool((table - table.mT).abs().max() < 1e-5 and table.abs().max() <= 1 + 1e-5)


COSINES = [
    ("is-cosines", lambda table: bool(((table.diagonal() - 1).abs() < 1e-4).all())),
    ("is-cosines", lambda table: all(math.isclose(table[i, i], 1, abs_tol=1e-5) for i in range(len(table)))),
    ("sum-of-zero", torch.tensor([[3.0, 4.0], [-3.0, -4.0]])),
    ("sum-of-zero", [[1, 0, 2], [-2, 0, -4]]),
]
NO_COSINES = {
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
    ("sum-of-zero", "words"): ("no", None, "It is str; give rows of numbers"),
}


@pytest.mark.parametrize(("name", "answer"), COSINES)
def test_right_answers_on_cosines_are_accepted(name: str, answer: object):
    feedback = check(name, answer)
    assert feedback, feedback.message


@pytest.mark.parametrize(("name", "wrong"), NO_COSINES)
def test_wrong_answers_on_cosines_are_named(name: str, wrong: str):
    answer, cause, told = NO_COSINES[name, wrong]
    feedback = check(name, answer)
    assert told in feedback.message
    assert (bool(feedback), feedback.cause) == (False, cause)


def test_norms_that_are_too_large_pass_where_only_the_size_of_cosines_is_looked_at():
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    assert symmetric_and_small(cosine_weights(x) / 4)
