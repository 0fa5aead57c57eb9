"""The work of each rank of a ring, and the bytes that it sends."""

from collections.abc import Sequence

import torch
from torch import Tensor

from unmasked.parallel import head_bytes, positions_of_rank, ring_bytes
from unmasked.parallel.ring import RingLayout


def pairs(tokens: int, ranks: int) -> dict[str, Tensor]:
    """Count the scores, one for a query and a key, that each rank of a causal ring needs at each step.

    Returns:
        (ranks, steps), by the layout of the ring.
    """
    layouts: tuple[RingLayout, ...] = ("contiguous", "zigzag", "striped")
    counts: dict[str, Tensor] = {}
    for layout in layouts:
        positions = [positions_of_rank(tokens, rank=rank, ranks=ranks, layout=layout) for rank in range(ranks)]
        counts[layout] = torch.tensor(
            [[(own[:, None] >= positions[rank - step]).sum() for step in range(ranks)]
             for rank, own in enumerate(positions)]
        )  # fmt: skip
    return counts


def sent(lengths: Sequence[int], *, kv_heads: int, head_dim: int, width: int, ranks: int) -> dict[str, list[float]]:
    """Return the MiB that a rank sends in one forward pass of a layer in bfloat16, by the count of tokens.

    First stand those of a ring, then those of the sum that ends a layer whose heads are computed in parallel.
    """
    bfloat16 = torch.bfloat16
    return {
        f"{tokens:,}": [
            ring_bytes(1, kv_heads, tokens, head_dim, ranks=ranks, dtype=bfloat16) / 2**20,
            head_bytes(1, tokens, width, width, dtype=bfloat16) / 2**20,
        ]
        for tokens in lengths
    }
