"""Ways to give attention positions, and scores and angles of positions in half precision."""

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from unmasked import functional
from unmasked.positions import Pairing, Rotary, alibi, sinusoids


def added(x: Tensor, places: Tensor) -> Tensor:
    """Attend to tokens to which sinusoids were added: x of (batch, tokens, features), at places of (tokens,)."""
    placed = x + sinusoids(places, x.size(-1))
    return functional.attend(placed, placed, placed).context


def turned(pairing: Pairing) -> Callable[[Tensor, Tensor], Tensor]:
    """Give attention whose queries and keys are turned in a pairing, a function of tokens and places as `added` is."""

    def attend(x: Tensor, places: Tensor) -> Tensor:
        query = key = Rotary(x.size(-1), pairing=pairing)(x, places)
        return functional.attend(query, key, x).context

    return attend


def lowered(x: Tensor, places: Tensor) -> Tensor:
    """Attend as `added` does, but with scores that ALiBi lowers by the distance between the places."""
    distance = (places[:, None] - places).abs()
    of_a_step = alibi(1, 2)[0, 1, 0]  # what it adds at a distance of 1
    return functional.attend(x, x, x, bias=of_a_step * distance).context


def partners(rotary: Rotary, head_dim: int) -> list[int]:
    """Return the index of the feature with which each one turns."""
    moved = rotary(torch.eye(head_dim)[:, None], torch.tensor([1]))[:, 0]  # each feature alone, turned by one position
    return [next(other for other in row.nonzero().flatten().tolist() if other != own) for own, row in enumerate(moved)]


def scores(
    ways: Mapping[str, Callable[[Tensor, Tensor], Tensor]],
    query: Tensor,
    key: Tensor,
    *,
    places: Sequence[int],
    offset: int,
) -> dict[str, list[float]]:
    """Give a query and a key positions, farther and farther on, and take their dot product at each.

    A way makes of tokens, (tokens, features), and positions, (tokens,), the tokens that have them. The key stands by
    `offset` before the query.
    """
    return {
        name: [
            (way(query, torch.tensor([place])) @ way(key, torch.tensor([place - offset])).mT).item() for place in places
        ]
        for name, way in ways.items()
    }


def angles(positions: Tensor, rates: Tensor) -> dict[str, Tensor]:
    """Multiply positions, (tokens,), by frequencies, (pairs,) in float32, as models in bfloat16 do.

    By the line of code the angles, (tokens, pairs), in the type in which it computes them.
    """
    model = nn.Module()
    model.register_buffer("rates", rates.clone())
    kept = model.bfloat16().get_buffer("rates")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        by_matmul = positions[:, None].float() @ rates[None]
        by_element = positions[:, None].float() * rates
    return {
        "model.bfloat16(), frequencies in a buffer": positions[:, None].to(kept) * kept,
        "autocast, positions[:, None] @ rates[None]": by_matmul,
        "autocast, positions[:, None] * rates": by_element,
        "positions[:, None].to(x.dtype) * rates.to(x.dtype)": positions[:, None].bfloat16() * rates.bfloat16(),
    }


def angle(a: Tensor, b: Tensor) -> float:
    """Return the angle between two arrows, in degrees."""
    return math.degrees(math.acos((a @ b / a.norm() / b.norm()).item()))
