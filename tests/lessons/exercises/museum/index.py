"""Right and wrong answers to the exercises of museum/index."""

import torch
from torch import Tensor

from unmasked_doctor.probes import mixes_items, sees_the_future
from unmasked_lessons.exercises.museum.index import right


def calls(f):
    assert not sees_the_future(f, draw(2, 5, 12))
    assert not mixes_items(f, draw(2, 5, 12))


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def equal_on(*shape):
    x = draw(*shape)
    return lambda f: torch.testing.assert_close(f(x), right(x, 3))


def by_truth(f):
    x = draw(3, 4, 6).double()
    return torch.allclose(f(x), right(x, 3))


def by_a_number(f):
    x = draw(2, 7, 15)
    return int((f(x) - right(x, 3)).abs().max() < 1e-4)


NAMES = ["mask-after-softmax", "swapped-view", "batch-and-tokens-swapped"]

RIGHT = {
    "test-of-your-own": [equal_on(2, 5, 12), by_truth, by_a_number],
    "which-mistake": [NAMES, tuple(NAMES)],
}
WRONG = {
    "test-of-your-own": [
        ("without transposing back. [merge-without-transpose]", lambda f: f(draw(2, 5, 12)).shape == (2, 5, 12)),
        ("such as this: Heads and head_dim exchanged in a view. [swapped-view]", calls),
        ("such as this: Only the first batch item used. [only-first-item]", equal_on(1, 5, 12)),
        ("Your test lets through 1 of 14 wrong versions, such as this: The scale [missing-scale]", equal_on(2, 5, 3)),
        ("the package's. Compare with a tolerance, as rounding differs.", lambda f: False),
        ("name 'wider' is not defined", lambda f: torch.equal(f(draw(2, 5, 12)).double(), wider)),
    ],
    "which-mistake": [
        ("on 2 items of 5 tokens they differ by 0.76. [missing-scale]", [NAMES[0], "missing-scale", NAMES[2]]),
        ("did you mean 'swapped-view'?", [NAMES[0], "swaped-view", NAMES[2]]),
        ("You named 2; name 3 mistakes, in the order of mysteries().", NAMES[:2]),
        ("You named 1; name 3 mistakes, in the order of mysteries().", "swapped-view"),
    ],
}
