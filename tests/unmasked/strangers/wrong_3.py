"""Attention modules with one planted bug each. `fixed` makes the same module with the bug repaired."""

import math
from collections import namedtuple
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from cases import Case, seeded
from torch import nn

CASES = []


def case(name, build, call, kind, note, cause=None):
    seed = 300 + len(name)
    CASES.append(Case(name, seeded(seed, build, True), call, kind, note, cause, seeded(seed, build, False)))


class RMS(nn.Module):
    def __init__(self, n, eps=1e-6):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(n)), eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def rotate(x, base=10000.0, offset=0, pairs=False, sign=1.0):
    """x (..., tokens, features), in halves or in neighboring pairs."""
    n, d = x.shape[-2:]
    freq = base ** (-torch.arange(0, d, 2, dtype=torch.float64, device=x.device) / d)
    ang = sign * torch.outer(torch.arange(offset, offset + n, dtype=torch.float64, device=x.device), freq)
    cos, sin = ang.cos().to(x.dtype), ang.sin().to(x.dtype)
    if pairs:
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)


# ---- scale and softmax


class ScaledTwice(nn.Module):
    def __init__(self, slip, dim=24, heads=3):
        super().__init__()
        self.slip, self.heads, self.scale = slip, heads, (dim // heads) ** -0.5
        self.norm = RMS(dim)
        self.to_qkv, self.to_out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.to_qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.slip:
            q = q * self.scale
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.to_out(o.transpose(1, 2).flatten(2))


case(
    "scaled-before-sdpa",
    ScaledTwice,
    dict(embed_dim=24, num_heads=3, causal=True),
    "scale",
    "The queries are scaled, and SDPA scales again.",
)


class MultipliedScale(nn.Module):
    def __init__(self, slip, hid=20, heads=2):
        super().__init__()
        self.nh, self.hd = heads, hid // heads
        self.fc_q, self.fc_k, self.fc_v, self.fc_o = (nn.Linear(hid, hid) for _ in range(4))
        self.scale = self.hd**0.5 if slip else self.hd**-0.5

    def forward(self, query, key, value):
        b = query.shape[0]
        Q, K, V = (
            f(t).view(b, -1, self.nh, self.hd).permute(0, 2, 1, 3)
            for f, t in ((self.fc_q, query), (self.fc_k, key), (self.fc_v, value))
        )
        attention = torch.softmax(torch.matmul(Q, K.permute(0, 1, 3, 2)) * self.scale, dim=-1)
        return self.fc_o(torch.matmul(attention, V).permute(0, 2, 1, 3).reshape(b, -1, self.nh * self.hd)), attention


case(
    "multiplied-by-root",
    MultipliedScale,
    dict(embed_dim=20, num_heads=2, causal=False, inputs="qkv"),
    "scale",
    "The scores are multiplied by the root of the head's size instead of divided.",
)


class GqaNoScale(nn.Module):
    def __init__(self, slip, cfg=SimpleNamespace(dim=24, n_heads=4, n_kv_heads=2)):
        super().__init__()
        self.c, d = cfg, cfg.dim // cfg.n_heads
        self.wq, self.wo = nn.Linear(cfg.dim, cfg.dim, bias=False), nn.Linear(cfg.dim, cfg.dim, bias=False)
        self.wkv = nn.Linear(cfg.dim, 2 * cfg.n_kv_heads * d, bias=False)
        self.div = 1.0 if slip else math.sqrt(d)

    def forward(self, x):
        b, n, c = x.shape
        q = self.wq(x).view(b, n, self.c.n_kv_heads, -1, c // self.c.n_heads)
        k, v = self.wkv(x).view(b, n, 2, self.c.n_kv_heads, -1).unbind(2)
        s = torch.einsum("bigrd,bjgd->bgrij", q, k) / self.div
        s = s + torch.triu(torch.full((n, n), float("-inf"), device=x.device, dtype=x.dtype), 1)
        return self.wo(torch.einsum("bgrij,bjgd->bigrd", s.softmax(-1), v).reshape(b, n, c))


case(
    "grouped-no-scale",
    GqaNoScale,
    dict(embed_dim=24, num_heads=4, causal=True),
    "scale",
    "Grouped heads by einsum, without a scale.",
    "missing-scale",
)


class QueriesSoftmax(nn.Module):
    """Keys before queries in the scores' layout."""

    def __init__(self, slip, ch=18, heads=3, text=14):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = nn.Linear(ch, ch), nn.Linear(text, ch), nn.Linear(text, ch), nn.Linear(ch, ch)
        self.dim = -1 if slip else -2

    def forward(self, image, text):
        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (self.q(image), self.k(text), self.v(text))
        )
        w = (k @ q.mT / math.sqrt(q.size(-1))).softmax(self.dim)
        return self.o((w.mT @ v).transpose(1, 2).flatten(2))


case(
    "cross-transposed-scores-axis",
    QueriesSoftmax,
    dict(embed_dim=18, num_heads=3, causal=False, inputs="x_context", key_dim=14),
    "softmax",
    "In the layout (keys, queries) the softmax over the last axis is one over the queries.",
    "softmax-over-queries",
)


class ImplicitDim(nn.Module):
    """nn.Softmax(dim=0) on (b * h, n, n)."""

    def __init__(self, slip, embed=16, heads=4):
        super().__init__()
        self.h = heads
        self.in_proj, self.out_proj = nn.Linear(embed, 3 * embed), nn.Linear(embed, embed)
        self.softmax = nn.Softmax(dim=0 if slip else 2)

    def forward(self, x):
        t, b, e = x.shape
        q, k, v = (y.reshape(t, b * self.h, -1).transpose(0, 1) for y in self.in_proj(x).chunk(3, -1))
        w = self.softmax(torch.bmm(q, k.transpose(1, 2)) * q.size(-1) ** -0.5)
        return self.out_proj(torch.bmm(w, v).transpose(0, 1).reshape(t, b, e))


case(
    "softmax-over-batch-and-heads",
    ImplicitDim,
    dict(embed_dim=16, num_heads=4, causal=False, batch_first=False),
    "softmax",
    "The softmax runs over the axis of items and heads.",
)


class NoSum(nn.Module):
    """Linear attention with elu + 1."""

    def __init__(self, slip, d=24, h=3):
        super().__init__()
        self.slip, self.h = slip, h
        self.query, self.key, self.value, self.merge = (nn.Linear(d, d) for _ in range(4))

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (self.h, -1)) for f in (self.query, self.key, self.value))
        q, k = F.elu(q) + 1, F.elu(k) + 1
        y = torch.einsum("nlhd,nhdm->nlhm", q, torch.einsum("nshd,nshm->nhdm", k, v))
        if not self.slip:
            y = y / (torch.einsum("nlhd,nhd->nlh", q, k.sum(1)) + 1e-6)[..., None]
        return self.merge(y.flatten(2))


