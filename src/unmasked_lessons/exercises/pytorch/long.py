"""The exercises of the page about windows, sinks and the soft-cap."""

from collections.abc import Callable

import torch
from torch import Tensor

from unmasked import masks
from unmasked.functional import attention_weights
from unmasked_lessons.exercises._check import Wrong, ask, draw, exercise, hold, of_masks, survives


@exercise("window-with-sinks", "A token sees its window and the first tokens, and nothing later.")
def _window_with_sinks(answer: Callable[[int, int, int], Tensor]) -> None:
    for tokens, window, sinks in ((5, 2, 1), (7, 3, 2), (4, 1, 0), (3, 5, 4)):
        first, before = torch.arange(tokens) < sinks, masks.causal(tokens)
        near, wider = (masks.sliding_window(tokens, window=width) for width in (window, window + 1))
        right = (near | first) & before
        known = {
            "The window counts the token itself: it is one key too wide.": (wider | first) & before,
            "The sinks leave the window.": near,
        }
        where = f"For {tokens} tokens, a window of {window} and {sinks} {'sink' if sinks == 1 else 'sinks'}"
        hold(answer(tokens, window, sinks), right, where, "the mask", known | of_masks(right))


@exercise("sink-softmax", "A sink takes its share of each softmax, and belongs to no key.")
def _sink_softmax(answer: Callable[[Tensor, Tensor], Tensor]) -> str | None:
    """Equation: (28.1)."""
    (scores,) = draw((2, 3, 4))
    sinks = torch.tensor([0.5, -1.0], dtype=torch.float64)
    known = {
        "The sink takes nothing.": scores.softmax(-1),
        "Every sink is taken for zero.": attention_weights(scores, sinks=torch.zeros_like(sinks)),
        "The share of a sink depends on the scores: it joins the softmax, not what comes after.": (
            scores.softmax(-1) * torch.sigmoid(-sinks)[:, None, None]
        ),
        "A sink is a score: its exponential is added to the sum.": (
            scores.exp() / (scores.exp().sum(-1, keepdim=True) + sinks[:, None, None])
        ),
    }
    result = ask(answer, scores, sinks)
    if isinstance(result, Tensor) and result.shape == (2, 3, 5):
        raise Wrong("The weights have five columns for four keys: drop that of the sink.")
    right = attention_weights(scores, sinks=sinks)
    hold(
        result, right, "", "the sum of the first row", known, shown=lambda weights: f"{weights[0, 0].sum().item():.3f}"
    )
    return survives(ask(answer, 1000 * scores, sinks))


@exercise("capped-weights", "The cap comes first, and the mask last.")
def _capped_weights(answer: Callable[[Tensor, Tensor, float], Tensor]) -> None:
    """Equation: (28.2)."""
    scores, allowed = 4 * draw((2, 4, 4))[0], masks.causal(4)
    for cap in (3.0, 50.0):
        where = f"With a cap of {cap:g}"
        right, uncapped, clamped, bounded = (
            attention_weights(capped, allowed=allowed)
            for capped in (cap * (scores / cap).tanh(), scores, scores.clamp(-cap, cap), (scores / cap).tanh())
        )
        known = {
            "What is not allowed keeps a weight: the cap comes after the mask. [softcap-after-mask]": (
                lambda result: result[:, ~allowed].any()
            ),
            "The scores are not capped.": uncapped,
            "The cap is smooth: tanh, not clamp.": clamped,
            "The scores are bounded by one: multiply by the cap again.": bounded,
        }
        hold(ask(answer, scores, allowed, cap), right, where, "the weights", known, tolerance=1e-6)
