"""Right answers to the doctor's exercises are accepted, and wrong ones are told why."""

import math

import pytest
import torch

from unmasked import self_attention
from unmasked.exercises import check


def long_ones(x):
    return self_attention(x, is_causal=x.size(1) <= 100).context


def from_the_hundredth(x):
    context = self_attention(x, is_causal=True).context
    return torch.cat([context[:, :100], self_attention(x).context[:, 100:]], dim=1)


@pytest.mark.parametrize("answer", [long_ones, from_the_hundredth])
def test_leaks_of_long_sequences_get_past_the_doctor(answer) -> None:
    feedback = check("get-past-the-doctor", answer)
    assert feedback
    assert "what was not tried is not proved" in feedback.message


@pytest.mark.parametrize(
    ("answer", "told", "cause"),
    [
        (lambda x: self_attention(x).context, "The doctor finds it: ", "no-causal-mask"),
        (lambda x: self_attention(x, is_causal=x.size(1) < 3).context, "The doctor finds it: ", "no-causal-mask"),
        (lambda x: self_attention(x, is_causal=True, scale=1.0).context, "The doctor finds it: ", "missing-scale"),
        (lambda x: self_attention(x, is_causal=True).context, "there is no leak", None),
        (lambda x: self_attention(x, is_causal=x.size(1) < 1000).context, "there is no leak", None),
    ],
)
def test_what_the_doctor_finds_or_what_never_leaks_does_not(answer, told: str, cause: str | None) -> None:
    feedback = check("get-past-the-doctor", answer)
    assert not feedback
    assert told in feedback.message
    assert feedback.cause == cause


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
