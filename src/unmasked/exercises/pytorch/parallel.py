"""The exercises of the page about several devices: what each rank adds, sees and sends.

The page's equation (41.1) says what one rank sends.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from unmasked.exercises._check import Wrong, exercise
from unmasked.parallel import positions_of_rank, ring_bytes

PAGE = "pytorch/parallel"


@exercise("row-parallel", page=PAGE, task="What every rank gives is added up, and the bias once.")
def row_parallel(answer: Callable[[Sequence[Tensor], Sequence[Tensor], Tensor], Tensor]) -> None:
    """Hold a function of the ranks' contexts and columns to the output of the whole layer."""
    generator = torch.Generator().manual_seed(0)
    for ranks, shape, d_out in ((2, (5, 6), 4), (3, (2, 5, 12), 7), (1, (3, 4), 5)):
        context = torch.randn(shape, generator=generator, dtype=torch.float64)
        weight = torch.randn(d_out, shape[-1], generator=generator, dtype=torch.float64)
        bias = torch.randn(d_out, generator=generator, dtype=torch.float64)
        given = answer(list(context.chunk(ranks, dim=-1)), list(weight.chunk(ranks, dim=1)), bias)
        right = context @ weight.T + bias
        if not isinstance(given, Tensor) or given.shape != right.shape:
            what = tuple(given.shape) if isinstance(given, Tensor) else type(given).__name__
            raise Wrong(f"For {ranks} ranks it gives {what}; it should be a tensor of shape {tuple(right.shape)}.")
        given = given.detach().to(right)
        if torch.allclose(given, right, atol=1e-6):
            continue
        off = (given - right).abs().max().item()
        told = f"For {ranks} ranks the output is off by up to {off:.2f}."
        if torch.allclose(given, right + (ranks - 1) * bias, atol=1e-6):
            raise Wrong(f"{told} That is the bias, which every rank has added.")
        if torch.allclose(given, right - bias, atol=1e-6):
            raise Wrong(f"{told} That is the bias, which nobody has added.")
        if torch.allclose(given, context @ weight.T / ranks + bias, atol=1e-6):
            raise Wrong(f"{told} It is the mean of the ranks' outputs, not their sum.")
        raise Wrong(told)


@exercise("zigzag-block", page=PAGE, task="The ranks before give half of their keys, those behind see half of them.")
def zigzag_block(answer: Callable[[int, int, int], int]) -> None:
    """Hold a function of two ranks to how many quarters of their block have pairs that a causal mask allows."""
    for ranks in (1, 2, 3, 5):
        for rank in range(ranks):
            for owner in range(ranks):
                queries, keys = (positions_of_rank(4 * ranks, rank=r, ranks=ranks) for r in (rank, owner))
                pairs = (queries[:, None] >= keys).unflatten(1, (2, 2)).unflatten(0, (2, 2))
                right = int(pairs.any(dim=3).any(dim=1).sum())
                given = int(answer(rank, owner, ranks))
                if given == right:
                    continue
                told = (
                    f"Of {ranks} ranks, rank {rank} and the keys of rank {owner}: it is {given}; it should be {right}."
                )
                if rank == owner:
                    told += " A rank sees its own beginning from its end, and each half sees itself."
                raise Wrong(told)


@exercise("ring-traffic", page=PAGE, task="All keys and values visit every other rank.")
def ring_traffic(answer: Callable[[int, int, int, int, int], int]) -> None:
    """Hold a function of sizes to the bytes that all ranks of a ring send.

    Equation: (41.1)
    """
    dtypes = {2: torch.bfloat16, 4: torch.float32}
    for kv_heads, tokens, head_dim, ranks, itemsize in ((2, 32, 8, 4, 4), (3, 60, 5, 2, 2), (1, 8, 4, 1, 4)):
        one = ring_bytes(1, kv_heads, tokens, head_dim, ranks=ranks, dtype=dtypes[itemsize])
        given = answer(kv_heads, tokens, head_dim, ranks, itemsize)
        if given == ranks * one:
            continue
        told = (
            f"For {kv_heads} heads of {head_dim} features, {tokens} tokens, {ranks} ranks and {itemsize} bytes a "
            f"number it is {given}; it should be {ranks * one}."
        )
        if given == one:
            raise Wrong(f"{told} That is what one rank sends.")
        if 2 * given == ranks * one:
            raise Wrong(f"{told} Keys are sent, and values, too.")
        if given * (ranks - 1) == ranks * one * ranks:
            raise Wrong(f"{told} Keys that have visited every other rank need not be sent home.")
        raise Wrong(told)
