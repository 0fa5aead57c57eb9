"""Which kernel PyTorch's function picks."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

__all__ = ["choose"]


def choose(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> SDPBackend:
    """Ask PyTorch; its errors are those of a device without fused kernels, and of a call that it does not take."""

    def ask(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> SDPBackend:
        choice = torch._fused_sdp_choice(q, k, v, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        return SDPBackend(int(choice))

    choice = ask(query, key, value, attn_mask)
    if choice != SDPBackend.MATH and query.dim() == 3:
        # From 2.14 on, three axes are made four first. Asked of three, PyTorch overlooks a mask that requires grad.
        mask = attn_mask[None] if attn_mask is not None and attn_mask.dim() % 2 else attn_mask
        choice = ask(query[None], key[None], value[None], mask)
    return choice
