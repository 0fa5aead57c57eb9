from copy import deepcopy

import torch
from torch import nn

from unmasked import MultiheadAttention
from unmasked_lessons.experiments.from_scratch import CALL, CONSTRUCTOR, differences, slips

PLAIN = {name: values[-1] for name, values in (CONSTRUCTOR | CALL).items()} | {"dropout": 0.0, "need_weights": True}


def test_the_layers_agree_with_each_option_alone_and_a_change_in_one_of_them_is_seen(monkeypatch):
    torch.manual_seed(6)
    each_alone = [
        tuple((PLAIN | {name: value}).values()) for name, values in (CONSTRUCTOR | CALL).items() for value in values
    ]
    assert max(differences(each_alone).values()) < 1e-12

    forward = MultiheadAttention.forward

    def differing(change):
        def changed(self, *args, **options):
            output, weights = forward(self, *args, **options)
            return change(self, output), weights

        monkeypatch.setattr(MultiheadAttention, "forward", changed)
        return {name for name, gap in differences(each_alone[:1]).items() if gap > 1e-4}

    assert differing(lambda layer, output: 1.01 * output) == {"output", "gradients"}

    def moved(layer, output):  # by zero, with another gradient of one parameter
        return output + (layer.out_proj.weight - layer.out_proj.weight.detach()).sum()

    assert differing(moved) == {"gradients"}


def test_each_slip_keeps_the_shapes_and_changes_what_it_touches():
    torch.manual_seed(9)
    module = nn.MultiheadAttention(12, 3, batch_first=True).eval()
    query, key, value = torch.randn(2, 4, 12), torch.randn(2, 5, 12), torch.randn(2, 5, 12)
    allowed = torch.ones(4, 5, dtype=torch.bool).tril(1)
    before = deepcopy(module.state_dict())
    tokens_first, inverted, mixed, expected, dropped = slips(module, query, key, value, allowed)

    right, weights = module(query, key, value, attn_mask=~allowed, average_attn_weights=False)
    assert inverted.shape == right.shape
    assert not inverted.allclose(right, atol=1e-2)
    alone, _ = module(key[1:], key[1:], key[1:])
    torch.testing.assert_close(expected[1:], alone)
    assert mixed.shape == expected.shape
    assert not mixed.allclose(expected, atol=1e-2)
    kept = dropped != 0
    assert 0 < kept.sum() < (weights != 0).sum(), "some are dropped"
    torch.testing.assert_close(dropped[kept], 2 * weights[kept])

    assert (module.batch_first, module.training, module.dropout) == (True, False, 0.0)
    assert (tokens_first.batch_first, module.state_dict().keys()) == (False, before.keys())
