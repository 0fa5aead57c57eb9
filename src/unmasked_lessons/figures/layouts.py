"""Where the rows of query, key and value stand in the matrices of each layout, and who has which layout."""

import itertools
from collections.abc import Mapping, Sequence

import torch
from matplotlib.figure import Figure
from torch import Tensor

from unmasked.layouts import _FAMILIES, Layout, convert

PARTS = ("query", "key", "value")
_TURNS = {"gpt_neox": "each half with the other", "llama": "each half with the other", "llama_meta": "neighbors"}


def described(state: Mapping[str, Tensor], layout: Layout, *, num_heads: int) -> list[str]:
    """What shape the matrices of a layout have, and the order of their rows, for a state in the layout "packed"."""
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
    """Whose rows follow one another in a matrix of query, key and value, from top to bottom.

    `places` has the place of each row in the layout "packed", (rows,). A block is a head and a part, a place in
    `PARTS`.
    """
    rows = len(places) // len(PARTS)
    head_dim = rows // num_heads
    owners = [(place % rows // head_dim, place // rows) for place in places.int().tolist()]
    return [owner for owner, _ in itertools.groupby(owners)]


def families() -> list[list[str]]:
    """The families that `layouts.load` reads: name, a layer's matrices, their layout, what rotary embeddings turn."""
    return [
        [
            f"`{family}`",
            ", ".join(f"`{name}`" for name in (*names.inputs, names.output)),
            names.source,
            _TURNS.get(family, "nothing"),
        ]
        for family, names in _FAMILIES.items()
    ]


def shades(blocks: Mapping[str, Sequence[int]], rows: int) -> dict[str, Tensor]:
    """The rows of each layout's matrix in the shade of their part, (rows, 6): zero for the query, one for the value.

    `blocks` says which part each block of a layout holds, from top to bottom; the blocks of a layout have as many rows
    each.
    """
    return {
        name: (torch.tensor(parts).repeat_interleave(rows // len(parts)) / 2)[:, None].expand(-1, 6)
        for name, parts in blocks.items()
    }


def labelled(figure: Figure, blocks: Mapping[str, Sequence[int]]) -> Figure:
    """Write on the heat maps of `shades` what their blocks are, in the place of a scale; the figure is changed."""
    *drawn, _ = figure.axes
    (bar,) = (image.colorbar for axes in drawn for image in axes.collections if image.colorbar)
    bar.remove()  # its axes' own remove() leaves it in the layout, and older Matplotlibs fail
    for axes, parts in zip(drawn, blocks.values(), strict=True):
        axes.set(xlabel="", ylabel="", xticks=[])
        height = (axes.get_ylim()[0] - axes.get_ylim()[1]) / len(parts)
        for number, part in enumerate(parts):
            middle = height * (number + 0.5) - 0.5
            label = axes.text(2.5, middle, PARTS[part], ha="center", va="center", fontsize=9, color="black")
            label.set_bbox({"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1})
    drawn[0].set_ylabel("row")
    return figure
