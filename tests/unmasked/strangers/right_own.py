"""Correct modules whose weights no softmax of PyTorch makes, or whose weights need not sum to one."""

import math
from functools import partial

import torch
import torch.nn.functional as F
from cases import Case, seeded
from torch import nn

CASES = []


def case(name, build, call, kind, note):
    CASES.append(Case(name, seeded(11, build), call, kind, note))


def sparsemax(s):
    z = s.sort(-1, descending=True).values
    k = torch.arange(1, s.size(-1) + 1, device=s.device, dtype=s.dtype)
    sums = z.cumsum(-1)
    count = (1 + k * z > sums).sum(-1, keepdim=True)
    tau = (sums.gather(-1, count - 1) - 1) / count
    return (s - tau).clamp(min=0)


class Weighed(nn.Module):
    """One function from scores to weights."""

    def __init__(self, weigh, dim=24, heads=3, causal=False):
        super().__init__()
        self.weigh, self.heads, self.causal = weigh, heads, causal
        self.to_q, self.to_kv, self.to_out = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q = self.to_q(x).view(b, n, self.heads, -1).transpose(1, 2)
        k, v = self.to_kv(x).view(b, n, 2, self.heads, -1).permute(2, 0, 3, 1, 4)
        s = q @ k.mT / math.sqrt(q.size(-1))
        if self.causal:
            s = s.masked_fill(torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1), -torch.inf)
        return self.to_out((self.weigh(s) @ v).transpose(1, 2).reshape(b, n, d))


def one_more(s):
    m = s.amax(-1, keepdim=True).clamp(min=0)
    e = torch.exp(s - m)
    return e / (torch.exp(-m) + e.sum(-1, keepdim=True))


def kept_apart(s):
    m = s.amax(-1, keepdim=True)
    e = torch.exp(s - m)
    total = torch.zeros_like(m)
    for part in e.split(2, -1):
        total = total + part.sum(-1, keepdim=True)
    return e / total.clamp(min=1e-20)


_open = dict(embed_dim=24, num_heads=3, causal=False)
for _name, _weigh, _causal, _note in (
    ("sparsemax", sparsemax, False, "Sparsemax, rows sum to one."),
    (
        "sigmoid-with-bias",
        lambda s: torch.sigmoid(s - math.log(s.size(-1))),
        False,
        "Sigmoid attention, with its bias.",
    ),
    ("relu-by-length", lambda s: F.relu(s) / s.size(-1), False, "ReLU attention, divided by the length."),
    ("squared-relu-by-length", lambda s: F.relu(s).square() / s.size(-1), False, "Squared ReLU, by the length."),
    ("softplus-normalized", lambda s: F.normalize(F.softplus(s), p=1, dim=-1), False, "Softplus, divided by the sum."),
    ("one-in-the-denominator", one_more, False, "Softmax with one more in the denominator, stably."),
    ("one-in-the-denominator-causal", one_more, True, "The same, causal."),
    ("sums-in-parts", kept_apart, True, "The sum is made in parts."),
    ("by-log-softmax", lambda s: F.log_softmax(s, -1).exp(), True, "The exponential of log_softmax."),
    ("by-logsumexp", lambda s: torch.exp(s - s.logsumexp(-1, keepdim=True)), True, "By logsumexp."),
    (
        "power-of-two",
        lambda s: F.normalize(torch.exp2((s - s.amax(-1, keepdim=True)) / math.log(2)), 1, -1),
        False,
        "In powers of two.",
    ),
    (
        "taylor",
        lambda s: F.normalize(1 + s + s * s / 2, p=1, dim=-1),
        False,
        "A Taylor polynomial for the exponential.",
    ),
    (
        "shaped",
        lambda s: torch.eye(s.size(-1), dtype=s.dtype, device=s.device) + s.softmax(-1) - 1 / s.size(-1),
        False,
        "Shaped attention: the identity is added, the mean is taken off.",
    ),
):
    case(f"own-{_name}", partial(Weighed, _weigh, causal=_causal), _open | dict(causal=_causal), "weights", _note)


