"""The exercises of the page about heads."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from unmasked.exercises._check import Wrong, exercise
from unmasked.heads import merge_heads, split_heads

PAGE = "06_heads"


@exercise("split-heads", page=PAGE, task="Head h has the h-th block of every token's features.")
def split(answer: Callable[[Tensor, int], Tensor]) -> None:
    """Hold a function of features and a number of heads to the split."""
    for tokens in (2, 5):  # the smaller, to be shown, first
        x = torch.arange(2.0 * tokens * 12).view(2, tokens, 12)
        given, right = answer(x, 3), split_heads(x, 3)
        if given.shape != right.shape:
            wanted = f"{tuple(right.shape)}: batch, heads, tokens, head_dim"
            raise Wrong(
                f"For x of {tuple(x.shape)} and 3 heads the shape is {tuple(given.shape)}; it should be {wanted}."
            )
        if torch.equal(given, right):
            continue
        shown = f"Head 0 of token 1 is {given[0, 0, 1].int().tolist()}; it should be {right[0, 0, 1].int().tolist()}."
        if torch.equal(given, x.reshape(right.shape)):
            raise Wrong(f"{shown} A view alone fills heads in the order of the memory.", "view-without-transpose")
        if torch.equal(given, x.unflatten(-1, (4, 3)).permute(0, 3, 1, 2)):
            raise Wrong(f"{shown} num_heads and head_dim are exchanged.", "swapped-view")
        raise Wrong(shown)


@exercise("merge-heads", page=PAGE, task="Each token has the features of its heads side by side.")
def merge(answer: Callable[[Tensor], Tensor]) -> None:
    """Hold a function of the heads' context to the merge."""
    for tokens in (2, 5):
        x = torch.arange(2.0 * 3 * tokens * 4).view(2, 3, tokens, 4)
        given, right = answer(x), merge_heads(x)
        if given.shape != right.shape:
            wanted = f"{tuple(right.shape)}: batch, tokens, features"
            raise Wrong(f"For x of {tuple(x.shape)} the shape is {tuple(given.shape)}; it should be {wanted}.")
        if torch.equal(given, right):
            continue
        shown = f"Token 0 is {given[0, 0].int().tolist()}; it should be {right[0, 0].int().tolist()}."
        if torch.equal(given, x.reshape(right.shape)):
            raise Wrong(f"{shown} Transpose back before you join.", "merge-without-transpose")
        raise Wrong(shown)


@exercise("packed-projection", page=PAGE, task="The rows of query, key and value stand one below the other.")
def packed_projection(answer: Callable[[Tensor, Tensor, int], Sequence[Tensor]]) -> None:
    """Hold a function of x, the packed weight and a number of heads to three projections."""
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((2, 5, 7), (36, 7)))
    right = [split_heads(F.linear(x, part), 3) for part in weight.chunk(3)]
    given = list(answer(x, weight, 3))
    if [tuple(each.shape) for each in given] != [tuple(each.shape) for each in right]:
        raise Wrong(f"The shapes are {[tuple(each.shape) for each in given]}; each should be (2, 3, 5, 4).")
    for name, mine, theirs in zip(("query", "key", "value"), given, right, strict=True):
        if torch.allclose(mine, theirs):
            continue
        off = f"The {name} is off by up to {(mine - theirs).abs().max().item():.2f}."
        by_head = (
            F.linear(x, weight).unflatten(-1, (3, 3, 4)).permute(3, 0, 2, 1, 4)
        )  # part batch heads tokens head_dim
        if torch.allclose(torch.stack(given), by_head):
            raise Wrong(f"{off} The rows are read head by head; here all of the query's come first.", "interleaved-qkv")
        viewed = torch.stack([F.linear(x, part).reshape(2, 3, 5, 4) for part in weight.chunk(3)])
        if torch.allclose(torch.stack(given), viewed):
            raise Wrong(f"{off} A view alone fills heads in the order of the memory.", "view-without-transpose")
        raise Wrong(off)
