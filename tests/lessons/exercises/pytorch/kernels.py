"""Right and wrong answers to the exercises of pytorch/kernels."""

import torch
import torch.nn.functional as F
from torch import Tensor

from unmasked import attend


def padded(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    width = value.size(-1)
    value = F.pad(value, (0, query.size(-1) - width)).contiguous()
    return F.scaled_dot_product_attention(query[None], key[None], value[None])[0, ..., :width]


RIGHT = {
    "back-to-the-kernel": [padded, lambda q, k, v: attend(q, k, v).context],
    "bytes-of-scores": [
        lambda batch, heads, tokens, dtype: batch * heads * tokens**2 * dtype.itemsize,
        lambda batch, heads, tokens, dtype: (
            torch.empty(batch, heads, tokens, tokens, dtype=dtype, device="meta").nbytes
        ),
    ],
}
WRONG = {
    "back-to-the-kernel": [
        ("What ran is math; it should be flash. Ask sdpa_backends for the reason.", F.scaled_dot_product_attention),
        ("ran is math; it should be", lambda q, k, v: F.scaled_dot_product_attention(q[None], k[None], v[None])[0]),
        ("What ran is softmax; it should be flash.", lambda q, k, v: (q @ k.mT / 8**0.5).softmax(-1) @ v),
        ("is off by up to 1.96.", lambda q, k, v: padded(q, k, k)[..., :4]),
    ],
    "bytes-of-scores": [
        ("That is how many numbers there are; each takes 4 bytes.", lambda b, h, n, dtype: b * h * n * n),
        ("is compared with every key: the tokens count twice.", lambda b, h, n, dtype: b * h * n * dtype.itemsize),
        ("and torch.float16 it is 490; it should be 1,470.", lambda b, h, n, dtype: h * n * n * dtype.itemsize),
    ],
}
