"""Answers to the exercises of the museum's room of computation: right ones are accepted, wrong ones told why."""

import math

import pytest
import torch
import torch.nn.functional as F

from unmasked import attend
from unmasked.exercises import check


def by_hand(q, k, v, dropout, training):
    weights = torch.einsum("...qd,...kd->...qk", q, k).div(q.size(-1) ** 0.5).softmax(-1)
    return F.dropout(weights, dropout, training) @ v, weights


def after_the_average(q, k, v, dropout, training):
    weights = (q * q.size(-1) ** -0.5 @ k.mT).softmax(-1)
    return torch.nn.Dropout(dropout).train(training)(weights) @ v, weights


def by_the_package(q, k, v, dropout, training):
    weights = attend(q, k, v, need_weights=True).weights
    return [attend(q, k, v, dropout_p=dropout if training else 0.0).context, weights]


def by_pytorch(q, k, v, dropout, training):
    identity = torch.eye(k.size(-2), dtype=v.dtype).expand(*k.shape[:-1], -1)
    weights = F.scaled_dot_product_attention(q, k, identity)
    return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout * training), weights


@pytest.mark.parametrize("answer", [by_hand, after_the_average, by_the_package, by_pytorch])
def test_every_mended_attention_is_accepted(answer):
    assert check("mended-attention", answer).ok


def mistaken(scale=None, axis=-1, before=True, always=False, cut=False, value=None, in_place=False, drop=True):
    def attend(q, k, v, dropout, training):
        root = math.sqrt(q.size(-1)) if scale is None else scale
        if in_place:
            q /= root
        scores = (q.detach() if cut else q) @ k.mT / (1 if in_place else root)
        weights = scores.softmax(axis)
        dropped = F.dropout(weights, dropout if drop else 0.0, training or always)
        return dropped @ (v if value is None else k), weights if before else dropped

    return attend


@pytest.mark.parametrize(
    ("answer", "cause", "said"),
    [
        (mistaken(in_place=True), "input-overwritten", "The query that you were given was changed"),
        (mistaken(scale=1), "missing-scale", "With 4 features the scores are divided by the root of 1"),
        (
            mistaken(scale=math.sqrt(512)),
            "wrong-d-in-scale",
            "With 4 features the scores are divided by the root of 512",
        ),
        (mistaken(scale=2), "wrong-d-in-scale", "With 9 features the scores are divided by the root of 4"),
        (mistaken(axis=-2), "softmax-over-queries", "The columns of the weights sum to one"),
        (mistaken(always=True), "dropout-in-eval", "two calls differ"),
        (mistaken(before=False), "weights-after-dropout", "return it from before the dropout"),
        (mistaken(drop=False), None, "nothing is dropped"),
        (mistaken(cut=True), "gradient-cut", "gradient of the context"),
        (mistaken(value="key"), "wrong-value", "the context is not their product with the values"),
        (
            lambda q, k, v, p, t: ((q @ k.mT).exp() @ v, (q @ k.mT).exp()),
            "weights-not-normalized",
            "a row of the weights",
        ),
        (lambda q, k, v, p, t: by_hand(q, k, v, p, t)[0], None, "return two tensors"),
        (lambda q, k, v, p, t: (v, (q @ k.mT).softmax(-1).mT), None, "(2, 5, 3); it should be (2, 3, 5)"),
    ],
    ids=lambda each: each if isinstance(each, str) else None,
)
def test_every_mistake_in_the_mended_attention_is_named(answer, cause, said):
    feedback = check("mended-attention", answer)
    assert not feedback.ok
    assert feedback.cause == cause
    assert said in feedback.message


def test_the_check_of_dropout_leaves_the_random_generator_where_it_was():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    check("mended-attention", by_hand)
    torch.testing.assert_close(torch.rand(2), expected)


def by_row(w):
    rows = w.reshape(-1, w.size(-1))
    return all((row >= 0).all() and (abs(row.sum() - 1) < 1e-4 or not row.any()) for row in rows)


def as_tensor(w):
    total = w.double().sum(-1)
    return (w >= 0).all() & (((total - 1).abs() < 1e-5) | (w.abs().sum(-1) == 0)).all()


@pytest.mark.parametrize("answer", [by_row, as_tensor])
def test_every_test_of_weights_is_accepted(answer):
    assert check("are-weights", answer).ok


def sums_to_one(w):
    return torch.allclose(w.sum(-1), torch.ones(w.shape[:-1]), atol=1e-5)


def allows_empty(w):
    total = w.sum(-1)
    return bool((((total - 1).abs() < 1e-5) | (total == 0)).all())


@pytest.mark.parametrize(
    ("answer", "cause", "said"),
    [
        (lambda w: True, "softmax-over-queries", "It says True of a softmax over the queries"),
        (lambda w: False, None, "It says False of a softmax over the keys"),
        (lambda w: bool((w.sum(-1) == 1).all()), None, "it should say True"),
        (sums_to_one, "fully-masked-row", "It says False of weights with a row of zeros"),
        (allows_empty, None, "It says True of rows that sum to one, with a negative number"),
        (lambda w: by_row(w.mean(-2, keepdim=True)) or by_row(w), "weights-not-normalized", "0.5 and 1.5"),
        (lambda w: by_row(w.nan_to_num(0.0)), None, "It says True of"),
        (lambda w: w.shape[2] > 0, None, "raised IndexError"),
    ],
)
def test_tests_that_are_too_lax_or_too_strict_are_told_of_a_case(answer, cause, said):
    feedback = check("are-weights", answer)
    assert not feedback.ok
    assert said in feedback.message
    assert cause is None or feedback.cause == cause
