"""Right and wrong answers to the exercises of pytorch/flex."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from unmasked import masks


def by_matrix(ids: Tensor) -> Callable[..., Tensor]:
    return masks.mask_mod(masks.documents(ids) & masks.causal(ids.size(1)))


def rule(of: Callable[..., Tensor]) -> Callable[[Tensor], Callable[..., Tensor]]:
    def rule_of(ids: Tensor) -> Callable[..., Tensor]:
        return lambda batch, head, query, key: of(ids, batch, query, key)

    return rule_of


def by_sums(context: Tensor, lse: Tensor, sinks: Tensor) -> Tensor:
    whole = torch.logaddexp(lse, sinks[:, None])
    return context * (lse - whole).exp()[..., None]


RIGHT: dict[str, list[Any]] = {"packed-rule": [by_matrix], "sink-afterwards": [by_sums]}
WRONG: dict[str, list[tuple[str, Any]]] = {
    "packed-rule": [
        ("Every text has the documents of the first", rule(lambda s, b, i, j: (s[0, i] == s[0, j]) & (i >= j))),
        ("The future is seen.", rule(lambda s, b, i, j: s[b, i] == s[b, j])),
        ("the query comes before the key.", rule(lambda s, b, i, j: (s[b, i] == s[b, j]) & (i <= j))),
        ("The documents are not apart.", rule(lambda s, b, i, j: i >= j)),
    ],
    "sink-afterwards": [
        ("what is left to the keys is one minus it.", lambda o, lse, b: o - by_sums(o, lse, b)),
        ("The sink takes nothing.", lambda o, lse, b: o),
        ("A number is off by up to", lambda o, lse, b: o * torch.sigmoid(-b)[:, None, None]),
    ],
}
