"""The exercises of the page about windows, sinks and the soft-cap."""

from collections.abc import Callable

import torch
from torch import Tensor

from unmasked import masks
from unmasked.exercises._check import Wrong, exercise
from unmasked.functional import attention_weights

PAGE = "pytorch/long"


@exercise("window-with-sinks", page=PAGE, task="A token sees its window and the first tokens, and nothing later.")
def window_with_sinks(answer: Callable[[int, int, int], Tensor]) -> None:
    """Hold a function of tokens, window and sinks to the mask of a window that keeps the first tokens."""
    for tokens, window, sinks in ((5, 2, 1), (7, 3, 2), (4, 1, 0), (3, 5, 4)):
        when = f"for {tokens} tokens, a window of {window} and {sinks} {'sink' if sinks == 1 else 'sinks'}"
        given = _tensor(answer(tokens, window, sinks))
        if given.dtype != torch.bool or given.shape != (tokens, tokens):
            raise Wrong(
                f"It is {given.dtype} of shape {tuple(given.shape)} {when}; it should be torch.bool of shape "
                f"{(tokens, tokens)}."
            )
        first = torch.arange(tokens) < sinks
        causal = masks.causal(tokens)
        right = (masks.sliding_window(tokens, window=window) | first) & causal
        if torch.equal(given, right):
            continue
        shown = f"The mask {when} is {given.int().tolist()}; it should be {right.int().tolist()}."
        if torch.equal(given, (masks.sliding_window(tokens, window=window + 1) | first) & causal):
            raise Wrong(f"{shown} The window counts the token itself: it is one key too wide.")
        if torch.equal(given, masks.sliding_window(tokens, window=window) | first):
            raise Wrong(f"{shown} A token sees sinks that come after it.", "no-causal-mask")
        if torch.equal(given, masks.sliding_window(tokens, window=window)):
            raise Wrong(f"{shown} The sinks leave the window.")
        if torch.equal(given, ~right):
            raise Wrong(f"{shown} True must say what a query may see, not what it may not.", "mask-polarity")
        raise Wrong(shown)


@exercise("sink-softmax", page=PAGE, task="A sink takes its share of each softmax, and belongs to no key.")
def sink_softmax(answer: Callable[[Tensor, Tensor], Tensor]) -> str | None:
    """Hold a function of scores and sinks to a softmax with one more term.

    Equation: (28.1)
    """
    scores = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sinks = torch.tensor([0.5, -1.0], dtype=torch.float64)
    given = _tensor(answer(scores.clone(), sinks.clone())).double()
    right = attention_weights(scores, sinks=sinks)
    if given.shape == (2, 3, 5):
        raise Wrong("The weights have five columns for four keys: drop that of the sink.")
    if given.shape != right.shape:
        raise Wrong(f"The shape is {tuple(given.shape)}; it should be {tuple(right.shape)}.")

    def like(other: Tensor) -> bool:
        return torch.allclose(given, other, atol=1e-6)

    if not like(right):
        told = f"The first row sums to {given[0, 0].sum().item():.3f}; it should sum to {right[0, 0].sum().item():.3f}."
        if like(scores.softmax(-1)):
            raise Wrong(f"{told} The sink takes nothing.")
        if like(attention_weights(scores, sinks=torch.zeros_like(sinks))):
            raise Wrong(f"{told} Every sink is taken for zero.")
        if like(scores.softmax(-1) * torch.sigmoid(-sinks)[:, None, None]):
            raise Wrong(
                f"{told} The share of a sink depends on the scores: it joins the softmax, not what comes after."
            )
        if like(scores.exp() / (scores.exp().sum(-1, keepdim=True) + sinks[:, None, None])):
            raise Wrong(f"{told} A sink is a score: its exponential is added to the sum.")
        raise Wrong(told)
    if not _tensor(answer(1000 * scores, sinks.clone())).isfinite().all():
        return "Right, but large scores give NaN: subtract each row's largest first, as softmax does."
    return None


@exercise("capped-weights", page=PAGE, task="The cap comes first, and the mask last.")
def capped_weights(answer: Callable[[Tensor, Tensor, float], Tensor]) -> None:
    """Hold a function of scores, mask and cap to weights that hide what is not allowed.

    Equation: (28.2)
    """
    scores = 4 * torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    allowed = masks.causal(4)
    for cap in (3.0, 50.0):
        given = _tensor(answer(scores.clone(), allowed.clone(), cap)).double()
        if given.shape != scores.shape:
            raise Wrong(f"The shape is {tuple(given.shape)}; it should be {tuple(scores.shape)}.")
        hidden = given[:, ~allowed].abs().max().item()
        if hidden:
            raise Wrong(
                f"With a cap of {cap:g}, a key that is not allowed keeps a weight of {hidden:.2g}: the cap comes after "
                "the mask, and raises what the mask has hidden.",
                "softcap-after-mask",
            )
        right = attention_weights(cap * torch.tanh(scores / cap), allowed=allowed)
        if torch.allclose(given, right, atol=1e-6):
            continue
        off = f"With a cap of {cap:g}, a weight is off by {(given - right).abs().max().item():.2g}."
        if torch.allclose(given, attention_weights(scores, allowed=allowed), atol=1e-6):
            raise Wrong(f"{off} The scores are not capped.")
        if torch.allclose(given, attention_weights(scores.clamp(-cap, cap), allowed=allowed), atol=1e-6):
            raise Wrong(f"{off} The cap is smooth: tanh, not clamp.")
        if torch.allclose(given, attention_weights(torch.tanh(scores / cap), allowed=allowed), atol=1e-6):
            raise Wrong(f"{off} The scores are bounded by one: multiply by the cap again.")
        raise Wrong(off)


def _tensor(given: object) -> Tensor:
    if not isinstance(given, Tensor):
        raise Wrong(f"It returned {type(given).__name__}; return a tensor.")
    return given.detach().cpu()
