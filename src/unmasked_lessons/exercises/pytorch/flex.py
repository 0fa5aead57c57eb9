"""The exercise of the page about FlexAttention."""

from collections.abc import Callable

import torch
from torch import Tensor

from unmasked import masks
from unmasked_lessons.exercises._check import ask, exercise, hold

Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@exercise("packed-rule", "A token sees its own document in its own text, and nothing later.")
def _packed_rule(answer: Callable[[Tensor], Rule]) -> None:
    from torch.nn.attention.flex_attention import create_mask  # it imports the compiler

    ids = torch.tensor([[0, 0, 0, 1, 1], [4, 7, 7, 7, 9]])
    right = masks.documents(ids) & masks.causal(5)
    result = ask(lambda: create_mask(answer(ids), 2, 1, 5, 5, device="cpu"))
    known = {
        "Every text has the documents of the first: ask for the ids of this one.": right[:1].expand_as(right),
        "The future is seen.": masks.documents(ids),
        "The past is hidden, and the future seen: the query comes before the key.": right.mT,
        "The documents are not apart.": masks.causal(5).expand_as(right),
    }
    hold(result, right, "", "the mask", known)
