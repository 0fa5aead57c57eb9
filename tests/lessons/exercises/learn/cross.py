"""Right and wrong answers to the exercises of learn/cross."""

import torch.nn.functional as F


def cross(x, memory):
    return (x @ memory.mT / x.size(-1) ** 0.5).softmax(-1) @ memory


RIGHT = {
    "cross-attention": [
        cross,
        lambda x, memory: cross(x.double(), memory).float().double(),
        lambda x, memory: F.scaled_dot_product_attention(x, memory, memory),
    ],
}
WRONG = {
    "cross-attention": [
        ("3, 4) and memory of (2, 3, 4) it is off by up [wrong-value]", lambda x, m: (x @ m.mT / 2).softmax(-1) @ x),
        ("The scores are not divided by the root. [missing-scale]", lambda x, m: (x @ m.mT).softmax(-1) @ m),
        ("For x of (2, 3, 4) and memory of (2, 3, 4) it is off by up to 1.89.", lambda x, m: cross(m, x)),
        ("x asks itself [wrong-value]", lambda x, m: cross(x, x)),
    ],
}
