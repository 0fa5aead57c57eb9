"""The decoder's layer: causal self-attention with one projection to query, key and value."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from unmasked._arguments import _check
from unmasked._checks import flag, require_divides, require_positive
from unmasked._layers import (
    refuse_script,
    require_floating,
    require_input,
    require_options,
    require_positions,
    require_room,
    require_rotary,
    turned,
)
from unmasked._shapes import Bool, Float, Int
from unmasked.cache import KVCache
from unmasked.functional import Attention, _attend
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
            head_dim) and positions, integers, (tokens,) or (batch, tokens), and returns x, turned.
        scale: the factor of the dot products; 1 / sqrt(head_dim) by default. Configs of Granite call it
            attention_multiplier; Gemma 2's and 3's have its inverse square, query_pre_attn_scalar.
        softcap: c > 0 bounds the scores, c * tanh(scores / c), as Gemma 2's attn_logit_softcapping. With it the layer
            leaves the fused kernel, and holds a matrix of (queries, keys) for each head.
        sinks: give each head a learned score more in its softmax, which belongs to no key, as gpt-oss has it: the
            parameter ``sinks``, (num_heads,), zeros at first.
        qkv_bias: give the projection to query, key and value a bias.
        out_bias: give the output projection a bias.
        device: where the parameters live.
        dtype: their floating type.

    Raises:
        TypeError: an option is of another kind: a flag that is no bool, an integer dtype, a rotary that is not called.
        ValueError: num_heads does not divide d_out, num_kv_heads does not divide num_heads, or a number is out of its
            range.

    References:
        Vaswani et al. (2017), sections 3.2.2 and 3.2.3. Shared heads: Ainslie et al. (2023), GQA, section 2.2.
        Soft-cap: Gemma Team (2024), Gemma 2, section 2. Sinks: Xiao et al. (2024), section 3.3.

    Examples:
        >>> layer = CausalSelfAttention(d_in=3, d_out=8, num_heads=4, num_kv_heads=2)
        >>> layer(torch.randn(5, 7, 3)).shape
        torch.Size([5, 7, 8])
        >>> [name for name in layer.state_dict()]
        ['qkv.weight', 'out_proj.weight', 'out_proj.bias']
        >>> options = {"scale": 0.25, "softcap": 50.0, "sinks": True}
        >>> capped = CausalSelfAttention(3, 8, num_heads=4, **options)
        >>> bool((capped.weights(torch.randn(5, 7, 3)).sum(-1) < 1).all())
        True
    """

    sinks: Tensor | None

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
        scale: float | None = None,
        softcap: float | None = None,
        sinks: bool = False,
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
        require_options(dropout=dropout, scale=scale, softcap=softcap)
        require_rotary(rotary)
        require_floating(dtype, device)
        for name, value in (("sinks", sinks), ("qkv_bias", qkv_bias), ("out_bias", out_bias)):
            flag(name, value)
        self.d_in, self.d_out = d_in, d_out
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, d_out // num_heads
        self.context_length, self.dropout, self.rotary = context_length, dropout, rotary
        self.scale, self.softcap = scale, softcap
        rows = (num_heads + 2 * num_kv_heads) * self.head_dim
        self.qkv = nn.Linear(d_in, rows, bias=qkv_bias, device=device, dtype=dtype)
        self.out_proj = nn.Linear(d_out, d_out, bias=out_bias, device=device, dtype=dtype)
        zeros = nn.Parameter(torch.zeros(num_heads, device=device, dtype=dtype)) if sinks else None
        self.register_parameter("sinks", zeros)

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
            cache: made by `cache`, for this layer alone. If it has a window, the layer has it.
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
            (..., heads, tokens, keys): those by which `forward` averages the values, but for dropout, which in training
            every call, of this method too, draws anew. The keys are the tokens of x, behind those of the cache that
            its window still has.
        """
        weights = self._attend(x, allowed, cache, positions, need_weights=True).weights
        assert weights is not None
        return weights

    __prepare_scriptable__ = refuse_script

    def _attend(
        self, x: Tensor, allowed: Tensor | None, cache: KVCache | None, positions: Tensor | None, *, need_weights: bool
    ) -> Attention:
        qkv, dropout, sinks = self.qkv, self.dropout if self.training else 0.0, self.sinks
        require_input(x, self.d_in, qkv.weight)
        require_options(scale=self.scale, softcap=self.softcap, dropout=dropout)
        past, tokens = 0, x.size(-2)
        if cache is not None:
            if not isinstance(cache, KVCache):
                raise TypeError(f"cache is a {type(cache).__name__}; make one with layer.cache(batch, max_tokens)")
            past = cache.length
        require_room(tokens, past, self.context_length)
        heads, halves = [self.num_heads, 2 * self.num_kv_heads], [self.num_kv_heads] * 2
        # Tensor.split and chunk call it, after more Python than a small layer takes for its products.
        query, both = split_heads(qkv(x), sum(heads)).split_with_sizes(heads, dim=-3)
        if cache is None or self.rotary is not None:
            key, value = both.split_with_sizes(halves, dim=-3)
        if positions is not None:
            require_positions(positions, x, self.rotary)
        if self.rotary is not None:
            if positions is None:
                positions = torch.arange(tokens, device=x.device) if cache is None else cache._positions(tokens)
            query, key = (turned(self.rotary, each, positions) for each in (query, key))
            both = both if cache is None else torch.cat([key, value], dim=-3)
        is_causal = True
        if cache is not None:
            key, value = (cache._peek if need_weights else cache._seen)(both)
            allowed, is_causal = cache._masked(allowed, tokens, key.size(-2), in_order=need_weights)
        if allowed is not None or sinks is not None:  # all else was made here, or is checked by now
            _check(query, key, value, allowed=allowed, sinks=sinks)
        if cache is not None and not need_weights:
            cache._write(both)
        return _attend(
            query,
            key,
            value,
            allowed=allowed,
            is_causal=is_causal,
            scale=self.scale,
            softcap=self.softcap,
            sinks=sinks,
            dropout_p=dropout,
            need_weights=need_weights,
        )

    def extra_repr(self) -> str:
        """Name the options that the submodules do not show."""
        names = ["num_heads", "num_kv_heads", "dropout", "context_length"]
        names += [name for name in ("scale", "softcap") if getattr(self, name) is not None]
        sinks = [] if self.sinks is None else ["sinks=True"]
        return ", ".join([*(f"{name}={getattr(self, name)}" for name in names), *sinks])
