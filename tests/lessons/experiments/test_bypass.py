import torch
from torch import nn

from unmasked import is_bypassed, self_attention
from unmasked_lessons.experiments.bypass import before_and_after, broken


def test_the_matrices_stand_below_one_another_as_they_were_and_as_identities():
    torch.manual_seed(0)
    module = nn.MultiheadAttention(3, 1)
    query, output = module.in_proj_weight[:3].detach().clone(), module.out_proj.weight.detach().clone()
    found = before_and_after(module)
    assert list(found) == ["as initialized", "bypassed"]
    assert torch.equal(found["as initialized"][:3], query)
    assert torch.equal(found["as initialized"][-3:], output)
    assert torch.equal(found["bypassed"], torch.eye(3).repeat(4, 1))


def test_each_module_but_the_first_is_off_for_its_own_reason():
    torch.manual_seed(6)
    tokens = torch.randn(4, 10)
    modules = broken(tokens)
    plain = self_attention(tokens).context
    off = {name: (module(tokens, tokens, tokens)[0] - plain).abs().max() for name, module in modules.items()}
    assert off.pop("nothing") < 1e-5 < 1e-3 < min(off.values())

    reasons = {name: " ".join(is_bypassed(module).reasons) for name, module in modules.items()}
    assert reasons["nothing"] == ""
    assert "bias" in reasons["biases kept"]
    assert "identity" in reasons["one step of Adam"]
    assert "identity" in reasons["frozen with a gradient"]
    assert "dropout" in reasons["dropout in training"]
    assert "add_zero_attn" in reasons["zeros appended"]
    assert modules["five heads"].num_heads == 5
    assert modules["frozen with a gradient"].in_proj_weight.grad is not None
    assert not modules["frozen with a gradient"].in_proj_weight.requires_grad
