"""The exercises of the page that says what attention is."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from unmasked.exercises._check import Wrong, ask, draw, exercise, hold, of_attention, rows, same, short, tensor
from unmasked.functional import self_attention

Rows = Sequence[Sequence[float]]


@exercise("by-hand", "Scores, exponentials, their sum, an average: that is all there is.")
def by_hand(answer: Callable[[Rows], Any]) -> None:
    """Hold a function of rows of numbers to the context of self-attention.

    Equation: (1.1, 1.2)
    """
    three = [[1.0, 0.0, 0.0, 1.0], [0.0, 1.5, 1.0, 1.0], [0.0, 1.0, 1.0, 1.0]]
    for told in ([[1.0, 2.0]], [[1.0, 0.0], [0.0, 2.0]], three):
        x = torch.tensor(told, dtype=torch.float64)
        right = self_attention(x).context
        given = tensor(rows(answer([list(row) for row in told])), f"For {told}", right, axes=": a row a token")
        row = next((i for i in range(len(x)) if not same(given[i], right[i], 5e-4)), 0)
        mistakes = {told: each[row] for told, each in of_attention(x, x, x).items()}
        hold(given[row], right[row], f"For {told}", f"row {row}", mistakes, shown=short, tolerance=5e-4)


@exercise("pull-to-trade", "A word of trade pulls the ship ashore.")
def pull_to_trade(answer: Any) -> None:
    """Hold a word to what it makes of the ship among the three words of the page."""
    word = rows(answer)
    if word.shape != (2,):
        raise Wrong(f"The shape is {tuple(word.shape)}; give one list of two numbers: sea and trade.")
    if not (word.abs() <= 1).all():
        raise Wrong(f"{short(word)} has a number that is not from minus one to one.")
    mine, ship = torch.tensor([[-1, -1], [1, 1]], dtype=word.dtype)
    sea, trade = self_attention(torch.stack([mine, ship, word])).context[1].tolist()
    told = f"Beside {short(word)}, ship has {sea:.3f} of the sea and {trade:.3f} of trade."
    if abs(trade - sea) <= 1e-6:
        raise Wrong(f"{told} They are equal: your word must have more of trade than of the sea.")
    if trade < sea:
        raise Wrong(f"{told} Your word pulls it out to sea.")


@exercise("three-lines", "Scores of queries and keys, a softmax, an average of values.")
def three_lines(answer: Callable[[Tensor, Tensor, Tensor], Any]) -> None:
    """Hold a function of query, key and value to attention.

    Equation: (1.3)
    """
    for queries, keys, d_k, d_v in ((3, 3, 4, 4), (2, 5, 7, 3)):  # of one size first, where a mistake can be named
        q, k, v = draw((queries, d_k), (keys, d_k), (keys, d_v))
        right = (q @ k.mT / math.sqrt(d_k)).softmax(-1) @ v
        hold(rows(ask(answer, q, k, v)), right, f"For {queries} queries and {keys} keys", known=of_attention(q, k, v))
