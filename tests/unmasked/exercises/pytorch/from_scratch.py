"""The exercises about building a layer accept what is right in any style, and say what is wrong with what is not."""

import torch
import torch.nn.functional as F


def multi_head(
    query, key, value, state, heads, *, order=(0, 2, 1, 3), merge=(0, 2, 1, 3), scale=None, biases=(1, 1), out=True
):
    w_q, w_k, w_v = state["in_proj_weight"].chunk(3)
    b_q, b_k, b_v = (biases[0] * b for b in state["in_proj_bias"].chunk(3))
    triples = ((query, w_q, b_q), (key, w_k, b_k), (value, w_v, b_v))
    q, k, v = (F.linear(*each).unflatten(-1, (heads, -1)).permute(order) for each in triples)
    weights = (q @ k.mT * (q.size(-1) ** -0.5 if scale is None else scale)).softmax(-1)
    merged = (weights @ v).permute(merge).reshape(*query.shape)
    return F.linear(merged, state["out_proj.weight"], biases[1] * state["out_proj.bias"]) if out else merged


def head_by_head(query, key, value, state, heads):
    parts = zip((query, key, value), state["in_proj_weight"].chunk(3), state["in_proj_bias"].chunk(3), strict=True)
    q, k, v = (x @ w.T + b for x, w, b in parts)
    context = []
    for h in torch.arange(q.size(-1)).chunk(heads):
        scores = torch.einsum("bqd,bkd->bqk", q[..., h], k[..., h]) / len(h) ** 0.5
        context.append(scores.softmax(-1) @ v[..., h])
    return torch.cat(context, dim=-1) @ state["out_proj.weight"].T + state["out_proj.bias"]


def by_torch(query, key, value, state, heads):
    w, b = state["in_proj_weight"], state["in_proj_bias"]
    given = [x.transpose(0, 1) for x in (query, key, value)]
    rest = (None, None, False, 0.0, state["out_proj.weight"], state["out_proj.bias"])
    return F.multi_head_attention_forward(*given, query.size(-1), heads, w, b, *rest)[0].transpose(0, 1)


def viewed(query, key, value, state, heads):
    parts = zip((query, key, value), state["in_proj_weight"].chunk(3), state["in_proj_bias"].chunk(3), strict=True)
    q, k, v = (F.linear(*each).view(len(query), heads, each[0].size(1), -1) for each in parts)
    merged = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    return F.linear(merged, state["out_proj.weight"], state["out_proj.bias"])


def untransposed(query, key, value, state, heads):
    w = torch.cat([part.T for part in state["in_proj_weight"].chunk(3)])
    return multi_head(query, key, value, {**state, "in_proj_weight": w}, heads)


def weights_of(q, k, allowed):
    return (q @ k.mT / q.size(-1) ** 0.5).masked_fill(~allowed, -torch.inf).softmax(-1)


def dropped(q, k, v, allowed, p):
    weights = F.dropout(weights_of(q, k, allowed), p)
    return weights @ v, weights


def dropped_by_hand(q, k, v, allowed, p):
    weights = weights_of(q, k, allowed)
    weights = weights * (torch.rand(weights.shape) >= p) / (1 - p)
    return torch.einsum("bhqk,bhkd->bhqd", weights, v), weights


def scores_dropped(q, k, v, allowed, p):
    hidden = (torch.rand(q.size(-2), k.size(-2)) < p) & (torch.arange(k.size(-2)) > 0)
    return dropped(q, k, v, allowed & ~hidden, 0.0)


