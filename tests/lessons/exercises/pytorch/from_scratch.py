"""Right and wrong answers to the exercises of pytorch/from_scratch."""

import torch
import torch.nn.functional as F


def split(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def viewed(x, heads):
    return x.view(len(x), heads, x.size(1), -1)


def multi_head(
    query, key, value, state, heads, *, split=split, merge=(0, 2, 1, 3), scale=None, biases=(1, 1), out=True
):
    w_q, w_k, w_v = state["in_proj_weight"].chunk(3)
    b_q, b_k, b_v = (biases[0] * b for b in state["in_proj_bias"].chunk(3))
    triples = ((query, w_q, b_q), (key, w_k, b_k), (value, w_v, b_v))
    q, k, v = (split(F.linear(*each), heads) for each in triples)
    weights = (q @ k.mT * (q.size(-1) ** -0.5 if scale is None else scale)).softmax(-1)
    merged = (weights @ v).permute(merge).reshape(*query.shape)
    return F.linear(merged, state["out_proj.weight"], biases[1] * state["out_proj.bias"]) if out else merged


def untransposed(query, key, value, state, heads):
    w = torch.cat([part.T for part in state["in_proj_weight"].chunk(3)])
    return multi_head(query, key, value, {**state, "in_proj_weight": w}, heads)


def weights_of(q, k, allowed):
    return (q @ k.mT / q.size(-1) ** 0.5).masked_fill(~allowed, -torch.inf).softmax(-1)


def dropped(q, k, v, allowed, p):
    weights = F.dropout(weights_of(q, k, allowed), p)
    return weights @ v, weights


def scores_dropped(q, k, v, allowed, p):
    hidden = (torch.rand(q.size(-2), k.size(-2)) < p) & (torch.arange(k.size(-2)) > 0)
    return dropped(q, k, v, allowed & ~hidden, 0.0)


RIGHT = {
    "multi-head": [multi_head],
    "weights-dropout": [dropped],
    "bias-never-missed": ["b_k", "B_K "],
}
WRONG = {
    "multi-head": [
        ("transpose back first [merge-without-transpose]", lambda *a: multi_head(*a, merge=(0, 1, 2, 3))),
        ("A view alone does not split heads [view-without-transpose]", lambda *a: multi_head(*a, split=viewed)),
        ("not divided by the root [missing-scale]", lambda *a: multi_head(*a, scale=1.0)),
        ("the root of head_dim, not of embed_dim [wrong-d-in-scale]", lambda *a: multi_head(*a, scale=12**-0.5)),
        ("The biases are left out. [zero-bias-parity]", lambda *a: multi_head(*a, biases=(0, 0))),
        ("key and value are left out. [zero-bias-parity]", lambda *a: multi_head(*a, biases=(0, 1))),
        ("The bias of the output is left out. [zero-bias-parity]", lambda *a: multi_head(*a, biases=(1, 0))),
        ("The output projection is left out. [missing-out-proj]", lambda *a: multi_head(*a, out=False)),
        ("x @ W.T [weight-not-transposed]", untransposed),
        ("There is one head; there should be 3.", lambda *a: multi_head(*a[:4], 1)),
        ("For 5 queries and 7 keys the output is off by up to 0.42.", lambda q, k, v, s, h: multi_head(q, k, v, s, 4)),
    ],
    "weights-dropout": [
        ("With p = 0.5 nothing was dropped.", lambda q, k, v, allowed, p: dropped(q, k, v, allowed, 0.0)),
        (
            "With p = 0.5 the weights that you return are not those that averaged the values.",
            lambda q, k, v, allowed, p: (dropped(q, k, v, allowed, p)[0], weights_of(q, k, allowed)),
        ),
        (
            "keep their size; divide them by 0.5",
            lambda q, k, v, allowed, p: tuple((1 - p) * each for each in dropped(q, k, v, allowed, p)),
        ),
        ("every row sums to 1: drop weights after the softmax", scores_dropped),
        (
            "the context is not the average by the weights that you return",
            lambda q, k, v, allowed, p: (
                F.dropout(dropped(q, k, v, allowed, 0.0)[0], p),
                dropped(q, k, v, allowed, p)[1],
            ),
        ),
        (
            "With p = 0.5 a share of 0.8",
            lambda q, k, v, allowed, p: tuple(
                each * (0.2 / (1 - p)) if p else each for each in dropped(q, k, v, allowed, 0.8 if p else 0.0)
            ),
        ),
        ("should be 0 or 1 times what it was.", lambda q, k, v, allowed, p: dropped(q, k, v, allowed | True, p)),
    ],
    "bias-never-missed": [
        ("the query's bias a score loses a number that differs from key to key: its product with them.", "b_q"),
        ("Without the value's bias every output moves. [zero-bias-parity]", "b_v"),
        ("It is 'key'; give one of 'b_q', 'b_k'", "key"),
    ],
}
