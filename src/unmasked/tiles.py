"""Attention without the (queries, keys) matrix: online softmax over tiles of keys, and merging the results of parts.

It computes as a fused kernel does, in lines that can be read: for each query, the maximum and the sum of the
exponentials of the scores seen so far, and the weighted sum of the values. A later score that is larger only rescales
the two sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from unmasked._arguments import _check
from unmasked._checks import checked, flag, require_beside, size, tensor
from unmasked._shapes import Bool, Float
from unmasked.functional import _scale, _shared

__all__ = ["Part", "merge", "tiled_attention"]


class Part(NamedTuple):
    """The context of some of the keys, and the number by which it is merged with that of the others.

    Attributes:
        context: (..., queries, value_dim), the averages of these values; zero where a query sees none of these keys.
        logsumexp: (..., queries), the logarithm of the sum of the exponentials of the scores; -inf there.
    """

    context: Tensor
    logsumexp: Tensor


def tiled_attention(
    query: Float[Tensor, "*batch queries head_dim"],
    key: Float[Tensor, "*kv_batch keys head_dim"],
    value: Float[Tensor, "*kv_batch keys value_dim"],
    *,
    allowed: Bool[Tensor, "..."] | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    tile: int = 64,
) -> Part:
    """Attend to the keys a tile at a time, and hold no more than (..., queries, tile) scores at once.

    Equation: (10.1)

    The context is that of `unmasked.attend`, rows that see nothing included. This function is to be read: the loop over
    the tiles is Python's, and on a CPU it takes several times as long as the fused kernel, as
    tests/benchmarks/attention.py measures. A kernel deals out the queries, too, so that a tile of queries and keys fits
    into fast memory, and skips the tiles that lie in the future.

    Args:
        query: (..., heads, queries, head_dim), floating; the heads axis may be left out.
        key: (..., kv_heads, keys, head_dim); kv_heads must divide heads.
        value: (..., kv_heads, keys, value_dim).
        allowed: bool, broadcastable to (..., heads, queries, keys); True where a query may see a key.
        is_causal: a query sees no later key; the last query is aligned with the last key.
        scale: the factor of the dot products; one over sqrt(head_dim) by default.
        tile: number of keys that are looked at together, one or more.

    Returns:
        Part(context, logsumexp): (..., heads, queries, value_dim) in the query's dtype, and (..., heads, queries) in
        float32 or wider.

    Raises:
        TypeError: a dtype does not fit.
        ValueError: a shape does not fit, or tile is not positive.

    References:
        Milakov and Gimelshein (2018), Online normalizer calculation for softmax, algorithm 3. Dao et al. (2022),
        FlashAttention, algorithm 1.

    Examples:
        >>> query, key, value = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 9, 4), torch.randn(2, 3, 9, 4)
        >>> context, logsumexp = tiled_attention(query, key, value, is_causal=True, tile=2)
        >>> context.shape, logsumexp.shape
        (torch.Size([2, 3, 5, 4]), torch.Size([2, 3, 5]))
        >>> blind = tiled_attention(query, key, value, allowed=torch.tensor(False))
        >>> blind.context.abs().max(), blind.logsumexp.max()
        (tensor(0.), tensor(-inf))
    """
    _check(query, key, value, allowed=allowed)
    flag("is_causal", is_causal)
    size("tile", tile)
    dtype = torch.promote_types(query.dtype, torch.float32)
    queries, keys = query.size(-2), key.size(-2)
    q = query.to(dtype) * _scale(query, scale)
    newest = torch.arange(keys - queries, keys, device=q.device)[:, None]  # the last key that a causal query sees

    largest = q.new_full((*q.shape[:-1], 1), -math.inf)
    total = torch.zeros_like(largest)  # of the exponentials, measured from the largest score so far
    summed = q.new_zeros(*q.shape[:-1], value.size(-1))  # of the values, by the same exponentials
    if not keys:  # nothing reaches the context, and still it is one of these, with gradients of zero
        summed = summed + sum(x[..., :0].sum() for x in (q, key.to(dtype), value.to(dtype)))
    for start in range(0, keys, tile):
        k, v = (_shared(x[..., start : start + tile, :].to(dtype), query) for x in (key, value))
        scores = q @ k.mT  # ... queries tile
        if allowed is not None:
            scores = scores.masked_fill(
                ~allowed.expand(*allowed.shape[:-1], keys)[..., start : start + tile], -math.inf
            )
        if is_causal:
            positions = torch.arange(start, start + k.size(-2), device=q.device)
            scores = scores.masked_fill(positions > newest, -math.inf)
        before, largest = largest, torch.maximum(largest, scores.detach().amax(-1, keepdim=True))
        # A row that has seen nothing yet is measured from 0: -inf from -inf would be NaN.
        origin = largest.masked_fill(largest == -math.inf, 0.0)
        powers, rescaled = torch.exp(scores - origin), torch.exp(before - origin)
        total = total * rescaled + powers.sum(-1, keepdim=True)
        summed = summed * rescaled + powers @ v
    total = total.masked_fill(largest == -math.inf, 1.0)  # a blind row: 0 / 1, and -inf + log(1)
    return Part((summed / total).to(query.dtype), (largest + total.log()).squeeze(-1))


@checked
def merge(parts: Sequence[tuple[Tensor, Tensor]]) -> Part:
    """Merge the results of attention to disjoint parts of the keys into attention to all of them.

    Equation: (10.2)

    The share of a part in a query's sum of exponentials is exp(its logsumexp - the logsumexp of all), and the contexts
    are averaged by these shares.

    Args:
        parts: (context, logsumexp) of each part, (..., queries, value_dim) and (..., queries), as `tiled_attention`
            returns them, or an earlier merge. Best in float32: a 16-bit context is rounded at every merge.

    Returns:
        Part(context, logsumexp) of all keys together, with the shapes of each part.

    Raises:
        ValueError: there is no part, or the shapes or the devices of the parts differ.

    References:
        Dao et al. (2022), FlashAttention, section 3.1: the softmax of a vector in two parts.

    Examples:
        >>> query, key, value = torch.randn(5, 4), torch.randn(9, 4), torch.randn(9, 4)
        >>> halves = slice(0, 2), slice(2, 9)
        >>> parts = [tiled_attention(query, key[at], value[at]) for at in halves]
        >>> torch.allclose(merge(parts).context, tiled_attention(query, key, value).context, atol=1e-6)
        True
    """
    if not parts:
        raise ValueError("parts is empty; give at least one pair (context, logsumexp)")
    for pair in parts:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(f"parts holds a {type(pair).__name__}; give pairs (context, logsumexp)")
        tensor("parts", pair[0], "Float")
        tensor("parts", pair[1], "Float")
    require_beside(**{f"parts[{n}][{i}]": x for n, part in enumerate(parts) for i, x in enumerate(part)})
    shapes = {(tuple(context.shape), tuple(logsumexp.shape)) for context, logsumexp in parts}
    if len(shapes) > 1 or any(context[:-1] != logsumexp for context, logsumexp in shapes):
        shown = "; ".join(f"{context} with {logsumexp}" for context, logsumexp in sorted(shapes))
        raise ValueError(
            f"parts have shapes {shown}; every part needs a context (..., queries, value_dim) with a logsumexp "
            "(..., queries), the same for all"
        )
    logsumexps = torch.stack([logsumexp for _, logsumexp in parts])  # parts ... queries
    blind = (logsumexps == -math.inf).all(0)
    whole = logsumexps.masked_fill(blind, 0.0).logsumexp(0)
    shares = torch.exp(logsumexps - whole).unsqueeze(-1)  # a blind row has none: all are 0
    contexts = torch.stack([context for context, _ in parts])  # parts ... queries value_dim
    return Part((shares * contexts).sum(0).to(contexts.dtype), whole.masked_fill(blind, -math.inf))
