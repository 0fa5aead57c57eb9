"""The exercises about keys and values accept what is right in any style, and say what is wrong with what is not."""

from collections.abc import Callable

import torch
import torch.nn.functional as F


def cross(x, memory):
    return (x @ memory.mT / x.size(-1) ** 0.5).softmax(-1) @ memory


def by_einsum(x, memory):
    weights = torch.einsum("bqd,bkd->bqk", x, memory).div(x.size(-1) ** 0.5).softmax(-1)
    return torch.einsum("bqk,bkd->bqd", weights, memory)


RIGHT: list[tuple[str, Callable]] = [
    ("cross-attention", cross),
    ("cross-attention", by_einsum),
    ("cross-attention", lambda x, memory: cross(x.double(), memory).float().double()),
    ("cross-attention", lambda x, memory: F.scaled_dot_product_attention(x, memory, memory)),
]
WRONG: dict[tuple[str, str], tuple[Callable, str | None, str]] = {
    ("cross-attention", "averages x"): (
        lambda x, m: (x @ m.mT / 2).softmax(-1) @ x,
        "wrong-value",
        "For x of (2, 3, 4) and memory of (2, 3, 4) it is off by up to ",
    ),
    ("cross-attention", "unscaled"): (
        lambda x, m: (x @ m.mT).softmax(-1) @ m,
        "missing-scale",
        "not divided by the root of 4",
    ),
    ("cross-attention", "the memory asks"): (lambda x, m: cross(m, x), None, "The memory asks and x is asked"),
    ("cross-attention", "softmax over queries"): (
        lambda x, m: (x @ m.mT / 2).softmax(-2) @ m,
        "softmax-over-queries",
        "goes over the queries",
    ),
    ("cross-attention", "self-attention"): (lambda x, m: cross(x, x), "wrong-value", "x asks itself"),
    ("cross-attention", "another scale"): (lambda x, m: cross(3 * x, m), None, "it is off by up to "),
    ("cross-attention", "all at once"): (
        lambda x, m: cross(x, m)[:, :2],
        None,
        "the shape is (2, 2, 4); it should be (2, 3, 4).",
    ),
    ("cross-attention", "a tuple"): (lambda x, m: (cross(x, m),), None, "it returned tuple; return a tensor."),
}
