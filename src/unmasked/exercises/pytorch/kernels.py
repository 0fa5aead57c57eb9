"""The exercises of the page about kernels."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from unmasked.exercises._check import Wrong, exercise
from unmasked.kernels import kernels_of

PAGE = "pytorch/kernels"


@exercise("back-to-the-kernel", page=PAGE, task="The fused kernel runs, and the result is the same.")
def back(answer: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    """Hold a function of tensors that make PyTorch leave its fused kernel to one that does not."""
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(3, n, 8, generator=generator) for n in (5, 7))
    value = torch.randn(3, 4, 7, generator=generator).mT  # of another width, and its last axis is not contiguous
    right = F.scaled_dot_product_attention(query, key, value)
    given = answer(query, key, value).detach()
    if given.shape != right.shape:
        raise Wrong(f"The shape is {tuple(given.shape)}; it should stay {tuple(right.shape)}.")
    if not torch.allclose(given, right, atol=1e-5):
        raise Wrong(f"It is off by up to {(given - right).abs().max():.2f}.")
    names = kernels_of(answer, query, key, value).names
    if "flash" not in names:
        raise Wrong(
            f"What ran is {', '.join(names) or 'no kernel'}; it should be flash. Ask sdpa_backends for the reason."
        )


@exercise("bytes-of-scores", page=PAGE, task="Heads times queries times keys, and the bytes of a number.")
def bytes_of_scores(answer: Callable[[int, int, int, torch.dtype], float]) -> None:
    """Hold a function of batch, heads, tokens and dtype to the bytes that one table of scores takes."""
    for batch, heads, tokens, dtype in (
        (1, 8, 4096, torch.float32),
        (3, 5, 7, torch.float16),
        (2, 1, 9, torch.float64),
    ):
        right = batch * heads * tokens**2 * dtype.itemsize
        given = float(answer(batch, heads, tokens, dtype))
        told = (
            f"For batch {batch}, {heads} heads, {tokens} tokens and {dtype} it is {given:,.0f}; it should be {right:,}."
        )
        if given == right:
            continue
        if given == right / dtype.itemsize:
            raise Wrong(f"{told} That is how many numbers there are; each takes {dtype.itemsize} bytes.")
        if given == right / tokens:
            raise Wrong(f"{told} Every query is compared with every key: the tokens count twice.")
        raise Wrong(told)
