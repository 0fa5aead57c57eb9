import torch

from unmasked_lessons.figures import positions


def test_a_map_says_what_its_columns_and_rows_are():
    figure = positions.map_of(torch.tensor([[1.0, -2.0, 0.5]]), "feature", "place")
    axes = figure.axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("feature", "place")
    assert axes.collections[0].get_array().flatten().tolist() == [1.0, -2.0, 0.5]


def test_slopes_are_dots_and_crosses_over_the_number_of_the_head():
    axes = positions.slopes({"a": torch.tensor([0.5, 0.25]), "b": torch.tensor([0.5, 0.125])}).axes[0]
    drawn = [(line.get_label(), line.get_marker(), line.get_ydata().tolist()) for line in axes.lines]
    assert drawn == [("a", "o", [0.5, 0.25]), ("b", "x", [0.5, 0.125])]
    assert axes.lines[0].get_xdata().tolist() == [1, 2]
    assert axes.get_yscale() == "log"
