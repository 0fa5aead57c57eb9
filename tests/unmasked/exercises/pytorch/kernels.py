"""Answers to the exercises of the page on kernels, and what is said of wrong ones."""

import torch
import torch.nn.functional as F
from torch import Tensor

from unmasked import attend


def padded(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    width = value.size(-1)
    value = F.pad(value, (0, query.size(-1) - width)).contiguous()
    return F.scaled_dot_product_attention(query[None], key[None], value[None])[0, ..., :width]


RIGHT = [
    ("back-to-the-kernel", padded),
    ("back-to-the-kernel", lambda q, k, v: attend(q, k, v).context),
    ("bytes-of-scores", lambda batch, heads, tokens, dtype: batch * heads * tokens**2 * dtype.itemsize),
    (
        "bytes-of-scores",
        lambda batch, heads, tokens, dtype: (
            torch.empty(batch, heads, tokens, tokens, dtype=dtype, device="meta").nbytes
        ),
    ),
]

WRONG = {
    ("back-to-the-kernel", "as it is"): (
        F.scaled_dot_product_attention,
        None,
        "What ran is math; it should be flash. Ask sdpa_backends for the reason.",
    ),
    ("back-to-the-kernel", "four axes alone"): (
        lambda q, k, v: F.scaled_dot_product_attention(q[None], k[None], v[None])[0],
        None,
        "What ran is math; it should be flash.",
    ),
    ("back-to-the-kernel", "by hand"): (
        lambda q, k, v: (q @ k.mT / 8**0.5).softmax(-1) @ v,
        None,
        "What ran is softmax; it should be flash.",
    ),
    ("back-to-the-kernel", "padded, not cut"): (
        lambda q, k, v: F.scaled_dot_product_attention(q[None], k[None], F.pad(v, (0, 4))[None])[0],
        None,
        "The shape is (3, 5, 8); it should stay (3, 5, 4).",
    ),
    ("back-to-the-kernel", "another value"): (
        lambda q, k, v: F.scaled_dot_product_attention(q[None], k[None], k[None])[0, ..., :4],
        None,
        "It is off by up to ",
    ),
    ("bytes-of-scores", "numbers"): (
        lambda b, h, n, dtype: b * h * n * n,
        None,
        "That is how many numbers there are; each takes 4 bytes.",
    ),
    ("bytes-of-scores", "once"): (
        lambda b, h, n, dtype: b * h * n * dtype.itemsize,
        None,
        "Every query is compared with every key: the tokens count twice.",
    ),
    ("bytes-of-scores", "no batch"): (
        lambda b, h, n, dtype: h * n * n * dtype.itemsize,
        None,
        "For batch 3, 5 heads, 7 tokens and torch.float16 it is 490; it should be 1,470.",
    ),
}
