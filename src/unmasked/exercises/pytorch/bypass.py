"""The exercises of the page about the weight bypass."""

from typing import Any

import torch
from torch import Tensor, nn

from unmasked.exercises._check import Wrong, exercise
from unmasked.functional import self_attention

PAGE = "pytorch/bypass"


@exercise("undo-the-root", page=PAGE, task="The query's or the key's matrix is multiplied by the root.")
def undo_the_root(answer: Any) -> None:
    """Hold a module to plain self-attention without the scale."""
    x, context, weights = _try(answer)
    right = self_attention(x, scale=1.0)
    assert right.weights is not None
    if not _near(weights, right.weights):
        off = f"Its weights are off by up to {(weights - right.weights).abs().max().item():.2f}."
        d = x.size(-1)
        for told, scale in {
            "They are what a bypassed module gives.": d**-0.5,
            "The query's and the key's matrix are both multiplied by the root; one is enough.": d**0.5,
            "A matrix is divided by the root; multiply it.": 1 / d,
        }.items():
            if _near(weights, _weights(x, scale)):
                raise Wrong(f"{off} {told}")
        raise Wrong(off)
    _require_same(context, right.context, "The weights are right, the output")


@exercise("plain-average", page=PAGE, task="Equal scores give equal weights, and the output is the mean of all tokens.")
def plain_average(answer: Any) -> None:
    """Hold a module to the mean of all tokens."""
    x, context, weights = _try(answer)
    right = torch.full_like(weights, 1 / x.size(-2))
    if not _near(weights, right):
        told = f"Its weights lie between {weights.min().item():.2f} and {weights.max().item():.2f}"
        raise Wrong(f"{told}; for {x.size(-2)} tokens each should be {right[0, 0].item():.2f}.")
    _require_same(context, x.mean(-2, keepdim=True).expand_as(x), "The weights are equal, the output")


@exercise("hidden-matrix", page=PAGE, task="Averaging and multiplying by a matrix may change places.")
def hidden_matrix(answer: Any) -> None:
    """Hold a module whose value has a matrix of its own to plain self-attention."""
    x, context, weights = _try(answer)
    d = x.size(-1)
    matrix = answer.in_proj_weight[2 * d :].detach()
    if _near(matrix, torch.diag(matrix.diagonal())):
        raise Wrong("The value's matrix is the identity, or near it: put a random matrix there.")
    right = self_attention(x)
    assert right.weights is not None
    _require_same(weights, right.weights, "The value's matrix is hidden, but the weights")
    if _near(context, right.context, 5e-3):  # the inverse of a random matrix is not exact
        return
    largest = (context - right.context).abs().max().item()
    off = f"The value's matrix is hidden, but the output is off by up to {largest:.2f}"
    if _near(answer.out_proj.weight.detach(), matrix.mT):
        raise Wrong(f"{off}: a transpose undoes an orthogonal matrix alone.")
    if _near(answer.out_proj.weight.detach(), torch.eye(d, dtype=x.dtype)):
        raise Wrong(f"{off}: out_proj is still the identity; it must undo the value's matrix.")
    raise Wrong(f"{off}.")


def _try(module: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, and the output and the weights that the module gives for them."""
    if not isinstance(module, nn.MultiheadAttention):
        raise Wrong(f"It is {type(module).__name__}; give the nn.MultiheadAttention that you changed.")
    if module.num_heads != 1 or module.in_proj_weight is None:
        raise Wrong(
            f"It has {module.num_heads} heads; begin with a bypassed module, which has one.", "bypass-conditions"
        )
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, module.embed_dim, generator=generator, dtype=torch.float64).to(module.in_proj_weight)
    with torch.no_grad():  # tokens alone, without a batch: batch_first does not matter
        context, weights = module(x, x, x)
    assert weights is not None
    return x, context, weights


def _weights(x: Tensor, scale: float) -> Tensor:
    weights = self_attention(x, scale=scale).weights
    assert weights is not None
    return weights


def _near(given: Tensor, right: Tensor, tolerance: float = 1e-3) -> bool:
    return torch.allclose(given, right, rtol=0, atol=tolerance * max(1.0, right.abs().max().item()))


def _require_same(given: Tensor, right: Tensor, what: str) -> None:
    if not _near(given, right):
        off = (given - right).abs().max().item()
        raise Wrong(f"{what} is off by up to {off:.2f}." if "output" in what else f"{what} are off by up to {off:.2f}.")
