r"""The formulas that pages on attention need: each holds, and no mistake in one goes unnoticed."""

import dataclasses
import math
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from proofread.formulas import check, find, survivors


def attention(query, key, value, bias=None, *, causal=False):
    query, key, value = (tensor[None, None] for tensor in (query, key, value))
    mask = None if bias is None else bias[None, None]
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal)[0, 0]


def multi_head(x, w_q, w_k, w_v, w_o):
    heads = [attention(x @ q, x @ k, x @ v) for q, k, v in zip(w_q, w_k, w_v, strict=True)]
    return torch.cat(heads, -1) @ w_o


def rope(x, position, theta):
    turned = torch.polar(torch.ones_like(theta), position * theta) * torch.view_as_complex(x.reshape(-1, 2))
    return torch.view_as_real(turned).flatten()


def sinusoids(positions, width):
    table = torch.arange(positions, dtype=torch.float64)[:, None] / 10000 ** (
        torch.arange(0, width, 2, dtype=torch.float64) / width
    )
    return torch.stack([table.sin(), table.cos()], -1).flatten(1)


def slopes(heads):
    return torch.tensor([2.0 ** (-8 * head / heads) for head in range(1, heads + 1)], dtype=torch.float64)


def online(scores):
    largest = scores.cummax(0).values
    return largest, torch.stack([(scores[: i + 1] - largest[i]).exp().sum() for i in range(len(scores))])


def loss_gradient(q, k, v, g):
    scores = (q @ k.mT).requires_grad_()
    (gradient,) = torch.autograd.grad((scores.softmax(-1) @ v * g).sum(), scores)
    return gradient


def logsumexp(s):
    return s.logsumexp(-1)


def mean(x):
    return x.mean()


def layer_norm(x):
    return F.layer_norm(x, x.shape[-1:])


def scores(q, k):
    return q @ k.mT / q.shape[-1] ** 0.5


def jacobian(f, s):
    return torch.autograd.functional.jacobian(f, s)


def feature(x):
    return F.elu(x) + 1


def states(k, v):
    f = feature(k)
    return torch.einsum("td,tc->tdc", f, v).cumsum(0), f.cumsum(0)


def linear_attention(q, k, v):
    a = (feature(q) @ feature(k).mT).tril()
    return a / a.sum(-1, keepdim=True) @ v


def shuffled(x, perm):
    y = torch.empty_like(x)
    y[[p - 1 for p in perm]] = x
    return y


def rot(a):
    a = torch.as_tensor(a, dtype=torch.float64)
    return torch.stack([torch.stack([a.cos(), -a.sin()]), torch.stack([a.sin(), a.cos()])])


def blocks(theta, m):
    return torch.block_diag(*[rot(t * m) for t in theta])


