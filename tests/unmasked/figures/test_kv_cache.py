import torch

from unmasked import CausalSelfAttention
from unmasked.figures import kv_cache


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
