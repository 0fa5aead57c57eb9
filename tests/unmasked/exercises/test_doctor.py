"""Right answers to the doctor's exercises are accepted, and wrong ones are told why."""

import math

import pytest
import torch

from unmasked import probes, self_attention
from unmasked.exercises import check


def by_changing(f, x):
    changed = x.clone()
    changed[:, -1] += 1
    return not torch.equal(f(changed)[:, :-1], f(x)[:, :-1])


def by_gradient(f, x):
    x = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(f(x)[:, :-1].sum(), x)
    return bool(gradient[:, -1].abs().max() > 0)


def by_cutting(f, x):
    return any((f(x[:, :n]) - f(x)[:, :n]).abs().max() > 1e-9 for n in range(1, x.size(1)))


@pytest.mark.parametrize("answer", [by_changing, by_gradient, by_cutting, probes.sees_the_future])
def test_probes_that_see_every_leak_are_right(answer) -> None:
    assert check("future-probe", answer)


def only_the_first(f, x):
    changed = x.clone()
    changed[:, 1:] += 1
    return not torch.allclose(f(changed)[:, 0], f(x)[:, 0])


def roughly(f, x):
    changed = x.clone()
    changed[:, -1] += 1
    return not torch.allclose(f(changed)[:, :-1], f(x)[:, :-1], atol=0.1)


def in_place(f, x):
    before = f(x)
    x[:, -1] += 1
    return not torch.equal(f(x)[:, :-1], before[:, :-1])


def all_outputs(f, x):
    changed = x.clone()
    changed[:, -1] += 1
    return not torch.equal(f(changed), f(x))


@pytest.mark.parametrize(
    ("answer", "told", "cause"),
    [
        (lambda f, x: False, "A function that leaks passes: nothing is masked", "no-causal-mask"),
        (all_outputs, "A causal function is said to see the future", None),
        (only_the_first, "only the last token but one sees the last", None),
        (roughly, "small, not zero", "boolean-mask-added"),
        (in_place, "change a copy", "input-overwritten"),
    ],
)
def test_probes_that_miss_a_leak_are_told_which(answer, told: str, cause: str | None) -> None:
    feedback = check("future-probe", answer)
    assert not feedback
    assert told in feedback.message
    assert feedback.cause == cause


@pytest.mark.parametrize("sizes", [(2, 5, 3, 4), (7, 11, 2, 3)])
def test_sizes_that_all_differ_are_right(sizes) -> None:
    assert check("hiding-sizes", dict(zip(("batch", "tokens", "heads", "head_dim"), sizes, strict=True)))


@pytest.mark.parametrize(
    ("sizes", "told", "cause"),
    [
        ((2, 5, 3, 3), "head_dim and heads are both 3", "swapped-view"),
        ((5, 5, 3, 4), "batch and tokens are both 5", "batch-and-tokens-swapped"),
        ((3, 5, 3, 4), "batch and heads are both 3", "batch-indexed-for-head"),
        ((2, 12, 3, 4), "embed_dim (heads times head_dim) and tokens are both 12", "batch-and-tokens-swapped"),
        ((1, 5, 3, 4), "With batch = 1", "only-first-item"),
        ((2, 5, 3, 1), "With head_dim = 1", "head-dim-one"),
    ],
)
def test_sizes_that_hide_a_mistake_are_told_which(sizes, told: str, cause: str) -> None:
    feedback = check("hiding-sizes", dict(zip(("batch", "tokens", "heads", "head_dim"), sizes, strict=True)))
    assert not feedback
    assert told in feedback.message
    assert feedback.cause == cause


def test_a_missing_size_is_named() -> None:
    assert "'heads' is missing" in check("hiding-sizes", {"batch": 2, "tokens": 3, "head_dim": 4}).message


@pytest.mark.parametrize(
    ("f", "slug"),
    [
        (lambda x: (x @ x.mT).softmax(-1) @ x, "missing-scale"),
        (lambda x: (x @ x.mT / math.sqrt(x.size(-1))).softmax(-2) @ x, "softmax-over-queries"),
        (lambda x: self_attention(x.transpose(0, 1)).context.transpose(0, 1), "batch-and-tokens-swapped"),
        (lambda x: self_attention(x).context.detach(), "gradient-cut"),
    ],
)
def test_planted_mistakes_are_right_if_they_are_what_they_are_called(f, slug: str) -> None:
    assert check("plant-a-mistake", (f, slug))


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (((lambda x: self_attention(x).context), "missing-scale"), "The doctor finds nothing"),
        (((lambda x: (x @ x.mT).softmax(-1) @ x), "wrong-value"), "The doctor finds missing-scale, not wrong-value"),
        (((lambda x: x), "scale"), "'scale' is no mistake of the museum"),
        ((lambda x: x), "Pass the function and the mistake's name"),
    ],
)
def test_planted_mistakes_that_are_none_are_told_why(answer, told: str) -> None:
    feedback = check("plant-a-mistake", answer)
    assert not feedback
    assert told in feedback.message
