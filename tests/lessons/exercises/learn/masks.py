"""Right and wrong answers to the exercises of learn/masks."""

import torch


def window(tokens, width):
    back = torch.arange(tokens)[:, None] - torch.arange(tokens)
    return (back >= 0) & (back < width)


RIGHT = {
    "window-mask": [window],
    "blind-queries": [lambda allowed: allowed.sum(-1) == 0],
}
WRONG = {
    "window-mask": [
        ("not what it may not [mask-polarity]", lambda n, w: ~window(n, w)),
        ("The window has no end", lambda n, w: window(n, n)),
        ("the window is one too wide", lambda n, w: window(n, w + 1)),
        ("[0, 0, 1, 0], [0, 0, 0, 1]]; it should be [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1,", lambda n, w: window(n, 1)),
        ("For 4 tokens and a width of 2 the dtype is torch.float32;", lambda n, w: window(n, w).float()),
    ],
    "blind-queries": [
        ("True must mark the queries that see nothing.", lambda a: a.any(-1)),
        ("A query that sees some of the keys is not blind.", lambda a: ~a.all(-1)),
        ("it should be (2,), one per query.", lambda a: ~a.any(-2)),
        ("(2, 3) the answer is [0, 0]; it should be [0, 1].", lambda a: torch.zeros(a.shape[:-1], dtype=torch.bool)),
        ("shape of the answer is (4,); it should be (2, 1, 2), one per query.", lambda a: ~a.flatten(0, -2).any(-1)),
    ],
}
