"""The exercises of the page that says why there are several heads."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from unmasked_lessons.exercises._check import ask, exercise, hold


@exercise("silence-head", "The slice of one head is zero, and all else is as it was.")
def _silence_head(answer: Callable[[Tensor, int, int], Any]) -> None:
    for tokens, heads, wide, head in ((1, 2, 3, 0), (1, 2, 3, 1), (4, 3, 2, 0), (4, 3, 2, 2), (3, 4, 5, 1)):
        averages = torch.arange(1.0, tokens * heads * wide + 1).view(tokens, heads * wide)
        every = torch.arange(heads * wide)
        known = {
            f"A head has neighboring numbers, not every {heads}th one. [swapped-view]": averages
            * (every % heads != head),
            "That is the head before: heads are counted from zero.": averages * (every // wide != head - 1),
            "It silences all other heads.": averages * (every // wide == head),
        }
        where = f"For {tokens} x {heads * wide} numbers, {heads} heads and head {head}"
        result, right = ask(answer, averages, heads, head, keep="averages"), averages * (every // wide != head)
        zeros = ", the numbers of the head set to zero in their place"
        hold(result, right, where, "the first row", known, axes=zeros, shown=lambda table: table[0].tolist())


@exercise("count-parameters", "Four matrices and four biases, whatever the number of heads.")
def _count_parameters(answer: Callable[[int, int], Any]) -> None:
    for width, heads in ((2, 1), (12, 3), (32, 8)):
        module = nn.MultiheadAttention(width, heads, device="meta")
        right = sum(each.numel() for each in module.parameters())
        known = {
            "More heads are no more parameters: each has a thinner slice.": heads * right,
            "The biases are missing.": 4 * width**2,
            "The output projection is missing.": 3 * (width**2 + width),
            "The bias of the output projection is missing.": 4 * width**2 + 3 * width,
            "All heads together have the whole width.": 4 * ((width // heads) ** 2 + width // heads),
        }
        hold(answer(width, heads), right, f"For width {width} and {heads} head{'s' * (heads > 1)}", known=known)
