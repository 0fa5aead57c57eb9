"""The exercises of the page about heads."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from unmasked.exercises._check import Wrong, exercise
from unmasked.heads import split_heads

PAGE = "pytorch/heads"
_SIZES = ((1, 2, 3, 2), (2, 5, 3, 4), (3, 4, 2, 5))  # batch, tokens, heads, head_dim; the smallest, to be shown, first


@exercise("split-heads", page=PAGE, task="Head h has the h-th block of every token's features.")
def split(answer: Callable[[Tensor, int], Tensor]) -> None:
    """Hold a function of features and a number of heads to the split."""
    for batch, tokens, heads, head_dim in _SIZES:
        x = _tagged(batch, tokens, heads * head_dim)
        right = split_heads(x, heads)
        given = _shaped(answer(x.clone(), heads), right, f"{tuple(x.shape)} and {heads} heads")
        if torch.equal(given, right):
            continue
        told = f"Head 0 of x = {x[0].int().tolist()}" if tokens == 2 else f"Head 0 of x of {tuple(x.shape)}"
        shown = f"{told} is {given[0, 0].int().tolist()}; it should be {right[0, 0].int().tolist()}."
        if torch.equal(given, x.reshape(right.shape)):
            raise Wrong(f"{shown} A view alone fills the heads in the order of memory.", "view-without-transpose")
        if torch.equal(given, x.unflatten(-1, (head_dim, heads)).permute(0, 3, 1, 2)):
            raise Wrong(f"{shown} num_heads and head_dim are exchanged in the view.", "swapped-view")
        if batch > 1 and torch.equal(given, right[:1].expand_as(right)):
            raise Wrong("Every item of the batch is the first one.", "only-first-item")
        raise Wrong(shown)


@exercise("merge-heads", page=PAGE, task="Each token has the features of its heads side by side.")
def merge(answer: Callable[[Tensor], Tensor]) -> None:
    """Hold a function of the heads' context to the merge."""
    for batch, tokens, heads, head_dim in _SIZES:
        right = _tagged(batch, tokens, heads * head_dim)
        x = split_heads(right, heads).contiguous()
        given = _shaped(answer(x.clone()), right, str(tuple(x.shape)))
        if torch.equal(given, right):
            continue
        shown = f"Token 0 of x of {tuple(x.shape)} is {given[0, 0].int().tolist()}; "
        shown += f"it should be {right[0, 0].int().tolist()}."
        if torch.equal(given, x.reshape(right.shape)):
            raise Wrong(f"{shown} Transpose back before you join.", "merge-without-transpose")
        if torch.equal(given, x.permute(0, 2, 3, 1).flatten(-2)):
            raise Wrong(f"{shown} The heads' features are interleaved: num_heads and head_dim are exchanged.")
        if batch > 1 and torch.equal(given, right[:1].expand_as(right)):
            raise Wrong("Every item of the batch is the first one.", "only-first-item")
        raise Wrong(shown)


@exercise("packed-projection", page=PAGE, task="The rows of query, key and value stand one below the other.")
def packed_projection(answer: Callable[[Tensor, Tensor, int], Sequence[Tensor]]) -> None:
    """Hold a function of x, the packed weight and a number of heads to three projections."""
    generator = torch.Generator().manual_seed(0)
    for batch, tokens, heads, head_dim in _SIZES:
        x, weight = (
            torch.randn(*shape, generator=generator, dtype=torch.float64)
            for shape in ((batch, tokens, 7), (3 * heads * head_dim, 7))
        )
        rows = F.linear(x, weight)  # batch tokens 3·heads·head_dim
        right = [split_heads(part, heads) for part in rows.chunk(3, dim=-1)]
        when = f"{tuple(x.shape)}, weight of {tuple(weight.shape)} and {heads} heads"
        parts = list(answer(x.clone(), weight.clone(), heads))
        if len(parts) != 3:
            raise Wrong(f"It returned {len(parts)} tensors; return three: query, key and value.")
        given = torch.stack([_shaped(part, right[0], when) for part in parts])

        by_head = split_heads(rows, heads).chunk(3, dim=-1)
        viewed = [part.reshape(right[0].shape) for part in rows.chunk(3, dim=-1)]
        wrong: Sequence[tuple[Sequence[Tensor], str, str | None]] = [
            (by_head, "The rows are read head by head; here all of the query's come first.", "interleaved-qkv"),
            (viewed, "A view alone fills the heads in the order of memory.", "view-without-transpose"),
            ([right[1], right[0], right[2]], "Query and key are exchanged.", None),
        ]
        for name, mine, theirs in zip(("query", "key", "value"), given, right, strict=True):
            if torch.allclose(mine, theirs, atol=1e-5):
                continue
            shown = f"For x of {when} the {name} is off by up to {(mine - theirs).abs().max().item():.2f}."
            for tensors, reason, cause in wrong:
                if torch.allclose(given, torch.stack(list(tensors)), atol=1e-5):
                    raise Wrong(f"{shown} {reason}", cause)
            raise Wrong(shown)


def _tagged(batch: int, tokens: int, features: int) -> Tensor:
    return torch.arange(float(batch * tokens * features)).view(batch, tokens, features)


def _shaped(given: object, right: Tensor, when: str) -> Tensor:
    if not isinstance(given, Tensor):
        raise Wrong(f"For x of {when} it returned {type(given).__name__}; return a tensor.")
    if given.shape != right.shape:
        axes = "batch, heads, tokens, head_dim" if right.dim() == 4 else "batch, tokens, features"
        wanted = f"{tuple(right.shape)}: {axes}"
        raise Wrong(f"For x of {when} the shape is {tuple(given.shape)}; it should be {wanted}.")
    return given.detach().cpu().to(right.dtype)
