"""Tokens on more than one rank: keys and values go around a ring, and contexts are merged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from unmasked import masks
from unmasked._arguments import _check
from unmasked._checks import checked, choice, flag, require_positive, require_values
from unmasked._private import flash_attention, flash_attention_backward
from unmasked._shapes import Float, Int
from unmasked.functional import _scale
from unmasked.gradients import attention_backward
from unmasked.parallel.ranks import agree, lost, tally
from unmasked.tiles import merge, tiled_attention

__all__ = ["RingLayout", "positions_of_rank", "ring_attention", "ring_bytes"]

RingLayout = Literal["zigzag", "striped", "contiguous"]


@checked
def positions_of_rank(
    tokens: int, *, rank: int, ranks: int, layout: RingLayout = "zigzag", device: torch.device | str | None = None
) -> Int[Tensor, "tokens"]:
    """Say which tokens of a sequence a rank has, in their order.

    A causal query sees the keys before it, so that the last tokens have the most work. "contiguous" gives the first
    rank the first tokens, and leaves it idle; "zigzag" gives each rank a part of the beginning and the part of the end
    that makes up for it; "striped" deals the tokens out one by one.

    Args:
        tokens: Length of the whole sequence.
        rank: The rank asked for.
        ranks: Number of ranks; must divide tokens, and for "zigzag" twice that number.
        layout: "zigzag", "striped" or "contiguous".
        device: Where the positions are made.

    Returns:
        The positions, (tokens / ranks,). Whatever depends on positions, such as rotary embeddings, needs them.

    Raises:
        ValueError: The sequence cannot be dealt out so, or there is no such rank or layout.

    References:
        Brandon et al. (2023), Striped Attention. Zigzag: Grattafiori et al. (2024), The Llama 3 Herd of
        Models, section 3.3.2.

    Examples:
        >>> [positions_of_rank(8, rank=rank, ranks=2).tolist() for rank in (0, 1)]
        [[0, 1, 6, 7], [2, 3, 4, 5]]
        >>> [positions_of_rank(8, rank=rank, ranks=2, layout="striped").tolist() for rank in (0, 1)]
        [[0, 2, 4, 6], [1, 3, 5, 7]]
    """
    require_positive(ranks=ranks)
    if not 0 <= rank < ranks:
        raise ValueError(f"rank is {rank}; of {ranks} ranks it is 0 to {ranks - 1}")
    parts = 2 * ranks if layout == "zigzag" else ranks
    if tokens % parts:
        raise ValueError(
            f"tokens is {tokens}; {layout} on {ranks} ranks takes a multiple of {parts}: pad by {-tokens % parts}"
        )
    positions = torch.arange(tokens, device=device)
    if layout == "striped":
        return positions[rank::ranks]
    chunks = positions.chunk(parts)
    return torch.cat([chunks[rank], chunks[-1 - rank]]) if layout == "zigzag" else chunks[rank]


@checked
def ring_bytes(
    batch: int,
    kv_heads: int,
    tokens: int,
    head_dim: int,
    *,
    ranks: int,
    dtype: torch.dtype = torch.float32,
    backward: bool = False,
) -> int:
    """Return how many bytes each rank sends in one `ring_attention`.

    Equation: (41.1)

    The keys and values of a rank visit all others, in the backward pass once more, and there a gradient comes back for
    each, in float32 at least. That all is proportional to the tokens a rank has, and not to their square.

    Args:
        batch: Number of sequences.
        kv_heads: Heads of keys and values.
        tokens: Tokens of the whole sequence.
        head_dim: Features of a head.
        ranks: Number of ranks.
        dtype: Type of keys and values.
        backward: Count the backward pass too.

    Returns:
        Bytes.

    Examples:
        >>> ring_bytes(1, 8, 131_072, 128, ranks=8, dtype=torch.bfloat16) / 2**20
        448.0
    """
    require_positive(ranks=ranks)
    numbers = 2 * batch * kv_heads * (tokens // ranks) * head_dim
    visits = dtype.itemsize + (dtype.itemsize + _gradient_type(dtype).itemsize if backward else 0)
    return (ranks - 1) * numbers * visits


def ring_attention(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch kv_heads keys head_dim"],
    value: Float[Tensor, "batch kv_heads keys value_dim"],
    *,
    is_causal: bool = False,
    layout: RingLayout = "zigzag",
    scale: float | None = None,
    group: dist.ProcessGroup | None = None,
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Attend to a sequence of which every rank has a part: keys and values go around, queries stay.

    At each of as many steps as there are ranks, a rank attends to the keys that it holds and passes them on to the next
    rank. What the steps give is merged by their log-sum-exp, so that no rank ever has the whole sequence. In the
    backward pass keys and values go around once more, and their gradients with them, home again.

    On a CPU it runs PyTorch's fused kernel. Elsewhere it runs `unmasked.tiles`, and plain products in the backward
    pass, whose memory is that of the scores of one rank's queries and keys.

    Args:
        query: (batch, heads, queries, head_dim), this rank's part, as `positions_of_rank` says.
        key: (batch, kv_heads, keys, head_dim), likewise; kv_heads divides heads.
        value: (batch, kv_heads, keys, value_dim), likewise.
        is_causal: No query sees a later key, by their positions in the whole sequence.
        layout: How the tokens are dealt out, which only a causal ring must know.
        scale: What the dot products are multiplied by; 1 / sqrt(head_dim) by default.
        group: The ranks; all that there are by default.

    Returns:
        The contexts of this rank's queries.

    Raises:
        TypeError: The tensors differ in dtype.
        ValueError: The ranks differ in a shape, a dtype or an option, which all of them then say; or the tensors do
            not fit together.
        RuntimeError: A rank died, or was not heard of before the group's timeout.

    References:
        Liu et al. (2023), Ring Attention with Blockwise Transformers. Brandon et al. (2023), Striped Attention.

    Examples:
        >>> from unmasked.parallel import launch
        >>> x = torch.randn(1, 3, 8, 4)
        >>> def work():
        ...     mine = x[:, :, positions_of_rank(8, rank=dist.get_rank(), ranks=2)]
        ...     return ring_attention(mine, mine, mine, is_causal=True)
        >>> parts = torch.cat(launch(work, ranks=2), dim=2)
        >>> order = torch.cat([positions_of_rank(8, rank=rank, ranks=2) for rank in (0, 1)])
        >>> whole = torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
        >>> torch.allclose(parts, whole[:, :, order], atol=1e-6)
        True
    """

    def check() -> float:
        _check(query, key, value)
        flag("is_causal", is_causal)
        choice("layout", layout, *get_args(RingLayout))
        if query.dim() != 4:
            raise ValueError(f"query has shape {tuple(query.shape)}; it must be (batch, heads, tokens, head_dim)")
        require_values(query=query, key=key, value=value)
        if query.size(0) != key.size(0):
            raise ValueError(f"query has {query.size(0)} sequences and key {key.size(0)}; a ring needs as many of both")
        if is_causal and query.size(2) != key.size(2):
            raise ValueError(
                f"query has {query.size(2)} tokens and key {key.size(2)}; a causal ring needs as many of both"
            )
        if is_causal and layout == "zigzag" and query.size(2) % 2:
            raise ValueError(
                f"query has {query.size(2)} tokens; zigzag gives each rank two parts of one size: pad by 1"
            )
        return _scale(query, scale)

    factor = agree(
        "ring_attention",
        group,
        check,
        query=query,
        key=key,
        value=value,
        is_causal=is_causal,
        layout=layout,
        scale=scale,
        gradients=torch.is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in (query, key, value)),
    )  # before anything is sent: all ranks refuse what one refuses
    if factor <= 0:  # the kernel's own future is NaN unless the scale is positive: its sign, or all of it, goes first
        query, factor = query * factor, 1.0
    ring = _Ring(group, dist.get_rank(group), dist.get_world_size(group), layout if is_causal else None, factor)
    context: Tensor = _RingAttention.apply(query, key, value, ring)
    return context


