"""The bytes that kinds of attention keep of a token: keys and values of every head, of shared heads, or a latent."""

from collections.abc import Mapping

import torch

from unmasked.cache import KVCache
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
