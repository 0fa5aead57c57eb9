"""Right and wrong answers to the exercises of pytorch/parallel."""

RIGHT = {
    "row-parallel": [
        lambda c, w, b: sum(x @ y.T for x, y in zip(c, w, strict=True)) + b,
        lambda c, w, b: (c[0] @ w[0].T + b) + sum(x @ y.T for x, y in zip(c[1:], w[1:], strict=True)),
    ],
    "zigzag-block": [lambda rank, owner, ranks: 3 if rank == owner else 2],
    "ring-traffic": [lambda h, t, d, n, b: (n - 1) * n * 2 * h * (t // n) * d * b],
}
WRONG = {
    "row-parallel": [
        ("which every rank has added.", lambda c, w, b: sum(x @ y.T + b for x, y in zip(c, w, strict=True))),
        ("is the bias, which nobody has added.", lambda c, w, b: sum(x @ y.T for x, y in zip(c, w, strict=True))),
        ("outputs, not their sum.", lambda c, w, b: sum(x @ y.T for x, y in zip(c, w, strict=True)) / len(c) + b),
        ("For 2 ranks the output is off by up to 3.53.", lambda c, w, b: c[0] @ w[0].T + b),
    ],
    "zigzag-block": [
        ("A rank sees its own beginning from its end, and each half sees itself.", lambda rank, owner, ranks: 2),
        ("0 and the keys of rank 1: it is 4; it should be 2.", lambda rank, owner, ranks: 3 if rank == owner else 4),
    ],
    "ring-traffic": [
        ("That is what one rank sends.", lambda h, t, d, n, b: (n - 1) * 2 * h * (t // n) * d * b),
        ("Keys are sent, and values, too.", lambda h, t, d, n, b: (n - 1) * h * t * d * b),
        ("Keys that have visited every other rank need not", lambda h, t, d, n, b: n * 2 * h * t * d * b),
        ("features, 32 tokens, 4 ranks and 4 bytes a number it is 7; it should be 12,288.", lambda h, t, d, n, b: 7),
    ],
}
