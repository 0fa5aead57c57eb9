import pytest
import torch
import torch.nn.functional as F

from unmasked.exercises import check


def grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q = q.unflatten(1, (k.size(1), -1))
    return ((q @ k.unsqueeze(2).mT / q.size(-1) ** 0.5).softmax(-1) @ v.unsqueeze(2)).flatten(1, 2)


def by_einsum(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q = q.reshape(q.size(0), k.size(1), -1, *q.shape[2:])
    weights = (torch.einsum("bhgqd,bhkd->bhgqk", q, k) * q.size(-1) ** -0.5).softmax(-1)
    return torch.einsum("bhgqk,bhkd->bhgqd", weights, v).flatten(1, 2)


def alternating(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q = q.unflatten(1, (-1, k.size(1)))
    return ((q @ k.unsqueeze(1).mT / q.size(-1) ** 0.5).softmax(-1) @ v.unsqueeze(1)).flatten(1, 2)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("shared-heads", grouped),
        ("shared-heads", by_einsum),
        ("tokens-that-fit", lambda m, n, h, d, b: m // (2 * n * h * d * b)),
        ("absorbed-scores", lambda q, up, c: q @ up @ c.T / q.size(-1) ** 0.5),
        ("absorbed-scores", lambda q, up, c: torch.einsum("hqm,km->hqk", q @ up, c) / q.size(-1) ** 0.5),
    ],
)
def test_right_answers(name: str, answer: object) -> None:
    feedback = check(name, answer)
    assert feedback, repr(feedback)


@pytest.mark.parametrize(
    ("name", "answer", "message"),
    [
        ("shared-heads", alternating, "For 6 heads of queries and 2 of keys heads alternate; neighbors should share"),
        (
            "shared-heads",
            lambda q, k, v: grouped(q, *(x.repeat_interleave(q.size(1) // x.size(1), 1) for x in (k, v))),
            "it calls repeat_interleave; give the queries an axis for the groups instead.",
        ),
        (
            "shared-heads",
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
            "it calls scaled_dot_product_attention; give",
        ),
        ("shared-heads", lambda q, k, v: 2 * grouped(q, k, v), "it is off by up to"),
        ("shared-heads", lambda q, k, v: q[:, :1], "the shape is (2, 1, 4, 5); it should be (2, 6, 4, 5)."),
        ("shared-heads", lambda q, k, v: None, "It returned NoneType; return a tensor."),
        ("tokens-that-fit", lambda m, n, h, d, b: m // (n * h * d * b), "A token has a key, and a value, too."),
        ("tokens-that-fit", lambda m, n, h, d, b: m // (2 * h * d * b), "Every layer has a cache of its own."),
        ("tokens-that-fit", lambda m, n, h, d, b: 7, "For 1,073,741,824 bytes, 32 layers, 8 heads of 128 features and"),
        (
            "tokens-that-fit",
            lambda m, n, h, d, b: m // (2 * n * h * d * b) if m > 10**6 else m / (2 * n * h * d * b),
            "What is left over keeps no token.",
        ),
        (
            "absorbed-scores",
            lambda q, up, c: q @ (c @ up.mT).mT / q.size(-1) ** 0.5,
            "the scores are right, but you made the keys, of 11 tokens and 5 features.",
        ),
        (
            "absorbed-scores",
            lambda q, up, c: q @ up @ c.T / c.size(-1) ** 0.5,
            "the scores are divided by the root of latent_dim; it is head_dim's.",
        ),
        ("absorbed-scores", lambda q, up, c: q @ up @ c.T, "the scores are not scaled."),
        ("absorbed-scores", lambda q, up, c: q @ up @ c.T + 1, "the scores are off by up to"),
        ("absorbed-scores", lambda q, up, c: (q @ up @ c.T)[0], "the shape is (2, 11); it should be (3, 2, 11)."),
    ],
)
def test_wrong_answers_are_told_what_is_wrong(name: str, answer: object, message: str) -> None:
    feedback = check(name, answer)
    assert not feedback
    assert message in repr(feedback)
