"""Answers to the exercises of the page on backward, and what is said of wrong ones."""

import torch
from torch import Tensor

from unmasked.gradients import attention_backward


def by_autograd(grad_context: Tensor, *qkv: Tensor) -> tuple[Tensor, ...]:
    q, k, v = (x.clone().requires_grad_() for x in qkv)
    context = (q @ k.mT / q.size(-1) ** 0.5).softmax(-1) @ v
    return torch.autograd.grad(context, (q, k, v), grad_context)


def by_hand(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, *, row_sum: float = 1.0, of_query: float = 1.0, of_key: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    weights = (q @ k.mT / 6**0.5).softmax(-1)
    d_weights = g @ v.mT
    d_scores = weights * (d_weights - row_sum * (g * (weights @ v)).sum(-1, keepdim=True))
    return of_query * d_scores @ k / 6**0.5, of_key * d_scores.mT @ q / 6**0.5, weights.mT @ g


RIGHT = [
    ("row-sums", lambda g, o: (g * o).sum(-1)),
    ("row-sums", lambda g, o: torch.einsum("...d,...d->...", g, o).unsqueeze(-1)),
    ("row-sums", lambda g, o: (g.float() * o.float()).sum(-1, keepdim=True).double()),
    ("attention-backward", by_autograd),
    ("attention-backward", by_hand),
    ("attention-backward", attention_backward),
]

WRONG = {
    ("row-sums", "mean"): (
        lambda g, o: (g * o).mean(-1),
        None,
        "These are the means over the features; they should be sums.",
    ),
    ("row-sums", "product alone"): (
        lambda g, o: g * o,
        None,
        "The shape is (2, 3, 4, 2); it should be (2, 3, 4, 1): a number for each query.",
    ),
    ("row-sums", "of the gradient"): (lambda g, o: g.sum(-1), None, "; it should be "),
    ("attention-backward", "no row sum"): (
        lambda *given: by_hand(*given, row_sum=0.0),
        None,
        "The row sum is missing: a score moves all the weights of its row.",
    ),
    ("attention-backward", "no row sum and no scale"): (
        lambda *given: by_hand(*given, row_sum=0.0, of_query=6**0.5, of_key=6**0.5),
        None,
        "The row sum is missing",
    ),
    ("attention-backward", "no scale of the key"): (
        lambda *given: by_hand(*given, of_key=6**0.5),
        None,
        "The gradient of the key is off by up to ",
    ),
    ("attention-backward", "no scale at all"): (
        lambda *given: by_hand(*given, of_query=6**0.5, of_key=6**0.5),
        None,
        "The scale is missing: query and key both have it.",
    ),
    ("attention-backward", "zeros"): (
        lambda g, q, k, v: (0 * q, 0 * k, 0 * v),
        None,
        "The gradient of the query is off by up to ",
    ),
    ("attention-backward", "another order"): (
        lambda *given: by_hand(*given)[::-1],
        None,
        "The shapes are [(2, 3, 5, 2), (2, 3, 5, 6), (2, 3, 4, 6)]; they should be those of query, key and value.",
    ),
}