case(
    "linear-without-normalizer",
    NoSum,
    dict(embed_dim=24, num_heads=3, causal=False),
    "softmax",
    "Linear attention does not divide by the sum of its weights.",
    "weights-not-normalized",
)


class ReNormalized(nn.Module):
    """Weights divided by their sum over the queries, in a block with norm and residual."""

    def __init__(self, slip, d=20, h=2):
        super().__init__()
        self.h, self.axis = h, (2 if slip else 3)
        self.ln, self.qkv, self.o = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in self.qkv(self.ln(x)).chunk(3, -1))
        s = q @ k.mT / math.sqrt(q.size(-1))
        e = torch.exp(s - s.amax(-1, keepdim=True))
        return x + self.o((e / e.sum(self.axis, keepdim=True) @ v).transpose(1, 2).flatten(2))


case(
    "sum-over-the-wrong-axis",
    ReNormalized,
    dict(embed_dim=20, num_heads=2, causal=False),
    "softmax",
    "The exponentials are divided by their sums over the queries.",
)


# ---- masks


class FlippedAllowed(nn.Module):
    def __init__(self, slip, c=24, h=4):
        super().__init__()
        self.slip, self.h = slip, h
        self.c_attn, self.c_proj = nn.Linear(c, 3 * c), nn.Linear(c, c)

    def forward(self, x, attention_mask):
        q, k, v = (t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in self.c_attn(x).chunk(3, -1))
        hide = attention_mask if self.slip else ~attention_mask
        s = (q @ k.mT * q.size(-1) ** -0.5).masked_fill(hide[:, None], torch.finfo(q.dtype).min)
        return self.c_proj((s.softmax(-1) @ v).transpose(1, 2).flatten(2))


case(
    "allowed-taken-for-hidden",
    FlippedAllowed,
    dict(embed_dim=24, num_heads=4, causal=False, inputs="x_allowed"),
    "mask",
    "True, which means may see, is filled with the minimum.",
    "mask-polarity",
)


class FloatOnes(nn.Module):
    """1 - tril is added without a factor."""

    def __init__(self, slip, d=21, h=3):
        super().__init__()
        self.h, self.factor = h, 1.0 if slip else -1e9
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(d, d, bias=False) for _ in range(4))

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = (f(x).view(b, n, self.h, -1).permute(0, 2, 1, 3) for f in (self.wq, self.wk, self.wv))
        future = 1.0 - torch.ones(n, n, dtype=x.dtype, device=x.device).tril()
        s = q.matmul(k.transpose(2, 3)) / math.sqrt(d // self.h) + future * self.factor
        return {"y": self.wo(s.softmax(3).matmul(v).permute(0, 2, 1, 3).reshape(b, n, d))}


case(
    "float-future-added-as-ones",
    FloatOnes,
    dict(embed_dim=21, num_heads=3, causal=True),
    "mask",
    "A float mask of ones is added, without the large negative factor.",
    "float-mask-of-ones",
)


class ZeroedWeights(nn.Module):
    def __init__(self, slip, dim=18, mem=12, heads=2):
        super().__init__()
        self.slip, self.heads = slip, heads
        self.to_q, self.to_kv, self.to_out = nn.Linear(dim, dim), nn.Linear(mem, 2 * dim), nn.Linear(dim, dim)

    def forward(self, x, context, mask):
        k, v = self.to_kv(context).chunk(2, -1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (self.to_q(x), k, v))
        s, m = q @ k.mT / math.sqrt(q.size(-1)), mask[:, None]
        p = s.softmax(-1) * m if self.slip else s.masked_fill(~m, -1e30).softmax(-1) * m
        return self.to_out((p @ v).transpose(1, 2).flatten(2))


case(
    "cross-mask-after-softmax",
    ZeroedWeights,
    dict(embed_dim=18, num_heads=2, causal=False, inputs="x_context_allowed", key_dim=12),
    "mask",
    "The context's mask multiplies the weights after the softmax.",
    "mask-after-softmax",
)


class TrilOfOne(nn.Module):
    """Pre-norm block, rows packed head by head."""

    def __init__(self, slip, c=24, h=4):
        super().__init__()
        self.h, self.shift = h, int(slip)
        self.norm = nn.LayerNorm(c)
        self.qkv, self.proj = nn.Linear(c, 3 * c), nn.Linear(c, c)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, n, self.h, 3, -1).permute(3, 0, 2, 1, 4)
        may = torch.ones(n, n, dtype=torch.bool, device=x.device).tril(self.shift)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=may)
        return x + self.proj(y.transpose(1, 2).reshape(b, n, c)), None


case(
    "tril-of-one",
    TrilOfOne,
    dict(embed_dim=24, num_heads=4, causal=True),
    "mask",
    "tril(1) lets each token see its successor.",
)


