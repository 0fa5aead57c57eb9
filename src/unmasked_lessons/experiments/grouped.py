"""The bytes that kinds of attention keep of a token: keys and values of every head, of shared heads, or a latent."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from unmasked.cache import KVCache
from unmasked.functional import attend
from unmasked.latent import LatentAttention


def bytes_per_token(
    kinds: Mapping[str, int | None], *, layers: int, head_dim: int, dtype: torch.dtype
) -> dict[str, int]:
    """The bytes that a model keeps of a token, by the kind of its attention.

    A kind has so many heads of keys and values; with None it is a latent of 512 features and 64 more for positions.
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
    """How far causal attention is off, as a share of its size, for each kind of number and each way to share a scale.

    Values are kept in eight bits, then keys, then keys that are multiplied by ``uneven``, one factor a feature.
    """

    def off(key: Tensor, kept_key: Tensor, kept_value: Tensor) -> float:
        right, kept = (attend(query, *each, is_causal=True).context for each in ((key, value), (kept_key, kept_value)))
        return float((kept - right).norm() / right.norm())

    return {
        f"{kind.__name__}, {name}": [
            off(key, key, kind(value, axes)),
            off(key, kind(key, axes), value),
            off(key * uneven, kind(key * uneven, axes), value),
        ]
        for kind in kinds
        for name, axes in shared_by.items()
    }
