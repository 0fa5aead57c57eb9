"""The exercises of the page about packed sequences."""

from collections.abc import Callable

import torch
from torch import Tensor

from unmasked import masks
from unmasked.exercises._check import Wrong, exercise

PAGE = "pytorch/packing"

_IDS = ([0, 0, 1], [4, 4, 4, 2, 2, 7], [5, 5, 3, 5], [0])


@exercise("packed-causal", page=PAGE, task="A token sees its own document, up to itself.")
def packed_causal(answer: Callable[[Tensor], Tensor]) -> None:
    """Hold a function of ids to the mask of packed documents under a causal mask."""
    for told in _IDS:
        ids = torch.tensor(told)
        given = _tensor(answer(ids.clone()))
        when = f"for the ids {told}"
        tokens = len(told)
        if given.dtype != torch.bool:
            raise Wrong(f"The mask {when} is {given.dtype}; it should be torch.bool.")
        if given.numel() != tokens**2 or given.shape[-2:] != (tokens, tokens):
            raise Wrong(f"The shape {when} is {tuple(given.shape)}; it should be {(tokens, tokens)}.")
        given, own, causal = given.reshape(tokens, tokens), masks.documents(ids), masks.causal(tokens)
        if torch.equal(given, own & causal):
            continue
        shown = f"The mask {when} is {given.int().tolist()}; it should be {(own & causal).int().tolist()}."
        if torch.equal(given, own):
            raise Wrong(f"{shown} A token sees the later ones of its document.", "no-causal-mask")
        if torch.equal(given, causal):
            raise Wrong(f"{shown} A document sees those before it.", "packed-without-documents")
        if torch.equal(given, (ids[:, None] == ids) & causal):
            raise Wrong(f"{shown} An id that comes back is another document.")
        if torch.equal(given, ~(own & causal)):
            raise Wrong(f"{shown} True must say what a query may see, not what it may not.", "mask-polarity")
        raise Wrong(shown)


@exercise("cumulative-lengths", page=PAGE, task="They begin with zero, end with all tokens, and are int32.")
def cumulative_lengths(answer: Callable[[Tensor], Tensor]) -> None:
    """Hold a function of lengths to the cumulative lengths of kernels for varying lengths."""
    for told in ([3, 4, 2], [1], [5, 1, 1, 6]):
        given = _tensor(answer(torch.tensor(told)))
        right = masks.cu_seqlens(torch.arange(len(told)).repeat_interleave(torch.tensor(told))).tolist()
        shown = f"For the lengths {told} it is {given.tolist()}; it should be {right}."
        if given.tolist() == right[1:]:
            raise Wrong(f"{shown} The zero is missing: the first document begins there.")
        if given.tolist() == right[:-1]:
            raise Wrong(f"{shown} The end is missing: the last document ends there.")
        if given.tolist() != right:
            raise Wrong(shown)
        if given.dtype != torch.int32:
            raise Wrong(f"The numbers are right, and their dtype is {given.dtype}; kernels take torch.int32.")


@exercise("restarted-positions", page=PAGE, task="Each document begins at zero.")
def restarted_positions(answer: Callable[[Tensor], Tensor]) -> None:
    """Hold a function of ids to positions that begin anew in each document."""
    for told in _IDS:
        ids = torch.tensor(told)
        given = _tensor(answer(ids.clone()))
        right = (masks.documents(ids) & masks.causal(len(told))).sum(-1) - 1
        shown = f"For the ids {told} it is {given.tolist()}; it should be {right.tolist()}."
        if given.tolist() == right.tolist():
            continue
        if given.tolist() == (right + 1).tolist():
            raise Wrong(f"{shown} Positions are counted from zero.")
        if given.tolist() == list(range(len(told))):
            raise Wrong(f"{shown} They run on.", "positions-not-reset")
        if given.tolist() == (((ids[:, None] == ids) & masks.causal(len(told))).sum(-1) - 1).tolist():
            raise Wrong(f"{shown} An id that comes back is another document.")
        raise Wrong(shown)


def _tensor(given: object) -> Tensor:
    if not isinstance(given, Tensor):
        raise Wrong(f"It returned {type(given).__name__}; return a tensor.")
    return given.detach().cpu()
