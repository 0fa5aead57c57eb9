import torch

from unmasked.functional import self_attention
from unmasked_lessons.experiments import packing


def blind_to_positions(x, positions, allowed=None):
    return self_attention(x, allowed=allowed, is_causal=True).context


def test_positions_that_run_on_move_sinusoids_alone():
    torch.manual_seed(1)
    ways = {"none": blind_to_positions, "sinusoids": packing.with_sinusoids}
    found = packing.gaps(ways, torch.randn(2, 9, 8), [3, 4, 2])
    assert max(found["none"]) < 1e-5
    run_on, anew = found["sinusoids"]
    assert anew < 1e-5 < 0.1 < run_on


def test_a_way_that_drops_the_mask_is_far_from_each_alone():
    torch.manual_seed(1)

    def maskless(x, positions, allowed=None):
        return self_attention(x, is_causal=True).context

    assert min(packing.gaps({"": maskless}, torch.randn(2, 9, 8), [3, 4, 2])[""]) > 0.1
