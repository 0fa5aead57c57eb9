"""The exercises of the page about masks."""

from collections.abc import Callable

import torch
from torch import Tensor

from unmasked import masks
from unmasked.exercises._check import Wrong, exercise

PAGE = "05_masks"


@exercise("causal-mask", page=PAGE, task="Each token may see itself and what stands before it, and nothing else.")
def causal_mask(answer: Callable[[int], Tensor]) -> None:
    """Hold a function of the number of tokens to the causal mask."""
    for tokens in (1, 2, 3, 5):
        given = _boolean(answer(tokens), f"for {tokens} tokens")
        right = masks.causal(tokens)
        if given.shape[-2:] != right.shape or given.numel() != right.numel():
            raise Wrong(f"For {tokens} tokens the shape is {tuple(given.shape)}; it should be {tuple(right.shape)}.")
        given = given.reshape(right.shape)
        if torch.equal(given, right):
            continue
        shown = f"For {tokens} tokens it is {given.int().tolist()}; it should be {right.int().tolist()}."
        if torch.equal(given, right.tril(-1)):
            raise Wrong(f"{shown} A token may see itself; without that the first may see nothing.", "fully-masked-row")
        if torch.equal(given, ~right) or torch.equal(given, ~right.tril(-1)):
            raise Wrong(f"{shown} True must say what a query may see, not what it may not.", "mask-polarity")
        if bool(given.all()):
            raise Wrong(f"{shown} Every token sees every other, the later ones too.", "no-causal-mask")
        raise Wrong(shown)


@exercise("padding-mask", page=PAGE, task="No query sees padding, and every query sees all that is real.")
def padding_mask(answer: Callable[[Tensor, int], Tensor]) -> None:
    """Hold a function of lengths and the number of keys to the padding mask."""
    lengths, keys, shape = torch.tensor([3, 1]), 4, (2, 5, 3, 4)
    given = _boolean(answer(lengths, keys), "for the lengths 3 and 1")
    right = masks.padding(lengths, keys).expand(shape)
    try:
        given = given.expand(shape)
    except RuntimeError:
        message = f"Its shape, {tuple(given.shape)}, does not broadcast to scores of shape {shape}"
        raise Wrong(f"{message}: batch, heads, queries, keys. (2, 1, 1, 4) does.") from None
    if torch.equal(given, right):
        return
    if torch.equal(given, ~right):
        raise Wrong("True marks the padding; it must mark what may be seen.", "mask-polarity")
    told = given[:, 0, 0].int().tolist()
    raise Wrong(f"For the lengths 3 and 1 and 4 keys it allows {told}; it should be [[1, 1, 1, 0], [1, 0, 0, 0]].")


@exercise("masked-softmax", page=PAGE, task="Rows that may see nothing are zero, and all others sum to one.")
def masked_softmax(answer: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Hold a function of scores and what is allowed to a softmax that gives no NaN."""
    scores = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    before, allowed = scores.clone(), torch.ones(4, 5, dtype=torch.bool).tril(1)
    _weights(answer(scores, allowed), scores, allowed)
    allowed = allowed.clone()
    allowed[2] = False
    given = answer(scores, allowed)
    if given.isnan().any():
        raise Wrong("The row that may see nothing is NaN.", "fully-masked-row")
    if given[..., 2, :].any():
        told = f"{given[0, 0, 2, 0].item():.2f}"
        raise Wrong(f"The row that may see nothing has weights such as {told}; they should be 0.", "fully-masked-row")
    _weights(given, scores, allowed)
    if not torch.equal(scores, before):
        raise Wrong("The scores that you were given were changed.", "input-overwritten")


def _weights(given: Tensor, scores: Tensor, allowed: Tensor) -> None:
    right = scores.masked_fill(~allowed, -torch.inf).softmax(-1).nan_to_num(0.0)
    if given.shape != right.shape:
        raise Wrong(f"The weights have the shape {tuple(given.shape)}; the scores have {tuple(right.shape)}.")
    if torch.allclose(given, right, atol=1e-5):
        return
    off = (given - right).abs().max().item()
    if torch.allclose(given, scores.softmax(-1) * allowed, atol=1e-5):
        sums = given.sum(-1).min().item()
        raise Wrong(f"Rows sum to as little as {sums:.2f}: mask before the softmax.", "mask-after-softmax")
    if torch.allclose(given, (scores + allowed).softmax(-1), atol=1e-5):
        raise Wrong("What is not allowed keeps a weight: the mask was added.", "boolean-mask-added")
    if torch.allclose(given, scores.masked_fill(allowed, -torch.inf).softmax(-1), atol=1e-5, equal_nan=True):
        raise Wrong("It shuts out what is allowed: True says what may be seen.", "mask-polarity")
    raise Wrong(f"The weights of allowed keys are off by up to {off:.2f}.")


def _boolean(given: object, when: str) -> Tensor:
    if not isinstance(given, Tensor):
        raise Wrong(f"It returned {type(given).__name__} {when}; return a tensor.")
    if given.dtype != torch.bool:
        raise Wrong(f"Its dtype is {given.dtype} {when}; return torch.bool.", "float-mask-of-ones")
    return given
