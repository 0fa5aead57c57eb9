"""Right and wrong answers to the exercises of pytorch/backward."""

import torch
from torch import Tensor


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


RIGHT = {
    "row-sums": [
        lambda g, o: (g * o).sum(-1),
        lambda g, o: torch.einsum("...d,...d->...", g, o).unsqueeze(-1),
        lambda g, o: (g.float() * o.float()).sum(-1, keepdim=True).double(),
    ],
    "attention-backward": [by_autograd, by_hand],
}
WRONG = {
    "row-sums": [
        ("These are the means over the features; they should be sums.", lambda g, o: (g * o).mean(-1)),
        ("The shape is (2, 3, 4, 2); it should be (2, 3, 4, 1): a number for each query.", lambda g, o: g * o),
        ("; it should be", lambda g, o: g.sum(-1)),
    ],
    "attention-backward": [
        ("a score moves all the weights of its row.", lambda *given: by_hand(*given, row_sum=0.0)),
        ("The row sum is missing", lambda *given: by_hand(*given, row_sum=0.0, of_query=6**0.5, of_key=6**0.5)),
        ("The gradient of the key is off by up to", lambda *given: by_hand(*given, of_key=6**0.5)),
        ("query and key both have it.", lambda *given: by_hand(*given, of_query=6**0.5, of_key=6**0.5)),
        ("The gradient of the query is off by up to 1.31.", lambda g, q, k, v: (0 * q, 0 * k, 0 * v)),
        ("of the query is (2, 3, 5, 2); it should be (2, 3, 4, 6).", lambda *given: by_hand(*given)[::-1]),
    ],
}
