"""The story of a training tells the losses and the weights of the steps that it names."""

import pytest
import torch
from torch import Tensor

from unmasked_lessons.experiments.training import GUESTS, draw_guests, guests_answered, story


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


def test_each_guest_asks_for_the_drink_of_the_next_one_in_the_alphabet():
    torch.manual_seed(0)
    orders, asked = draw_guests(20)
    for row, drinks in zip(orders, asked, strict=True):
        ordered = {order[:GUESTS].argmax().item(): order[GUESTS:].argmax().item() for order in row}
        assert len({*ordered.values()}) == len(ordered) == GUESTS
        names = [order[:GUESTS].argmax().item() for order in row]
        assert drinks.tolist() == [ordered[(name + 1) % GUESTS] for name in names]
    assert (orders.sum(-1) == 2).all()


def test_guests_who_ask_one_another_need_a_matrix_for_queries_and_one_for_keys():
    assert guests_answered(0, shared=False) > 0.95
    assert guests_answered(0, shared=True) < 0.5
