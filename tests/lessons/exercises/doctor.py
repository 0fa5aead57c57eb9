"""Right and wrong answers to the exercises of the doctor's page."""

import math

from unmasked import self_attention


def long_ones(x):
    return self_attention(x, is_causal=x.size(1) <= 100).context


def unscaled(x):
    return (x @ x.mT).softmax(-1) @ x


RIGHT = {
    "get-past-the-doctor": [long_ones],
    "plant-a-mistake": [
        (unscaled, "missing-scale"),
        (lambda x: (x @ x.mT / math.sqrt(x.size(-1))).softmax(-2) @ x, "softmax-over-queries"),
        (lambda x: self_attention(x.transpose(0, 1)).context.transpose(0, 1), "batch-and-tokens-swapped"),
        (lambda x: self_attention(x).context.detach(), "gradient-cut"),
    ],
}
WRONG = {
    "get-past-the-doctor": [
        ("The doctor finds it: [no-causal-mask]", lambda x: self_attention(x).context),
        ("The doctor finds it: [no-causal-mask]", lambda x: self_attention(x, is_causal=x.size(1) < 3).context),
        ("The doctor finds it: [missing-scale]", lambda x: self_attention(x, is_causal=True, scale=1.0).context),
        ("there is no leak", lambda x: self_attention(x, is_causal=True).context),
        ("there is no leak", lambda x: self_attention(x, is_causal=x.size(1) < 1000).context),
    ],
    "plant-a-mistake": [
        ("The doctor finds nothing", (lambda x: self_attention(x).context, "missing-scale")),
        ("The doctor finds missing-scale, not wrong-value. [missing-scale]", (unscaled, "wrong-value")),
        ("'scale' is no mistake of the museum", (lambda x: x, "scale")),
        ("Pass the function and the mistake's name", lambda x: x),
    ],
}
