"""The exercises of the page about watching a model."""

from collections.abc import Callable

import torch
from torch import Tensor

from unmasked_lessons.exercises._check import ask, draw, exercise, hold


@exercise("previous-token-heads", "The diagonal below the main one has the weights, a mean for each head.")
def _looks_back(answer: Callable[[Tensor], Tensor]) -> None:
    weights = draw((2, 3, 5, 5))[0].exp().tril().float()
    weights = weights / weights.sum(-1, keepdim=True)
    right = torch.stack([weights[:, :, i, i - 1] for i in range(1, 5)]).mean((0, 1))
    known = {
        "That is the weight on the token itself.": weights.diagonal(0, -2, -1).mean((0, 2)),
        "That is the weight on the token after.": weights.diagonal(1, -2, -1).mean((0, 2)),
        "That is the weight on the token before, counting the first token too.": right * 4 / 5,
    }
    subject = "head 0's mean weight on the token before"
    hold(ask(answer, weights), right, "For 3 heads", subject, known, shown=lambda heads: f"{heads[0]:.3f}")


@exercise("ablate-by-hand", "The last axis has two parts, heads and features.")
def _without(answer: Callable[[Tensor, list[int]], Tensor]) -> None:
    (context,) = draw((2, 4, 6))
    for heads in ([1], [0, 2], []):
        right = context.clone()
        for head in heads:
            right[..., 2 * head : 2 * head + 2] = 0
        result, subject = ask(answer, context, heads, keep="context"), "the list of those of 6 features that are zero"
        hold(result, right, f"Without heads {heads}", subject, shown=_zeros)


def _zeros(context: Tensor) -> list[int]:
    return [place for place in range(context.size(-1)) if not context[..., place].any()]
