import pytest
import torch

from unmasked import attention_weights, masks
from unmasked.exercises import check
from unmasked.museum import ENTRIES

inf = torch.inf


def _buffer(tokens):
    return torch.tensor([[key <= query for key in range(tokens)] for query in range(tokens)])


@pytest.mark.parametrize(
    "answer",
    [
        masks.causal,
        _buffer,
        lambda n: torch.ones(n, n).tril().bool(),
        lambda n: ~torch.triu(torch.ones(n, n, dtype=torch.bool), diagonal=1),
        lambda n: torch.arange(n)[:, None] >= torch.arange(n),
        lambda n: torch.ones(1, 1, n, n).tril() > 0,  # axes for batch and heads
        lambda n: torch.nn.Transformer.generate_square_subsequent_mask(n) == 0,
    ],
)
def test_any_causal_mask_is_accepted(answer):
    assert check("causal-mask", answer), check("causal-mask", answer)


@pytest.mark.parametrize(
    ("answer", "cause", "told"),
    [
        (
            lambda n: ~masks.causal(n),
            "mask-polarity",
            "for 2 tokens is [[0, 1], [0, 0]]; it should be [[1, 0], [1, 1]]",
        ),
        (lambda n: masks.causal(n).mT, "mask-polarity", "is [[1, 1], [0, 1]]; it should be [[1, 0], [1, 1]]"),
        (lambda n: masks.causal(n).tril(-1), "fully-masked-row", "A token may see itself"),
        (lambda n: torch.ones(n, n, dtype=torch.bool), "no-causal-mask", "the later ones too"),
        (lambda n: torch.ones(n, n).tril(), "float-mask-of-ones", "torch.float32; return torch.bool"),
        (lambda n: torch.ones(n, n).tril().long(), "float-mask-of-ones", "torch.int64; return torch.bool"),
        (lambda n: masks.additive_from_allowed(masks.causal(n)), None, "an additive mask: compare it with 0"),
        (lambda n: masks.sliding_window(n, window=2), None, "for 3 tokens is"),
        (lambda n: masks.causal(n + 1), None, "for 2 tokens is (3, 3); it should be (2, 2)"),
        (lambda n: masks.causal(n).expand(4, n, n), None, "is (4, 2, 2); it should be (2, 2)"),
        (lambda n: masks.causal(5), None, "for 2 tokens is (5, 5)"),
        (lambda n: _buffer(n).tolist(), None, "It returned list"),
        (lambda n: None, None, "It returned NoneType"),
        (lambda n: masks.causal(n) if n > 1 else ~masks.causal(n), "fully-masked-row", "for 1 token is [[0]]"),
        (lambda n: 1 / 0, None, "ZeroDivisionError"),
    ],
)
def test_a_wrong_causal_mask_is_told_from_a_right_one_by_the_smallest_case(answer, cause, told):
    feedback = check("causal-mask", answer)
    assert not feedback
    assert told in feedback.message
    assert feedback.cause == cause
    assert cause is None or cause in ENTRIES


def _row_by_row(lengths, keys):
    allowed = torch.zeros(len(lengths), 1, 1, keys, dtype=torch.bool)
    for row, length in zip(allowed, lengths.tolist(), strict=True):
        row[..., :length] = True
    return allowed


def _position(keys):
    return torch.arange(keys)


@pytest.mark.parametrize(
    "answer",
    [
        masks.padding,
        _row_by_row,
        lambda lengths, keys: _position(keys) < lengths[:, None, None, None],
        lambda lengths, keys: (_position(keys) < lengths[:, None])[:, None, None].expand(-1, 5, 6, -1),  # in full
        lambda lengths, keys: ~(_position(keys)[None, None, None] >= lengths.view(-1, 1, 1, 1)),
    ],
)
def test_any_padding_mask_is_accepted(answer):
    assert check("padding-mask", answer), check("padding-mask", answer)


