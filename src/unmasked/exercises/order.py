"""The exercises of the page about order."""

from collections.abc import Callable

import torch
from torch import Tensor

from unmasked.exercises._check import Wrong, exercise
from unmasked.functional import self_attention

PAGE = "04_order"
_Map = Callable[[Tensor], Tensor]


def _swaps_halves(x: Tensor) -> Tensor:
    return x + x.flip(0)  # survives being reversed


_EQUIVARIANT: dict[str, _Map] = {
    "self-attention": lambda x: self_attention(x).context,
    "the identity": lambda x: x,
    "every row plus the mean of all": lambda x: x + x.mean(0),
}
_NOT: dict[str, _Map] = {
    "causal self-attention": lambda x: self_attention(x, is_causal=True).context,
    "adding each row's number": lambda x: x + torch.arange(len(x), dtype=x.dtype)[:, None],
    "adding the same row of the reversed input": _swaps_halves,
    "a running sum": lambda x: x.cumsum(0),
}


@exercise("is-equivariant", page=PAGE, task="It tells functions that know order from those that do not.")
def is_equivariant(answer: Callable[[_Map], object]) -> None:
    """Hold a test of functions to functions of both kinds."""
    for name, f in _EQUIVARIANT.items():
        if not answer(f):
            raise Wrong(f"It says that {name} is not equivariant, but it is.")
    for name, f in _NOT.items():
        if answer(f):
            raise Wrong(f"It says that {name} is equivariant, but it is not.")


@exercise("tell-apart", page=PAGE, task="Equal rows get different contexts at different places.")
def tell_apart(answer: _Map) -> None:
    """Hold a function that adds positions to what it is for."""
    rows = torch.randn(2, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = rows[[0, 1, 0, 0]]
    before = x.clone()
    given = answer(x)
    if not torch.equal(x, before):
        raise Wrong("The input was changed; return a new tensor.", "input-overwritten")
    if given.shape != x.shape:
        raise Wrong(f"x has the shape {tuple(x.shape)}; what was returned has {tuple(given.shape)}.")
    context = self_attention(given).context
    for one, other in ((0, 2), (0, 3), (2, 3)):
        if torch.allclose(context[one], context[other]):
            raise Wrong(f"Rows {one} and {other} were equal and still get the same context.")