class NormAfter(nn.Module):
    """Exponentials that nothing divides, since a norm of each head follows."""

    def __init__(self, dim=24, heads=3):
        super().__init__()
        self.h = heads
        self.qkv, self.norm, self.o = nn.Linear(dim, 3 * dim), nn.RMSNorm(dim // heads, eps=0.0), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        s = q @ k.mT * q.size(-1) ** -0.5
        y = torch.exp(s - s.amax((1, 2, 3), keepdim=True)) @ v
        return self.o(self.norm(y).transpose(1, 2).flatten(2))


case("own-norm-after-exponentials", NormAfter, _open, "weights", "A norm of the average divides.")


class DividedLater(nn.Module):
    """The average of exponentials is divided by their sum; or columns of ones bring the sum along."""

    def __init__(self, ones, dim=24, heads=4):
        super().__init__()
        self.h, self.ones = heads, ones
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        s = q @ k.mT * q.size(-1) ** -0.5
        e = torch.exp(s - s.amax(-1, keepdim=True))
        if self.ones:
            y = e @ torch.cat((v, torch.ones_like(v[..., :1])), -1)
            y = y[..., :-1] / y[..., -1:]
        else:
            y = (e @ v) / e.sum(-1, keepdim=True)
        return self.o(y.transpose(1, 2).flatten(2))


for _ones in (False, True):
    _name = "ones-beside-values" if _ones else "divided-after-averaging"
    case(f"own-{_name}", partial(DividedLater, _ones), dict(embed_dim=24, num_heads=4, causal=False), "weights",
         "The average is divided by the sum of the exponentials.")  # fmt: skip


class GatedWeights(nn.Module):
    """Weights by hand, times a gate for each query and head, or for each head and key."""

    def __init__(self, dim=24, heads=3, keys=False):
        super().__init__()
        self.h, self.keys = heads, keys
        self.qkv, self.g, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, heads), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        s = q @ k.mT * q.size(-1) ** -0.5
        e = torch.exp(s - s.amax(-1, keepdim=True))
        g = self.g(x).sigmoid().transpose(1, 2)
        w = e / e.sum(-1, keepdim=True) * (g[:, :, None] if self.keys else g[..., None])
        return self.o((w @ v).transpose(1, 2).flatten(2))


class GatedSoftmax(GatedWeights):
    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        w = (q @ k.mT * q.size(-1) ** -0.5).softmax(-1)
        g = self.g(x).sigmoid().transpose(1, 2)
        w = w * (g[:, :, None] if self.keys else g[..., None])
        return self.o((w @ v).transpose(1, 2).flatten(2))


for _keys in (False, True):
    _whose = "keys" if _keys else "queries"
    case(f"own-gates-of-{_whose}", partial(GatedSoftmax, keys=_keys), _open, "weights", "Weights are gated.")
    if not _keys:
        case("own-gates-by-hand", GatedWeights, _open, "weights", "Weights by hand are gated, query by query.")


class Differential(nn.Module):
    def __init__(self, dim=24, heads=2):
        super().__init__()
        self.h = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.lam = nn.Parameter(torch.tensor(0.3))

    def forward(self, x):
        q, k = (f(x).unflatten(-1, (self.h, 2, -1)).permute(3, 0, 2, 1, 4) for f in (self.q, self.k))
        v = self.v(x).unflatten(-1, (self.h, -1)).transpose(1, 2)
        w = (q @ k.mT * q.size(-1) ** -0.5).softmax(-1)
        y = (w[0] - self.lam * w[1]) @ v
        return self.o(F.rms_norm(y, y.shape[-1:]).transpose(1, 2).flatten(2))


case("own-differential", Differential, dict(embed_dim=24, num_heads=2, causal=False), "weights", "Two softmaxes.")


class Talking(nn.Module):
    def __init__(self, dim=24, heads=4):
        super().__init__()
        self.h = heads
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.before, self.after = nn.Conv2d(heads, heads, 1), nn.Conv2d(heads, heads, 1)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        w = self.after(self.before(q @ k.mT * q.size(-1) ** -0.5).softmax(-1))
        return self.o((w @ v).transpose(1, 2).flatten(2))


