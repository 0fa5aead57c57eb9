"""Right and wrong answers to the exercises of pytorch/long."""

import torch
from torch import Tensor

from unmasked import masks


def by_hand(tokens: int, window: int, sinks: int) -> Tensor:
    return torch.tensor([[j <= i and (i - j < window or j < sinks) for j in range(tokens)] for i in range(tokens)])


def sunk(scores: Tensor, sinks: Tensor) -> Tensor:
    largest = torch.maximum(scores.amax(-1, keepdim=True), sinks[:, None, None])
    e = (scores - largest).exp()
    return e / (e.sum(-1, keepdim=True) + (sinks[:, None, None] - largest).exp())


def capped(scores: Tensor, allowed: Tensor, cap: float) -> Tensor:
    return (cap * torch.tanh(scores / cap)).masked_fill(~allowed, -torch.inf).softmax(-1)


RIGHT = {
    "window-with-sinks": [by_hand],
    "sink-softmax": [sunk],
    "capped-weights": [capped],
}
WRONG = {
    "window-with-sinks": [
        ("The window counts the token itself: it is one key too wide.", lambda n, w, s: by_hand(n, w + 1, s)),
        ("The sinks leave the window.", lambda n, w, s: masks.sliding_window(n, window=w)),
        ("must say what a query may see, not what it may not. [mask-polarity]", lambda n, w, s: ~by_hand(n, w, s)),
        ("For 5 tokens, a window of 2 and 1 sink the dtype is torch.float32;", lambda n, w, s: torch.ones(n, n)),
        ("[1, 0, 1, 1, 0], [1, 0, 0, 1, 1]].", lambda n, w, s: masks.causal(n)),
    ],
    "sink-softmax": [
        ("first, as softmax does.", lambda s, b: s.exp() / (s.exp().sum(-1, keepdim=True) + b.exp()[:, None, None])),
        ("The sink takes nothing.", lambda s, b: s.softmax(-1)),
        ("Every sink is taken for zero.", lambda s, b: sunk(s, 0 * b)),
        ("joins the softmax, not what comes after.", lambda s, b: s.softmax(-1) * torch.sigmoid(-b)[:, None, None]),
        ("is added to the sum.", lambda s, b: s.exp() / (s.exp().sum(-1, keepdim=True) + b[:, None, None])),
        ("drop that of the sink.", lambda s, b: torch.cat([s, b[:, None, None].expand(2, 3, 1)], -1).softmax(-1)),
        ("The sum of the first row is 0.000; it should be 0.700.", lambda s, b: 0 * s),
    ],
    "capped-weights": [
        (
            "What is not allowed keeps a weight: the cap comes after the mask. [softcap-after-mask]",
            lambda s, a, c: (c * torch.tanh(s.masked_fill(~a, -torch.inf) / c)).softmax(-1),
        ),
        ("The scores are not capped.", lambda s, a, c: s.masked_fill(~a, -torch.inf).softmax(-1)),
        ("cap is smooth: tanh, not clamp.", lambda s, a, c: s.clamp(-c, c).masked_fill(~a, -torch.inf).softmax(-1)),
        ("multiply by the cap again.", lambda s, a, c: torch.tanh(s / c).masked_fill(~a, -torch.inf).softmax(-1)),
        ("With a cap of 3 the weights are off by up to 1.00.", lambda s, a, c: 0 * s),
    ],
}
