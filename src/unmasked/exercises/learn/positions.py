"""The exercises of the page about order."""

from collections.abc import Callable

import torch
from torch import Tensor

from unmasked.exercises._check import Wrong, exercise
from unmasked.functional import self_attention

PAGE = "learn/positions"
_Map = Callable[[Tensor], Tensor]

_EQUIVARIANT: dict[str, _Map] = {
    "doubling every number": lambda x: 2 * x,
    "the mean of all rows, in every row": lambda x: x.mean(0).expand_as(x),
    "self-attention": lambda x: self_attention(x).context,
}
_NOT: dict[str, _Map] = {
    "adding its number to each row": lambda x: x + torch.arange(len(x), dtype=x.dtype)[:, None],
    "a running sum": lambda x: x.cumsum(0),
    "causal self-attention": lambda x: self_attention(x, is_causal=True).context,
    "adding the row before, and to the first row the last": lambda x: x + x.roll(1, 0),  # survives being rolled
    "adding the rows in reverse": lambda x: x + x.flip(0),  # survives being reversed
    "adding a hundredth to the first row": lambda x: x + 0.01 * (torch.arange(len(x)) == 0).to(x)[:, None],
}


@exercise("is-equivariant", page=PAGE, task="It tells the functions that know order from those that do not.")
def is_equivariant(answer: Callable[[_Map], object]) -> None:
    """Hold a test of functions to functions of both kinds.

    Equation: (4.2, 4.3, 4.4)
    """
    said = {name: bool(answer(f)) for name, f in (_EQUIVARIANT | _NOT).items()}
    if len(set(said.values())) == 1:
        raise Wrong(f"It says {next(iter(said.values()))} of every function; of 'a running sum' it should say False.")
    for name in _EQUIVARIANT:
        if not said[name] and said["the mean of all rows, in every row"] and name != "self-attention":
            told = "Compare f(x[order]) with f(x)[order], and not with f(x)"
            raise Wrong(f"It says False of {name!r}, which is equivariant. {told}: the rows of the output move too.")
        if not said[name]:
            told = "Allow for rounding, with torch.allclose: sums in another order end in other digits"
            raise Wrong(f"It says False of {name!r}, which is equivariant. {told}.")
    for name in _NOT:
        if said[name]:
            told = "One order is not enough, nor are numbers that are all alike: try several, on random numbers"
            raise Wrong(f"It says True of {name!r}, which is not equivariant. {told}.")


@exercise("bag-of-words", page=PAGE, task="The words and how often each occurs are all that attention needs.")
def bag_of_words(answer: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Hold a function of distinct words and their counts to attention over the sentence.

    Equation: (4.1)
    """
    generator = torch.Generator().manual_seed(0)
    # Not as many words as features, nor the identity: the order of factors would make no difference.
    tried = [(torch.tensor([[1, 0], [0, 1], [1, 1]], dtype=torch.float64), [3, 1, 2])]
    tried += [(torch.randn(4, 7, generator=generator, dtype=torch.float64), [1, 2, 5, 3])]
    for x, times in tried:
        counts = torch.tensor(times)
        words = [word for word, count in enumerate(times) for _ in range(count)]
        right = self_attention(x[words]).context[[words.index(word) for word in range(len(times))]]
        given = answer(x.clone(), counts.clone())
        if given.shape != right.shape:
            raise Wrong(f"For x of {tuple(x.shape)} the shape is {tuple(given.shape)}; it should be the same.")
        given = given.detach().to(right)
        if torch.allclose(given, right, rtol=1e-4, atol=1e-5):
            continue
        told = f"With the counts {times} the context of the first word is {_short(given)}; it should be {_short(right)}"
        scores = x @ x.mT / x.size(-1) ** 0.5
        if torch.allclose(given, scores.softmax(-1) @ x, atol=1e-5):
            raise Wrong(f"{told}. The counts change nothing: each must multiply the shares of its column.")
        if torch.allclose(given, scores.softmax(-1) * counts @ x, atol=1e-5):
            raise Wrong(f"{told}. The weights no longer sum to one: count before you divide.", "weights-not-normalized")
        if torch.allclose(given, (scores + counts).softmax(-1) @ x, atol=1e-5):
            raise Wrong(f"{told}. A count multiplies the exponential; added to the score it must be a logarithm.")
        if torch.allclose(given, (scores * counts).softmax(-1) @ x, atol=1e-5):
            raise Wrong(f"{told}. A count multiplies the exponential of the score, not the score.")
        raise Wrong(f"{told}.")


@exercise("tell-apart", page=PAGE, task="Equal rows at different places get different contexts.")
def tell_apart(answer: _Map) -> None:
    """Hold a function that adds positions to what it is for."""
    rows = torch.randn(2, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for x in (rows[[0, 0]], rows[[0, 1, 0, 0]], rows[:1].expand(9, 6)):
        mine = x.clone()
        given = answer(mine)
        if not torch.equal(mine, x):
            raise Wrong("The input was changed; return a new tensor.", "input-overwritten")
        if given.shape != x.shape:
            raise Wrong(f"x has the shape {tuple(x.shape)}; what was returned has {tuple(given.shape)}.")
        again = answer(x.clone())
        if again.shape != given.shape or not torch.allclose(again, given, rtol=1e-4, atol=1e-5):
            raise Wrong(
                "Two calls with the same x gave different results; a place must have the same vector each time."
            )
        given = given.detach().to(x)
        context = self_attention(given).context
        same = [i for i in range(len(x)) if torch.equal(x[i], x[0])]
        for one, other in ((i, j) for i in same for j in same if i < j):
            if not torch.allclose(context[one], context[other]):
                continue
            told = f"Of {len(x)} rows, {one} and {other} were equal and still get the same context."
            if torch.allclose(given[one], given[other]):
                raise Wrong(f"{told} What is added to them is the same: make it depend on the row's number.")
            raise Wrong(f"{told} What is added is so large that both give all weight to one row: make it smaller.")


def _short(context: Tensor) -> list[float]:
    return [round(number, 3) for number in context[0].tolist()]
