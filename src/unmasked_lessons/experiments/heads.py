"""Heads: how a row of features is split into them, right and in two ways that only look right, and what they cost."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode


def splits(tokens: int, heads: int, head_dim: int) -> tuple[Tensor, ...]:
    """Split tokens whose tens are the token and whose ones the feature, of so many heads and features of a head.

    The tokens; their heads, right, by a view that lacks the transpose, and by a view whose last axes are exchanged,
    each (heads, tokens, head_dim); and the right heads merged without transposing back.
    """
    few = 10 * torch.arange(tokens)[:, None] + torch.arange(heads * head_dim)
    into_heads = few.view(tokens, heads, head_dim).transpose(0, 1)
    viewed = few.view(heads, tokens, head_dim)
    swapped = few.view(tokens, head_dim, heads).permute(2, 0, 1)
    return few, into_heads, viewed, swapped, into_heads.reshape(tokens, heads * head_dim)


def costs(width: int, tokens: int, counts: Sequence[int]) -> dict[int, tuple[int, int, int, int]]:
    """Count the costs of attention with each count of heads, as PyTorch's module computes it.

    By the count: the width of a slice, parameters, multiplications, and weights of attention.
    """
    by_count = {}
    for heads in counts:
        module = nn.MultiheadAttention(width, heads, batch_first=True, device="meta")
        x = torch.empty(1, tokens, width, device="meta")
        with FlopCounterMode(display=False) as counted:
            _, weights = module(x, x, x, average_attn_weights=False)
        multiplications = counted.get_total_flops() // 2  # a multiplication and an addition
        parameters = sum(each.numel() for each in module.parameters())
        by_count[heads] = (width // heads, parameters, multiplications, weights.numel())
    return by_count
