"""The exercises of the page about order."""

from collections.abc import Callable

import torch
from torch import Tensor

from unmasked.functional import attention_scores, self_attention
from unmasked_lessons.exercises._check import Wrong, ask, draw, exercise, hold, judge, same, short, tensor

_Map = Callable[[Tensor], Tensor]

_ROWS = "Compare f(x[order]) with f(x)[order], and not with f(x): the rows of the output move too."
_ROUNDING = "Allow for rounding, with torch.allclose: sums in another order end in other digits."
_ORDERS = "One order is not enough, nor are numbers that are all alike: try several, on random numbers."
_TRIED: list[tuple[str, bool, _Map, str]] = [
    ("'the mean of all rows, in every row'", True, lambda x: x.mean(0).expand_as(x), _ROUNDING),
    ("'doubling every number'", True, lambda x: 2 * x, _ROWS),
    ("'self-attention'", True, lambda x: self_attention(x).context, _ROUNDING),
    ("'a running sum'", False, lambda x: x.cumsum(0), _ORDERS),
    ("'adding its number to each row'", False, lambda x: x + torch.arange(len(x), dtype=x.dtype)[:, None], _ORDERS),
    ("'causal self-attention'", False, lambda x: self_attention(x, is_causal=True).context, _ORDERS),
    # The next two survive being rolled, and being reversed.
    ("'adding the row before, and to the first row the last'", False, lambda x: x + x.roll(1, 0), _ORDERS),
    ("'adding the rows in reverse'", False, lambda x: x + x.flip(0), _ORDERS),
    (
        "'adding a hundredth to the first row'",
        False,
        lambda x: x + 0.01 * (torch.arange(len(x)) == 0).to(x)[:, None],
        _ORDERS,
    ),
]


@exercise("is-equivariant", "It tells the functions that know order from those that do not.")
def _is_equivariant(answer: Callable[[_Map], object]) -> None:
    """Equation: (4.1, 4.2, 4.3)."""
    judge(answer, _TRIED)


@exercise("bag-of-words", "The words and how often each occurs are all that attention needs.")
def _bag_of_words(answer: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Equation: (4.4)."""
    # Not as many words as features, nor the identity: the order of factors would make no difference.
    small, large = torch.tensor([[1, 0], [0, 1], [1, 1]], dtype=torch.float64), draw((4, 7))[0]
    for x, times in ((small, [3, 1, 2]), (large, [1, 2, 5, 3])):
        counts, scores = torch.tensor(times), x @ x.mT / x.size(-1) ** 0.5
        known = {
            "The counts change nothing: each must multiply the shares of its column.": scores.softmax(-1) @ x,
            "The weights no longer sum to one: count before you divide. [weights-not-normalized]": (
                scores.softmax(-1) * counts @ x
            ),
            "A count multiplies the exponential; added to the score it must be a logarithm.": (
                (scores + counts).softmax(-1) @ x
            ),
            "A count multiplies the exponential of the score, not the score.": (scores * counts).softmax(-1) @ x,
        }
        sentence = x.repeat_interleave(counts, dim=0)
        right = self_attention(sentence).context[counts.cumsum(0) - 1]
        where, subject = f"With the counts {times}, for x of {tuple(x.shape)},", "the context of the first word"
        hold(ask(answer, x, counts), right, where, subject, known, shown=lambda context: short(context[0]))


@exercise("tell-apart", "Equal rows at different places get different contexts.")
def _tell_apart(answer: _Map) -> None:
    (rows,) = draw((2, 6))
    for x in (rows[[0, 0]], rows[[0, 1, 0, 0]], rows[:1].expand(9, 6)):
        result = tensor(ask(answer, x, keep="x")).to(x)
        if result.shape != x.shape:
            raise Wrong(f"x has the shape {tuple(x.shape)}; what was returned has {tuple(result.shape)}.")
        if not same(tensor(ask(answer, x)), result):
            fault = "Two calls with the same x gave different results"
            raise Wrong(f"{fault}; a place must have the same vector each time.")
        context = self_attention(result).context
        weights = attention_scores(result, result).softmax(dim=-1)
        equal = [i for i in range(len(x)) if torch.equal(x[i], x[0])]
        for one, other in ((i, j) for i in equal for j in equal if i < j):
            if not torch.allclose(context[one], context[other]):
                continue
            fault = f"Of {len(x)} rows, {one} and {other} were equal and still get the same context."
            difference = (result[other] - result[one]).abs().max().item()
            if not difference:
                raise Wrong(f"{fault} What is added to them is the same: make it depend on the row's number.")
            if weights[one].max() > 0.99:
                raise Wrong(f"{fault} What is added is so large that both give all weight to one row: make it smaller.")
            raise Wrong(
                f"{fault} What is added differs by {difference:.0e}, too little for an average: make it larger."
            )
