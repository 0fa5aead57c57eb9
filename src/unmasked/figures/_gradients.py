"""What comes back to queries through the softmax, for the figures that measure it."""

import torch
from torch import Tensor

from unmasked.functional import attention_scores, attention_weights


def of_queries(
    q: Tensor, k: Tensor, v: Tensor, upstream: Tensor, *, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """Attend, and go back to the queries.

    Args:
        q: (..., queries, head_dim).
        k: (..., keys, head_dim).
        v: (..., keys, value_dim).
        upstream: (..., queries, value_dim), the gradient of the loss by the contexts.
        scale: What dot products are multiplied by; one over the root of head_dim by default.

    Returns:
        The weights, (..., queries, keys), and the gradient of the queries, with their shape.
    """
    query = q.clone().requires_grad_()
    weights = attention_weights(attention_scores(query, k, scale=scale))
    (gradient,) = torch.autograd.grad(weights @ v, query, upstream)
    return weights.detach(), gradient
