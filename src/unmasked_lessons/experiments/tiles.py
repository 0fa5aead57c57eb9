"""The memory that attention takes with the whole table of scores, and with tiles of it."""

from collections.abc import Callable, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from unmasked.functional import attend
from unmasked.kernels import kernels_of
from unmasked.tiles import tiled_attention


def memory(q: Tensor, k: Tensor, v: Tensor, sizes: Sequence[int]) -> dict[str, list[float]]:
    """Measure the peak of memory of one call of attention, in MiB: with the whole table, with tiles, with a kernel.

    Each call takes the first tokens of query, key and value, as many as one of `sizes` says.
    """
    ways: dict[str, Callable[..., Any]] = {
        "whole table": lambda *qkv: attend(*qkv, implementation="eager"),
        "tiles of 64": tiled_attention,
        "fused kernel": F.scaled_dot_product_attention,
    }
    inputs = [[each[..., :size, :].contiguous() for each in (q, k, v)] for size in sizes]
    return {name: [kernels_of(way, *qkv).peak_bytes / 2**20 for qkv in inputs] for name, way in ways.items()}
