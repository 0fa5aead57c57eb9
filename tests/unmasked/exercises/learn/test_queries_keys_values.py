"""The exercises on queries, keys and values accept what is right, and say what is wrong with the rest."""

import pytest
import torch

from unmasked.exercises import check


def unit(W_q):
    """Keys by the queries' own directions, made perpendicular to the others' one after the other."""
    return torch.linalg.solve(W_q @ W_q.mT, W_q)


RIGHT = [
    ("keys-for-queries", lambda W_q: torch.linalg.pinv(W_q).mT),
    ("keys-for-queries", unit),
    ("keys-for-queries", lambda W_q: 100 * torch.linalg.pinv(W_q.float()).mT),
    ("same-product", lambda W_k, M: W_k @ torch.linalg.inv(M).mT),
    ("same-product", lambda W_k, M: torch.linalg.solve(M, W_k.mT).mT),
    ("same-product", lambda W_k, M: W_k.float() @ torch.linalg.inv(M.float()).mT),
]
WRONG = {
    ("keys-for-queries", "the queries"): (lambda W_q: W_q, "The keys are the queries: a long one wins."),
    ("keys-for-queries", "opposite"): (lambda W_q: -W_q, "with another. Its own must be the largest."),
    ("keys-for-queries", "zeros"): (torch.zeros_like, "question 0 has the score 0.00 with its own key, and 0.00"),
    ("keys-for-queries", "transposed"): (torch.linalg.pinv, "the shape is (8, 3); it should be (3, 8)."),
    ("keys-for-queries", "a list"): (lambda W_q: W_q.tolist(), "it returned list; return a tensor."),
    ("same-product", "unchanged"): (lambda W_k, M: W_k, "The keys are what they were; M has to be undone."),
    ("same-product", "twice"): (lambda W_k, M: W_k @ M, "They are multiplied by M once more"),
    ("same-product", "not transposed"): (lambda W_k, M: W_k @ torch.linalg.inv(M), "take its transpose."),
    ("same-product", "not inverted"): (lambda W_k, M: W_k @ M.mT, "That is M transposed; take the inverse of it."),
    ("same-product", "another"): (lambda W_k, M: W_k + 1, "For keys of (3, 2) a score is off by up to "),
    ("same-product", "one row"): (lambda W_k, M: W_k[:1], "the shape is (1, 2); it should be (3, 2)."),
}


@pytest.mark.parametrize(("name", "answer"), RIGHT)
def test_right_answers_are_accepted(name: str, answer: object):
    feedback = check(name, answer)
    assert feedback, feedback.message


@pytest.mark.parametrize(("name", "wrong"), WRONG)
def test_wrong_answers_are_told_why(name: str, wrong: str):
    answer, told = WRONG[name, wrong]
    feedback = check(name, answer)
    assert told in feedback.message
    assert not feedback
