"""The exercises of the page about keys and values from elsewhere."""

from collections.abc import Callable

from torch import Tensor

from unmasked_lessons.exercises._check import ask, draw, exercise, hold, of_attention


@exercise("cross-attention", "Every token of x gets an average of the memory's tokens.")
def _cross_attention(answer: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Equation: (7.1)."""
    for tokens, remembered in ((3, 3), (2, 5), (4, 1)):  # of one length first: mistakes run there, and are named
        x, memory = draw((2, tokens, 4), (2, remembered, 4))
        right = (x @ memory.mT / 2).softmax(-1) @ memory
        known = {"x asks itself, not the memory. [wrong-value]": (x @ x.mT / 2).softmax(-1) @ x}
        where = f"For x of {tuple(x.shape)} and memory of {tuple(memory.shape)}"
        hold(ask(answer, x, memory), right, where, known=known | of_attention(x, memory, memory))
