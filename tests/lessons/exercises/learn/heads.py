"""Right and wrong answers to the exercises of learn/heads."""

import torch


def silence(averages, num_heads, head):
    wide = averages.size(-1) // num_heads
    silenced = averages.clone()
    silenced[:, head * wide : (head + 1) * wide] = 0
    return silenced


def silence_interleaved(averages, num_heads, head):
    return averages.where(torch.arange(averages.size(-1)) % num_heads != head, 0.0)


def silence_in_place(averages, num_heads, head):
    averages.chunk(num_heads, dim=-1)[head].zero_()
    return averages


def without(averages, num_heads, head):
    return torch.cat([part for n, part in enumerate(averages.chunk(num_heads, dim=-1)) if n != head], dim=-1)


def alone(averages, num_heads, head):
    return averages - silence(averages, num_heads, head)


RIGHT = {
    "silence-head": [silence],
    "count-parameters": [lambda width, num_heads: 4 * width * (width + 1)],
}
WRONG = {
    "silence-head": [
        ("A head has neighboring numbers [swapped-view]", silence_interleaved),
        ("The averages that you were given were [input-overwritten]", silence_in_place),
        ("it should be [0.0, 0.0, 0.0, 4.0", lambda a, n, h: silence(a, n, (h - 1) % n)),
        ("heads are counted from zero.", lambda a, n, h: silence(a, n, h - 1) if h else silence(a, n, 0)),
        ("It silences all other heads.", alone),
        ("2 heads and head 0 the shape is (1, 3); it should be (1, 6), the numbers of the head set t", without),
    ],
    "count-parameters": [
        ("For width 2 and 1 head it is 16; it should be 24. The biases are missing.", lambda w, n: 4 * w * w),
        ("The output projection is missing.", lambda w, n: 3 * (w * w + w)),
        ("The bias of the output projection is missing.", lambda w, n: 4 * w * w + 3 * w),
        ("More heads are no more parameters: each has a thinner slice.", lambda w, n: n * 4 * (w * w + w)),
        ("All heads together have the whole width.", lambda w, n: 4 * ((w // n) ** 2 + w // n)),
        ("For width 2 and 1 head it is 7; it should be 24.", lambda w, n: 7),
    ],
}
