"""Right and wrong answers to the exercises of pytorch/heads."""

import torch
import torch.nn.functional as F

from unmasked import attend
from unmasked.heads import fused_qkv, merge_heads, split_heads


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


def padded(scores):
    return F.pad(scores, (0, 1)).softmax(-1)[..., :-1]


def one_left_out_of_the_shift(scores):
    exponentials = (scores - scores.amax(-1, keepdim=True)).exp()
    return exponentials / (1 + exponentials.sum(-1, keepdim=True))


def by_sigmoid(scores):
    total = scores.logsumexp(-1, keepdim=True)
    return scores.softmax(-1) * total.sigmoid()


def _split_by_view(x, num_heads):
    batch, tokens, features = x.shape
    return x.view(batch, tokens, num_heads, features // num_heads).transpose(1, 2)


def _viewed(x, num_heads):
    return x.view(x.size(0), num_heads, x.size(1), -1)


def _in_turn(x, weight, num_heads):
    return tuple(split_heads(part, num_heads) for part in F.linear(x, weight).chunk(3, dim=-1))


RIGHT = {
    "appended-pair": [append, append_by_module],
    "softmax-one": [padded, by_sigmoid],
    "split-heads": [
        _split_by_view,
        lambda x, num_heads: _split_by_view(x, num_heads).double(),
    ],
    "merge-heads": [
        lambda x: x.transpose(1, 2).reshape(x.size(0), x.size(2), -1),
        lambda x: merge_heads(x).double(),
    ],
    "packed-projection": [
        _in_turn,
        lambda x, weight, n: F.linear(x, weight).unflatten(-1, (3, n, -1)).permute(2, 0, 3, 1, 4),
        lambda x, weight, n: (part.float() for part in _in_turn(x, weight, n)),
    ],
}
WRONG = {
    "appended-pair": [
        (
            "(4, 5); it should be (4, 6). What is added to all keys changes no weight [bias-kv-as-shift]",
            lambda q, k, v, bias_k, bias_v: attend(q, k + bias_k, v + bias_v, need_weights=True),
        ),
        ("The pair stands before the others", lambda *given: append(*given, place=-1)),
        ("The scale is missing. [missing-scale]", lambda *given: append(*given, scale=1.0)),
        ("q of (4, 7) and k of (5, 7) the weights are off by up to 0.27.", lambda *given: append(*given, scale=0.1)),
        ("It averages the keys. [wrong-value]", lambda q, k, v, bias_k, bias_v: append(q, k, k, bias_k, bias_k)),
        ("weights are right, but the context is off by up to 0.19.", lambda *given: append(*given[:4], 0 * given[4])),
        ("It returned 1; return 2: context, weights.", lambda *given: append(*given)[0]),
        ("7) the shape of the weights is (4, 7); it should be (4, 6).", lambda *given: append(*given)[::-1]),
    ],
    "softmax-one": [
        ("That is the usual softmax", lambda s: s.softmax(-1)),
        ("score first: an exponential overflows.", lambda s: s.exp() / (1 + s.exp().sum(-1, keepdim=True))),
        ("the one has to be divided", one_left_out_of_the_shift),
        ("it should be (2, 3, 5).", lambda s: F.pad(s, (0, 1)).softmax(-1)),
        ("of a few units the sum of the first row is 0.5000; it should be 0.8100.", lambda s: s.softmax(-1) / 2),
        ("you were given were changed: clone before you write. [input-overwritten]", lambda s: s.copy_(padded(s))),
    ],
    "split-heads": [
        ("is [[0, 1], [2, 3]]; it should be [[0, 1], [6, 7]]. A view alone [view-without-transpose]", _viewed),
        (
            "is [[0, 3], [6, 9]]; it should be [[0, 1], [6, 7]]. num_heads and head_dim are exchanged [swapped-view]",
            lambda x, num_heads: x.unflatten(-1, (-1, num_heads)).permute(0, 3, 1, 2),
        ),
        ("the shape is (1, 2, 3, 2); it should", lambda x, num_heads: split_heads(x, num_heads).transpose(1, 2)),
        ("first one [only-first-item]", lambda x, num_heads: split_heads(x, num_heads)[:1].expand(len(x), -1, -1, -1)),
        ("is [[4, 5], [10, 11]]; it should be", lambda x, num_heads: split_heads(x, num_heads).flip(1)),
    ],
    "merge-heads": [
        ("1, 2, 3, 4, 5]. Transpose [merge-without-transpose]", lambda x: x.reshape(x.size(0), x.size(2), -1)),
        ("is [0, 2, 4, 1, 3, 5]; it should be [0, 1, 2, 3, 4, 5]", lambda x: x.permute(0, 2, 3, 1).flatten(-2)),
        ("the shape is (1, 6, 2); it should be (1, 2, 6): batch, tokens, features", lambda x: x.flatten(1, 2)),
        ("first one [only-first-item]", lambda x: merge_heads(x[:1]).expand(len(x), -1, -1)),
        ("is [4, 5, 2, 3, 0, 1]", lambda x: merge_heads(x.flip(1))),
    ],
    "packed-projection": [
        ("head by head [interleaved-qkv]", lambda x, w, n: fused_qkv(x, w, num_heads=n)),
        (
            "A view alone [view-without-transpose]",
            lambda x, w, n: [part.reshape(len(x), n, x.size(1), -1) for part in F.linear(x, w).chunk(3, dim=-1)],
        ),
        ("Query and key are exchanged", lambda x, w, n: [_in_turn(x, w, n)[i] for i in (1, 0, 2)]),
        ("the value is off by up to", lambda x, w, n: [_in_turn(x, w, n)[i] for i in (0, 1, 1)]),
        ("2, 6); it should be (1, 3, 2, 2): batch, heads, tokens,", lambda x, w, n: F.linear(x, w).chunk(3, dim=-1)),
        ("It returned 2; return 3: query, key, value.", lambda x, w, n: _in_turn(x, w, n)[:2]),
    ],
}
