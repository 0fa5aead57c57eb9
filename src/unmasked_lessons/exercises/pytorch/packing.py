"""The exercises of the page about packed sequences."""

from collections.abc import Callable

import torch
from torch import Tensor

from unmasked import masks
from unmasked_lessons.exercises._check import Wrong, ask, exercise, hold, of_masks

_IDS = [torch.tensor(ids) for ids in ([0, 0, 1], [4, 4, 4, 2, 2, 7], [5, 5, 3, 5], [0])]
_BACK = "An id that comes back is another document."


@exercise("packed-causal", "A token sees its own document, up to itself.")
def _packed_causal(answer: Callable[[Tensor], Tensor]) -> None:
    for ids in _IDS:
        own, before = masks.documents(ids), masks.causal(len(ids))
        known = {
            "A document sees those before it. [packed-without-documents]": before,
            _BACK: (ids[:, None] == ids) & before,
        }
        result = ask(answer, ids)
        if isinstance(result, Tensor) and result.numel() == own.numel() and result.shape[-2:] == own.shape:
            result = result.reshape(own.shape)
        hold(result, own & before, f"For the ids {ids.tolist()}", "the mask", known | of_masks(own & before))


@exercise("cumulative-lengths", "They begin with zero, end with all tokens, and are int32.")
def _cumulative_lengths(answer: Callable[[Tensor], Tensor]) -> None:
    for lengths in ([3, 4, 2], [1], [5, 1, 1, 6]):
        right = torch.tensor([0, *lengths]).cumsum(0)
        known = {
            "The zero is missing: the first document begins there.": right[1:],
            "The end is missing: the last document ends there.": right[:-1],
        }
        result = answer(torch.tensor(lengths))
        hold(result, right, f"For the lengths {lengths}", known=known)
        if result.dtype != torch.int32:
            raise Wrong(f"The numbers are right, and their dtype is {result.dtype}; kernels take torch.int32.")


@exercise("restarted-positions", "Each document begins at zero.")
def _restarted_positions(answer: Callable[[Tensor], Tensor]) -> None:
    for ids in _IDS:
        before = masks.causal(len(ids))
        right = (masks.documents(ids) & before).sum(-1) - 1
        known = {
            "Positions are counted from zero.": right + 1,
            "They run on. [positions-not-reset]": torch.arange(len(ids)),
            _BACK: ((ids[:, None] == ids) & before).sum(-1) - 1,
        }
        hold(ask(answer, ids), right, f"For the ids {ids.tolist()}", known=known)
