"""Right and wrong answers to the exercises of pytorch/positions."""

import torch
from torch import Tensor

from unmasked.positions import Rotary


def reads(turn: object) -> bool:
    first, second = torch.eye(8)[:2].split(1)
    return bool((turn(first, torch.tensor([1])) * turn(second, torch.tensor([0]))).sum())


def turn(x: Tensor, positions: Tensor, *, sign: int = 1, share: float = 1.0, wide: bool = True) -> Tensor:
    half = x.size(-1) // 2
    rates = 10_000.0 ** (-share * torch.arange(half, dtype=torch.float64) / half)
    angles = sign * positions[:, None] * (rates if wide else rates.to(x.dtype))
    angles = angles if wide else positions[:, None].to(x.dtype) * rates.to(x.dtype)
    a, b, cos, sin = x[..., :half].double(), x[..., half:].double(), angles.cos().double(), angles.sin().double()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


def bias(slopes: Tensor, queries: int, keys: int) -> Tensor:
    place = torch.arange(queries) + keys - queries
    return -slopes[:, None, None] * (place[:, None] - torch.arange(keys)).abs()


RIGHT = {
    "turn-by-hand": [turn, lambda x, p: Rotary(x.size(-1))(x, p), lambda x, p: turn(x.requires_grad_(), p)],
    "read-the-pairing": [reads],
    "alibi-bias": [
        bias,
        lambda s, q, k: bias(s, q, k).double().masked_fill(torch.ones(q, k).triu(k - q + 1).bool(), -torch.inf),
        lambda s, q, k: s[:, None, None] * (torch.arange(k) - (torch.arange(q) + k - q)[:, None]),
    ],
}
WRONG = {
    "turn-by-hand": [
        ("1.8 at the positions [1000, 1001, 1002, 1003]:", lambda x, p: turn(x, p, wide=x.dtype != torch.bfloat16)),
        ("Nothing is turned.", lambda x, p: x),
        ("the first half loses by the sine, the second gains.", lambda x, p: turn(x, p, sign=-1)),
        ("Everything is turned by one position too many: the first position is 0.", lambda x, p: turn(x, p + 1)),
        ("pairs here are the halves. [rope-pairing]", lambda x, p: Rotary(x.size(-1), pairing="interleaved")(x, p)),
        ("there are half as many pairs as features.", lambda x, p: turn(x, p, share=0.5)),
        ("Turning changes no length; here one becomes another.", lambda x, p: 2 * turn(x, p)),
        ("At the positions [3], for 4 features, some feature is off by up to 4.90.", lambda x, p: turn(x, 2 * p)),
        ("The x that you were given was changed: [input-overwritten]", lambda x, p: x.copy_(turn(x, p))),
    ],
    "read-the-pairing": [
        ("it should say False. It says so of everything.", lambda turn: True),
        ("it should say True. It says so of everything.", lambda turn: False),
        ("other way round; it should say True.", lambda turn: turn(torch.eye(8)[:1], torch.tensor([1]))[0, 1] > 0),
        ("as halves; it should say False.", lambda turn: turn(torch.eye(8)[:1], torch.tensor([1]))[0, 4] == 0),
        ("into the halves; it should say True.", lambda turn: turn(torch.eye(8)[:1], torch.tensor([1]))[0, 1] != 0),
    ],
    "alibi-bias": [
        ("Distant keys are raised, where they should be lowered. [alibi-sign]", lambda s, q, k: -bias(s, q, k)),
        (
            "The last query stands at the last key, not the first at the first. [top-left-causal]",
            lambda s, q, k: -s[:, None, None] * (torch.arange(q)[:, None] - torch.arange(k)).abs(),
        ),
        ("-0.125, -0.0]; it should be [-0.125, -0.0625, -0.0].", lambda s, q, k: 2 * bias(s, q, k)),
        ("For 3 queries and 3 keys the shape is (3, 3); it should be (2, 3, 3).", lambda s, q, k: bias(s, q, k)[0]),
    ],
}
