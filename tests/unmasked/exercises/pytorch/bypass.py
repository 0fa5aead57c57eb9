"""The exercises on the bypass accept what is right in any way, and say what is wrong with what is not."""

import torch
from torch import nn

from unmasked import MultiheadAttention, bypass_


def bypassed(d=6, *, query=1.0, key=1.0, value=None, output=None, cls=nn.MultiheadAttention, **options):
    """A bypassed module, whose matrices are multiplied by numbers or replaced."""
    module = bypass_(cls(d, 1, dtype=torch.float64, **options))
    module.in_proj_weight[:d] *= query
    module.in_proj_weight[d : 2 * d] *= key
    if value is not None:
        module.in_proj_weight[2 * d :] = value
    if output is not None:
        module.out_proj.weight.copy_(output)
    return module


def with_bias(module):
    module.in_proj_bias[-1] = 1.0
    return module


MATRIX = torch.randn(6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
TURN = torch.linalg.qr(MATRIX).Q

RIGHT = [
    ("undo-the-root", bypassed(query=6**0.5)),
    ("undo-the-root", bypassed(key=6**0.5, batch_first=True)),
    ("undo-the-root", bypassed(query=6**0.25, key=6**0.25, cls=MultiheadAttention)),
    ("undo-the-root", bypassed(50, query=50**0.5).float()),
    ("plain-average", bypassed(query=0.0)),
    ("plain-average", bypassed(key=0.0, batch_first=True)),
    ("hidden-matrix", bypassed(value=MATRIX, output=MATRIX.inverse())),
    ("hidden-matrix", bypassed(value=TURN, output=TURN.mT, batch_first=True)),
    ("hidden-matrix", bypassed(value=MATRIX, output=MATRIX.inverse()).float()),
]
WRONG = {
    ("undo-the-root", "nothing done"): (bypassed(), None, "They are what a bypassed module gives."),
    ("undo-the-root", "both"): (
        bypassed(query=6**0.5, key=6**0.5),
        None,
        "both multiplied by the root; one is enough.",
    ),
    ("undo-the-root", "divided"): (bypassed(query=6**-0.5), None, "divided by the root; multiply it."),
    ("undo-the-root", "by d"): (bypassed(query=9.0), None, "Its weights are off by up to "),
    ("undo-the-root", "the value too"): (
        bypassed(query=6**0.5, value=2 * torch.eye(6)),
        None,
        "The weights are right, the output is off by up to ",
    ),
    ("undo-the-root", "two heads"): (nn.MultiheadAttention(6, 2), "bypass-conditions", "It has 2 heads"),
    ("undo-the-root", "a tensor"): (MATRIX, None, "It is Tensor; give the nn.MultiheadAttention"),
    ("plain-average", "nothing done"): (bypassed(), None, "for 5 tokens each should be 0.20."),
    ("plain-average", "a bias"): (
        with_bias(bypassed(query=0.0)),
        None,
        "The weights are equal, the output is off by up to 1.0",
    ),
    ("hidden-matrix", "nothing done"): (bypassed(), None, "put a random matrix there."),
    ("hidden-matrix", "not repaired"): (bypassed(value=MATRIX), None, "out_proj is still the identity"),
    ("hidden-matrix", "the transpose"): (
        bypassed(value=MATRIX, output=MATRIX.mT),
        None,
        "undoes an orthogonal matrix alone.",
    ),
    ("hidden-matrix", "another"): (bypassed(value=MATRIX, output=MATRIX), None, "but the output is off by up to "),
    ("hidden-matrix", "the query too"): (
        bypassed(query=2.0, value=MATRIX, output=MATRIX.inverse()),
        None,
        "The value's matrix is hidden, but the weights are off by up to ",
    ),
}
