"""The exercises about several heads accept what is right in any style, and say what is wrong with what is not."""

from collections.abc import Callable

import torch
from torch import nn


def silence(averages, num_heads, head):
    wide = averages.size(-1) // num_heads
    silenced = averages.clone()
    silenced[:, head * wide : (head + 1) * wide] = 0
    return silenced


def silence_by_chunks(averages, num_heads, head):
    slices = averages.chunk(num_heads, dim=-1)
    return torch.cat([part * (number != head) for number, part in enumerate(slices)], dim=-1)


def silence_interleaved(averages, num_heads, head):
    return averages.where(torch.arange(averages.size(-1)) % num_heads != head, 0.0)


def silence_in_place(averages, num_heads, head):
    averages.chunk(num_heads, dim=-1)[head].zero_()
    return averages


def without(averages, num_heads, head):
    return torch.cat([part for n, part in enumerate(averages.chunk(num_heads, dim=-1)) if n != head], dim=-1)


def alone(averages, num_heads, head):
    return averages - silence(averages, num_heads, head)


def by_module(width, num_heads):
    return sum(each.numel() for each in nn.MultiheadAttention(width, num_heads).parameters())


RIGHT: list[tuple[str, Callable]] = [
    ("silence-head", silence),
    ("silence-head", silence_by_chunks),
    ("count-parameters", lambda width, num_heads: 4 * width * (width + 1)),
    ("count-parameters", by_module),
]
WRONG: dict[tuple[str, str], tuple[Callable, str | None, str]] = {
    ("silence-head", "interleaved"): (silence_interleaved, "swapped-view", "A head has neighboring numbers"),
    ("silence-head", "in place"): (silence_in_place, "input-overwritten", "The averages that you were given were"),
    ("silence-head", "from one"): (
        lambda a, n, h: silence(a, n, (h - 1) % n),
        None,
        "it should be [0.0, 0.0, 0.0, 4.0",
    ),
    ("silence-head", "before"): (
        lambda a, n, h: silence(a, n, h - 1) if h else silence(a, n, 0),
        None,
        "That is the head before: heads are counted from zero.",
    ),
    ("silence-head", "all others"): (alone, None, "It silences all other heads."),
    ("silence-head", "dropped"): (without, None, "the numbers of the head are gone; set them to zero, in their place."),
    ("silence-head", "a list"): (lambda a, n, h: silence(a, n, h).tolist(), None, "it returned list; return a tensor."),
    ("silence-head", "a row"): (lambda a, n, h: silence(a, n, h)[0], None, "the shape is (6,); it should be (1, 6)."),
    ("count-parameters", "no biases"): (
        lambda w, n: 4 * w * w,
        None,
        "it says 16; there are 24. The biases are missing",
    ),
    ("count-parameters", "no output"): (lambda w, n: 3 * (w * w + w), None, "The output projection is missing."),
    ("count-parameters", "no last bias"): (
        lambda w, n: 4 * w * w + 3 * w,
        None,
        "The bias of the output projection is missing.",
    ),
    ("count-parameters", "for each head"): (
        lambda w, n: n * 4 * (w * w + w),
        None,
        "For width 12 and 3 heads it says 1872; there are 624. More heads are no more parameters: each has",
    ),
    ("count-parameters", "one slice"): (
        lambda w, n: 4 * ((w // n) ** 2 + w // n),
        None,
        "All heads together have the whole width.",
    ),
    ("count-parameters", "a text"): (lambda w, n: "many", None, "it returned str; return a number."),
    ("count-parameters", "something"): (lambda w, n: 7, None, "it says 7; there are 24."),
}
