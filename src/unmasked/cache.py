"""The memory of a decoder: the keys and values of all tokens so far, so that none is computed twice."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unmasked import masks
from unmasked._checks import require_positive, require_values, size, tensor
from unmasked._layers import require_floating
from unmasked._shapes import Float, Int

__all__ = ["KVCache"]


def _counted(axis: int) -> Any:
    """Read a count of tokens, which is kept as the size of an axis of ``_counts``, an empty tensor.

    torch.compile expects sizes to change. It takes an int of a global cache for a constant, and would compile every
    step anew.
    """

    def get(cache: Any) -> int:
        tokens: int = cache._counts.shape[axis]
        return tokens

    return property(get)


def _count(*tokens: int) -> Tensor:
    return torch.empty(*tokens, 0, device="cpu")


def _zeros(shape: tuple[int, ...], dtype: torch.dtype | None, device: torch.device | str | None) -> Tensor:
    """Memory that can be written to in every mode: a tensor of torch.inference_mode can only be written to in it."""
    with torch.inference_mode(False):
        return torch.zeros(shape, dtype=dtype, device=device)


def _refuse_other(name: str, new: Tensor, stored: Tensor, axes: str) -> None:
    """Refuse a tensor that differs from the stored ones in more than its number of tokens, the last axis but one."""
    tensor(name, new)
    if new.dim() != stored.dim() or (*new.shape[:-2], new.size(-1)) != (*stored.shape[:-2], stored.size(-1)):
        raise ValueError(f"{name} has shape {tuple(new.shape)}; this cache takes {axes}")
    if new.dtype != stored.dtype:
        raise TypeError(f"{name} is {new.dtype} and the cache {stored.dtype}; make the cache with dtype={new.dtype}")
    if new.device != stored.device:
        raise ValueError(
            f'{name} is on {new.device} and the cache on {stored.device}; make the cache with device="{new.device}"'
        )


class KVCache:
    """The keys and values of one layer, in memory that is taken once.

    A step writes its own token and reads all of them in place: nothing that is stored is copied. The memory is filled
    with zeros: NaN, as torch.empty may leave it, could reach every query through a mask.
    `unmasked.CausalSelfAttention.cache` makes one that fits its layer.

    Sequences may have different lengths, which flash-attention calls ``cache_seqlens``: hand over prompts that are
    padded on the right, and `crop` each sequence to its own length. From then on each goes on behind its own last
    token, at that position, and the layer hides the memory behind it.

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
        length: how many tokens the sequences have so far, the longest of them.
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

        The first sequence has five tokens, the second one two, and the third one four:

        >>> cache.crop(torch.tensor([5, 2, 4]))
        >>> with torch.no_grad():
        ...     step = layer(x[:, :1], cache=cache)
        >>> cache.cache_seqlens
        tensor([6, 3, 5])
        >>> alone = torch.cat([x[1, :2], x[1, :1]])
        >>> torch.allclose(step[1], layer(alone)[-1], atol=1e-6)
        True
    """

    length: int = _counted(0)
    _kept: int = _counted(1)  # tokens that are in the slots; all of them, until a ring is full

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
        require_floating(dtype, device)
        self.max_tokens, self.window, self._counts = max_tokens, window, _count(0, 0)
        self._kv_heads = num_kv_heads
        self._slots = max_tokens if window is None else min(window, max_tokens)
        # Keys and values side by side, on the axis of heads, as a layer's projection makes them: one write for both.
        self._memory = _zeros((batch, 2 * num_kv_heads, self._slots, head_dim), dtype, device)
        self._seqlens: Tensor | None = None  # where they differ

    def append(
        self,
        key: Float[Tensor, "batch kv_heads tokens head_dim"],
        value: Float[Tensor, "batch kv_heads tokens head_dim"],
    ) -> tuple[Float[Tensor, "batch kv_heads keys head_dim"], Float[Tensor, "batch kv_heads keys head_dim"]]:
        """Store the keys and values of new tokens, and return those that these tokens attend to, their own included.

        Args:
            key: (batch, kv_heads, tokens, head_dim), of any number of new tokens.
            value: the same shape.

        Returns:
            keys and values, (batch, kv_heads, keys, head_dim): views of the memory, which the next call may change.
            They stand in the order of the tokens, with two exceptions. A single token that a full ring takes in gets
            the ring as it is (`positions` says whose key is where): it sees all of it, in whatever order. Several
            tokens that overrun a ring get a copy, with the tokens that they overwrite.

        Raises:
            TypeError: a dtype is not that of the cache.
            ValueError: a shape or device is not that of the cache, the cache is full, or a gradient is asked for.
        """
        both = self._joined(key, value)
        seen = self._seen(both)
        self._write(both)
        return seen

    def peek(
        self,
        key: Float[Tensor, "batch kv_heads tokens head_dim"],
        value: Float[Tensor, "batch kv_heads tokens head_dim"],
    ) -> tuple[Float[Tensor, "batch kv_heads keys head_dim"], Float[Tensor, "batch kv_heads keys head_dim"]]:
        """Return the keys and values that new tokens would attend to, in the order of the tokens, and store nothing.

        Arguments and errors as for `append`.

        Returns:
            keys and values, (batch, kv_heads, keys, head_dim): copies.
        """
        return self._peek(self._joined(key, value))

    def crop(self, length: int | Int[Tensor, "batch"]) -> None:
        """Forget all tokens but the first ``length``: drafts that were refused, padding, or everything.

        Args:
            length: how many tokens to keep, of all sequences alike; or integers, (batch,), of each.

        Raises:
            TypeError: length holds no integers.
            ValueError: there are fewer tokens, or a ring has overwritten the tokens that are wanted back, or is to keep
                another number for each sequence.
        """
        if isinstance(length, Tensor):
            tensor("length", length, "Int")
            require_values(length=length)
            lengths = [int(each) for each in length] if length.dim() == 1 else []
            if len(lengths) != self._memory.size(0):
                raise ValueError(
                    f"length has shape {tuple(length.shape)}; it must be a number, or one for each of the "
                    f"{self._memory.size(0)} sequences of the cache"
                )
        else:
            lengths = [size("length", length, least=0)] * self._memory.size(0)
        held = [self.length] * len(lengths) if self._seqlens is None else self._seqlens.tolist()
        for sequence, (wanted, has) in enumerate(zip(lengths, held, strict=True)):
            if not 0 <= wanted <= has:
                whose = "the cache holds" if self._seqlens is None else f"sequence {sequence} of the cache has"
                raise ValueError(f"length is {wanted}; {whose} {has} tokens: crop to 0 to {has}")
        longest = max(lengths)
        if min(lengths) < longest and self.window is not None:
            raise ValueError(
                f"length is {lengths}; the sequences of a ring have all one length: make the cache without a window"
            )
        kept = max(0, self._kept - (self.length - longest))
        if kept < self._needed(longest):
            raise ValueError(
                f"length is {longest}; the ring holds the last {self._kept} of {self.length} tokens, and the next "
                f"query would look for {self._needed(longest)} before it: crop to 0, or make the cache without a window"
            )
        self._seqlens = None
        if min(lengths) < longest:
            self._seqlens = torch.tensor(lengths, device=self._memory.device)
            # Behind its own end a sequence has forgotten tokens, which must be finite though they are hidden.
            forgotten = torch.arange(self._slots, device=self._memory.device) >= self._seqlens[:, None]  # batch keys
            self._memory.masked_fill_(forgotten[:, None, :, None], 0.0)
        self._counts = _count(longest, kept)

    def reorder(self, order: Int[Tensor, "batch"]) -> None:
        """Let each sequence go on from another one, as a beam search does.

        Args:
            order: integers, (batch,): sequence b goes on from the tokens of sequence order[b].

        Raises:
            TypeError: order holds no integers.
            ValueError: order does not name a sequence that is there for each.
        """
        batch = self._memory.size(0)
        tensor("order", order)
        if order.is_floating_point() or order.is_complex() or order.dtype == torch.bool:
            raise TypeError(f"order is {order.dtype}; it names sequences by their number: call order.long()")
        require_values(order=order)
        if order.shape != (batch,) or (order < 0).any() or (order >= batch).any():
            raise ValueError(
                f"order is {order.tolist()}; it must name {batch} sequences, each by a number from 0 to {batch - 1}"
            )
        order = order.to(self._memory.device)
        used = self._memory[:, :, : min(self.length, self._slots)]
        used.copy_(used.index_select(0, order))
        if self._seqlens is not None:
            self._seqlens = self._seqlens[order]
            self.crop(self._seqlens)  # the longest may be gone

    @property
    def cache_seqlens(self) -> Int[Tensor, "batch"]:
        """How many tokens each sequence has so far."""
        if self._seqlens is not None:
            return self._seqlens
        return torch.full((self._memory.size(0),), self.length, device=self._memory.device)

    @property
    def positions(self) -> Int[Tensor, "keys"]:
        """The positions of the tokens in memory, in its order, which is theirs until a ring is full.

        A ring that was cropped has free places, marked by a negative number: their tokens were overwritten.
        """
        return self._held(self.length, self._kept)

    @property
    def bytes(self) -> int:
        """The memory that the cache takes, however many tokens it holds."""
        return self._memory.nbytes

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
        require_positive(num_kv_heads=num_kv_heads, head_dim=head_dim, num_layers=num_layers)
        require_floating(dtype)
        return 2 * num_layers * num_kv_heads * head_dim * (dtype or torch.get_default_dtype()).itemsize

    def __repr__(self) -> str:
        batch, heads, _, head_dim = self._memory.shape
        window = "" if self.window is None else f", window={self.window}"
        dtype = str(self._memory.dtype).removeprefix("torch.")
        return (
            f"KVCache(batch={batch}, num_kv_heads={heads // 2}, head_dim={head_dim}, {dtype}{window}: "
            f"{self.length} of {self.max_tokens} tokens)"
        )

    def _held(self, length: int, kept: int) -> Tensor:
        """Whose key is in which slot, after so many tokens of which so many are kept."""
        slots = torch.arange(min(length, self._slots), device=self._memory.device)
        held = length - 1 - (length - 1 - slots) % self._slots
        return held.masked_fill(held < length - kept, -1)

    def _needed(self, length: int) -> int:
        """How many tokens before it the next query sees, after so many."""
        return length if self.window is None else min(length, self.window - 1)

    # Below, ``both`` are new keys and values, side by side as they are kept: (batch, 2 * kv_heads, tokens, head_dim).

    def _joined(self, key: Tensor, value: Tensor) -> Tensor:
        """Lay keys and values side by side, if they are alike."""
        alike = isinstance(key, Tensor) and isinstance(value, Tensor) and not (key.is_nested or value.is_nested)
        alike = alike and key.layout is value.layout is torch.strided and key.shape == value.shape and key.dim() == 4
        alike = alike and key.dtype == value.dtype and key.device == value.device
        if not alike or key.requires_grad or value.requires_grad:
            self._refuse(key, value)
        return torch.cat([key, value], dim=1)

    def _halves(self, both: Tensor) -> tuple[Tensor, Tensor]:
        key, value = both.split_with_sizes([self._kv_heads] * 2, dim=1)  # chunk calls it, after more Python
        return key, value

    def _seen(self, both: Tensor) -> tuple[Tensor, Tensor]:
        """Return the result of `append` before anything is written: `_write` fills in the new tokens."""
        tokens, (length, held, _) = self._new_tokens(both), self._counts.shape
        if tokens != 1 and length + tokens > self._slots:
            return self._peek(both)
        return self._halves(self._memory.narrow(2, 0, min(held + tokens, self._slots)))

    def _peek(self, both: Tensor) -> tuple[Tensor, Tensor]:
        """Return the result of `peek`."""
        tokens = self._new_tokens(both)
        if self._seqlens is not None:
            places = self._positions(tokens)[:, None, :, None].expand_as(both)
            return self._halves(self._memory[:, :, : self.length + tokens].scatter(2, places, both))
        past = self._needed(self.length)
        start = (self.length - past) % self._slots
        end = min(start + past, self._slots)
        kept = self._memory[:, :, start:end], self._memory[:, :, : past - (end - start)]
        return self._halves(torch.cat([*kept, both], dim=2))

    def _positions(self, tokens: int) -> Tensor:
        """Where so many new tokens stand: (tokens,), or (batch, tokens) where sequences have different lengths."""
        start = self.length if self._seqlens is None else 0
        counted = torch.arange(start, start + tokens, device=self._memory.device)
        return counted if self._seqlens is None else counted + self._seqlens[:, None]

    def _masked(self, allowed: Tensor | None, tokens: int, keys: int, *, in_order: bool) -> tuple[Tensor | None, bool]:
        """Bring a mask of all tokens so far to the keys that new tokens get, before they are written.

        The second result says whether the future is still to be hidden: those keys are the last ones, in their order.
        """
        if allowed is None and self._seqlens is None and (self.window is None or tokens == 1):
            return None, True
        total = self.length + tokens
        if allowed is not None:
            tensor("allowed", allowed, "Bool")
            if allowed.shape[-1:] not in ((1,), (total,)):
                raise ValueError(
                    f"allowed has shape {tuple(allowed.shape)}; its last axis must be the {total} tokens so far, those "
                    "of the cache and those of x"
                )
            if keys < total and allowed.size(-1) == total:
                in_ring = tokens == 1 and not in_order  # whose tokens do not stand in their order
                allowed = allowed[..., self._held(total, keys)] if in_ring else allowed[..., total - keys :]
        if self._seqlens is not None:
            last = self._positions(tokens)[:, None, :, None]  # batch 1 tokens 1
            return masks.combine(allowed, torch.arange(keys, device=last.device) <= last), False
        if self.window is not None and tokens != 1 and total > self.window:  # else nobody sees farther than it
            window = masks.sliding_window(tokens, keys, window=self.window, device=self._memory.device)
            return masks.combine(allowed, window), False
        return allowed, True

    def _write(self, both: Tensor) -> None:
        """Store new tokens that `_seen` has checked."""
        tokens, (length, held, _) = both.size(2), self._counts.shape
        if self._seqlens is not None:
            self._memory.scatter_(2, self._positions(tokens)[:, None, :, None].expand_as(both), both)
            self._seqlens = self._seqlens + tokens
        else:
            kept = min(tokens, self._slots)
            both = both if kept == tokens else both[:, :, tokens - kept :]  # the first would only be overwritten
            start = (length + tokens - kept) % self._slots
            end = min(start + kept, self._slots)
            if end - start == kept:
                self._memory.narrow(2, start, kept).copy_(both)
            else:  # around the ring
                self._memory[:, :, start:] = both[:, :, : end - start]
                self._memory[:, :, : start + kept - end] = both[:, :, end - start :]
        self._counts = self._counts.new_empty(length + tokens, min(held + tokens, self._slots), 0)

    def _new_tokens(self, both: Tensor) -> int:
        """How many tokens there are, if they fit in every way."""
        memory, shape = self._memory, both.shape
        batch, heads, _, head_dim = memory.shape
        fits = len(shape) == 4 and shape[0] == batch and shape[1] == heads and shape[3] == head_dim
        fits = fits and both.dtype == memory.dtype and both.device == memory.device
        if not fits or both.requires_grad:
            self._refuse(*both.chunk(2, dim=-3))
        tokens = shape[2]
        if self.length + tokens > self.max_tokens:
            raise ValueError(
                f"the cache holds {self.length} of at most {self.max_tokens} tokens, and {tokens} more do not fit; "
                "make it with a larger max_tokens, or crop it"
            )
        return tokens

    def _refuse(self, key: Tensor, value: Tensor) -> None:
        """Say in which way they do not fit, if they do not: in inference, to require grad is no fault."""
        stored = self._halves(self._memory)[0]
        batch, heads, _, head_dim = stored.shape
        axes = f"(batch, kv_heads, tokens, head_dim) = ({batch}, {heads}, tokens, {head_dim})"
        for name, new in (("key", key), ("value", value)):
            _refuse_other(name, new, stored, axes)
            if new.requires_grad and torch.is_grad_enabled():
                raise ValueError(
                    f"{name} requires grad, and a cache keeps numbers without their history; call the model under "
                    f"torch.no_grad(), or pass {name}.detach()"
                )
        if key.size(2) != value.size(2):
            raise ValueError(f"key has {key.size(2)} tokens and value {value.size(2)}; every key needs one value")
