"""The matrices of a module before and after the bypass."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unmasked.bypass import bypass_

__all__ = ["before_and_after"]


def before_and_after(module: nn.MultiheadAttention) -> dict[str, Tensor]:
    """Bypass a module, and keep its matrices of both times.

    Args:
        module: A layer whose matrices are square; it is bypassed.

    Returns:
        Under "as initialized" and "bypassed" the matrices of query, key, value and output, one below another:
        (4 features, features).
    """
    found = {}
    for name in ("as initialized", "bypassed"):
        found[name] = torch.cat([module.in_proj_weight, module.out_proj.weight]).detach()
        bypass_(module)
    return found
