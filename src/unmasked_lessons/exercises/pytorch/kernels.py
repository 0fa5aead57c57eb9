"""The exercises of the page about kernels."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from unmasked.kernels import kernels_of
from unmasked_lessons.exercises._check import Wrong, draw, exercise, hold


@exercise("back-to-the-kernel", "The fused kernel runs, and the result is the same.")
def _back(answer: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    query, key, narrow = draw((3, 5, 8), (3, 7, 8), (3, 4, 7), dtype=torch.float32)
    value = narrow.mT  # of another width, and its last axis is not contiguous
    hold(answer(query, key, value), F.scaled_dot_product_attention(query, key, value))
    names = kernels_of(answer, query, key, value).names
    if "flash" not in names:
        ran = ", ".join(names) or "no kernel"
        raise Wrong(f"What ran is {ran}; it should be flash. Ask sdpa_backends for the reason.")


@exercise("bytes-of-scores", "Heads times queries times keys, and the bytes of a number.")
def _bytes_of_scores(answer: Callable[[int, int, int, torch.dtype], float]) -> None:
    for sizes in ((1, 8, 4096, torch.float32), (3, 5, 7, torch.float16), (2, 1, 9, torch.float64)):
        batch, heads, tokens, dtype = sizes
        numbers = batch * heads * tokens**2
        known = {
            f"That is how many numbers there are; each takes {dtype.itemsize} bytes.": numbers,
            "Every query is compared with every key: the tokens count twice.": numbers // tokens * dtype.itemsize,
        }
        where = f"For batch {batch}, {heads} heads, {tokens} tokens and {dtype}"
        hold(answer(*sizes), numbers * dtype.itemsize, where, known=known)
