"""The exercises of the museum's room of masks."""

from collections.abc import Callable

import torch
from torch import Tensor

from unmasked import masks
from unmasked.functional import self_attention
from unmasked_doctor.museum import ENTRIES
from unmasked_lessons.exercises._check import Wrong, ask, draw, exercise, hold, judge, same, tensor
from unmasked_lessons.exercises.museum.index import WRONG, in_heads

_Map = Callable[[Tensor], Tensor]


def _seen(allowed: Callable[[Tensor], Tensor]) -> _Map:
    return lambda x: self_attention(x, allowed=allowed(masks.causal(x.size(-2)))).context


_TOLD = "Change each later token, and compare all earlier outputs."
_LEAKS = ("no-causal-mask", "mask-polarity", "boolean-mask-added", "float-mask-of-ones", "mask-after-softmax")
_TRIED: list[tuple[str, bool, _Map, str]] = [
    ("causal attention", False, lambda x: self_attention(x, is_causal=True).context, ""),
    ("a window of two tokens", False, _seen(lambda a: a.triu(-1)), ""),
    ("the identity", False, lambda x: x.clone(), ""),
    ("a running mean", False, lambda x: x.cumsum(-2) / torch.arange(1.0, x.size(-2) + 1, dtype=x.dtype)[:, None], ""),
    *((f"'{ENTRIES[slug].title}'", True, in_heads(WRONG[slug], 1), f"{_TOLD} [{slug}]") for slug in _LEAKS),
    ("attention that sees one token ahead", True, _seen(lambda a: torch.ones_like(a).tril(1)), _TOLD),
    (
        "attention in which the last token alone is seen too early",
        True,
        _seen(lambda a: a | (torch.arange(a.size(-1)) == a.size(-1) - 1)),
        _TOLD,
    ),
]


@exercise("leak-test", "It finds every function that looks ahead, and no other.")
def _leak_test(answer: Callable[[_Map, Tensor], object]) -> None:
    (x,) = draw((2, 5, 6))
    judge(lambda f: ask(answer, f, x, keep="x"), _TRIED)


@exercise("module-mask", "One mask for each sequence and head, in which True means: may not attend.")
def _module_mask(answer: Callable[[Tensor, int], Tensor]) -> None:
    lengths, heads = torch.tensor([2, 3]), 4
    allowed = (masks.padding(lengths) & masks.causal(3))[:, 0]  # batch queries keys
    right = allowed.logical_not().repeat_interleave(heads, dim=0)
    where = f"For allowed of {tuple(allowed.shape)} and {heads} heads"
    result = tensor(ask(answer, allowed, heads), where)
    if result.is_floating_point():
        if not ((result == 0) | (result == -torch.inf)).all():
            message = "A floating mask is added to the scores; this one holds other numbers than 0 and -inf."
            raise Wrong(message, "float-mask-of-ones")
        result = result == -torch.inf
    tensor(result, where, right, axes=": batch times heads, queries, keys")
    side_by_side = "Mask 1 should be the second head's of the first sequence: its heads stand side by side."
    known = {
        "It marks what may be seen; to nn.MultiheadAttention True means: may not attend. [mask-polarity]": (
            same(result, ~right)
        ),
        f"{side_by_side} [batch-indexed-for-head]": same(result, (~allowed).repeat(heads, 1, 1)),
    }
    for row, (mine, exact) in enumerate(zip(result, right, strict=True)):
        hold(mine, exact, where, f"mask {row}", known)
