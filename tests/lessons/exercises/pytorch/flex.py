"""Right and wrong answers to the exercise of pytorch/flex."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from unmasked import masks


def by_matrix(ids: Tensor) -> Callable[..., Tensor]:
    return masks.mask_mod(masks.documents(ids) & masks.causal(ids.size(1)))


def rule(of: Callable[..., Tensor]) -> Callable[[Tensor], Callable[..., Tensor]]:
    def rule_of(ids: Tensor) -> Callable[..., Tensor]:
        return lambda batch, head, query, key: of(ids, batch, query, key)

    return rule_of


RIGHT: dict[str, list[Any]] = {"packed-rule": [by_matrix]}
WRONG: dict[str, list[tuple[str, Any]]] = {
    "packed-rule": [
        ("Every text has the documents of the first", rule(lambda s, b, i, j: (s[0, i] == s[0, j]) & (i >= j))),
        ("The future is seen.", rule(lambda s, b, i, j: s[b, i] == s[b, j])),
        ("the query comes before the key.", rule(lambda s, b, i, j: (s[b, i] == s[b, j]) & (i <= j))),
        ("The documents are not apart.", rule(lambda s, b, i, j: i >= j)),
    ],
}
