"""The exercises of the museum's room of mistakes inside a model."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from unmasked import masks
from unmasked_lessons.exercises._check import ask, draw, exercise, hold


@exercise("positions-of-a-pack", "How many tokens of its own document stand before each token.")
def _positions_of_a_pack(answer: Callable[[Tensor], Tensor]) -> None:
    for ids in ([[0, 0, 0, 1, 1, 2]], [[0] * 5, [3, 4, 4, 7, 7]], [[2]]):
        right = torch.tensor([[row[:i].count(each) for i, each in enumerate(row)] for row in ids])
        known = {"They run on. [positions-not-reset]": torch.arange(right.size(1)).expand_as(right)}
        hold(ask(answer, torch.tensor(ids)), right, f"For {ids}", "the positions", known)


@exercise("grouped-heads", "Causal attention whose query heads share heads of keys and values.")
def _grouped_heads(answer: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    for heads, kv_heads, queries, keys in ((6, 2, 5, 5), (4, 4, 3, 3), (6, 3, 2, 5), (3, 1, 4, 4)):
        q, k, v = draw((2, heads, queries, 4), (2, kv_heads, keys, 4), (2, kv_heads, keys, 4))
        allowed, groups = masks.causal(queries, keys), heads // kv_heads

        def attend(k: Tensor, v: Tensor, allowed: Tensor | None, q: Tensor = q) -> Tensor:
            return F.scaled_dot_product_attention(q, k, v, allowed)

        own = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        known = {
            "The heads of keys are dealt out in turn. [repeat-for-repeat-interleave]": (
                attend(k.repeat(1, groups, 1, 1), v.repeat(1, groups, 1, 1), allowed)
            ),
            "Every query sees every key. [no-causal-mask]": attend(*own, None),
            "The last query is not the newest. [top-left-causal]": queries != keys,
        }
        right = attend(*own, allowed)
        where = f"For {queries} queries in {heads} heads and {keys} keys in {kv_heads}"
        hold(ask(answer, q, k, v), right, where, known=known)
