"""How PyTorch's function and its module read one boolean mask: for the script `painter.js`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def readings(module: nn.MultiheadAttention, x: Tensor, allowed: Tensor) -> list[dict[str, object]]:
    """What the function and a module make of a mask, and of a query that may see nothing.

    Args:
        module: With one head and `batch_first=True`.
        x: One sentence (1, words, features).
        allowed: Boolean (words, words), True where a query may look, by which the interfaces are told apart. Its last
            row is left out, for what it gets where it may see nothing.

    Returns:
        For the function and for the module: its "kind" and its "name", whether True "allows" a query to look, and what
        the weights of a "blind" query are, "zeros" or "NaN".

    Raises:
        ValueError: An interface reads the mask in neither way.
    """
    nothing = torch.zeros_like(allowed)  # no query may look at anything
    by_function = F.scaled_dot_product_attention(x, x, torch.eye(x.size(1))[None], attn_mask=allowed)
    lost_by_function = F.scaled_dot_product_attention(x, x, x, attn_mask=nothing)
    _, by_module = module(x, x, x, attn_mask=allowed)
    _, lost_by_module = module(x, x, x, attn_mask=~nothing)
    found = (
        ("boolean", "the function", by_function, lost_by_function),
        ("module", "the module", by_module, lost_by_module),
    )
    return [
        {"kind": kind, "name": name, "allows": _allows(name, weights[0], allowed), "blind": _blind(lost)}
        for kind, name, weights, lost in found
    ]


def _allows(name: str, weights: Tensor, allowed: Tensor) -> bool:
    """Whether True lets a query look."""
    looks = weights[:-1] > 0
    for meaning, seen in ((True, allowed), (False, ~allowed)):
        if looks.equal(seen[:-1]):
            return meaning
    raise ValueError(
        f"{name} reads allowed={allowed.int().tolist()} in neither way: its weights are {weights.tolist()}"
    )


def _blind(lost: Tensor) -> str:
    return "NaN" if lost.isnan().all() else "numbers" if lost.any() else "zeros"
