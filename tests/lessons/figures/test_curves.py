"""Two curves have their numbers, their names and their axes."""

import pytest
import torch

from unmasked_lessons.figures.curves import curves


def test_curves_have_their_numbers_their_names_and_differ_in_their_lines():
    drawn = curves({"added": [0.2, 0.4], "replaced": [0.6, 1.0]}, xlabel="blocks", ylabel="likeness", ylim=(0.0, 1.5))
    (axes,) = drawn.axes
    assert [line.get_xydata().tolist() for line in axes.lines] == [[[0, 0.2], [1, 0.4]], [[0, 0.6], [1, 1.0]]]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["added", "replaced"]
    assert [line.get_linestyle() for line in axes.lines] == ["-", "--"]
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_ylim()) == ("blocks", "likeness", (0.0, 1.5))


def test_numbers_stand_where_they_are_said_to():
    (axes,) = curves({"a": torch.ones(2), "b": torch.zeros(2)}, torch.tensor([5, 9]), xlabel="x", ylabel="y").axes
    assert [list(line.get_xdata()) for line in axes.lines] == [[5, 9], [5, 9]]


def test_a_third_curve_has_no_line_of_its_own_and_is_refused():
    with pytest.raises(ValueError, match="zip"):
        curves({"a": [1], "b": [1], "c": [1]}, xlabel="x", ylabel="y")
