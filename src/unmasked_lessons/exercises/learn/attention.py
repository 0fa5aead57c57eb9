"""The exercises of the page that says what attention is."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from unmasked.functional import self_attention
from unmasked_lessons.exercises._check import Wrong, ask, draw, exercise, hold, of_attention, rows, same, short, tensor

Rows = Sequence[Sequence[float]]


@exercise("by-hand", "Scores, exponentials, their sum, an average: that is all there is.")
def _by_hand(answer: Callable[[Rows], Any]) -> None:
    """Equation: (1.1, 1.2)."""
    three = [[1.0, 0.0, 0.0, 1.0], [0.0, 1.5, 1.0, 1.0], [0.0, 1.0, 1.0, 1.0]]
    for vectors in ([[1.0, 2.0]], [[1.0, 0.0], [0.0, 2.0]], three):
        x = torch.tensor(vectors, dtype=torch.float64)
        right = self_attention(x).context
        result = tensor(rows(answer([list(row) for row in vectors])), f"For {vectors}", right, axes=": a row a token")
        row = next((i for i in range(len(x)) if not same(result[i], right[i], 5e-4)), 0)
        mistakes = {sentence: each[row] for sentence, each in of_attention(x, x, x).items()}
        hold(result[row], right[row], f"For {vectors}", f"row {row}", mistakes, shown=short, tolerance=5e-4)


@exercise("pull-to-machine", "A machine beside it makes the mouse a machine.")
def _pull_to_machine(answer: Any) -> None:
    word = rows(answer)
    if word.shape != (2,):
        raise Wrong(f"The shape is {tuple(word.shape)}; give one list of two numbers: animal and machine.")
    if not (word.abs() <= 1).all():
        raise Wrong(f"{short(word)} has a number that is not from minus one to one.")
    mine, mouse = torch.tensor([[-1, -1], [1, 1]], dtype=word.dtype)
    animal, machine = self_attention(torch.stack([mine, mouse, word])).context[1].tolist()
    message = f"Beside {short(word)}, mouse has {animal:.3f} of an animal and {machine:.3f} of a machine."
    if abs(machine - animal) <= 1e-6:
        raise Wrong(f"{message} They are equal: your word must have more of a machine than of an animal.")
    if machine < animal:
        raise Wrong(f"{message} Your word pulls it toward the animals.")


@exercise("three-lines", "Scores of queries and keys, a softmax, an average of values.")
def _three_lines(answer: Callable[[Tensor, Tensor, Tensor], Any]) -> None:
    """Equation: (1.3)."""
    for queries, keys, d_k, d_v in ((3, 3, 4, 4), (2, 5, 7, 3)):  # of one size first, where a mistake can be named
        q, k, v = draw((queries, d_k), (keys, d_k), (keys, d_v))
        right = (q @ k.mT / math.sqrt(d_k)).softmax(-1) @ v
        hold(rows(ask(answer, q, k, v)), right, f"For {queries} queries and {keys} keys", known=of_attention(q, k, v))
