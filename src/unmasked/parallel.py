"""Attention on more than one device: each has some of the heads, or some of the tokens.

The processes of a `torch.distributed` group, its *ranks*, compute one attention together; outputs and gradients are
those of the whole. Heads in parallel need all tokens on every rank, and a head for each rank at least. A ring needs
neither: it sends the keys and values around, and merges what each rank found in them.

Both are written to be read, and held to PyTorch's own where that runs. In production take
`torch.distributed.tensor.parallel` and `torch.distributed.tensor.experimental.context_parallel`, as the page says.

Run as a module, by torchrun or by itself, it demonstrates both.
"""

from __future__ import annotations

import sys
from typing import Any, get_args

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

from unmasked._checks import require_divides, require_positive
from unmasked._ranks import Sent, agree, counted, lost, tally, together
from unmasked._ring import Layout, Ring, RingAttention, gradient_type
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
        Brandon et al. (2023), Striped Attention. Zigzag: Grattafiori et al. (2024), The Llama 3 Herd of
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
    numbers = 2 * batch * kv_heads * (tokens // ranks) * head_dim
    visits = dtype.itemsize + (dtype.itemsize + gradient_type(dtype).itemsize if backward else 0)
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
    ring = Ring(group, dist.get_rank(group), dist.get_world_size(group), layout if is_causal else None, scale)
    context: Tensor = RingAttention.apply(query, key, value, ring)
    return context


def _require_layout(layout: str) -> None:
    if layout not in get_args(Layout):
        raise ValueError(f"layout is {layout!r}; choose {', '.join(map(repr, get_args(Layout)))}")


# --- heads ---


class HeadParallel(nn.Module):
    """A layer of self-attention of which every rank has some of the heads: its rows of qkv, its columns of out_proj.

    Each rank projects the same tokens to its own heads (column parallel), attends with them, and projects their
    contexts to the output (row parallel). Those outputs are summed over the ranks, and the bias is added once.

    Args:
        layer: The whole layer, the same on all ranks: what the first rank has is sent to the others, in place. Of
            its parameters, this rank keeps a copy of its part.
        is_causal: Whether no token sees a later one; None, the default, for what the layer itself does.
        group: The ranks; all that there are by default.

    Raises:
        ValueError: The ranks, as many as the group has, do not divide the heads; the layer drops weights, which each
            rank would draw for itself, or has batch_first=False; or the ranks differ.
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
        if not getattr(layer, "batch_first", True):
            raise ValueError(
                "layer has batch_first=False, and takes (tokens, batch, features); HeadParallel takes (batch, tokens, "
                "features): make the layer with batch_first=True"
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
    tally(reduced=total.nbytes)
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


if __name__ == "__main__":
    from unmasked._demonstration import main

    sys.exit(main())
