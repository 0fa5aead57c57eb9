"""Right and wrong answers to the exercises of museum/weights."""

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn

from unmasked.heads import merge_heads, split_heads


def empty(module):
    module.in_proj_bias = nn.Parameter(torch.zeros(5))


def infinite(module):
    nn.init.constant_(module.out_proj.bias, math.inf)


def every_number(module):
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape)
    return module


def in_place(module):
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.uniform_(-1, 1)


def biases_only(module):
    nn.init.normal_(module.in_proj_bias)
    nn.init.normal_(module.out_proj.bias)


def identity(module):
    biases_only(module)
    nn.init.eye_(module.out_proj.weight)
    with torch.no_grad():
        module.in_proj_weight.copy_(torch.eye(12).repeat(3, 1))


def out_only(module):
    nn.init.normal_(module.in_proj_bias)
    nn.init.zeros_(module.out_proj.bias)


def one_for_all(module):
    in_place(module)
    with torch.no_grad():
        module.in_proj_weight.copy_(module.in_proj_weight[:12].repeat(3, 1))
        module.in_proj_bias.copy_(module.in_proj_bias[:12].repeat(3))


class Copied(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = copy.deepcopy(module)

    def attend(self, q, k, v):
        parts = (split_heads(part, self.module.num_heads) for part in (q, k, v))
        return merge_heads(F.scaled_dot_product_attention(*parts))

    def project(self, x):
        return F.linear(x, self.module.in_proj_weight, self.module.in_proj_bias).chunk(3, -1)

    def forward(self, x):
        return self.module.out_proj(self.attend(*self.project(x)))


class Whole(Copied):
    def forward(self, x):
        return self.module(x, x, x, need_weights=False)[0]


class NoBias(Copied):
    def project(self, x):
        return F.linear(x, self.module.in_proj_weight).chunk(3, -1)


class NoBiases(NoBias):
    def forward(self, x):
        return self.attend(*self.project(x)) @ self.module.out_proj.weight.T


class Turned(Copied):
    def project(self, x):
        weights, biases = self.module.in_proj_weight.chunk(3), self.module.in_proj_bias.chunk(3)
        return [x @ w + b for w, b in zip(weights, biases, strict=True)]


class Interleaved(Copied):
    def project(self, x):
        rows = F.linear(x, self.module.in_proj_weight, self.module.in_proj_bias)
        return [part.flatten(-2) for part in rows.unflatten(-1, (3, 3, -1)).unbind(-2)]


class NoBiasAndQueriesAveraged(NoBias):
    def project(self, x):
        q, k, _ = super().project(x)
        return q, k, q


class Stopped(Copied):
    def forward(self, x):
        return self.attend(*self.project(x))


class QueriesAveraged(Copied):
    def project(self, x):
        q, k, _ = super().project(x)
        return q, k, q


class HeadsTurned(Copied):
    def attend(self, q, k, v):
        return super().attend(q, k, v).roll(-q.size(-1) // 3, dims=-1)


class Alias(Copied):
    def __init__(self, module):
        super().__init__(module)
        self.module = module


RIGHT = {
    "weights-that-tell": [every_number, in_place, biases_only],
    "mend-the-class": [Copied, Whole, lambda module: Copied(module).forward],
}
WRONG = {
    "weights-that-tell": [
        ("this mistake gives the right numbers: The biases are left out. [zero-bias-parity]", lambda module: None),
        ("The bias of the output is left out. [zero-bias-parity]", out_only),
        ("The product is with the transpose: x @ W.T. [weight-not-transposed]", identity),
        ("The queries are averaged, not the values. [wrong-value]", one_for_all),
        ("The shapes of the parameters have changed; fill them where they are.", empty),
        ("The module's output is not finite: fill it with numbers of ordinary size.", infinite),
    ],
    "mend-the-class": [
        ("One mistake is left: The biases of query, key and value are left out. [zero-bias-parity]", NoBias),
        ("One mistake is left: The biases are left out. [zero-bias-parity]", NoBiases),
        ("One mistake is left: The product is with the transpose: x @ W.T. [weight-not-transposed]", Turned),
        ("Rows and biases are not packed head by head. [interleaved-qkv]", Interleaved),
        ("Off by up to 4.40. One mistake is left: The output projection is left out. [missing-out-proj]", Stopped),
        ("One mistake is left: The queries are averaged, not the values. [wrong-value]", QueriesAveraged),
        ("One mistake is left: The heads stand in another order. [averaged-weights-parity]", HeadsTurned),
        ("It was right, until the module that it copied was trained. [aliased-weights]", Alias),
        ("For an input (2, 5, 12) it returned NoneType; return a tensor.", lambda module: lambda x: None),
        (" from PyTorch's output, and by more than one mistake.", NoBiasAndQueriesAveraged),
    ],
}