@dataclass(frozen=True)
class _Ring:
    """The ranks in a circle, each of which sends to the next one."""

    group: dist.ProcessGroup | None
    rank: int
    ranks: int
    causal_layout: RingLayout | None
    scale: float

    def pass_on(self, sent: Tensor) -> Callable[[], Tensor]:
        """Send to the next rank, and return what waits for what comes from the one before."""
        received = torch.empty_like(sent)
        after, before = (self.rank + 1) % self.ranks, (self.rank - 1) % self.ranks
        peers = f"rank {before} or {after}"
        with lost("ring_attention", peers, self.group):
            works = dist.batch_isend_irecv(
                [
                    dist.P2POp(dist.isend, sent, group=self.group, group_peer=after),
                    dist.P2POp(dist.irecv, received, group=self.group, group_peer=before),
                ]
            )

        def wait() -> Tensor:
            with lost("ring_attention", peers, self.group):
                for work in works:
                    work.wait()
            tally(to_next=sent.nbytes)  # which is kept until it has arrived
            return received

        return wait

    def seen(self, owner: int, queries: int, keys: int) -> tuple[slice, slice, bool] | None:
        """Say which of this rank's queries see which of an owner's keys, and whether only those before them."""
        everything = slice(None)
        if self.causal_layout is None:
            return everything, everything, False
        if owner == self.rank:  # each layout keeps the order of the tokens
            return everything, everything, True
        if self.causal_layout == "contiguous":
            return (everything, everything, False) if owner < self.rank else None
        if self.causal_layout == "striped":  # of two tokens dealt out together, the earlier rank has the earlier one
            if owner < self.rank:
                return everything, everything, True
            return (slice(1, None), slice(keys - 1), True) if keys > 1 else None
        half = keys // 2  # zigzag: the earlier rank has the earlier beginning, and the later end
        return (everything, slice(half), False) if owner < self.rank else (slice(half, None), everything, False)


