"""A package of one function."""

import torch


def weigh(scores):
    """The weights of scores."""
    return torch.softmax(scores, dim=-1)
