"""A transformer block: which words learn from which in its parts, what it is without one, and what a text costs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from unmasked_doctor.museum import reach
from unmasked_lessons.teaching import Singer, verse


def moves(part: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Mark the outputs, in the rows, that change when one word of a sentence, (1, words, features), changes."""
    return torch.tensor(reach(part, x)) > 1e-4


def parameters(layer: nn.TransformerEncoderLayer) -> dict[str, int]:
    """Count the parameters of the "attention", the "MLP" and the "norms" of PyTorch's block."""
    parts: dict[str, list[nn.Module]] = {
        "attention": [layer.self_attn],
        "MLP": [layer.linear1, layer.linear2],
        "norms": [layer.norm1, layer.norm2],
    }
    return {name: sum(each.numel() for part in own for each in part.parameters()) for name, own in parts.items()}


def multiplications(width: int, length: int) -> tuple[int, int]:
    """Count the multiplications of a block for each word of a text, without a mask, in attention and in the MLP.

    Attention has four matrices; the MLP is four times as wide inside.
    """
    return 4 * width**2 + 2 * length * width, 2 * 4 * width**2


PARTS = ("attention", "MLP", "residual", "norms")


@contextmanager
def without(singer: Singer, part: str) -> Iterator[None]:
    """Within the block, a trained singer has to do without a part of its blocks.

    Without "attention" or "MLP" the part gives zeros; without the "residual" a part's output replaces the words;
    without "norms" these leave the words as they are. Without "positions" no word has a place, though it was trained
    with them.
    """
    if part not in (*PARTS, "positions"):
        raise ValueError(f"part is {part!r}; pass one of {', '.join(PARTS)}, positions")
    hooks = []
    if part == "positions":
        hooks.append(singer.place.register_forward_hook(lambda _, args, output: torch.zeros_like(output)))
    elif part == "norms":
        hooks += [norm.register_forward_hook(lambda _, args, output: args[0]) for norm in singer.norm]
    elif part == "residual":
        in_turn = chain.from_iterable(zip(singer.out, singer.mlp, strict=True))
        for norm, last in zip(singer.norm, in_turn, strict=False):  # the last norm stands before no part
            stream: list[Tensor] = []
            hooks.append(norm.register_forward_hook(lambda _, args, output, stream=stream: stream.append(args[0])))
            hooks.append(last.register_forward_hook(lambda _, args, output, stream=stream: output - stream.pop()))
    else:
        gone = singer.out if part == "attention" else singer.mlp
        hooks += [each.register_forward_hook(lambda _, args, output: torch.zeros_like(output)) for each in gone]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def songs(singer: Singer, number: int) -> list[dict[str, Any]]:
    """A verse as a singer sings it, whole and without each part, after three *la* and the verse's first words.

    Of each song the "name", such as "without MLP", the "words" that it adds, and the "share" of all verses that the
    singer then sings without a mistake.
    """
    first, green, *rest = verse(number).split()

    def sung(name: str) -> dict[str, Any]:
        words = singer.sing(f"la la la {first} {green}", len(rest)).split()
        return {"name": name, "words": words[-len(rest) :], "share": singer.verses_right()}

    all_songs = [sung("whole")]
    for part in PARTS:
        with without(singer, part):
            all_songs.append(sung(f"without {part}"))
    return all_songs