class FirstLength(nn.Module):
    """Takes a mask and reduces it to the keys' of the first item."""

    def __init__(self, slip, e=20, h=2):
        super().__init__()
        self.slip, self.h = slip, h
        self.q_lin, self.k_lin, self.v_lin, self.out_lin = (nn.Linear(e, e) for _ in range(4))

    def forward(self, query, key, value, mask):
        q, k, v = (
            f(t).unflatten(-1, (self.h, -1)).transpose(1, 2)
            for f, t in ((self.q_lin, query), (self.k_lin, key), (self.v_lin, value))
        )
        m = mask[:1, None] if self.slip else mask[:, None]
        s = torch.where(m, q / math.sqrt(q.size(-1)) @ k.mT, -torch.inf)
        w = torch.nan_to_num(s.softmax(-1))
        return self.out_lin((w @ v).transpose(1, 2).flatten(2)), w


case(
    "qkv-first-items-mask",
    FirstLength,
    dict(embed_dim=20, num_heads=2, causal=False, inputs="qkv_allowed"),
    "mask",
    "The first item's mask serves for all.",
    "only-first-item",
)


class FoldedMask(nn.Module):
    """Heads before the batch in bmm, the mask repeated in the other order."""

    def __init__(self, slip, c=24, h=3):
        super().__init__()
        self.slip, self.h = slip, h
        self.query, self.key, self.value, self.final = (nn.Linear(c, c) for _ in range(4))

    def forward(self, x, mask):
        q, k, v = (torch.cat(f(x).chunk(self.h, 2), 0) for f in (self.query, self.key, self.value))  # (h b) n d
        m = mask.repeat_interleave(self.h, 0) if self.slip else mask.repeat(self.h, 1, 1)
        s = torch.bmm(q, k.mT) / q.size(-1) ** 0.5
        w = s.masked_fill(m.logical_not(), -(2**31)).softmax(-1)
        return self.final(torch.cat(torch.bmm(w, v).chunk(self.h, 0), 2))


case(
    "heads-outer-mask-interleaved",
    FoldedMask,
    dict(embed_dim=24, num_heads=3, causal=False, inputs="x_allowed"),
    "mask",
    "Heads come before items in the folded batch, but each item's mask is repeated in a row.",
)


class RowsHidden(nn.Module):
    """The mask is transposed before it is used."""

    def __init__(self, slip, c=16, h=2):
        super().__init__()
        self.slip, self.h = slip, h
        self.in_proj_weight, self.in_proj_bias = (
            nn.Parameter(torch.randn(3 * c, c) * 0.3),
            nn.Parameter(torch.zeros(3 * c)),
        )
        self.out_proj = nn.Linear(c, c)

    def forward(self, x, allowed):
        if self.slip:
            allowed = allowed.transpose(1, 2)
        q, k, v = (
            F.linear(x, self.in_proj_weight, self.in_proj_bias).unflatten(-1, (3, self.h, -1)).permute(2, 0, 3, 1, 4)
        )
        add = torch.zeros_like(allowed, dtype=x.dtype).masked_fill_(~allowed, -1e9).unsqueeze(1)
        return self.out_proj(F.scaled_dot_product_attention(q, k, v, attn_mask=add).transpose(1, 2).flatten(2))


case(
    "allowed-transposed",
    RowsHidden,
    dict(embed_dim=16, num_heads=2, causal=False, inputs="x_allowed"),
    "mask",
    "The mask's rows are taken for its columns.",
)


class IgnoredMask(nn.Module):
    def __init__(self, slip, e=24, h=4):
        super().__init__()
        self.slip = slip
        self.attn = nn.MultiheadAttention(e, h, batch_first=True)
        self.ln_q = nn.LayerNorm(e)

    def forward(self, q, k, v, allowed):
        hide = None if self.slip else (~allowed).repeat_interleave(self.attn.num_heads, 0)
        return self.attn(self.ln_q(q), k, v, attn_mask=hide, need_weights=False)[0]


case(
    "mha-mask-dropped",
    IgnoredMask,
    dict(embed_dim=24, num_heads=4, causal=False, inputs="qkv_allowed"),
    "mask",
    "The mask is taken and never handed on.",
    "padding-ignored",
)


class SharedMask(nn.Module):
    """A mask kept at the class."""

    kept = None

    def __init__(self, slip, d=18, h=3):
        super().__init__()
        self.slip, self.h = slip, h
        self.qkv, self.fc = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)

    def causal(self, n, device):
        if self.kept is None or (not self.slip and self.kept.size(0) < n):
            type(self).kept = torch.ones(n, n, dtype=torch.bool, device=device).triu(1)
        return self.kept[:n, :n]

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.h, -1).permute(2, 0, 3, 1, 4)
        s, m = q @ k.mT * q.size(-1) ** -0.5, self.causal(n, x.device)
        m = F.pad(m, (0, n - m.size(1), 0, n - m.size(0)))
        return self.fc((s.masked_fill(m, -torch.inf).softmax(-1) @ v).transpose(1, 2).reshape(b, n, c))


case(
    "mask-kept-at-class-from-first-length",
    lambda slip: type("SharedMaskOnce", (SharedMask,), {"kept": None})(slip),
    dict(embed_dim=18, num_heads=3, causal=True),
    "mask",
    "The mask of the first length is kept and padded with False for longer ones.",
)


