"""The exercises of the page about a whole transformer block."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from unmasked.exercises._check import Wrong, exercise
from unmasked.functional import self_attention

PAGE = "learn/block"
_Part = Callable[[Tensor], Tensor]

_MOVES: dict[str, _Part] = {
    "self-attention": lambda x: self_attention(x).context,
    "causal self-attention": lambda x: self_attention(x, is_causal=True).context,
    "a running sum from the end": lambda x: x.flip(0).cumsum(0).flip(0),
    "adding a hundredth of the last word to the first": lambda x: torch.cat([x[:1] + 0.01 * x[-1:], x[1:]]),
}
_STAYS: dict[str, _Part] = {
    "doubling every number": lambda x: 2 * x,
    "a norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "an MLP": lambda x: F.gelu(x @ torch.ones(x.size(-1), 7, dtype=x.dtype)) @ torch.ones(7, x.size(-1), dtype=x.dtype),
    "adding its place to each word": lambda x: x + torch.arange(len(x), dtype=x.dtype)[:, None],
}


@exercise("moves-information", page=PAGE, task="It tells the parts that move information from those that do not.")
def moves_information(answer: Callable[[_Part, Tensor], object]) -> None:
    """Hold a test of parts to parts of both kinds."""
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    before = x.clone()
    said = {}
    for name, part in (_MOVES | _STAYS).items():
        said[name] = bool(answer(part, x))
        if not torch.equal(x, before):
            raise Wrong("The words that you were given were changed: clone them.", "input-overwritten")
    if len(set(said.values())) == 1:
        raise Wrong(f"It says {next(iter(said.values()))} of every part; of 'an MLP' it should say False.")
    if missed := [name for name in _MOVES if not said[name]]:
        raise Wrong(f"It says False of '{missed[0]}', where an output depends on another word.")
    if accused := [name for name in _STAYS if said[name]]:
        raise Wrong(f"It says True of '{accused[0]}', where each output depends on its own word alone.")


@exercise("post-norm", page=PAGE, task="Each sum is normed, and what was normed goes on.")
def post_norm(answer: Callable[[Tensor, _Part, _Part, _Part, _Part], Any]) -> None:
    """Hold a function of x, attention, a norm, an MLP and a norm to the block of the first transformer."""
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def attention(x: Tensor) -> Tensor:
        return self_attention(x).context.flip(-1)

    def mlp(x: Tensor) -> Tensor:
        return F.gelu(3 * x).roll(1, -1)

    def norm_1(x: Tensor) -> Tensor:
        return 2 * F.layer_norm(x, x.shape[-1:])

    def norm_2(x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:]) - 1

    middle = norm_1(x + attention(x))
    right = norm_2(middle + mlp(middle))
    given = answer(x.clone(), attention, norm_1, mlp, norm_2)
    if not isinstance(given, Tensor):
        raise Wrong(f"It returned {type(given).__name__}; return a tensor.")
    if given.shape != right.shape:
        raise Wrong(f"For x of {tuple(x.shape)} the shape is {tuple(given.shape)}; it should be that of x.")
    if torch.allclose(given, right):
        return
    told = f"For x of {tuple(x.shape)} it is off by up to {(given - right).abs().max().item():.2f}."
    first = x + attention(norm_1(x))
    swapped = norm_2(x + attention(x))
    inner = x + norm_1(attention(x))
    replaced = norm_1(attention(x))
    early = x + attention(x)
    reasons = {
        "The norms stand in front of the parts; they should come after the sums.": first + mlp(norm_2(first)),
        "The residual connection around the MLP starts from x; it should start from what norm_1 gave.": norm_2(
            x + mlp(middle)
        ),
        "norm_1 and norm_2 are exchanged.": norm_1(swapped + mlp(swapped)),
        "What the parts found is normed alone; the sum should be.": inner + norm_2(mlp(inner)),
        "The residual connections are missing.": norm_2(mlp(replaced)),
        "norm_1 is missing.": norm_2(early + mlp(early)),
        "norm_2 is missing.": middle + mlp(middle),
    }
    for reason, wrong in reasons.items():
        if torch.allclose(given, wrong):
            raise Wrong(f"{told} {reason}")
    raise Wrong(told)


@exercise("same-cost", page=PAGE, task="At twice the width, both multiply eight times the square of the width.")
def same_cost(answer: Callable[[int], Any]) -> None:
    """Hold a function of the width to the number of words at which attention costs as much as the MLP."""
    for width in (6, 768):
        given = answer(width)
        if isinstance(given, bool) or not isinstance(given, int | float):
            raise Wrong(f"For width {width} it returned {type(given).__name__}; return a number.")
        attention = 4 * width**2 + 2 * given * width
        mlp = 8 * width**2
        if attention == mlp:
            continue
        told = (
            f"For width {width} it says {given:g} words. Attention then takes {attention:g} multiplications "
            f"for each word, and the MLP {mlp}."
        )
        reasons = {
            4 * width: "Attention has four matrices of its own, too.",
            6 * width: "That is where the products of queries, keys and values take half of the whole block.",
            width: "That would be so if the MLP were three times as wide inside.",
        }
        raise Wrong(f"{told} {reasons[int(given)]}" if given in reasons else told)
