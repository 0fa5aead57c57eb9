"""The exercises of the page about keys and values from elsewhere."""

from collections.abc import Callable

import torch
from torch import Tensor

from unmasked.exercises._check import Wrong, exercise
from unmasked.functional import attend

PAGE = "learn/cross"


@exercise("cross-attention", page=PAGE, task="Every token of x gets an average of the memory's tokens.")
def cross_attention(answer: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Hold a function of x and memory to cross-attention without matrices.

    Equation: (8.1)
    """
    for tokens, remembered in ((3, 3), (2, 5), (4, 1)):  # of one length first, where a mistake runs and can be named
        x, memory = _draw((2, tokens, 4), (2, remembered, 4))
        right = attend(x, memory, memory).context
        where = f"For x of {tuple(x.shape)} and memory of {tuple(memory.shape)}"
        given = _same_shape(answer(x, memory), right, where)
        if torch.allclose(given, right):
            continue
        off = f"{where} it is off by up to {(given - right).abs().max().item():.2f}."
        scores = x @ memory.mT
        if torch.allclose(given, scores.softmax(-1) @ memory):
            raise Wrong(f"{off} The scores are not divided by the root of {x.size(-1)}, the features.", "missing-scale")
        scores = scores / 2
        if torch.allclose(given, scores.softmax(-1) @ x):
            raise Wrong(f"{off} It averages x, where it should average memory.", "wrong-value")
        if torch.allclose(given, scores.mT.softmax(-1) @ x) or torch.allclose(given, scores.mT.softmax(-1) @ memory):
            raise Wrong(f"{off} The memory asks and x is asked: x must give the queries.")
        if torch.allclose(given, (x @ x.mT / 2).softmax(-1) @ x):
            raise Wrong(f"{off} x asks itself, not the memory.", "wrong-value")
        if torch.allclose(given, scores.softmax(-2) @ memory):
            raise Wrong(f"{off} The softmax goes over the queries, not the keys.", "softmax-over-queries")
        raise Wrong(off)


def _draw(*shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def _same_shape(given: object, right: Tensor, where: str) -> Tensor:
    if not isinstance(given, Tensor):
        raise Wrong(f"{where} it returned {type(given).__name__}; return a tensor.")
    if given.shape != right.shape:
        raise Wrong(f"{where} the shape is {tuple(given.shape)}; it should be {tuple(right.shape)}.")
    return given.to(right.dtype)
