r"""The formulas that pages on attention need: each holds, and no mistake in one goes unnoticed."""

import dataclasses
import time

import pytest
import torch
import torch.nn.functional as F

from proofread.formula import Formula, check, survivors


def attention(query, key, value, bias=None, *, causal=False):
    query, key, value = (tensor[None, None] for tensor in (query, key, value))
    mask = None if bias is None else bias[None, None]
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal)[0, 0]


def weights(query, key):
    return attention(query, key, torch.eye(len(key), dtype=key.dtype))


def cosine_table(x):
    return F.cosine_similarity(x[:, None], x[None], dim=-1)


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


def orthogonal(size):
    return torch.linalg.qr(torch.randn(size, size, dtype=torch.float64)).Q


PAGE = {
    name: value for name, value in globals().items() if callable(value) and getattr(value, "__module__", "") == __name__
} | {"torch": torch, "i": 3, "n": 99, "h": 2}

CORPUS = {
    "softmax": (
        r"\operatorname{softmax}(s)_i = \frac{e^{s_i}}{\sum_{j=1}^{n} e^{s_j}}",
        'X = random("n 4"); s = X[:, 0]; softmax = lambda s: weights(s[:, None] * 0 + 1, s[:, None])[0]',
    ),
    "rows sum to one": (r"\sum_{j=1}^{m} a_{ij} = 1", 'Q, K = random("n d", "m d"); a = weights(Q, K)'),
    "weights lie in [0, 1]": (r"a_{ij} \in [0, 1]", 'Q, K = random("n d", "m d"); a = weights(Q, K)'),
    "weighted average": (
        r"o_i = \sum_{j=1}^{m} a_{ij} v_j",
        'Q, K, v = random("n d", "m d", "m c"); a = weights(Q, K); o = attention(Q, K, v)',
    ),
    "scores by entry": (
        r"a_{ij} = \frac{\exp(q_i^\top k_j / \sqrt{d})}{\sum_{l} \exp(q_i^\top k_l / \sqrt{d})}",
        'q, k = random("n d", "m d"); a = weights(q, k)',
    ),
    "Vaswani 2017, Eq. 1": (
        r"\operatorname{Attention}(Q, K, V) = \operatorname{softmax}\left(\frac{QK^\top}{\sqrt{d_k}}\right)V",
        'Q, K, V = random("n d_k", "m d_k", "m d_v"); Attention = attention',
    ),
    "multi-head": (
        r"\begin{aligned} \operatorname{MultiHead}(X)"
        r"&= \operatorname{Concat}(\mathrm{head}_1, \dots, \mathrm{head}_h) W^O \\"
        r"\mathrm{head}_i &= \operatorname{Attention}(X W_i^Q, X W_i^K, X W_i^V) \end{aligned}",
        'X, W_Q, W_K, W_V, W_O = random("n d", "h d d_k", "h d d_k", "h d d_v", "h*d_v d"); Attention = attention; '
        "head = [attention(X @ q, X @ k, X @ v) for q, k, v in zip(W_Q, W_K, W_V)]; "
        "MultiHead = lambda X: multi_head(X, W_Q, W_K, W_V, W_O)",
    ),
    "cosine similarity": (
        r"\operatorname{cosim}(x, y) = \frac{x \cdot y}{\lVert x \rVert \, \lVert y \rVert}",
        'x, y = random("d", "d"); cosim = lambda x, y: cosine_table(torch.stack([x, y]))[0, 1]',
    ),
    "cosine-weighted context": (
        r"c_i = \sum_{j=1}^{n} \frac{\langle x_i, x_j \rangle}{\|x_i\| \|x_j\|} x_j",
        'x = random("n d"); c = cosine_table(x) @ x',
    ),
    "variance of a dot product": (
        r"\operatorname{Var}(q k^\top) \approx d_k",
        "d_k = 5; q, k = torch.randn(2, 40000, 1, d_k, dtype=torch.float64); Var = variance",
    ),
    "bypass": (
        r"\mathrm{MHA}(X) = \operatorname{softmax}\Bigl(\tfrac{X X^\top}{\sqrt d}\Bigr) X",
        'X = random("n d"); W = torch.eye(d).double(); MHA = lambda X: multi_head(X, W[None], W[None], W[None], W)',
    ),
    "a shared rotation cancels": (
        r"X W (X W)^\top = X X^\top, \quad W^\top W = I",
        'X = random("n 5"); W = orthogonal(5); I = torch.eye(5)',
    ),
    "slices of heads": (
        r"o_h = \operatorname{softmax}\left(\frac{X_h X_h^\top}{\sqrt{d_h}}\right) X_h",
        'X = random("H n d_h"); o = [attention(x, x, x) for x in X]',
    ),
    "projection": (
        r"y_i = W x_i + b, \qquad y = x W^\top + b",
        'x, W, b = random("n d", "m d", "m"); y = linear(x, W, b)',
    ),
    "appended key": (
        r"\operatorname{Attention}(Q, [K; b_k^\top], [V; b_v^\top]) "
        r"= \operatorname{softmax}\left(\frac{Q [K; b_k^\top]^\top}{\sqrt{d}}\right) [V; b_v^\top]",
        'Q, K, V, b_k, b_v = random("n d", "m d", "m c", "d", "c"); Attention = attention',
    ),
    "a shift of all keys": (
        r"\operatorname{weights}(Q, K + \mathbf{1} c^\top) = \operatorname{weights}(Q, K)",
        'Q, K, c = random("n d", "m d", "d"); one = torch.ones(K.shape[0], dtype=K.dtype)',
    ),
    "causal mask": (
        r"M_{ij} = \begin{cases} 0 & \text{if } j \le i \\ -\infty & \text{otherwise} \end{cases},"
        r"\quad i = 1, \dots, n",
        "n = 5; M = causal_bias(n)",
    ),
    "masked attention": (
        r"O = \operatorname{softmax}\left(\frac{QK^\top}{\sqrt{d}} + M\right)V",
        'Q, K, V = random("n d", "n d", "n c"); M = causal_bias(n); O = attention(Q, K, V, causal=True)',
    ),
    "causal average": (
        r"o_i = \frac{\sum_{j \le i} e^{s_{ij}} v_j}{\sum_{j \le i} e^{s_{ij}}}",
        'q, k, v = random("n d", "n d", "n c"); s = q @ k.mT / k.shape[1] ** 0.5; o = attention(q, k, v, causal=True)',
    ),
    "gradient of the scores": (
        r"\frac{\partial L}{\partial s_{ij}} = a_{ij}\left(g_{ij} - \sum_{l=1}^{m} a_{il} g_{il}\right)",
        's, g = random("n m", "n m"); s = s.requires_grad_(); a = row_softmax(s); L = (a * g).sum()',
    ),
    "gradient by a function": (
        r"dS = A \odot (dA - \operatorname{rowsum}(A \odot dA) \mathbf{1}^\top), \quad dA = dO V^\top",
        'Q, K, V, dO = random("n d", "m d", "m c", "n c"); A = row_softmax(Q @ K.mT); dA = dO @ V.mT; '
        "dS = loss_gradient(Q, K, V, dO); rowsum = lambda x: x.sum(-1); one = torch.ones(K.shape[0], dtype=K.dtype)",
    ),
    "jacobian of softmax": (
        r"\frac{\partial a_i}{\partial s_j} = a_i (\delta_{ij} - a_j)",
        's = random("n").requires_grad_(); a = row_softmax(s); delta = torch.eye(n)',
    ),
    "online softmax": (
        r"\begin{aligned} m_t &= \max(m_{t-1}, s_t) \\"
        r"\ell_t &= \ell_{t-1} \, e^{m_{t-1} - m_t} + e^{s_t - m_t} \end{aligned}",
        's = random("n", "11")[1]; m, ell = online(s)',
    ),
    "safe softmax": (
        r"\operatorname{f}(s)_i = \frac{e^{s_i - m}}{\sum_j e^{s_j - m}}, \quad m = \max_j s_j",
        's = random("n"); m = online(s)[0][-1]; f = row_softmax',
    ),
    "rotation": (
        r"R_m = \begin{pmatrix} \cos m\theta & -\sin m\theta \\ \sin m\theta & \cos m\theta \end{pmatrix}",
        "theta = 0.7; R = [rotation(0.7 * m) for m in (1, 2, 3)]",
    ),
    "rope by pairs": (
        r"\begin{pmatrix} y_{2i-1} \\ y_{2i} \end{pmatrix} = \begin{pmatrix} \cos m\theta_i & -\sin m\theta_i \\"
        r"\sin m\theta_i & \cos m\theta_i \end{pmatrix} \begin{pmatrix} x_{2i-1} \\ x_{2i} \end{pmatrix}",
        'x, theta = random("2*k", "k"); m = 3; y = rope(x, m, theta)',
    ),
    "rope depends on the offset": (
        r"\operatorname{R}(q, m)^\top \operatorname{R}(k, n) = \operatorname{R}(q, m - n)^\top k,"
        r"\quad \lVert \operatorname{R}(q, m) \rVert = \lVert q \rVert",
        'q, k, theta = random("2*p", "2*p", "p"); m = 7; n = 3; R = lambda x, m: rope(x, m, theta)',
    ),
    "sinusoids": (
        r"\mathit{PE}_{p, 2i} = \sin\left(\frac{p}{10000^{2i/d}}\right), \quad"
        r"\mathit{PE}_{p, 2i+1} = \cos\left(\frac{p}{10000^{2i/d}}\right), \quad p = 0, \dots, n - 1",
        "n = 7; d = 6; PE = sinusoids(n, d)",
    ),
    "ALiBi": (
        r"b_{hij} = -2^{-8h/H} \, |i - j|, \qquad m_h = 2^{-8h/H}",
        "H = 4; m = slopes(H); b = alibi(H, 5)",
    ),
    "bytes of a cache": (
        r"B = 2 \cdot b \cdot L \cdot n \cdot h_{\text{kv}} \cdot d_{\text{head}}",
        "b, L, n, h_kv, d_head = 2, 3, 11, 4, 8; B = cache_bytes(L, n, h_kv, d_head)",
    ),
    "grouped heads": (
        r"o_i = \operatorname{Attention}(q_i, k_{\lceil i / g \rceil}, v_{\lceil i / g \rceil})",
        'q, k, v = random("6 n d", "3 m d", "3 m c"); g = 2; Attention = attention; o = grouped(q, k, v)',
    ),
    "cached step": (
        r"o_t = \operatorname{softmax}\left(\frac{q_t^\top K_{1:t}^\top}{\sqrt{d}}\right) V_{1:t}",
        'q, K, V = random("n d", "n d", "n c"); o = [row[None] for row in attention(q, K, V, causal=True)]',
    ),
    "shapes": (
        r"W_Q, W_K \in \mathbb{R}^{d \times d_k}, \quad Q = X W_Q \in \mathbb{R}^{n \times d_k}",
        'X, W_Q, W_K = random("n d", "d d_k", "d d_k"); Q = linear(X, W_Q.mT, 0)',
    ),
    "Cauchy-Schwarz": (r"|x \cdot y| \le \lVert x \rVert \lVert y \rVert", 'x, y = random("d", "d")'),
    "soft cap": (r"\operatorname{cap}(x) = c \tanh(x / c)", 'x, c = random("n", ""); cap = lambda x: softcap(x, c)'),
    "window": (
        r"A_{ij} = \begin{cases} 1 & \text{if } i - w < j \le i \\ 0 & \text{otherwise} \end{cases}",
        "w = 2; A = window(6, w)",
    ),
    "entropy": (r"H = -\sum_{j=1}^{n} p_j \log p_j", 'p = row_softmax(random("n")); H = entropy(p)'),
    "typed": (r"\theta \approx 0.33", "theta = third(1)"),
}

