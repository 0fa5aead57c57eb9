"""How exact the kernels of attention are in each type."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

__all__ = ["errors"]


def errors(qkv: Tensor) -> dict[str, list[float]]:
    """Round query, key and value, and compare three ways to attend with the same numbers in float64.

    Args:
        qkv: (3, batch, heads, tokens, head_dim), in float64.

    Returns:
        In float32, bfloat16 and float16, by their names, the errors of the contexts as shares of their norm: of the
        kernel that PyTorch chooses, of the formula written by hand, and of the math backend.
    """
    found = {}
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        rounded = qkv.to(dtype)
        q, k, v = rounded
        exact = F.scaled_dot_product_attention(*rounded.double())
        contexts = [F.scaled_dot_product_attention(q, k, v), (q @ k.mT / q.size(-1) ** 0.5).softmax(-1) @ v]
        with sdpa_kernel(SDPBackend.MATH):
            contexts.append(F.scaled_dot_product_attention(q, k, v))
        found[str(dtype).removeprefix("torch.")] = [
            ((each.double() - exact).norm() / exact.norm()).item() for each in contexts
        ]
    return found
