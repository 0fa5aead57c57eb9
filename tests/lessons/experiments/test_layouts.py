import pytest
import torch
from torch import nn

from unmasked_lessons.experiments import layouts


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
