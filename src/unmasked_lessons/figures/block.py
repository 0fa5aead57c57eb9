"""A transformer block: who learns from whom in each of its parts, what it is without one, and what a text costs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from unmasked import plot
from unmasked_doctor.museum import reach
from unmasked_lessons.figures._drawing import AMBER, TEAL, VIOLET
from unmasked_lessons.teaching import Singer, verse

NORM, PART, ADD, END = 0.55, 1.35, 3.75, 4.35  # heights within a part: its norm, itself, the sum, the next part


def moves(part: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Which words' outputs, in the rows, change when one word of a sentence, (1, words, features), changes."""
    return torch.tensor(reach(part, x)) > 1e-4


def block(moved: Mapping[str, Tensor], words: Sequence[str]) -> Figure:
    """A block from the bottom up: before each of its two parts a norm, after it a sum, and a way around both.

    Lines within a part lead from each word to those that learn from it, as `moves` found for the part of this name.
    """
    with plot.figure(3.9, 5.0) as drawn:
        axes = drawn.subplots()
        axes.set(xlim=(-1.5, 3.7), ylim=(-0.7, 2 * END + 0.7))
        axes.set_axis_off()
        middle: dict[str, Any] = {"ha": "center", "va": "center"}
        for number, ((name, table), colour) in enumerate(zip(moved.items(), (TEAL, AMBER), strict=True)):
            bottom = END * number
            for to, origin in table.nonzero().tolist():
                axes.plot([origin, to], [bottom + PART, bottom + ADD - 0.55], color=colour, linewidth=2)
            axes.text(-0.4, bottom + 2.25, name, ha="right", va="center")
            axes.text(-0.4, bottom + 0.8, "norm", ha="right", va="center")
            for place in range(len(words)):
                _around(axes, place, bottom)
        for place, word in enumerate(words):
            axes.text(place, -0.35, word, **middle)
            axes.text(place, 2 * END + 0.35, f"{word}′", **middle)
    return drawn


def _around(axes: Any, place: int, bottom: float) -> None:
    """The way of one word: up through the norm and out of the part, and around both to the sum."""
    grey: dict[str, Any] = {"color": "gray", "linewidth": 1.5}
    axes.plot([place] * 2, [bottom, bottom + NORM], **grey)
    axes.bar(place, 0.5, 0.44, bottom + NORM, color=VIOLET)
    axes.plot([place] * 2, [bottom + NORM + 0.5, bottom + PART], **grey)
    axes.plot([place] * 2, [bottom + ADD - 0.55, bottom + END], **grey)
    around, half = torch.linspace(0, torch.pi, 40), (ADD - 0.25) / 2
    axes.plot(place + 0.4 * around.sin(), bottom + 0.25 + half - half * around.cos(), **grey)
    axes.plot(place, bottom + ADD, "o", color="#4c5a5a", markersize=14, markeredgewidth=1.5)
    axes.plot(place, bottom + ADD, "+", color="white", markersize=9, markeredgewidth=2)


def parameters(layer: nn.TransformerEncoderLayer) -> dict[str, int]:
    """How many parameters the "attention", the "MLP" and the "norms" of PyTorch's block have."""
    parts: dict[str, list[nn.Module]] = {
        "attention": [layer.self_attn],
        "MLP": [layer.linear1, layer.linear2],
        "norms": [layer.norm1, layer.norm2],
    }
    return {name: sum(each.numel() for part in own for each in part.parameters()) for name, own in parts.items()}


def multiplications(width: int, length: int) -> tuple[int, int]:
    """What a block costs each word of a text, without a mask, in attention and in the MLP.

    Attention has four matrices; the MLP is four times as wide inside.
    """
    return 4 * width**2 + 2 * length * width, 2 * 4 * width**2


def costs(lengths: Sequence[int], attention: Sequence[float], mlp: Sequence[float], crossing: int) -> Figure:
    """What a word costs in attention and in the MLP of a block, over the text's length, and where both cost alike."""
    with plot.figure(3.9, 2.6) as drawn:
        axes = drawn.subplots()
        axes.plot(lengths, [cost / 1e6 for cost in attention])
        axes.plot(lengths, [cost / 1e6 for cost in mlp])
        axes.text(2500, 6.6, "attention", ha="right", va="bottom")
        axes.text(100, mlp[0] / 1e6 + 0.15, "MLP", va="bottom")
        axes.axvline(crossing, color="gray", linestyle=":")
        axes.set(xlabel="words in the text", ylabel="millions for each word", ylim=(0, None))
    return drawn


PARTS = ("attention", "MLP", "residual", "norms")


@contextmanager
def without(singer: Singer, part: str) -> Iterator[None]:
    """Within the block, a trained singer has to do without a part of its blocks.

    "attention" or "MLP" then find nothing but zeros; without the "residual" what a part finds replaces the words;
    without "norms" these leave the words as they are.
    """
    if part not in PARTS:
        raise ValueError(f"part is {part!r}; pass one of {', '.join(PARTS)}")
    hooks = []
    if part == "norms":
        hooks += [norm.register_forward_hook(lambda _, given, made: given[0]) for norm in singer.norm]
    elif part == "residual":
        in_turn = chain.from_iterable(zip(singer.out, singer.mlp, strict=True))
        for norm, found in zip(singer.norm, in_turn, strict=False):  # the last norm stands before no part
            stream: list[Tensor] = []
            hooks.append(norm.register_forward_hook(lambda _, given, made, stream=stream: stream.append(given[0])))
            hooks.append(found.register_forward_hook(lambda _, given, made, stream=stream: made - stream.pop()))
    else:
        gone = singer.out if part == "attention" else singer.mlp
        hooks += [each.register_forward_hook(lambda _, given, made: torch.zeros_like(made)) for each in gone]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def songs(singer: Singer, number: int) -> list[dict[str, Any]]:
    """A verse as a singer sings it, whole and without each part, after three *la* and the verse's first words.

    Of each song the "name", which says what it has, the "words" that it adds, and which "share" of all verses the
    singer then sings without a mistake.
    """
    first, green, *rest = verse(number).split()

    def sung(name: str) -> dict[str, Any]:
        words = singer.sing(f"la la la {first} {green}", len(rest)).split()
        return {"name": name, "words": words[-len(rest) :], "share": singer.verses_right()}

    told = [sung("whole")]
    for part in PARTS:
        with without(singer, part):
            told.append(sung(f"without {part}"))
    return told
