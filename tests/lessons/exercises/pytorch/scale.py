"""Right and wrong answers to the exercises of pytorch/scale."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def autograds(weights: Tensor, gradient: Tensor) -> Tensor:
    scores = weights.log().requires_grad_()
    return torch.autograd.grad(scores.softmax(-1), scores, gradient)[0]


def symmetric_and_small(table: Tensor) -> bool:
    return bool((table - table.mT).abs().max() < 1e-5 and table.abs().max() <= 1 + 1e-5)


RIGHT = {
    "scaled-scores": [
        lambda q, k: q @ k.mT / q.size(-1) ** 0.5,
        lambda q, k: torch.einsum("...id,...jd->...ij", q, k) / math.sqrt(k.shape[-1]),
        lambda q, k: (q.float() @ k.float().mT) / q.size(-1) ** 0.5,
        lambda q, k: (q.clone().requires_grad_() @ k.mT) / q.size(-1) ** 0.5,
    ],
    "divisor": [
        lambda d, v: math.sqrt(d * v * v),
        lambda d, v: torch.tensor(v) * torch.tensor(float(d)).sqrt(),
    ],
    "softmax-backward": [
        lambda a, g: a * (g - (a * g).sum(-1, keepdim=True)),
        lambda a, g: (a * g).float() - a.float() * (a * g).float().sum(-1, keepdim=True),
        autograds,
    ],
    "is-cosines": [
        lambda table: bool(((table.diagonal() - 1).abs() < 1e-4).all()),
        lambda table: all(math.isclose(table[i, i], 1, abs_tol=1e-5) for i in range(len(table))),
    ],
    "sum-of-zero": [torch.tensor([[3.0, 4.0], [-3.0, -4.0]]), [[1, 0, 2], [-2, 0, -4]]],
}
WRONG = {
    "scaled-scores": [
        ("it should be 2. They are not scaled at all. [missing-scale]", lambda q, k: q @ k.mT),
        ("by the root of the number, not by the number. [wrong-d-in-scale]", lambda q, k: q @ k.mT / q.size(-1)),
        ("They are multiplied by the root. [wrong-d-in-scale]", lambda q, k: q @ k.mT * q.size(-1) ** 0.5),
        ("the divisor stays: read it from q. [global-d-k]", lambda q, k: q @ k.mT / 8),
        ("the divisor stays: read it from q. [global-d-k]", lambda q, k: q @ k.mT / 2),
        ("The root is that of another number. [wrong-d-in-scale]", lambda q, k: q @ k.mT / k.size(-2) ** 0.5),
        ("are off by up to 1.56, and no divisor", lambda q, k: F.softmax(q @ k.mT / q.size(-1) ** 0.5, dim=-1)),
        ("9) and k of (3, 9) the shape is (3, 4); it should be (4, 3).", lambda q, k: k @ q.mT / q.size(-1) ** 0.5),
        ("queries and keys that you were given were changed: [input-overwritten]", lambda q, k: q.mul_(2) @ k.mT),
        ("no divisor explains it.", lambda q, k: q @ k.mT / q.size(-1) ** 0.5 + torch.eye(q.size(-2), k.size(-2))),
        ("of (1, 4) the scores are off by up to nan, and no divisor explains it.", lambda q, k: q @ k.mT * math.nan),
    ],
    "divisor": [
        ("That is the root of d alone: features of another variance make other products.", lambda d, v: d**0.5),
        ("That takes the variance once, but both factors of a product have it.", lambda d, v: math.sqrt(d * v)),
        ("That is the variance of the dot products; divide by its root.", lambda d, v: d * v**2),
        ("That is what to multiply by; asked for is what to divide by.", lambda d, v: 1 / (v * math.sqrt(d))),
        ("For d = 4 and v = 1 it is 5; it should be 2.", lambda d, v: d + v),
        ("For d = 4 and v = 1 it is 0; it should be 2.", lambda d, v: 0.0),
    ],
    "softmax-backward": [
        ("A score moves the other weights too, since they share its denominator.", lambda a, g: a * g),
        ("These are the terms of the diagonal alone.", lambda a, g: a * (1 - a) * g),
        ("Each row has a sum of its own: sum over the last axis.", lambda a, g: a * (g - (a * g).sum())),
        ("The gradient of a row of scores sums to zero;", lambda a, g: a * (g + (a * g).sum(-1, keepdim=True))),
        ("For weights of (2,) the shape is (); it should be (2,).", lambda a, g: (a * g).sum(-1)),
    ],
    "is-cosines": [
        ("table that was divided by the norms of other vectors; it should say [foreign-norms]", lambda table: True),
        ("of four vectors; it should say True. It says", lambda table: False),
        ("that was divided by norms twice too large; it should say False. [foreign-norms]", symmetric_and_small),
        (
            "It says False of a right table in float32; it should say True. Its diagonal is one up to",
            lambda table: table.dtype == torch.float64 and bool((table.diagonal() - 1).abs().max() < 1e-10),
        ),
    ],
    "sum-of-zero": [
        ("Their cosines sum to 1, by which one can divide.", [[1.0, 0.0], [0.0, 1.0]]),
        ("A vector of zeros has no direction", torch.zeros(2, 2)),
        ("The shape is (3, 2); give two rows", torch.ones(3, 2)),
        ("It is 'no'; give numbers", "no"),
    ],
}
