"""The exercises that introduce masks accept what is right in any style, and say what is wrong with what is not."""

from collections.abc import Callable

import torch


def window(tokens, width):
    back = torch.arange(tokens)[:, None] - torch.arange(tokens)
    return (back >= 0) & (back < width)


def by_loop(tokens, width):
    return torch.tensor([[q - width < k <= q for k in range(tokens)] for q in range(tokens)])


RIGHT: list[tuple[str, Callable]] = [
    ("window-mask", window),
    ("window-mask", by_loop),
    ("window-mask", lambda n, w: torch.ones(n, n, dtype=torch.bool).tril().triu(1 - w)),
    ("blind-queries", lambda allowed: ~allowed.any(-1)),
    ("blind-queries", lambda allowed: allowed.sum(-1) == 0),
]
WRONG: dict[tuple[str, str], tuple[Callable, str | None, str]] = {
    ("window-mask", "inverted"): (lambda n, w: ~window(n, w), "mask-polarity", "not what it may not"),
    ("window-mask", "both ways"): (
        lambda n, w: window(n, w) | window(n, w).mT,
        "no-causal-mask",
        "A query sees a key that comes later.",
    ),
    ("window-mask", "without itself"): (
        lambda n, w: window(n, w) & ~torch.eye(n, dtype=torch.bool),
        "fully-masked-row",
        "each sees at least itself",
    ),
    ("window-mask", "no end"): (lambda n, w: window(n, n), None, "The window has no end"),
    ("window-mask", "one too wide"): (lambda n, w: window(n, w + 1), None, "the window is one too wide"),
    ("window-mask", "itself alone"): (
        lambda n, w: window(n, 1),
        None,
        "[[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]; it should be [[1, 0, 0, 0], [1, 1, 0, 0]",
    ),
    ("window-mask", "of numbers"): (
        lambda n, w: window(n, w).float(),
        None,
        "The dtype for 4 tokens and a width of 2 is torch.float32; return torch.bool.",
    ),
    ("window-mask", "a list"): (lambda n, w: window(n, w).tolist(), None, "It returned list for 4 tokens"),
    ("window-mask", "with a batch"): (
        lambda n, w: window(n, w)[None],
        None,
        "The shape for 4 tokens and a width of 2 is (1, 4, 4); it should be (4, 4).",
    ),
    ("blind-queries", "who sees"): (lambda a: a.any(-1), None, "True must mark the queries that see nothing."),
    ("blind-queries", "not all"): (lambda a: ~a.all(-1), None, "A query that sees some of the keys is not blind."),
    ("blind-queries", "keys"): (lambda a: ~a.any(-2), None, "it should be (2,), one per query."),
    ("blind-queries", "nobody"): (
        lambda a: torch.zeros(a.shape[:-1], dtype=torch.bool),
        None,
        "The answer for a mask of shape (2, 3) is [0, 0]; it should be [0, 1].",
    ),
    ("blind-queries", "flat"): (
        lambda a: ~a.flatten(0, -2).any(-1),
        None,
        "The shape for a mask of shape (2, 1, 2, 3) is (4,); it should be (2, 1, 2), one per query.",
    ),
}
