"""The exercises of the museum's room of heads."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from unmasked.heads import merge_heads
from unmasked_doctor.museum import ENTRIES
from unmasked_doctor.probes import differs
from unmasked_lessons.exercises._check import Wrong, ask, draw, exercise, hold
from unmasked_lessons.exercises.museum.index import WRONG, right


@exercise("sizes-that-tell", "At these sizes every wrong version gives other numbers than the right one.")
def _sizes_that_tell(answer: Any) -> None:
    sizes = tuple(answer.values()) if isinstance(answer, dict) else tuple(answer)
    if len(sizes) != 4 or not all(isinstance(size, int) and size > 0 for size in sizes):
        raise Wrong(f"You gave {sizes}; give four whole numbers above zero: batch, tokens, heads, head_dim.")
    batch, tokens, heads, head_dim = sizes
    if math.prod(sizes) > 1_000_000:
        raise Wrong(f"You gave {sizes}, {math.prod(sizes):,} numbers; a test that is run often should be small.")
    (x,) = draw((batch, tokens, heads * head_dim), seed=9, dtype=torch.float32)
    hidden = [slug for slug, f in WRONG.items() if not differs(f(x, heads), right(x, heads))]
    if hidden:
        message = f"With (batch, tokens, heads, head_dim) = {sizes}, {len(hidden)} of {len(WRONG)} mistakes hide"
        raise Wrong(f"{message}, such as this: {ENTRIES[hidden[0]].title}.", hidden[0])


@exercise("undo-a-bare-merge", "What a bare reshape has merged is put right.")
def _undo_a_bare_merge(answer: Callable[[Tensor, int], Tensor]) -> None:
    for heads, context in ((2, torch.arange(12.0).view(1, 2, 3, 2)), (3, draw((2, 3, 5, 4))[0])):
        expected = merge_heads(context)
        spoiled = context.reshape(expected.shape)
        known = {
            "The input came back as it was. [merge-without-transpose]": spoiled,
            "That is split as if it were merged rightly, and merged barely again. [view-without-transpose]": (
                spoiled.unflatten(-1, (heads, -1)).transpose(1, 2).reshape(spoiled.shape)
            ),
        }
        where = f"For the input {spoiled.tolist()}" if heads == 2 else "With 2 heads it is right; with 3"
        shown = Tensor.tolist if heads == 2 else None
        hold(ask(answer, spoiled, heads), expected, where, "it", known, shown=shown)
