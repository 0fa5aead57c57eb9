"""The exercises of the page about positions.

The page shows by equation (25.1) what turning is good for, and by equation (25.2) what ALiBi adds.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from unmasked.exercises._check import Wrong, exercise
from unmasked.positions import Rotary, alibi_slopes

PAGE = "pytorch/positions"

Turn = Callable[[Tensor, Tensor], Tensor]


@exercise("turn-by-hand", page=PAGE, task="The halves of each head are turned, each pair by its own angle.")
def turn_by_hand(answer: Turn) -> str | None:
    """Hold a function of features and positions to a rotary embedding of halves."""
    generator = torch.Generator().manual_seed(0)
    for shape, places in (((1, 4), [3]), ((2, 3, 5, 8), [0, 1, 2, 3, 4]), ((3, 6), [7, 1003, 12])):
        x, positions = torch.randn(*shape, generator=generator, dtype=torch.float64), torch.tensor(places)
        mine = x.clone()
        given = _tensor(answer(mine, positions.clone()))
        when = f"at the positions {places}, for {shape[-1]} features"
        if given.shape != x.shape:
            raise Wrong(f"The shape {when} is {tuple(given.shape)}; it should be that of x, {shape}.")
        if not torch.equal(mine, x):
            raise Wrong("The x that you were given was changed: others may need it.", "input-overwritten")
        _compare(given.double(), x, positions, when)
    half = torch.randn(1, 4, 64, generator=generator).bfloat16()
    far = torch.tensor([1000, 1001, 1002, 1003])
    off = (_tensor(answer(half.clone(), far)).double() - Rotary(64)(half.double(), far)).abs().max().item()
    if off > 0.1:
        return (
            f"Right, but for x in bfloat16 it is off by {off:.1f} at the positions {far.tolist()}: keep angles wider."
        )
    return None


def _compare(given: Tensor, x: Tensor, positions: Tensor, when: str) -> None:
    def like(other: Tensor) -> bool:
        return torch.allclose(given, other, atol=1e-3)

    size = x.size(-1)
    right = Rotary(size)(x, positions)
    if like(right):
        return
    off = f"Some feature {when} is off by {(given - right).abs().max().item():.2f}."
    if like(Rotary(size, pairing="interleaved")(x, positions)):
        raise Wrong(f"{off} Neighbors are paired; the pairs here are the halves.", "rope-pairing")
    if like(Rotary(size)(x, -positions)):
        raise Wrong(f"{off} It is turned the other way round: the first half loses by the sine, the second gains.")
    if like(Rotary(size)(x, positions + 1)):
        raise Wrong(f"{off} Everything is turned by one position too many: the first position is 0.")
    if like(x):
        raise Wrong(f"{off} Nothing is turned.")
    if not torch.allclose(given.norm(dim=-1), x.norm(dim=-1), atol=1e-3):
        raise Wrong(f"{off} Turning changes no length; here one becomes {given.norm(dim=-1).flatten()[0].item():.2f}.")
    rates = 10_000.0 ** (-torch.arange(size // 2, dtype=x.dtype) / size)
    if like(Rotary(size, frequencies=rates)(x, positions)):
        raise Wrong(f"{off} The frequencies fall too slowly: there are half as many pairs as features.")
    raise Wrong(off)


@exercise("read-the-pairing", page=PAGE, task="A single feature, turned, tells its partner.")
def read_the_pairing(answer: Callable[[Turn], object]) -> None:
    """Hold a function of a rotary embedding to whether it pairs neighbors."""

    def backwards(x: Tensor, positions: Tensor) -> Tensor:
        return Rotary(8, pairing="interleaved")(x, -positions)

    def apart(x: Tensor, positions: Tensor) -> Tensor:
        return Rotary(8)(torch.cat([x[..., ::2], x[..., 1::2]], dim=-1), positions)

    tried: dict[str, tuple[Turn, bool]] = {
        "that turns halves": (Rotary(8), False),
        "that turns neighbors": (Rotary(8, pairing="interleaved"), True),
        "that turns neighbors the other way round": (backwards, True),
        "that turns the first four features, as halves": (Rotary(8, rotary_dim=4), False),
        "that turns the first four features, as neighbors": (Rotary(8, pairing="interleaved", rotary_dim=4), True),
        "of another base that turns halves": (Rotary(8, base=3.0), False),
        "that turns neighbors and puts them into the halves": (apart, True),
    }
    for what, (turn, right) in tried.items():
        given = bool(answer(turn))
        if given != right:
            raise Wrong(f"A function {what} is said to be {'interleaved' if given else 'of halves'}.")


@exercise("alibi-bias", page=PAGE, task="Each score is lowered by the distance, times the slope of its head.")
def alibi_bias(answer: Callable[[Tensor, int, int], Tensor]) -> None:
    """Hold a function of slopes, queries and keys to ALiBi's bias.

    Equation: (25.2)
    """
    for heads, queries, keys in ((2, 3, 3), (4, 2, 5), (3, 1, 4)):
        slopes = alibi_slopes(heads)
        given = _tensor(answer(slopes.clone(), queries, keys)).double()
        when = f"for {queries} {'query' if queries == 1 else 'queries'} and {keys} keys"
        if given.shape != (heads, queries, keys):
            raise Wrong(f"The shape {when} is {tuple(given.shape)}; it should be {(heads, queries, keys)}.")
        seen = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)  # what hides the future comes later
        distance = torch.arange(keys - queries, keys)[:, None] - torch.arange(keys)
        right = (-slopes.double()[:, None, None] * distance.abs())[:, seen]

        def like(other: Tensor, mine: Tensor = given[:, seen]) -> bool:
            return torch.allclose(mine, other, atol=1e-6)

        if like(right):
            continue
        last = f"The first head's last query {when} gets {given[0, -1].tolist()}"
        told = f"{last}; it should be {(-slopes[0] * distance[-1].abs()).tolist()}."
        if like(-right):
            raise Wrong(f"{told} Distant keys are raised, where they should be lowered.", "alibi-sign")
        from_the_start = torch.arange(queries)[:, None] - torch.arange(keys)
        if like((-slopes.double()[:, None, None] * from_the_start.abs())[:, seen]):
            raise Wrong(f"{told} The last query stands at the last key, not the first at the first.", "top-left-causal")
        raise Wrong(told)


def _tensor(given: object) -> Tensor:
    if not isinstance(given, Tensor):
        raise Wrong(f"It returned {type(given).__name__}; return a tensor.")
    return given.detach()
