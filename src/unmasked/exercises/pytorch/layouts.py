"""The exercises of the page about layouts of weights."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from unmasked import layouts
from unmasked.exercises._check import Wrong, exercise

PAGE = "pytorch/layouts"
_HEADS, _HEAD_DIM, _EMBED_DIM = 3, 2, 6


def _rows() -> Tensor:
    return torch.arange(float(3 * _EMBED_DIM * _EMBED_DIM)).view(3 * _EMBED_DIM, _EMBED_DIM)


@exercise("one-head-of-packed", page=PAGE, task="Part, head and place are three axes of the rows.")
def one_head(answer: Callable[[Tensor, int, int], Sequence[Tensor]]) -> None:
    """Hold a function of the packed weight to one head's three matrices."""
    weight = _rows()
    for head in range(_HEADS):
        given = list(answer(weight, _HEADS, head))
        for place, name in enumerate(("query", "key", "value")):
            start = place * _EMBED_DIM + head * _HEAD_DIM
            right = weight[start : start + _HEAD_DIM]
            if len(given) != 3 or given[place].shape != right.shape:
                shapes = [tuple(each.shape) for each in given]
                raise Wrong(f"For 3 heads the shapes are {shapes}; each of three should be {tuple(right.shape)}.")
            if torch.equal(given[place], right):
                continue
            first = int(given[place][0, 0].item()) // _EMBED_DIM
            told = f"The {name}'s matrix of head {head} begins with row {first}; it should begin with row {start}."
            by_head = 3 * head * _HEAD_DIM + place * _HEAD_DIM
            raise Wrong(told, "interleaved-qkv" if first == by_head else None)


@exercise(
    "interleaved-to-packed", page=PAGE, task="All rows of the query come first, then the key's, then the value's."
)
def to_packed(answer: Callable[[Tensor, int], Tensor]) -> None:
    """Hold a function of the interleaved weight to the packed order."""
    weight = _rows()
    blocks = weight.view(_HEADS, 3, _HEAD_DIM, _EMBED_DIM)
    right = torch.cat([blocks[head, part] for part in range(3) for head in range(_HEADS)])
    before = weight.clone()
    given = answer(weight, _HEADS)
    if given.shape != right.shape:
        raise Wrong(f"The shape is {tuple(given.shape)}; it should stay {tuple(right.shape)}.")
    if not torch.equal(weight, before):
        raise Wrong("The weight that you were given was changed.", "input-overwritten")
    if not torch.equal(given, right):
        order, wanted = ([int(row) // _EMBED_DIM for row in each[:, 0]] for each in (given, right))
        cause = "interleaved-qkv" if torch.equal(given, weight) else None
        raise Wrong(f"The rows come in the order {order}; it should be {wanted}.", cause)


@exercise("conv1d-to-packed", page=PAGE, task="Both matrices are transposed, and both biases stay.")
def conv1d_to_packed(answer: Callable[[Mapping[str, Tensor], int], Mapping[str, Tensor]]) -> None:
    """Hold a function of a state in GPT-2's layout to the state of nn.MultiheadAttention."""
    shapes = {"c_attn.weight": (6, 18), "c_attn.bias": (18,), "c_proj.weight": (6, 6), "c_proj.bias": (6,)}
    generator = torch.Generator().manual_seed(0)
    state = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    right = layouts.convert(state, source="conv1d", target="packed", num_heads=_HEADS)
    given = answer(state, _HEADS)
    if not isinstance(given, Mapping) or set(given) != set(right):
        names = sorted(given) if isinstance(given, Mapping) else type(given).__name__
        raise Wrong(f"It gives {names}; it should give {sorted(right)}.")
    for name, tensor in right.items():
        if given[name].shape != tensor.shape:
            raise Wrong(f"{name} has the shape {tuple(given[name].shape)}; it should have {tuple(tensor.shape)}.")
        if torch.equal(given[name], tensor):
            continue
        if tensor.dim() == 2 and torch.equal(given[name], tensor.T):
            raise Wrong(f"{name} fits, but is not transposed.", "weight-not-transposed")
        told = f"{name} has the right shape and other numbers"
        if name == "in_proj_weight" and torch.equal(given[name], state["c_attn.weight"].reshape(18, 6)):
            raise Wrong(f"{told}: a view is no transpose.", "weight-not-transposed")
        raise Wrong(f"{told}.")
