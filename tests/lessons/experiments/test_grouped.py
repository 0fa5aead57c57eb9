import torch

from unmasked_lessons.experiments import grouped


def test_a_kind_keeps_a_key_and_a_value_for_each_head_or_a_latent():
    kinds = {"shared": 4, "latent": None}
    kept = grouped.bytes_per_token(kinds, layers=3, head_dim=10, dtype=torch.float32)
    assert kept == {"shared": 3 * 4 * (10 + 10) * 4, "latent": 3 * (512 + 64) * 4}