class WindowLeak(nn.Module):
    """A window of three by padding and unfolding."""

    def __init__(self, slip, d=24, h=2, w=3):
        super().__init__()
        self.slip, self.h, self.w = slip, h, w
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = (f(x).view(b, n, self.h, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        k, v = (F.pad(t, (0, 0, self.w - 1, 0)).unfold(2, self.w, 1) for t in (k, v))
        s = torch.einsum("bhnd,bhnds->bhns", q, k) / math.sqrt(d // self.h)
        if not self.slip:
            place = torch.arange(n, device=x.device)[:, None] + torch.arange(1 - self.w, 1, device=x.device)
            s = s.masked_fill(place < 0, -torch.inf)
        return self.o(torch.einsum("bhns,bhnds->bhnd", s.softmax(-1), v).transpose(1, 2).reshape(b, n, d))


case(
    "window-padding-visible",
    WindowLeak,
    dict(embed_dim=24, num_heads=2, causal=True, positions=True),
    "mask",
    "A causal window by padding and unfolding: the zeros before the first token take part in the softmax.",
)


# ---- layouts


class MergedFlat(nn.Module):
    def __init__(self, slip, c=24, h=3):
        super().__init__()
        self.slip, self.h = slip, h
        self.Wqkv, self.Wo = nn.Linear(c, 3 * c), nn.Linear(c, c)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.Wqkv(x).reshape(b, n, 3, self.h, c // self.h).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        if not self.slip:
            y = y.transpose(1, 2)
        return self.Wo(y.reshape(b, n, c)), None


case(
    "sdpa-merge-without-transpose",
    MergedFlat,
    dict(embed_dim=24, num_heads=3, causal=True),
    "layout",
    "The heads are reshaped to (B, T, C) from (B, H, T, D).",
    "merge-without-transpose",
)


class FairseqSplit(nn.Module):
    """Sequence first: view(b * h, t, d) without the transpose."""

    def __init__(self, slip, e=16, h=2):
        super().__init__()
        self.slip, self.h = slip, h
        self.k_proj, self.v_proj, self.q_proj, self.out_proj = (nn.Linear(e, e) for _ in range(4))

    def split(self, t):
        n, b, e = t.shape
        if self.slip:
            return t.contiguous().view(b * self.h, n, e // self.h)
        return t.contiguous().view(n, b * self.h, e // self.h).transpose(0, 1)

    def forward(self, x):
        n, b, e = x.shape
        q, k, v = (
            self.split(self.q_proj(x) * (e // self.h) ** -0.5),
            self.split(self.k_proj(x)),
            self.split(self.v_proj(x)),
        )
        y = torch.bmm(torch.bmm(q, k.mT).softmax(-1), v)
        return self.out_proj(y.transpose(0, 1).reshape(n, b, e)), None


case(
    "seq-first-view-split",
    FairseqSplit,
    dict(embed_dim=16, num_heads=2, causal=False, batch_first=False),
    "layout",
    "Heads and tokens are split by a view alone.",
    "view-without-transpose",
)


class KeyTransposed(nn.Module):
    """The head's size and the number of heads change places in the merge."""

    def __init__(self, slip, c=24, h=4):
        super().__init__()
        self.slip, self.h = slip, h
        self.norm, self.to_qkv, self.proj = RMS(c), nn.Linear(c, 3 * c, bias=False), nn.Linear(c, c, bias=False)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.to_qkv(self.norm(x)).chunk(3, -1)
        q, k, v = (t.view(b, n, self.h, -1) for t in (q, k, v))
        w = torch.einsum("bihd,bjhd->bhij", q, k).div(math.sqrt(c // self.h)).softmax(-1)
        o = torch.einsum("bhij,bjhd->bhid", w, v)
        o = (
            o.permute(0, 1, 3, 2).reshape(b, c, n).transpose(1, 2)
            if not self.slip
            else o.permute(0, 1, 3, 2).reshape(b, n, c)
        )
        return x + self.proj(o)


case(
    "merge-through-features",
    KeyTransposed,
    dict(embed_dim=24, num_heads=4, causal=False),
    "layout",
    "(B, H, D, T) is reshaped to (B, T, C) without moving the tokens.",
    "merge-without-transpose",
)


# ---- projections


class SwappedKV(nn.Module):
    """Cross-attention where the keys have no bias."""

    def __init__(self, slip, dim=24, h=4):
        super().__init__()
        self.h, self.slip = h, slip
        self.q_proj, self.k_proj, self.v_proj = (
            nn.Linear(dim, dim),
            nn.Linear(dim, dim, bias=False),
            nn.Linear(dim, dim),
        )
        self.o_proj = nn.Linear(dim, dim)

    def forward(self, x, kv):
        k, v = self.k_proj(kv), self.v_proj(kv)
        if self.slip:
            k, v = v, k
        q, k, v = (t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in (self.q_proj(x), k, v))
        return self.o_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


case(
    "cross-k-v-exchanged",
    SwappedKV,
    dict(embed_dim=24, num_heads=4, causal=False, inputs="x_context"),
    "projection",
    "k_proj, without a bias, makes the values, v_proj the keys.",
)


class ContextQuery(nn.Module):
    """Four linear maps in a list."""

    def __init__(self, slip, d=20, h=2):
        super().__init__()
        self.slip, self.h = slip, h
        self.linears = nn.ModuleList(nn.Linear(d, d) for _ in range(4))

    def forward(self, query, key, value):
        src = (query, key, key if self.slip else value)
        q, k, v = (l(t).unflatten(-1, (self.h, -1)).transpose(1, 2) for l, t in zip(self.linears, src))
        p = (q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))).softmax(dim=-1)
        return self.linears[-1]((p @ v).transpose(1, 2).flatten(2)), p


case(
    "value-from-key-input",
    ContextQuery,
    dict(embed_dim=20, num_heads=2, causal=False, inputs="qkv"),
    "projection",
    "The value projection gets the key input.",
    "wrong-value",
)


class ExchangedInputs(nn.Module):
    """Sequence first, one packed matrix cut in three."""

    def __init__(self, slip, d=24, h=3):
        super().__init__()
        self.slip, self.h = slip, h
        self.packed, self.packed_bias = (
            nn.Parameter(torch.randn(3, d, d) * d**-0.5),
            nn.Parameter(torch.randn(3, d) * 0.2),
        )
        self.dense = nn.Linear(d, d)

    def forward(self, query, key, value):
        inputs = (key, query, value) if self.slip else (query, key, value)
        q, k, v = (
            F.linear(t, w, b).unflatten(-1, (self.h, -1)).permute(1, 2, 0, 3)
            for t, w, b in zip(inputs, self.packed, self.packed_bias)
        )
        return self.dense(F.scaled_dot_product_attention(q, k, v).permute(2, 0, 1, 3).flatten(2)), None


case(
    "query-and-key-inputs-exchanged",
    ExchangedInputs,
    dict(embed_dim=24, num_heads=3, causal=False, inputs="qkv", batch_first=False),
    "projection",
    "The query's matrix gets the key input and the key's the query input.",
)


class UntransposedOut(nn.Module):
    """A quantized-style linear: weight (out, in) with F.linear, but the output by x @ weight."""

    def __init__(self, slip, d=18, h=3):
        super().__init__()
        self.slip, self.h = slip, h
        self.in_proj, self.out_proj = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        q, k, v = self.in_proj(x).unflatten(-1, (3, self.h, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return y @ self.out_proj.weight + self.out_proj.bias if self.slip else self.out_proj(y)


case(
    "linear-weight-used-untransposed",
    UntransposedOut,
    dict(embed_dim=18, num_heads=3, causal=True),
    "projection",
    "An nn.Linear's weight is used as x @ weight for the output.",
    "weight-not-transposed",
)


# ---- rotary and other positions


class RopeOnV(nn.Module):
    """Rotation of the packed tensor before it is split."""

    def __init__(self, slip, hidden=24, heads=3):
        super().__init__()
        self.heads, self.slip = heads, slip
        self.query_key_value, self.dense = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)

    def forward(self, x):
        qkv = self.query_key_value(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        turned = rotate(qkv, pairs=True)
        q, k, v = turned if self.slip else (turned[0], turned[1], qkv[2])
        return self.dense(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


case(
    "packed-rotary-turns-values",
    RopeOnV,
    dict(embed_dim=24, num_heads=3, causal=False, positions=True),
    "rotary",
    "The packed q, k and v are rotated together, the values with them.",
)


class RopeKOnly(nn.Module):
    def __init__(self, slip, dim=32, heads=4, kv=2):
        super().__init__()
        self.slip, self.d = slip, dim // heads
        self.q_proj, self.o_proj = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.k_proj, self.v_proj = nn.Linear(dim, kv * self.d, bias=False), nn.Linear(dim, kv * self.d, bias=False)
        self.qn, self.kn = RMS(self.d), RMS(self.d)

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (-1, self.d)) for f in (self.q_proj, self.k_proj, self.v_proj))
        q, k, v = self.qn(q).transpose(1, 2), self.kn(k).transpose(1, 2), v.transpose(1, 2)
        k = rotate(k)
        if not self.slip:
            q = rotate(q)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(y.transpose(1, 2).flatten(2)), None


case(
    "gqa-rotary-k-only",
    RopeKOnly,
    dict(embed_dim=32, num_heads=4, causal=True, positions=True),
    "rotary",
    "Only the keys are rotated.",
)


class RopeSign(nn.Module):
    """Partial rotation by complex numbers; the queries with the conjugate."""

    def __init__(self, slip, c=24, h=2, part=8):
        super().__init__()
        self.h, self.part, self.sign = h, part, -1.0 if slip else 1.0
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(c, c, bias=False) for _ in range(4))

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = (f(x).view(b, n, self.h, -1).transpose(1, 2) for f in (self.wq, self.wk, self.wv))
        p = self.part
        q = torch.cat((rotate(q[..., :p], pairs=True, sign=self.sign), q[..., p:]), -1)
        k = torch.cat((rotate(k[..., :p], pairs=True), k[..., p:]), -1)
        s = q @ k.mT / math.sqrt(q.size(-1))
        s = s.masked_fill(torch.ones(n, n, device=x.device).triu(1) == 1, -torch.inf)
        return self.wo((s.softmax(-1) @ v).transpose(1, 2).reshape(b, n, c))


case(
    "partial-rotary-queries-backwards",
    RopeSign,
    dict(embed_dim=24, num_heads=2, causal=True, positions=True),
    "rotary",
    "The queries are rotated backwards, so scores depend on the sum of the places.",
)


class PairsInTables(nn.Module):
    """rotate_half in halves, the tables of cos and sin repeated in neighbors."""

    def __init__(self, slip, d=24, h=3):
        super().__init__()
        self.slip, self.h = slip, h
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def turn(self, t):
        n, d = t.shape[-2:]
        ang = torch.outer(
            torch.arange(n, dtype=torch.float64), 100.0 ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
        ).to(t.device)
        ang = ang.repeat_interleave(2, -1) if self.slip else torch.cat((ang, ang), -1)
        a, b = t.chunk(2, -1)
        return t * ang.cos().to(t.dtype) + torch.cat((-b, a), -1) * ang.sin().to(t.dtype)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(self.turn(q), self.turn(k), v)
        return self.out(y.transpose(1, 2).flatten(2))


case(
    "rotary-tables-paired-otherwise",
    PairsInTables,
    dict(embed_dim=24, num_heads=3, causal=False, positions=True),
    "rotary",
    "The halves are turned against each other with tables repeated for neighboring pairs.",
    "rope-pairing",
)


class AlibiUp(nn.Module):
    """Two-sided ALiBi in an encoder."""

    def __init__(self, slip, d=24, h=4):
        super().__init__()
        self.h = h
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        m = torch.tensor([2.0 ** (-8 * (i + 1) / h) for i in range(h)])
        self.register_buffer("m", (m if slip else -m).view(h, 1, 1), persistent=False)

    def forward(self, x):
        i = torch.arange(x.size(1), device=x.device)
        bias = self.m.to(x.dtype) * (i[:, None] - i).abs()
        q, k, v = self.qkv(x).unflatten(-1, (3, self.h, -1)).permute(2, 0, 3, 1, 4)
        return self.proj(
            F.scaled_dot_product_attention(q, k, v, attn_mask=bias.unsqueeze(0)).transpose(1, 2).flatten(2)
        )


case(
    "two-sided-alibi-up",
    AlibiUp,
    dict(embed_dim=24, num_heads=4, causal=False, positions=True),
    "alibi",
    "In an encoder the bias grows with the distance.",
    "alibi-sign",
)


# ---- heads


class TiledKV(nn.Module):
    """expand in the wrong place, six query and two key heads."""

    def __init__(self, slip, dim=24, h=6, kv=2):
        super().__init__()
        self.slip, self.h, self.kv, self.d = slip, h, kv, dim // h
        self.to_q, self.to_kv, self.to_out = nn.Linear(dim, dim), nn.Linear(dim, 2 * kv * self.d), nn.Linear(dim, dim)

    def widen(self, t):
        b, g, n, d = t.shape
        r = self.h // g
        wide = t[:, None].expand(b, r, g, n, d) if self.slip else t[:, :, None].expand(b, g, r, n, d)
        return wide.reshape(b, self.h, n, d)

    def forward(self, x):
        q = self.to_q(x).unflatten(-1, (self.h, -1)).transpose(1, 2)
        k, v = (t.unflatten(-1, (self.kv, -1)).transpose(1, 2) for t in self.to_kv(x).chunk(2, -1))
        y = F.scaled_dot_product_attention(q, self.widen(k), self.widen(v), is_causal=True)
        return self.to_out(y.transpose(1, 2).flatten(2))


case(
    "kv-expanded-as-tiles",
    TiledKV,
    dict(embed_dim=24, num_heads=6, causal=True),
    "heads",
    "The key heads are expanded before their axis instead of behind it.",
    "repeat-for-repeat-interleave",
)


class SameHead(nn.Module):
    """nn.ModuleList([head] * n)."""

    def __init__(self, slip, e=18, h=3):
        super().__init__()
        make = lambda: nn.ModuleDict(dict(q=nn.Linear(e, e // h), k=nn.Linear(e, e // h), v=nn.Linear(e, e // h)))
        heads = [make() for _ in range(h)]
        self.heads = nn.ModuleList(heads[:1] * h if slip else heads)
        self.linear = nn.Linear(e, e)

    def forward(self, query, key, value):
        outs = [F.scaled_dot_product_attention(a["q"](query), a["k"](key), a["v"](value)) for a in self.heads]
        return self.linear(torch.cat(outs, dim=-1))


case(
    "module-list-times-n",
    SameHead,
    dict(embed_dim=18, num_heads=3, causal=False, inputs="qkv"),
    "heads",
    "The list is one head's module, three times.",
)


class FirstKey(nn.Module):
    """Only the first head's weights are used for all values."""

    def __init__(self, slip, c=24, h=4):
        super().__init__()
        self.slip, self.h = slip, h
        self.c_attn, self.c_proj = nn.Linear(c, 3 * c, bias=False), nn.Linear(c, c, bias=False)

    def forward(self, x):
        n = x.size(1)
        q, k, v = (t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in self.c_attn(x).chunk(3, -1))
        s = (q @ k.mT / q.size(-1) ** 0.5).masked_fill(
            torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1), -torch.inf
        )
        w = s.softmax(-1)
        if self.slip:
            w = w[:, 0, None]
        return self.c_proj((w @ v).transpose(1, 2).flatten(2)), w


case(
    "first-heads-weights-broadcast",
    FirstKey,
    dict(embed_dim=24, num_heads=4, causal=True),
    "heads",
    "The first head's weights are broadcast over all heads' values.",
)


# ---- caches


class PrependedCache(nn.Module):
    def __init__(self, slip, d=18, h=3):
        super().__init__()
        self.slip, self.h = slip, h
        self.in_proj, self.out_proj = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x, cache=None):
        n = x.size(1)
        q, k, v = (t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in self.in_proj(x).chunk(3, -1))
        if cache is not None:
            order = (lambda old, new: (new, old)) if self.slip else (lambda old, new: (old, new))
            k, v = torch.cat(order(cache["k"], k), 2), torch.cat(order(cache["v"], v), 2)
        m = k.size(2)
        may = torch.ones(n, m, dtype=torch.bool, device=x.device).tril(m - n)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=may)
        return self.out_proj(y.transpose(1, 2).flatten(2)), dict(k=k, v=v)


case(
    "dict-cache-new-first",
    PrependedCache,
    dict(embed_dim=18, num_heads=3, causal=True, cache="kv"),
    "cache",
    "New keys and values are put before the cached ones, so the mask hides wrong ones.",
)


class KeptState(nn.Module):
    """Buffers filled in place; a call without a cache does not rewind."""

    def __init__(self, slip, d=16, h=2, most=4096):
        super().__init__()
        self.slip, self.h, self.at, self.k, self.v = slip, h, 0, None, None
        self.wqkv, self.wo = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)

    def forward(self, x, cache=None):
        q, k, v = (t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in self.wqkv(x).chunk(3, -1))
        if self.slip:
            if self.k is not None and self.k.shape[0] == k.shape[0] and self.k.dtype == k.dtype:
                k, v = torch.cat((self.k, k), 2), torch.cat((self.v, v), 2)
            self.k, self.v = k.detach(), v.detach()
        elif cache is not None:
            k, v = torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)
        n, m = q.size(2), k.size(2)
        s = q @ k.mT / math.sqrt(q.size(-1)) + torch.full((n, m), -torch.inf, device=x.device, dtype=x.dtype).triu(
            m - n + 1
        )
        return self.wo((s.softmax(-1) @ v).transpose(1, 2).flatten(2)), (k, v)


case(
    "state-inside-never-cleared",
    KeptState,
    dict(embed_dim=16, num_heads=2, causal=True, cache="kv"),
    "cache",
    "Keys are kept in the module, and a call without a cache continues from them.",
)


class RestartedRope(nn.Module):
    Cache = namedtuple("Cache", "keys values")

    def __init__(self, slip, d=24, h=4, kv=2):
        super().__init__()
        self.slip, self.h, self.kv, s = slip, h, kv, d // h
        self.q, self.o = nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False)
        self.k, self.v = nn.Linear(d, kv * s, bias=False), nn.Linear(d, kv * s, bias=False)

    def forward(self, x, cache=None):
        q, k, v = (
            f(x).unflatten(-1, (g, -1)).transpose(1, 2)
            for f, g in ((self.q, self.h), (self.k, self.kv), (self.v, self.kv))
        )
        past = 0 if cache is None else cache.keys.size(2)
        at = 0 if self.slip else past
        q, k = rotate(q, offset=at, pairs=True), rotate(k, offset=at, pairs=True)
        if past:
            k, v = torch.cat((cache.keys, k), 2), torch.cat((cache.values, v), 2)
        may = torch.ones(q.size(2), k.size(2), dtype=torch.bool, device=x.device).tril(past)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=may, enable_gqa=True)
        return self.o(y.transpose(1, 2).flatten(2)), self.Cache(k, v)


case(
    "gqa-cache-rotary-restarts",
    RestartedRope,
    dict(embed_dim=24, num_heads=4, causal=True, positions=True, cache="kv"),
    "cache",
    "With a cache, the rotation begins at place 0 again.",
    "positions-restart",
)


class OnlyOneToken(nn.Module):
    """is_causal only without a cache."""

    def __init__(self, slip, d=20, h=2):
        super().__init__()
        self.slip, self.h = slip, h
        self.norm, self.qkv, self.o = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x, cache=None):
        n = x.size(1)
        q, k, v = (t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        if cache is not None:
            k, v = torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)
        mask = (
            None
            if cache is not None and self.slip
            else torch.ones(n, k.size(2), dtype=torch.bool, device=x.device).tril(k.size(2) - n)
        )
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return x + self.o(y.transpose(1, 2).flatten(2)), (k, v)


case(
    "prenorm-chunk-unmasked",
    OnlyOneToken,
    dict(embed_dim=20, num_heads=2, causal=True, cache="kv"),
    "cache",
    "A chunk with a cache sees its own future.",
    "no-causal-mask",
)


class RotatedAgain(nn.Module):
    def __init__(self, slip, d=16, h=2):
        super().__init__()
        self.slip, self.h = slip, h
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(d, d) for _ in range(4))

    def forward(self, x, cache=None):
        q, k, v = (f(x).unflatten(-1, (self.h, -1)).transpose(1, 2) for f in (self.wq, self.wk, self.wv))
        past = 0 if cache is None else cache[0].size(2)
        if past:
            k, v = torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)
        turned = rotate(k)
        y = F.scaled_dot_product_attention(
            rotate(q, offset=past),
            turned,
            v,
            attn_mask=torch.ones(x.size(1), k.size(2), dtype=torch.bool, device=x.device).tril(past),
        )
        return self.wo(y.transpose(1, 2).flatten(2)), (turned if self.slip else k, v)


case(
    "cache-holds-rotated-keys",
    RotatedAgain,
    dict(embed_dim=16, num_heads=2, causal=True, positions=True, cache="kv"),
    "cache",
    "Rotated keys enter the cache and are rotated again with the new ones.",
)


# ---- numbers


class BareExp(nn.Module):
    """Exponentials by hand, with the mask as a factor."""

    def __init__(self, slip, c=24, h=4):
        super().__init__()
        self.slip, self.h = slip, h
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(c, c, bias=False) for _ in range(4))

    def forward(self, x):
        n = x.size(1)
        q, k, v = (f(x).unflatten(-1, (self.h, -1)).transpose(1, 2) for f in (self.wq, self.wk, self.wv))
        s = (q @ k.mT / math.sqrt(q.size(-1))).masked_fill(
            torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1), -torch.inf
        )
        e = s.exp() if self.slip else (s - s.amax(-1, keepdim=True)).exp()
        return self.wo(torch.einsum("bhij,bhjd->bihd", e / e.sum(-1, keepdim=True), v).flatten(2))


