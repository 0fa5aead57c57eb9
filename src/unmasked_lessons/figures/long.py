"""What leaks from the future where scores are capped after the mask."""

from collections.abc import Sequence

import torch
from torch import Tensor

from unmasked import masks


def leaks(scores: Tensor, caps: Sequence[float]) -> dict[float, float]:
    """Cap scores, (heads, tokens, tokens), after the causal mask, and weigh what the first query sees of the future.

    By the cap, what it gives to all later keys, in the head that gives most.
    """
    future = ~masks.causal(scores.size(-1))
    found = {}
    for cap in caps:
        weights = (cap * torch.tanh(scores.masked_fill(future, -1e9) / cap)).softmax(-1)
        found[cap] = (weights * future)[:, 0].sum(-1).max().item()
    return found
