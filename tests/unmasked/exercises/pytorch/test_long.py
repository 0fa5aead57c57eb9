import pytest
import torch
from torch import Tensor

from unmasked import masks
from unmasked.exercises import check


def by_hand(tokens: int, window: int, sinks: int) -> Tensor:
    return torch.tensor([[j <= i and (i - j < window or j < sinks) for j in range(tokens)] for i in range(tokens)])


def test_a_window_with_sinks_by_hand_is_right() -> None:
    assert repr(check("window-with-sinks", by_hand)) == (
        "window-with-sinks: right. A token sees its window and the first tokens, and nothing later."
    )


@pytest.mark.parametrize(
    ("answer", "told", "cause"),
    [
        (lambda n, w, s: by_hand(n, w + 1, s), "The window counts the token itself: it is one key too wide.", None),
        (
            lambda n, w, s: masks.sliding_window(n, window=w) | (torch.arange(n) < s),
            "A token sees sinks that come after it.",
            "no-causal-mask",
        ),
        (lambda n, w, s: masks.sliding_window(n, window=w), "The sinks leave the window.", None),
        (
            lambda n, w, s: ~by_hand(n, w, s),
            "True must say what a query may see, not what it may not.",
            "mask-polarity",
        ),
        (
            lambda n, w, s: by_hand(n, w, s).float(),
            "It is torch.float32 of shape (5, 5) for 5 tokens, a window of 2 and 1 sink; it should be torch.bool of "
            "shape (5, 5).",
            None,
        ),
        (
            lambda n, w, s: masks.causal(n),
            "[1, 0, 1, 1, 0], [1, 0, 0, 1, 1]].",
            None,
        ),
        (lambda n, w, s: None, "It returned NoneType; return a tensor.", None),
    ],
)
def test_a_window_that_is_wrong_is_told(answer: object, told: str, cause: str | None) -> None:
    feedback = check("window-with-sinks", answer)
    assert not feedback
    assert feedback.message.endswith(told)
    assert feedback.cause == cause


def sunk(scores: Tensor, sinks: Tensor) -> Tensor:
    largest = torch.maximum(scores.amax(-1, keepdim=True), sinks[:, None, None])
    e = (scores - largest).exp()
    return e / (e.sum(-1, keepdim=True) + (sinks[:, None, None] - largest).exp())


def test_a_stable_softmax_with_a_sink_is_right_and_a_naive_one_is_told_of_large_scores() -> None:
    assert check("sink-softmax", sunk).message == "A sink takes its share of each softmax, and belongs to no key."
    naive = check("sink-softmax", lambda s, b: s.exp() / (s.exp().sum(-1, keepdim=True) + b.exp()[:, None, None]))
    assert naive
    assert naive.message == "Right, but large scores give NaN: subtract each row's largest first, as softmax does."


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda s, b: s.softmax(-1), "it should sum to 0.700. The sink takes nothing."),
        (lambda s, b: sunk(s, 0 * b), "Every sink is taken for zero."),
        (
            lambda s, b: s.softmax(-1) * torch.sigmoid(-b)[:, None, None],
            "The share of a sink depends on the scores: it joins the softmax, not what comes after.",
        ),
        (
            lambda s, b: s.exp() / (s.exp().sum(-1, keepdim=True) + b[:, None, None]),
            "A sink is a score: its exponential is added to the sum.",
        ),
        (
            lambda s, b: torch.cat([s, b[:, None, None].expand(2, 3, 1)], -1).softmax(-1),
            "The weights have five columns for four keys: drop that of the sink.",
        ),
        (lambda s, b: s[0], "The shape is (3, 4); it should be (2, 3, 4)."),
        (lambda s, b: 0 * s, "The first row sums to 0.000; it should sum to 0.700."),
    ],
)
def test_a_sink_that_is_wrong_is_told(answer: object, told: str) -> None:
    feedback = check("sink-softmax", answer)
    assert not feedback
    assert feedback.message.endswith(told)


def capped(scores: Tensor, allowed: Tensor, cap: float) -> Tensor:
    return (cap * torch.tanh(scores / cap)).masked_fill(~allowed, -torch.inf).softmax(-1)


def test_capped_and_then_masked_is_right() -> None:
    assert check("capped-weights", capped).message == "The cap comes first, and the mask last."


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (
            lambda s, a, c: (c * torch.tanh(s.masked_fill(~a, -torch.inf) / c)).softmax(-1),
            "the cap comes after the mask, and raises what the mask has hidden.",
        ),
        (lambda s, a, c: s.masked_fill(~a, -torch.inf).softmax(-1), "The scores are not capped."),
        (
            lambda s, a, c: s.clamp(-c, c).masked_fill(~a, -torch.inf).softmax(-1),
            "The cap is smooth: tanh, not clamp.",
        ),
        (
            lambda s, a, c: torch.tanh(s / c).masked_fill(~a, -torch.inf).softmax(-1),
            "The scores are bounded by one: multiply by the cap again.",
        ),
        (lambda s, a, c: capped(s, a, c)[0], "The shape is (4, 4); it should be (2, 4, 4)."),
        (lambda s, a, c: 0 * s, "With a cap of 3, a weight is off by 1."),
    ],
)
def test_a_cap_that_is_wrong_is_told(answer: object, told: str) -> None:
    feedback = check("capped-weights", answer)
    assert not feedback
    assert feedback.message.endswith(told)
