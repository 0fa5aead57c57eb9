"""The exercises of the page that says what attention is."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from unmasked.exercises._check import Wrong, exercise
from unmasked.functional import self_attention

PAGE = "learn/attention"
Rows = Sequence[Sequence[float]]


@exercise("by-hand", page=PAGE, task="Scores, exponentials, their sum, an average: that is all there is.")
def by_hand(answer: Callable[[Rows], Any]) -> None:
    """Hold a function of rows of numbers to the context of self-attention.

    Equation: (1.1, 1.2)
    """
    cases: list[list[list[float]]] = [
        [[1.0, 2.0]],
        [[1.0, 0.0], [0.0, 2.0]],
        [[1.0, 0.0, 0.0, 1.0], [0.0, 1.5, 1.0, 1.0], [0.0, 1.0, 1.0, 1.0]],
    ]
    for rows in cases:
        x = torch.tensor(rows, dtype=torch.float64)
        scores = x @ x.mT / math.sqrt(x.size(-1))
        weights = scores.softmax(-1)
        right = weights @ x
        given = _numbers(answer([list(row) for row in rows]))
        shown = f"For {rows}"
        if given.shape != right.shape:
            raise Wrong(f"{shown} the shape is {tuple(given.shape)}; it should be {tuple(right.shape)}: a row a token.")
        if torch.allclose(given, right, atol=5e-4):
            continue
        if torch.allclose(given, weights, atol=5e-4) if given.shape == weights.shape else False:
            raise Wrong(f"{shown} it gives the weights; average the rows with them.")
        row = next(i for i in range(len(rows)) if not torch.allclose(given[i], right[i], atol=5e-4))
        told = f"{shown} row {row} is {_short(given[row])}; it should be {_short(right[row])}."
        wrong: dict[tuple[str, str | None], Tensor] = {
            ("The scores are not divided by the root.", "missing-scale"): (x @ x.mT).softmax(-1) @ x,
            ("Divide by the root of the dimension, not by it.", "wrong-d-in-scale"): (x @ x.mT / x.size(-1)).softmax(-1)
            @ x,
            ("The weights sum to one by column; they should by row.", "softmax-over-queries"): scores.softmax(0) @ x,
            ("The exponentials are not divided by their sum.", "weights-not-normalized"): scores.exp() @ x,
            ("The scores themselves are no weights.", "weights-not-normalized"): scores @ x,
        }
        for (why, cause), mistaken in wrong.items():
            if torch.allclose(given, mistaken, atol=5e-4):
                raise Wrong(f"{told} {why}", cause)
        raise Wrong(told)


@exercise("pull-to-trade", page=PAGE, task="A word of trade pulls the ship ashore.")
def pull_to_trade(answer: Any) -> None:
    """Hold a word to what it makes of the ship among the three words of the page."""
    word = _numbers(answer)
    if word.shape != (2,):
        raise Wrong(f"The shape is {tuple(word.shape)}; give one list of two numbers: sea and trade.")
    if not (word.abs() <= 1).all():
        raise Wrong(f"{_short(word)} has a number that is not from minus one to one.")
    mine, ship = torch.tensor([[-1, -1], [1, 1]], dtype=word.dtype)
    sea, trade = self_attention(torch.stack([mine, ship, word])).context[1].tolist()
    if trade > sea + 1e-6:
        return
    told = f"Beside {_short(word)}, ship has {sea:.3f} of the sea and {trade:.3f} of trade."
    if abs(trade - sea) <= 1e-6:
        raise Wrong(f"{told} They are equal: your word must have more of trade than of the sea.")
    raise Wrong(f"{told} Your word pulls it out to sea.")


@exercise("three-lines", page=PAGE, task="Scores of queries and keys, a softmax, an average of values.")
def three_lines(answer: Callable[[Tensor, Tensor, Tensor], Any]) -> None:
    """Hold a function of query, key and value to attention.

    Equation: (1.3)
    """
    generator = torch.Generator().manual_seed(0)
    for queries, keys, d_k, d_v in ((3, 3, 4, 4), (2, 5, 7, 3)):  # of one size first, where a mistake can be named
        q, k, v = (
            torch.randn(shape, generator=generator, dtype=torch.float64)
            for shape in ((queries, d_k), (keys, d_k), (keys, d_v))
        )
        scores = q @ k.mT / math.sqrt(d_k)
        right = scores.softmax(-1) @ v
        given = _numbers(answer(q.clone(), k.clone(), v.clone()))
        where = f"For {queries} queries and {keys} keys"
        if given.shape != right.shape:
            raise Wrong(f"{where} the shape is {tuple(given.shape)}; it should be {tuple(right.shape)}.")
        if torch.allclose(given, right, atol=1e-5):
            continue
        told = f"{where} it is off by up to {(given - right).abs().max().item():.2f}."
        wrong: dict[tuple[str, str | None], Tensor] = {
            ("The scores are not divided by the root.", "missing-scale"): (q @ k.mT).softmax(-1) @ v,
            ("Divide by the root of the number, not by the number.", "wrong-d-in-scale"): (q @ k.mT / d_k).softmax(-1)
            @ v,
        }
        if queries == keys and d_k == d_v:
            wrong |= {
                ("It averages the queries; average the values.", "wrong-value"): scores.softmax(-1) @ q,
                ("It averages the keys; average the values.", "wrong-value"): scores.softmax(-1) @ k,
                ("The weights sum to one by column; they should by row.", "softmax-over-queries"): scores.softmax(0)
                @ v,
                ("The keys ask, and the queries are asked; it should be the other way round.", None): scores.mT.softmax(
                    -1
                )
                @ v,
            }
        for (why, cause), mistaken in wrong.items():
            if torch.allclose(given, mistaken, atol=1e-5):
                raise Wrong(f"{told} {why}", cause)
        raise Wrong(told)


def _numbers(given: Any) -> Tensor:
    try:
        return torch.as_tensor(given, dtype=torch.float64).detach()
    except (TypeError, ValueError, RuntimeError):
        raise Wrong(f"It is {type(given).__name__}; give rows of numbers, as lists or as a tensor.") from None


def _short(row: Tensor) -> list[float]:
    return [round(number, 3) for number in row.tolist()]
