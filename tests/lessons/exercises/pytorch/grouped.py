"""Right and wrong answers to the exercises of pytorch/grouped."""

import torch
import torch.nn.functional as F


def grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q = q.unflatten(1, (k.size(1), -1))
    return ((q @ k.unsqueeze(2).mT / q.size(-1) ** 0.5).softmax(-1) @ v.unsqueeze(2)).flatten(1, 2)


def alternating(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q = q.unflatten(1, (-1, k.size(1)))
    return ((q @ k.unsqueeze(1).mT / q.size(-1) ** 0.5).softmax(-1) @ v.unsqueeze(1)).flatten(1, 2)


RIGHT = {
    "shared-heads": [grouped],
    "tokens-that-fit": [lambda m, n, h, d, b: m // (2 * n * h * d * b)],
    "absorbed-scores": [
        lambda q, up, c: q @ up @ c.T / q.size(-1) ** 0.5,
        lambda q, up, c: torch.einsum("hqm,km->hqk", q @ up, c) / q.size(-1) ** 0.5,
    ],
}
WRONG = {
    "shared-heads": [
        ("Heads alternate; neighbors should share: the axis of the groups comes second.", alternating),
        (
            "it calls repeat_interleave; give the queries an axis for the groups instead.",
            lambda q, k, v: grouped(q, *(x.repeat_interleave(q.size(1) // x.size(1), 1) for x in (k, v))),
        ),
        ("scaled_dot_product_attention;", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True)),
        ("For 6 heads of queries and 2 of keys it is off by up to 1.34.", lambda q, k, v: 2 * grouped(q, k, v)),
    ],
    "tokens-that-fit": [
        ("A token has a key, and a value, too.", lambda m, n, h, d, b: m // (n * h * d * b)),
        ("Every layer has a cache of its own.", lambda m, n, h, d, b: m // (2 * h * d * b)),
        ("For 1,073,741,824 bytes, 32 layers, 8 heads of 128 features and", lambda m, n, h, d, b: 7),
        (
            "What is left over keeps no token.",
            lambda m, n, h, d, b: m // (2 * n * h * d * b) if m > 10**6 else m / (2 * n * h * d * b),
        ),
    ],
    "absorbed-scores": [
        ("you made the keys, of 11 tokens and 5 features.", lambda q, up, c: q @ (c @ up.mT).mT / q.size(-1) ** 0.5),
        ("divided by the root of latent_dim; it is head_dim's.", lambda q, up, c: q @ up @ c.T / c.size(-1) ** 0.5),
        ("They are not scaled.", lambda q, up, c: q @ up @ c.T),
        ("(3, 2, 5) and latents of (11, 7) the scores are off by up to 11.81.", lambda q, up, c: q @ up @ c.T + 1),
    ],
}
