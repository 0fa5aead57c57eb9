"""The matrices of a module before and after the bypass, and modules that are bypassed by half."""

from typing import Any

import torch
from torch import Tensor, nn

from unmasked.bypass import bypass_


def before_and_after(module: nn.MultiheadAttention) -> dict[str, Tensor]:
    """Bypass a module, and keep its square matrices of both times: query, key, value and output, one below another."""
    matrices = {}
    for name in ("as initialized", "bypassed"):
        matrices[name] = torch.cat([module.in_proj_weight, module.out_proj.weight]).detach()
        bypass_(module)
    return matrices


def broken(tokens: Tensor) -> dict[str, nn.MultiheadAttention]:
    """Make modules that are plain self-attention but for one condition each. Draws from the global generator.

    They stand under what is broken. Those that took a step of training have seen `tokens`, (tokens, features).
    """

    def new(heads: int = 1, **options: Any) -> nn.MultiheadAttention:
        return nn.MultiheadAttention(tokens.size(-1), heads, batch_first=True, **options)

    biased, stale = new(), new(bias=False)
    nn.init.normal_(biased.in_proj_bias, std=tokens.size(-1) ** -0.5)
    nn.init.normal_(biased.out_proj.bias, std=tokens.size(-1) ** -0.5)
    thawed = bypass_(new(bias=False)).requires_grad_(True)
    for each in (thawed, stale):
        each(tokens, tokens, tokens)[0].square().mean().backward()
    _freeze_as_identity(stale)
    for each in (thawed, stale):
        torch.optim.Adam(each.parameters(), lr=0.001).step()
    return {
        "nothing": bypass_(new()),
        "five heads": bypass_(new(heads=5)),
        "biases kept": _freeze_as_identity(biased),
        "one step of Adam": thawed,
        "frozen with a gradient": stale,
        "dropout in training": bypass_(new(dropout=0.1)),
        "zeros appended": _freeze_as_identity(new(add_zero_attn=True)),
    }


@torch.no_grad()
def _freeze_as_identity(module: nn.MultiheadAttention) -> nn.MultiheadAttention:
    """The bypass by hand, forgetting biases and gradients."""
    identity = torch.eye(module.embed_dim)
    module.in_proj_weight.copy_(identity.repeat(3, 1))
    module.out_proj.weight.copy_(identity)
    return module.requires_grad_(False)
