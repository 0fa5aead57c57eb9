"""The exercises of the page about several devices: what each rank adds, sees and sends.

The page's equation (41.1) says what one rank sends.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from unmasked.parallel import positions_of_rank, ring_bytes
from unmasked_lessons.exercises._check import draw, exercise, hold


@exercise("row-parallel", "What every rank gives is added up, and the bias once.")
def _row_parallel(answer: Callable[[Sequence[Tensor], Sequence[Tensor], Tensor], Tensor]) -> None:
    for ranks, shape, d_out in ((2, (5, 6), 4), (3, (2, 5, 12), 7), (1, (3, 4), 5)):
        context, weight, bias = draw(shape, (d_out, shape[-1]), (d_out,))
        product = context @ weight.T
        known = {
            "That is the bias, which every rank has added.": product + ranks * bias,
            "That is the bias, which nobody has added.": product,
            "It is the mean of the ranks' outputs, not their sum.": product / ranks + bias,
        }
        result = answer(list(context.chunk(ranks, dim=-1)), list(weight.chunk(ranks, dim=1)), bias)
        hold(result, product + bias, f"For {ranks} ranks", "the output", known)


@exercise("zigzag-block", "The ranks before give half of their keys, those behind see half of them.")
def _zigzag_block(answer: Callable[[int, int, int], int]) -> None:
    for ranks, rank, owner in ((n, rank, owner) for n in (1, 2, 3, 5) for rank in range(n) for owner in range(n)):
        queries, keys = (positions_of_rank(4 * ranks, rank=r, ranks=ranks) for r in (rank, owner))
        pairs = (queries[:, None] >= keys).unflatten(1, (2, 2)).unflatten(0, (2, 2))
        known = {"A rank sees its own beginning from its end, and each half sees itself.": rank == owner}
        where = f"Of {ranks} ranks, rank {rank} and the keys of rank {owner}:"
        hold(int(answer(rank, owner, ranks)), int(pairs.any(dim=3).any(dim=1).sum()), where, known=known)


@exercise("ring-traffic", "All keys and values visit every other rank.")
def _ring_traffic(answer: Callable[[int, int, int, int, int], int]) -> None:
    """Equation: (41.1)."""
    dtypes = {2: torch.bfloat16, 4: torch.float32}
    for sizes in ((2, 32, 8, 4, 4), (3, 60, 5, 2, 2), (1, 8, 4, 1, 4)):
        kv_heads, tokens, head_dim, ranks, itemsize = sizes
        one = ring_bytes(1, kv_heads, tokens, head_dim, ranks=ranks, dtype=dtypes[itemsize])
        known = {
            "That is what one rank sends.": one,
            "Keys are sent, and values, too.": ranks * one // 2,
            "Keys that have visited every other rank need not be sent home.": ranks > 1
            and ranks**2 * one // (ranks - 1),
        }
        where = f"For {kv_heads} heads of {head_dim} features, {tokens} tokens, {ranks} ranks and {itemsize} bytes"
        hold(answer(*sizes), ranks * one, f"{where} a number", known=known)