case("own-talking", Talking, dict(embed_dim=24, num_heads=4, causal=False), "weights", "Heads are mixed twice.")


class Linear(nn.Module):
    """Linear attention with a sum, with a norm after it, or signed and by the length."""

    def __init__(self, kind, dim=24, heads=4):
        super().__init__()
        self.kind, self.h = kind, heads
        self.q, self.k, self.v, self.o, self.g = (nn.Linear(dim, dim) for _ in range(5))
        self.norm = nn.LayerNorm(dim // heads, eps=1e-12)
        self.mix = nn.Conv1d(dim, dim, 3, padding=1, groups=dim)

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (self.h, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        if self.kind == "galerkin":
            y = q @ (F.layer_norm(k, k.shape[-1:]).mT @ F.layer_norm(v, v.shape[-1:])) / x.size(1)
        elif self.kind == "efficient":
            y = q.softmax(-1) @ (k.softmax(-2).mT @ v)
        else:
            q, k = (F.relu(q) + 1e-4, F.relu(k) + 1e-4) if self.kind == "relu" else (F.elu(q) + 1, F.elu(k) + 1)
            y = torch.einsum("bhnd,bhde->bhne", q, torch.einsum("bhnd,bhne->bhde", k, v))
            if self.kind == "norm":
                y = self.norm(y)
            else:
                y = y / (torch.einsum("bhnd,bhd->bhn", q, k.sum(2)) + 1e-6)[..., None]
        y = y.transpose(1, 2).flatten(2)
        if self.kind == "gate":
            y = y * F.silu(self.g(x))
        if self.kind == "convolved":
            y = y + self.mix(self.v(x).mT).mT
        return self.o(y)


for _kind in ("sum", "relu", "norm", "galerkin", "efficient", "gate", "convolved"):
    _given = dict(embed_dim=24, num_heads=4, causal=False) | (dict(positions=True) if _kind == "convolved" else {})
    case(f"own-linear-{_kind}", partial(Linear, _kind), _given, "linear", "Linear attention.")


class Cosine(nn.Module):
    def __init__(self, dim=24, heads=3):
        super().__init__()
        self.h, self.logit = heads, nn.Parameter(torch.full((heads, 1, 1), 2.0))
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        s = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * self.logit.clamp(max=4.6).exp()
        e = (s - s.amax(-1, keepdim=True)).exp()
        return self.o((e / e.sum(-1, keepdim=True) @ v).transpose(1, 2).flatten(2))


case("own-cosine-by-hand", Cosine, _open, "weights", "Cosine attention with a learned temperature and its own softmax.")


class Registers(nn.Module):
    """Learned tokens are put before the others, attend with them, and are dropped."""

    def __init__(self, dim=20, heads=2, count=3):
        super().__init__()
        self.count = count
        self.registers = nn.Parameter(torch.randn(count, dim))
        self.mha = nn.MultiheadAttention(dim, heads, batch_first=True)

    def forward(self, x):
        y = torch.cat((self.registers.expand(x.size(0), -1, -1), x), 1)
        return self.mha(y, y, y, need_weights=False)[0][:, self.count :]


case(
    "own-registers", Registers, dict(embed_dim=20, num_heads=2, causal=False), "memory", "Registers before the tokens."
)


class Adapted(nn.Module):
    """Low-rank matrices beside those of queries and values; keys have a norm and a convolution for each channel."""

    def __init__(self, dim=24, heads=4, rank=3):
        super().__init__()
        self.h = heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(dim, dim) for _ in range(4))
        self.q_a, self.q_b = nn.Linear(dim, rank, bias=False), nn.Linear(rank, dim, bias=False)
        self.v_a, self.v_b = nn.Linear(dim, rank, bias=False), nn.Linear(rank, dim, bias=False)

    def forward(self, x):
        q, k = self.q_proj(x) + self.q_b(self.q_a(x)), self.k_proj(x)
        v = self.v_proj(x) + self.v_b(self.v_a(x))
        q, k, v = (t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in (q, k, v))
        return self.o_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


case("own-low-rank", Adapted, dict(embed_dim=24, num_heads=4, causal=False), "projection", "Low-rank adapters.")


class SharedPlain(nn.Module):
    """Queries and keys of one matrix, values the tokens themselves, no output matrix."""

    def __init__(self, dim=24, heads=3):
        super().__init__()
        self.h, self.qk = heads, nn.Linear(dim, dim)

    def forward(self, x):
        q, v = (t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in (self.qk(x), x))
        return F.scaled_dot_product_attention(q, F.normalize(q, dim=-1), v).transpose(1, 2).flatten(2)


case("own-shared-and-plain", SharedPlain, _open, "projection", "Shared queries and keys, values without a matrix.")


class SelfExcluded(nn.Module):
    """No token sees itself, as in ViTs for small sets of images."""

    def __init__(self, dim=24, heads=3):
        super().__init__()
        self.h, self.qkv, self.o = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.temperature = nn.Parameter(torch.tensor(0.4))

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        s = q @ k.mT * self.temperature
        if x.size(1) > 1:
            s = s.masked_fill(torch.eye(x.size(1), dtype=torch.bool, device=x.device), -torch.finfo(s.dtype).max)
        return self.o((s.softmax(-1) @ v).transpose(1, 2).flatten(2))


case("own-self-excluded", SelfExcluded, _open, "masks", "The diagonal is hidden on purpose.")


class BigWindow(nn.Module):
    """A causal window wider than most sequences; nothing else knows of positions."""

    def __init__(self, dim=24, heads=3, window=100):
        super().__init__()
        self.h, self.w, self.qkv, self.o = heads, window, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        i = torch.arange(x.size(1), device=x.device)
        far = i[:, None] - i
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=(far >= 0) & (far < self.w))
        return self.o(y.transpose(1, 2).flatten(2))


