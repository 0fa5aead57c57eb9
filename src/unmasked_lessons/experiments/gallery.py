"""The maps of the museum's gallery, which come from running both lines of a mistake."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmasked import masks
from unmasked._generators import forked
from unmasked.functional import attention_scores, attention_weights, self_attention
from unmasked.positions import alibi
from unmasked_doctor.museum import ENTRIES, reach
from unmasked_lessons.exercises.museum.index import WRONG, in_heads, right

Map = list[list[float]]

# Turns the value of a line of the museum into a context.
_FINISH: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "batch-first-forgotten": lambda module, x: _filled(module)(x, x, x)[0],
    "padding-ignored": lambda attention, x: attention.context,
    "top-left-causal": lambda context, x: context,
    "is-causal-is-a-hint": lambda output_and_weights, x: output_and_weights[0],
    "fully-masked-row": lambda weights, x: weights @ x,
    "global-d-k": lambda scores, x: scores.softmax(-1) @ x,
    "alibi-sign": lambda scores, x: attention_weights(scores, allowed=_causal(x)) @ x,
    "packed-without-documents": lambda context, x: context,
    "softcap-after-mask": lambda scores, x: scores.softmax(-1) @ x,
}


def pairs(x: Tensor, num_heads: int) -> dict[str, dict[str, Map]]:
    """Map, by `museum.reach`, the "wrong" and the "right" version of each mistake that two maps can show."""
    sound = reach(in_heads(right, num_heads), x)
    both = {slug: {"wrong": reach(in_heads(wrong, num_heads), x), "right": sound} for slug, wrong in WRONG.items()}
    for slug in _FINISH:
        entry = ENTRIES[slug]
        both[slug] = {
            "wrong": reach(context_of(slug, entry.wrong, num_heads), x),
            "right": reach(context_of(slug, entry.right, num_heads), x),
        }
    return both


def context_of(slug: str, line: str, num_heads: int) -> Callable[[Tensor], Tensor]:
    """One of a mistake's lines, an expression, as a function of (batch, tokens, features) that gives the context.

    With a cache, the context is that of the last two tokens alone.
    """
    code = compile(line, slug, "eval")

    @torch.no_grad()
    def context(x: Tensor) -> Tensor:
        with forked():  # a module draws its weights before they are filled
            names = _names(x, num_heads)
            if slug == "top-left-causal":
                names["q"] = x[:, -2:]
            if slug == "softcap-after-mask":
                names["scores"] = names["scores"].masked_fill(~_causal(x), -math.inf)
            return _FINISH[slug](eval(code, names), x)

    return context


def _names(x: Tensor, num_heads: int) -> dict[str, Any]:
    """Return the values of the names in the museum's lines."""
    tokens, features = x.shape[1:]
    functions: list[Any] = [_attend, _allowed_keys, _causal, attention_scores, attention_weights, self_attention]
    names: dict[str, Any] = {each.__name__.lstrip("_"): each for each in functions}
    names |= {"torch": torch, "nn": nn, "F": F, "math": math, "masks": masks}
    names |= {"x": x, "q": x, "k": x, "v": x, "scores": attention_scores(x, x)}
    names |= {"H": num_heads, "D": features // num_heads, "d_k": 50, "cap": 5.0, "bias": alibi(8, tokens)[:1]}
    names["ids"] = torch.arange(tokens) // 3
    names["allowed"] = masks.causal(tokens) & (torch.arange(tokens) > 1)  # padding in front
    names["module"] = _filled(nn.MultiheadAttention(features, 4, batch_first=True))
    return names


def _causal(x: Tensor) -> Tensor:
    return masks.causal(x.size(1))


def _allowed_keys(x: Tensor) -> Tensor:
    return torch.arange(x.size(1)) < x.size(1) - 2  # the last two are padding


def _attend(x: Tensor, allowed: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x, x, x, attn_mask=allowed)


def _filled(module: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(9)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3, generator=generator)
    return module.eval()
