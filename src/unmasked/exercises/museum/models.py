"""The exercises of the museum's room of mistakes inside a model."""

from collections.abc import Callable

import torch
from torch import Tensor

from unmasked import masks, probes
from unmasked.exercises._check import Wrong, exercise
from unmasked.functional import attend

PAGE = "museum/models"


@exercise("positions-of-a-pack", page=PAGE, task="How many tokens of its own document stand before each token.")
def positions_of_a_pack(answer: Callable[[Tensor], Tensor]) -> None:
    """Hold a function of document numbers to counting."""
    for ids in ([[0, 0, 0, 1, 1, 2]], [[0] * 5, [3, 4, 4, 7, 7]], [[2]]):
        given = torch.tensor(ids)
        right = torch.tensor([[row[:i].count(each) for i, each in enumerate(row)] for row in ids])
        place = answer(given)
        if place.shape != right.shape:
            raise Wrong(f"It returned the shape {tuple(place.shape)}; it should be {tuple(right.shape)}.")
        if torch.equal(place, torch.arange(right.size(1)).expand_as(right)) and right.size(1) > 1:
            raise Wrong(f"For {ids} the positions run on: {place.tolist()}.", "positions-not-reset")
        if not torch.equal(place, right):
            raise Wrong(f"For {ids} it returned {place.tolist()}; it should be {right.tolist()}.")


@exercise("grouped-heads", page=PAGE, task="Causal attention whose query heads share heads of keys and values.")
def grouped_heads(answer: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    """Hold attention with grouped heads to the package's."""
    generator = torch.Generator().manual_seed(0)
    for heads, kv_heads, queries, keys in ((6, 2, 5, 5), (4, 4, 3, 3), (6, 3, 2, 5), (3, 1, 4, 4)):
        q, k, v = (
            torch.randn(2, count, tokens, 4, generator=generator, dtype=torch.float64)
            for count, tokens in ((heads, queries), (kv_heads, keys), (kv_heads, keys))
        )
        given = answer(q, k, v)
        if given.shape != q.shape:
            raise Wrong(f"It returned the shape {tuple(given.shape)}; it should be {tuple(q.shape)}, the queries'.")
        if not probes.differs(given, _attend(q, k, v, masks.causal(queries, keys))):
            continue
        dealt_k, dealt_v = (x.repeat(1, heads // kv_heads, 1, 1) for x in (k, v))
        if not probes.differs(given, _attend(q, dealt_k, dealt_v, masks.causal(queries, keys))):
            raise Wrong("The heads of keys are dealt out in turn.", "repeat-for-repeat-interleave")
        if not probes.differs(given, _attend(q, k, v, None)):
            raise Wrong("Every query sees every key.", "no-causal-mask")
        if queries != keys:
            raise Wrong(f"With {queries} queries and {keys} keys the last query is not the newest.", "top-left-causal")
        raise Wrong(f"With {heads} heads that share {kv_heads} it is another average.")


def _attend(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None) -> Tensor:
    groups = q.size(1) // k.size(1)
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    return attend(q, k, v, allowed=allowed).context
