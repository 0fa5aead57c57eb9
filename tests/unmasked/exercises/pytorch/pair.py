"""The exercises about a pair from no sequence accept what is right, and say what is wrong with what is not."""

from collections.abc import Callable

import torch
import torch.nn.functional as F

from unmasked import attend


def append(q, k, v, bias_k, bias_v, *, place=1, scale=None):
    longer = [(x, b.expand(*x.shape[:-2], 1, x.size(-1)))[::place] for x, b in ((k, bias_k), (v, bias_v))]
    k, v = (torch.cat(both, dim=-2) for both in longer)
    weights = (q @ k.mT * (q.size(-1) ** -0.5 if scale is None else scale)).softmax(-1)
    return weights @ v, weights


def append_by_module(q, k, v, bias_k, bias_v):
    module = torch.nn.MultiheadAttention(7, 1, bias=False, add_bias_kv=True, batch_first=True, dtype=q.dtype)
    state = {"in_proj_weight": torch.eye(7).repeat(3, 1), "out_proj.weight": torch.eye(7)}
    module.load_state_dict(state | {"bias_k": bias_k[None], "bias_v": bias_v[None]})
    flat = [x.reshape(-1, *x.shape[-2:]) for x in (q, k, v)]
    return [x.detach().view(*q.shape[:-2], *x.shape[-2:]) for x in module(*flat)]


def shift(q, k, v, bias_k, bias_v):
    return attend(q, k + bias_k, v + bias_v, need_weights=True)


def appended_key_as_value(q, k, v, bias_k, bias_v):
    return append(q, k, k, bias_k, bias_k)


def appended_key_alone(q, k, v, bias_k, bias_v):
    return append(q, k, v, bias_k, bias_v * 0)


def padded(scores):
    return F.pad(scores, (0, 1)).softmax(-1)[..., :-1]


def naive(scores):
    return scores.exp() / (1 + scores.exp().sum(-1, keepdim=True))


def one_left_out_of_the_shift(scores):
    exponentials = (scores - scores.amax(-1, keepdim=True)).exp()
    return exponentials / (1 + exponentials.sum(-1, keepdim=True))


def by_sigmoid(scores):
    total = scores.logsumexp(-1, keepdim=True)
    return scores.softmax(-1) * total.sigmoid()


RIGHT: list[tuple[str, Callable]] = [
    ("appended-pair", append),
    ("appended-pair", append_by_module),
    ("softmax-one", padded),
    ("softmax-one", by_sigmoid),
]
WRONG: dict[tuple[str, str], tuple[Callable, str | None, str]] = {
    ("appended-pair", "a shift"): (
        shift,
        "bias-kv-as-shift",
        "For k of (5, 7) the weights have 5 columns; they should have 6.",
    ),
    ("appended-pair", "in front"): (
        lambda *given: append(*given, place=-1),
        None,
        "The pair stands before the others",
    ),
    ("appended-pair", "unscaled"): (lambda *given: append(*given, scale=1.0), "missing-scale", "the scale is missing"),
    ("appended-pair", "scaled otherwise"): (lambda *given: append(*given, scale=0.1), None, "The weights are off by"),
    ("appended-pair", "keys averaged"): (appended_key_as_value, "wrong-value", "it averages the keys"),
    ("appended-pair", "no value"): (appended_key_alone, None, "The weights are right, the context is off by up to "),
    ("appended-pair", "the context alone"): (lambda *given: append(*given)[0], None, "Return two tensors"),
    ("appended-pair", "exchanged"): (
        lambda *given: append(*given)[::-1],
        None,
        "of the weights, the shape is (4, 7)",
    ),
    ("softmax-one", "the usual"): (lambda s: s.softmax(-1), None, "That is the usual softmax"),
    ("softmax-one", "overflows"): (naive, None, "For scores about 1000 it gives nan: subtract the largest"),
    ("softmax-one", "one not shifted"): (one_left_out_of_the_shift, None, "the one has to be divided"),
    ("softmax-one", "with the column"): (lambda s: F.pad(s, (0, 1)).softmax(-1), None, "it should be (2, 3, 5)."),
    ("softmax-one", "halved"): (lambda s: s.softmax(-1) / 2, None, "the first row sums to 0.5000"),
    ("softmax-one", "in place"): (
        lambda s: s.copy_(padded(s)),
        "input-overwritten",
        "The scores that you were given were changed.",
    ),
}
