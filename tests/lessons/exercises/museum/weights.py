"""Right and wrong answers to the exercises of museum/weights."""

import copy
import math

import torch
from torch import nn

from ..pytorch.from_scratch import multi_head


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


def copied(attend=multi_head, change=lambda state: {}, **options):
    """Copy a module's weights, change some of them, and attend with them."""

    def made(module):
        state = copy.deepcopy(module.state_dict())
        state |= change(state)
        return lambda x: attend(x, x, x, state, 3, **options)

    return made


def rows(places):
    return lambda state: {name: state[name][places] for name in ("in_proj_weight", "in_proj_bias")}


HEAD_BY_HEAD = torch.arange(36).view(3, 3, 4).transpose(0, 1).flatten()
QUERIES_TWICE = torch.arange(36) % 24


def heads_turned(state):
    return {"out_proj.weight": state["out_proj.weight"].roll(4, dims=1)}


def whole(module):
    module = copy.deepcopy(module)
    return lambda x: module(x, x, x, need_weights=False)[0]


def alias(module):
    return lambda x: multi_head(x, x, x, module.state_dict(), 3)


RIGHT = {
    "weights-that-tell": [every_number, in_place, biases_only],
    "mend-the-class": [copied(), whole],
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
        ("One mistake is left: The biases are left out. [zero-bias-parity]", copied(biases=(0, 0))),
        ("Rows and biases are not packed head by head. [interleaved-qkv]", copied(change=rows(HEAD_BY_HEAD))),
        ("Off by up to 4.40. One mistake is left: The output projection [missing-out-proj]", copied(out=False)),
        ("The queries are averaged, not the values. [wrong-value]", copied(change=rows(QUERIES_TWICE))),
        ("The heads stand in another order. [averaged-weights-parity]", copied(change=heads_turned)),
        ("It was right, until the module that it copied was trained. [aliased-weights]", alias),
        ("For an input (2, 5, 12) it returned NoneType; return a tensor.", lambda module: lambda x: None),
        (" from PyTorch's output, and by more than one mistake.", copied(change=rows(QUERIES_TWICE), biases=(0, 1))),
    ],
}
