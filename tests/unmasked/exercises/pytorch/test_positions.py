import pytest
import torch
from torch import Tensor

from unmasked.exercises import check
from unmasked.museum import ENTRIES
from unmasked.positions import Rotary


def turn(x: Tensor, positions: Tensor, *, sign: int = 1, share: float = 1.0, wide: bool = True) -> Tensor:
    half = x.size(-1) // 2
    rates = 10_000.0 ** (-share * torch.arange(half, dtype=torch.float64) / half)
    angles = sign * positions[:, None] * (rates if wide else rates.to(x.dtype))
    angles = angles if wide else positions[:, None].to(x.dtype) * rates.to(x.dtype)
    a, b, cos, sin = x[..., :half].double(), x[..., half:].double(), angles.cos().double(), angles.sin().double()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


def in_place(x: Tensor, positions: Tensor) -> Tensor:
    return x.copy_(turn(x, positions))


@pytest.mark.parametrize(
    "answer", [turn, lambda x, p: Rotary(x.size(-1))(x, p), lambda x, p: turn(x.requires_grad_(), p)]
)
def test_any_way_to_turn_halves_is_right(answer: object) -> None:
    assert repr(check("turn-by-hand", answer)) == (
        "turn-by-hand: right. The halves of each head are turned, each pair by its own angle."
    )


def test_angles_in_bfloat16_are_right_but_told() -> None:
    feedback = check("turn-by-hand", lambda x, p: turn(x, p, wide=x.dtype != torch.bfloat16))
    assert feedback
    assert feedback.message.startswith("Right, but for x in bfloat16 it is off by ")
    assert feedback.message.endswith(" at the positions [1000, 1001, 1002, 1003]: keep angles wider.")


@pytest.mark.parametrize(
    ("answer", "end", "cause"),
    [
        (lambda x, p: x, "Nothing is turned.", None),
        (
            lambda x, p: turn(x, p, sign=-1),
            "It is turned the other way round: the first half loses by the sine, the second gains.",
            None,
        ),
        (
            lambda x, p: turn(x, p + 1),
            "Everything is turned by one position too many: the first position is 0.",
            None,
        ),
        (
            lambda x, p: Rotary(x.size(-1), pairing="interleaved")(x, p),
            "Neighbors are paired; the pairs here are the halves.",
            "rope-pairing",
        ),
        (
            lambda x, p: turn(x, p, share=0.5),
            "The frequencies fall too slowly: there are half as many pairs as features.",
            None,
        ),
        (lambda x, p: 2 * turn(x, p), "Turning changes no length; here one becomes 5.49.", None),
        (lambda x, p: turn(x, 2 * p), "Some feature at the positions [3], for 4 features is off by 4.90.", None),
        (lambda x, p: turn(x, p)[..., :2], "it should be that of x, (1, 4).", None),
        (in_place, "The x that you were given was changed: others may need it.", "input-overwritten"),
        (lambda x, p: None, "It returned NoneType; return a tensor.", None),
    ],
)
def test_what_is_turned_wrongly_is_told(answer: object, end: str, cause: str | None) -> None:
    feedback = check("turn-by-hand", answer)
    assert not feedback
    assert feedback.message.endswith(end)
    assert feedback.cause == cause
    assert cause is None or cause in ENTRIES


def test_the_pairing_is_read_off_the_score_of_two_features() -> None:
    def reads(turn: object) -> bool:
        first, second = torch.eye(8)[:2].split(1)
        return bool((turn(first, torch.tensor([1])) * turn(second, torch.tensor([0]))).sum())

    assert check("read-the-pairing", reads).message == "A single feature, turned, tells its partner."


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda turn: True, "A function that turns halves is said to be interleaved."),
        (lambda turn: False, "A function that turns neighbors is said to be of halves."),
        (
            lambda turn: turn(torch.eye(8)[:1], torch.tensor([1]))[0, 1] > 0,
            "A function that turns neighbors the other way round is said to be of halves.",
        ),
        (
            lambda turn: turn(torch.eye(8)[:1], torch.tensor([1]))[0, 4] == 0,
            "A function that turns the first four features, as halves is said to be interleaved.",
        ),
        (
            lambda turn: turn(torch.eye(8)[:1], torch.tensor([1]))[0, 1] != 0,
            "A function that turns neighbors and puts them into the halves is said to be of halves.",
        ),
    ],
)
def test_a_pairing_that_is_misread_is_told(answer: object, message: str) -> None:
    assert check("read-the-pairing", answer).message == message


def bias(slopes: Tensor, queries: int, keys: int) -> Tensor:
    place = torch.arange(queries) + keys - queries
    return -slopes[:, None, None] * (place[:, None] - torch.arange(keys)).abs()


@pytest.mark.parametrize(
    "answer",
    [
        bias,
        lambda s, q, k: bias(s, q, k).double().masked_fill(torch.ones(q, k).triu(k - q + 1).bool(), -torch.inf),
        lambda s, q, k: s[:, None, None] * (torch.arange(k) - (torch.arange(q) + k - q)[:, None]),
    ],
)
def test_any_bias_that_lowers_what_is_seen_by_its_distance_is_right(answer: object) -> None:
    assert check("alibi-bias", answer)


@pytest.mark.parametrize(
    ("answer", "message", "cause"),
    [
        (
            lambda s, q, k: -bias(s, q, k),
            "The first head's last query for 3 queries and 3 keys gets [0.125, 0.0625, 0.0]; it should be "
            "[-0.125, -0.0625, 0.0]. Distant keys are raised, where they should be lowered.",
            "alibi-sign",
        ),
        (
            lambda s, q, k: -s[:, None, None] * (torch.arange(q)[:, None] - torch.arange(k)).abs(),
            "The first head's last query for 2 queries and 5 keys gets [-0.25, 0.0, -0.25, -0.5, -0.75]; it should be "
            "[-1.0, -0.75, -0.5, -0.25, 0.0]. The last query stands at the last key, not the first at the first.",
            "top-left-causal",
        ),
        (
            lambda s, q, k: 2 * bias(s, q, k),
            "The first head's last query for 3 queries and 3 keys gets [-0.25, -0.125, 0.0]; it should be "
            "[-0.125, -0.0625, 0.0].",
            None,
        ),
        (
            lambda s, q, k: bias(s, q, k)[0],
            "The shape for 3 queries and 3 keys is (3, 3); it should be (2, 3, 3).",
            None,
        ),
        (lambda s, q, k: 0, "It returned int; return a tensor.", None),
    ],
)
def test_a_bias_that_is_wrong_is_told(answer: object, message: str, cause: str | None) -> None:
    feedback = check("alibi-bias", answer)
    assert not feedback
    assert feedback.message.replace("-0.0]", "0.0]").replace("-0.0,", "0.0,") == message
    assert feedback.cause == cause
