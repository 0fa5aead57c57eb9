"""What kinds of attention keep of a token: keys and values of every head, of shared heads, or a latent."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from unmasked import plot
from unmasked._table import Table
from unmasked.cache import KVCache
from unmasked.latent import LatentAttention

__all__ = ["bytes_per_token", "compared"]


def bytes_per_token(
    kinds: Mapping[str, int | None], *, layers: int, head_dim: int, dtype: torch.dtype
) -> dict[str, int]:
    """Say what a model keeps of a token, by the kind of its attention.

    Args:
        kinds: By its name, how many heads of keys and values it has; None for a latent of 512 features and 64 more for
            positions.
        layers: Layers, each of which has a cache.
        head_dim: Features of a head.
        dtype: Type of what is kept.

    Returns:
        The bytes by the same names.
    """
    return {
        kind: KVCache.bytes_per_token(heads, head_dim, num_layers=layers, dtype=dtype)
        if heads
        else LatentAttention.bytes_per_token(512, 64, num_layers=layers, dtype=dtype)
        for kind, heads in kinds.items()
    }


def compared(
    kinds: Mapping[str, int | None], kept: Mapping[str, int], *, layers: int, tokens: int, dtype: torch.dtype
) -> Table:
    """Tabulate what `bytes_per_token` gives.

    Args:
        kinds: By its name, how many heads of keys and values a kind has, or None.
        kept: By its name, the bytes that it keeps of a token.
        layers: Layers of the model.
        tokens: Tokens of the sequence.
        dtype: Type of what is kept.

    Returns:
        A row for each kind: its heads, the numbers of a token in a layer, its bytes in all layers, and the GiB of the
        sequence.
    """
    header = ["keys and values", "heads of them", "numbers in a layer", "bytes in all layers", "GiB of the sequence"]
    rows = {
        kind: [kinds[kind] or "none", each // layers // dtype.itemsize, each, each * tokens / 2**30]
        for kind, each in kept.items()
    }
    return plot.table(header, rows, ["{}", "{:,}", "{:,}", "{:.1f}"])
