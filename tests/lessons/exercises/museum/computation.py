"""Right and wrong answers to the exercises of museum/computation."""

import math

import torch
import torch.nn.functional as F


def by_pytorch(q, k, v, dropout, training):
    identity = torch.eye(k.size(-2), dtype=v.dtype).expand(*k.shape[:-1], -1)
    weights = F.scaled_dot_product_attention(q, k, identity)
    return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout * training), weights


def attention(scale=None, axis=-1, before=True, always=False, cut=False, value=None, in_place=False, drop=True):
    def attend(q, k, v, dropout, training):
        root = math.sqrt(q.size(-1)) if scale is None else scale
        if in_place:
            q /= root
        scores = (q.detach() if cut else q) @ k.mT / (1 if in_place else root)
        weights = scores.softmax(axis)
        dropped = F.dropout(weights, dropout if drop else 0.0, training or always)
        return dropped @ (v if value is None else k), weights if before else dropped

    return attend


def by_row(w):
    rows = w.reshape(-1, w.size(-1))
    return all((row >= 0).all() and (abs(row.sum() - 1) < 1e-4 or not row.any()) for row in rows)


def as_tensor(w):
    total = w.double().sum(-1)
    return (w >= 0).all() & (((total - 1).abs() < 1e-5) | (w.abs().sum(-1) == 0)).all()


def sums_to_one(w):
    return torch.allclose(w.sum(-1), torch.ones(w.shape[:-1]), atol=1e-5)


def allows_empty(w):
    total = w.sum(-1)
    return bool((((total - 1).abs() < 1e-5) | (total == 0)).all())


RIGHT = {
    "mended-attention": [attention(), by_pytorch],
    "are-weights": [by_row, as_tensor],
}
WRONG = {
    "mended-attention": [
        ("that you were given was changed: clone before you write. [input-overwritten]", attention(in_place=True)),
        ("With 4 features the scores are divided by the root of 1 [missing-scale]", attention(scale=1)),
        ("4 features the scores are divided by the root of [wrong-d-in-scale]", attention(scale=math.sqrt(512))),
        ("With 9 features the scores are divided by the root of 4 [wrong-d-in-scale]", attention(scale=2)),
        ("The columns of the weights sum to one [softmax-over-queries]", attention(axis=-2)),
        ("two calls differ [dropout-in-eval]", attention(always=True)),
        ("return it from before the dropout [weights-after-dropout]", attention(before=False)),
        ("nothing is dropped", attention(drop=False)),
        ("gradient of the context [gradient-cut]", attention(cut=True)),
        ("It is not the product of the weights with the values. [wrong-value]", attention(value="key")),
        (
            "a row of the weights [weights-not-normalized]",
            lambda q, k, v, p, t: ((q @ k.mT).exp() @ v, (q @ k.mT).exp()),
        ),
        ("It returned 1; return 2: context, weights.", lambda q, *_: q),
        ("(2, 5, 3); it should be (2, 3, 5)", lambda q, k, v, p, t: (v, (q @ k.mT).softmax(-1).mT)),
    ],
    "are-weights": [
        ("it should say False. It says so of everything. [softmax-over-queries]", lambda w: True),
        ("It says False of a softmax over the keys", lambda w: False),
        ("it should say True", lambda w: bool((w.sum(-1) == 1).all())),
        ("It says False of weights with a row of zeros [fully-masked-row]", sums_to_one),
        ("It says True of rows that sum to one, with a negative number", allows_empty),
        ("0.5 and 1.5 [weights-not-normalized]", lambda w: by_row(w.mean(-2, keepdim=True)) or by_row(w)),
        ("It says True of [fully-masked-row]", lambda w: by_row(w.nan_to_num(0.0))),
    ],
}
