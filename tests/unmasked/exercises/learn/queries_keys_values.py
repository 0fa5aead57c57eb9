"""The exercises on queries, keys and values accept what is right, and say what is wrong with the rest."""

import torch


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
    ("keys-for-queries", "the queries"): (lambda W_q: W_q, None, "The keys are the queries: a long one wins."),
    ("keys-for-queries", "opposite"): (lambda W_q: -W_q, None, "with another. Its own must be the largest."),
    ("keys-for-queries", "zeros"): (torch.zeros_like, None, "question 0 has the score 0.00 with its own key, and 0.00"),
    ("keys-for-queries", "transposed"): (torch.linalg.pinv, None, "the shape is (8, 3); it should be (3, 8)."),
    ("keys-for-queries", "a list"): (lambda W_q: W_q.tolist(), None, "it returned list; return a tensor."),
    ("same-product", "unchanged"): (lambda W_k, M: W_k, None, "The keys are what they were; M has to be undone."),
    ("same-product", "twice"): (lambda W_k, M: W_k @ M, None, "They are multiplied by M once more"),
    ("same-product", "not transposed"): (lambda W_k, M: W_k @ torch.linalg.inv(M), None, "take its transpose."),
    ("same-product", "not inverted"): (
        lambda W_k, M: W_k @ M.mT,
        None,
        "That is M transposed; take the inverse",
    ),
    ("same-product", "another"): (lambda W_k, M: W_k + 1, None, "For keys of (3, 2) a score is off by up to "),
    ("same-product", "one row"): (lambda W_k, M: W_k[:1], None, "the shape is (1, 2); it should be (3, 2)."),
}
