"""The bytes that a cache keeps of a token: keys and values of every head, of shared heads, or a latent."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from unmasked.cache import KVCache
from unmasked.functional import attend
from unmasked.latent import LatentAttention


def bytes_per_token(
    kinds: Mapping[str, int | None], *, layers: int, head_dim: int, dtype: torch.dtype
) -> dict[str, int]:
    """Return the bytes that a model's cache keeps of a token, by the kind of its attention.

    Args:
        kinds: For each kind, how many heads of keys and values it keeps; None for a latent of 512 features, and 64 more
            for positions.
        layers: How many layers keep them.
        head_dim: How many features a head has.
        dtype: What numbers are kept in.
    """
    return {
        kind: KVCache.bytes_per_token(heads, head_dim, num_layers=layers, dtype=dtype)
        if heads
        else LatentAttention.bytes_per_token(512, 64, num_layers=layers, dtype=dtype)
        for kind, heads in kinds.items()
    }


def in_eight_bits(
    kinds: tuple[Callable[[Tensor, tuple[int, ...]], Tensor], ...],
    shared_by: Mapping[str, tuple[int, ...]],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    uneven: Tensor,
) -> dict[str, list[float]]:
    """Measure by how much eight bits change causal attention, for each kind of number and each way to share a scale.

    Args:
        kinds: Functions that round a tensor to a kind of eight-bit number, with one scale along the given axes.
        shared_by: The axes along which a scale is shared, by a name.
        query: (batch, heads, tokens, head_dim).
        key: (batch, heads, tokens, head_dim).
        value: (batch, heads, tokens, head_dim).
        uneven: A factor for each feature.

    Returns:
        By the kind and the way, the norm of the context's error as a share of the context's norm: with the values in
        eight bits, with the keys, and with keys that are multiplied by ``uneven``.
    """

    def error(key: Tensor, kept_key: Tensor, kept_value: Tensor) -> float:
        right, kept = (attend(query, *each, is_causal=True).context for each in ((key, value), (kept_key, kept_value)))
        return float((kept - right).norm() / right.norm())

    return {
        f"{kind.__name__}, {name}": [
            error(key, key, kind(value, axes)),
            error(key, kind(key, axes), value),
            error(key * uneven, kind(key * uneven, axes), value),
        ]
        for kind in kinds
        for name, axes in shared_by.items()
    }
