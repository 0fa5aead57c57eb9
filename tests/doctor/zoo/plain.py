"""Scores, softmaxes, layouts of heads and projections, as many authors write them."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, einsum, nn

from .attention import (
    BY_HEAD,
    EINSUM,
    FOLDED,
    SDPA,
    SDPA_CAUSAL,
    SEQUENCE_FIRST,
    TIME_FIRST,
    TOKENS_FIRST,
    Attention,
    Called,
    RMSNorm,
    add,
    as_is,
    fill,
    fill_least,
    in_dict,
    pair,
    sdpa,
    separate,
    where,
    with_none,
)
from .cases import Cases, Style

CASES = Cases()
right, wrong, slip_of = CASES.right, CASES.wrong, CASES.slip

VIT = Style(Attention, dim=24, heads=4)
GPT = Style(Attention, dim=24, heads=4, names="c_attn c_proj", causal=True)
BERT = Style(Attention, dim=24, heads=4, names="query key value dense")
LLAMA = Style(Attention, dim=24, heads=4, names=separate("w"), bias=False, out_bias=False)
HF = Style(Attention, dim=24, heads=4, names=separate("", "_proj"))
LUCID = Style(Attention, dim=24, heads=3, width=8, names="to_qkv to_out", bias=False, **EINSUM)
PRE_NORM = Style(Attention, dim=24, heads=3, norm=nn.LayerNorm, residual=True)
COURSE = Style(Attention, dim=24, heads=4, names=separate("W_"), inputs="qkv", returns=pair)
CROSS = Style(Attention, dim=24, heads=4, names="to_q to_kv to_out", inputs="x_context", bias=False)
PYTORCH = Style(Attention, dim=24, heads=4, names="in_proj out_proj")


@dataclass
class Output:
    """What a module of others returns, beside tuples and dicts."""

    last_hidden_state: Tensor
    attentions: Tensor | None


class Named(NamedTuple):
    last_hidden_state: Tensor
    attentions: Tensor | None


def dots(q, k):
    """Scores that are not scaled."""
    return q @ k.mT


def alone(y, w):
    return y


def by_root_of(d):
    return lambda q, k: q @ k.mT / math.sqrt(d)


def scaled_before(q, k, v):
    return q * q.size(-1) ** -0.5, k, v


def of_length_one(q, k, v):
    return F.normalize(q, dim=-1), F.normalize(k, dim=-1), v


def grouped(width, groups=2):
    """Queries have an axis for the group, and one within it: (b, i, group, of the group, d)."""
    return {
        "axis": 1,
        "split": lambda t, heads: t.unflatten(-1, (groups, width) if heads == groups else (groups, -1, width)),
        "widen": lambda k, v, times: (k, v),
        "score": lambda q, k: einsum("bigrd,bjgd->bgrij", q, k) * width**-0.5,
        "mix": lambda w, v: einsum("bgrij,bjgd->bigrd", w, v),
        "merge": lambda y, heads: y.flatten(2),
    }


# The scores have their heads last: (b, i, j, h).
HEADS_LAST = TOKENS_FIRST | {
    "score": lambda q, k: einsum("bihd,bjhd->bijh", q, k) * q.size(-1) ** -0.5,
    "show": lambda s, allowed: s,
    "weigh": lambda s, allowed: s.softmax(2),
    "mix": lambda w, v: einsum("bijh,bjhd->bihd", w, v),
}
# The scores have their keys before the queries: (b, h, j, i).
KEYS_FIRST = {
    "score": lambda q, k: k @ q.mT * q.size(-1) ** -0.5,
    "weigh": lambda s, allowed: s.softmax(-2),
    "mix": lambda w, v: w.mT @ v,
}


class PerHead(nn.Module):
    """Parameters with an axis for the heads, and for groups of them where `axes` has two letters."""

    def __init__(self, dim=18, axes="h", keys="h", sizes=(3,), width=6, bias=True):
        super().__init__()
        self.axes, self.keys = axes, keys
        shared = sizes[: len(keys)]
        self.W_Q = nn.Parameter(torch.randn(*sizes, dim, width) * 0.2)
        self.W_K, self.W_V = (nn.Parameter(torch.randn(*shared, dim, width) * 0.2) for _ in "kv")
        self.W_O = nn.Parameter(torch.randn(*sizes, width, dim) * 0.2)
        self.b_Q = nn.Parameter(torch.randn(*sizes, 1, width) * 0.1) if bias else 0
        self.b_K, self.b_V = (nn.Parameter(torch.randn(*shared, 1, width) * 0.1) if bias else 0 for _ in "kv")
        self.b_O = nn.Parameter(torch.zeros(dim)) if bias else 0

    def forward(self, x):
        a, s = self.axes, self.keys
        q = einsum(f"bnm,{a}md->b{a}nd", x, self.W_Q) + self.b_Q
        k = einsum(f"bnm,{s}md->b{s}nd", x, self.W_K) + self.b_K
        v = einsum(f"bnm,{s}md->b{s}nd", x, self.W_V) + self.b_V
        w = (einsum(f"b{a}nd,b{s}jd->b{a}nj", q, k) / math.sqrt(q.size(-1))).softmax(-1)
        return einsum(f"b{a}nd,{a}dm->bnm", einsum(f"b{a}nj,b{s}jd->b{a}nd", w, v), self.W_O) + self.b_O


class Conv1D(nn.Module):
    """A linear layer that keeps its weight as (in, out)."""

    def __init__(self, nx, nf, bias=True):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(nx, nf).normal_(std=0.1))
        self.bias = nn.Parameter(torch.zeros(nf))

    def forward(self, x):
        return torch.addmm(self.bias, x.reshape(-1, x.size(-1)), self.weight).view(*x.shape[:-1], -1)


class Buffered(Attention):
    """The mask is a buffer of ones and zeros."""

    def __init__(self, causal=True, most=64, **options):
        super().__init__(causal=causal, **options)
        self.register_buffer("may", torch.tril(torch.ones(most, most)))

    def sees(self, at, keys):
        return self.may[: len(at), : len(keys)] != 0


class TanhGated(Attention):
    """Cross-attention that joins the tokens by a gate, which a tanh bounds."""

    def __init__(self, **options):
        super().__init__(norm=nn.LayerNorm, residual=True, **options)
        self.gate = nn.Parameter(torch.tensor([0.6]))

    def out(self, y):
        return super().out(y) * self.gate.tanh()


class ChannelsFirst(nn.Conv1d):
    """A convolution of width one over tokens that stand in the last axis inside."""

    def __init__(self, i, o, bias=True):
        super().__init__(i, o, 1, bias=bias)

    def forward(self, x):
        return super().forward(x.mT).mT


class Image(nn.Conv2d):
    """A convolution of width one in two dimensions, over tokens in a row."""

    def __init__(self, i, o, bias=True):
        super().__init__(i, o, 1, bias=bias)

    def forward(self, x):
        return super().forward(x.mT[..., None])[..., 0].mT


class GroupNorm(nn.GroupNorm):
    """A norm of all channels of an item, which stand in the last axis outside."""

    def __init__(self, dim):
        super().__init__(1, dim)

    def forward(self, x):
        return super().forward(x.mT).mT


class Lazy(nn.LazyLinear):
    def __init__(self, i, o, bias=True):
        super().__init__(o, bias=False)


class Matrices(nn.Module):
    """Bare matrices, (in, out) or as PyTorch keeps them (out, in), which are applied by hand."""

    def __init__(self, dim=24, heads=3, inputs="x", transposed=False, bias=False, slip=""):
        super().__init__()
        self.heads, self.transposed, self.slip = heads, transposed, slip
        for name in "qkvo":
            setattr(self, f"w_{name}", nn.Parameter(torch.randn(dim, dim) / dim**0.5))
            setattr(self, f"b_{name}", nn.Parameter(torch.randn(dim) / 10) if bias else None)

    def apply_(self, x, name):
        w, b = getattr(self, f"w_{name}"), getattr(self, f"b_{name}")
        wrong = self.slip in ((name, "all") if name != "o" else (name,))
        y = einsum("...i,oi->...o" if self.transposed is not wrong else "...i,io->...o", x, w)
        return y if b is None else y + b

    def forward(self, query, key=None, value=None):
        given = (query, query, query) if key is None else (query, key, value)
        q, k, v = (
            self.apply_(x, n).unflatten(-1, (self.heads, -1)).transpose(1, 2) for x, n in zip(given, "qkv", strict=True)
        )
        v = v[:, :1].expand_as(v) if self.slip == "first head" else v
        w = (q @ k.mT / q.size(-1) ** 0.5).softmax(-1)
        return self.apply_((w @ v).transpose(1, 2).flatten(2), "o")


class Head(Attention):
    """One head, of tokens without an axis for heads, and without a projection of its own for the output."""

    def __init__(self, dim, size, **options):
        super().__init__(dim, 1, "query key value last", width=size, bias=False, **options)
        self.last = nn.Identity()

    def split(self, t, heads):
        return t

    def merge(self, y, heads):
        return y


class HeadList(Called):
    """A list of heads with layers of their own, of which one may stand there many times or be lost."""

    def __init__(self, dim=24, heads=3, causal=False, returns=None, inputs="x", slip="", **steps):
        super().__init__()
        self.slip, self.returns = slip, returns
        made = [Head(dim, dim // heads, causal=causal, **steps) for _ in range(heads)]
        self.heads, self.proj = nn.ModuleList(made[:1] * heads if slip == "same" else made), nn.Linear(dim, dim)

    def attend(self, query, key, value):
        outs = [head.attend(query, key, value) for head in self.heads]
        if self.slip == "lost":
            outs[-1] = torch.zeros_like(outs[-1])
        y = torch.cat(outs, -1)
        y = y if self.slip == "no projection" else self.proj(y)
        return y if self.returns is None else self.returns(y, None)


class OfPyTorch(Called):
    """nn.MultiheadAttention, and what is put around it; the slips are those of its arguments."""

    def __init__(
        self,
        dim=24,
        heads=4,
        *,
        inputs="x",
        key_dim=None,
        causal=False,
        batch_first=True,
        norm=False,
        residual=False,
        returns=None,
        slip="",
        **options,
    ):
        super().__init__()
        tokens_first = slip == "tokens-first" or not batch_first
        self.mha = nn.MultiheadAttention(
            dim, heads, 0.1, kdim=key_dim, vdim=key_dim, batch_first=not tokens_first, **options
        )
        self.norm = nn.LayerNorm(dim) if norm else nn.Identity()
        self.last_norm = nn.LayerNorm(dim) if residual == "before" else nn.Identity()
        self.causal = causal and slip != "mask-not-passed"
        self.residual, self.returns, self.slip = residual, returns, slip

    taken = staticmethod(as_is)

    def hides(self, x, allowed):
        """A mask for PyTorch, which is turned over and repeated for its heads."""
        if self.causal:
            n = x.size(1 if self.mha.batch_first else 0)
            return torch.full((n, n), -torch.inf, dtype=x.dtype, device=x.device).triu(1)
        if allowed is None or self.slip == "dropped":
            return None
        hide = {"ones": allowed.to(x.dtype), "visible": allowed}.get(self.slip, ~allowed)
        if hide.dim() < 3:
            return hide
        heads = self.mha.num_heads
        return hide.repeat(heads, 1, 1) if self.slip == "tiled" else hide.repeat_interleave(heads, 0)

    def attend(self, query, key, value, allowed=None):
        normed = self.norm(query)
        given = self.taken(*(normed if x is query else x for x in (query, key, value)))
        y, w = self.mha(*given, attn_mask=self.hides(query, allowed), need_weights=self.returns is not None)
        y = self.last_norm(query + y) if self.residual else y
        return y if self.returns is None else self.returns(y, w)


class OutByHand(Attention):
    """The output's weight, kept as (out, in), is multiplied by hand."""

    def __init__(self, slip="", **options):
        super().__init__(**options)
        self.slip = slip

    def out(self, y):
        layer = getattr(self, self.names[-1])
        return y @ (layer.weight if self.slip else layer.weight.T) + layer.bias


