"""How a row of features is split into heads: right, and in two ways that only look right."""

from typing import NamedTuple

import torch
from torch import Tensor


class Splits(NamedTuple):
    """The features of some tokens, split and merged.

    Attributes:
        few: (tokens, heads * head_dim), the tens of a number are its token, the ones its feature.
        into_heads: (heads, tokens, head_dim), each head has its own features of every token.
        viewed: The same shape, by a view that lacks the transpose.
        swapped: The same shape, by a view whose last axes are exchanged.
        merged: (tokens, heads * head_dim), merged without transposing back.
    """

    few: Tensor
    into_heads: Tensor
    viewed: Tensor
    swapped: Tensor
    merged: Tensor


def splits(tokens: int, heads: int, head_dim: int) -> Splits:
    """Split tokens whose features say where they come from.

    Args:
        tokens: How many tokens.
        heads: How many heads.
        head_dim: Features of a head.

    Returns:
        The tokens, and what each way makes of them.
    """
    few = 10 * torch.arange(tokens)[:, None] + torch.arange(heads * head_dim)
    into_heads = few.view(tokens, heads, head_dim).transpose(0, 1)
    viewed = few.view(heads, tokens, head_dim)
    swapped = few.view(tokens, head_dim, heads).permute(2, 0, 1)
    return Splits(few, into_heads, viewed, swapped, into_heads.reshape(tokens, heads * head_dim))