def rotate_half(x):
    a, b = x[: len(x) // 2], x[len(x) // 2 :]
    return torch.cat([-b, a])


def relative(q, k, b):
    n = len(q)
    i = torch.arange(n)
    return q @ k.mT + b[i[None] - i[:, None] + n - 1]


def relu(x):
    return F.relu(x)


def block(x):
    y = layer_norm(x)
    return x + F.scaled_dot_product_attention(y[None], y[None], y[None])[0]


def online_blocks(s):
    tops = s.amax(1).cummax(0).values
    return tops, torch.stack([(s[: b + 1] - tops[b]).exp().sum() for b in range(len(s))])


def shaw(x, w_q, w_k, r):
    n, (q, k) = len(x), (x @ w_q, x @ w_k)
    keys = k[None] + r[torch.arange(n)[None] - torch.arange(n)[:, None] + n - 1]
    return torch.einsum("id,ijd->ij", q, keys) / q.shape[1] ** 0.5


def linear(x, w, b):
    return x @ w.mT + b


PAGE = {name: value for name, value in globals().items() if getattr(value, "__module__", "") == __name__}
PAGE |= {
    "weights": lambda query, key: attention(query, key, torch.eye(len(key), dtype=key.dtype)),
    "cosine_table": lambda x: F.cosine_similarity(x[:, None], x[None], dim=-1),
    "orthogonal": lambda size: torch.linalg.qr(torch.randn(size, size, dtype=torch.float64)).Q,
    "pairs": lambda n: n * (n + 1) // 2,
    "population_std": lambda x: x.std(correction=0),
    "rms": lambda x: x.square().mean().sqrt(),
    "angle": lambda q, k: torch.acos(F.cosine_similarity(q, k, dim=0)).item(),
    "sigmoid": lambda x: torch.sigmoid(torch.as_tensor(x, dtype=torch.float64)),
    "online_output": lambda s, v: torch.stack([s[: t + 1].softmax(0) @ v[: t + 1] for t in range(len(s))]),
    "identity_of": lambda x: x.clone(),
    "merge": lambda o: o.transpose(-3, -2).flatten(-2),
    "permutation": lambda n: torch.eye(n).double().roll(1, 0),
    "turns": lambda theta, n: [blocks(theta, m) for m in range(1, n + 1)],
    "with_sink": lambda s, b: torch.cat([s, torch.full((len(s), 1), b).double()], 1).softmax(-1)[:, :-1],
    "top": lambda s: s.argmax(-1) + 1,
    "xavier": lambda a, b: math.sqrt(6 / (a + b)),
    "cosine_scores": lambda q, k, t: t * F.cosine_similarity(q[:, None], k[None], dim=-1),
    "triangle": lambda n: n * (n + 1) / 2,
    "rollout": lambda a: torch.linalg.multi_dot(list(a)),
    "nll": lambda z, y: F.cross_entropy(z, torch.tensor(y - 1)),
    "ffn": lambda x, a, b, c, d: F.linear(F.linear(x, a.mT, b).relu(), c.mT, d),
    "pair_sum": lambda x: (x.sum() ** 2 - x.square().sum()) / 2,
    "expected": lambda values: values[0] * (1 - values[2]) + values[1] * values[2],
    "causal_bias": lambda n: torch.full((n, n), -torch.inf).triu(1),
    "variance": lambda x: x.var(),
    "row_softmax": lambda x: x.softmax(-1),
    "alibi": lambda h, n: -slopes(h)[:, None, None] * (torch.arange(n)[:, None] - torch.arange(n)).abs(),
    "cache_bytes": lambda layers, n, heads, d: 2 * torch.zeros(layers, n, heads, d, dtype=torch.float16).nbytes,
    "softcap": lambda x, c: c * (x / c).tanh(),
    "window": lambda n, w: torch.ones(n, n).tril().triu(1 - w),
    "entropy": lambda p: torch.distributions.Categorical(p).entropy(),
}
PAGE |= {"torch": torch, "F": F, "i": 3, "n": 99, "h": 2}
SECTIONS = re.findall(
    r"^## ([^\n]+)\n\n(.+?)(?=^## |\Z)", (Path(__file__).parent / "formulas.md").read_text(), re.M | re.S
)
CORPUS = {name: formula for name, text in SECTIONS for formula in find(text)}


@pytest.mark.parametrize("name", CORPUS)
def test_the_formula_holds(name):
    assert check(CORPUS[name], PAGE) == []


AS_TRUE = {  # as their formula: no values could tell them from it
    "a shared rotation cancels": {r"X W (X W)^\top = X X^\top, \quad W W^\top = I"},
    "a shift of all keys": {r"\operatorname{weights}(Q, K - \mathbf{1} c^\top) = \operatorname{weights}(Q, K)"},
    "shift": {
        r"\operatorname{softmax}(s - c \mathbf{1}) = \operatorname{softmax}(s)",
        r"\operatorname{softmax}(s + \mathbf{1}) = \operatorname{softmax}(s)",
        r"\operatorname{softmax}(s + c) = \operatorname{softmax}(s)",
    },
    "rope norm": {
        r"\lVert q R_m \rVert = \lVert q \rVert",
        r"\lVert {R^\top}_m q \rVert = \lVert q \rVert",
    },
    "equivariance op": {r"\operatorname{SA}(P X) = P \operatorname{SA}(X), \quad P P^\top = I"},
}


@pytest.mark.parametrize("name", CORPUS)
def test_no_mistake_in_the_formula_goes_unnoticed(name):
    assert {mutant.latex for mutant in survivors(CORPUS[name], PAGE)} == AS_TRUE.get(name, set())


@pytest.mark.parametrize(
    ("name", "right", "wrong", "error"),
    [
        ("Vaswani 2017, Eq. 1", r"K^\top", "K", "`QK`: shapes (3, 5) and (4, 5) do not multiply"),
        ("Vaswani 2017, Eq. 1", r"\sqrt{d_k}", "d_k", "does not hold"),
        ("Vaswani 2017, Eq. 1", r"\sqrt{d_k}", r"\sqrt{d_v}", "does not hold"),
        ("Vaswani 2017, Eq. 1", r"\right)V", r"\right)K", "is an array of shape (3, 7) ("),
        ("weighted average", "a_{ij}", "a_{ji}", "i runs over 3 values in `o_i`, but over 4 in `a_{ji}`"),
        ("softmax", "j=1", "j=2", "does not hold for i = 1"),
        ("ALiBi", "= -2", "= 2", "for h = 1, i = 1, j = 2: b_{hij} is -0.25, 2^{-8h/H} \\, |i - j| is 0.25"),
        ("online softmax", "m_{t-1} - m_t", "m_t - m_{t-1}", "\\ell_t is "),
        ("bytes of a cache", r"2 \cdot", "", "does not hold: B is "),
        ("iverson", r"j \le i", r"j < i", "for i = 1, j = 1: A_{ij} is 1, "),
        ("multi-head", r"\mathrm{head}_h", r"\mathrm{head}_{h-1}", "do not multiply"),
        ("head index", "h d_k + j", "j H + h", "does not hold for i = 0, j = 0, h = 1"),
        ("online out", r"\ell_{t-1} e^{m_{t-1} - m_t}", r"\ell_{t-1}", "does not hold for t = 3"),
        ("dQ", r"S} K", r"S} Q", "do not multiply"),
        ("chain rule", r"A^\top", "A", "do not multiply"),
        ("logsumexp bounds", r"+ \log n", r"- \log n", "does not hold"),
        ("permuted", r"Y_{\pi(i)} = X_i", r"Y_i = X_{\pi(i)}", "does not hold for i = 1"),
        ("add bias kv", "m+1", "m", "does not hold for i = 1"),
    ],
)
def test_a_planted_mistake_has_its_own_message(name, right, wrong, error):
    planted = CORPUS[name].latex.replace(right, wrong, 1)
    assert planted != CORPUS[name].latex
    assert error in check(dataclasses.replace(CORPUS[name], latex=planted), PAGE)[0]
