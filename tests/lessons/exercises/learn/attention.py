"""Right and wrong answers to the exercises of learn/attention."""

import math

import torch

from unmasked import self_attention


def attend(rows, *, divisor=math.sqrt, exponential=math.exp, total=sum):
    context = []
    for row in rows:
        scores = [sum(a * b for a, b in zip(row, other, strict=True)) / divisor(len(row)) for other in rows]
        weights = [exponential(score) for score in scores]
        sums = total(weights)
        context.append(
            [sum(w / sums * other[i] for w, other in zip(weights, rows, strict=True)) for i in range(len(row))]
        )
    return context


def attention(query, key, value):
    return (query @ key.mT / key.size(-1) ** 0.5).softmax(-1) @ value


RIGHT = {
    "by-hand": [
        attend,
        lambda rows: tuple(tuple(round(x, 4) for x in row) for row in attend(rows)),
    ],
    "pull-to-machine": [[0.0, 1.0], torch.tensor([-1, 1]), (0.2, 0.3)],
    "three-lines": [
        attention,
        lambda q, k, v: attention(q.float(), k.float(), v.float()).tolist(),
    ],
}
WRONG = {
    "by-hand": [
        ("not divided by the root [missing-scale]", lambda rows: attend(rows, divisor=lambda d: 1)),
        ("not divided by their sum. [weights-not-normalized]", lambda rows: attend(rows, total=lambda weights: 1)),
        (
            "The scores themselves are no weights. [weights-not-normalized]",
            lambda rows: attend(rows, exponential=lambda x: x, total=lambda weights: 1),
        ),
        ("2.0]] the shape is (1, 1); it should be (1,", lambda rows: self_attention(torch.tensor(rows)).weights),
        (
            "These are the weights; average the values with them.",
            lambda rows: attend(rows) if len(rows) == 1 else self_attention(torch.tensor(rows)).weights,
        ),
        ("For [[1.0, 0.0], [0.0, 2.0]] row 0 is [1.0, 0.0]", lambda rows: rows),
        ("It is 'no'; give numbers", lambda rows: "no"),
    ],
    "pull-to-machine": [
        (
            "0.0], mouse has 0.924 of an animal and 0.606 of a machine. Your word pulls it toward the animals.",
            [1.0, 0.0],
        ),
        ("They are equal: your word must have more of a machine than of an animal.", [0.5, 0.5]),
        ("The shape is (3,); give one list of two numbers", [0.0, 1.0, 1.0]),
        ("[0.0, 5.0] has a number that is not from minus one", [0.0, 5.0]),
        ("has a number that is not from minus one to one", [float("nan"), 1.0]),
    ],
    "three-lines": [
        ("The scores are not divided by the root. [missing-scale]", lambda q, k, v: (q @ k.mT).softmax(-1) @ v),
        ("number, not by the number. [wrong-d-in-scale]", lambda q, k, v: (q @ k.mT / k.size(-1)).softmax(-1) @ v),
        ("It averages the queries [wrong-value]", lambda q, k, v: attention(q, k, q)),
        ("It averages the keys [wrong-value]", lambda q, k, v: attention(q, k, k)),
        (
            "The weights sum to one by column; they should by row. [softmax-over-queries]",
            lambda q, k, v: (q @ k.mT / k.size(-1) ** 0.5).softmax(0) @ v,
        ),
        ("The keys ask, and the queries are", lambda q, k, v: attention(k, q, v)),
        ("queries and 3 keys the shape is (3, 3); it should be (3, 4).", lambda q, k, v: (q @ k.mT / 2).softmax(-1)),
        ("For 2 queries and 5 keys it is off by up to", lambda q, k, v: (q @ k.mT / 2).softmax(-1) @ v),
    ],
}
