"""The decoder's layer: causal self-attention with one projection to query, key and value."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unmasked._checks import require_divides, require_positive
from unmasked._shapes import Bool, Float
from unmasked.functional import Attention, scaled_dot_product_attention
from unmasked.heads import merge_heads, split_heads

__all__ = ["CausalSelfAttention"]


class CausalSelfAttention(nn.Module):
    """Causal multi-head self-attention, as decoders run it: no token sees a later one.

    One layer projects to query, key and value, and the fused kernel masks the future by itself, so that no mask is
    stored, in the state_dict or elsewhere. Dropout in training leaves that kernel, on a CPU, for one that holds the
    (tokens, tokens) matrices of all heads, as `scaled_dot_product_attention` says.

    Args:
        d_in: features of the input.
        d_out: features of the output, all heads together.
        num_heads: must divide d_out; each head has d_out / num_heads features.
        num_kv_heads: fewer heads for keys and values, each shared by num_heads / num_kv_heads query heads.
        context_length: most tokens that the layer accepts; None, the default, for any number. Nothing is sized by it.
        dropout: probability with which a weight is dropped in training.
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
        self.context_length, self.dropout = context_length, dropout
        rows = (num_heads + 2 * num_kv_heads) * self.head_dim
        self.qkv = nn.Linear(d_in, rows, bias=qkv_bias, device=device, dtype=dtype)
        self.out_proj = nn.Linear(d_out, d_out, bias=out_bias, device=device, dtype=dtype)

    def forward(
        self, x: Float[Tensor, "*batch tokens d_in"], *, allowed: Bool[Tensor, "..."] | None = None
    ) -> Float[Tensor, "*batch tokens d_out"]:
        """Attend, by the fused kernel where it can be had.

        Args:
            x: (..., tokens, d_in).
            allowed: bool, broadcastable to (..., heads, tokens, tokens), to shut out more than the future: padding.

        Returns:
            (..., tokens, d_out).

        Raises:
            ValueError: x is not (..., tokens, d_in), or has more tokens than context_length.
        """
        context = self._attend(x, allowed, need_weights=False).context
        output: Tensor = self.out_proj(merge_heads(context))
        return output

    def weights(
        self, x: Float[Tensor, "*batch tokens d_in"], *, allowed: Bool[Tensor, "..."] | None = None
    ) -> Float[Tensor, "*batch heads tokens tokens"]:
        """Return every head's weights, by the eager implementation.

        Args:
            x: (..., tokens, d_in).
            allowed: as for forward.

        Returns:
            (..., heads, tokens, tokens): what `forward` averages the values with, but for dropout, which in training
            every call, of this method too, draws anew.
        """
        weights = self._attend(x, allowed, need_weights=True).weights
        assert weights is not None
        return weights

    def _attend(self, x: Tensor, allowed: Tensor | None, *, need_weights: bool) -> Attention:
        if x.dim() < 2 or x.size(-1) != self.d_in:
            raise ValueError(f"x has shape {tuple(x.shape)}; this layer takes (..., tokens, {self.d_in})")
        if self.context_length is not None and x.size(-2) > self.context_length:
            raise ValueError(
                f"x has {x.size(-2)} tokens, more than context_length ({self.context_length}); shorten it, or make the "
                "layer with a larger context_length"
            )
        kv_dim = self.num_kv_heads * self.head_dim
        query, key, value = self.qkv(x).split([self.d_out, kv_dim, kv_dim], dim=-1)
        return scaled_dot_product_attention(
            split_heads(query, self.num_heads),
            split_heads(key, self.num_kv_heads),
            split_heads(value, self.num_kv_heads),
            allowed=allowed,
            is_causal=True,
            dropout_p=self.dropout if self.training else 0.0,
            need_weights=need_weights,
        )

    def extra_repr(self) -> str:
        """Name the options that the submodules do not show."""
        return (
            f"num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}, dropout={self.dropout}, "
            f"context_length={self.context_length}"
        )
