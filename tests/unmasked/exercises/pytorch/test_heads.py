import pytest
import torch
import torch.nn.functional as F

from unmasked.exercises import check
from unmasked.heads import fused_qkv, merge_heads, split_heads
from unmasked.museum import ENTRIES


def _split_by_view(x, num_heads):
    batch, tokens, features = x.shape
    return x.view(batch, tokens, num_heads, features // num_heads).transpose(1, 2)


@pytest.mark.parametrize(
    "answer",
    [
        split_heads,
        _split_by_view,
        lambda x, num_heads: _split_by_view(x, num_heads).contiguous(),
        lambda x, num_heads: torch.stack(x.chunk(num_heads, dim=-1), dim=1),
        lambda x, num_heads: _split_by_view(x, num_heads).double(),  # another dtype
    ],
)
def test_any_split_is_accepted(answer):
    assert check("split-heads", answer), check("split-heads", answer)


def _viewed(x, num_heads):
    return x.view(x.size(0), num_heads, x.size(1), -1)


@pytest.mark.parametrize(
    ("answer", "cause", "told"),
    [
        (
            _viewed,
            "view-without-transpose",
            "is [[0, 1], [2, 3]]; it should be [[0, 1], [6, 7]]. A view alone",
        ),
        (
            lambda x, num_heads: x.unflatten(-1, (-1, num_heads)).permute(0, 3, 1, 2),
            "swapped-view",
            "is [[0, 3], [6, 9]]; it should be [[0, 1], [6, 7]]. num_heads and head_dim are exchanged",
        ),
        (lambda x, num_heads: split_heads(x, num_heads).transpose(1, 2), None, "the shape is (1, 2, 3, 2); it should"),
        (lambda x, num_heads: split_heads(x, num_heads)[:1].expand(len(x), -1, -1, -1), "only-first-item", "first one"),
        (lambda x, num_heads: split_heads(x, num_heads).flip(1), None, "is [[4, 5], [10, 11]]; it should be"),
        (lambda x, num_heads: x.unflatten(-1, (3, -1)).transpose(1, 2), None, "RuntimeError"),  # 3 heads, always
        (lambda x, num_heads: [x], None, "it returned list"),
    ],
)
def test_a_wrong_split_is_told_from_a_right_one_by_the_smallest_case(answer, cause, told):
    feedback = check("split-heads", answer)
    assert not feedback
    assert told in feedback.message
    assert feedback.cause == cause
    assert cause is None or cause in ENTRIES


@pytest.mark.parametrize(
    "answer",
    [
        merge_heads,
        lambda x: x.transpose(1, 2).reshape(x.size(0), x.size(2), -1),
        lambda x: x.transpose(1, 2).contiguous().view(x.size(0), x.size(2), -1),
        lambda x: torch.cat(x.unbind(1), dim=-1),
        lambda x: merge_heads(x).double(),
    ],
)
def test_any_merge_is_accepted(answer):
    assert check("merge-heads", answer), check("merge-heads", answer)


@pytest.mark.parametrize(
    ("answer", "cause", "told"),
    [
        (
            lambda x: x.reshape(x.size(0), x.size(2), -1),
            "merge-without-transpose",
            "is [0, 1, 6, 7, 2, 3]; it should be [0, 1, 2, 3, 4, 5]. Transpose back",
        ),
        (lambda x: x.permute(0, 2, 3, 1).flatten(-2), None, "is [0, 2, 4, 1, 3, 5]; it should be [0, 1, 2, 3, 4, 5]"),
        (lambda x: x.flatten(1, 2), None, "the shape is (1, 6, 2); it should be (1, 2, 6): batch, tokens, features"),
        (lambda x: merge_heads(x[:1]).expand(len(x), -1, -1), "only-first-item", "first one"),
        (lambda x: merge_heads(x.flip(1)), None, "is [4, 5, 2, 3, 0, 1]"),
        (lambda x: x.transpose(1, 2).view(x.size(0), x.size(2), -1), None, "RuntimeError"),
        (lambda x: None, None, "it returned NoneType"),
    ],
)
def test_a_wrong_merge_is_told_from_a_right_one_by_the_smallest_case(answer, cause, told):
    feedback = check("merge-heads", answer)
    assert not feedback
    assert told in feedback.message
    assert feedback.cause == cause
    assert cause is None or cause in ENTRIES


def _in_turn(x, weight, num_heads):
    return tuple(split_heads(part, num_heads) for part in F.linear(x, weight).chunk(3, dim=-1))


def _three_products(x, weight, num_heads):
    return [split_heads(x @ part.T, num_heads) for part in weight.chunk(3)]


@pytest.mark.parametrize(
    "answer",
    [
        _in_turn,
        _three_products,
        lambda x, weight, n: F.linear(x, weight).unflatten(-1, (3, n, -1)).permute(2, 0, 3, 1, 4),  # one tensor
        lambda x, weight, n: (part.float() for part in _in_turn(x, weight, n)),
    ],
)
def test_any_packed_projection_is_accepted(answer):
    assert check("packed-projection", answer), check("packed-projection", answer)


@pytest.mark.parametrize(
    ("answer", "cause", "told"),
    [
        (lambda x, w, n: fused_qkv(x, w, num_heads=n), "interleaved-qkv", "head by head"),
        (
            lambda x, w, n: [part.reshape(len(x), n, x.size(1), -1) for part in F.linear(x, w).chunk(3, dim=-1)],
            "view-without-transpose",
            "A view alone",
        ),
        (lambda x, w, n: [_in_turn(x, w, n)[i] for i in (1, 0, 2)], None, "Query and key are exchanged"),
        (lambda x, w, n: [_in_turn(x, w, n)[i] for i in (0, 1, 1)], None, "the value is off by up to"),
        (lambda x, w, n: F.linear(x, w).chunk(3, dim=-1), None, "the shape is (1, 2, 6); it should be (1, 3, 2, 2)"),
        (lambda x, w, n: _in_turn(x, w, n)[:2], None, "It returned 2 tensors"),
        (lambda x, w, n: _in_turn(x, w.T, n), None, "RuntimeError"),
    ],
)
def test_a_wrong_packed_projection_is_told_from_a_right_one(answer, cause, told):
    feedback = check("packed-projection", answer)
    assert not feedback
    assert told in feedback.message
    assert feedback.cause == cause
    assert cause is None or cause in ENTRIES
