"""The drawing of a block leads lines where information moves, and the curves of its costs are those that are given."""

from __future__ import annotations

import pytest
import torch
from matplotlib.colors import to_hex
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from unmasked.figures import block
from unmasked.figures._drawing import AMBER, TEAL, VIOLET

WORDS = ["my", "ship", "left"]


def test_what_moves_is_what_changes_with_another_word():
    torch.manual_seed(0)
    x = torch.randn(1, 3, 4)
    assert block.moves(lambda x: x.cumsum(dim=1), x).equal(torch.ones(3, 3).tril().bool())  # rows are outputs
    assert block.moves(lambda x: 2 * x, x).equal(torch.eye(3).bool())


def test_a_line_leads_from_each_word_to_those_that_learn_from_it():
    first, second = torch.ones(3, 3).tril().bool(), torch.eye(3).bool()
    (axes,) = block.block({"attention": first, "MLP": second}, WORDS).axes
    lines = {color: [line for line in axes.lines if line.get_color() == color] for color in (TEAL, AMBER)}
    for moved, color, bottom in ((first, TEAL, 0.0), (second, AMBER, block.END)):
        ways = {tuple(line.get_xdata()) for line in lines[color]}
        assert ways == {(origin, to) for to, origin in moved.nonzero().tolist()}
        assert all(bottom < height < bottom + block.END for line in lines[color] for height in line.get_ydata())
    texts = [text.get_text() for text in axes.texts]
    assert sorted(texts) == sorted(["attention", "norm", "MLP", "norm", *WORDS, *(f"{word}′" for word in WORDS)])
    assert len(axes.patches) == 2 * len(WORDS)  # a norm before each part, for each word
    assert len([line for line in axes.lines if line.get_marker() == "+"]) == 2 * len(WORDS)
    assert {to_hex(patch.get_facecolor()) for patch in axes.patches} == {VIOLET}


def test_costs_are_in_millions_and_cross_at_the_line():
    (axes,) = block.costs([0, 10, 20], [1e6, 2e6, 3e6], [2e6, 2e6, 2e6], crossing=10).axes
    attention, mlp, crossing = axes.lines
    assert attention.get_xydata().tolist() == [[0, 1], [10, 2], [20, 3]]
    assert list(mlp.get_ydata()) == [2, 2, 2]
    assert set(crossing.get_xdata()) == {10}
    assert [text.get_text() for text in axes.texts] == ["attention", "MLP"]


def test_parameters_are_counted_part_by_part():
    layer = nn.TransformerEncoderLayer(8, 2, 12)
    found = block.parameters(layer)
    assert found == {"attention": 4 * (8 * 8 + 8), "MLP": 8 * 12 + 12 + 12 * 8 + 8, "norms": 2 * 2 * 8}
    assert sum(found.values()) == sum(each.numel() for each in layer.parameters())


@pytest.mark.parametrize("length", [5, 32])
def test_a_block_of_pytorch_takes_as_many_multiplications(length: int):
    layer = nn.TransformerEncoderLayer(16, 2, 64, batch_first=True, device="meta")
    x = torch.empty(1, length, 16, device="meta")
    found = []
    for part in (lambda x: layer.self_attn(x, x, x), lambda x: layer.linear2(layer.linear1(x))):
        with FlopCounterMode(display=False) as flops:
            part(x)
        found.append(flops.get_total_flops() / 2 / length)  # a multiplication and an addition
    assert block.multiplications(16, length) == tuple(found)
