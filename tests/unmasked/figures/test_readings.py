"""The function and the module read one mask in opposite ways, and a stranger's reading is told."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from unmasked import bypass_, masks, self_attention
from unmasked.figures.readings import _allows, _blind, readings

WEIGHTS = torch.eye(3)


def test_the_function_lets_true_look_and_the_module_does_not():
    torch.manual_seed(0)
    module = bypass_(nn.MultiheadAttention(8, 1, batch_first=True))
    found = readings(module, torch.randn(1, 4, 8), masks.causal(4))
    assert found == [
        {"kind": "boolean", "name": "the function", "allows": True, "blind": "zeros"},
        {"kind": "module", "name": "the module", "allows": False, "blind": "NaN"},
    ]


def test_under_both_readings_the_weights_are_those_of_the_library():
    torch.manual_seed(0)
    module, x, allowed = bypass_(nn.MultiheadAttention(8, 1, batch_first=True)), torch.randn(1, 4, 8), masks.causal(4)
    by_function = F.scaled_dot_product_attention(x, x, torch.eye(4)[None], attn_mask=allowed)
    torch.testing.assert_close(by_function, self_attention(x, allowed=allowed).weights)
    _, by_module = module(x, x, x, attn_mask=allowed)
    torch.testing.assert_close(by_module[:, :3], self_attention(x, allowed=~allowed).weights[:, :3])


def test_what_a_blind_query_gets_is_told_apart():
    lost = [torch.full((1, 2), torch.nan), torch.zeros(1, 2), torch.tensor([[0.0, 1.0]])]
    assert [_blind(each) for each in lost] == ["NaN", "zeros", "numbers"]


def test_a_mask_that_is_read_in_neither_way_is_told():
    assert _allows("it", WEIGHTS, torch.eye(3).bool())
    with pytest.raises(
        ValueError, match=r"it reads allowed=\[\[1, 1, 1\], .* in neither way: its weights are \[\[1.0, 0.0"
    ):
        _allows("it", WEIGHTS, torch.ones(3, 3).bool())
