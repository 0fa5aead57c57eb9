"""What a decoder keeps while it writes: the keys and values of all tokens so far, so that none is computed twice."""

from __future__ import annotations

import torch
from torch import Tensor

from unmasked._checks import require_positive
from unmasked._shapes import Float, Int

__all__ = ["KVCache"]


class KVCache:
    """The keys and values of one layer, in memory that is taken once.

    A step writes its own token and reads all of them in place: nothing that is stored is copied. The memory is filled
    with zeros: NaN, as torch.empty may leave it, would reach every query through any mask.
    `unmasked.CausalSelfAttention.cache` makes one that fits its layer.

    Args:
        batch: sequences that are written side by side.
        num_kv_heads: heads of the keys and values, as the layer has them.
        max_tokens: most tokens of a sequence.
        head_dim: features of a head.
        dtype: the layer's floating type; PyTorch's default by default.
        device: where the layer lives.
        window: keep the last ``window`` tokens alone, in a ring in which the newest token takes the place of the
            oldest. A query then sees that many keys, its own included. Nothing is sized by max_tokens any more.

    Attributes:
        length: how many tokens the sequences have so far.
        max_tokens: how many they may have.
        window: how many of them a query sees, or None for all.

    Raises:
        ValueError: a size is not positive.

    References:
        Pope et al. (2022). The ring: Jiang et al. (2023), Mistral 7B, section 2.

    Examples:
        >>> from unmasked import CausalSelfAttention
        >>> layer = CausalSelfAttention(d_in=6, d_out=8, num_heads=2).eval()
        >>> x, cache = torch.randn(3, 5, 6), layer.cache(3, max_tokens=100)
        >>> with torch.no_grad():
        ...     parts = [layer(part, cache=cache) for part in x.split([3, 1, 1], dim=1)]
        >>> torch.allclose(torch.cat(parts, dim=1), layer(x), atol=1e-6)
        True
        >>> cache
        KVCache(batch=3, num_kv_heads=2, head_dim=4, float32: 5 of 100 tokens)
    """

    def __init__(
        self,
        batch: int,
        num_kv_heads: int,
        max_tokens: int,
        head_dim: int,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        window: int | None = None,
    ) -> None:
        require_positive(batch=batch, num_kv_heads=num_kv_heads, max_tokens=max_tokens, head_dim=head_dim)
        require_positive(window=1 if window is None else window)
        self.max_tokens, self.window, self.length = max_tokens, window, 0
        self._slots = max_tokens if window is None else min(window, max_tokens)
        self._kept = 0  # tokens that are in the slots; all of them, until a ring is full
        shape = (batch, num_kv_heads, self._slots, head_dim)
        self._key = torch.zeros(shape, dtype=dtype, device=device)
        self._value = torch.zeros(shape, dtype=dtype, device=device)

    def append(
        self,
        key: Float[Tensor, "batch kv_heads tokens head_dim"],
        value: Float[Tensor, "batch kv_heads tokens head_dim"],
    ) -> tuple[Float[Tensor, "batch kv_heads keys head_dim"], Float[Tensor, "batch kv_heads keys head_dim"]]:
        """Store the keys and values of new tokens, and return what these tokens attend to, themselves included.

        Args:
            key: (batch, kv_heads, tokens, head_dim), of any number of new tokens.
            value: the same shape.

        Returns:
            keys and values, (batch, kv_heads, keys, head_dim): views of the memory, which the next call may change.
            They stand in the order of the tokens, with two exceptions. A single token that a full ring takes in gets
            the ring as it is (`positions` says whose key is where): it sees all of it, in whatever order. Several
            tokens that overrun a ring get a copy, with what they overwrite.

        Raises:
            TypeError: a dtype is not that of the cache.
            ValueError: a shape or device is not that of the cache, the cache is full, or a gradient is asked for.
        """
        after = self.length + self._new_tokens(key, value)
        seen = None if after <= self._slots or after == self.length + 1 else self.peek(key, value)
        self._write(key, value)
        return seen or (self._key.narrow(2, 0, self._kept), self._value.narrow(2, 0, self._kept))

    def peek(
        self,
        key: Float[Tensor, "batch kv_heads tokens head_dim"],
        value: Float[Tensor, "batch kv_heads tokens head_dim"],
    ) -> tuple[Float[Tensor, "batch kv_heads keys head_dim"], Float[Tensor, "batch kv_heads keys head_dim"]]:
        """Return what new tokens would attend to, in the order of the tokens, and store nothing.

        Arguments and errors as for `append`.

        Returns:
            keys and values, (batch, kv_heads, keys, head_dim): copies.
        """
        self._new_tokens(key, value)
        past = self._needed(self.length)
        start = (self.length - past) % self._slots
        end = min(start + past, self._slots)
        keys, values = (
            torch.cat([kept[:, :, start:end], kept[:, :, : past - (end - start)], new], dim=2)
            for kept, new in ((self._key, key), (self._value, value))
        )
        return keys, values

    def crop(self, length: int) -> None:
        """Forget all tokens but the first ``length``: drafts that were refused, or everything.

        Args:
            length: how many tokens to keep.

        Raises:
            ValueError: there are fewer tokens, or a ring has overwritten what is wanted back.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"length is {length}; the cache holds {self.length} tokens: crop to 0 to {self.length}")
        kept = max(0, self._kept - (self.length - length))
        if kept < self._needed(length):
            raise ValueError(
                f"length is {length}; the ring holds the last {self._kept} of {self.length} tokens, and the next query "
                f"would look for {self._needed(length)} before it: crop to 0, or make the cache without a window"
            )
        self.length, self._kept = length, kept

    def reorder(self, order: Int[Tensor, "batch"]) -> None:
        """Let each sequence go on from another one, as a beam search does.

        Args:
            order: integers, (batch,): sequence b goes on from what sequence order[b] was.

        Raises:
            TypeError: order holds no integers.
            ValueError: order does not name a sequence that is there for each.
        """
        batch = self._key.size(0)
        if order.is_floating_point() or order.dtype == torch.bool:
            raise TypeError(f"order is {order.dtype}; it names sequences by their number: call order.long()")
        if order.shape != (batch,) or (order < 0).any() or (order >= batch).any():
            raise ValueError(
                f"order is {order.tolist()}; it must name {batch} sequences, each by a number from 0 to {batch - 1}"
            )
        for stored in (self._key, self._value):
            used = stored[:, :, : min(self.length, self._slots)]
            used.copy_(used.index_select(0, order.to(used.device)))

    @property
    def positions(self) -> Int[Tensor, "keys"]:
        """The positions of the tokens in memory, in its order, which is theirs until a ring is full.

        A ring that was cropped has free places, marked by a negative number: what stood there was overwritten.
        """
        slots = torch.arange(min(self.length, self._slots), device=self._key.device)
        held = self.length - 1 - (self.length - 1 - slots) % self._slots
        return held.masked_fill(held < self.length - self._kept, -1)

    @property
    def bytes(self) -> int:
        """The memory that the cache takes, however many tokens it holds."""
        return self._key.nbytes + self._value.nbytes

    @staticmethod
    def bytes_per_token(
        num_kv_heads: int, head_dim: int, *, num_layers: int = 1, dtype: torch.dtype | None = None
    ) -> int:
        """Tell how many bytes a model keeps of one token: a key and a value for each head of each layer.

        Args:
            num_kv_heads: heads of the keys and values.
            head_dim: features of a head.
            num_layers: layers, each of which has a cache of its own.
            dtype: floating type of the caches; PyTorch's default by default.

        Examples:
            >>> KVCache.bytes_per_token(8, 128, num_layers=32, dtype=torch.bfloat16)
            131072
        """
        return 2 * num_layers * num_kv_heads * head_dim * (dtype or torch.get_default_dtype()).itemsize

    def __repr__(self) -> str:
        batch, heads, _, head_dim = self._key.shape
        window = "" if self.window is None else f", window={self.window}"
        dtype = str(self._key.dtype).removeprefix("torch.")
        return (
            f"KVCache(batch={batch}, num_kv_heads={heads}, head_dim={head_dim}, {dtype}{window}: "
            f"{self.length} of {self.max_tokens} tokens)"
        )

    def _needed(self, length: int) -> int:
        """How many tokens before it the next query sees, after so many."""
        return length if self.window is None else min(length, self.window - 1)

    def _write(self, key: Tensor, value: Tensor) -> None:
        tokens = key.size(2)
        if tokens > self._slots:  # the first would only be overwritten
            key, value = (new[:, :, tokens - self._slots :] for new in (key, value))
        kept = key.size(2)
        start = (self.length + tokens - kept) % self._slots
        end = min(start + kept, self._slots)
        for stored, new in ((self._key, key), (self._value, value)):
            if end - start == kept:
                stored[:, :, start:end] = new
            else:  # around the ring
                stored[:, :, start:] = new[:, :, : end - start]
                stored[:, :, : start + kept - end] = new[:, :, end - start :]
        self.length += tokens
        self._kept = min(self._kept + tokens, self._slots)

    def _new_tokens(self, key: Tensor, value: Tensor) -> int:
        """How many tokens there are, if they fit in every way."""
        stored, shape = self._key, key.shape
        batch, heads, _, head_dim = stored.shape
        fits = len(shape) == 4 and shape[0] == batch and shape[1] == heads and shape[3] == head_dim
        alike = key.dtype == value.dtype == stored.dtype and key.device == value.device == stored.device
        if not (fits and alike and shape == value.shape) or key.requires_grad or value.requires_grad:
            self._refuse(key, value)
        tokens = shape[2]
        if self.length + tokens > self.max_tokens:
            raise ValueError(
                f"the cache holds {self.length} of at most {self.max_tokens} tokens, and {tokens} more do not fit; "
                "make it with a larger max_tokens, or crop it"
            )
        return tokens

    def _refuse(self, key: Tensor, value: Tensor) -> None:
        """Say in which way they do not fit, if they do not: in inference, to require grad is no fault."""
        batch, heads, _, head_dim = self._key.shape
        for name, new in (("key", key), ("value", value)):
            if new.dim() != 4 or (new.size(0), new.size(1), new.size(3)) != (batch, heads, head_dim):
                raise ValueError(
                    f"{name} has shape {tuple(new.shape)}; this cache takes (batch, kv_heads, tokens, head_dim) = "
                    f"({batch}, {heads}, tokens, {head_dim})"
                )
            if new.dtype != self._key.dtype:
                raise TypeError(
                    f"{name} is {new.dtype} and the cache {self._key.dtype}; make the cache with dtype={new.dtype}"
                )
            if new.device != self._key.device:
                raise ValueError(
                    f"{name} is on {new.device} and the cache on {self._key.device}; make the cache with "
                    f'device="{new.device}"'
                )
            if new.requires_grad and torch.is_grad_enabled():
                raise ValueError(
                    f"{name} requires grad, and a cache keeps numbers without their history; call the model under "
                    f"torch.no_grad(), or pass {name}.detach()"
                )
        if key.size(2) != value.size(2):
            raise ValueError(f"key has {key.size(2)} tokens and value {value.size(2)}; every key needs one value")
