"""Modules to try the doctor on: right attention in several styles, and attention with one mistake each.

The doctor must name nothing in `RIGHT`, and in each of `WRONG` the mistake that it is named by, as a broken promise or
as a difference; `NOT_SEEN` says why a module's outputs do not show the museum's other mistakes. Examples take 12
features, most of them in 3 heads.

>>> E, H
(12, 3)
"""

# A module that is called returns Any, and the examples are written as users write theirs: without casts.
# mypy: disable-error-code="no-any-return, operator, index"

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from unmasked.causal import CausalSelfAttention
from unmasked_doctor._diagnose import diagnose
from unmasked_doctor._report import Report

__all__ = ["NOT_SEEN", "RIGHT", "WRONG", "Causal", "Example", "Plain", "examine"]
E, H = 12, 3
D = E // H


@dataclass(frozen=True)
class Example:
    """A module to examine.

    Attributes:
        make: Makes the target.
        options: The arguments of `unmasked.diagnose` for it, beside embed_dim.
        cause: The slug of its mistake, or None.
    """

    make: Callable[[], Callable[..., Any]]
    options: Mapping[str, Any]
    cause: str | None = None

    def examine(self) -> Report:
        """Make the target and diagnose it."""
        return diagnose(self.make(), **{"embed_dim": E, **self.options})


def examine(examples: Mapping[str, Example]) -> dict[str, Report]:
    """Examine several examples.

    Args:
        examples: The examples by name, as in `RIGHT` and `WRONG`.

    Returns:
        Their reports, by name.

    Examples:
        >>> name = "PyTorch's module"
        >>> examine({name: RIGHT[name]})[name].ok
        True
    """
    return {name: example.examine() for name, example in examples.items()}


class Plain(nn.Module):
    """Attention step by step; each mistake does one of its methods otherwise.

    Examples:
        >>> Plain()(torch.ones(2, 5, 12)).shape
        torch.Size([2, 5, 12])
    """

    causal = False
    heads = H

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.num_heads = self.heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(E, E, bias=bias) for _ in range(4))
        self.dropout = nn.Dropout(0.3)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values: (batch, tokens, features) each."""
        return self.q_proj(x), self.k_proj(x), self.v_proj(x)

    def split(self, x: Tensor) -> Tensor:
        """Return the features of each head: (batch, heads, tokens, head_dim)."""
        return x.view(x.size(0), x.size(1), self.heads, E // self.heads).transpose(1, 2)

    def scale(self, q: Tensor) -> float:
        """Return the number that scores are divided by."""
        return math.sqrt(q.size(-1))

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """Return the scores before a mask."""
        return q @ k.transpose(-2, -1) / self.scale(q)

    def weigh(self, scores: Tensor) -> Tensor:
        """Return the weights, of which those on later tokens are zero if `causal` is True."""
        if self.causal:
            scores = self.mask(scores, torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1))
        return scores.softmax(-1)

    def mask(self, scores: Tensor, future: Tensor) -> Tensor:
        """Return the scores, with those on later tokens hidden."""
        return scores.masked_fill(future, -math.inf)

    def merge(self, context: Tensor) -> Tensor:
        """Return the heads side by side: (batch, tokens, features)."""
        return context.transpose(1, 2).flatten(2)

    def forward(self, x: Tensor) -> Any:
        """Return the output: (batch, tokens, features)."""
        q, k, v = (self.split(y) for y in self.project(x))
        return self.out_proj(self.merge(self.dropout(self.weigh(self.scores(q, k))) @ v))


class Causal(Plain):
    """The same, where no token sees a later one.

    Examples:
        >>> Causal().weigh(torch.zeros(2, 2))
        tensor([[1.0000, 0.0000],
                [0.5000, 0.5000]])
    """

    causal = True


RIGHT: dict[str, Example] = {
    "PyTorch's module": Example(lambda: nn.MultiheadAttention(E, H, batch_first=True), {"inputs": "qkv"}),
    "this package's causal layer": Example(
        lambda: CausalSelfAttention(E, E, H, dropout=0.2, qkv_bias=True), {"causal": True}
    ),
    "step by step": Example(Plain, {}),
    "step by step, causal": Example(Causal, {"causal": True}),
}

# Each does one step of `Plain` otherwise.
_SLIPS: dict[str, dict[str, Callable[..., Any]]] = {
    "merge-without-transpose": {"merge": lambda self, context: context.reshape(len(context), -1, E)},
    "view-without-transpose": {"split": lambda self, x: x.reshape(len(x), H, -1, D)},
    "weight-not-transposed": {
        "project": lambda self, x: tuple(x @ f.weight + f.bias for f in (self.q_proj, self.k_proj, self.v_proj))
    },
    "wrong-value": {"project": lambda self, x: (self.q_proj(x), self.k_proj(x), self.q_proj(x))},
    "missing-scale": {"scale": lambda self, q: 1.0},
    "wrong-d-in-scale": {"scale": lambda self, q: math.sqrt(E)},
    "softmax-over-queries": {"weigh": lambda self, scores: scores.softmax(-2)},
    "weights-not-normalized": {"weigh": lambda self, scores: scores.exp()},
}
WRONG: dict[str, Example] = {
    cause: Example(type(cause.title().replace("-", ""), (Plain,), step), {}, cause) for cause, step in _SLIPS.items()
}

NOT_SEEN: dict[str, str] = {
    "head-dim-one": "it is in the sizes of a test, not in the module; the doctor's sizes all differ",
    "expanded-mask": "it takes memory, and changes no number",
    "hidden-nan": "it is in the data: attention that is right passes a hidden NaN on, PyTorch's too",
    "bypass-conditions": "it is in what is expected of a module, which is itself right",
    "packed-initialization": "parameters of either start attend rightly",
    "projection-variance": "it is in what is expected of a module, which is itself right",
    "foreign-norms": "cosines are not attention",
    "embedding-reader": "it reads a file",
    "rope-base": "it is in what a checkpoint was trained with: any base is right for some",
    "norm-after-rope": "it is in what a checkpoint was trained with: a difference",
    "window-off-by-one": "it is in what a checkpoint was trained with: any window is right for some",
    "choice-before-causality": "the future is seen to count, and not by which line",
    "output-not-turned-back": "it is in what a checkpoint was trained with: outputs may tell their place",
    "turned-key-as-value": "it is in what a checkpoint was trained with: values may be turned, too",
    "left-padding-positions": "it is in the positions that a model is given",
    "packed-without-documents": "it is in the mask that a model is given",
    "positions-not-reset": "it is in the positions that a model is given",
    "two-finfo-min": "it is in the masks that a model is given: each alone is right",
    "fast-path-bias": "it is in what PyTorch makes of a mask that is itself right",
    "dropout-leaves-the-kernel": "it takes memory, and changes no number",
    "frozen-with-zero-gradient": "it is in the loop that trains",
}
