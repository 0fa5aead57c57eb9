"""From scores to weights: softmaxes by hand, kernels, sinks, memories, caps, dropout, and sums in blocks."""

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import einsum, nn

from .attention import (
    EINSUM,
    HEADS_OUTER,
    SDPA,
    SDPA_CAUSAL,
    SEQUENCE_FIRST,
    Attention,
    Called,
    RMSNorm,
    add,
    fill,
    fill_least,
    four,
    in_dict,
    pair,
    separate,
    with_none,
)
from .cases import Cases, Style
from .plain import LayerScaled

CASES = Cases()
right, wrong, slip_of = CASES.right, CASES.wrong, CASES.slip

VIT = Style(Attention)
GPT = Style(Attention, names="c_attn c_proj", causal=True)
PRE_NORM = Style(Attention, heads=4, norm=nn.LayerNorm, residual=True)
HAND = Style(Attention, names="to_q to_kv to_out", causal=False)

# ------------------------------------------------------------------------------------------------- softmaxes by hand


def exponentials(s, over=-1):
    return torch.exp(s - s.amax(over, keepdim=True))


def divided(e, over=-1, more=0.0):
    return e / (e.sum(over, keepdim=True) + more)


def by_hand(s, allowed):
    return divided(exponentials(s))


def without_maximum(s, allowed):
    return divided(s.exp())


def one_more(s, allowed):
    """A softmax with one more in the denominator."""
    m = s.amax(-1, keepdim=True).clamp(min=0)
    e = torch.exp(s - m)
    return e / (torch.exp(-m) + e.sum(-1, keepdim=True))


def sparsemax(s, allowed):
    z = s.sort(-1, descending=True).values
    k = torch.arange(1, s.size(-1) + 1, device=s.device, dtype=s.dtype)
    sums = z.cumsum(-1)
    count = (1 + k * z > sums).sum(-1, keepdim=True)
    return (s - (sums.gather(-1, count - 1) - 1) / count).clamp(min=0)


def in_parts(s, allowed):
    e = exponentials(s)
    return e / sum(part.sum(-1, keepdim=True) for part in e.split(2, -1)).clamp(min=1e-20)


def shaped(s, allowed):
    """The identity is added, the mean is taken off."""
    return torch.eye(s.size(-1), dtype=s.dtype, device=s.device) + s.softmax(-1) - 1 / s.size(-1)


def divided_later(over=-1):
    def core(q, k, v, allowed):
        e = exponentials(q @ k.mT * q.size(-1) ** -0.5)
        return e @ v / e.sum(over)[..., None], None

    return core


def ones_beside(q, k, v, allowed):
    """A column of ones brings the sum along."""
    y = exponentials(q @ k.mT * q.size(-1) ** -0.5) @ F.pad(v, (0, 1), value=1.0)
    return y[..., :-1] / y[..., -1:], None


def in_half(s, allowed):
    return s.half().softmax(-1).to(s.dtype)


def largest(s, count=3):
    return torch.zeros_like(s).scatter(-1, s.topk(min(count, s.size(-1)), -1).indices, 1.0)


def largest_cleared(s, allowed):
    w = (s * largest(s)).softmax(-1) * largest(s)
    return w / w.sum(-1, keepdim=True)


# ------------------------------------------------------------------------------------------------------------ kernels


def kernel(phi=lambda x: F.elu(x) + 1, eps=1e-6, total=lambda q, k: (q * k.sum(2, keepdim=True)).sum(-1, keepdim=True)):
    """Linear attention: features of queries and keys, and what divides."""

    def core(q, k, v, allowed):
        q, k = phi(q), phi(k)
        return q @ (k.mT @ v) / (total(q, k) + eps), None

    return {"core": core, "causal": False}


def causal_kernel(phi=lambda x: F.elu(x) + 1, sums=lambda k: k.cumsum(2)):
    """The same by running sums."""

    def core(q, k, v, allowed):
        q, k = phi(q), phi(k)
        state = einsum("bhnd,bhne->bhnde", k, v).cumsum(2)
        return einsum("bhnd,bhnde->bhne", q, state) / einsum("bhnd,bhnd->bhn", q, sums(k))[..., None], None

    return {"core": core, "causal": True}


def softmaxes(of_queries, of_keys):
    """Efficient attention: a softmax of the queries' features, and one of the keys along the tokens."""
    return {"core": lambda q, k, v, a: (q.softmax(of_queries) @ (k.softmax(of_keys).mT @ v), None), "causal": False}


