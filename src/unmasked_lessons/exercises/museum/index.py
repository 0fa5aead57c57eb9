"""The exercises of the museum, and wrong versions of attention for them to be tried on.

`WRONG` holds causal self-attention in many heads, without learned matrices, wrong in one way each; `right` is right.
"""

import difflib
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from unmasked import masks
from unmasked.functional import attend
from unmasked.heads import merge_heads, split_heads
from unmasked_doctor.museum import ENTRIES
from unmasked_doctor.probes import differs
from unmasked_lessons.exercises._check import Wrong, draw, exercise

Attend = Callable[[Tensor, int], Tensor]


def in_heads(f: Attend, num_heads: int) -> Callable[[Tensor], Tensor]:
    """The same, with its number of heads."""
    return lambda x: f(x, num_heads)


def right(x: Tensor, num_heads: int) -> Tensor:
    """Attend: (batch, tokens, features) to the same."""
    heads = split_heads(x, num_heads)
    return merge_heads(attend(heads, heads, heads, is_causal=True).context)


def _wrong(
    *,
    split: Callable[[Tensor, int], Tensor] = split_heads,
    merge: Callable[[Tensor], Tensor] = merge_heads,
    scale: Callable[[Tensor, int], float] = lambda heads, num_heads: heads.size(-1) ** -0.5,
    weigh: Callable[[Tensor, Tensor], Tensor] = lambda scores, seen: scores.masked_fill(~seen, -math.inf).softmax(-1),
) -> Attend:
    def wrong(x: Tensor, num_heads: int) -> Tensor:
        heads = split(x, num_heads)
        seen = masks.causal(heads.size(-2)).to(x.device)
        return merge(weigh(heads @ heads.mT * scale(heads, num_heads), seen) @ heads)

    return wrong


def _first_item(x: Tensor, num_heads: int) -> Tensor:
    return right(x[:1], num_heads).expand_as(x)


def _flat_return(x: Tensor, num_heads: int) -> Tensor:
    return right(x, num_heads).transpose(0, 1).reshape(x.shape)


# In short: s for the scores, c for the context, h for the heads and n for their number.
WRONG: dict[str, Attend] = {
    "merge-without-transpose": _wrong(merge=lambda c: c.flatten(1).unflatten(1, (c.size(2), -1))),
    "view-without-transpose": _wrong(split=lambda x, n: x.reshape(x.size(0), n, x.size(1), -1)),
    "swapped-view": _wrong(split=lambda x, n: x.unflatten(-1, (-1, n)).transpose(1, 2)),
    "only-first-item": _first_item,
    "batch-and-tokens-swapped": _flat_return,
    "no-causal-mask": _wrong(weigh=lambda s, seen: s.softmax(-1)),
    "mask-polarity": _wrong(weigh=lambda s, seen: s.masked_fill(seen, -1e4).softmax(-1)),
    "boolean-mask-added": _wrong(weigh=lambda s, seen: (s + ~seen).softmax(-1)),
    "float-mask-of-ones": _wrong(weigh=lambda s, seen: (s * seen).softmax(-1)),
    "mask-after-softmax": _wrong(weigh=lambda s, seen: s.softmax(-1) * seen),
    "missing-scale": _wrong(scale=lambda h, n: 1.0),
    "wrong-d-in-scale": _wrong(scale=lambda h, n: (h.size(-1) * n) ** -0.5),
    "softmax-over-queries": _wrong(weigh=lambda s, seen: s.masked_fill(~seen, -math.inf).softmax(-2)),
    "weights-not-normalized": _wrong(weigh=lambda s, seen: s.exp() * seen),
}


@exercise("test-of-your-own", "Your test passes what is right, and none of the wrong versions.")
def _own_test(answer: Callable[[Callable[[Tensor], Tensor]], object]) -> str:
    for name, correct in (("the package's", right), ("one by PyTorch's function", _by_pytorch), ("a loop", _loop)):
        if not _passes(answer, in_heads(correct, 3)):
            raise Wrong(f"Your test refuses a right version, {name}. Compare with a tolerance, as rounding differs.")
    through = [slug for slug, f in WRONG.items() if _passes(answer, in_heads(f, 3))]
    if through:
        message = f"Your test lets through {len(through)} of {len(WRONG)} wrong versions"
        raise Wrong(f"{message}, such as this: {ENTRIES[through[0]].title}.", through[0])
    return f"Your test passes what is right, and none of {len(WRONG)} wrong versions."


def _passes(test: Callable[[Callable[[Tensor], Tensor]], object], f: Callable[[Tensor], Tensor]) -> bool:
    try:
        verdict = test(f)
    except AssertionError:
        return False
    return verdict is None or bool(verdict)


def _by_pytorch(x: Tensor, num_heads: int) -> Tensor:
    heads = split_heads(x, num_heads)
    return merge_heads(F.scaled_dot_product_attention(heads, heads, heads, is_causal=True))


def _loop(x: Tensor, num_heads: int) -> Tensor:
    outputs = []
    for part in x.chunk(num_heads, dim=-1):
        scores = (part @ part.mT / math.sqrt(part.size(-1))).masked_fill(~masks.causal(x.size(1)), -math.inf)
        outputs.append(scores.softmax(-1) @ part)
    return torch.cat(outputs, dim=-1)


_MYSTERIES = ("mask-after-softmax", "swapped-view", "batch-and-tokens-swapped")


def mysteries() -> list[Callable[[Tensor], Tensor]]:
    """Return three functions of (batch, tokens, features), in three heads, each wrong in one of the ways of `WRONG`."""
    return [in_heads(WRONG[slug], 3) for slug in _MYSTERIES]


@exercise("which-mistake", "All three mistakes have their names.")
def _which_mistake(answer: Any) -> None:
    named = [answer] if isinstance(answer, str) else list(answer)
    if len(named) != len(_MYSTERIES):
        raise Wrong(f"You named {len(named)}; name {len(_MYSTERIES)} mistakes, in the order of mysteries().")
    for slug in named:
        if slug not in WRONG:
            near = difflib.get_close_matches(str(slug), WRONG, n=1, cutoff=0.0)[0]
            raise Wrong(f"{slug!r} is none of the mistakes that were tried; did you mean {near!r}?")
    (x,) = draw((2, 5, 12), seed=9, dtype=torch.float32)
    for number, (slug, mystery) in enumerate(zip(named, mysteries(), strict=True)):
        if gap := differs(mystery(x), WRONG[slug](x, 3)):
            message = f"Function {number} has another mistake than {slug!r}"
            raise Wrong(f"{message}: on 2 items of 5 tokens they differ by {gap:.2f}.", slug)
