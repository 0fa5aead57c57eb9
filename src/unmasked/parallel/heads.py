"""Heads on more than one rank: each has some of them, and what they give is summed."""

from __future__ import annotations

import re
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from unmasked._checks import checked, require_divides, require_values
from unmasked._layers import class_of, kind_of, refuse_script, require_input, require_room, turned, unknown_options
from unmasked._shapes import Float
from unmasked.causal import CausalSelfAttention
from unmasked.functional import attend
from unmasked.heads import merge_heads, split_heads
from unmasked.parallel.ranks import agree, lost, tally

__all__ = ["HeadParallel", "head_bytes"]

# Options that every rank's part has, or that are refused in words of their own.
_OPTIONS = {"num_kv_heads", "context_length", "dropout", "rotary", "scale", "softcap", "sinks", "qkv_bias", "out_bias"}


@checked
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


class HeadParallel(nn.Module):
    """A layer of self-attention of which every rank has some of the heads: its rows of qkv, its columns of out_proj.

    Each rank projects the same tokens to its own heads (column parallel), attends with them, and projects their
    contexts to the output (row parallel). Those outputs are summed over the ranks, and the bias is added once.

    Args:
        layer: The whole layer, the same on all ranks: what the first rank has is sent to the others, in place. Of
            its parameters, this rank keeps a copy of its part.
        group: The ranks; all that there are by default.

    Raises:
        ValueError: The ranks, as many as the group has, do not divide the heads; the layer drops weights, which each
            rank would draw for itself; or the ranks differ.
        TypeError: The layer is no CausalSelfAttention.

    References:
        Shoeybi et al. (2019), Megatron-LM, section 3.

    Examples:
        >>> from unmasked.parallel import launch
        >>> layer, x = CausalSelfAttention(d_in=6, d_out=8, num_heads=4), torch.randn(2, 5, 6)
        >>> def work():
        ...     return HeadParallel(layer)(x).detach()
        >>> [torch.allclose(output, layer(x), atol=1e-6) for output in launch(work, ranks=2)]
        [True, True]
    """

    def __init__(self, layer: CausalSelfAttention, *, group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        # All that any check below looks at: all ranks refuse what one refuses.
        named = layer.named_parameters() if isinstance(layer, nn.Module) else ()
        made = {name: getattr(layer, name, None) for name in ("num_heads", *sorted(_OPTIONS))}
        options = " ".join(f"{name}={_written(value)}" for name, value in made.items() if value is not None)
        kind = kind_of(layer, CausalSelfAttention)
        agree("HeadParallel", group, layer=kind, options=options, **dict(named))
        if class_of(layer, CausalSelfAttention) is None:
            raise TypeError(f"layer is a {kind}, which cannot be shared out; give a CausalSelfAttention")
        if odd := unknown_options(layer, CausalSelfAttention, _OPTIONS):
            raise ValueError(f"layer was made with {odd[0]}, which HeadParallel does not know: use the layer as it is")
        heads, kv_heads, dim = layer.num_heads, layer.num_kv_heads, layer.head_dim
        require_values(**dict(layer.named_parameters()))
        require_divides("num_heads", heads, "the number of ranks", ranks)
        require_divides("num_kv_heads", kv_heads, "the number of ranks", ranks)
        if layer.dropout:
            raise ValueError(f"dropout is {layer.dropout}; each rank would drop other weights: set layer.dropout to 0")
        with torch.no_grad(), lost("HeadParallel", "another rank", group):
            for parameter in layer.parameters():
                dist.broadcast(parameter, group=group, group_src=0)
        self.group, self.rotary, self.context_length = group, layer.rotary, layer.context_length
        self.scale, self.softcap = layer.scale, layer.softcap
        self.num_heads, self.num_kv_heads = heads // ranks, kv_heads // ranks
        bias, out_bias, sinks = layer.qkv.bias, layer.out_proj.bias, layer.sinks

        def own_rows(x: Tensor) -> nn.Parameter:
            """Take this rank's rows of query, of key and of value."""
            parts = x.detach().split([count * dim for count in (heads, kv_heads, kv_heads)])
            return nn.Parameter(torch.cat([part.chunk(ranks)[rank] for part in parts]))

        self.qkv_weight, self.qkv_bias = own_rows(layer.qkv.weight), None if bias is None else own_rows(bias)
        self.sinks = None if sinks is None else nn.Parameter(sinks.detach().chunk(ranks)[rank].clone())
        self.out_weight = nn.Parameter(layer.out_proj.weight.detach().chunk(ranks, dim=1)[rank].clone())
        self.out_bias = None if out_bias is None else nn.Parameter(out_bias.detach().clone())  # all of it, on each rank

    __prepare_scriptable__ = refuse_script

    def forward(self, x: Float[Tensor, "*batch tokens d_in"]) -> Float[Tensor, "*batch tokens d_out"]:
        """Attend with this rank's heads, and add up what all ranks' heads give.

        Args:
            x: (..., tokens, d_in), the same on all ranks.

        Returns:
            (..., tokens, d_out), the same on all ranks, and so is the gradient of x.

        Raises:
            ValueError: The ranks differ in shape or dtype, or x has another width, or more tokens than context_length.
            RuntimeError: A rank died, or was not heard of before the group's timeout.
        """
        agree("HeadParallel", self.group, x=x, gradients=torch.is_grad_enabled())
        require_input(x, self.qkv_weight.size(1), self.qkv_weight)
        require_room(x.size(-2), 0, self.context_length)
        entered: Tensor = _Sum.apply(x, self.group, "backward")
        rows = F.linear(entered, self.qkv_weight, self.qkv_bias)
        heads = [self.num_heads, self.num_kv_heads, self.num_kv_heads]
        q, k, v = split_heads(rows, sum(heads)).split(heads, dim=-3)
        if self.rotary is not None:
            positions = torch.arange(x.size(-2), device=x.device)
            q, k = (turned(self.rotary, each, positions) for each in (q, k))
        context = attend(q, k, v, is_causal=True, scale=self.scale, softcap=self.softcap, sinks=self.sinks).context
        partial = F.linear(merge_heads(context), self.out_weight)
        output: Tensor = _Sum.apply(partial, self.group, "forward")
        return output if self.out_bias is None else output + self.out_bias  # once: not before the sum


def _written(value: object) -> str:
    """Write an option as it is on every rank alike: without its place in memory."""
    return "a tensor" if isinstance(value, Tensor) else re.sub(r" at 0x\w+", "", repr(value))


def _summed(x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    total = x.clone(memory_format=torch.contiguous_format)
    with lost("HeadParallel", "another rank", group):
        dist.all_reduce(total, group=group)
    tally(reduced=total.nbytes)
    return total


class _Sum(torch.autograd.Function):
    """The sum over the ranks in one of the passes, and nothing in the other one.

    On the way in, every rank has the same tokens, and the gradients that come through each rank's heads are summed. On
    the way out, outputs are summed, and every rank has the same loss of them, so that its gradient goes back as it is.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup | None, where: str) -> Tensor:
        ctx.group, ctx.where = group, where
        return _summed(x, group) if where == "forward" else x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _summed(gradient, ctx.group) if ctx.where == "backward" else gradient, None, None
