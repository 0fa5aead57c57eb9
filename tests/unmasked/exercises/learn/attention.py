"""The exercises on what attention is accept what is right in any style, and say what is wrong with what is not."""

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


def by_column(rows):
    x = torch.tensor(rows)
    return (x @ x.mT / x.size(-1) ** 0.5).softmax(0) @ x


def attention(query, key, value):
    return (query @ key.mT / key.size(-1) ** 0.5).softmax(-1) @ value


RIGHT = [
    ("by-hand", attend),
    ("by-hand", lambda rows: self_attention(torch.tensor(rows)).context),
    ("by-hand", lambda rows: tuple(tuple(round(x, 4) for x in row) for row in attend(rows))),
    ("pull-to-trade", [0.0, 1.0]),
    ("pull-to-trade", torch.tensor([-1, 1])),
    ("pull-to-trade", (0.2, 0.3)),
    ("three-lines", attention),
    ("three-lines", torch.nn.functional.scaled_dot_product_attention),
    ("three-lines", lambda q, k, v: attention(q.float(), k.float(), v.float()).tolist()),
]
WRONG = {
    ("by-hand", "unscaled"): (
        lambda rows: attend(rows, divisor=lambda d: 1),
        "missing-scale",
        "not divided by the root",
    ),
    ("by-hand", "divided by d"): (lambda rows: attend(rows, divisor=lambda d: d), "wrong-d-in-scale", "not by it"),
    ("by-hand", "by column"): (by_column, "softmax-over-queries", "by column; they should by row."),
    ("by-hand", "no sum"): (
        lambda rows: attend(rows, total=lambda weights: 1),
        "weights-not-normalized",
        "For [[1.0, 2.0]] row 0 is [34.313, 68.627]; it should be [1.0, 2.0]. The exponentials are not divided",
    ),
    ("by-hand", "no softmax"): (
        lambda rows: attend(rows, exponential=lambda x: x, total=lambda weights: 1),
        "weights-not-normalized",
        "The scores themselves are no weights.",
    ),
    ("by-hand", "weights"): (
        lambda rows: self_attention(torch.tensor(rows)).weights,
        None,
        "For [[1.0, 2.0]] the shape is (1, 1); it should be (1, 2)",
    ),
    ("by-hand", "weights, where they fit"): (
        lambda rows: attend(rows) if len(rows) == 1 else self_attention(torch.tensor(rows)).weights,
        None,
        "it gives the weights; average the rows with them.",
    ),
    ("by-hand", "the rows"): (lambda rows: rows, None, "For [[1.0, 0.0], [0.0, 2.0]] row 0 is [1.0, 0.0]"),
    ("by-hand", "words"): (lambda rows: "no", None, "It is str; give rows of numbers"),
    ("pull-to-trade", "crew"): ([1.0, 0.0], None, "has 0.924 of the sea and 0.606 of trade. Your word pulls"),
    ("pull-to-trade", "both alike"): (
        [0.5, 0.5],
        None,
        "They are equal: your word must have more of trade than of the sea.",
    ),
    ("pull-to-trade", "three numbers"): ([0.0, 1.0, 1.0], None, "The shape is (3,); give one list of two numbers"),
    ("pull-to-trade", "a large number"): ([0.0, 5.0], None, "[0.0, 5.0] has a number that is not from minus one"),
    ("pull-to-trade", "no number"): ([float("nan"), 1.0], None, "has a number that is not from minus one to one"),
    ("three-lines", "unscaled"): (
        lambda q, k, v: (q @ k.mT).softmax(-1) @ v,
        "missing-scale",
        "For 3 queries and 3 keys it is off by up to ",
    ),
    ("three-lines", "divided by d"): (
        lambda q, k, v: (q @ k.mT / k.size(-1)).softmax(-1) @ v,
        "wrong-d-in-scale",
        "Divide by the root of the number, not by the number.",
    ),
    ("three-lines", "averages queries"): (lambda q, k, v: attention(q, k, q), "wrong-value", "It averages the queries"),
    ("three-lines", "averages keys"): (lambda q, k, v: attention(q, k, k), "wrong-value", "It averages the keys"),
    ("three-lines", "by column"): (
        lambda q, k, v: (q @ k.mT / k.size(-1) ** 0.5).softmax(0) @ v,
        "softmax-over-queries",
        "The weights sum to one by column; they should by row.",
    ),
    ("three-lines", "the keys ask"): (lambda q, k, v: attention(k, q, v), None, "The keys ask, and the queries are"),
    ("three-lines", "weights"): (
        lambda q, k, v: (q @ k.mT / 2).softmax(-1),
        None,
        "For 3 queries and 3 keys the shape is (3, 3); it should be (3, 4).",
    ),
    ("three-lines", "the root of 4"): (
        lambda q, k, v: (q @ k.mT / 2).softmax(-1) @ v,
        None,
        "For 2 queries and 5 keys it is off by up to ",
    ),
}
