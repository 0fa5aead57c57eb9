"""Three slips in a call of PyTorch's layer that leave every shape as it should be."""

from __future__ import annotations

from copy import deepcopy
from typing import NamedTuple

from torch import Tensor, nn

__all__ = ["Slips", "slips"]


class Slips(NamedTuple):
    """What comes of each slip.

    Attributes:
        tokens_first: The module, but that it takes the first axis for the tokens.
        inverted: (batch, queries, features), the output under a mask of the other polarity.
        mixed: (batch, keys, features), the output where the first axis was taken for the tokens.
        expected: (batch, keys, features), the output that should have been.
        dropped: (batch, heads, queries, keys), the weights that training makes.
    """

    tokens_first: nn.MultiheadAttention
    inverted: Tensor
    mixed: Tensor
    expected: Tensor
    dropped: Tensor


def slips(module: nn.MultiheadAttention, query: Tensor, key: Tensor, value: Tensor, allowed: Tensor) -> Slips:
    """Invert a mask, exchange two axes, and forget the mode.

    Args:
        module: A layer with `batch_first=True`, which stays as it is.
        query: (batch, queries, features).
        key: (batch, keys, features).
        value: (batch, keys, features).
        allowed: (queries, keys), boolean, True where a query may see a key.

    Returns:
        What comes of each. Draws from the global generator: half of the weights are dropped in training.
    """
    inverted, _ = module(query, key, value, attn_mask=allowed)  # should be blocked
    tokens_first, training = deepcopy(module), deepcopy(module).train()
    tokens_first.batch_first = False
    mixed, expected = (layer(key, key, key)[0] for layer in (tokens_first, module))
    training.dropout = 0.5
    _, dropped = training(query, key, value, attn_mask=~allowed, average_attn_weights=False)
    return Slips(tokens_first, inverted, mixed, expected, dropped)
