"""Right and wrong answers to the exercises of pytorch/bypass."""

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

RIGHT = {
    "undo-the-root": [
        bypassed(query=6**0.5),
        bypassed(key=6**0.5, batch_first=True),
        bypassed(query=6**0.25, key=6**0.25, cls=MultiheadAttention),
        bypassed(50, query=50**0.5).float(),
    ],
    "plain-average": [bypassed(query=0.0), bypassed(key=0.0, batch_first=True)],
    "hidden-matrix": [
        bypassed(value=MATRIX, output=MATRIX.inverse()),
        bypassed(value=TURN, output=TURN.mT, batch_first=True),
        bypassed(value=MATRIX, output=MATRIX.inverse()).float(),
    ],
}
WRONG = {
    "undo-the-root": [
        ("Its weights are off by up to 0.26. They are what a bypassed module gives.", bypassed()),
        ("both multiplied by the root; one is enough.", bypassed(query=6**0.5, key=6**0.5)),
        ("divided by the root; multiply it.", bypassed(query=6**-0.5)),
        ("Its weights are off by up to 0.23.", bypassed(query=9.0)),
        ("but the output is off by up to 2.31.", bypassed(query=6**0.5, value=2 * torch.eye(6))),
        ("It has 2 heads [bypass-conditions]", nn.MultiheadAttention(6, 2)),
        ("It is Tensor; give the nn.MultiheadAttention", MATRIX),
    ],
    "plain-average": [
        ("For 5 tokens each weight is between 0.00 and 0.91; it should be between 0.20 and 0.20.", bypassed()),
        ("The weights are equal, but the output is off by up to 1.00.", with_bias(bypassed(query=0.0))),
    ],
    "hidden-matrix": [
        ("The value's matrix is the identity, or near it: put a random matrix there.", bypassed()),
        ("out_proj is still the identity", bypassed(value=MATRIX)),
        ("undoes an orthogonal matrix alone.", bypassed(value=MATRIX, output=MATRIX.mT)),
        ("but the output is off by up to", bypassed(value=MATRIX, output=MATRIX)),
        ("but the weights are off by up", bypassed(query=2.0, value=MATRIX, output=MATRIX.inverse())),
    ],
}