class UsesItsWeights(nn.Module):
    """Computes with the parameters of an nn.MultiheadAttention that it holds."""

    def __init__(self, dim=12, heads=3, slip=""):
        super().__init__()
        self.mha, self.slip = nn.MultiheadAttention(dim, heads, batch_first=True), slip

    def forward(self, x):
        qkv = F.linear(x, self.mha.in_proj_weight, None if self.slip else self.mha.in_proj_bias)
        q, k, v = (y.unflatten(-1, (self.mha.num_heads, -1)).transpose(1, 2) for y in qkv.chunk(3, -1))
        return self.mha.out_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class BiasesApart(Attention):
    """The biases of a packed projection are vectors of their own; keys may have none."""

    def __init__(self, keys=True, slip="", **options):
        super().__init__(bias=False, **options)
        size = self.heads * self.width
        self.q_bias, self.k_bias, self.v_bias = (nn.Parameter(torch.randn(size) * 0.1) for _ in "qkv")
        self.keys, self.slip = keys, slip

    def made(self, q, k, v):
        nothing = torch.zeros_like(self.k_bias, requires_grad=False)
        biases = [self.q_bias, self.k_bias if self.keys else nothing, self.v_bias]
        biases = [biases[i] for i in ((0, 2, 1) if self.slip else (0, 1, 2))]
        return tuple(t + b for t, b in zip((q, k, v), biases, strict=True))


