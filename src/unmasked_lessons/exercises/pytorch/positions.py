"""The exercises of the page about positions.

The page shows by equation (25.1) what turning is good for, and by equation (25.2) what ALiBi adds.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from unmasked.positions import Rotary, alibi_slopes
from unmasked_lessons.exercises._check import ask, draw, exercise, hold, judge, same, tensor

Turn = Callable[[Tensor, Tensor], Tensor]


@exercise("turn-by-hand", "The halves of each head are turned, each pair by its own angle.")
def _turn_by_hand(answer: Turn) -> str | None:
    for shape, places in (((1, 4), [3]), ((2, 3, 5, 8), [0, 1, 2, 3, 4]), ((3, 6), [7, 1003, 12])):
        (x,), positions, size = draw(shape), torch.tensor(places), shape[-1]
        turn, neighbors = Rotary(size), Rotary(size, pairing="interleaved")
        slow = Rotary(size, frequencies=10_000.0 ** (-torch.arange(size // 2, dtype=x.dtype) / size))
        where = f"At the positions {places}, for {size} features,"
        result = tensor(ask(answer, x, positions, keep="x"), where, x)
        known = {
            "Neighbors are paired; the pairs here are the halves. [rope-pairing]": neighbors(x, positions),
            "It is turned the other way round: the first half loses by the sine, the second gains.": turn(
                x, -positions
            ),
            "Everything is turned by one position too many: the first position is 0.": turn(x, positions + 1),
            "Nothing is turned.": x,
            "The frequencies fall too slowly: there are half as many pairs as features.": slow(x, positions),
            "Turning changes no length; here one becomes another.": (
                not same(result.norm(dim=-1), x.norm(dim=-1), 1e-3)
            ),
        }
        hold(result, turn(x, positions), where, "some feature", known, tolerance=1e-3)
    half = draw((1, 4, 64))[0].bfloat16()
    far = torch.tensor([1000, 1001, 1002, 1003])
    off = (tensor(ask(answer, half, far)).double() - Rotary(64)(half.double(), far)).abs().max().item()
    message = f"Right, but for x in bfloat16 it is off by {off:.1f} at the positions {far.tolist()}: keep angles wider."
    return message if off > 0.1 else None


@exercise("read-the-pairing", "A single feature, turned, tells its partner.")
def _read_the_pairing(answer: Callable[[Turn], object]) -> None:

    def backwards(x: Tensor, positions: Tensor) -> Tensor:
        return Rotary(8, pairing="interleaved")(x, -positions)

    def apart(x: Tensor, positions: Tensor) -> Tensor:
        return Rotary(8)(torch.cat([x[..., ::2], x[..., 1::2]], dim=-1), positions)

    tried: dict[str, tuple[bool, Turn]] = {
        "that turns halves": (False, Rotary(8)),
        "that turns neighbors": (True, Rotary(8, pairing="interleaved")),
        "that turns neighbors the other way round": (True, backwards),
        "that turns the first four features, as halves": (False, Rotary(8, rotary_dim=4)),
        "that turns the first four features, as neighbors": (True, Rotary(8, pairing="interleaved", rotary_dim=4)),
        "of another base that turns halves": (False, Rotary(8, base=3.0)),
        "that turns neighbors and puts them into the halves": (True, apart),
    }
    judge(answer, [(f"a function {subject}", right, turn, "") for subject, (right, turn) in tried.items()])


@exercise("alibi-bias", "Each score is lowered by the distance, times the slope of its head.")
def _alibi_bias(answer: Callable[[Tensor, int, int], Tensor]) -> None:
    """Equation: (25.2)."""
    for heads, queries, keys in ((2, 3, 3), (4, 2, 5), (3, 1, 4)):
        slopes = alibi_slopes(heads)
        seen = torch.ones(queries, keys).tril(keys - queries)  # what hides the future comes later
        at, from_the_start = torch.arange(keys - queries, keys)[:, None], torch.arange(queries)[:, None]
        right, early = (
            -slopes.double()[:, None, None] * (place - torch.arange(keys)).abs() * seen
            for place in (at, from_the_start)
        )
        known = {
            "Distant keys are raised, where they should be lowered. [alibi-sign]": -right,
            "The last query stands at the last key, not the first at the first. [top-left-causal]": early,
        }
        where = f"For {queries} {'query' if queries == 1 else 'queries'} and {keys} keys"
        result = tensor(ask(answer, slopes, queries, keys), where, right)
        subject = "the first head's last row"
        hold(result.where(seen.bool(), 0.0), right, where, subject, known, shown=lambda bias: bias[0, -1].tolist())
