import pytest

from unmasked.exercises import check


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("row-parallel", lambda c, w, b: sum(x @ y.T for x, y in zip(c, w, strict=True)) + b),
        ("row-parallel", lambda c, w, b: (c[0] @ w[0].T + b) + sum(x @ y.T for x, y in zip(c[1:], w[1:], strict=True))),
        ("zigzag-block", lambda rank, owner, ranks: 3 if rank == owner else 2),
        ("ring-traffic", lambda h, t, d, n, b: (n - 1) * n * 2 * h * (t // n) * d * b),
    ],
)
def test_right_answers(name: str, answer: object) -> None:
    feedback = check(name, answer)
    assert feedback, repr(feedback)


@pytest.mark.parametrize(
    ("name", "answer", "message"),
    [
        (
            "row-parallel",
            lambda c, w, b: sum(x @ y.T + b for x, y in zip(c, w, strict=True)),
            "That is the bias, which every rank has added.",
        ),
        (
            "row-parallel",
            lambda c, w, b: sum(x @ y.T for x, y in zip(c, w, strict=True)),
            "That is the bias, which nobody has added.",
        ),
        (
            "row-parallel",
            lambda c, w, b: sum(x @ y.T for x, y in zip(c, w, strict=True)) / len(c) + b,
            "It is the mean of the ranks' outputs, not their sum.",
        ),
        ("row-parallel", lambda c, w, b: c[0] @ w[0].T + b, "For 2 ranks the output is off by up to"),
        ("row-parallel", lambda c, w, b: c[0], "For 2 ranks it gives (5, 3); it should be a tensor of shape (5, 4)."),
        ("row-parallel", lambda c, w, b: None, "For 2 ranks it gives NoneType; it should be a tensor of shape (5, 4)."),
        (
            "zigzag-block",
            lambda rank, owner, ranks: 2,
            "Of 1 ranks, rank 0 and the keys of rank 0: it is 2; it should be 3. A rank sees its own beginning from",
        ),
        (
            "zigzag-block",
            lambda rank, owner, ranks: 3 if rank == owner else 4,
            "Of 2 ranks, rank 0 and the keys of rank 1: it is 4; it should be 2.",
        ),
        ("ring-traffic", lambda h, t, d, n, b: (n - 1) * 2 * h * (t // n) * d * b, "That is what one rank sends."),
        ("ring-traffic", lambda h, t, d, n, b: (n - 1) * h * t * d * b, "Keys are sent, and values, too."),
        (
            "ring-traffic",
            lambda h, t, d, n, b: n * 2 * h * t * d * b,
            "Keys that have visited every other rank need not",
        ),
        ("ring-traffic", lambda h, t, d, n, b: 7, "4 ranks and 4 bytes a number it is 7; it should be 12288."),
    ],
)
def test_wrong_answers_are_told_what_is_wrong(name: str, answer: object, message: str) -> None:
    feedback = check(name, answer)
    assert not feedback
    assert message in repr(feedback)
