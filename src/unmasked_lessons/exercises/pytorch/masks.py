"""The exercises of the page about masks."""

from collections.abc import Callable

import torch
from torch import Tensor

from unmasked import masks
from unmasked_lessons.exercises._check import Wrong, ask, draw, exercise, hold, of_masks, survives, tensor


@exercise("causal-mask", "Each token may see itself and what stands before it, and nothing else.")
def _causal_mask(answer: Callable[[int], Tensor]) -> None:
    for tokens in (2, 3, 5, 1):
        where = f"For {tokens} token{'s' * (tokens > 1)}"
        right = masks.causal(tokens)
        result = _boolean(answer(tokens), where)
        # Axes of length one before the two are welcome.
        if result.shape[-2:] == right.shape and result.numel() == right.numel():
            result = result.reshape(right.shape)
        hold(result, right, where, "the mask", of_masks(right))


@exercise("padding-mask", "No query sees padding, and every query sees all that is real.")
def _padding_mask(answer: Callable[[Tensor, int], Tensor]) -> None:
    for lengths, keys in (([2, 1], 3), ([2, 5, 1, 4], 7), ([3, 0], 3)):
        where = f"For the lengths {' and '.join(map(str, lengths))} and {keys} keys"
        shape = (len(lengths), 5, 6, keys)
        right = masks.padding(torch.tensor(lengths), keys).expand(shape)
        result = _boolean(ask(answer, torch.tensor(lengths), keys), where)
        try:
            wide = result.expand(shape)
        except RuntimeError:
            scores = f"scores of shape {shape}: batch, heads, queries, keys. {(len(lengths), 1, 1, keys)} does"
            raise Wrong(f"{where} the shape is {tuple(result.shape)}. It does not broadcast to {scores}.") from None
        known = {
            "True marks the padding; it must mark what may be seen. [mask-polarity]": ~right,
            "The padding stands at the end, not in front.": right.flip(-1),
            "Everybody sees the padding. [padding-ignored]": Tensor.all,
            "The queries see different keys; who asks does not matter here.": (
                lambda result: not torch.equal(result, result[:, :, :1].expand_as(result))
            ),
        }
        hold(wide, right, where, "the row of the first query", known, shown=lambda mask: mask[:, 0, 0].int().tolist())


@exercise("masked-softmax", "Rows that may see nothing are zero, and all others sum to one.")
def _masked_softmax(answer: Callable[[Tensor, Tensor], Tensor]) -> str | None:
    (scores,) = draw((2, 3, 4, 5), dtype=torch.float32)
    blind = masks.causal(4, 5) & (torch.arange(4)[:, None] != 2)
    for allowed in (masks.causal(4, 5), blind):
        exact = scores.double()
        right = exact.masked_fill(~allowed, -torch.inf).softmax(-1).nan_to_num(0.0)
        result = tensor(ask(answer, scores, allowed, keep="scores"), "", right, "the weights")
        rows = result[..., ~allowed.any(-1), :]
        known = {
            "It shuts out what is allowed: True says what may be seen. [mask-polarity]": (
                exact.masked_fill(allowed, -torch.inf).softmax(-1)
            ),
            "A row does not sum to 1: mask before the softmax. [mask-after-softmax]": exact.softmax(-1) * allowed,
            "A key that is not allowed keeps a weight: the mask was added to the scores. [boolean-mask-added]": (
                (exact + allowed).softmax(-1)
            ),
            "The row that may see nothing is NaN; it should be zeros. [fully-masked-row]": bool(rows.isnan().any()),
            "The row that may see nothing has weights; they should be 0. [fully-masked-row]": bool(rows.any()),
        }
        hold(result, right, "", "the weights", known)
    return survives(ask(answer, 1000 * scores, blind))


def _boolean(result: object, where: str) -> Tensor:
    mask = tensor(result, where)
    if mask.dtype == torch.bool:
        return mask
    remedy = f"{where} the dtype is {mask.dtype}; return torch.bool"
    if mask.is_floating_point() and mask.isinf().any():
        raise Wrong(f"{remedy}. This is an additive mask: compare it with 0.")
    raise Wrong(f"{remedy}. Numbers are added to the scores and shut nothing out.", "float-mask-of-ones")
