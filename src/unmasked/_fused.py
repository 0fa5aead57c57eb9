"""PyTorch's fused attention, handed what its fast kernels take: four axes, one width, and a key for sinks."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["fused", "fused_with_sinks", "kernels_may_run"]


def fused(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool, scale: float, dropout_p: float
) -> Tensor:
    """Hand the work to PyTorch in the one form that its fast kernels take.

    They want four axes, the last of them contiguous, and queries, keys and values of one width; anything else goes,
    silently, to a kernel that holds the whole matrix of scores and is several times slower.
    """
    shape, key_shape, value_dim = query.shape, key.shape, value.size(-1)
    batch = shape[:-3]
    # A step of decoding is over sooner than Python makes views that change nothing: it asks whether they would.
    as_it_is = len(shape) == 4 and shape[0] == key_shape[0] and shape[3] == value_dim
    if as_it_is:
        q, k, v = query, key, value
    else:
        batch = torch.broadcast_shapes(batch, key_shape[:-3])
        q, k, v = (_four_axes(x, batch, max(shape[-1], value_dim)) for x in (query, key, value))
    if not q.stride(-1) == k.stride(-1) == v.stride(-1) == 1:
        q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    is_grouped = False
    if len(shape) > 2 and shape[-3] != key_shape[-3]:  # in a branch: see attend
        is_grouped = True
    if mask is not None:
        if len(batch) > 1 and mask.dim() > 3:
            mask = mask.expand(*batch, *mask.shape[-3:]).flatten(0, -4)
        mask = mask[(None,) * (4 - mask.dim())]  # batch|1 heads|1 queries|1 keys|1
    context = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale, enable_gqa=is_grouped
    )
    return context if as_it_is else context[..., :value_dim].reshape(*batch, *shape[-3:-1], value_dim)


def kernels_may_run() -> bool:
    """Whether PyTorch may take a fused kernel: else a key for sinks would save nothing, and hide what they do."""
    if torch.compiler.is_compiling():
        return True
    cuda = torch.backends.cuda  # whose switches hold for a CPU, too
    return bool(cuda.flash_sdp_enabled() or cuda.mem_efficient_sdp_enabled() or cuda.cudnn_sdp_enabled())


def fused_with_sinks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    scale: float,
    dropout_p: float,
    sinks: Tensor,
) -> Tensor:
    """Put a key in front, with a value of zeros, that scores a query's sink, whatever else the query has.

    A feature more does it: it is the sink in a query, 1 in the front key, and 0 in all others. A sink is a query
    head's, and its place is the query, since heads of queries may share one of keys.
    """
    head_dim, value_dim = query.size(-1), value.size(-1)
    width = (max(head_dim + 1, value_dim) + 7) // 8 * 8  # a GPU's kernels want a multiple of eight
    if scale == 0:  # which is another way to have scores of 0, and none by which a sink can be divided
        query, scale = query * 0, 1.0
    # A sink of -inf takes nothing. The lowest number takes as little, and times 0 it is no NaN.
    largest = torch.finfo(query.dtype).max
    last = sinks.to(torch.promote_types(query.dtype, torch.float32)) / scale
    last = last.clamp(-largest, largest).to(query.dtype)[..., None, None]
    query = torch.cat([query, last.expand(*query.shape[:-1], 1)], -1)
    is_sink = torch.arange(width, device=key.device) == head_dim
    front = is_sink.to(key.dtype).expand(*key.shape[:-2], 1, width)
    key = torch.cat([front, F.pad(key, (0, width - head_dim))], -2)
    value = F.pad(value, (0, width - value_dim, 1, 0))
    # The kernel's own future wants as many queries as keys: the one in front sees the sink alone, and is dropped.
    query = F.pad(query, (0, width - head_dim - 1, int(is_causal), 0))
    if mask is not None:
        mask = F.pad(mask.expand(*mask.shape[:-1], key.size(-2) - 1), (1, 0))  # added: 0 hides no sink
    context = fused(query, key, value, mask, is_causal, scale, dropout_p)
    return context[..., int(is_causal) :, :value_dim]


def _four_axes(x: Tensor, batch: tuple[int, ...], width: int) -> Tensor:
    x = x if x.dim() > 2 else x.unsqueeze(0)
    if x.dim() != 4 or x.shape[:1] != batch:
        x = x.expand(*batch, *x.shape[-3:]).reshape(math.prod(batch), *x.shape[-3:])  # batch heads tokens features
    return F.pad(x, (0, width - x.size(-1))) if x.size(-1) < width else x
