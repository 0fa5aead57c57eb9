"""Right and wrong answers to the exercises of pytorch/watching."""

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


RIGHT = {
    "previous-token-heads": [lambda w: w.diagonal(-1, -2, -1).mean((0, 2))],
    "ablate-by-hand": [
        by_mask,
        lambda c, heads: torch.cat([0 * x if h in heads else x for h, x in enumerate(c.chunk(3, -1))], -1),
    ],
}
WRONG = {
    "previous-token-heads": [
        ("That is the weight on the token itself.", lambda w: w.diagonal(0, -2, -1).mean((0, 2))),
        ("That is the weight on the token after.", lambda w: w.diagonal(1, -2, -1).mean((0, 2))),
        ("counting the first token too.", lambda w: w.diagonal(-1, -2, -1).sum(-1).mean(0) / w.size(-1)),
        ("For 3 heads the shape is (2, 3); it should be (3,).", lambda w: w.diagonal(-1, -2, -1).mean(-1)),
        ("0's mean weight on the token before is 0.625; it should be 0.219.", lambda w: w.amax(-1).mean((0, 2))),
    ],
    "ablate-by-hand": [
        ("The context that you were given was changed: clone before you write. [input-overwritten]", in_place),
        ("Without heads [1] the list of those of 6 features that are zero is [1, 4]; it should be [2, 3].", strided),
        ("features that are zero is [0, 1, 4, 5]; it should be [2, 3].", lambda c, heads: c - by_mask(c, heads)),
    ],
}