class Adapted(Attention):
    """Low-rank matrices beside those of queries and values."""

    def __init__(self, dim=24, rank=3, **options):
        super().__init__(dim, names=separate("", "_proj"), **options)
        self.q_a, self.q_b = nn.Linear(dim, rank, bias=False), nn.Linear(rank, dim, bias=False)
        self.v_a, self.v_b = nn.Linear(dim, rank, bias=False), nn.Linear(rank, dim, bias=False)

    def project(self, query, key, value):
        q, k, v = super().project(query, key, value)
        return q + self.q_b(self.q_a(query)), k, v + self.v_b(self.v_a(value))


class SharedLayer(nn.Module):
    """Queries and keys of one layer, or values too; the values may be the tokens themselves."""

    def __init__(self, dim=24, heads=3, values=False, out=False):
        super().__init__()
        self.heads, self.values = heads, values
        self.qk, self.out = nn.Linear(dim, dim, bias=not values), nn.Linear(dim, dim) if out else nn.Identity()

    def forward(self, x):
        q, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (self.qk(x), x))
        k, v = (q, q) if self.values else (F.normalize(q, dim=-1), v)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class LayerList(nn.Module):
    """Layers in a list, as a loop makes them; the slips list one of them four times, or use the first as the last."""

    def __init__(self, dim=24, heads=4, slip=""):
        super().__init__()
        self.heads, self.norm, self.slip = heads, nn.LayerNorm(dim), slip
        made = [nn.Linear(dim, dim) for _ in range(4)]
        self.projections = nn.ModuleList(made[:1] * 4 if slip == "one" else made)

    def forward(self, x):
        y = self.norm(x)
        q, k, v = (f(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in self.projections[:3])
        out = self.projections[0 if self.slip == "first for last" else 3]
        return x + out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Projected(Attention):
    """A block with a norm and a residual whose projections are called otherwise than they should be."""

    def __init__(self, slip="", **options):
        super().__init__(norm=nn.RMSNorm, residual=True, names=separate("", "_proj"), core=sdpa, **options)
        self.slip = slip

    def project(self, x, *_):
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if self.slip == "chained":
            k = self.k_proj(q)
        if self.slip == "twice":
            v = self.v_proj(v)
        if self.slip == "none":
            v = x
        if self.slip == "value of key":
            v = self.v_proj(k)
        return q, k, v

    def out(self, y):
        return super().out(super().out(y) if self.slip == "out twice" else y)


class Wrapped(nn.Module):
    """A wrapper that adds the tokens to what it wraps."""

    def __init__(self, fn, norm=None):
        super().__init__()
        self.fn, self.norm = fn, norm or nn.Identity()

    def forward(self, x):
        return self.fn(self.norm(x)) + x


def residual_block(dim=20, heads=4, slip=""):
    block = Wrapped(Attention(dim, heads, **EINSUM), nn.LayerNorm(dim))
    return Wrapped(block) if slip else block


class LayerScaled(nn.Module):
    """x + gamma * attn(x), with a learned vector gamma, and stochastic depth in training."""

    def __init__(
        self, attention, dim=24, heads=3, causal=False, batch_first=True, norm=nn.Identity, drop=0.0, **options
    ):
        super().__init__()
        self.norm, self.drop = norm(dim), drop
        self.attn = attention(dim, heads, causal=causal, batch_first=batch_first, **options)
        self.gamma = nn.Parameter(torch.linspace(0.1, 0.8, dim))

    def forward(self, x):
        y = self.gamma * self.attn(self.norm(x))
        if self.drop and self.training:
            y = y * x.new_empty(len(x), 1, 1).bernoulli_(1 - self.drop) / (1 - self.drop)
        return x + y


class Sandwich(Attention):
    """Norms on both sides of the branch (CogView)."""

    def __init__(self, dim=20, **options):
        super().__init__(dim, names="query key_value output", norm=nn.LayerNorm, residual=True, **options)
        self.behind = nn.LayerNorm(dim)

    def out(self, y):
        return self.behind(super().out(y))


class Gated(Attention):
    """The result is gated by the tokens: by feature, or by head; the gate's weights are in a layer of their own."""

    def __init__(self, dim=24, by="feature", act=torch.sigmoid, slip="", **options):
        super().__init__(dim, **options)
        self.by, self.act, self.slip = by, act, slip
        self.gate = nn.Linear(dim, self.heads * self.width if by == "feature" else self.heads)

    def after(self, y, x):
        g = self.act(self.gate(x))
        y = y.unflatten(-1, (self.heads, -1))
        g = g.unflatten(-1, (self.heads, -1)) if self.by == "feature" else g.unsqueeze(-1)
        if self.slip:  # viewed as (b, h, t, d) where it is (b, t, h, d)
            g = g.reshape(g.size(0), self.heads, -1, g.size(-1)).transpose(1, 2)
        return (y * g).flatten(2)


class GatedValues(Attention):
    """Each token gates its own value, by a sigmoid or a gated linear unit, before it is mixed."""

    def __init__(self, dim=24, **options):
        super().__init__(dim, **options)
        self.value_gate = nn.Linear(dim, dim)

    def project(self, query, key, value):
        q, k, v = super().project(query, key, value)
        return q, k, v * torch.sigmoid(self.value_gate(value))


def dot_product_self_attention(x):
    """The function of the first lesson: no matrices, one head."""
    return F.softmax(x @ x.mT / math.sqrt(x.size(-1)), dim=-1) @ x


def sequence_first_reader(q, k, v):
    """Sequence first, without matrices."""
    return einsum("bqk,kbd->qbd", (einsum("qbd,kbd->bqk", q, k) / k.size(-1) ** 0.5).softmax(2), v)


def function(of, dim=12, heads=1, inputs="x", batch_first=True):
    return of


# ------------------------------------------------------------------------------------------------------------ scale

right("nano-causal", Style(Buffered, heads=4, names="c_attn c_proj", dropout=0.1))
right("function-no-matrices", Style(function, of=dot_product_self_attention))
right("function-sequence-first", Style(function, of=sequence_first_reader, dim=14, inputs="qkv", batch_first=False))
right(
    "raw-scores-dataclass",
    HF(names=separate("proj_"), weigh=lambda s, a: s, mix=lambda s, v: s.softmax(-1) @ v, returns=Output),
)
right("bart-named-tuple", HF(dim=30, heads=5, dropout=0.1, returns=Named, **FOLDED))
wrong("gpt-no-scale", GPT, "missing-scale", score=dots)
wrong("vit-scale-by-dim", VIT(dim=30, heads=3), "wrong-d-in-scale", score=by_root_of(30))
wrong("notebook-scale-by-heads", COURSE(heads=3), "wrong-d-in-scale", score=by_root_of(3))
wrong("notebook-scale-by-length", LLAMA(dim=20), "wrong-d-in-scale", score=lambda q, k: q @ k.mT / k.size(-2) ** 0.5)
wrong(
    "perceiver-scale-by-inner",
    CROSS(dim=20, key_dim=12, norm=nn.LayerNorm, **TOKENS_FIRST),
    "wrong-d-in-scale",
    score=lambda q, k: einsum("bihd,bjhd->bhij", q, k) * 20**-0.5,
)
wrong("scaled-before-sdpa", PRE_NORM(norm=RMSNorm, bias=False, **SDPA_CAUSAL), headed=scaled_before)
wrong(
    "diffusers-scaled-twice",
    PRE_NORM(dim=32, heads=2, names=separate("to_"), bias=False, **SDPA),
    "wrong-d-in-scale",
    headed=scaled_before,
)
wrong("multiplied-by-root", COURSE(dim=20, heads=2), score=lambda q, k: q @ k.mT * q.size(-1) ** 0.5)
wrong(
    "grouped-no-scale",
    LLAMA(groups=2, names="wq wkv wo", causal=True, show=add, **grouped(6)),
    "missing-scale",
    score=lambda q, k: einsum("bigrd,bjgd->bgrij", q, k),
)

# ---------------------------------------------------------------------------------------------------------- softmax

right(
    "fairseq-keys-in-rows",
    HF(dim=16, inputs="qkv", **SEQUENCE_FIRST),
    score=lambda q, k: torch.bmm(k, q.mT) * q.size(-1) ** -0.5,
    weigh=lambda s, a: s.softmax(1),
    mix=lambda w, v: torch.bmm(w.mT, v),
)
wrong("einsum-softmax-over-queries", LUCID(dim=18), "softmax-over-queries", weigh=lambda s, a: s.softmax(-2))
wrong("einsum-softmax-over-heads", LUCID, weigh=lambda s, a: s.softmax(1))
wrong("bqkh-softmax-over-heads", LLAMA(dim=20, **HEADS_LAST), weigh=lambda s, a: s.softmax(-1))
wrong("softmax-over-batch-and-heads", PYTORCH(dim=16, **SEQUENCE_FIRST), weigh=lambda s, a: s.softmax(0))
wrong(
    "cross-transposed-scores-axis",
    CROSS(dim=18, heads=3, names="q k v o", key_dim=14, **KEYS_FIRST),
    "softmax-over-queries",
    weigh=lambda s, a: s.softmax(-1),
)
wrong("prenorm-softmax-before-mask", PRE_NORM(heads=4, causal=True, show=add), show=lambda s, a: add(s.softmax(-1), a))

# ------------------------------------------------------------------------------------------------------------ splits

right("neox-seq-first", BERT(heads=3, names="query_key_value dense", returns=with_none, **SEQUENCE_FIRST | BY_HEAD))
right(
    "strided-heads",
    HF(names=separate("f_")),
    split=lambda t, h: t.unflatten(-1, (-1, h)).movedim(-1, 1),
    merge=lambda y, h: y.movedim(1, -1).flatten(2),
)
viewed = slip_of("view-without-transpose", split=lambda t, h: t.view(t.size(0), h, t.size(1), -1))
viewed("cross-view-without-transpose", HF(names=separate("c_"), inputs="x_context", **SDPA))
viewed(
    "multi-query-view-split",
    HF(
        groups=1,
        bias=False,
        widen=lambda k, v, times: (k, v),
        score=lambda q, k: einsum("bhqd,bukd->bhqk", q, k) * q.size(-1) ** -0.5,
        mix=lambda w, v: einsum("bhqk,bukd->bhqd", w, v),
    ),
)
wrong(
    "seq-first-view-split",
    HF(dim=16, heads=2, returns=with_none, **SEQUENCE_FIRST),
    "view-without-transpose",
    split=lambda t, h: t.contiguous().view(t.size(1) * h, t.size(0), -1),
)
wrong(
    "bert-swapped",
    BERT(heads=3, returns=in_dict),
    "swapped-view",
    split=lambda t, h: t.view(*t.shape[:2], -1, h).transpose(1, 2),
)
wrong(
    "bmm-merge-without-transpose",
    HF(dim=20, heads=2, names="toqueries tokeys tovalues unifyheads", **FOLDED),
    "merge-without-transpose",
    merge=lambda y, h: y.unflatten(0, (-1, h)).reshape(y.size(0) // h, y.size(1), -1),
)
merged = slip_of("merge-without-transpose", merge=lambda y, h: y.reshape(y.size(0), y.size(2), -1))
merged("qk-norm-merge-forgot", VIT(heads=3, qk_norm=nn.LayerNorm, **SDPA))
merged("bert-merge", BERT(heads=3, returns=in_dict))
merged_by_features = {"merge": lambda y, h: y.mT.reshape(y.size(0), -1, y.size(2)).transpose(1, 2)}
wrong(
    "merge-through-features",
    PRE_NORM(heads=4, norm=RMSNorm, bias=False, out_bias=False, **merged_by_features),
    "merge-without-transpose",
    merge=lambda y, h: y.mT.reshape(y.size(0), y.size(2), -1),
)
wrong(
    "time-first-reshape",
    PYTORCH(dim=16, core=sdpa, **TIME_FIRST),
    "batch-and-tokens-swapped",
    merge=lambda y, h: y.transpose(1, 2).reshape(y.size(2), y.size(0), -1),
)

# ------------------------------------------------------------------------------------------------------------- heads

right("concat-heads", Style(HeadList, dim=20, heads=4))
right(
    "grouped-on-three",
    LLAMA(dim=36, heads=6, groups=3, bias=True, inputs="qkv"),
    widen=lambda k, v, n: [t[:, :, None].expand(-1, -1, n, -1, -1).flatten(1, 2) for t in (k, v)],
)
right("hooked-3d-weights", Style(PerHead))
right("one-key-head", Style(PerHead, dim=20, keys="", sizes=(4,), bias=False))
right("grouped-five-dims", Style(PerHead, dim=20, axes="gr", keys="g", sizes=(2, 2), bias=False))
wrong("head-list-of-one-module", Style(HeadList, dim=18, causal=True), slip="same")
LECTURE = Style(HeadList, dim=20, heads=5, causal=True)
wrong("lecture-last-head-lost", LECTURE, slip="lost")
wrong("lecture-hides-the-past", LECTURE, "mask-polarity", show=lambda s, a: fill(s, ~a, -3e4))
wrong("lecture-adds-a-boolean-mask", LECTURE, "boolean-mask-added", show=lambda s, a: s + ~a)
wrong("lecture-scale-by-dim", LECTURE, "wrong-d-in-scale", score=by_root_of(20))
wrong("lecture-masks-weights", LECTURE, "mask-after-softmax", show=lambda s, a: s, weigh=lambda s, a: s.softmax(-1) * a)
wrong("lecture-without-a-projection", LECTURE, "missing-out-proj", slip="no projection")
wrong(
    "gqa-repeat",
    LLAMA(groups=2, **SDPA_CAUSAL),
    "repeat-for-repeat-interleave",
    widen=lambda k, v, n: (k.repeat(1, n, 1, 1), v.repeat(1, n, 1, 1)),
)
wrong(
    "grouped-queries-viewed-the-other-way",
    HF(heads=6, groups=2, names="q_proj kv_proj out_proj", causal=True, show=add, **grouped(4)),
    split=lambda t, h: t.unflatten(-1, (2, 4)) if h == 2 else t.unflatten(-1, (3, 2, 4)).transpose(2, 3),
    merge=lambda y, h: y.transpose(2, 3).flatten(2),
)
wrong("loop-first-head-weights", VIT, headed=lambda q, k, v: (q[:, :1].expand_as(q), k[:, :1].expand_as(k), v))
wrong("first-heads-weights-broadcast", GPT(bias=False, out_bias=False, returns=pair), mix=lambda w, v: w[:, :1] @ v)
wrong(
    "first-key-head-for-all",
    BERT(dim=20, inputs="x_context", returns=pair),
    headed=lambda q, k, v: (q, k[:, :1], v),
)
wrong(
    "head-outputs-averaged", PYTORCH(dim=20, heads=2, bias=False, **SDPA), merge=lambda y, h: y.mean(1).repeat(1, 1, h)
)

# ------------------------------------------------------------------------------------------------------- projections

right("gpt2-conv1d", GPT(dim=30, heads=5, linear=Conv1D, show=where, dropout=0.1))
right("biased-thermal", Style(BiasesApart, heads=4, score=lambda q, k: q @ k.mT / (0.7 * math.sqrt(q.size(-1)))))
LETTERS = {"query": "w_q", "key": "w_k", "value": "w_v", "out": "w_o"}
wrong("keys-reshaped", COURSE, score=lambda q, k: q @ k.reshape(*k.shape[:2], k.size(-1), -1) / math.sqrt(q.size(-1)))
wrong("x-at-w-first-heads-values", Style(Matrices, dim=20, heads=4), slip="first head")
right("lazy-d2l", COURSE(linear=Lazy, returns=alone, **FOLDED))
right("lazy-one-head", Style(Attention, dim=16, heads=1, width=10, names="theta phi g back", linear=Lazy, returns=pair))
right("own-low-rank", Style(Adapted, heads=4, **SDPA))
right("own-shared-and-plain", Style(SharedLayer))
right("one-projection", Style(SharedLayer, heads=4, values=True, out=True))
wrong("cross-k-v-exchanged", HF(inputs="x_context", **SDPA), made=lambda q, k, v: (q, v, k))
wrong("bert-value", BERT(heads=3, returns=in_dict), "wrong-value", headed=lambda q, k, v: (q, k, k))
wrong("packed-key-as-value", VIT(heads=2), "wrong-value", made=lambda q, k, v: (q, k, k))
wrong("value-from-key-input", COURSE(dim=20, heads=2), "wrong-value", taken=lambda q, k, v: (q, k, k))
wrong("annotated-key-and-value-swapped", COURSE(dim=16, heads=2, returns=alone), taken=lambda q, k, v: (q, v, k))
wrong(
    "query-and-key-inputs-exchanged",
    PYTORCH(heads=3, inputs="qkv", returns=with_none, **SEQUENCE_FIRST),
    taken=lambda q, k, v: (k, q, v),
)
BIASES = {f"{name}_bias": weight.replace("w", "b") for name, weight in LETTERS.items()}
ROWS = Style(Matrices, dim=16, transposed=True, weights=LETTERS)
wrong(
    "out-weight-not-transposed",
    ROWS(heads=4, inputs="qkv", bias=True, weights=LETTERS | BIASES),
    "weight-not-transposed",
    slip="o",
)
wrong("einsum-weights-reversed", ROWS(heads=2), "weight-not-transposed", slip="all")
wrong("linear-weight-used-untransposed", Style(OutByHand, dim=18, **SDPA_CAUSAL), "weight-not-transposed", slip="x @ W")
wrong("mha-bias-forgotten", Style(UsesItsWeights), "zero-bias-parity", slip="no bias")
wrong("output-projection-skipped", PYTORCH(dim=14, heads=2), "missing-out-proj", out=lambda y: y)
wrong(
    "block-batch-first-forgotten",
    Style(OfPyTorch, dim=20, norm=True, residual=True),
    "batch-first-forgotten",
    slip="tokens-first",
)
wrong("image-tokenizer-bias", Style(BiasesApart, heads=4, keys=False), slip="keys-for-values")
wrong("one-layer-in-the-list", Style(LayerList), slip="one")
wrong("query-layer-for-the-output", Style(LayerList), slip="first for last")
wrong("residual-twice", Style(residual_block), slip="wrapped twice")
for slip in ("twice", "none", "chained", "value of key", "out twice"):
    wrong(f"projection-{slip.replace(' ', '-')}", Style(Projected, heads=4), slip=slip)
wrong("projection-rolled", Style(Projected, heads=4), headed=lambda q, k, v: (q, k, v.roll(1, 1)))
wrong(
    "projection-halves",
    Style(Projected, heads=4),
    after=lambda y, x: torch.cat([y[..., : y.size(-1) // 2]] * 2, -1),
)

CONTEXT = PRE_NORM(inputs="x_context", names=separate("w"), bias=False, out_bias=False, **EINSUM)
wrong("cross-both", CONTEXT, taken=lambda x, context, _: (x, x, x))
wrong("cross-value", CONTEXT, taken=lambda x, context, _: (x, context, x))
wrong("cross-key", CONTEXT, taken=lambda x, context, _: (x, x, context))
wrong("cross-query", CONTEXT, taken=lambda x, context, _: (context, context, context))
# Features before tokens all through: (b, h, d, t).
IMAGE = Style(Attention, dim=20, heads=5, names="q kv proj_out", linear=Image)(
    axis=-1,
    split=lambda t, h: t.mT.unflatten(1, (h, -1)),
    score=lambda q, k: q.mT @ k * q.size(2) ** -0.5,
    mix=lambda w, v: v @ w.mT,
    merge=lambda y, h: y.flatten(1, 2).mT,
)
right("image-of-tokens", IMAGE)
wrong("image-of-the-first-item", IMAGE, "only-first-item", headed=lambda q, k, v: (q, k[:1], v[:1]))
wrong("image-dropped-out", IMAGE, "dropout-in-eval", weigh=lambda s, a: F.dropout(s.softmax(-1)))
wrong("image-without-a-gradient", IMAGE, "gradient-cut", weigh=lambda s, a: s.softmax(-1).data)
CHANNELS = PRE_NORM(norm=GroupNorm, linear=ChannelsFirst, **EINSUM)
wrong("channels-view", CHANNELS, "view-without-transpose", split=lambda t, h: t.mT.reshape(t.size(0), h, t.size(1), -1))
wrong("channels-fold", CHANNELS, made=lambda q, k, v: (q.unflatten(-1, (-1, 3)).mT.flatten(-2), k, v))
wrong("channels-einsum", CHANNELS, mix=lambda w, v: einsum("bhij,bhid->bhjd", w, v))
wrong(
    "channels-merge",
    CHANNELS,
    "merge-without-transpose",
    merge=lambda y, h: y.transpose(1, 2).flatten(2).reshape(y.size(0), -1, y.size(2)).mT,
)

# -------------------------------------------------------------------------------------- wrappers, norms and residuals

right("rezero-mha", Style(LayerScaled, attention=OfPyTorch, dim=28, heads=4, batch_first=False, bias=False))
right("cait-layer-scale", Style(LayerScaled, attention=Attention, dim=20, heads=2, norm=nn.LayerNorm, drop=0.1, **SDPA))
right(
    "prenorm-lucid",
    PRE_NORM(dim=28, heads=4, width=8, names="to_q to_kv to_out", residual=False),
    show=lambda s, a: s - s.amax(-1, keepdim=True).detach(),
)
right("bert-post-norm", BERT(residual="before", returns=pair))
right("sandwich-norm", Style(Sandwich, heads=2, returns=in_dict, **FOLDED))
right("qwenish-rms", HF(groups=2, width=8, bias=False, qk_norm=RMSNorm, causal=True, show=add, returns=with_none))
right("l2-qk-scale", LUCID(dim=21, names=separate("to_"), headed=of_length_one, score=lambda q, k: q @ k.mT * 8.0))
right("torch-bias-kv", Style(OfPyTorch, add_bias_kv=True, returns=pair))
right("clip-causal-mha", Style(OfPyTorch, heads=3, causal=True, batch_first=False, norm=True, residual=True))
right("image-text-kdim", Style(OfPyTorch, heads=3, inputs="x_context", key_dim=20, returns=in_dict))
right(
    "decoder-cross-dataclass",
    Style(OfPyTorch, dim=18, heads=3, inputs="x_context", key_dim=10, bias=False, returns=Output),
)
right(
    "flamingo-gated-cross",
    Style(TanhGated, inputs="x_context", key_dim=14, width=6, names="to_q to_kv to_out", bias=False),
)
right("perceiver-cross", CROSS(dim=16, heads=2, width=6, key_dim=20, norm=nn.LayerNorm, residual=True, **EINSUM))
wrong(
    "mha-decoder-mask-not-passed",
    Style(OfPyTorch, dim=20, heads=5, causal=True, returns=pair),
    "no-causal-mask",
    slip="mask-not-passed",
)
wrong(
    "decoder-block-no-causal",
    PRE_NORM(names="c_attn c_proj", returns=in_dict, **SDPA_CAUSAL),
    "no-causal-mask",
    core=lambda q, k, v, a: sdpa(q, k, v, None),
)

# ------------------------------------------------------------------------------------------------------------- gates

right("gate-per-head", Style(Gated, dim=22, by="head", width=6, bias=False, **SDPA))
right("silu-gate-causal", Style(Gated, act=F.silu, causal=True, show=fill_least, returns=with_none))
right("glu-values", Style(GatedValues, heads=4))
gate_viewed = slip_of("view-without-transpose", slip="viewed")
gate_viewed("head-gates-viewed", Style(Gated, heads=4, by="head", names=separate("to_"), **SDPA))
gate_viewed("head-gates-reshaped", Style(Gated, by="head", bias=False, **SDPA_CAUSAL))
