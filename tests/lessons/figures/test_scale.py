import pytest
import torch

from unmasked_lessons.figures import scale


def test_the_panels_show_weights_above_gradients_and_the_root_on_the_right():
    found = {
        "unscaled": [torch.tensor([0.9, 0.1])],
        "scaled": [torch.tensor([0.6, 0.4])],
        "gradient_unscaled": [torch.tensor([1e-12, 3.0])],
        "gradient_scaled": [torch.tensor([1.0, 2.0])],
    }
    _, axes = scale.panels(found)
    assert [each.get_title() for each in axes[0]] == ["without the root", "with the root"]
    assert [[bar.get_height() for bar in each.patches] for each in axes[0]] == [
        pytest.approx([0.9, 0.1]),
        pytest.approx([0.6, 0.4]),
    ]
    lengths = [each.lines[0].get_xdata().tolist() for each in axes[1]]
    assert lengths == [pytest.approx([1e-8, 3.0]), [1.0, 2.0]], "what is too short lies on the edge"


def test_the_curves_stand_under_their_titles_with_both_ways():
    measured = {"unscaled": {"a": [1, 2], "b": [3, 4]}, "scaled": {"a": [5, 6], "b": [7, 8]}}
    figure = scale.curves([4, 16], measured, {"a": "first", "b": "second"})
    assert [axes.get_title() for axes in figure.axes] == ["first", "second"]
    drawn = [{line.get_label(): line.get_ydata().tolist() for line in axes.lines} for axes in figure.axes]
    assert drawn == [{"unscaled": [1, 2], "scaled": [5, 6]}, {"unscaled": [3, 4], "scaled": [7, 8]}]
    assert [text.get_text() for text in figure.axes[1].get_xticklabels()] == ["4", "16"]
