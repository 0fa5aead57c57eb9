"""The exercises of the page about masks."""

from collections.abc import Callable

import torch
from torch import Tensor

from unmasked import masks
from unmasked.exercises._check import Wrong, exercise

PAGE = "pytorch/masks"


@exercise("causal-mask", page=PAGE, task="Each token may see itself and what stands before it, and nothing else.")
def causal_mask(answer: Callable[[int], Tensor]) -> None:
    """Hold a function of the number of tokens to the causal mask; axes of length one before the two are welcome."""
    for tokens in (2, 3, 5, 1):
        when = f"for {tokens} token{'s' * (tokens > 1)}"
        right = masks.causal(tokens)
        given = _boolean(answer(tokens), when)
        if given.shape[-2:] != right.shape or given.numel() != right.numel():
            raise Wrong(f"The shape {when} is {tuple(given.shape)}; it should be {tuple(right.shape)}.")
        given = given.reshape(right.shape)
        if torch.equal(given, right):
            continue
        shown = f"The mask {when} is {given.int().tolist()}; it should be {right.int().tolist()}."
        if torch.equal(given, right.tril(-1)):
            raise Wrong(f"{shown} A token may see itself, or the first may see nothing.", "fully-masked-row")
        if torch.equal(given, ~right) or torch.equal(given, right.mT):
            raise Wrong(f"{shown} True must say what a query may see, not what it may not.", "mask-polarity")
        if given.all():
            raise Wrong(f"{shown} Every token sees every other, the later ones too.", "no-causal-mask")
        raise Wrong(shown)


@exercise("padding-mask", page=PAGE, task="No query sees padding, and every query sees all that is real.")
def padding_mask(answer: Callable[[Tensor, int], Tensor]) -> None:
    """Hold a function of lengths and the number of keys to the padding mask, in any shape that broadcasts."""
    for told, keys in (([2, 1], 3), ([2, 5, 1, 4], 7), ([3, 0], 3)):
        when = f"for the lengths {' and '.join(map(str, told))} and {keys} keys"
        lengths, shape = torch.tensor(told), (len(told), 5, 6, keys)
        right = masks.padding(lengths, keys).expand(shape)
        given = _boolean(answer(lengths, keys), when)
        try:
            wide = given.expand(shape)
        except RuntimeError:
            scores = f"scores of shape {shape}: batch, heads, queries, keys. {(len(told), 1, 1, keys)} does"
            raise Wrong(f"The shape {when} is {tuple(given.shape)}. It does not broadcast to {scores}.") from None
        if torch.equal(wide, right):
            continue
        wanted = right[:, 0, 0].int().tolist()
        shown = f"The first query {when} may see {wide[:, 0, 0].int().tolist()}; it should be {wanted}."
        if torch.equal(wide, ~right):
            raise Wrong(f"{shown} True marks the padding; it must mark what may be seen.", "mask-polarity")
        if torch.equal(wide, right.flip(-1)):
            raise Wrong(f"{shown} The padding stands at the end, not in front.")
        if wide.all():
            raise Wrong(f"{shown} Everybody sees the padding.", "padding-ignored")
        if not torch.equal(wide, wide[:, :, :1].expand(shape)):
            raise Wrong(f"{shown} The queries see different keys; who asks does not matter here.")
        raise Wrong(shown)


@exercise("masked-softmax", page=PAGE, task="Rows that may see nothing are zero, and all others sum to one.")
def masked_softmax(answer: Callable[[Tensor, Tensor], Tensor]) -> str | None:
    """Hold a function of scores and what is allowed to a softmax that gives no NaN."""
    scores = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    causal = masks.causal(4, 5)
    blind = causal.clone()
    blind[2] = False
    for allowed in (causal, blind):
        mine = scores.clone()
        _weights(answer(mine, allowed.clone()), scores, allowed)
        if not torch.equal(mine, scores):
            raise Wrong("The scores that you were given were changed: others may need them.", "input-overwritten")
    if not _plain(answer(1000 * scores, blind.clone())).isfinite().all():
        return "Right, but large scores give NaN: subtract each row's largest first, as softmax does."
    return None


def _weights(answer: object, scores: Tensor, allowed: Tensor) -> None:
    given = _plain(answer)
    exact = scores.double()
    right = exact.masked_fill(~allowed, -torch.inf).softmax(-1).nan_to_num(0.0)
    if given.shape != right.shape:
        raise Wrong(f"The weights have the shape {tuple(given.shape)}; the scores have {tuple(right.shape)}.")

    def like(other: Tensor) -> bool:
        return torch.allclose(given, other, atol=1e-5, equal_nan=True)

    if like(right):
        return
    if like(exact.masked_fill(allowed, -torch.inf).softmax(-1)):
        raise Wrong("It shuts out what is allowed: True says what may be seen.", "mask-polarity")
    if like(exact.softmax(-1) * allowed):
        told = f"Rows sum to as little as {given[..., allowed.any(-1), :].sum(-1).min().item():.2f}"
        raise Wrong(f"{told}, where they should sum to 1: mask before the softmax.", "mask-after-softmax")
    if like((exact + allowed).softmax(-1)):
        told = f"A key that is not allowed keeps a weight of {given[..., ~allowed].max().item():.2f}"
        raise Wrong(f"{told}: the mask was added to the scores.", "boolean-mask-added")
    blind = ~allowed.any(-1)
    rows = given[..., blind, :]
    if rows.isnan().any():
        raise Wrong("The row that may see nothing is NaN; it should be zeros.", "fully-masked-row")
    if rows.any():
        told = f"such as {rows.flatten()[rows.flatten().nonzero()[0]].item():.2f}"
        raise Wrong(f"The row that may see nothing has weights {told}; they should be 0.", "fully-masked-row")
    raise Wrong(f"The weights are off by up to {(given - right).abs().max().item():.2f}.")


def _plain(given: object) -> Tensor:
    if not isinstance(given, Tensor):
        raise Wrong(f"It returned {type(given).__name__}; return a tensor.")
    return given.detach().cpu().double()


def _boolean(given: object, when: str) -> Tensor:
    if not isinstance(given, Tensor):
        raise Wrong(f"It returned {type(given).__name__} {when}; return a tensor.")
    if given.dtype == torch.bool:
        return given.cpu()
    remedy = f"The dtype {when} is {given.dtype}; return torch.bool"
    if given.is_floating_point() and given.isinf().any():
        raise Wrong(f"{remedy}. This is an additive mask: compare it with 0.")
    raise Wrong(f"{remedy}. Numbers are added to the scores and shut nothing out.", "float-mask-of-ones")
