"""The decoder's layer: causal self-attention with one projection to query, key and value."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from unmasked import masks
from unmasked._checks import require_divides, require_positive
from unmasked._shapes import Bool, Float, Int
from unmasked.cache import KVCache
from unmasked.functional import Attention, attend
from unmasked.heads import merge_heads, split_heads

__all__ = ["CausalSelfAttention"]


class CausalSelfAttention(nn.Module):
    """Causal multi-head self-attention, as decoders run it: no token sees a later one.

    One layer projects to query, key and value, and the fused kernel masks the future by itself, so that no mask is
    stored, in the state_dict or elsewhere. Dropout in training leaves that kernel, on a CPU, as `attend` says.

    Args:
        d_in: features of the input.
        d_out: features of the output, all heads together.
        num_heads: must divide d_out; each head has d_out / num_heads features.
        num_kv_heads: fewer heads for keys and values, each shared by num_heads / num_kv_heads query heads.
        context_length: most tokens that the layer accepts; None, the default, for any number. Nothing is sized by it.
        dropout: probability with which a weight is dropped in training.
        rotary: turns queries and keys by their positions: ``rotary(x, positions)`` takes (batch, heads, tokens,
            head_dim) and positions, integers, (tokens,) or (batch, tokens), and returns what x becomes.
        qkv_bias: give the projection to query, key and value a bias.
        out_bias: give the output projection a bias.
        device: where the parameters live.
        dtype: their floating type.

    Raises:
        ValueError: num_heads does not divide d_out, num_kv_heads does not divide num_heads, or a size is not positive.

    References:
        Vaswani et al. (2017), sections 3.2.2 and 3.2.3. Shared heads: Ainslie et al. (2023), GQA, section 2.2.

    Examples:
        >>> layer = CausalSelfAttention(d_in=3, d_out=8, num_heads=4, num_kv_heads=2)
        >>> layer(torch.randn(5, 7, 3)).shape
        torch.Size([5, 7, 8])
        >>> [name for name in layer.state_dict()]
        ['qkv.weight', 'out_proj.weight', 'out_proj.bias']
    """

    def __init__(
        self,
        d_in: int,
        d_out: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        context_length: int | None = None,
        dropout: float = 0.0,
        rotary: Callable[[Tensor, Tensor], Tensor] | None = None,
        qkv_bias: bool = False,
        out_bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        require_positive(d_in=d_in, d_out=d_out, context_length=1 if context_length is None else context_length)
        require_divides("d_out", d_out, "num_heads", num_heads)
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        require_divides("num_heads", num_heads, "num_kv_heads", num_kv_heads)
        if not 0 <= dropout <= 1:
            raise ValueError(f"dropout is {dropout}; it is a probability in [0, 1]")
        self.d_in, self.d_out = d_in, d_out
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, d_out // num_heads
        self.context_length, self.dropout, self.rotary = context_length, dropout, rotary
        rows = (num_heads + 2 * num_kv_heads) * self.head_dim
        self.qkv = nn.Linear(d_in, rows, bias=qkv_bias, device=device, dtype=dtype)
        self.out_proj = nn.Linear(d_out, d_out, bias=out_bias, device=device, dtype=dtype)

    def forward(
        self,
        x: Float[Tensor, "*batch tokens d_in"],
        *,
        allowed: Bool[Tensor, "..."] | None = None,
        cache: KVCache | None = None,
        positions: Int[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "*batch tokens d_out"]:
        """Attend, by the fused kernel where it can be had.

        With a cache, x has the tokens that are new: the first ones (prefill), some more, or one. They see all tokens
        before them, and the cache takes in their keys and values. The outputs are those of all tokens at once. One
        token needs no mask and copies nothing that is stored; several after others need a mask of (tokens, keys).

        Args:
            x: (..., tokens, d_in); with a cache (batch, tokens, d_in).
            allowed: bool, broadcastable to (..., heads, tokens, tokens), to shut out more than the future: padding.
                With a cache the last axis has all tokens so far, the new ones included.
            cache: what `cache` makes, for this layer alone. If it has a window, the layer has it.
            positions: integers, (tokens,) or (batch, tokens), for rotary; counted from the first token of the cache by
                default.

        Returns:
            (..., tokens, d_out).

        Raises:
            ValueError: x is not (..., tokens, d_in), has more tokens than context_length, with those of the cache, or
                does not fit the cache; positions are given without rotary; ``allowed`` is not for all tokens so far.
        """
        context = self._attend(x, allowed, cache, positions, need_weights=False).context
        output: Tensor = self.out_proj(merge_heads(context))
        return output

    def cache(self, batch: int, max_tokens: int, *, window: int | None = None) -> KVCache:
        """Make an empty cache for this layer, where it lives; the arguments are those of `unmasked.KVCache`."""
        weight = self.qkv.weight
        sizes = batch, self.num_kv_heads, max_tokens, self.head_dim
        return KVCache(*sizes, dtype=weight.dtype, device=weight.device, window=window)

    def weights(
        self,
        x: Float[Tensor, "*batch tokens d_in"],
        *,
        allowed: Bool[Tensor, "..."] | None = None,
        cache: KVCache | None = None,
        positions: Int[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "*batch heads tokens keys"]:
        """Return every head's weights, by the eager implementation.

        Arguments as for `forward`. A cache stays as it is: ask before `forward`, which stores the tokens.

        Returns:
            (..., heads, tokens, keys): what `forward` averages the values with, but for dropout, which in training
            every call, of this method too, draws anew. The keys are the tokens of x, behind those of the cache that
            its window still has.
        """
        weights = self._attend(x, allowed, cache, positions, need_weights=True).weights
        assert weights is not None
        return weights

    def _attend(
        self, x: Tensor, allowed: Tensor | None, cache: KVCache | None, positions: Tensor | None, *, need_weights: bool
    ) -> Attention:
        if x.dim() < 2 or x.size(-1) != self.d_in:
            raise ValueError(f"x has shape {tuple(x.shape)}; this layer takes (..., tokens, {self.d_in})")
        past, tokens = 0 if cache is None else cache.length, x.size(-2)
        if self.context_length is not None and past + tokens > self.context_length:
            after = f" after {past} in the cache" if past else ""
            raise ValueError(
                f"x has {tokens} tokens{after}, more than context_length ({self.context_length}); shorten it, or make "
                "the layer with a larger context_length"
            )
        heads = [self.num_heads, self.num_kv_heads, self.num_kv_heads]
        # What Tensor.split calls, after more Python than a small layer takes for its products.
        query, key, value = split_heads(self.qkv(x), sum(heads)).split_with_sizes(heads, dim=-3)
        if self.rotary is not None:
            positions = torch.arange(past, past + tokens, device=x.device) if positions is None else positions
            query, key = self.rotary(query, positions), self.rotary(key, positions)
        elif positions is not None:
            raise ValueError(
                "positions are given, and this layer has no rotary to turn anything by them; make it with rotary=..., "
                "or add positions to x"
            )
        is_causal = True
        if cache is not None:
            total = past + tokens
            if allowed is not None and allowed.shape[-1:] not in ((1,), (total,)):
                raise ValueError(
                    f"allowed has shape {tuple(allowed.shape)}; its last axis must be the {total} tokens so far, those "
                    "of the cache and those of x"
                )
            key, value = (cache.peek if need_weights else cache.append)(key, value)
            keys = key.size(-2)
            if allowed is not None and keys < total and allowed.size(-1) == total:
                in_ring = tokens == 1 and not need_weights  # whose tokens do not stand in their order
                allowed = allowed[..., cache.positions] if in_ring else allowed[..., total - keys :]
            if cache.window is not None and tokens != 1 and total > cache.window:  # else nobody sees farther than it
                window = masks.sliding_window(tokens, keys, window=cache.window, device=x.device)
                allowed, is_causal = masks.combine(allowed, window), False
        return attend(
            query,
            key,
            value,
            allowed=allowed,
            is_causal=is_causal,
            dropout_p=self.dropout if self.training else 0.0,
            need_weights=need_weights,
        )

    def extra_repr(self) -> str:
        """Name the options that the submodules do not show."""
        return (
            f"num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}, dropout={self.dropout}, "
            f"context_length={self.context_length}"
        )
