"""The leak from the future where scores are capped after the mask."""

from collections.abc import Sequence

import torch
from torch import Tensor

from unmasked import masks


def leaks(scores: Tensor, caps: Sequence[float]) -> dict[float, float]:
    """Cap scores, (heads, tokens, tokens), after the causal mask, and sum the first query's weights of the future.

    By the cap, the weight of all later keys together, in the head where it is largest.
    """
    future = ~masks.causal(scores.size(-1))
    given_away = {}
    for cap in caps:
        weights = (cap * torch.tanh(scores.masked_fill(future, -1e9) / cap)).softmax(-1)
        given_away[cap] = (weights * future)[:, 0].sum(-1).max().item()
    return given_away