def _gradient_type(dtype: torch.dtype) -> torch.dtype:
    """In which type gradients of several ranks are added up: float32 at least."""
    return torch.promote_types(dtype, torch.float32)


def _packed(*tensors: Tensor) -> Tensor:
    return torch.cat([x.flatten() for x in tensors])


def _unpacked(packed: Tensor, *like: Tensor) -> tuple[Tensor, ...]:
    parts = packed.split([x.numel() for x in like])
    return tuple(part.view(x.shape) for part, x in zip(parts, like, strict=True))


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, ring: _Ring) -> Tensor:
        # The kernel takes the features to lie side by side, and would read others.
        query = query if query.stride(-1) == 1 else query.contiguous()
        exact = _gradient_type(query.dtype)
        for step, held in enumerate(_around(ring, key, value)):
            seen = ring.seen((ring.rank - step) % ring.ranks, query.size(2), key.size(2))
            if seen is None:
                continue
            rows, columns, causal = seen
            k, v = (x[:, :, columns] for x in held)
            part = _attend(query[:, :, rows], k, v, causal, ring.scale)
            if step == 0:  # every query sees a key of its own rank
                context, logsumexp = part[0].to(exact), part[1]
                continue
            merged = merge([(context[:, :, rows], logsumexp[:, :, rows]), (part[0].to(exact), part[1])])
            context[:, :, rows], logsumexp[:, :, rows] = merged
        context = context.to(query.dtype)
        ctx.save_for_backward(query, key, value, context, logsumexp)
        ctx.ring = ring
        return context

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, context, logsumexp = ctx.saved_tensors
        ring: _Ring = ctx.ring
        agree("ring_attention's backward pass", ring.group, gradient=gradient)
        exact = _gradient_type(query.dtype)
        grad_query = torch.zeros_like(query, dtype=exact)
        own, arriving = query.new_zeros(0), None
        for step, held in enumerate(_around(ring, key, value)):
            grad_held = [torch.zeros_like(x, dtype=exact) for x in held]
            seen = ring.seen((ring.rank - step) % ring.ranks, query.size(2), key.size(2))
            if seen is not None:
                rows, columns, causal = seen
                q, o, g, lse = (x[:, :, rows] for x in (query, context, gradient, logsumexp))
                k, v = (x[:, :, columns] for x in held)
                dq, dk, dv = _attend_backward(g, q, k, v, o, lse, causal, ring.scale)
                grad_query[:, :, rows] += dq
                grad_held[0][:, :, columns] += dk
                grad_held[1][:, :, columns] += dv
            if step == 0:  # the gradients of its own keys and values stay there
                own = _packed(*grad_held)
                continue
            travelling = _packed(*grad_held)
            if arriving is not None:  # the gradients that ranks before have for the same keys and values
                travelling += arriving()
            arriving = ring.pass_on(travelling)
        if arriving is not None:  # the last rank that they visit is the one before their own
            own = own + arriving()
        grad_key, grad_value = (x.to(query.dtype) for x in _unpacked(own, key, value))
        return grad_query.to(query.dtype), grad_key, grad_value, None


def _around(ring: _Ring, key: Tensor, value: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield the keys and values that this rank holds at each step; the next ones come while they are computed with."""
    held = _packed(key, value)
    for step in range(ring.ranks):
        arriving = ring.pass_on(held) if step < ring.ranks - 1 else None
        yield _unpacked(held, key, value)
        if arriving is not None:
            held = arriving()


def _runs_fused(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Tell whether the kernel takes them: it divides by heads and tokens, and ends the process where there are none."""
    return query.device.type == "cpu" and query.size(-1) == value.size(-1) and query.numel() > 0 and key.numel() > 0


def _attend(query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """Attend to the keys at hand; return the contexts and the log-sum-exp of each query's scores."""
    if _runs_fused(query, key, value) and (fused := flash_attention(query, key, value, 0.0, causal, scale=scale)):
        return fused
    return tiled_attention(query, key, value, is_causal=causal, scale=scale)


def _attend_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    context: Tensor,
    logsumexp: Tensor,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients that come through the keys at hand, of a softmax over more keys than these."""
    if _runs_fused(query, key, value):
        inputs = (gradient, query, key, value, context, logsumexp)
        if fused := flash_attention_backward(*inputs, 0.0, causal, scale=scale):
            return fused
    allowed = masks.causal(query.size(2), key.size(2), device=query.device) if causal else None
    widened = (x.to(logsumexp.dtype) for x in (gradient, query, key, value))
    return attention_backward(*widened, allowed=allowed, scale=scale, saved=(context, logsumexp))
