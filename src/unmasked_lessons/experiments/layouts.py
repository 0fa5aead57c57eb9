"""The order of the rows in the matrices of each layout, and the families of models that have it."""

import itertools
from collections.abc import Mapping

import torch
from torch import Tensor

from unmasked.layouts import _FAMILIES, Layout, convert

PARTS = ("query", "key", "value")
_TURNS = {"gpt_neox": "each half with the other", "llama": "each half with the other", "llama_meta": "neighbors"}


def described(state: Mapping[str, Tensor], layout: Layout, *, num_heads: int) -> list[str]:
    """Describe the shape of a layout's matrices and the order of their rows, for a state in the layout "packed"."""
    places = torch.arange(float(len(state["in_proj_weight"])))[:, None].expand_as(state["in_proj_weight"])
    marked = convert({**state, "in_proj_weight": places}, source="packed", target=layout, num_heads=num_heads)
    first = next(iter(marked.values()))
    shape = str(tuple(first.shape))
    if len(marked) > 4:  # three matrices with their biases, and those of the output
        return [f"{shape}, three times", "one matrix for each head" if first.dim() == 3 else "one matrix each"]
    if not torch.equal(first[:, :1].expand_as(first), first):
        return [shape, "packed, transposed"]
    stand = blocks(first[:, 0], num_heads)
    parts = list(dict.fromkeys(PARTS[part] for _, part in stand))
    by_head = [head for head, _ in stand] == sorted(head for head, _ in stand)
    return [shape, f"head by head, its {', '.join(parts)}" if by_head else f"all of the {', of the '.join(parts)}"]


def blocks(places: Tensor, num_heads: int) -> list[tuple[int, int]]:
    """Return the blocks of rows in a matrix of query, key and value, from top to bottom.

    `places` has the place of each row in the layout "packed", (rows,). A block is a head and a part, a place in
    `PARTS`.
    """
    rows = len(places) // len(PARTS)
    head_dim = rows // num_heads
    owners = [(place % rows // head_dim, place // rows) for place in places.int().tolist()]
    return [owner for owner, _ in itertools.groupby(owners)]


def families() -> list[list[str]]:
    """List the families that `layouts.load` reads: name, a layer's matrices, their layout, the pairs that turn."""
    return [
        [
            f"`{family}`",
            ", ".join(f"`{name}`" for name in (*names.inputs, names.output)),
            names.source,
            _TURNS.get(family, "nothing"),
        ]
        for family, names in _FAMILIES.items()
    ]
