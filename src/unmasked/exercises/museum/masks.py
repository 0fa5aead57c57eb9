"""The exercises of the museum's room of masks."""

from collections.abc import Callable

import torch
from torch import Tensor

from unmasked import masks
from unmasked.exercises._check import Wrong, exercise
from unmasked.functional import attention_scores, attention_weights, self_attention

PAGE = "museum/masks"
_Map = Callable[[Tensor], Tensor]


def _weighed(weigh: Callable[[Tensor, Tensor], Tensor]) -> _Map:
    return lambda x: weigh(attention_scores(x, x), masks.causal(x.size(-2))) @ x


_CAUSAL: dict[str, _Map] = {
    "causal attention": lambda x: self_attention(x, is_causal=True).context,
    "a window of two tokens": lambda x: self_attention(x, allowed=masks.sliding_window(x.size(-2), window=2)).context,
    "the identity": lambda x: x.clone(),
    "a running mean": lambda x: x.cumsum(-2) / torch.arange(1.0, x.size(-2) + 1, dtype=x.dtype)[:, None],
}
_LEAKY: dict[str, tuple[str | None, _Map]] = {
    "attention without a mask": ("no-causal-mask", _weighed(lambda s, allowed: s.softmax(-1))),
    "attention with the mask of the other polarity": (
        "mask-polarity",
        _weighed(lambda s, allowed: attention_weights(s, allowed=~allowed)),
    ),
    "attention with a boolean mask added": ("boolean-mask-added", _weighed(lambda s, a: (s + ~a).softmax(-1))),
    "attention with a float mask of ones": ("float-mask-of-ones", _weighed(lambda s, a: (s + a.float()).softmax(-1))),
    "attention masked after the softmax": ("mask-after-softmax", _weighed(lambda s, a: s.softmax(-1) * a)),
    "attention that sees one token ahead": (
        None,
        _weighed(lambda s, a: attention_weights(s, allowed=torch.ones_like(a).tril(1))),
    ),
    "attention in which the last token alone is seen too early": (
        None,
        _weighed(lambda s, a: attention_weights(s, allowed=a | (torch.arange(a.size(-1)) == a.size(-1) - 1))),
    ),
}


@exercise("leak-test", page=PAGE, task="It finds every function that looks ahead, and no other.")
def leak_test(answer: Callable[[_Map, Tensor], object]) -> None:
    """Hold a test of functions f(x), given an x, to functions that look ahead and to some that do not."""
    x = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    before = x.clone()
    for name, f in _CAUSAL.items():
        if answer(f, x):
            raise Wrong(f"It says that {name} looks ahead, but it does not. x has the shape {tuple(x.shape)}.")
        if not torch.equal(x, before):
            raise Wrong("The x that you were given was changed; clone it first.", "input-overwritten")
    for name, (cause, f) in _LEAKY.items():
        if not answer(f, x):
            told = f"It says that {name} does not look ahead, but it does"
            raise Wrong(f"{told}. Change each later token, and compare all earlier outputs.", cause)


@exercise("module-mask", page=PAGE, task="One mask for each sequence and head, in which True means: may not attend.")
def module_mask(answer: Callable[[Tensor, int], Tensor]) -> None:
    """Hold a function of ``allowed`` and a number of heads to the attn_mask of nn.MultiheadAttention."""
    lengths, heads = torch.tensor([2, 3]), 4
    allowed = (masks.padding(lengths) & masks.causal(3))[:, 0]  # batch queries keys
    given = answer(allowed.clone(), heads)
    if not isinstance(given, Tensor):
        raise Wrong(f"It returned {type(given).__name__}; return a tensor.")
    right = allowed.logical_not().repeat_interleave(heads, dim=0)
    if given.shape != right.shape:
        wanted = f"{tuple(right.shape)}: batch times heads, queries, keys"
        raise Wrong(
            f"For allowed of {tuple(allowed.shape)} and {heads} heads the shape is {tuple(given.shape)}; "
            f"nn.MultiheadAttention takes {wanted}."
        )
    if given.is_floating_point():
        if not ((given == 0) | (given == -torch.inf)).all():
            raise Wrong(
                "A floating mask is added to the scores; this one holds other numbers than 0 and -inf.",
                "float-mask-of-ones",
            )
        given = given == -torch.inf
    elif given.dtype != torch.bool:
        raise Wrong(f"Its dtype is {given.dtype}; nn.MultiheadAttention takes torch.bool or a floating one.")
    if torch.equal(given, right):
        return
    if torch.equal(given, ~right):
        raise Wrong("It marks what may be seen; to nn.MultiheadAttention True means: may not attend.", "mask-polarity")
    if torch.equal(given, (~allowed).repeat(heads, 1, 1)):
        told = "Mask 1 is the second sequence's; it should be the second head's of the first sequence"
        raise Wrong(f"{told}: the heads of one sequence stand side by side.", "batch-indexed-for-head")
    row = next(i for i in range(len(right)) if not torch.equal(given[i], right[i]))
    raise Wrong(f"Mask {row} is {given[row].int().tolist()}; it should be {right[row].int().tolist()}.")