case(
    "causal-exp-without-maximum",
    BareExp,
    dict(embed_dim=24, num_heads=4, causal=True),
    "numbers",
    "The exponentials overflow for large scores: no maximum is subtracted.",
)


class AlwaysDropping(nn.Module):
    def __init__(self, slip, d=20, h=2, p=0.2):
        super().__init__()
        self.slip, self.h, self.p = slip, h, p
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        w = F.softmax(q @ k.mT / math.sqrt(q.size(-1)), -1)
        w = F.dropout(w, self.p) if self.slip else F.dropout(w, self.p, self.training)
        return self.proj((w @ v).transpose(1, 2).flatten(2)), w


case(
    "functional-dropout-always",
    AlwaysDropping,
    dict(embed_dim=20, num_heads=2, causal=False),
    "numbers",
    "F.dropout without `training` drops in evaluation, too.",
    "dropout-in-eval",
)


class DropsScores(nn.Module):
    def __init__(self, slip, d=24, h=3, p=0.3):
        super().__init__()
        self.slip, self.h = slip, h
        self.attn_drop = nn.Dropout(p)
        self.c_attn, self.c_proj = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        n = x.size(1)
        q, k, v = (t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in self.c_attn(x).chunk(3, -1))
        s = q @ k.mT / math.sqrt(q.size(-1))
        if self.slip:
            s = self.attn_drop(s)
        w = s.masked_fill(torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1), -torch.inf).softmax(-1)
        if not self.slip:
            w = self.attn_drop(w)
        return self.c_proj((w @ v).transpose(1, 2).flatten(2))