RIGHT: list[tuple[str, object]] = [
    ("multi-head", multi_head),
    ("multi-head", head_by_head),
    ("multi-head", by_torch),
    ("weights-dropout", dropped),
    ("weights-dropout", dropped_by_hand),
    ("bias-never-missed", "b_k"),
    ("bias-never-missed", "B_K "),
]
WRONG: dict[tuple[str, str], tuple[object, str | None, str]] = {
    ("multi-head", "merged as it lies"): (
        lambda *a: multi_head(*a, merge=(0, 1, 2, 3)),
        "merge-without-transpose",
        "transpose back first",
    ),
    ("multi-head", "split by a view"): (viewed, "view-without-transpose", "A view alone does not split heads"),
    ("multi-head", "unscaled"): (lambda *a: multi_head(*a, scale=1.0), "missing-scale", "not divided by the root"),
    ("multi-head", "by another root"): (
        lambda *a: multi_head(*a, scale=12**-0.5),
        "wrong-d-in-scale",
        "the root of head_dim, not of embed_dim",
    ),
    ("multi-head", "no biases"): (
        lambda *a: multi_head(*a, biases=(0, 0)),
        "zero-bias-parity",
        "The biases are left out.",
    ),
    ("multi-head", "no biases before"): (
        lambda *a: multi_head(*a, biases=(0, 1)),
        "zero-bias-parity",
        "The biases of query, key and value are left out.",
    ),
    ("multi-head", "no bias after"): (
        lambda *a: multi_head(*a, biases=(1, 0)),
        "zero-bias-parity",
        "The bias of the output is left out.",
    ),
    ("multi-head", "no output projection"): (
        lambda *a: multi_head(*a, out=False),
        "missing-out-proj",
        "The output projection is left out.",
    ),
    ("multi-head", "x @ W"): (untransposed, "weight-not-transposed", "x @ W.T"),
    ("multi-head", "one head"): (lambda *a: multi_head(*a[:4], 1), None, "There is one head; there should be 3."),
    ("multi-head", "heads exchanged"): (lambda q, k, v, s, h: multi_head(q, k, v, s, 4), None, "is off by up to "),
    ("multi-head", "keys averaged"): (lambda q, k, v, s, h: multi_head(q, k, k, s, h), None, "is off by up to "),
    ("multi-head", "a tuple"): (lambda *a: (multi_head(*a), None), None, "returned tuple; return the output alone."),
    ("multi-head", "half"): (lambda *a: multi_head(*a)[:1], None, "the shape is (1, 5, 12); it should be (2, 5, 12)."),
    ("weights-dropout", "nothing"): (
        lambda q, k, v, allowed, p: dropped(q, k, v, allowed, 0.0),
        None,
        "With p = 0.5 nothing was dropped.",
    ),
    ("weights-dropout", "the plain weights returned"): (
        lambda q, k, v, allowed, p: (dropped(q, k, v, allowed, p)[0], weights_of(q, k, allowed)),
        None,
        "With p = 0.5 the weights that you return are not those that averaged the values.",
    ),
    ("weights-dropout", "not enlarged"): (
        lambda q, k, v, allowed, p: tuple((1 - p) * each for each in dropped(q, k, v, allowed, p)),
        None,
        "keep their size; divide them by 0.5",
    ),
    ("weights-dropout", "scores"): (scores_dropped, None, "every row sums to 1: drop weights after the softmax"),
    ("weights-dropout", "the context"): (
        lambda q, k, v, allowed, p: (F.dropout(dropped(q, k, v, allowed, 0.0)[0], p), dropped(q, k, v, allowed, p)[1]),
        None,
        "the context is not the average by the weights that you return",
    ),
    ("weights-dropout", "too much"): (
        lambda q, k, v, allowed, p: tuple(
            each * (0.2 / (1 - p)) if p else each for each in dropped(q, k, v, allowed, 0.8 if p else 0.0)
        ),
        None,
        "With p = 0.5 a share of 0.8",
    ),
    ("weights-dropout", "no mask"): (
        lambda q, k, v, allowed, p: dropped(q, k, v, allowed | True, p),
        None,
        "With p = 0.0 each weight should be 0 or 1 times what it was.",
    ),
    ("bias-never-missed", "query"): ("b_q", None, "differs from key to key"),
    ("bias-never-missed", "value"): ("b_v", "zero-bias-parity", "Without the value's bias every output moves."),
    ("bias-never-missed", "another"): ("key", None, "It is 'key'; give one of 'b_q', 'b_k'"),
}