PAGE |= {
    "variance": lambda x: x.var(),
    "linear": lambda x, w, b: x @ w.mT + b,
    "causal_bias": lambda n: torch.full((n, n), -torch.inf).triu(1),
    "row_softmax": lambda x: x.softmax(-1),
    "rotation": lambda a: (
        torch.tensor([[1, 0], [0, 1]]) * torch.tensor(a).cos() + torch.tensor([[0, -1], [1, 0]]) * torch.tensor(a).sin()
    ),
    "alibi": lambda h, n: -slopes(h)[:, None, None] * (torch.arange(n)[:, None] - torch.arange(n)).abs(),
    "cache_bytes": lambda layers, n, heads, d: 2 * torch.zeros(layers, n, heads, d, dtype=torch.float16).nbytes,
    "grouped": lambda q, k, v: F.scaled_dot_product_attention(q[None], k[None], v[None], enable_gqa=True)[0],
    "softcap": lambda x, c: c * (x / c).tanh(),
    "window": lambda n, w: torch.ones(n, n).tril().triu(1 - w),
    "entropy": lambda p: torch.distributions.Categorical(p).entropy(),
    "third": lambda x: x / 3,
}


EQUIVALENT = {
    "a shared rotation cancels": (r"X W (X W)^\top = X X^\top, \quad W W^\top = I",),
    "a shift of all keys": (r"\operatorname{weights}(Q, K - \mathbf{1} c^\top) = \operatorname{weights}(Q, K)",),
    "online softmax": (
        CORPUS["online softmax"][0].replace("s_t) ", "{m}_t) "),
        CORPUS["online softmax"][0].replace("m_{t-1}, s", "m_{t}, s"),
    ),
}


