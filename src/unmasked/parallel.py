"""Attention on more than one device: each has some of the heads, or some of the tokens.

The processes of a `torch.distributed` group, its *ranks*, compute one attention together; outputs and gradients are
those of the whole. Heads in parallel need all tokens on every rank, and a head for each rank at least. A ring needs
neither: it sends the keys and values around, and merges what each rank found in them.

Both are written to be read, and held to PyTorch's own where that runs. In production take
`torch.distributed.tensor.parallel` and `torch.distributed.tensor.experimental.context_parallel`, as the page says.

``torchrun --nproc-per-node 2 -m unmasked.parallel`` runs a demonstration.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, get_args

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.distributed.rendezvous import rendezvous

from unmasked import masks
from unmasked._checks import require_divides, require_positive
from unmasked._ranks import agree, joined, lost, together
from unmasked._shapes import Float, Int
from unmasked.causal import CausalSelfAttention
from unmasked.functional import scaled_dot_product_attention
from unmasked.heads import merge_heads, split_heads

__all__ = [
    "HeadParallel",
    "Sent",
    "counted",
    "head_bytes",
    "positions_of_rank",
    "ring_attention",
    "ring_bytes",
    "together",
]

Layout = Literal["zigzag", "striped", "contiguous"]


@dataclass
class Sent:
    """What a rank has sent while it was counted, see `counted`.

    Attributes:
        to_next: Bytes that were sent to the next rank of a ring.
        reduced: Bytes that were handed to an all-reduce. It sends 2 (ranks - 1) / ranks of them where it is a ring.
    """

    to_next: int = 0
    reduced: int = 0


_counts: list[Sent] = []


@contextmanager
def counted() -> Iterator[Sent]:
    """Count the bytes of tensors that this rank sends, in `ring_attention` and `HeadParallel`.

    The few hundred bytes by which the ranks agree on each call are not counted.

    Yields:
        The counts, which grow until the end of the block.

    Examples:
        >>> def work():
        ...     q = torch.ones(1, 1, 4, 8)  # 4 tokens of 8, in float32
        ...     with counted() as sent:
        ...         ring_attention(q, q, q)
        ...     return sent.to_next
        >>> together(work, ranks=2)  # keys and values, to the other rank
        [256, 256]
    """
    count = Sent()
    _counts.append(count)
    try:
        yield count
    finally:
        _counts.remove(count)


def positions_of_rank(
    tokens: int, *, rank: int, ranks: int, layout: Layout = "zigzag", device: torch.device | str | None = None
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
        Brandon et al. (2023), Striped Attention, section 3. Zigzag: Grattafiori et al. (2024), The Llama 3 Herd of
        Models, section 3.3.2.

    Examples:
        >>> [positions_of_rank(8, rank=rank, ranks=2).tolist() for rank in (0, 1)]
        [[0, 1, 6, 7], [2, 3, 4, 5]]
        >>> [positions_of_rank(8, rank=rank, ranks=2, layout="striped").tolist() for rank in (0, 1)]
        [[0, 2, 4, 6], [1, 3, 5, 7]]
    """
    _require_layout(layout)
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
    numbers = 2 * batch * kv_heads * (tokens // ranks) * head_dim
    visits = dtype.itemsize + (dtype.itemsize + _gradient_type(dtype).itemsize if backward else 0)
    return (ranks - 1) * numbers * visits


def head_bytes(
    batch: int, tokens: int, d_in: int, d_out: int, *, dtype: torch.dtype = torch.float32, backward: bool = False
) -> int:
    """Return how many bytes each rank hands to an all-reduce in one call of `HeadParallel`, whatever their number.

    Args:
        batch: Number of sequences.
        tokens: Their tokens.
        d_in: Features of the input, whose gradients are summed.
        d_out: Features of the output, which is summed.
        dtype: Their type.
        backward: Count the backward pass too.

    Returns:
        Bytes.

    Examples:
        >>> head_bytes(1, 131_072, 4096, 4096, dtype=torch.bfloat16) / 2**20
        1024.0
    """
    return batch * tokens * (d_out + (d_in if backward else 0)) * dtype.itemsize


# --- tokens: the ring ---


def ring_attention(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch kv_heads keys head_dim"],
    value: Float[Tensor, "batch kv_heads keys value_dim"],
    *,
    is_causal: bool = False,
    layout: Layout = "zigzag",
    scale: float | None = None,
    group: dist.ProcessGroup | None = None,
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Attend to a sequence of which every rank has a part: keys and values go around, queries stay.

    At each of as many steps as there are ranks, a rank attends to the keys that it holds and passes them on to the next
    rank. What the steps give is merged by their log-sum-exp, so that no rank ever has the whole sequence. In the
    backward pass keys and values go around once more, and their gradients with them, home again.

    On a CPU it runs PyTorch's fused kernel; elsewhere plain products, whose memory is that of one rank's scores.

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
        ValueError: The ranks differ in a shape, a dtype or an option, which all of them then say; or the tensors do
            not fit together.
        RuntimeError: A rank died, or was not heard of before the group's timeout.

    References:
        Liu et al. (2023), Ring Attention with Blockwise Transformers. Brandon et al. (2023), Striped Attention.

    Examples:
        >>> x = torch.randn(1, 3, 8, 4)
        >>> def work():
        ...     mine = x[:, :, positions_of_rank(8, rank=dist.get_rank(), ranks=2)]
        ...     return ring_attention(mine, mine, mine, is_causal=True)
        >>> parts = torch.cat(together(work, ranks=2), dim=2)
        >>> order = torch.cat([positions_of_rank(8, rank=rank, ranks=2) for rank in (0, 1)])
        >>> whole = F.scaled_dot_product_attention(x, x, x, is_causal=True)
        >>> torch.allclose(parts, whole[:, :, order], atol=1e-6)
        True
    """
    needs_grad = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
    agree(
        "ring_attention",
        group,
        query=query,
        key=key,
        value=value,
        is_causal=is_causal,
        layout=layout,
        scale=scale,
        gradients=needs_grad,
    )  # before any other check: what one rank refuses, all must
    _require_layout(layout)
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.dim() != 4:
            raise ValueError(f"{name} has shape {tuple(x.shape)}; it must be (batch, heads, tokens, head_dim)")
        if x.dtype != query.dtype:
            raise ValueError(f"{name} is {x.dtype} but query is {query.dtype}; cast one to the other")
    if key.shape[:-1] != value.shape[:-1] or query.size(0) != key.size(0) or query.size(-1) != key.size(-1):
        raise ValueError(
            f"query, key and value have the shapes {tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)}; "
            "they must agree in batch, query and key in head_dim, key and value in heads and tokens"
        )
    require_divides("query's heads", query.size(1), "key's heads", key.size(1))
    if is_causal and query.size(2) != key.size(2):
        raise ValueError(f"query has {query.size(2)} tokens and key {key.size(2)}; a causal ring needs as many of both")
    if is_causal and layout == "zigzag" and query.size(2) % 2:
        raise ValueError(f"query has {query.size(2)} tokens; zigzag gives each rank two parts of one size: pad by 1")
    scale = query.size(-1) ** -0.5 if scale is None else scale
    ring = _Ring(group, dist.get_rank(group), dist.get_world_size(group), layout if is_causal else None, scale)
    context: Tensor = _RingAttention.apply(query, key, value, ring)
    return context


@dataclass(frozen=True)
class _Ring:
    """The ranks in a circle, each of which sends to the next one."""

    group: dist.ProcessGroup | None
    rank: int
    ranks: int
    causal_layout: Layout | None
    scale: float

    def pass_on(self, sent: Tensor) -> _Passing:
        received = torch.empty_like(sent)
        after, before = (self.rank + 1) % self.ranks, (self.rank - 1) % self.ranks
        with lost("ring_attention", f"rank {before} or {after}", self.group):
            works = dist.batch_isend_irecv(
                [
                    dist.P2POp(dist.isend, sent, group=self.group, group_peer=after),
                    dist.P2POp(dist.irecv, received, group=self.group, group_peer=before),
                ]
            )
        for count in _counts:
            count.to_next += sent.nbytes
        return _Passing(self, sent, received, works)

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


@dataclass(frozen=True)
class _Passing:
    ring: _Ring
    sent: Tensor  # kept until it has arrived
    received: Tensor
    works: list[dist.Work]

    def wait(self) -> Tensor:
        before, after = (self.ring.rank - 1) % self.ring.ranks, (self.ring.rank + 1) % self.ring.ranks
        with lost("ring_attention", f"rank {before} or {after}", self.ring.group):
            for work in self.works:
                work.wait()
        return self.received


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
        exact = _gradient_type(query.dtype)
        context = query.new_zeros(*query.shape[:-1], value.size(-1), dtype=exact)
        logsumexp = query.new_full(query.shape[:-1], -torch.inf, dtype=exact)
        for step, held in enumerate(_around(ring, key, value)):
            seen = ring.seen((ring.rank - step) % ring.ranks, query.size(2), key.size(2))
            if seen is None:
                continue
            rows, columns, causal = seen
            k, v = (x[:, :, columns] for x in held)
            part = _attend(query[:, :, rows], k, v, causal, ring.scale)
            merged = part if step == 0 else _merge([(context[:, :, rows], logsumexp[:, :, rows]), part])
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
            if step == 0:  # what is found at home stays there
                own = _packed(*grad_held)
                continue
            travelling = _packed(*grad_held)
            if arriving is not None:  # what the ranks before have found in the same keys and values
                travelling += arriving.wait()
            arriving = ring.pass_on(travelling)
        if arriving is not None:  # the last rank that they visit is the one before their own
            own = own + arriving.wait()
        grad_key, grad_value = (x.to(query.dtype) for x in _unpacked(own, key, value))
        return grad_query.to(query.dtype), grad_key, grad_value, None


def _around(ring: _Ring, key: Tensor, value: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield the keys and values that this rank holds at each step; the next ones come while they are computed with."""
    held = _packed(key, value)
    for step in range(ring.ranks):
        passing = ring.pass_on(held) if step < ring.ranks - 1 else None
        yield _unpacked(held, key, value)
        if passing is not None:
            held = passing.wait()


def _merge(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Merge contexts over different keys, each with the log-sum-exp of its scores, which says how much it weighs."""
    contexts, logsumexps = (torch.stack(each) for each in zip(*parts, strict=True))
    whole = logsumexps.logsumexp(0)
    shares = (logsumexps - whole).exp().unsqueeze(-1)
    return (shares * contexts).sum(0), whole


def _runs_fused(query: Tensor, value: Tensor) -> bool:
    return query.device.type == "cpu" and query.size(-1) == value.size(-1)


def _attend(query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """Attend to the keys at hand; return the contexts and the log-sum-exp of each query's scores."""
    if _runs_fused(query, value):  # the operator below F.scaled_dot_product_attention, which hides the log-sum-exp
        fused: tuple[Tensor, Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, causal, scale=scale
        )
        return fused
    scores = _scores(query, key, causal, scale)
    logsumexp = scores.logsumexp(-1)
    weights = (scores - logsumexp.unsqueeze(-1)).exp()
    return (weights @ value.to(weights.dtype).unsqueeze(2)).flatten(1, 2), logsumexp.flatten(1, 2)


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
    """Return the gradients that come through the keys at hand, of a softmax over more keys than these.

    The weights are those of the whole softmax, because logsumexp is that of the whole row; and so is the sum that each
    row of the scores' gradients takes off, because context is the whole one.
    """
    if _runs_fused(query, value):
        fused: tuple[Tensor, Tensor, Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            gradient, query, key, value, context, logsumexp, 0.0, causal, scale=scale
        )
        return fused
    scores = _scores(query, key, causal, scale)  # batch kv_heads group queries keys
    weights = (scores - logsumexp.unflatten(1, scores.shape[1:3]).unsqueeze(-1)).exp()
    g, o, q = (x.to(weights.dtype).unflatten(1, scores.shape[1:3]) for x in (gradient, context, query))
    k, v = (x.to(weights.dtype).unsqueeze(2) for x in (key, value))
    grad_scores = weights * (g @ v.mT - (g * o).sum(-1, keepdim=True)) * scale
    grad_key, grad_value = (x.sum(2) for x in (grad_scores.mT @ q, weights.mT @ g))  # of all heads that share them
    return (grad_scores @ k).flatten(1, 2), grad_key, grad_value


def _scores(query: Tensor, key: Tensor, causal: bool, scale: float) -> Tensor:
    exact = _gradient_type(query.dtype)
    q = query.to(exact).unflatten(1, (key.size(1), -1))  # batch kv_heads group queries head_dim
    scores: Tensor = (q * scale) @ key.to(exact).unsqueeze(2).mT
    if causal:
        scores = scores.masked_fill(~masks.causal(*scores.shape[-2:], device=scores.device), -torch.inf)
    return scores


def _require_layout(layout: str) -> None:
    if layout not in get_args(Layout):
        raise ValueError(f"layout is {layout!r}; choose {', '.join(map(repr, get_args(Layout)))}")


# --- heads ---


class HeadParallel(nn.Module):
    """A layer of self-attention of which every rank has some of the heads: its rows of qkv, its columns of out_proj.

    Each rank projects the same tokens to its own heads (column parallel), attends with them, and projects their
    contexts to the output (row parallel). Those outputs are summed over the ranks, and the bias is added once.

    Args:
        layer: The whole layer, the same on all ranks: what rank 0 has is sent to the others, in place. Its parameters
            are copied; this rank keeps its part of them.
        is_causal: Whether no token sees a later one: by default True for CausalSelfAttention, otherwise False.
        group: The ranks; all that there are by default.

    Raises:
        ValueError: The ranks, as many as the group has, do not divide the heads; the layer drops weights, which each
            rank would draw for itself; or the ranks differ.
        TypeError: The layer is neither a CausalSelfAttention nor an nn.MultiheadAttention that projects one input.

    References:
        Shoeybi et al. (2019), Megatron-LM, section 3.

    Examples:
        >>> layer, x = CausalSelfAttention(d_in=6, d_out=8, num_heads=4), torch.randn(2, 5, 6)
        >>> def work():
        ...     return HeadParallel(layer)(x).detach()
        >>> [torch.allclose(output, layer(x), atol=1e-6) for output in together(work, ranks=2)]
        [True, True]
    """

    def __init__(
        self,
        layer: CausalSelfAttention | nn.MultiheadAttention,
        *,
        is_causal: bool | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        agree("HeadParallel", group, layer=type(layer).__name__, **dict(layer.named_parameters()))
        appends = getattr(layer, "bias_k", None) is not None or getattr(layer, "add_zero_attn", False)
        if isinstance(layer, CausalSelfAttention):
            heads, kv_heads, dim = layer.num_heads, layer.num_kv_heads, layer.head_dim
            weight, bias = layer.qkv.weight, layer.qkv.bias
            is_causal = True if is_causal is None else is_causal
        elif isinstance(layer, nn.MultiheadAttention) and layer.in_proj_weight is not None and not appends:
            heads, kv_heads, dim = layer.num_heads, layer.num_heads, layer.head_dim
            weight, bias = layer.in_proj_weight, layer.in_proj_bias
        else:
            raise TypeError(
                f"layer is a {type(layer).__name__} that cannot be shared out; give a CausalSelfAttention, or an "
                "nn.MultiheadAttention of one width that appends no keys"
            )
        require_divides("num_heads", heads, "the number of ranks", ranks)
        require_divides("num_kv_heads", kv_heads, "the number of ranks", ranks)
        if layer.dropout:
            raise ValueError(f"dropout is {layer.dropout}; each rank would drop other weights: set layer.dropout to 0")
        with torch.no_grad(), lost("HeadParallel", "another rank", group):
            for parameter in layer.parameters():
                dist.broadcast(parameter, group=group, group_src=0)
        self.group, self.is_causal = group, bool(is_causal)
        self.rotary = getattr(layer, "rotary", None)
        self.num_heads, self.num_kv_heads = heads // ranks, kv_heads // ranks
        rows = torch.cat(
            [
                start * dim + torch.arange(count * dim).chunk(ranks)[rank]
                for start, count in ((0, heads), (heads, kv_heads), (heads + kv_heads, kv_heads))
            ]
        ).to(weight.device)
        columns = torch.arange(heads * dim, device=weight.device).chunk(ranks)[rank]
        out_bias = layer.out_proj.bias
        self.qkv_weight = nn.Parameter(weight.detach()[rows])
        self.qkv_bias = None if bias is None else nn.Parameter(bias.detach()[rows])
        self.out_weight = nn.Parameter(layer.out_proj.weight.detach()[:, columns])
        self.out_bias = None if out_bias is None else nn.Parameter(out_bias.detach().clone())  # all of it, on each rank

    def forward(self, x: Float[Tensor, "*batch tokens d_in"]) -> Float[Tensor, "*batch tokens d_out"]:
        """Attend with this rank's heads, and add up what all ranks' heads give.

        Args:
            x: (..., tokens, d_in), the same on all ranks.

        Returns:
            (..., tokens, d_out), the same on all ranks, and so is the gradient of x.

        Raises:
            ValueError: The ranks differ in shape or dtype, or x has another width.
            RuntimeError: A rank died, or was not heard of before the group's timeout.
        """
        agree("HeadParallel", self.group, x=x, gradients=torch.is_grad_enabled())
        if x.dim() < 2 or x.size(-1) != self.qkv_weight.size(1):
            raise ValueError(f"x has shape {tuple(x.shape)}; it must be (..., tokens, {self.qkv_weight.size(1)})")
        entered: Tensor = _SumBackward.apply(x, self.group)
        rows = F.linear(entered, self.qkv_weight, self.qkv_bias)
        heads, kv_heads = self.num_heads, self.num_kv_heads
        head_dim = rows.size(-1) // (heads + 2 * kv_heads)
        query, key, value = rows.split([heads * head_dim, kv_heads * head_dim, kv_heads * head_dim], dim=-1)
        q, k, v = split_heads(query, heads), split_heads(key, kv_heads), split_heads(value, kv_heads)
        if self.rotary is not None:
            positions = torch.arange(x.size(-2), device=x.device)
            q, k = self.rotary(q, positions), self.rotary(k, positions)
        context = scaled_dot_product_attention(q, k, v, is_causal=self.is_causal).context
        partial = F.linear(merge_heads(context), self.out_weight)
        output: Tensor = _SumForward.apply(partial, self.group)
        return output if self.out_bias is None else output + self.out_bias  # once: not before the sum


def _summed(x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    total = x.clone(memory_format=torch.contiguous_format)
    with lost("HeadParallel", "another rank", group):
        dist.all_reduce(total, group=group)
    for count in _counts:
        count.reduced += total.nbytes
    return total


class _SumBackward(torch.autograd.Function):
    """Nothing on the way in; on the way back, the sum of the gradients that come through each rank's heads."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _summed(gradient, ctx.group), None


class _SumForward(torch.autograd.Function):
    """The sum over the ranks; every rank has the same loss of it, so that its gradient goes back as it is."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        return _summed(x, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


# --- the demonstration ---


def _demonstrate(tokens: int) -> list[tuple[str, float, float, int, int]]:
    """Compare heads in parallel, and a ring of each layout, with the whole: what, off by, gradients off by, bytes."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    torch.manual_seed(0)
    layer = CausalSelfAttention(12 * ranks, 16 * ranks, num_heads=2 * ranks, num_kv_heads=ranks, device=device)
    x = torch.randn(2, tokens, layer.d_in, device=device, requires_grad=True)
    cotangent = torch.randn(2, tokens, layer.d_out, device=device)
    with counted() as sent:
        output = HeadParallel(layer)(x)
        (gradient,) = torch.autograd.grad(output, x, cotangent)
    right = layer(x)
    rows = [
        (
            "heads in parallel",
            _off(output, right),
            _off(gradient, torch.autograd.grad(right, x, cotangent)[0]),
            sent.reduced,
            head_bytes(2, tokens, layer.d_in, layer.d_out, backward=True),
        )
    ]
    q = torch.randn(2, 2 * ranks, tokens, 8, device=device, requires_grad=True)
    k, v = (torch.randn(2, ranks, tokens, 8, device=device, requires_grad=True) for _ in range(2))
    cotangent = torch.randn_like(q)
    right = scaled_dot_product_attention(q, k, v, is_causal=True).context
    whole = torch.autograd.grad(right, (q, k, v), cotangent)
    for layout in get_args(Layout):
        mine = positions_of_rank(tokens, rank=rank, ranks=ranks, layout=layout, device=device)
        with counted() as sent:
            output = ring_attention(*(each[:, :, mine] for each in (q, k, v)), is_causal=True, layout=layout)
            gradients = torch.autograd.grad(output, (q, k, v), cotangent[:, :, mine])
        off = max(_off(a[:, :, mine], b[:, :, mine]) for a, b in zip(gradients, whole, strict=True))
        expected = ring_bytes(2, ranks, tokens, 8, ranks=ranks, backward=True)
        rows.append((f"ring, {layout}", _off(output, right[:, :, mine]), off, sent.to_next, expected))
    return rows


def _off(given: Tensor, right: Tensor) -> float:
    """Return the largest difference that any rank has, against the largest number that is right."""
    largest = torch.stack([(given - right).abs().max(), right.abs().max()]).detach()
    with lost("the demonstration", "another rank", None):
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return (largest[0] / largest[1]).item()


def _main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m unmasked.parallel",
        description="Compare heads in parallel and ring attention, causal, forward and backward, with the whole. "
        "Started by torchrun it runs on its processes, otherwise on two of its own.",
    )
    parser.add_argument("--tokens", type=int, default=48, help="a multiple of twice the ranks (default: 48)")
    parser.add_argument("--timeout", type=float, default=20.0, help="seconds to wait for another rank (default: 20)")
    options = parser.parse_args()
    told = False
    try:
        if "RANK" not in os.environ:
            rows = together(_demonstrate, options.tokens, ranks=2, timeout=options.timeout)[0]
        else:
            local = int(os.environ["LOCAL_RANK"])
            on_gpus = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
            if on_gpus:
                torch.cuda.set_device(local)
            store, rank, ranks = next(rendezvous("env://", timeout=timedelta(seconds=options.timeout)))
            with joined(
                options.timeout, backend="nccl" if on_gpus else "gloo", store=store, rank=rank, world_size=ranks
            ):
                try:
                    rows = _demonstrate(options.tokens)
                except (RuntimeError, ValueError):
                    told = store.add("told", 1) > 1  # whoever notices first tells
                    raise
            if rank:
                return 0
    except (RuntimeError, ValueError) as error:
        if not told:
            print(f"unmasked.parallel: {error}", file=sys.stderr)
        return 1
    header = ("", "output off by", "gradient off by", "bytes sent", "by the formula")
    print("{:20}{:>15}{:>17}{:>12}{:>16}".format(*header))
    for name, off, gradient_off, sent, formula in rows:
        print(f"{name:20}{off:15.0e}{gradient_off:17.0e}{sent:12,}{formula:16,}")
    return 0 if all(sent == formula and max(off, g) < 1e-6 for _, off, g, sent, formula in rows) else 1


if __name__ == "__main__":
    sys.exit(_main())
