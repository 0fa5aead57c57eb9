"""The story of a training tells the losses and the weights of the steps that it names."""

import pytest
import torch
from torch import Tensor

from unmasked_lessons.experiments.training import story


def descend(matrix: Tensor, steps: int) -> None:
    """Each step takes one from every entry."""
    optimizer = torch.optim.SGD([matrix], lr=1)
    for _ in range(steps):
        optimizer.zero_grad()
        matrix.sum().backward()
        optimizer.step()


def test_a_look_before_the_first_step_and_after_each_five():
    matrix = torch.zeros(2, 3, requires_grad=True)
    told = story(lambda: descend(matrix, 12), lambda: (matrix.sum(), 2 * matrix), ("a?", "b?"), "abc")
    assert told["steps"] == [0, 5, 10]
    assert told["loss"] == [0, -30, -60]
    assert [each.unique().tolist() for each in told["weights"]] == [[0], [-10], [-20]]
    assert not any(each.requires_grad for each in told["weights"])
    assert (told["queries"], told["keys"]) == (["a?", "b?"], ["a", "b", "c"])


def test_what_is_looked_at_stays_as_it_was_then():
    matrix = torch.zeros(1, 1, requires_grad=True)
    told = story(lambda: descend(matrix, 5), lambda: (matrix.sum(), matrix), ["a?"], ["a"])
    assert [each.item() for each in told["weights"]] == [0, -5]


def test_nobody_looks_at_steps_after_the_training_even_if_it_failed():
    matrix = torch.zeros(1, 1, requires_grad=True)
    looks = []

    def train() -> None:
        descend(matrix, 7)
        raise OverflowError

    with pytest.raises(OverflowError):
        story(train, lambda: (looks.append(matrix.item()) or matrix.sum(), matrix), [], [])
    descend(matrix, 5)
    assert looks == [0, -5]
