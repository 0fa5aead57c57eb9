"""What a cache of keys and values takes, and what rounding makes of its steps."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from unmasked.cache import KVCache
from unmasked.causal import CausalSelfAttention

__all__ = ["Rounding", "rounding", "sizes"]


class Rounding(NamedTuple):
    """How far two ways to compute the same are apart, as a share of the size of what is right.

    Attributes:
        steps_from_whole: One token at a time, from the whole sequence at once.
        whole_from_exact: The whole sequence, from float64.
        steps_from_exact: One token at a time, from float64.
    """

    steps_from_whole: float
    whole_from_exact: float
    steps_from_exact: float


@torch.no_grad()
def rounding(layer: CausalSelfAttention, x: Tensor) -> dict[str, Rounding]:
    """Compare steps with a cache, the whole sequence, and the same layer and input in float64.

    Args:
        layer: Stays as it is; copies of it are rounded.
        x: (batch, tokens, features).

    Returns:
        What is found in float32, float16 and bfloat16, by their names.
    """
    batch, tokens, _ = x.shape
    found = {}
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        rounded, given = copy.deepcopy(layer).to(dtype), x.to(dtype)
        store = KVCache(batch, layer.num_kv_heads, tokens, layer.head_dim, dtype=dtype)
        steps = torch.cat([rounded(part, cache=store) for part in given.split(1, dim=1)], dim=1)
        whole = rounded(given)
        exact = rounded.double()(given.double())  # of the same rounded numbers
        shares = [
            ((one.double() - other.double()).square().mean().sqrt() / exact.square().mean().sqrt()).item()
            for one, other in ((steps, whole), (whole, exact), (steps, exact))
        ]
        found[str(dtype).removeprefix("torch.")] = Rounding(*shares)
    return found


def sizes(kv_heads: Sequence[int], *, tokens: int) -> dict[str, tuple[float, float]]:
    """Say what a model of 32 layers, with heads of 128 features in bfloat16, keeps of its tokens.

    Args:
        kv_heads: How many heads of keys it has, one number after another.
        tokens: How many tokens it keeps.

    Returns:
        For each number of heads the KiB of a token, and the GiB of all of them.
    """
    found = {}
    for heads in kv_heads:
        of_token = KVCache.bytes_per_token(heads, 128, num_layers=32, dtype=torch.bfloat16)
        found[f"{heads} head{'s' * (heads > 1)} of keys"] = of_token / 2**10, of_token * tokens / 2**30
    return found
