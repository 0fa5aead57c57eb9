"""A cache of keys and values: its size, the errors of rounding, and the errors of mistakes."""

import copy
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from unmasked.cache import KVCache
from unmasked.causal import CausalSelfAttention
from unmasked.heads import merge_heads, split_heads


class Rounding(NamedTuple):
    """The differences between ways to compute the same, as shares of the size of the right output."""

    steps_from_whole: float  # one token at a time, from the whole sequence at once
    whole_from_exact: float  # the whole sequence, from float64
    steps_from_exact: float  # one token at a time, from float64


@torch.no_grad()
def rounding(layer: CausalSelfAttention, x: Tensor) -> dict[str, Rounding]:
    """Compare steps with a cache, the whole sequence, and the same layer and input in float64.

    Compared in float32, float16 and bfloat16, by their names. The layer stays as it is; copies of it are rounded.
    """
    batch, tokens, _ = x.shape
    by_dtype = {}
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        rounded, inputs = copy.deepcopy(layer).to(dtype), x.to(dtype)
        store = rounded.cache(batch, tokens)
        steps = torch.cat([rounded(part, cache=store) for part in inputs.split(1, dim=1)], dim=1)
        whole = rounded(inputs)
        exact = rounded.double()(inputs.double())  # of the same rounded numbers
        shares = [
            ((one.double() - other.double()).square().mean().sqrt() / exact.square().mean().sqrt()).item()
            for one, other in ((steps, whole), (whole, exact), (steps, exact))
        ]
        by_dtype[str(dtype).removeprefix("torch.")] = Rounding(*shares)
    return by_dtype


def sizes(kv_heads: Sequence[int], *, tokens: int) -> dict[str, tuple[float, float]]:
    """Return the size of a cache of 32 layers, with heads of 128 features in bfloat16.

    By the count of heads of keys, the KiB of a token, and the GiB of all tokens.
    """
    by_heads = {}
    for heads in kv_heads:
        of_token = KVCache.bytes_per_token(heads, 128, num_layers=32, dtype=torch.bfloat16)
        by_heads[f"{heads} head{'s' * (heads > 1)} of keys"] = of_token / 2**10, of_token * tokens / 2**30
    return by_heads


class ByHand:
    """A rotary layer with a cache that is written by hand, and one mistake.

    With "top left" the causal mask is aligned at the first key, with "memory" unused memory is read, which is NaN, and
    with "positions" each part begins at position zero. Any other name is no mistake.
    """

    def __init__(self, layer: CausalSelfAttention, mistake: str, *, batch: int, max_tokens: int) -> None:
        self.layer, self.mistake, self.done = layer, mistake, 0
        free = torch.nan if mistake == "memory" else 0.0  # as torch.empty may find it
        size = (batch, layer.num_kv_heads, max_tokens, layer.head_dim)
        self.keys, self.values = (torch.full(size, free, dtype=layer.qkv.weight.dtype) for _ in range(2))

    @torch.no_grad()
    def __call__(self, part: Tensor) -> Tensor:
        """Attend from the next tokens, (batch, tokens, features), to all so far."""
        layer, tokens, start = self.layer, part.size(1), self.done
        self.done = end = start + tokens
        counts = [layer.num_heads, layer.num_kv_heads, layer.num_kv_heads]
        q, k, v = split_heads(layer.qkv(part), sum(counts)).split(counts, dim=1)
        at = torch.arange(tokens) + (0 if self.mistake == "positions" else start)
        assert layer.rotary is not None
        q, k = layer.rotary(q, at), layer.rotary(k, at)
        self.keys[:, :, start:end], self.values[:, :, start:end] = k, v
        seen = self.keys.size(2) if self.mistake == "memory" else end
        mask = torch.ones(tokens, seen, dtype=torch.bool).tril(0 if self.mistake == "top left" else start)
        keys, values = self.keys[:, :, :seen], self.values[:, :, :seen]
        output: Tensor = layer.out_proj(
            merge_heads(F.scaled_dot_product_attention(q, keys, values, mask, enable_gqa=True))
        )
        return output


@torch.no_grad()
def by_hand(layer: CausalSelfAttention, x: Tensor, lengths: Sequence[int], mistake: str) -> tuple[Tensor, Tensor]:
    """Hand a layer its tokens in parts of these lengths, with a mistake in its cache; return both outputs.

    The first is of the mistake, the second is right. The mistake is one of `ByHand`, or "beams": after the first part
    the sequences change places, the keys alone.
    """
    cached, outputs, first = ByHand(layer, mistake, batch=len(x), max_tokens=x.size(1)), [], lengths[0]
    for part in x.split([*lengths], dim=1):
        outputs.append(cached(part))
        if mistake == "beams" and cached.done == first:
            cached.keys = cached.keys.flip(0)  # and the values stay
    expected = layer(x)
    if mistake == "beams":
        goes_on = layer(torch.cat([x.flip(0)[:, :first], x[:, first:]], dim=1))
        expected = torch.cat([expected[:, :first], goes_on[:, first:]], dim=1)
    return torch.cat(outputs, dim=1), expected


def shares(outputs: Tensor, expected: Tensor, lengths: Sequence[int]) -> list[float]:
    """Return the error of each part of a sequence, as a share of the size of all that is expected."""
    off = (outputs - expected).square().split([*lengths], dim=1)
    return [(part.mean() / expected.square().mean()).sqrt().item() for part in off]
