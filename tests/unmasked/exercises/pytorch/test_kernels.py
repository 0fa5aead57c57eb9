import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from unmasked import scaled_dot_product_attention
from unmasked.exercises import check


def padded(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    width = value.size(-1)
    value = F.pad(value, (0, query.size(-1) - width)).contiguous()
    return F.scaled_dot_product_attention(query[None], key[None], value[None])[0, ..., :width]


RIGHT = {
    "back-to-the-kernel": [padded, lambda q, k, v: scaled_dot_product_attention(q, k, v).context],
    "bytes-of-scores": [
        lambda batch, heads, tokens, dtype: batch * heads * tokens**2 * dtype.itemsize,
        lambda batch, heads, tokens, dtype: (
            torch.empty(batch, heads, tokens, tokens, dtype=dtype, device="meta").nbytes
        ),
    ],
}

WRONG = {
    ("back-to-the-kernel", "as it is"): (
        F.scaled_dot_product_attention,
        "What ran is math; it should be flash. Ask sdpa_backends for the reason.",
    ),
    ("back-to-the-kernel", "four axes alone"): (
        lambda q, k, v: F.scaled_dot_product_attention(q[None], k[None], v[None])[0],
        "What ran is math; it should be flash.",
    ),
    ("back-to-the-kernel", "by hand"): (
        lambda q, k, v: (q @ k.mT / 8**0.5).softmax(-1) @ v,
        "What ran is softmax; it should be flash.",
    ),
    ("back-to-the-kernel", "padded, not cut"): (
        lambda q, k, v: F.scaled_dot_product_attention(q[None], k[None], F.pad(v, (0, 4))[None])[0],
        "The shape is (3, 5, 8); it should stay (3, 5, 4).",
    ),
    ("back-to-the-kernel", "another value"): (
        lambda q, k, v: F.scaled_dot_product_attention(q[None], k[None], k[None])[0, ..., :4],
        "It is off by up to ",
    ),
    ("bytes-of-scores", "numbers"): (
        lambda b, h, n, dtype: b * h * n * n,
        "That is how many numbers there are; each takes 4 bytes.",
    ),
    ("bytes-of-scores", "once"): (
        lambda b, h, n, dtype: b * h * n * dtype.itemsize,
        "Every query is compared with every key: the tokens count twice.",
    ),
    ("bytes-of-scores", "no batch"): (
        lambda b, h, n, dtype: h * n * n * dtype.itemsize,
        "For batch 3, 5 heads, 7 tokens and torch.float16 it is 490; it should be 1,470.",
    ),
}


@pytest.mark.parametrize(("name", "place"), [(name, i) for name, answers in RIGHT.items() for i in range(len(answers))])
def test_right_answers_are_accepted(name: str, place: int):
    feedback = check(name, RIGHT[name][place])
    assert feedback, feedback.message


@pytest.mark.parametrize(("name", "wrong"), WRONG)
def test_wrong_answers_are_named(name: str, wrong: str):
    answer, told = WRONG[name, wrong]
    feedback = check(name, answer)
    assert not feedback
    assert told in feedback.message
