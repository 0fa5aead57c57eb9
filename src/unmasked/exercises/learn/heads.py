"""The exercises of the page that says why there are several heads."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from unmasked.exercises._check import Wrong, exercise

PAGE = "learn/heads"


@exercise("silence-head", page=PAGE, task="The slice of one head is zero, and all else is as it was.")
def silence_head(answer: Callable[[Tensor, int, int], Any]) -> None:
    """Hold a function of averages, a number of heads and a head to the averages without that head."""
    for tokens, heads, wide in ((1, 2, 3), (4, 3, 2), (3, 4, 5)):
        averages = torch.arange(1.0, tokens * heads * wide + 1).view(tokens, heads * wide)
        for head in range(heads):
            before = averages.clone()
            right = averages.clone()
            right.unflatten(-1, (heads, wide))[:, head] = 0
            given = answer(averages, heads, head)
            when = f"For {tokens} x {heads * wide} numbers, {heads} heads and head {head}"
            if not torch.equal(averages, before):
                raise Wrong("The averages that you were given were changed: clone them.", "input-overwritten")
            if not isinstance(given, Tensor):
                raise Wrong(f"{when} it returned {type(given).__name__}; return a tensor.")
            if given.shape == (tokens, (heads - 1) * wide):
                raise Wrong(f"{when} the numbers of the head are gone; set them to zero, in their place.")
            if given.shape != right.shape:
                raise Wrong(f"{when} the shape is {tuple(given.shape)}; it should be {tuple(right.shape)}.")
            if torch.equal(given, right):
                continue
            told = f"{when} the first row is {given[0].tolist()}; it should be {right[0].tolist()}."
            every = torch.arange(heads * wide)
            if torch.equal(given, before.where(every % heads != head, 0.0)):
                raise Wrong(f"{told} A head has neighboring numbers, not every {heads}th one.", "swapped-view")
            if torch.equal(given, before.where(every // wide != head - 1, 0.0)):
                raise Wrong(f"{told} That is the head before: heads are counted from zero.")
            if torch.equal(given, before.where(every // wide == head, 0.0)):
                raise Wrong(f"{told} It silences all other heads.")
            raise Wrong(told)


@exercise("count-parameters", page=PAGE, task="Four matrices and four biases, whatever the number of heads.")
def count_parameters(answer: Callable[[int, int], Any]) -> None:
    """Hold a function of a width and a number of heads to the number of the module's parameters."""
    for width, heads in ((2, 1), (12, 3), (32, 8)):
        module = nn.MultiheadAttention(width, heads, device="meta")
        right = sum(each.numel() for each in module.parameters())
        given = answer(width, heads)
        when = f"For width {width} and {heads} head{'s' * (heads > 1)}"
        if isinstance(given, bool) or not isinstance(given, int | float):
            raise Wrong(f"{when} it returned {type(given).__name__}; return a number.")
        if given == right:
            continue
        told = f"{when} it says {given:g}; there are {right}."
        reasons = {
            heads * right: "More heads are no more parameters: each has a thinner slice.",
            4 * width**2: "The biases are missing.",
            3 * (width**2 + width): "The output projection is missing.",
            4 * width**2 + 3 * width: "The bias of the output projection is missing.",
            4 * ((width // heads) ** 2 + width // heads): "All heads together have the whole width.",
        }
        raise Wrong(f"{told} {reasons[int(given)]}" if given in reasons else told)
