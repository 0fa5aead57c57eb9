"""The exercises of the page about watching a model."""

from collections.abc import Callable

import torch
from torch import Tensor

from unmasked.exercises._check import Wrong, exercise

PAGE = "pytorch/watching"


@exercise(
    "previous-token-heads", page=PAGE, task="The diagonal below the main one has the weights, a mean for each head."
)
def looks_back(answer: Callable[[Tensor], Tensor]) -> None:
    """Hold a function of weights to each head's mean weight on the token before."""
    weights = torch.rand(2, 3, 5, 5, generator=torch.Generator().manual_seed(0)).tril()
    weights = weights / weights.sum(-1, keepdim=True)
    pairs = [(b, i) for b in range(2) for i in range(1, 5)]
    right = torch.stack([sum((weights[b, h, i, i - 1] for b, i in pairs), torch.tensor(0.0)) for h in range(3)]) / 8
    given = answer(weights.clone())
    if not isinstance(given, Tensor) or given.shape != (3,):
        got = tuple(given.shape) if isinstance(given, Tensor) else type(given).__name__
        raise Wrong(f"For 3 heads it gives {got}; it should give (3,).")
    if torch.allclose(given, right, atol=1e-5):
        return
    known = {
        "the token itself": weights.diagonal(0, -2, -1).mean((0, 2)),
        "the token after": weights.diagonal(1, -2, -1).mean((0, 2)),
        "the token before, counting the first token too": right * 4 / 5,
    }
    for meaning, other in known.items():
        if torch.allclose(given, other, atol=1e-5):
            raise Wrong(f"That is the weight on {meaning}.")
    raise Wrong(f"Head 0 gives the token before {right[0]:.3f} on average, and the answer says {given[0]:.3f}.")


@exercise("ablate-by-hand", page=PAGE, task="The last axis has two parts, heads and features.")
def without(answer: Callable[[Tensor, list[int]], Tensor]) -> None:
    """Hold a function of merged contexts to what is left without some heads."""
    context = torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(0))
    for heads in ([1], [0, 2], []):
        before, right = context.clone(), context.clone()
        for head in heads:
            right[..., 2 * head : 2 * head + 2] = 0
        given = answer(context, heads)
        if given.shape != right.shape:
            raise Wrong(f"The shape is {tuple(given.shape)}; it should stay {tuple(right.shape)}.")
        if not torch.equal(context, before):
            raise Wrong("The context that you were given was changed.", "input-overwritten")
        if torch.equal(given, right):
            continue
        zeros = [place for place in range(6) if not given[..., place].any()]
        wanted = [place for place in range(6) if not right[..., place].any()]
        raise Wrong(f"Without heads {heads}, the features {zeros} are zero; of 6 these should be: {wanted}.")
