"""The backward pass without one of its parts, and gradients of small retrievals, with and without the root of d."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from unmasked._private import DispatchMode
from unmasked.functional import attention_scores, attention_weights
from unmasked.gradients import attention_backward


class RetrievalGradients(NamedTuple):
    """Gradients of a batch of examples, of the matrix that makes their queries."""

    quiet: float  # the share of the examples whose scores have a gradient below a hundredth of the strongest one
    median: float  # the norm of the median example's gradient of the matrix
    norm: float  # of all examples' gradients together
    agreement: float  # the cosine of the angle between the sums over the two halves of the batch


def of_retrieval(examples: int, *, keys: int, width: int, root: bool) -> RetrievalGradients:
    """Let each example ask for the first of its keys, and measure the gradients of its squared error.

    A word has a random name, which queries and keys are made of, and random contents, which are its value. Each example
    chooses its keys out of 64 words. Every call with the same sizes draws the same.
    """
    random = torch.Generator().manual_seed(2)
    names = torch.randn(64, width, generator=random).double()
    contents = torch.randn(64, 8, generator=random).double()
    chosen = torch.rand(examples, 64, generator=random).argsort(-1)[:, :keys]
    to_query, to_key = torch.randn(2, width, width, generator=random).double() / width**0.5

    right = chosen[:, :1]  # the word that each example asks for
    q = (names[right] @ to_query.T).requires_grad_()  # examples 1 width
    scores = attention_scores(q, names[chosen] @ to_key.T, scale=width**-0.5 if root else 1.0)
    loss = (scores.softmax(-1) @ contents[chosen] - contents[right]).square().sum()
    of_q, of_scores = torch.autograd.grad(loss, (q, scores))

    loud = of_scores.norm(dim=-1)
    # The gradient of the matrix, for an example: its query's, times what the query was made of. Its norm is the product
    # of their norms.
    norms = of_q.norm(dim=-1) * names[right].norm(dim=-1)
    first, second = (
        (gradient.mT @ name).flatten()
        for gradient, name in zip(of_q[:, 0].chunk(2), names[right][:, 0].chunk(2), strict=True)
    )
    return RetrievalGradients(
        (loud < loud.max() / 100).double().mean().item(),
        norms.flatten().sort(descending=True).values.median().item(),
        norms.norm().item(),
        F.cosine_similarity(first, second, dim=0).item(),
    )


def left_out(grad_context: Tensor, query: Tensor, key: Tensor, value: Tensor) -> dict[str, list[float]]:
    """Leave a part of the backward pass out, and compare the gradients with autograd's.

    Query, key and value require grad. By what is left out, the largest differences of their gradients, each as a share
    of the largest entry of autograd's.
    """
    weights = attention_weights(attention_scores(query, key))
    exact = torch.autograd.grad(weights @ value, (query, key, value), grad_context, retain_graph=True)
    q, k, v, a = (each.detach() for each in (query, key, value, weights))
    d_weights, scale = grad_context @ v.mT, q.size(-1) ** -0.5
    unsummed = a * d_weights
    d_scores = a * (d_weights - unsummed.sum(-1, keepdim=True))
    d_value = a.mT @ grad_context
    tried = {
        "nothing": attention_backward(grad_context, query, key, value),
        "the row sum": (unsummed @ k * scale, unsummed.mT @ q * scale, d_value),
        "the scale in the key's": (d_scores @ k * scale, d_scores.mT @ q, d_value),
        "the scale": (d_scores @ k, d_scores.mT @ q, d_value),
    }
    return {
        name: [((mine - right).abs().max() / right.abs().max()).item() for mine, right in zip(each, exact, strict=True)]
        for name, each in tried.items()
    }


class _Products(DispatchMode):
    """Counts matrix products."""

    count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.count += str(func) in ("aten.bmm.default", "aten.mm.default")
        return func(*args, **(kwargs or {}))


def products(function: Callable[..., object], *args: Any, **options: Any) -> int:
    """Count the matrix products of a call."""
    counter = _Products()
    with counter:
        function(*args, **options)
    return counter.count
