import pytest
import torch
from torch import nn

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


@pytest.mark.parametrize(
    ("layout", "shape", "order"),
    [
        ("packed", "(36, 12)", "all of the query, of the key, of the value"),
        ("interleaved", "(36, 12)", "head by head, its query, key, value"),
        ("separate", "(12, 12), three times", "one matrix each"),
        ("stacked", "(3, 12, 4), three times", "one matrix for each head"),
        ("conv1d", "(12, 36)", "packed, transposed"),
    ],
)
def test_the_order_of_the_rows_is_read_from_converted_weights(layout, shape, order):
    state = nn.MultiheadAttention(12, 3).state_dict()
    assert layouts.described(state, layout, num_heads=3) == [shape, order]


def test_rows_of_a_head_and_part_that_follow_one_another_are_a_block():
    places = torch.tensor([0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11])  # of two heads with two features
    assert layouts.blocks(places, 2) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert layouts.blocks(torch.arange(12), 2) == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]


def test_a_family_is_told_by_its_names_layout_and_pairing():
    rows = {row[0]: row[1:] for row in layouts.families()}
    assert rows["`llama_meta`"] == ["`wq`, `wk`, `wv`, `wo`", "separate", "neighbors"]
    assert rows["`gpt2`"] == ["`c_attn`, `c_proj`", "conv1d", "nothing"]
