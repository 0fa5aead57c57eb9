"""The exercises of the page on what queries, keys and values learn."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from unmasked.exercises._check import Wrong, exercise

PAGE = "learn/queries_keys_values"


@exercise("keys-for-queries", page=PAGE, task="Each question has its largest score with its own key: they only meet.")
def keys_for_queries(answer: Callable[[Tensor], Any]) -> None:
    """Hold a function of queries to keys that each question finds its own of."""
    for shape in ((3, 8), (6, 16), (6, 7)):
        (W_q,) = _draw(shape)
        given = _same_shape(answer(W_q.clone()), W_q, f"For queries of {shape}")
        scores = W_q @ given.mT
        for row, best in enumerate(scores.argmax(-1).tolist()):
            runner_up = scores[row][torch.arange(len(scores)) != row].max().item()
            if scores[row, row] > runner_up + 1e-6:
                continue
            told = (
                f"For queries of {shape}, question {row} has the score {scores[row, row].item():.2f} with its own key"
            )
            if torch.equal(given, W_q):
                raise Wrong(f"{told}, and {runner_up:.2f} with key {best}. The keys are the queries: a long one wins.")
            raise Wrong(f"{told}, and {runner_up:.2f} with another. Its own must be the largest.")


@exercise("same-product", page=PAGE, task="Only the product of queries and keys counts.")
def same_product(answer: Callable[[Tensor, Tensor], Any]) -> None:
    """Hold a function of keys and a matrix to keys that give the same scores."""
    for rows, width in ((3, 2), (5, 4), (4, 7)):
        W_q, W_k, M = _draw((rows + 1, width), (rows, width), (width, width))
        M = M + 3 * torch.eye(width, dtype=M.dtype)
        where = f"For keys of {(rows, width)}"
        given = _same_shape(answer(W_k.clone(), M.clone()), W_k, where)
        right = W_q @ W_k.mT
        off = (W_q @ M @ given.mT - right).abs().max().item()
        if off < 1e-4:
            continue
        told = f"{where} a score is off by up to {off:.2f}."
        wrong = {
            "The keys are what they were; M has to be undone.": W_k,
            "They are multiplied by M once more; M has to be undone.": W_k @ M,
            "That is the inverse of M; take its transpose.": W_k @ torch.linalg.inv(M),
            "That is M transposed; take the inverse of it.": W_k @ M.mT,
        }
        for why, mistaken in wrong.items():
            if torch.allclose(given, mistaken, atol=1e-4):
                raise Wrong(f"{told} {why}")
        raise Wrong(told)


def _draw(*shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def _same_shape(given: object, right: Tensor, where: str) -> Tensor:
    if not isinstance(given, Tensor):
        raise Wrong(f"{where} it returned {type(given).__name__}; return a tensor.")
    if given.shape != right.shape:
        raise Wrong(f"{where} the shape is {tuple(given.shape)}; it should be {tuple(right.shape)}.")
    return given.detach().to(right.dtype)
