"""The exercises of the page about FlexAttention."""

from collections.abc import Callable

import torch
from torch import Tensor

from unmasked import masks
from unmasked.exercises._check import ask, draw, exercise, hold
from unmasked.functional import attend

Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@exercise("packed-rule", "A token sees its own document in its own text, and nothing later.")
def packed_rule(answer: Callable[[Tensor], Rule]) -> None:
    """Hold a function of ids to the mask of packed documents, text by text."""
    from torch.nn.attention.flex_attention import create_mask  # it imports the compiler

    ids = torch.tensor([[0, 0, 0, 1, 1], [4, 7, 7, 7, 9]])
    right = masks.documents(ids) & masks.causal(5)
    given = ask(lambda: create_mask(answer(ids), 2, 1, 5, 5, device="cpu"))
    known = {
        "Every text has the documents of the first: ask for the ids of this one.": right[:1].expand_as(right),
        "The future is seen.": masks.documents(ids),
        "The past is hidden, and the future seen: the query comes before the key.": right.mT,
        "The documents are not apart.": masks.causal(5).expand_as(right),
    }
    hold(given, right, "", "the mask", known)


@exercise("sink-afterwards", "A sink only makes the sum larger by which a row is divided.")
def sink_afterwards(answer: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    """Hold a function of context, log-sum-exps and sinks to attention with these sinks."""
    query, key, value = draw((2, 3, 4), (2, 5, 4), (2, 5, 4))
    sinks = torch.tensor([0.5, -1.0], dtype=torch.float64)
    lse = (query @ key.mT / 2).logsumexp(-1)
    context = attend(query, key, value).context
    shares = torch.sigmoid(lse - sinks[:, None])[..., None]
    known = {
        "The share is that of the sink: what is left to the keys is one minus it.": (1 - shares) * context,
        "The sink takes nothing.": context,
    }
    right = attend(query, key, value, sinks=sinks).context
    hold(ask(answer, context, lse, sinks), right, "", "a number", known)
