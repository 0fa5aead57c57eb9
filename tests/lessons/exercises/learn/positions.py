"""Right and wrong answers to the exercises of learn/positions."""

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from unmasked import self_attention

Map = Callable[[Tensor], Tensor]


def numbers(tokens: int, features: int) -> Tensor:
    return torch.randn(tokens, features, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def every_order(f: Map) -> bool:
    x = numbers(4, 6)
    return all(torch.allclose(f(x[list(order)]), f(x)[list(order)]) for order in itertools.permutations(range(4)))


def by_matrices(f: Map) -> Tensor:
    x = numbers(5, 4).float()
    shuffled = [torch.eye(5)[torch.randperm(5, generator=torch.Generator().manual_seed(seed))] for seed in range(8)]
    return torch.stack([(f(P @ x) - P @ f(x)).abs().max() < 1e-5 for P in shuffled]).all()


def one_order(order: list[int]) -> Callable[[Map], bool]:
    x = numbers(len(order), 4)
    return lambda f: torch.allclose(f(x[order]), f(x)[order])


def scores(x: Tensor) -> Tensor:
    return x @ x.mT / x.size(-1) ** 0.5


RIGHT = {
    "is-equivariant": [
        every_order,
        by_matrices,
    ],
    "bag-of-words": [
        lambda x, c: self_attention(x, bias=c.to(x).log()).context,
        lambda x, c: torch.softmax(x.float() @ x.float().T / x.size(-1) ** 0.5 + c.log(), dim=-1) @ x.float(),
    ],
    "tell-apart": [
        lambda x: x + torch.arange(len(x))[:, None] / 10,
        lambda x: x + torch.sin(torch.arange(len(x))[:, None] / 10 ** torch.linspace(0, 2, x.size(-1))),
        lambda x: x.float() + torch.randn(20, x.size(-1), generator=torch.Generator().manual_seed(0))[: len(x)] / 2,
        lambda x: torch.stack([row + 0.1 * number for number, row in enumerate(x)]),
    ],
}
WRONG = {
    "is-equivariant": [
        ("It says True of 'a running sum'; it should say False. It says so of everything. One order", lambda f: True),
        ("in every row'; it should say True. It says so of", lambda f: False),
        ("say True. Compare f(x[order]) with", lambda f: torch.allclose(f(numbers(5, 4).flip(0)), f(numbers(5, 4)))),
        (
            "Allow for rounding, with torch.allclose: sums in another order end in other digits.",
            lambda f: torch.equal(
                f(numbers(9, 200).float().flip(0)).double(), f(numbers(9, 200).float().double()).flip(0)
            ),
        ),
        ("it should say False. One order is not", one_order([4, 3, 2, 1, 0])),
        ("and to the first row the last'; it should say", one_order([3, 0, 1, 2])),
        (
            "It says True of 'adding",
            lambda f: torch.allclose(f(numbers(5, 4).flip(0)), f(numbers(5, 4)).flip(0), atol=0.1),
        ),
    ],
    "bag-of-words": [
        ("each must multiply the shares of its column.", lambda x, c: self_attention(x).context),
        ("count before you divide. [weights-not-normalized]", lambda x, c: scores(x).softmax(-1) * c @ x),
        ("added to the score it must be a logarithm.", lambda x, c: (scores(x) + c).softmax(-1) @ x),
        ("multiplies the exponential of the score, not the score.", lambda x, c: (scores(x) * c).softmax(-1) @ x),
        ("must multiply the shares of its column.", lambda x, c: (scores(x) + c.log()[:, None]).softmax(-1) @ x),
        ("the context of the first word is [1.0, 0.0]; it should be [0.91, 0.454].", lambda x, c: x),
        ("for x of (3, 2), the shape is (6, 2); it should be (3, 2).", lambda x, c: x.repeat_interleave(c, dim=0)),
    ],
    "tell-apart": [
        ("0 and 1 were equal and still get the same context. What is added to them is", lambda x: x + 0.5),
        ("What is added to them is", lambda x: x + (torch.arange(len(x)) % 2)[:, None] / 10),
        (
            "differs by 1e-09, too little for an average: make it larger.",
            lambda x: x + 1e-9 * torch.arange(len(x))[:, None],
        ),
        ("both give all weight to one row: make it smaller.", lambda x: x + 100.0 * torch.arange(len(x))[:, None]),
        ("The x that you were given was changed: [input-overwritten]", lambda x: x.add_(torch.ones_like(x).cumsum(0))),
        ("6); what was returned has (2, 7).", lambda x: torch.cat([x, torch.arange(len(x))[:, None]], dim=-1)),
        ("a place must have the same vector each time.", lambda x: x + torch.randn(len(x), 1)),
    ],
}