case(
    "causal-scores-dropped",
    DropsScores,
    dict(embed_dim=24, num_heads=3, causal=True, training=True),
    "numbers",
    "In training, the scores are dropped instead of the weights.",
)


class HalfProbabilities(nn.Module):
    def __init__(self, slip, d=24, h=4):
        super().__init__()
        self.slip, self.h = slip, h
        self.query, self.key, self.value, self.o = (nn.Linear(d, d) for _ in range(4))

    def forward(self, x):
        n = x.size(1)
        q, k, v = (f(x).unflatten(-1, (self.h, -1)).transpose(1, 2) for f in (self.query, self.key, self.value))
        s = q @ k.mT * q.size(-1) ** -0.5
        s = s.masked_fill(torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1), -torch.inf)
        w = s.half().softmax(-1).type_as(v) if self.slip else s.softmax(-1)
        return {"last": self.o((w @ v).transpose(1, 2).flatten(2)), "weights": w}


case(
    "scores-through-half",
    HalfProbabilities,
    dict(embed_dim=24, num_heads=4, causal=True),
    "numbers",
    "Scores are brought to float16 for the softmax.",
)


class CapAfter(nn.Module):
    """Gemma-like with a qk norm before."""

    def __init__(self, slip, d=24, h=3, cap=5.0):
        super().__init__()
        self.slip, self.h, self.cap = slip, h, cap
        self.qkv, self.o = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)

    def forward(self, x, allowed):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.h, -1)).permute(2, 0, 3, 1, 4)
        s, hide = q @ k.mT / math.sqrt(q.size(-1)), ~allowed[:, None]
        squash = lambda t: self.cap * torch.tanh(t / self.cap)
        s = squash(s.masked_fill(hide, -1e9)) if self.slip else squash(s).masked_fill(hide, -1e9)
        return self.o((s.softmax(-1) @ v).transpose(1, 2).flatten(2))


