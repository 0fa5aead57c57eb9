"""The exercises of the museum, and wrong versions of attention for them to be tried on.

`WRONG` holds causal self-attention in many heads, without learned matrices, wrong in one way each; `right` is right.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmasked import masks, museum
from unmasked.exercises._check import Wrong, exercise
from unmasked.functional import attend
from unmasked.heads import merge_heads, split_heads
from unmasked.probes import differs

__all__ = ["WRONG", "mysteries", "right"]

Attend = Callable[[Tensor, int], Tensor]
Qkv = tuple[Tensor, Tensor, Tensor]


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
    def attend(x: Tensor, num_heads: int) -> Tensor:
        heads = split(x, num_heads)
        seen = masks.causal(heads.size(-2)).to(x.device)
        return merge(weigh(heads @ heads.mT * scale(heads, num_heads), seen) @ heads)

    return attend


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


def _draw(*shape: int, seed: int = 9) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _title(slug: str) -> str:
    return museum.ENTRIES[slug].title


@exercise(
    "test-of-your-own",
    page="museum/index",
    task="Your test passes what is right, and none of the wrong versions.",
)
def own_test(answer: Callable[[Callable[[Tensor], Tensor]], object]) -> str:
    """Hold a test of causal self-attention in three heads to right versions and to wrong ones."""
    for name, correct in (("the package's", right), ("one by PyTorch's function", _by_pytorch), ("a loop", _loop)):
        if not _passes(answer, lambda x, f=correct: f(x, 3)):  # type: ignore[misc]
            raise Wrong(f"Your test refuses a right version, {name}. Compare with a tolerance, as rounding differs.")
    through = [slug for slug, f in WRONG.items() if _passes(answer, lambda x, f=f: f(x, 3))]  # type: ignore[misc]
    if through:
        told = f"Your test lets through {len(through)} of {len(WRONG)} wrong versions"
        raise Wrong(f"{told}, such as this: {_title(through[0])}.", through[0])
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
    return [lambda x, f=WRONG[slug]: f(x, 3) for slug in _MYSTERIES]  # type: ignore[misc]


@exercise("which-mistake", page="museum/index", task="All three mistakes have their names.")
def which_mistake(answer: Any) -> None:
    """Hold the names of three mistakes to what the functions do."""
    named = [answer] if isinstance(answer, str) else list(answer)
    if len(named) != len(_MYSTERIES):
        raise Wrong(f"You named {len(named)}; name {len(_MYSTERIES)} mistakes, in the order of mysteries().")
    for slug in named:
        if slug not in WRONG:
            near = difflib.get_close_matches(str(slug), WRONG, n=1, cutoff=0.0)[0]
            raise Wrong(f"{slug!r} is none of the mistakes that were tried; did you mean {near!r}?")
    x = _draw(2, 5, 12)
    for number, (slug, mystery) in enumerate(zip(named, mysteries(), strict=True)):
        if gap := differs(mystery(x), WRONG[slug](x, 3)):
            told = (
                f"Function {number} has another mistake than {slug!r}: on 2 items of 5 tokens they differ by {gap:.2f}"
            )
            raise Wrong(f"{told}.", slug)


@exercise(
    "sizes-that-tell",
    page="museum/heads",
    task="At these sizes every wrong version gives other numbers than the right one.",
)
def sizes_that_tell(answer: Any) -> None:
    """Hold batch, tokens, heads and head_dim to what they can show."""
    sizes = tuple(answer.values()) if isinstance(answer, dict) else tuple(answer)
    if len(sizes) != 4 or not all(isinstance(size, int) and size > 0 for size in sizes):
        raise Wrong(f"You gave {sizes}; give four whole numbers above zero: batch, tokens, heads, head_dim.")
    batch, tokens, heads, head_dim = sizes
    if math.prod(sizes) > 1_000_000:
        raise Wrong(f"You gave {sizes}, {math.prod(sizes):,} numbers; a test that is run often should be small.")
    x = _draw(batch, tokens, heads * head_dim)
    hidden = [slug for slug, f in WRONG.items() if not differs(f(x, heads), right(x, heads))]
    if hidden:
        told = f"With (batch, tokens, heads, head_dim) = {sizes}, {len(hidden)} of {len(WRONG)} mistakes hide"
        raise Wrong(f"{told}, such as this: {_title(hidden[0])}.", hidden[0])


@exercise(
    "undo-a-bare-merge",
    page="museum/heads",
    task="What a bare reshape has merged is put right.",
)
def undo_a_bare_merge(answer: Callable[[Tensor, int], Tensor]) -> None:
    """Hold a function of an output merged by a bare reshape, and of num_heads, to the right output."""
    for heads, context in ((2, torch.arange(12.0).view(1, 2, 3, 2)), (3, _draw(2, 3, 5, 4))):
        expected = merge_heads(context)
        spoiled = context.reshape(expected.shape)
        given = answer(spoiled.clone(), heads)
        if not isinstance(given, Tensor):
            raise Wrong(f"It returned {type(given).__name__}; return a tensor.")
        if given.shape != expected.shape:
            raise Wrong(f"The shape is {tuple(given.shape)}; it should be {tuple(expected.shape)}.")
        if not differs(given, expected):
            continue
        told = f"For {heads} heads and the input {spoiled.tolist()} it gives {given.tolist()}" if heads == 2 else ""
        told = f"{told}; it should give {expected.tolist()}." if told else "With 2 heads it is right, with 3 it is not."
        if torch.equal(given, spoiled):
            raise Wrong(f"The input came back as it was. {told}", "merge-without-transpose")
        if torch.equal(given, spoiled.unflatten(-1, (heads, -1)).transpose(1, 2).reshape(spoiled.shape)):
            raise Wrong(
                f"Split as if it were merged rightly, and merged barely again. {told}", "view-without-transpose"
            )
        raise Wrong(told)


def _project(module: nn.MultiheadAttention, x: Tensor) -> Qkv:
    q, k, v = F.linear(x, module.in_proj_weight, module.in_proj_bias).chunk(3, dim=-1)
    return q, k, v


def _attend(qkv: Qkv, heads: int) -> Tensor:
    q, k, v = (split_heads(part, heads) for part in qkv)
    return merge_heads(attend(q, k, v).context)


def _half_right(module: nn.MultiheadAttention, x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Compute what each mistake with the weights gives on this module."""
    weight, bias, out, heads = module.in_proj_weight, module.in_proj_bias, module.out_proj, module.num_heads
    q, k, v = _project(module, x)
    context = _attend((q, k, v), heads)
    bare = F.linear(x, weight).chunk(3, dim=-1)
    yield "zero-bias-parity", out(_attend((bare[0], bare[1], bare[2]), heads))
    yield "zero-bias-parity", F.linear(context, out.weight)
    turned = [x @ w + b for w, b in zip(weight.chunk(3), bias.chunk(3), strict=True)]
    yield "weight-not-transposed", out(_attend((turned[0], turned[1], turned[2]), heads))
    yield "weight-not-transposed", context @ out.weight + out.bias
    rows = F.linear(x, weight, bias).unflatten(-1, (heads, 3, -1)).unbind(-2)
    yield "interleaved-qkv", out(_attend((rows[0].flatten(-2), rows[1].flatten(-2), rows[2].flatten(-2)), heads))
    yield "missing-out-proj", context
    yield "wrong-value", out(_attend((q, k, q), heads))
    yield "wrong-value", out(_attend((q, k, k), heads))
    order = [*range(1, heads), 0]
    yield "averaged-weights-parity", out(merge_heads(split_heads(context, heads)[:, order]))


