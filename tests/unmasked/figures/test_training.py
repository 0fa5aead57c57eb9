"""The story of a training tells the losses and the weights of the steps that it names."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from unmasked.figures.training import story


def test_a_look_before_the_first_step_and_after_each_five():
    matrix = torch.zeros(2, 3, requires_grad=True)

    def train() -> Iterator[float]:
        for step in range(1, 13):
            with torch.no_grad():
                matrix.add_(1)
            yield step / 10

    told = story(train(), lambda: 2 * matrix, ("a?", "b?"), "abc")
    assert told["steps"] == [0, 5, 10]
    assert told["loss"] == [0.1, 0.5, 1.0]
    assert [each.unique().tolist() for each in told["weights"]] == [[0], [10], [20]]
    assert not any(each.requires_grad for each in told["weights"])
    assert (told["queries"], told["keys"]) == (["a?", "b?"], ["a", "b", "c"])