@pytest.mark.parametrize(
    ("answer", "cause", "told"),
    [
        (lambda lengths, keys: ~masks.padding(lengths, keys), "mask-polarity", "True marks the padding"),
        (lambda lengths, keys: masks.padding(lengths, keys).flip(-1), None, "at the end, not in front"),
        (
            lambda lengths, keys: torch.ones(len(lengths), 1, 1, keys, dtype=torch.bool),
            "padding-ignored",
            "may see [[1, 1, 1], [1, 1, 1]]; it should be [[1, 1, 0], [1, 0, 0]]",
        ),
        (lambda lengths, keys: masks.padding(lengths, keys)[:, 0, 0], None, "is (2, 3). It does not broadcast"),
        (lambda lengths, keys: masks.padding(lengths), None, "is (2, 1, 1, 2). It does not broadcast"),
        (lambda lengths, keys: masks.padding(lengths - 1, keys), None, "for the lengths 2 and 1 and 3 keys may see"),
        (lambda lengths, keys: masks.padding(lengths.clamp(min=1), keys), None, "for the lengths 3 and 0"),
        (
            lambda lengths, keys: masks.padding(lengths, keys) & torch.ones(6, keys).tril().bool(),
            None,
            "it should be [[1, 1, 0], [1, 0, 0]]",
        ),
        (
            lambda lengths, keys: (
                masks.padding(lengths, keys) & (torch.arange(6)[:, None] < lengths[:, None, None, None])
            ),
            None,
            "who asks does not matter",
        ),
        (lambda lengths, keys: masks.padding(lengths, keys).float(), "float-mask-of-ones", "return torch.bool"),
        (lambda lengths, keys: "mask", None, "It returned str"),
    ],
)
def test_a_wrong_padding_mask_is_told_from_a_right_one(answer, cause, told):
    feedback = check("padding-mask", answer)
    assert not feedback
    assert told in feedback.message
    assert feedback.cause == cause
    assert cause is None or cause in ENTRIES


def _filled(scores, allowed):
    lowest = torch.finfo(scores.dtype).min
    return scores.masked_fill(~allowed, lowest).softmax(-1).masked_fill(~allowed, 0.0)


def _blind_rows_zeroed(scores, allowed):
    return scores.masked_fill(~allowed, -inf).softmax(-1).nan_to_num(0.0)


def _shifted_by_hand(scores, allowed):
    largest = scores.masked_fill(~allowed, -inf).amax(-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).min)
    exponentials = (scores - largest).exp().where(allowed, 0.0)
    return exponentials / exponentials.sum(-1, keepdim=True).clamp(min=1e-12)


def _divided_again(scores, allowed):
    late = scores.softmax(-1) * allowed
    return late / late.sum(-1, keepdim=True).clamp(min=1e-30)


def _unshifted(scores, allowed):
    exponentials = scores.exp() * allowed
    return exponentials / exponentials.sum(-1, keepdim=True).clamp(min=1e-12)


@pytest.mark.parametrize(
    "answer",
    [
        _filled,
        _blind_rows_zeroed,
        _shifted_by_hand,
        _divided_again,
        lambda scores, allowed: attention_weights(scores, allowed=allowed),
        lambda scores, allowed: _filled(scores.double(), allowed),  # another dtype
        lambda scores, allowed: _filled(scores.clone().requires_grad_(), allowed),
    ],
)
def test_any_softmax_that_survives_is_accepted(answer):
    feedback = check("masked-softmax", answer)
    assert feedback, feedback
    assert feedback.message.startswith("Rows that may see nothing are zero")


def test_a_softmax_that_overflows_is_right_but_told_so():
    feedback = check("masked-softmax", _unshifted)
    assert feedback
    assert "subtract each row's largest" in feedback.message


def _in_place(scores, allowed):
    return scores.masked_fill_(~allowed, -inf).softmax(-1).nan_to_num(0.0)


@pytest.mark.parametrize(
    ("answer", "cause", "told"),
    [
        (lambda s, a: s.masked_fill(~a, -inf).softmax(-1), "fully-masked-row", "is NaN; it should be zeros"),
        (lambda s, a: s.masked_fill(~a, -1e9).softmax(-1), "fully-masked-row", "has weights such as 0.20"),
        (lambda s, a: s.softmax(-1) * a, "mask-after-softmax", "where they should sum to 1: mask before"),
        (lambda s, a: (s + a).softmax(-1), "boolean-mask-added", "the mask was added to the scores"),
        (lambda s, a: (s + a.float()).softmax(-1), "boolean-mask-added", "the mask was added to the scores"),
        (lambda s, a: s.masked_fill(a, -inf).softmax(-1), "mask-polarity", "True says what may be seen"),
        (lambda s, a: _filled(s, ~a), None, "off by up to"),
        (lambda s, a: _filled(s, a)[..., :4], None, "have the shape (2, 3, 4, 4); the scores have (2, 3, 4, 5)"),
        (lambda s, a: _filled(s.mT, a.mT).mT, None, "off by up to"),
        (_in_place, "input-overwritten", "were changed"),
        (lambda s, a: None, None, "It returned NoneType"),
    ],
)
def test_a_wrong_softmax_is_told_from_a_right_one(answer, cause, told):
    feedback = check("masked-softmax", answer)
    assert not feedback
    assert told in feedback.message
    assert feedback.cause == cause
    assert cause is None or cause in ENTRIES
