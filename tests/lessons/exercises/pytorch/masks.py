"""Right and wrong answers to the exercises of pytorch/masks."""

import torch

from unmasked import masks

inf = torch.inf


def _buffer(tokens):
    return torch.tensor([[key <= query for key in range(tokens)] for query in range(tokens)])


def _filled(scores, allowed):
    lowest = torch.finfo(scores.dtype).min
    return scores.masked_fill(~allowed, lowest).softmax(-1).masked_fill(~allowed, 0.0)


def _unshifted(scores, allowed):
    exponentials = scores.exp() * allowed
    return exponentials / exponentials.sum(-1, keepdim=True).clamp(min=1e-12)


RIGHT = {
    "causal-mask": [
        _buffer,
        lambda n: torch.ones(1, 1, n, n).tril() > 0,
        lambda n: torch.nn.Transformer.generate_square_subsequent_mask(n) == 0,
    ],
    "padding-mask": [
        lambda lengths, keys: torch.arange(keys) < lengths[:, None, None, None],
        lambda lengths, keys: (torch.arange(keys) < lengths[:, None])[:, None, None].expand(-1, 5, 6, -1),
    ],
    "masked-softmax": [
        _filled,
        lambda scores, allowed: _filled(scores.double(), allowed),
        lambda scores, allowed: _filled(scores.clone().requires_grad_(), allowed),
    ],
}
WRONG = {
    "causal-mask": [
        ("True must say what a query may see, not what it may not. [mask-polarity]", lambda n: ~masks.causal(n)),
        ("is [[1, 1], [0, 1]]; it should be [[1, 0], [1, 1]] [mask-polarity]", lambda n: masks.causal(n).mT),
        ("query may see nothing; each sees at least itself. [fully-masked-row]", lambda n: masks.causal(n).tril(-1)),
        ("A query sees a key that comes later. [no-causal-mask]", lambda n: torch.ones(n, n, dtype=torch.bool)),
        ("torch.float32; return torch.bool [float-mask-of-ones]", lambda n: torch.ones(n, n).tril()),
        ("torch.int64; return torch.bool [float-mask-of-ones]", lambda n: torch.ones(n, n).tril().long()),
        ("an additive mask: compare it with 0", lambda n: masks.additive_from_allowed(masks.causal(n))),
        ("[0, 1, 1]]; it should be [[1, 0, 0], [1, 1, 0], [1, 1, 1]].", lambda n: masks.sliding_window(n, window=2)),
        ("For 2 tokens it returned NoneType; return a tensor.", lambda n: None),
        ("the shape of the mask is (4, 2, 2); it should be (2, 2)", lambda n: masks.causal(n).expand(4, n, n)),
        ("each sees at least itself. [fully-masked-row]", lambda n: masks.causal(n) if n > 1 else ~masks.causal(n)),
    ],
    "padding-mask": [
        ("True marks the padding [mask-polarity]", lambda lengths, keys: ~masks.padding(lengths, keys)),
        ("at the end, not in front", lambda lengths, keys: masks.padding(lengths, keys).flip(-1)),
        (
            "Everybody sees the padding. [padding-ignored]",
            lambda lengths, keys: torch.ones(len(lengths), 1, 1, keys, dtype=torch.bool),
        ),
        ("For the lengths 2 and 1 and 3 keys the shape is (2, 3).", lambda lengths, keys: torch.ones(2, 3).bool()),
        ("is (2, 1, 1, 2). It does not broadcast", lambda lengths, keys: masks.padding(lengths)),
        ("[0, 0, 0]]; it should be [[1, 1, 0], [1, 0, 0]].", lambda lengths, keys: masks.padding(lengths - 1, keys)),
        ("it should be [[1, 1, 1], [0, 0, 0]].", lambda lengths, keys: masks.padding(lengths.clamp(min=1), keys)),
        (
            "it should be [[1, 1, 0], [1, 0, 0]]",
            lambda lengths, keys: masks.padding(lengths, keys) & torch.ones(6, keys).tril().bool(),
        ),
        (
            "who asks does not matter",
            lambda lengths, keys: (
                masks.padding(lengths, keys) & (torch.arange(6)[:, None] < lengths[:, None, None, None])
            ),
        ),
        ("return torch.bool [float-mask-of-ones]", lambda lengths, keys: masks.padding(lengths, keys).float()),
    ],
    "masked-softmax": [
        ("Right, but large scores give NaN: subtract each row's largest first, as softmax does.", _unshifted),
        ("is NaN; it should be zeros [fully-masked-row]", lambda s, a: s.masked_fill(~a, -inf).softmax(-1)),
        ("has weights; they should be 0. [fully-masked-row]", lambda s, a: s.masked_fill(~a, -1e9).softmax(-1)),
        ("A row does not sum to 1: mask before the softmax. [mask-after-softmax]", lambda s, a: s.softmax(-1) * a),
        ("the mask was added to the scores [boolean-mask-added]", lambda s, a: (s + a).softmax(-1)),
        ("True says what may be seen [mask-polarity]", lambda s, a: s.masked_fill(a, -inf).softmax(-1)),
        ("The weights are off by up to 1.00.", lambda s, a: _filled(s, ~a)),
        ("were changed [input-overwritten]", lambda s, a: s.masked_fill_(~a, -inf).softmax(-1)),
    ],
}
