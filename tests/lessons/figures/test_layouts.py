import torch

from unmasked import plot
from unmasked_lessons.figures import layouts

BLOCKS = {"packed": [0, 1, 2], "interleaved": [0, 1, 2, 0, 1, 2]}


def test_each_row_has_the_shade_of_its_part():
    shades = layouts.shades(BLOCKS, rows=12)
    assert shades["packed"][:, 0].tolist() == [0.0] * 4 + [0.5] * 4 + [1.0] * 4
    assert shades["interleaved"][:, 5].tolist() == [0.0, 0.0, 0.5, 0.5, 1.0, 1.0] * 2
    assert {each.shape for each in shades.values()} == {torch.Size([12, 6])}


def test_each_block_is_named_in_its_middle_and_the_scale_is_gone():
    figure = layouts.labelled(plot.heatmap(layouts.shades(BLOCKS, rows=36)), BLOCKS)
    assert [axes.get_title() for axes in figure.axes] == ["packed", "interleaved"]
    assert [axes.get_ylabel() for axes in figure.axes] == ["row", ""]
    labels = [{round(text.get_position()[1], 1): text.get_text() for text in axes.texts} for axes in figure.axes]
    assert labels[0] == {5.5: "query", 17.5: "key", 29.5: "value"}
    assert labels[1] == {2.5: "query", 8.5: "key", 14.5: "value", 20.5: "query", 26.5: "key", 32.5: "value"}