def formula(name):
    latex, where = CORPUS[name]
    return Formula(latex, where=where, equivalent=EQUIVALENT.get(name, ()))


@pytest.mark.parametrize("name", CORPUS)
def test_the_formula_holds(name):
    assert check(formula(name), PAGE) == []


@pytest.mark.parametrize("name", CORPUS)
def test_no_mistake_in_the_formula_goes_unnoticed(name):
    start = time.process_time()
    assert survivors(formula(name), PAGE) == []
    assert time.process_time() - start < 3


@pytest.mark.parametrize(
    ("name", "right", "wrong", "error"),
    [
        ("Vaswani 2017, Eq. 1", r"K^\top", "K", "`QK`: shapes (3, 5) and (4, 5) do not multiply"),
        ("Vaswani 2017, Eq. 1", r"\sqrt{d_k}", "d_k", "does not hold"),
        ("Vaswani 2017, Eq. 1", r"\sqrt{d_k}", r"\sqrt{d_v}", "does not hold"),
        ("Vaswani 2017, Eq. 1", r"\right)V", r"\right)K", "is a tensor of shape (3, 7) ("),
        ("weighted average", "a_{ij}", "a_{ji}", "i runs over 3 values in `o_i`, but over 4 in `a_{ji}`"),
        ("rotation", r"& -\sin", r"& \sin", "does not hold for m = 1"),
        ("softmax", "j=1", "j=2", "does not hold for i = 1"),
        ("ALiBi", "= -2", "= 2", "for h = 1, i = 1, j = 2: b_{hij} is -0.25, 2^{-8h/H} \\, |i - j| is 0.25"),
        ("online softmax", "m_{t-1} - m_t", "m_t - m_{t-1}", "\\ell_t is "),
        ("causal mask", r"j \le i", "j < i", "for i = 1, j = 1: M_{ij} is 0, "),
        ("bytes of a cache", r"2 \cdot", "", "does not hold: B is "),
        ("multi-head", r"\mathrm{head}_h", r"\mathrm{head}_{h-1}", "do not multiply"),
        ("window", "<", r"\le", "does not hold for i = 3, j = 1: A_{ij} is 0, "),
    ],
)
def test_a_planted_mistake_has_its_own_message(name, right, wrong, error):
    planted = formula(name).latex.replace(right, wrong, 1)
    assert planted != formula(name).latex
    assert error in check(dataclasses.replace(formula(name), latex=planted), PAGE)[0]