def summed_ones(more):
    """A column of ones beside the values brings the sum of the weights along."""

    def core(q, k, v, allowed):
        y = (q.relu() + 0.1) @ ((k.relu() + 0.1).mT @ F.pad(v, (0, 1), value=1.0))
        return y[..., :-1] / (y[..., -1:] + more), None

    return {"core": core, "causal": False}


def galerkin(q, k, v, allowed):
    return q @ (F.layer_norm(k, k.shape[-1:]).mT @ F.layer_norm(v, v.shape[-1:])) / q.size(2), None


def tril_kernel(total):
    """Causal linear attention by a triangle of weights."""

    def core(q, k, v, allowed):
        w = (F.elu(q) + 1) @ (F.elu(k) + 1).mT
        return w.tril() @ v / (total(w) + 1e-6), None

    return {"core": core, "causal": True}


class KernelWith(Attention):
    """Linear attention with something behind: a norm of each head, a gate of the tokens, or a convolution."""

    def __init__(self, dim=24, behind="norm", **options):
        super().__init__(dim, **kernel() | options)
        self.behind_heads, self.kind = nn.LayerNorm(self.width, eps=1e-12), behind
        self.gate, self.near = nn.Linear(dim, dim), nn.Conv1d(dim, dim, 3, padding=1, groups=dim)

    def merge(self, y, heads):
        return super().merge(self.behind_heads(y) if self.kind == "norm" else y, heads)

    def after(self, y, x):
        if self.kind == "gate":
            y = y * F.silu(self.gate(x))
        if self.kind == "gate of neighbors":
            y = y * self.near(x.mT).mT.sigmoid()
        if self.kind == "convolved":
            y = y + self.near(x.mT).mT
        return y


class External(nn.Module):
    """Two memories, and a double norm: a softmax over the tokens, then sums of one over the memory."""

    def __init__(self, dim=14, heads=1, slots=10, causal=False):
        super().__init__()
        self.mk, self.mv = nn.Linear(dim, slots, bias=False), nn.Linear(slots, dim, bias=False)

    def forward(self, x):
        w = self.mk(x).softmax(dim=1)
        return self.mv(w / w.sum(dim=2, keepdim=True))


class Pointwise(nn.Module):
    """HSTU: SiLU of the scores over a constant length, no softmax."""

    def __init__(self, dim=24, heads=2, width=8, value_width=12, longest=256, causal=True):
        super().__init__()
        self.heads, self.longest = heads, longest
        self.sizes = [heads * w for w in (value_width, value_width, width, width)]
        self.norm, self.behind = nn.LayerNorm(dim), nn.LayerNorm(heads * value_width)
        self.uvqk = nn.Parameter(torch.randn(dim, sum(self.sizes)) * 0.2)
        self.bias = nn.Parameter(torch.randn(2 * longest) * 0.1)
        self.o = nn.Linear(heads * value_width, dim)

    def forward(self, x):
        u, v, q, k = F.silu(self.norm(x) @ self.uvqk).split(self.sizes, -1)
        v, q, k = (t.unflatten(-1, (self.heads, -1)) for t in (v, q, k))
        i = torch.arange(x.size(1), device=x.device)
        s = einsum("bnhd,bmhd->bhnm", q, k) + self.bias[i[:, None] - i + self.longest]
        y = einsum("bhnm,bmhd->bnhd", F.silu(s) / 50 * (i[:, None] >= i), v).flatten(2)
        return x + self.o(u * self.behind(y))


class Additive(Called):
    """Additive scores, v . tanh(W q + U k), of one head or of many; no scale is due."""

    def __init__(self, dim=16, heads=1, key_dim=None, units=10, values=False, joint=False, causal=False, inputs="x"):
        super().__init__()
        self.heads, self.causal, key_dim = heads, causal, key_dim or dim
        self.of_query, self.of_key = nn.Linear(dim, heads * units), nn.Linear(key_dim, heads * units, bias=False)
        self.energy = nn.Parameter(torch.randn(heads, units) * units**-0.5)
        self.values, self.final = (nn.Linear(dim, dim), nn.Linear(dim, dim)) if values else (None, None)
        self.joint = nn.Linear(dim + key_dim, dim) if joint else None

    def attend(self, x, context, _):
        q, k = (f(t).unflatten(-1, (self.heads, -1)) for f, t in ((self.of_query, x), (self.of_key, context)))
        s = (torch.tanh(q[:, :, None] + k[:, None]) * self.energy).sum(-1).permute(0, 3, 1, 2)
        if self.causal:
            s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu(1), -torch.inf)
        v = context if self.values is None else self.values(context)
        w = s.softmax(-1)
        y = (w @ v.unflatten(-1, (self.heads, -1)).transpose(1, 2)).transpose(1, 2).flatten(2)
        if self.joint is not None:
            y = torch.tanh(self.joint(torch.cat((x, y), -1)))
        return y if self.final is None else self.final(y), w


