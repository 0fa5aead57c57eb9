"""The exercises of the page about the weight bypass."""

from typing import Any

import torch
from torch import Tensor, nn

from unmasked.functional import attention_scores
from unmasked_lessons.exercises._check import Wrong, draw, exercise, hold, same

_EXACT = 1e-3  # what a module in float32 may be off by


@exercise("undo-the-root", "The query's or the key's matrix is multiplied by the root.")
def _undo_the_root(answer: Any) -> None:
    x, context, weights = _try(answer)
    d = x.size(-1)
    known = {
        "They are what a bypassed module gives.": _weights(x, d**-0.5),
        "The query's and the key's matrix are both multiplied by the root; one is enough.": _weights(x, d**0.5),
        "A matrix is divided by the root; multiply it.": _weights(x, 1 / d),
    }
    right = _weights(x, 1.0)
    hold(weights, right, subject="its weights", known=known, tolerance=_EXACT)
    hold(context, right @ x, "The weights are right, but", "the output", tolerance=_EXACT)


@exercise("plain-average", "Equal scores give equal weights, and the output is the mean of all tokens.")
def _plain_average(answer: Any) -> None:
    x, context, weights = _try(answer)
    right = torch.full_like(weights, 1 / x.size(-2))

    def span(weights: Tensor) -> str:
        return f"between {weights.min().item():.2f} and {weights.max().item():.2f}"

    hold(weights, right, f"For {x.size(-2)} tokens", "each weight", shown=span, tolerance=_EXACT)
    hold(context, right @ x, "The weights are equal, but", "the output", tolerance=_EXACT)


@exercise("hidden-matrix", "Averaging and multiplying by a matrix may change places.")
def _hidden_matrix(answer: Any) -> None:
    x, context, weights = _try(answer)
    d = x.size(-1)
    matrix, output = answer.in_proj_weight[2 * d :].detach(), answer.out_proj.weight.detach()
    if same(matrix, torch.diag(matrix.diagonal()), _EXACT):
        raise Wrong("The value's matrix is the identity, or near it: put a random matrix there.")
    right, where = _weights(x, d**-0.5), "The value's matrix is hidden, but"
    hold(weights, right, where, "the weights", tolerance=_EXACT)
    known = {
        "A transpose undoes an orthogonal matrix alone.": same(output, matrix.mT, _EXACT),
        "out_proj is still the identity; it must undo the value's matrix.": same(output, torch.eye(d), _EXACT),
    }
    # The inverse of a random matrix is not exact.
    hold(context, right @ x, where, "the output", known, tolerance=5e-3 * max(1.0, x.abs().max().item()))


def _try(module: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, and the output and the weights that the module gives for them."""
    if not isinstance(module, nn.MultiheadAttention):
        raise Wrong(f"It is {type(module).__name__}; give the nn.MultiheadAttention that you changed.")
    if module.num_heads != 1 or module.in_proj_weight is None:
        message = f"It has {module.num_heads} heads; begin with a bypassed module, which has one."
        raise Wrong(message, "bypass-conditions")
    x = draw((5, module.embed_dim))[0].to(module.in_proj_weight)
    with torch.no_grad():  # tokens alone, without a batch: batch_first does not matter
        context, weights = module(x, x, x)
    assert weights is not None
    return x, context, weights


def _weights(x: Tensor, scale: float) -> Tensor:
    return attention_scores(x, x, scale=scale).softmax(-1)
