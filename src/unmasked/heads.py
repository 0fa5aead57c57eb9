"""One matrix, many heads: how features become heads and heads features again.

The five projections compute the same thing from per-head matrices stacked as (heads, in, head_dim); the last two are
forms that models run.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from unmasked._checks import checked, require_axes, require_divides, require_positive
from unmasked._shapes import Float, Shaped

__all__ = [
    "fused_qkv",
    "merge_heads",
    "project_bmm",
    "project_einsum",
    "project_linear",
    "project_loop",
    "split_heads",
]


def split_heads(
    x: Shaped[Tensor, "*batch tokens embed_dim"], num_heads: int
) -> Shaped[Tensor, "*batch {num_heads} tokens head_dim"]:
    r"""Deal the features out to the heads: head h takes features h * head_dim to (h + 1) * head_dim of every token.

    Equation:
        $q_{h, t, j} = x_{t,\, h \cdot d_k + j} \qquad h = 0, \dots, H - 1$ (6.2)

    Equation: (6.3)

    Args:
        x: (..., tokens, embed_dim).
        num_heads: must divide embed_dim.

    Returns:
        A view, (..., num_heads, tokens, head_dim).

    Raises:
        ValueError: num_heads does not divide embed_dim, or x has no axis of tokens.

    References:
        Vaswani et al. (2017), section 3.2.2.

    Examples:
        >>> split_heads(torch.arange(12.0).view(2, 6), 3)  # 2 tokens of 6 features, 3 heads of 2
        tensor([[[ 0.,  1.],
                 [ 6.,  7.]],
                [[ 2.,  3.],
                 [ 8.,  9.]],
                [[ 4.,  5.],
                 [10., 11.]]])
    """
    require_axes("x", x, "tokens", "embed_dim")
    embed_dim = x.size(-1)
    require_divides("embed_dim", embed_dim, "num_heads", num_heads)
    heads: Tensor = x.unflatten(-1, (num_heads, embed_dim // num_heads))  # batch tokens heads head_dim
    return heads.transpose(-2, -3)


def merge_heads(x: Shaped[Tensor, "*batch heads tokens head_dim"]) -> Shaped[Tensor, "*batch tokens embed_dim"]:
    r"""Lay the heads side by side again: the inverse of `split_heads`.

    Equation:
        $M_{t,\, h \cdot d_k + j} = O_{h, t, j} \qquad h = 0, \dots, H - 1$ (8.3)

    The axes are transposed back before they are joined. A bare reshape gives the right shape too, but fills each
    token's row with the features of several.

    Args:
        x: (..., heads, tokens, head_dim).

    Returns:
        (..., tokens, heads * head_dim).

    Raises:
        ValueError: x has fewer than three axes.

    References:
        Vaswani et al. (2017), section 3.2.2.

    Examples:
        >>> x = torch.randn(4, 6)
        >>> torch.equal(merge_heads(split_heads(x, 3)), x)
        True
    """
    require_axes("x", x, "heads", "tokens", "head_dim")
    return x.transpose(-2, -3).flatten(-2)  # batch tokens heads·head_dim


@checked
def project_loop(
    x: Float[Tensor, "*batch tokens in_dim"], stacked: Float[Tensor, "heads in_dim head_dim"]
) -> Float[Tensor, "*batch heads tokens head_dim"]:
    r"""Project to every head in a loop: the definition that the other projections are held to.

    Equation:
        $q_{h, t, j} = \sum_i x_{t, i} \, w_{h, i, j}$ (6.1)

    Args:
        x: (..., tokens, in_dim).
        stacked: (heads, in_dim, head_dim), one matrix a head.

    Returns:
        (..., heads, tokens, head_dim).

    Raises:
        ValueError: there are no heads.

    Examples:
        >>> project_loop(torch.randn(5, 3), torch.randn(2, 3, 4)).shape
        torch.Size([2, 5, 4])
    """
    require_positive(num_heads=stacked.size(0))
    return torch.stack([x @ matrix for matrix in stacked], dim=-3)


@checked
def project_bmm(
    x: Float[Tensor, "*batch tokens in_dim"], stacked: Float[Tensor, "heads in_dim head_dim"]
) -> Float[Tensor, "*batch heads tokens head_dim"]:
    """Project to every head with one batched product; arguments as for `project_loop`.

    Examples:
        >>> x, stacked = torch.randn(7, 5, 3), torch.randn(2, 3, 4)
        >>> torch.allclose(project_bmm(x, stacked), project_loop(x, stacked), atol=1e-6)
        True
    """
    require_positive(num_heads=stacked.size(0))
    return x.unsqueeze(-3) @ stacked


@checked
def project_einsum(
    x: Float[Tensor, "*batch tokens in_dim"], stacked: Float[Tensor, "heads in_dim head_dim"]
) -> Float[Tensor, "*batch heads tokens head_dim"]:
    """Project to every head with an einsum that names the axes; arguments as for `project_loop`.

    Examples:
        >>> x, stacked = torch.randn(7, 5, 3), torch.randn(2, 3, 4)
        >>> torch.allclose(project_einsum(x, stacked), project_loop(x, stacked), atol=1e-6)
        True
    """
    require_positive(num_heads=stacked.size(0))
    return torch.einsum("...ti,hid->...htd", x, stacked)


@checked
def project_linear(
    x: Float[Tensor, "*batch tokens in_dim"], stacked: Float[Tensor, "heads in_dim head_dim"]
) -> Float[Tensor, "*batch heads tokens head_dim"]:
    """Project to every head with one large matrix, as nn.Linear keeps it, then split, as most models do.

    Arguments as for `project_loop`.

    Examples:
        >>> x, stacked = torch.randn(7, 5, 3), torch.randn(2, 3, 4)
        >>> torch.allclose(project_linear(x, stacked), project_loop(x, stacked), atol=1e-6)
        True
    """
    require_positive(num_heads=stacked.size(0))
    return split_heads(F.linear(x, stacked.mT.flatten(0, 1)), stacked.size(0))


@checked
def fused_qkv(
    x: Float[Tensor, "*batch tokens in_dim"],
    weight: Float[Tensor, "rows in_dim"],
    bias: Float[Tensor, "rows"] | None = None,
    *,
    num_heads: int,
) -> tuple[
    Float[Tensor, "*batch heads tokens head_dim"],
    Float[Tensor, "*batch heads tokens head_dim"],
    Float[Tensor, "*batch heads tokens head_dim"],
]:
    """Project to query, key and value with one layer whose rows go head by head: q, k, v of one, then of the next.

    The input may be wider or narrower than the heads together. Rows packed as all of q, all of k, all of v, as
    nn.MultiheadAttention keeps them, have the same shape and give wrong values here: convert them with
    `unmasked.layouts.convert`.

    Args:
        x: (..., tokens, in_dim).
        weight: (heads * 3 * head_dim, in_dim).
        bias: (heads * 3 * head_dim,) or None.
        num_heads: number of heads; three times it must divide the rows.

    Returns:
        query, key and value, each (..., heads, tokens, head_dim).

    Raises:
        ValueError: the rows are not num_heads times three equal parts.

    Examples:
        >>> query, key, value = fused_qkv(torch.randn(7, 5, 10), torch.randn(2 * 3 * 4, 10), num_heads=2)
        >>> query.shape
        torch.Size([7, 2, 5, 4])
    """
    require_positive(num_heads=num_heads)
    if weight.size(0) % (3 * num_heads):
        raise ValueError(
            f"weight has {weight.size(0)} rows; query, key and value of num_heads={num_heads} need a multiple "
            f"of {3 * num_heads}"
        )
    query, key, value = split_heads(F.linear(x, weight, bias), num_heads).chunk(3, dim=-1)
    return query, key, value
