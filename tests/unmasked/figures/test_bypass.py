import torch
from torch import nn

from unmasked.figures.bypass import before_and_after


def test_the_matrices_stand_below_one_another_as_they_were_and_as_identities():
    torch.manual_seed(0)
    module = nn.MultiheadAttention(3, 1)
    query, output = module.in_proj_weight[:3].detach().clone(), module.out_proj.weight.detach().clone()
    found = before_and_after(module)
    assert list(found) == ["as initialized", "bypassed"]
    assert torch.equal(found["as initialized"][:3], query)
    assert torch.equal(found["as initialized"][-3:], output)
    assert torch.equal(found["bypassed"], torch.eye(3).repeat(4, 1))
