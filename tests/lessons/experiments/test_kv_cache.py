import math

import pytest
import torch

from unmasked import CausalSelfAttention
from unmasked.positions import Rotary
from unmasked_lessons.experiments import kv_cache


def test_steps_are_as_far_from_float64_as_the_whole_and_the_layer_stays_as_it_is():
    torch.manual_seed(3)
    layer = CausalSelfAttention(24, 24, num_heads=4, num_kv_heads=2)
    found = kv_cache.rounding(layer, torch.randn(2, 10, 24))
    assert list(found) == ["float32", "float16", "bfloat16"]
    assert layer.qkv.weight.dtype == torch.float32
    for each in found.values():
        assert 1 / 3 < each.steps_from_exact / each.whole_from_exact < 3
        assert each.steps_from_whole <= each.steps_from_exact + each.whole_from_exact + 1e-9
    assert found["float32"].whole_from_exact < 1e-5 < found["float16"].whole_from_exact
    assert found["float16"].whole_from_exact < found["bfloat16"].whole_from_exact < 0.1


def test_a_cache_is_a_key_and_a_value_for_each_head_and_layer():
    of_token = 2 * 32 * 128 * 2  # key and value, layers, features, bytes
    assert kv_cache.sizes((8, 1), tokens=1024) == {
        "8 heads of keys": (8 * of_token / 1024, 8 * of_token * 1024 / 2**30),
        "1 head of keys": (of_token / 1024, of_token * 1024 / 2**30),
    }


@pytest.mark.parametrize(
    ("mistake", "wrong"),
    [
        ("", [False, False, False]),
        ("top left", [False, True, True]),
        ("positions", [False, True, True]),
        ("beams", [False, True, True]),
    ],
)
def test_a_mistake_spares_the_first_part_and_none_spares_all(mistake, wrong):
    torch.manual_seed(0)
    layer = CausalSelfAttention(24, 24, num_heads=4, num_kv_heads=2, rotary=Rotary(6))
    x = torch.randn(2, 7, 24)
    found, expected = kv_cache.by_hand(layer, x, [4, 2, 1], mistake)
    assert [share > 0.05 for share in kv_cache.shares(found, expected, [4, 2, 1])] == wrong
    assert expected[:, :4].allclose(layer(x[:, :4]), atol=1e-5)
    if mistake == "beams":
        assert expected[:, 4:].allclose(layer(torch.cat([x.flip(0)[:, :4], x[:, 4:]], 1))[:, 4:], atol=1e-5)
        assert not found[:, 4:].allclose(layer(x)[:, 4:], atol=1e-2), "the keys have changed places"
    else:
        assert expected.allclose(layer(x), atol=1e-5)


def test_memory_that_is_read_before_it_is_written_is_not_a_number():
    torch.manual_seed(0)
    layer = CausalSelfAttention(8, 8, num_heads=2, rotary=Rotary(4))
    cached = kv_cache.ByHand(layer, "memory", batch=3, max_tokens=5)
    assert cached(torch.randn(3, 4, 8)).isnan().all()


def test_a_share_is_of_all_that_is_expected():
    expected = torch.tensor([3.0, 4.0, 0.0, 5.0]).reshape(1, 4, 1)
    found = expected + torch.tensor([0.0, 0.0, 1.0, 1.0]).reshape(1, 4, 1)
    assert kv_cache.shares(found, expected, [2, 2]) == pytest.approx([0.0, 1 / math.sqrt(50 / 4)])
