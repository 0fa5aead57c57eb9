"""How a row of features is split into heads: right, and in two ways that only look right."""

import torch
from torch import Tensor


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
