"""The exercises of the page about layouts of weights."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from unmasked import layouts
from unmasked_lessons.exercises._check import Wrong, ask, draw, exercise, hold, parts

_HEADS, _HEAD_DIM, _EMBED_DIM = 3, 2, 6
_ROWS = torch.arange(float(3 * _EMBED_DIM * _EMBED_DIM)).view(3 * _EMBED_DIM, _EMBED_DIM)
_BLOCKS = _ROWS.view(_HEADS, 3, _HEAD_DIM, _EMBED_DIM)  # head by head, what the packed rows are taken for


def _numbers(result: Tensor) -> list[int]:
    """Return the indices of the rows."""
    return [int(row) // _EMBED_DIM for row in result[:, 0]]


@exercise("one-head-of-packed", "Part, head and place are three axes of the rows.")
def _one_head(answer: Callable[[Tensor, int, int], Sequence[Tensor]]) -> None:
    for head in range(_HEADS):
        result = parts(list(ask(answer, _ROWS, _HEADS, head)), "query", "key", "value")
        for place, subject in enumerate(("query", "key", "value")):
            right = _ROWS.view(3, _HEADS, _HEAD_DIM, _EMBED_DIM)[place, head]
            known = {"The rows are not packed head by head. [interleaved-qkv]": _BLOCKS[head, place]}
            subject = f"the list of rows in the {subject}'s matrix of head {head}"
            hold(result[place], right, "For 3 heads", subject, known, shown=_numbers)


@exercise("interleaved-to-packed", "All rows of the query come first, then the key's, then the value's.")
def _to_packed(answer: Callable[[Tensor, int], Tensor]) -> None:
    result, right = ask(answer, _ROWS, _HEADS, keep="weight"), _BLOCKS.transpose(0, 1).reshape(_ROWS.shape)
    known = {"They still stand head by head. [interleaved-qkv]": _ROWS}
    hold(result, right, "", "the row order", known, shown=_numbers)


@exercise("conv1d-to-packed", "Both matrices are transposed, and both biases stay.")
def _conv1d_to_packed(answer: Callable[[Mapping[str, Tensor], int], Mapping[str, Tensor]]) -> None:
    shapes = {"c_attn.weight": (6, 18), "c_attn.bias": (18,), "c_proj.weight": (6, 6), "c_proj.bias": (6,)}
    state = dict(zip(shapes, draw(*shapes.values(), dtype=torch.float32), strict=True))
    right = layouts.convert(state, source="conv1d", target="packed", num_heads=_HEADS)
    result = answer(state, _HEADS)
    if not isinstance(result, Mapping) or set(result) != set(right):
        names = sorted(result) if isinstance(result, Mapping) else type(result).__name__
        raise Wrong(f"It gives {names}; it should give {sorted(right)}.")
    for subject, tensor in right.items():
        known = {
            "It is not transposed. [weight-not-transposed]": tensor.dim() == 2 and tensor.T,
            "A view is no transpose. [weight-not-transposed]": state["c_attn.weight"].reshape(18, 6),
        }
        hold(result[subject], tensor, f"For {subject}", known=known)