@exercise(
    "weights-that-tell",
    page="museum/weights",
    task="On a module that is filled so, every mistake with the weights shows.",
)
def weights_that_tell(answer: Callable[[nn.MultiheadAttention], object]) -> None:
    """Hold a function that fills a module to what the module can then show."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(9)
        module = nn.MultiheadAttention(12, 3, batch_first=True)
        shapes = [parameter.shape for parameter in module.parameters()]
        filled = answer(module)
    module = filled if isinstance(filled, nn.MultiheadAttention) else module
    if [parameter.shape for parameter in module.parameters()] != shapes:
        raise Wrong("The shapes of the parameters have changed; fill them where they are.")
    x = _draw(2, 5, 12)
    with torch.no_grad():
        expected = module.train(False)(x, x, x)[0]
        if not expected.isfinite().all():
            raise Wrong("The module's output is not finite: fill it with numbers of ordinary size.")
        for slug, given in _half_right(module, x):
            if not differs(given, expected):
                raise Wrong(f"On the filled module this mistake gives the right numbers: {_title(slug)}.", slug)


@exercise(
    "mend-the-class",
    page="museum/weights",
    task="The class gives PyTorch's numbers, with PyTorch's weights.",
)
def mend_the_class(answer: Callable[[nn.MultiheadAttention], Callable[[Tensor], Tensor]]) -> None:
    """Hold a class that takes its weights from nn.MultiheadAttention to that module."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(9)
        module = nn.MultiheadAttention(12, 3, batch_first=True)
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=12**-0.5)
    x = _draw(2, 5, 12)
    copied = answer(module)
    given = copied(x)
    if not isinstance(given, Tensor) or given.shape != x.shape:
        shown = tuple(given.shape) if isinstance(given, Tensor) else type(given).__name__
        raise Wrong(f"For an input {tuple(x.shape)} it returned {shown}; it should be {tuple(x.shape)}.")
    with torch.no_grad():
        expected = module(x, x, x)[0]
        if gap := differs(given, expected):
            for slug, wrong in _half_right(module, x):
                if not differs(given, wrong):
                    raise Wrong(f"Off by up to {gap:.2f}. One mistake is left: {_title(slug)}.", slug)
            raise Wrong(f"Off by up to {gap:.2f} from PyTorch's output, and by more than one mistake.")
        for parameter in module.parameters():
            parameter.add_(1.0)
        if differs(copied(x), expected):
            raise Wrong("It was right, until the module that it copied was trained.", "aliased-weights")
