"""The exercises of the page about a whole transformer block."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from unmasked.functional import self_attention
from unmasked_lessons.exercises._check import ask, draw, exercise, hold, judge

_Part = Callable[[Tensor], Tensor]

_MOVES: dict[str, _Part] = {
    "self-attention": lambda x: self_attention(x).context,
    "causal self-attention": lambda x: self_attention(x, is_causal=True).context,
    "a running sum from the end": lambda x: x.flip(0).cumsum(0).flip(0),
    "adding a hundredth of the last word to the first": lambda x: torch.cat([x[:1] + 0.01 * x[-1:], x[1:]]),
}
_STAYS: dict[str, _Part] = {
    "an MLP": lambda x: F.gelu(x @ torch.ones(x.size(-1), 7, dtype=x.dtype)) @ torch.ones(7, x.size(-1), dtype=x.dtype),
    "doubling every number": lambda x: 2 * x,
    "a norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "adding its place to each word": lambda x: x + torch.arange(len(x), dtype=x.dtype)[:, None],
}


@exercise("moves-information", "It tells the parts that move information from those that do not.")
def _moves_information(answer: Callable[[_Part, Tensor], object]) -> None:
    (x,) = draw((5, 4))
    tried = [(f"'{subject}'", True, part, "An output depends on another word.") for subject, part in _MOVES.items()]
    tried += [(f"'{subject}'", False, part, "Each output depends on its own word.") for subject, part in _STAYS.items()]
    judge(lambda part: ask(answer, part, x, keep="words"), tried)


@exercise("post-norm", "Each sum is normed, and what was normed goes on.")
def _post_norm(answer: Callable[[Tensor, _Part, _Part, _Part, _Part], Any]) -> None:
    (x,) = draw((3, 4))

    def attention(x: Tensor) -> Tensor:
        return self_attention(x).context.flip(-1)

    def mlp(x: Tensor) -> Tensor:
        return F.gelu(3 * x).roll(1, -1)

    def norm_1(x: Tensor) -> Tensor:
        return 2 * F.layer_norm(x, x.shape[-1:])

    def norm_2(x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:]) - 1

    early = x + attention(x)
    middle, swapped = norm_1(early), norm_2(early)
    first = x + attention(norm_1(x))
    inner = x + norm_1(attention(x))
    known = {
        "The norms stand in front of the parts; they should come after the sums.": first + mlp(norm_2(first)),
        "The residual connection around the MLP starts from x; it should start from what norm_1 gave.": norm_2(
            x + mlp(middle)
        ),
        "norm_1 and norm_2 are exchanged.": norm_1(swapped + mlp(swapped)),
        "What the parts found is normed alone; the sum should be.": inner + norm_2(mlp(inner)),
        "The residual connections are missing.": norm_2(mlp(norm_1(attention(x)))),
        "norm_1 is missing.": norm_2(early + mlp(early)),
        "norm_2 is missing.": middle + mlp(middle),
    }
    result = ask(answer, x, attention, norm_1, mlp, norm_2)
    hold(result, norm_2(middle + mlp(middle)), f"For x of {tuple(x.shape)}", known=known)


@exercise("same-cost", "At twice the width, both multiply eight times the square of the width.")
def _same_cost(answer: Callable[[int], Any]) -> None:
    for width in (6, 768):
        known = {
            "Attention has four matrices of its own, too.": 4 * width,
            "That is where the products of queries, keys and values take half of the whole block.": 6 * width,
            "That would be so if the MLP were three times as wide inside.": width,
        }

        def shown(words: float, width: int = width) -> str:
            return f"{words:g}, where attention takes {4 * width**2 + 2 * words * width:g} and the MLP {8 * width**2}"

        hold(answer(width), 2 * width, f"For width {width}", "it", known, shown=shown)
