"""The exercises of the page about cross-attention."""

from collections.abc import Callable

import torch
from torch import Tensor

from unmasked.exercises._check import Wrong, exercise

PAGE = "08_cross_attention"


@exercise("cross-attention", page=PAGE, task="Each token of one sequence gets an average of the other's.")
def cross_attention(answer: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Hold a function of two sequences to cross-attention without learned matrices."""
    generator = torch.Generator().manual_seed(0)
    for queries, keys, features in ((2, 3, 4), (5, 3, 6)):
        x = torch.randn(queries, features, generator=generator, dtype=torch.float64)
        other = torch.randn(keys, features, generator=generator, dtype=torch.float64)
        scores = torch.einsum("qd,kd->qk", x, other)
        right = (scores / features**0.5).softmax(-1) @ other
        given = answer(x, other)
        if given.shape != right.shape:
            told = f"{queries} queries, {keys} keys and {features} features"
            raise Wrong(f"For {told} the shape is {tuple(given.shape)}; it should be {tuple(right.shape)}.")
        if torch.allclose(given, right):
            continue
        off = f"For {queries} queries and {keys} keys the context is off by up to {(given - right).abs().max():.2f}."
        if torch.allclose(given, scores.softmax(-1) @ other):
            raise Wrong(f"{off} The scores are not divided by the root of d.", "missing-scale")
        if torch.allclose(given, (scores / features**0.5).softmax(-2) @ other):
            raise Wrong(f"{off} The softmax runs over the queries.", "softmax-over-queries")
        own = torch.einsum("qd,kd->qk", x, x) / features**0.5
        if torch.allclose(given, own.softmax(-1) @ x):
            raise Wrong(f"{off} x asks itself, not the other sequence.", "wrong-value")
        raise Wrong(off)


@exercise("softmax-with-sink", page=PAGE, task="One is added to the denominator of every row.")
def softmax_with_sink(answer: Callable[[Tensor], Tensor]) -> None:
    """Hold a function of scores to a softmax whose rows may sum to less than one."""
    scores = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    right = scores.exp() / (1 + scores.exp().sum(-1, keepdim=True))
    given = answer(scores)
    if given.shape != right.shape:
        raise Wrong(f"The weights have the shape {tuple(given.shape)}; the scores have {tuple(right.shape)}.")
    if torch.allclose(given, scores.softmax(-1)):
        raise Wrong("The rows sum to 1: nothing was added to the denominator.")
    if not torch.allclose(given, right):
        raise Wrong(f"The weights are off by up to {(given - right).abs().max():.2f}.")
    if answer(scores + 1000).isnan().any():
        raise Wrong("For scores of about 1000 there is NaN: take the largest score off before the exponential.")
