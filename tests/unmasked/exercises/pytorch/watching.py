"""The exercises about watching accept what is right in any style, and say what is wrong with what is not."""

import torch


def in_place(context, heads):
    context.unflatten(-1, (3, -1))[:, :, heads] = 0
    return context


def strided(context, heads):
    made = context.unflatten(-1, (-1, 3)).clone()
    made[..., heads] = 0
    return made.flatten(-2)


def by_mask(context, heads):
    kept = torch.tensor([head not in heads for head in range(3)])
    return context * kept.repeat_interleave(2)


def by_loop(w):
    return torch.stack(
        [torch.stack([w[:, h, i, i - 1] for i in range(1, w.size(-1))]).mean() for h in range(w.size(1))]
    )


RIGHT = [
    ("previous-token-heads", lambda w: w.diagonal(-1, -2, -1).mean((0, 2))),
    ("previous-token-heads", by_loop),
    ("ablate-by-hand", by_mask),
    (
        "ablate-by-hand",
        lambda c, heads: torch.cat([0 * x if h in heads else x for h, x in enumerate(c.chunk(3, -1))], -1),
    ),
]

WRONG = {
    ("previous-token-heads", "itself"): (
        lambda w: w.diagonal(0, -2, -1).mean((0, 2)),
        None,
        "That is the weight on the token itself.",
    ),
    ("previous-token-heads", "after"): (
        lambda w: w.diagonal(1, -2, -1).mean((0, 2)),
        None,
        "That is the weight on the token after.",
    ),
    ("previous-token-heads", "first"): (
        lambda w: w.diagonal(-1, -2, -1).sum(-1).mean(0) / w.size(-1),
        None,
        "That is the weight on the token before, counting the first token too.",
    ),
    ("previous-token-heads", "of the batch"): (
        lambda w: w.diagonal(-1, -2, -1).mean(-1),
        None,
        "For 3 heads it gives (2, 3); it should give (3,).",
    ),
    ("previous-token-heads", "a list"): (lambda w: [1, 2, 3], None, "it gives list"),
    ("previous-token-heads", "largest"): (lambda w: w.amax(-1).mean((0, 2)), None, "Head 0 gives the token before 0."),
    ("ablate-by-hand", "in place"): (in_place, "input-overwritten", "The context that you were given was changed."),
    ("ablate-by-hand", "strided"): (
        strided,
        None,
        "Without heads [1], the features [1, 4] are zero; of 6 these should be: [2, 3].",
    ),
    ("ablate-by-hand", "the others"): (
        lambda c, heads: c - by_mask(c, heads),
        None,
        "the features [0, 1, 4, 5] are zero; of 6 these should be: [2, 3].",
    ),
    ("ablate-by-hand", "split"): (lambda c, heads: c.unflatten(-1, (3, -1)), None, "it should stay (2, 4, 6)"),
}