# ------------------------------------------------------------------------------------- scores and weights with a part


def unscaled(q, k):
    return q @ k.mT


class Cosine(Attention):
    """Cosines with a learned temperature for each head."""

    def __init__(self, slip="", **options):
        super().__init__(**options)
        self.over, self.logit_scale = 1 if slip else -1, nn.Parameter(torch.full((self.heads, 1, 1), math.log(10.0)))

    def score(self, q, k):
        s = F.normalize(q, dim=self.over) @ F.normalize(k, dim=self.over).mT
        return s * self.logit_scale.clamp(max=math.log(100.0)).exp()


class Temperature(Attention):
    """A scale that is learned for each head, or that is a tensor of float32 which is no parameter."""

    def __init__(self, learned=True, **options):
        super().__init__(**options)
        scale = torch.full((self.heads, 1, 1), math.sqrt(self.width))
        self.scale = nn.Parameter(scale.log()) if learned else torch.sqrt(torch.FloatTensor([self.width]))
        self.learned = learned

    def score(self, q, k):
        return q @ k.mT / (self.scale.exp() if self.learned else self.scale.to(q.device))


class Unscaled(Attention):
    """T5 without its buckets: no scale, since it is in what the queries' weights are drawn with."""

    def __init__(self, dim=16, heads=2, **options):
        super().__init__(dim, heads, separate("", "_"), bias=False, out_bias=False, score=unscaled, **options)
        for name in self.names:
            nn.init.normal_(self._modules[name].weight, std=dim**-0.5 * ((dim // heads) ** -0.5 if name == "q_" else 1))


class Capped(Attention):
    """A soft cap of the scores, and then the mask; the slip caps what is masked."""

    def __init__(self, softcap=5.0, low=-torch.inf, slip="", **options):
        super().__init__(**options)
        self.softcap, self.low, self.slip = softcap, low, slip

    def cap(self, s):
        return self.softcap * torch.tanh(s / self.softcap)

    def show(self, s, allowed):
        return self.cap(fill(s, allowed, self.low)) if self.slip else fill(self.cap(s), allowed, self.low)


class Talking(Attention):
    """Heads are mixed before the mask and the softmax, and after them; the slip masks what is then mixed."""

    def __init__(self, slip="", low=-1e9, **options):
        super().__init__(**options)
        self.before, self.behind = (nn.Conv2d(self.heads, self.heads, 1, bias=False) for _ in "12")
        self.slip, self.low = slip, low

    def show(self, s, allowed):
        return self.before(fill(s, allowed, self.low)) if self.slip else fill(self.before(s), allowed, self.low)

    def weigh(self, s, allowed):
        return s.softmax(-1) if self.slip else self.behind(s.softmax(-1))


class Differential(Attention):
    """Two softmaxes, of which the second is taken off with a learned factor, and a norm of each head."""

    def __init__(self, heads=2, **options):
        super().__init__(heads=2 * heads, **options)
        self.part, self.behind = nn.Parameter(torch.tensor(0.3)), RMSNorm(2 * self.width, 1e-5)

    def mix(self, w, v):
        w, v = w.unflatten(1, (-1, 2)), v.unflatten(1, (-1, 2)).transpose(2, 3).flatten(3)
        return self.behind((w[:, :, 0] - self.part * w[:, :, 1]) @ v) * 0.8


class GatedWeights(Attention):
    """Weights times a gate for each query and head, or for each head and key."""

    def __init__(self, dim=24, keys=False, **options):
        super().__init__(dim, **options)
        self.keys, self.g = keys, nn.Linear(dim, self.heads)

    def taken(self, x, *_):
        g = self.g(x).sigmoid().transpose(1, 2)
        self.gates = g[:, :, None] if self.keys else g[..., None]
        return x, x, x

    def mix(self, w, v):
        return (w * self.gates) @ v


class NormBehind(Attention):
    """Exponentials that nothing divides, since a norm of each head follows."""

    def __init__(self, **options):
        super().__init__(**options)
        self.behind = nn.RMSNorm(self.width, eps=0.0)

    def weigh(self, s, allowed):
        return exponentials(s, (1, 2, 3))

    def mix(self, w, v):
        return self.behind(w @ v)


class Sinks(Attention):
    """A learned logit for each head takes a part of the weights, which goes nowhere; or the same by the logsumexp."""

    def __init__(self, late=False, slip="", **options):
        super().__init__(**options)
        self.sinks, self.late, self.slip = nn.Parameter(torch.randn(self.heads)), late, slip

    def weigh(self, s, allowed):
        sink = self.sinks.view(1, -1, 1, 1)
        if self.late:
            total = s.logsumexp(-1, keepdim=True)
            return torch.exp(s - total) * torch.sigmoid(total - sink)
        joint = torch.cat((s, sink.expand(s.size(0), -1, s.size(2), 1)), -1)
        if self.slip == "dropped first":
            return joint[..., :-1].softmax(-1)
        w = joint.softmax(-1)
        if self.slip == "first column":
            return w[..., 1:]
        w = w[..., :-1]
        return w / w.sum(-1, keepdim=True).clamp(min=1e-30) if self.slip == "renormalized" else w


class Memory(Attention):
    """Learned keys and values before those of the tokens, or behind them, or ones of zeros."""

    def __init__(self, slots=2, behind=False, zeros=False, slip="", batch_first=True, inputs="x", **options):
        super().__init__(batch_first=batch_first, inputs=inputs, **options)
        made = torch.zeros if zeros else torch.randn
        self.memory_k, self.memory_v = (nn.Parameter(made(slots, size), not zeros) for size in self.sizes[1:])
        self.behind, self.slip, self.slots, self.token_axis = behind, slip, slots, 1 if batch_first else 0

    def made(self, q, k, v):
        items = k.size(1 - self.token_axis)
        mk, mv = (m.unsqueeze(1 - self.token_axis) for m in (self.memory_k, self.memory_v))
        mk, mv = (m.expand(items, -1, -1) if self.token_axis else m.expand(-1, items, -1) for m in (mk, mv))
        k = torch.cat((k, mk) if self.behind else (mk, k), self.token_axis)
        return q, k, torch.cat((v, mv) if self.behind or self.slip == "apart" else (mv, v), self.token_axis)

    def mix(self, w, v):
        if self.slip == "cut":
            w, v = w[..., : -self.slots], v[..., self.slots :, :]
        return w @ v


class Registers(Attention):
    """Learned tokens stand before the others and are dropped behind; the slip drops the last ones."""

    def __init__(self, dim=16, count=3, slip="", **options):
        super().__init__(dim, **options)
        self.registers, self.slip = nn.Parameter(torch.randn(count, dim)), slip

    def forward(self, x):
        y = super().forward(torch.cat((self.registers.expand(len(x), -1, -1), x), 1))
        return y[:, : x.size(1)] if self.slip else y[:, len(self.registers) :]


class Dropping(Attention):
    """Dropout of the weights in training; or, as slips, of the scores, also in evaluation, or without a factor."""

    def __init__(self, p=0.2, fused=False, slip="", **options):
        super().__init__(**options)
        self.p, self.fused, self.slip = p, fused, slip

    def core(self, q, k, v, allowed):
        on = self.training or self.slip == "in evaluation"
        if self.fused:
            return F.scaled_dot_product_attention(q, k, v, allowed, dropout_p=self.p if on else 0.0), None
        s = self.score(q, k)
        if self.slip == "scores":
            w = fill(F.dropout(s, self.p, on), allowed).softmax(-1)
        elif self.slip == "without a factor":
            w = self.weigh(self.show(s, allowed), allowed)
            w = w * (torch.rand_like(w) >= self.p) if on else w
        else:
            w = F.dropout(fill(s, allowed).softmax(-1), self.p, on)
        return w @ v, w


class WithResidual(Attention):
    """The slip adds the token before."""

    def __init__(self, slip="", **options):
        super().__init__(norm=nn.LayerNorm, **options)
        self.slip = slip

    def forward(self, x):
        return (x.roll(1, 1) if self.slip else x) + super().forward(x)


class SetBlock(nn.Module):
    """The block of a set transformer, scaled by the head's size or, as its authors have it, by the whole width."""

    def __init__(self, dim, heads, norm, by_width):
        super().__init__()

        def score(q, k):
            return torch.bmm(q, k.mT) / math.sqrt(dim if by_width else dim // heads)

        self.attend = Attention(
            dim,
            heads,
            separate("fc_"),
            inputs="x_context",
            **HEADS_OUTER | {"score": score, "core": self.core, "out": lambda y: y},
        )
        self.first, self.last = (nn.LayerNorm(dim) if norm else nn.Identity() for _ in "12")
        self.score = score

    def core(self, q, k, v, allowed):
        return q + self.score(q, k).softmax(-1) @ v, None

    def forward(self, x, y):
        x = self.first(self.attend(x, y))
        return self.last(x + F.relu(self.attend.fc_o(x)))


class Induced(nn.Module):
    """Learned points read the set, then the set reads the points."""

    def __init__(self, dim=24, heads=3, points=4, norm=True, by_width=False):
        super().__init__()
        self.points = nn.Parameter(torch.randn(1, points, dim))
        self.reads, self.gives = (SetBlock(dim, heads, norm, by_width) for _ in "12")

    def forward(self, x):
        return self.gives(x, self.reads(self.points.repeat(x.size(0), 1, 1), x))


# -------------------------------------------------------------------------------------------------------------- blocks


class InBlocks(Attention):
    """A softmax over blocks of keys, with a sink if that is asked for, and the last block filled up and hidden."""

    def __init__(self, block=3, sink=False, filled=False, slip="", **options):
        super().__init__(**options)
        self.block, self.filled, self.slip = block, filled, slip
        self.sink = nn.Parameter(torch.zeros(self.heads, 1, 1)) if sink else None

    def core(self, q, k, v, allowed):
        n = k.size(2)
        if self.filled:
            k, v = (F.pad(t, (0, 0, 0, -n % self.block)) for t in (k, v))
        sink = q.new_tensor(-torch.inf) if self.sink is None else self.sink
        top = sink.expand(*q.shape[:-1], 1)
        total, y = (top > -torch.inf).to(q.dtype), torch.zeros_like(q)
        for start in range(0, k.size(2), self.block):
            s = self.score(q, k[:, :, start : start + self.block])
            at = torch.arange(start, start + s.size(-1), device=s.device)
            if self.filled:
                s = s.masked_fill(at >= n, -torch.inf)
            if allowed is not None:
                s = s.masked_fill(at > torch.arange(n, device=s.device)[:, None], -torch.inf)
            new = torch.maximum(top, s.amax(-1, keepdim=True))
            e, old = (s - new).exp(), (top - new).exp()
            total = (total if self.slip else total * old) + e.sum(-1, keepdim=True)
            y, top = y * old + e @ v[:, :, start : start + self.block], new
        return y / total, None


class FilledUp(Called):
    """The context is filled up to whole blocks, which is hidden; zeros of its own stand beside it."""

    def __init__(self, dim=24, heads=2, block=4, zeros=0, inputs="x"):
        super().__init__()
        self.heads, self.block, self.zeros = heads, block, zeros
        self.q, self.kv, self.o = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)

    def attend(self, x, context, _):
        n = context.size(1)
        k, v = self.kv(F.pad(context, (0, 0, 0, -n % self.block))).chunk(2, -1)
        k, v = (F.pad(t, (0, 0, self.zeros, 0)) for t in (k, v))
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (self.q(x), k, v))
        shown = (torch.arange(k.size(2), device=x.device) < self.zeros + n).expand(q.size(2), -1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=shown)
        return self.o(y.transpose(1, 2).flatten(2))


class LocalAndGlobal(nn.Module):
    """Two softmaxes, of which a gate for each token takes its parts."""

    def __init__(self, dim=24, heads=3):
        super().__init__()
        self.heads = heads
        self.qkv, self.far, self.gate = nn.Linear(dim, 3 * dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, 1)
        self.o = nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        far, value = self.far(x).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        near = torch.ones(x.size(1), x.size(1), dtype=torch.bool, device=x.device).tril(1).triu(-1)
        a, b = fill(q @ k.mT, near) * q.size(-1) ** -0.5, q @ far.mT * q.size(-1) ** -0.5
        a, b = ((s - s.logsumexp(-1, keepdim=True)).exp() for s in (a, b))
        part = self.gate(x).sigmoid().unsqueeze(1)
        return self.o((part * (a @ v) + (1 - part) * (b @ value)).transpose(1, 2).flatten(2))


# ------------------------------------------------------------------------------------------------- softmaxes by hand

right("own-sparsemax", HAND(weigh=sparsemax))
right("own-sigmoid-with-bias", HAND(weigh=lambda s, a: torch.sigmoid(s - math.log(s.size(-1)))))
right("own-relu-by-length", HAND(weigh=lambda s, a: F.relu(s) / s.size(-1)))
right("own-squared-relu-by-length", HAND(weigh=lambda s, a: F.relu(s).square() / s.size(-1)))
right("own-softplus-normalized", HAND(weigh=lambda s, a: divided(F.softplus(s))))
right("own-sums-in-parts", HAND(weigh=in_parts, causal=True))
right("own-by-logsumexp", HAND(weigh=lambda s, a: torch.exp(s - s.logsumexp(-1, keepdim=True)), causal=True))
right("own-power-of-two", HAND(weigh=lambda s, a: divided(torch.exp2((s - s.amax(-1, keepdim=True)) / math.log(2)))))
right("own-taylor", HAND(weigh=lambda s, a: divided(1 + s + s * s / 2)))
right("own-shaped", HAND(weigh=shaped))
right("own-norm-after-exponentials", Style(NormBehind))
right("own-divided-after-averaging", VIT(heads=4, core=divided_later()))
right("own-ones-beside-values", VIT(heads=4, core=ones_beside))
right("own-gates-of-keys", Style(GatedWeights, keys=True, weigh=lambda s, a: s.softmax(-1)))
right(
    "namedtuple-entropy",
    HAND(dim=20, heads=5, weigh=lambda s, a: F.log_softmax(s, -1).exp(), dropout=0.1, returns=pair),
)
right("largest-keys", VIT(heads=4, show=lambda s, a: fill(s, largest(s) > 0)))
right("largest-keys-cleared", VIT(heads=4, weigh=largest_cleared))
right("rectified-scores", VIT(heads=4, show=lambda s, a: s.relu()))
right("pointwise-silu-recommender", Style(Pointwise, positions=True))
BY_HAND, NOT_NORMALIZED = Style(Attention, weigh=by_hand, causal=False), "weights-not-normalized"
for name, slip in {
    "keepdim": lambda s, a: exponentials(s) / exponentials(s).sum(-1)[:, :, None],
    "heads": lambda s, a: divided(exponentials(s, (1, 3)), 1),
    "matrix": lambda s, a: divided(exponentials(s, (-2, -1)), (-2, -1)),
    "epsilon": lambda s, a: divided(exponentials(s), more=1.0),
    "root": lambda s, a: exponentials(s) / exponentials(s).square().sum(-1, keepdim=True).sqrt(),
    "log": lambda s, a: F.log_softmax(s, -1),
}.items():
    wrong(f"by-hand-{name}", BY_HAND, NOT_NORMALIZED, weigh=slip)
wrong(
    "by-hand-logsumexp",
    BY_HAND,
    "softmax-over-queries",
    weigh=lambda s, a: torch.exp(s - s.logsumexp(-2, keepdim=True)),
)
wrong("by-hand-later", VIT(core=divided_later()), core=divided_later(-2))
wrong("by-hand-causal-total", BY_HAND(causal=True), weigh=lambda s, a: divided(exponentials(s, (-2, -1)), (-2, -1)))
wrong(
    "sum-over-the-wrong-axis", PRE_NORM(dim=20, heads=2, weigh=by_hand), weigh=lambda s, a: divided(exponentials(s), 2)
)
wrong(
    "gpt-divided-by-count",
    GPT(dim=16, heads=2, weigh=by_hand),
    NOT_NORMALIZED,
    weigh=lambda s, a: exponentials(s) / s.size(-1),
)
wrong(
    "set-transformer-sum-missing",
    VIT(dim=16, heads=2, names=separate("fc_"), inputs="x_context", weigh=by_hand, **HEADS_OUTER),
    NOT_NORMALIZED,
    weigh=lambda s, a: exponentials(s),
)
wrong("sigmoid-for-softmax", PRE_NORM(heads=3, bias=False), NOT_NORMALIZED, weigh=lambda s, a: torch.sigmoid(s))
wrong("softmax-without-maximum", VIT(dim=18, weigh=by_hand), weigh=without_maximum)
wrong("gpt-softmax-in-float16", GPT(dim=16, heads=2), weigh=in_half)
wrong(
    "half-for-the-kernel",
    PRE_NORM(heads=3),
    score=lambda q, k: (q.bfloat16() @ k.bfloat16().mT).to(q.dtype) * q.size(-1) ** -0.5,
)
wrong(
    "largest-else-zero",
    VIT(residual=True, show=lambda s, a: fill(s, largest(s, 4) > 0)),
    show=lambda s, a: s * largest(s, 4),
)

# ------------------------------------------------------------------------------------------------------------ kernels

NAMED = Style(Attention, heads=4, names="query key value merged")
right("own-linear-sum", NAMED(**kernel(lambda x: F.elu(x) + 1)))
right("own-linear-relu", NAMED(**kernel(lambda x: F.relu(x) + 1e-4)))
right("own-linear-gate", Style(KernelWith, heads=4, behind="gate"))
right("own-linear-convolved", Style(KernelWith, heads=4, behind="convolved", positions=True))
right("own-linear-convolved-gate", Style(KernelWith, behind="gate of neighbors", positions=True))
right("own-linear-galerkin", NAMED(core=galerkin, causal=False))
right("own-linear-ones", VIT(**summed_ones(1e-15)))
right("causal-linear-relu", NAMED(heads=3, bias=False, out_bias=False, **causal_kernel(lambda x: x.relu() + 1e-3)))
right("linear-elu-causal", NAMED(dim=18, heads=3, **tril_kernel(lambda w: w.tril().sum(-1, keepdim=True))))
right("external-attention", Style(External))
right("bahdanau-cross-joint", Style(Additive, key_dim=10, joint=True, inputs="x_context"))
right("additive-heads", Style(Additive, dim=18, heads=3, units=5, values=True, causal=True))
wrong("linear-without-normalizer", NAMED(heads=3, **kernel()), NOT_NORMALIZED, **kernel(total=lambda q, k: 1.0))
wrong("linear-epsilon-of-one", NAMED(heads=3, **kernel()), NOT_NORMALIZED, **kernel(eps=1.0))
wrong("kernel-efficient", NAMED(**softmaxes(-1, -2)), NOT_NORMALIZED, **softmaxes(-2, -1))
wrong(
    "kernel-causal-denominator",
    NAMED(**causal_kernel()),
    **causal_kernel(sums=lambda k: k.sum(2, keepdim=True).expand_as(k)),
)
wrong(
    "sum-of-all-keys",
    NAMED(dim=16, heads=2, **tril_kernel(lambda w: w.tril().sum(-1, keepdim=True))),
    **tril_kernel(lambda w: w.sum(-1, keepdim=True)),
)

# ------------------------------------------------------------------------------------------------ scores with a part

right("log-temperature", Style(Temperature))
right(
    "gan-self-attention",
    Style(LayerScaled, attention=Attention, heads=1, width=6, value_width=24, bias=False, score=unscaled),
)
right("unscaled-cross", Style(Unscaled, inputs="x_context"))
right("unscaled-cross-residual", Style(Unscaled, inputs="x_context", norm=RMSNorm, residual=True))
right("capped-residual", Style(Capped, dim=20, heads=5, softcap=2.0, norm=nn.LayerNorm, residual=True))
right("grok-cap-in-out-matrices", Style(Capped, bias=False, out_bias=False, causal=True, low=-1e30))
right("differential-causal", Style(Differential, bias=False, causal=True))
wrong("cosine-norm-over-heads", Style(Cosine, heads=4), slip="over heads")
wrong(
    "qk-norm-over-tokens",
    VIT(names=separate("", "_proj"), bias=False, qk_norm=RMSNorm, **SDPA),
    qk_norm=lambda width: RMSNorm(width, axis=-2),
)
for name, twin, norm in (
    ("qk-norm-epsilon-of-one", VIT(dim=20, heads=2), partial(RMSNorm, eps=1.0)),
    ("qk-layernorm-large-epsilon", VIT(names="to_q to_kv to_out", **SDPA_CAUSAL), partial(nn.LayerNorm, eps=0.5)),
):
    wrong(name, twin(qk_norm=norm.func), qk_norm=norm)
capped_late = slip_of("softcap-after-mask", slip="after mask")
GEMMA = Style(Capped, heads=4, groups=2, bias=False, causal=True)
capped_late("gemma-capped-after-mask", GEMMA(returns=with_none))
capped_late("cap-after-padding", Style(Capped, bias=False, causal=False, inputs="x_allowed", low=-1e9))
wrong("heads-mixed-behind-the-mask", Style(Talking, heads=4, causal=True, low=-1e5), slip="after mask")

# ------------------------------------------------------------------------------------------------- sinks and memories

right("lse-sink", Style(Sinks, heads=4, late=True))
right("softmax-plus-one", Style(Attention, dim=18, weigh=one_more, names=separate("", "_")))
right("mem-kv", Style(Memory, slots=3, width=8, bias=False, **EINSUM))
right("null-key", Style(Memory, slots=1, zeros=True, causal=True))
BIAS_KV = {"slots": 1, "behind": True}
right(
    "null-kv-multi-query", Style(Memory, dim=20, heads=4, groups=1, width=6, norm=nn.LayerNorm, bias=False, **BIAS_KV)
)
OF_THREE = Style(Memory, heads=4, inputs="qkv", names=separate("", "_proj"), returns=with_none)
right("seq-first-bias-kv", OF_THREE(**BIAS_KV | SEQUENCE_FIRST))
right(
    "persistent-memory",
    Style(Memory, heads=4, inputs="x_allowed", behind=True),
    spread=lambda allowed, heads: F.pad(four(allowed), (0, 2), value=True),
)
right(
    "sink-token-window",
    Style(Registers, dim=24, count=1, bias=False, causal=True, show=fill_least),
    sees=lambda at, keys: (keys <= at[:, None]) & (at[:, None] - keys < 3) | (keys == 0),
)
right("set-transformer-induced", Style(Induced, dim=16, heads=2, points=3, norm=False, by_width=True))
right("isab", Style(Induced))
wrong("sink-drops-the-wrong-column", Style(Sinks, dim=18, causal=True), slip="first column")
wrong(
    "sink-weights-renormalized",
    Style(Sinks, dim=18, causal=True, names=separate("", "_proj")),
    "sink-share-returned",
    slip="renormalized",
)
wrong(
    "sinks-dropped-first", Style(Sinks, dim=20, heads=5, causal=True, show=add, returns=in_dict), slip="dropped first"
)
wrong("memory-apart", Style(Memory, dim=20, heads=2, slots=3), slip="apart")
wrong("memory-cut", Style(Memory, dim=20, heads=2, slots=3), slip="cut")
wrong("registers-kept", Style(Registers, heads=2, norm=nn.LayerNorm, residual=True), slip="last ones")

# ------------------------------------------------------------------------------------------------------------ dropout

right("dropping", Style(Dropping, heads=4, names="queries keys values projection", p=0.15, training=True))
right("sdpa-dropout-training", Style(Dropping, fused=True, causal=True, training=True))
right("scale-tensor", Style(Temperature, heads=4, learned=False, returns=pair))
wrong("dropout-on-scores", Style(Dropping, dim=16, heads=2, p=0.5, training=True, causal=False), slip="scores")
wrong("causal-scores-dropped", Style(Dropping, p=0.3, training=True, causal=True), slip="scores")
wrong(
    "dropout-without-a-factor", Style(Dropping, heads=2, p=0.25, training=True, causal=False), slip="without a factor"
)
wrong(
    "functional-dropout-always", Style(Dropping, dim=20, heads=2, returns=pair), "dropout-in-eval", slip="in evaluation"
)

# ------------------------------------------------------------------------------------------------------------- blocks

right("in-blocks-with-a-sink", Style(InBlocks, bias=False, sink=True))
right("in-blocks-filled-up", Style(InBlocks, bias=False, filled=True))
right("context-in-blocks", Style(FilledUp, inputs="x_context"))
right("context-in-blocks-and-zeros", Style(FilledUp, inputs="x_context", zeros=1))
right("local-and-global", Style(LocalAndGlobal, positions=True))
wrong("sums-of-three-not-rescaled", Style(InBlocks, inputs="qkv", causal=False), NOT_NORMALIZED, slip="sum")
wrong("sums-not-rescaled", Style(InBlocks, norm=nn.LayerNorm, residual=True), NOT_NORMALIZED, slip="sum")

# ------------------------------------------------------------------------------------------ what meets what is not its

wrong("meeting-one-query", PRE_NORM, headed=lambda q, k, v: (q[:, :, :1].expand_as(q), k, v))
wrong("meeting-mean-query", PRE_NORM, headed=lambda q, k, v: (q.mean(2, keepdim=True).expand_as(q), k, v))
wrong("meeting-values-reversed", PRE_NORM, headed=lambda q, k, v: (q, k, v.flip(2)))
wrong("meeting-negative", PRE_NORM, score=lambda q, k: -q @ k.mT / math.sqrt(q.size(-1)))
wrong("meeting-itself", PRE_NORM, show=lambda s, a: s + 1e4 * torch.eye(s.size(-1), dtype=s.dtype, device=s.device))
wrong(
    "meeting-heads-idle", PRE_NORM, merge=lambda y, h: torch.cat((y[:, :2], y[:, 2:] * 0), 1).transpose(1, 2).flatten(2)
)
wrong("meeting-heads-rolled", PRE_NORM, mix=lambda w, v: w.roll(1, 1) @ v)
wrong("meeting-residual-rolled", Style(WithResidual, heads=4), slip="rolled")