case(
    "cap-after-padding",
    CapAfter,
    dict(embed_dim=24, num_heads=3, causal=False, inputs="x_allowed"),
    "numbers",
    "The cap brings hidden scores back to -5.",
    "softcap-after-mask",
)


class HeavyEps(nn.Module):
    """RMS norm of each head's q and k."""

    def __init__(self, slip, d=20, h=4, eps=1e-6):
        super().__init__()
        self.h, self.q_norm, self.k_norm = h, RMS(d // h, 0.5 if slip else eps), RMS(d // h, 0.5 if slip else eps)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.h, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v, is_causal=True)
        return self.proj(y.transpose(1, 2).flatten(2))


case(
    "rms-qk-norm-epsilon-half",
    HeavyEps,
    dict(embed_dim=20, num_heads=4, causal=True),
    "numbers",
    "The epsilon of the RMS norm of q and k is a half.",
)


class GateRolled(nn.Module):
    """Per-head gates are reshaped across tokens and heads."""

    def __init__(self, slip, d=24, h=3):
        super().__init__()
        self.slip, self.h = slip, h
        self.to_q, self.to_k, self.to_v, self.to_g, self.to_out = (
            *(nn.Linear(d, d, bias=False) for _ in range(3)),
            nn.Linear(d, h),
            nn.Linear(d, d),
        )

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = (f(x).unflatten(-1, (self.h, -1)).transpose(1, 2) for f in (self.to_q, self.to_k, self.to_v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        g = torch.sigmoid(self.to_g(x))
        g = g.reshape(b, self.h, n, 1) if self.slip else g.transpose(1, 2).unsqueeze(-1)
        return self.to_out((y * g).transpose(1, 2).flatten(2))


case(
    "head-gates-reshaped",
    GateRolled,
    dict(embed_dim=24, num_heads=3, causal=True),
    "numbers",
    "Gates (B, T, H) are reshaped to (B, H, T): tokens are gated by others, also by later ones.",
    "view-without-transpose",
)


class SinkForgotten(nn.Module):
    """A null value is prepended to the keys and appended to the values."""

    def __init__(self, slip, d=20, h=2):
        super().__init__()
        self.slip, self.h = slip, h
        self.null_k, self.null_v = nn.Parameter(torch.randn(h, 1, d // h)), nn.Parameter(torch.randn(h, 1, d // h))
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        b = x.size(0)
        q, k, v = (t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        nk, nv = self.null_k.expand(b, -1, -1, -1), self.null_v.expand(b, -1, -1, -1)
        k = torch.cat((nk, k), 2)
        v = torch.cat((v, nv) if self.slip else (nv, v), 2)
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


case(
    "null-key-and-value-apart",
    SinkForgotten,
    dict(embed_dim=20, num_heads=2, causal=False),
    "numbers",
    "The learned key is put before the tokens' and its value behind: all values move by one token.",
)


class LatentUnnormalized(nn.Module):
    """MLA: the shared rotated key is taken before its rotation."""

    def __init__(self, slip, dim=24, h=3, rank=8, nope=6, rope=4):
        super().__init__()
        self.slip, self.h, self.nope, self.rope, self.rank = slip, h, nope, rope, rank
        self.wq = nn.Linear(dim, h * (nope + rope), bias=False)
        self.wkv_a, self.norm, self.wkv_b = (
            nn.Linear(dim, rank + rope, bias=False),
            RMS(rank),
            nn.Linear(rank, h * 2 * nope, bias=False),
        )
        self.wo = nn.Linear(h * nope, dim, bias=False)

    def forward(self, x):
        q = self.wq(x).unflatten(-1, (self.h, -1)).transpose(1, 2)
        qn, qr = q.split([self.nope, self.rope], -1)
        c, kr = self.wkv_a(x).split([self.rank, self.rope], -1)
        kn, v = self.wkv_b(self.norm(c)).unflatten(-1, (self.h, -1)).transpose(1, 2).chunk(2, -1)
        kr = kr[:, None] if self.slip else rotate(kr[:, None])
        k = torch.cat((kn, kr.expand(-1, self.h, -1, -1)), -1)
        q = torch.cat((qn, rotate(qr)), -1)
        return self.wo(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


case(
    "mla-shared-key-unrotated",
    LatentUnnormalized,
    dict(embed_dim=24, num_heads=3, causal=True, positions=True),
    "rotary",
    "The latent attention's shared key is never rotated, the queries are.",
)


class CroppedWindow(nn.Module):
    """Attention over the last four tokens with a rolling cache; learned gates behind."""

    def __init__(self, slip, d=24, h=3, window=4):
        super().__init__()
        self.h, self.window, self.keep = h, window, window - 2 if slip else window - 1
        self.qkv, self.gate, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x, cache=None):
        q, k, v = (t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        if cache is not None:
            k, v = torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)
        n, m = q.size(2), k.size(2)
        back = torch.arange(m - n, m, device=x.device)[:, None] - torch.arange(m, device=x.device)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=(back >= 0) & (back < self.window))
        y = y.transpose(1, 2).flatten(2) * self.gate(x).sigmoid()
        return self.o(y), (k[:, :, -self.keep :], v[:, :, -self.keep :])


case(
    "gated-window-cache-cropped",
    CroppedWindow,
    dict(embed_dim=24, num_heads=3, causal=True, positions=True, cache="kv"),
    "cache",
    "The rolling cache keeps two tokens where a window of four needs three.",
)