case(
    "own-wide-window",
    BigWindow,
    dict(embed_dim=24, num_heads=3, causal=True, positions=True),
    "masks",
    "A wide window.",
)


class Around(nn.Module):
    """Something beside the average that only neighbors reach, or positions that only some tokens have."""

    def __init__(self, what, dim=24, heads=3):
        super().__init__()
        self.what, self.h = what, heads
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.dw = nn.Conv1d(dim, dim, 3, padding=1, groups=dim)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        if self.what == "smeared":
            y = F.scaled_dot_product_attention(q, 0.6 * k + 0.4 * F.pad(k, (0, 0, 1, -1)), v, is_causal=True)
        elif self.what == "ones":
            q, k = q.relu(), k.relu()
            y = q @ (k.mT @ F.pad(v, (0, 1), value=1.0))
            y = y[..., :-1] / (y[..., -1:] + 1e-15)
        else:
            q, k = F.elu(q) + 1, F.elu(k) + 1
            y = q @ (k.mT @ v) / (q @ k.sum(2)[..., None] + 1e-6)
            y = y * self.dw(x.mT).mT.sigmoid().unflatten(-1, (self.h, -1)).transpose(1, 2)
        return self.o(y.transpose(1, 2).flatten(2))


case("own-smeared-keys", partial(Around, "smeared"), _open | dict(causal=True, positions=True), "positions", "Smeared.")
case("own-linear-ones", partial(Around, "ones"), _open, "linear", "A column of ones brings the sum along.")
case(
    "own-linear-convolved-gate", partial(Around, "gate"), _open | dict(positions=True), "linear", "A gate of neighbors."
)


class PlacedQueries(nn.Module):
    def __init__(self, dim=24, heads=3, places=64):
        super().__init__()
        self.place = nn.Parameter(torch.randn(places, dim))
        self.mha = nn.MultiheadAttention(dim, heads, batch_first=True)

    def forward(self, x, context=None):
        context = x if context is None else context
        return x + self.mha(x + self.place[: x.size(1)], context, context, need_weights=False)[0]


case("own-placed-queries", PlacedQueries, _open | dict(inputs="x_context", positions=True), "positions", "Cross.")
case(
    "own-two-places",
    partial(PlacedQueries, places=2),
    _open | dict(positions=True, tokens=2),
    "positions",
    "Two tokens.",
)
