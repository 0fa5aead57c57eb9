"""Multi-head latent attention: a short vector a token is kept, from which all heads' keys and values are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from unmasked._checks import choice, flag, require_divides, require_positive, size
from unmasked._layers import (
    refuse_script,
    require_floating,
    require_input,
    require_options,
    require_positions,
    require_rotary,
    turned,
)
from unmasked._shapes import Float, Int
from unmasked.cache import _count, _counted, _refuse_other, _zeros
from unmasked.functional import attend
from unmasked.heads import merge_heads, split_heads

__all__ = ["LatentAttention", "LatentCache"]


class LatentCache:
    """The latents of all tokens so far, and beside each the key that has the position; made by `LatentAttention.cache`.

    Arguments as for `unmasked.KVCache`, and ``width``, the numbers that are kept of a token.

    Attributes:
        length: How many tokens the sequences have so far.

    Raises:
        ValueError: A size is not positive.

    Examples:
        >>> cache = LatentCache(2, max_tokens=10, width=3)
        >>> cache.append(torch.ones(2, 4, 3)).shape, cache.append(torch.ones(2, 1, 3)).shape
        (torch.Size([2, 4, 3]), torch.Size([2, 5, 3]))
        >>> cache.bytes
        240
    """

    length: int = _counted(0)

    def __init__(
        self,
        batch: int,
        max_tokens: int,
        width: int,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        require_positive(batch=batch, max_tokens=max_tokens, width=width)
        require_floating(dtype, device)
        self._counts = _count(0)
        self._kept = _zeros((batch, max_tokens, width), dtype, device)

    def append(self, new: Float[Tensor, "batch tokens width"]) -> Float[Tensor, "batch keys width"]:
        """Store the latents of new tokens, and return those of all.

        Args:
            new: (batch, tokens, width).

        Returns:
            (batch, keys, width): a view of the memory, in the order of the tokens.

        Raises:
            TypeError: The dtype is not that of the cache.
            ValueError: The shape is not that of the cache, the cache is full, or a gradient is asked for.
        """
        seen = self._seen(new)
        self._write(new)
        return seen

    def _seen(self, new: Tensor) -> Tensor:
        """Return the result of `append` before anything is written: `_write` fills in the new tokens."""
        batch, max_tokens, width = self._kept.shape
        _refuse_other("new", new, self._kept, f"({batch}, tokens, {width})")
        if new.requires_grad and torch.is_grad_enabled():
            raise ValueError(
                "new requires a gradient, which memory that is written again cannot give; use torch.no_grad()"
            )
        after = self.length + new.size(1)
        if after > max_tokens:
            raise ValueError(
                f"{new.size(1)} more tokens make {after}, more than max_tokens ({max_tokens}); make a larger cache"
            )
        return self._kept[:, :after]

    def _write(self, new: Tensor) -> None:
        after = self.length + new.size(1)
        self._kept[:, self.length : after] = new
        self._counts = _count(after)

    @property
    def bytes(self) -> int:
        """The memory that it takes, for all tokens that it can keep."""
        return self._kept.nbytes


class LatentAttention(nn.Module):
    """Causal self-attention whose heads make their keys and values of one short latent a token, which alone is kept.

    The latent of a token is a projection of its features. Each head has a matrix that makes a key of it, and one that
    makes a value. There are two ways to compute the same:

    - *expanded*: make all keys and values, and attend as ever. That is for training, and for a prompt.
    - *absorbed*: put the key's matrix on the query's side, and the value's behind the average. Every head then attends
      to the latents themselves, as if they were the one key and value that all share. That is for decoding: nothing
      is made again of the tokens that are kept.

    A rotary embedding would stand between the two matrices that absorbing multiplies, so it has features of its own:
    ``rotary_dim`` more of each query, and one key of as many that all heads share and the cache keeps.

    Args:
        d_in: Features of the input.
        d_out: Features of the output.
        num_heads: Number of heads.
        latent_dim: Features of the latent.
        head_dim: Features of a head's keys and values; d_out / num_heads by default.
        rotary: Turns those of their own, as for `CausalSelfAttention`; it needs rotary_dim.
        rotary_dim: How many features of queries and keys are for rotary; 0 by default.
        normalize: Give the latent an RMSNorm, as DeepSeek's models do.
        scale: The factor of the dot products; None for 1 / sqrt(head_dim + rotary_dim). Where YaRN stretches
            DeepSeek's models, they multiply it by the square of mscale.
        device: Where the parameters live.
        dtype: Their floating type.

    Raises:
        TypeError: An option is of another kind: a flag that is no bool, an integer dtype, a rotary that is not called.
        ValueError: A size is not positive, num_heads does not divide d_out where no head_dim is given, one of rotary
            and rotary_dim is given without the other, or the scale is not finite.

    References:
        Liu et al. (2024), DeepSeek-V2, sections 2.1.2 and 2.1.3.

    Examples:
        >>> layer = LatentAttention(d_in=32, d_out=32, num_heads=4, latent_dim=12).eval()
        >>> x, cache = torch.randn(2, 5, 32), layer.cache(2, max_tokens=9)
        >>> with torch.no_grad():
        ...     parts = [layer(part, cache=cache) for part in x.split([3, 1, 1], dim=1)]
        >>> torch.allclose(torch.cat(parts, dim=1), layer(x), atol=1e-5)
        True
        >>> cache.bytes // cache.length, LatentAttention.bytes_per_token(12)
        (172, 48)
    """

    def __init__(
        self,
        d_in: int,
        d_out: int,
        num_heads: int,
        *,
        latent_dim: int,
        head_dim: int | None = None,
        rotary: Callable[[Tensor, Tensor], Tensor] | None = None,
        rotary_dim: int = 0,
        normalize: bool = False,
        scale: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        require_positive(d_in=d_in, d_out=d_out, num_heads=num_heads, latent_dim=latent_dim)
        if head_dim is None:
            require_divides("d_out", d_out, "num_heads", num_heads)
            head_dim = d_out // num_heads
        require_positive(head_dim=head_dim)
        size("rotary_dim", rotary_dim, least=0)
        require_rotary(rotary)
        require_options(scale=scale)
        require_floating(dtype, device)
        flag("normalize", normalize)
        if (rotary is None) != (rotary_dim == 0):
            raise ValueError(
                f"rotary is {rotary} and rotary_dim {rotary_dim}; give both, such as rotary=Rotary(16), rotary_dim=16, "
                "or neither"
            )
        self.d_in, self.num_heads, self.head_dim, self.latent_dim = d_in, num_heads, head_dim, latent_dim
        self.rotary, self.rotary_dim, self.normalize, self.scale = rotary, rotary_dim, normalize, scale

        def projection(inputs: int, outputs: int) -> nn.Linear:
            return nn.Linear(inputs, outputs, bias=False, device=device, dtype=dtype)

        # Of each head, features that are absorbed and features that are turned.
        self.query = projection(d_in, num_heads * (head_dim + rotary_dim))
        self.down = projection(d_in, latent_dim + rotary_dim)
        self.norm = nn.RMSNorm(latent_dim, eps=1e-6, device=device, dtype=dtype) if normalize else nn.Identity()
        self.key_up = projection(latent_dim, num_heads * head_dim)
        self.value_up = projection(latent_dim, num_heads * head_dim)
        self.out_proj = projection(num_heads * head_dim, d_out)

    def forward(
        self,
        x: Float[Tensor, "batch tokens d_in"],
        *,
        cache: LatentCache | None = None,
        positions: Int[Tensor, "..."] | None = None,
        form: Literal["expanded", "absorbed"] | None = None,
    ) -> Float[Tensor, "batch tokens d_out"]:
        """Attend to the tokens so far.

        Args:
            x: (batch, tokens, d_in); with a cache, the tokens that are new.
            cache: As `cache` makes it; the new tokens see those that it has, and it takes them in.
            positions: Integers, (tokens,) or (batch, tokens), for rotary; counted from the first token by default.
            form: "expanded" or "absorbed", which give the same; by default the one that multiplies fewer numbers.

        Returns:
            (batch, tokens, d_out).

        Raises:
            TypeError: The cache is of another dtype.
            ValueError: x has another shape, the cache is full or has another shape, there is no such form, or positions
                are given without rotary.
        """
        require_input(x, self.d_in, self.query.weight, "batch, tokens")
        choice("form", form, "expanded", "absorbed", None)
        require_options(scale=self.scale)
        if cache is not None and not isinstance(cache, LatentCache):
            raise TypeError(f"cache is a {type(cache).__name__}; make one with layer.cache(batch, max_tokens)")
        past = 0 if cache is None else cache.length
        query = split_heads(self.query(x), self.num_heads)  # batch heads tokens head_dim+rotary_dim
        latent, shared_key = self.down(x).split([self.latent_dim, self.rotary_dim], dim=-1)
        latent = self.norm(latent)
        if positions is not None:
            require_positions(positions, x, self.rotary)
        if self.rotary is not None:
            positions = torch.arange(past, past + x.size(1), device=x.device) if positions is None else positions
            plain, to_turn = query.split([self.head_dim, self.rotary_dim], dim=-1)
            query = torch.cat([plain, turned(self.rotary, to_turn, positions)], dim=-1)
            shared_key = turned(self.rotary, shared_key.unsqueeze(1), positions).squeeze(1)
        kept = torch.cat([latent, shared_key], dim=-1)
        kept = kept if cache is None else cache.append(kept)
        absorb = self._absorbing_is_less(x.size(1), past + x.size(1)) if form is None else form == "absorbed"
        way = self._absorbed if absorb else self._expanded
        output: Tensor = self.out_proj(merge_heads(way(query, kept)))
        return output

    __prepare_scriptable__ = refuse_script

    def _absorbing_is_less(self, queries: int, keys: int) -> bool:
        """Whether it multiplies fewer numbers: for a step it does, for a prompt or a long chunk it seldom does."""
        latent, head, turned = self.latent_dim, self.head_dim, self.rotary_dim
        expanded = 2 * keys * latent * head + queries * keys * (2 * head + turned)  # of one head: make, then attend
        absorbed = 2 * queries * latent * head + queries * keys * (2 * latent + turned)
        return absorbed < expanded

    def _expanded(self, query: Tensor, kept: Tensor) -> Tensor:
        latent, shared_key = kept.split([self.latent_dim, self.rotary_dim], dim=-1)
        key, value = (split_heads(up(latent), self.num_heads) for up in (self.key_up, self.value_up))
        key = torch.cat([key, shared_key.unsqueeze(1).expand(-1, self.num_heads, -1, -1)], dim=-1)
        return attend(query, key, value, is_causal=True, scale=self.scale).context

    def _absorbed(self, query: Tensor, kept: Tensor) -> Tensor:
        key_up, value_up = (
            up.weight.unflatten(0, (self.num_heads, self.head_dim)) for up in (self.key_up, self.value_up)
        )  # heads head_dim latent_dim
        plain, rest = query.split([self.head_dim, self.rotary_dim], dim=-1)
        query = torch.cat([plain @ key_up, rest], dim=-1)  # batch heads tokens latent_dim+rotary_dim
        key = kept.unsqueeze(1)  # batch 1 keys latent_dim+rotary_dim
        # As before, though the product of the matrices has other features.
        scale = (self.head_dim + self.rotary_dim) ** -0.5 if self.scale is None else self.scale
        context = attend(query, key, key[..., : self.latent_dim], is_causal=True, scale=scale).context
        merged: Tensor = context @ value_up.mT
        return merged

    def cache(self, batch: int, max_tokens: int) -> LatentCache:
        """Make an empty cache for this layer; the arguments are those of `LatentCache`."""
        weight = self.down.weight
        return LatentCache(batch, max_tokens, weight.size(0), dtype=weight.dtype, device=weight.device)

    @staticmethod
    def bytes_per_token(
        latent_dim: int, rotary_dim: int = 0, *, num_layers: int = 1, dtype: torch.dtype | None = None
    ) -> int:
        """Tell how many bytes a model keeps of one token, whatever the number of its heads.

        Args:
            latent_dim: Features of the latent.
            rotary_dim: Features of the key that has the position.
            num_layers: Layers, each of which has a cache of its own.
            dtype: Floating type of the caches; PyTorch's default by default.

        Examples:
            >>> LatentAttention.bytes_per_token(512, 64, num_layers=60, dtype=torch.bfloat16)  # DeepSeek-V2
            69120
        """
        require_positive(latent_dim=latent_dim, num_layers=num_layers)
        size("rotary_dim", rotary_dim, least=0)
        require_floating(dtype)
        return num_layers * (latent_dim + rotary_dim) * (dtype or torch.get_default_dtype()).itemsize

    def extra_repr(self) -> str:
        """Name the options that the submodules do not show."""
        return f"num_heads={self.num_heads}, head_dim={self.head_dim}, rotary_dim={self.rotary_dim}"
