"""The backward pass of attention by hand: the gradients of query, key and value, in the few lines that they are."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from unmasked import masks
from unmasked._arguments import _check
from unmasked._checks import flag, require_beside, tensor
from unmasked._shapes import Bool, Float
from unmasked.functional import _scale, _shared, attention_scores, attention_weights

__all__ = ["Gradients", "attention_backward"]


_SAVED = "saved[0]", "saved[1]"


class Gradients(NamedTuple):
    """The gradients of a loss by query, key and value, each with the shape of its input."""

    query: Tensor
    key: Tensor
    value: Tensor


def attention_backward(
    grad_context: Float[Tensor, "*batch queries value_dim"],
    query: Float[Tensor, "*batch queries head_dim"],
    key: Float[Tensor, "*kv_batch keys head_dim"],
    value: Float[Tensor, "*kv_batch keys value_dim"],
    *,
    allowed: Bool[Tensor, "..."] | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    saved: tuple[Tensor, Tensor] | None = None,
) -> Gradients:
    """Compute the gradients of query, key and value from the gradient of the context, without autograd.

    Equation: (9.1, 9.2, 9.3, 9.4)

    The weights come first, as in the forward pass. Their transpose times the gradient of the context is the gradient of
    the value; the gradient of the context times the transposed value is that of the weights; the softmax makes it that
    of the scores, less the row sum of the context times its gradient; and this times the key, or its transpose times
    the query, and the scale, are those of query and key. A weight of zero leaves the scores a gradient of zero: nothing
    reaches a key through a query that may not see it, and nothing at all through a query that sees nothing.

    What it computes is differentiable in its turn, so that second derivatives exist, which PyTorch's fused kernels do
    not have.

    Args:
        grad_context: (..., heads, queries, value_dim), the gradient of the loss by the context.
        query: (..., heads, queries, head_dim), floating; the heads axis may be left out.
        key: (..., kv_heads, keys, head_dim); kv_heads must divide heads.
        value: (..., kv_heads, keys, value_dim).
        allowed: bool, broadcastable to (..., heads, queries, keys); True where a query may see a key.
        is_causal: a query sees no later key; the last query is aligned with the last key.
        scale: the factor of the dot products; one over sqrt(head_dim) by default.
        saved: context and logsumexp of the forward pass over all keys, as `unmasked.tiles.tiled_attention` returns
            them. Then key and value may be some of the keys only: their gradients are complete, and those of the query
            add up over the parts. That is how a kernel, and a ring of devices, goes back without the whole matrix. A
            part has its own columns of ``allowed``, and no is_causal, which would be aligned with the part's last key.

    Returns:
        Gradients(query, key, value), each with the shape and dtype of its input.

    Raises:
        TypeError: a dtype does not fit.
        ValueError: a shape does not fit, or is_causal is given with some of the keys.

    References:
        Dao et al. (2022), FlashAttention, algorithm 4, and its appendix on the backward pass.

    Examples:
        >>> query, key, value, grad_context = torch.randn(4, 2, 5, 8).requires_grad_()
        >>> context = torch.nn.functional.scaled_dot_product_attention(query, key, value)
        >>> expected = torch.autograd.grad(context, (query, key, value), grad_context)
        >>> ours = attention_backward(grad_context, query, key, value)
        >>> all(torch.allclose(mine, theirs, atol=1e-6) for mine, theirs in zip(ours, expected))
        True
    """
    _check(query, key, value, allowed=allowed)
    flag("is_causal", is_causal)
    tensor("grad_context", grad_context, "Float")
    if saved is not None:
        if not isinstance(saved, tuple | list) or len(saved) != 2:
            raise TypeError(f"saved is of the type {type(saved).__name__}; give (context, logsumexp)")
        tensor("saved", saved[0], "Float")
        tensor("saved", saved[1], "Float")
        if saved[0].shape != grad_context.shape or saved[1].shape != grad_context.shape[:-1]:
            raise ValueError(
                f"saved has shapes {tuple(saved[0].shape)} and {tuple(saved[1].shape)}; context and logsumexp must be "
                "(..., queries, value_dim) and (..., queries)"
            )
    require_beside(query=query, grad_context=grad_context, **dict(zip(_SAVED, saved or (), strict=False)))
    if grad_context.dtype != query.dtype:
        raise TypeError(f"grad_context is {grad_context.dtype} but query is {query.dtype}; cast one to the other")
    if grad_context.shape != (*query.shape[:-1], value.size(-1)):
        raise ValueError(
            f"grad_context has shape {tuple(grad_context.shape)}; it must have the context's, "
            f"{(*query.shape[:-1], value.size(-1))}"
        )
    dtype = torch.promote_types(query.dtype, torch.float32)
    q, d_context = query.to(dtype), grad_context.to(dtype)
    k, v = (_shared(x.to(dtype), query) for x in (key, value))

    scores = attention_scores(q, k, scale=scale)  # ... queries keys
    if saved is None:
        weights = attention_weights(scores, allowed=allowed, is_causal=is_causal)
        context = weights @ v
    else:
        seen = masks.combine(allowed, masks.causal(*scores.shape[-2:], device=q.device) if is_causal else None)
        context, logsumexp = (x.to(dtype) for x in saved)
        weights = torch.exp(scores - logsumexp.unsqueeze(-1))
        weights = weights if seen is None else weights.masked_fill(~seen, 0.0)
        if is_causal and ((weights.detach().sum(-1) - 1).abs() > 1e-2)[logsumexp > -torch.inf].any():
            raise ValueError(
                "key has some of the keys that saved was computed from, and is_causal would align the last query with "
                "the last of these; pass allowed=, the columns of the mask that these keys have"
            )

    d_value = weights.mT @ d_context
    d_weights = d_context @ v.mT
    d_scores = weights * (d_weights - (d_context * context).sum(-1, keepdim=True))
    d_query = d_scores @ k * _scale(query, scale)
    d_key = d_scores.mT @ q * _scale(query, scale)
    return Gradients(d_query.to(query.dtype), _gathered(d_key, key), _gathered(d_value, value))


def _gathered(gradient: Tensor, x: Tensor) -> Tensor:
    """Add up the gradients of the query heads, and of the batches, that shared x."""
    if x.dim() > 2 and x.size(-3) != gradient.size(-3):
        gradient = gradient.unflatten(-3, (x.size(-3), -1)).sum(-3)  # ... kv_heads tokens features
    return gradient.sum_to_size(x.shape).to(x.dtype)
