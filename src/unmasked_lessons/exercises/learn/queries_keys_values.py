"""The exercises of the page on what queries, keys and values learn."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from unmasked_lessons.exercises._check import ask, draw, exercise, hold, name, tensor


@exercise("keys-for-queries", "Each question has its largest score with its own key: they only meet.")
def _keys_for_queries(answer: Callable[[Tensor], Any]) -> None:
    for shape in ((3, 8), (6, 16), (6, 7)):
        (W_q,) = draw(shape)
        where = f"For queries of {shape}"
        result = tensor(ask(answer, W_q), where, W_q).to(W_q)
        scores = W_q @ result.mT
        others = scores.masked_fill(torch.eye(len(scores), dtype=torch.bool), -torch.inf).amax(-1)
        for row in (scores.diagonal() <= others + 1e-6).nonzero()[:1, 0]:
            message = (
                f"{where}, question {row} has the score {scores[row, row]:.2f} with its own key, and {others[row]:.2f}"
            )
            known = {"The keys are the queries: a long one wins.": W_q}
            name(result, f"{message} with key {scores[row].argmax()}. Its own must be the largest.", known)


@exercise("same-product", "Only the product of queries and keys counts.")
def _same_product(answer: Callable[[Tensor, Tensor], Any]) -> None:
    for rows, width in ((3, 2), (5, 4), (4, 7)):
        W_k, M = draw((rows, width), (width, width))
        M = M + 3 * torch.eye(width, dtype=M.dtype)
        known = {
            "The keys are what they were; M has to be undone.": W_k,
            "They are multiplied by M once more; M has to be undone.": W_k @ M,
            "That is the inverse of M; take its transpose.": W_k @ torch.linalg.inv(M),
            "That is M transposed; take the inverse of it.": W_k @ M.mT,
        }
        right = torch.linalg.solve(M, W_k.mT).mT  # M is invertible: no other keys give the same scores to all queries
        hold(ask(answer, W_k, M), right, f"For keys of {(rows, width)}", known=known, tolerance=1e-4)
