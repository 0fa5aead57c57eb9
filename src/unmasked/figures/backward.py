"""The gradients of many small retrievals, with the root of d and without it."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F

from unmasked.functional import attention_scores

__all__ = ["Gradients", "of_retrieval"]


class Gradients(NamedTuple):
    """What comes back from a batch of examples to the matrix that makes their queries.

    Attributes:
        quiet: The share of the examples whose scores have a gradient below a hundredth of the strongest one.
        median: The norm of the median example's gradient of the matrix.
        norm: The norm of all examples' gradients together.
        agreement: The cosine of the angle between the sums over the two halves of the batch.
    """

    quiet: float
    median: float
    norm: float
    agreement: float


def of_retrieval(examples: int, *, keys: int, width: int, root: bool) -> Gradients:
    """Let each example ask for the first of its keys, and measure the gradients of its squared error.

    A word has a random name, which queries and keys are made of, and random contents, which are its value. Every call
    with the same sizes draws the same.

    Args:
        examples: Queries, each with keys of its own.
        keys: Words that each example chooses, out of 64.
        width: Features of names, queries and keys.
        root: Whether scores are divided by the root of the width.

    Returns:
        What comes back to the matrix that makes queries of names.
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
    return Gradients(
        (loud < loud.max() / 100).double().mean().item(),
        norms.flatten().sort(descending=True).values.median().item(),
        norms.norm().item(),
        F.cosine_similarity(first, second, dim=0).item(),
    )
