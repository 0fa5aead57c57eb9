"""Correct attention modules, in the styles of many authors. Each is right as its author meant it."""

import math
from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from cases import Case, seeded
from torch import nn

CASES = []


def add(name, build, call, kind, note):
    CASES.append(Case(name, seeded(1000 + len(name), build), call, kind, note))


# ---- norms and residuals


class RMS(nn.Module):
    def __init__(self, n, eps=1e-6):
        super().__init__()
        self.g = nn.Parameter(torch.ones(n))
        self.eps = eps

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.g


class ScaledLayer(nn.Module):
    """CaiT-like: layer scale on the branch."""

    def __init__(self, width, n_head, init=0.7):
        super().__init__()
        self.pre = RMS(width)
        self.wqkv = nn.Linear(width, 3 * width, bias=False)
        self.wo = nn.Linear(width, width, bias=False)
        self.gamma = nn.Parameter(init * torch.ones(width))
        self.n_head = n_head

    def forward(self, h):
        a = self.wqkv(self.pre(h))
        q, k, v = torch.tensor_split(a, 3, dim=-1)
        q, k, v = [torch.stack(t.chunk(self.n_head, -1), 1) for t in (q, k, v)]
        s = torch.einsum("nhqc,nhkc->nhqk", q, k).div(math.sqrt(q.shape[-1]))
        keep = torch.arange(h.shape[1], device=h.device)
        s = torch.where(keep[:, None] >= keep, s, s.new_tensor(float("-inf")))
        y = torch.cat((s.softmax(-1) @ v).unbind(1), -1)
        return h + self.gamma * self.wo(y)


add(
    "layerscale-rms-causal",
    lambda: ScaledLayer(30, 3),
    dict(embed_dim=30, num_heads=3, causal=True),
    "pre-norm-residual",
    "RMS norm, causal attention, layer scale, residual.",
)


class ReZero(nn.Module):
    def __init__(self, feat, nheads):
        super().__init__()
        self.att = nn.MultiheadAttention(feat, nheads, bias=False, batch_first=False)
        self.resweight = nn.Parameter(torch.tensor(0.8))

    def forward(self, src):
        return src + self.att(src, src, src, need_weights=False)[0] * self.resweight, None


add(
    "rezero-mha",
    lambda: ReZero(28, 4),
    dict(embed_dim=28, num_heads=4, causal=False, batch_first=False),
    "residual",
    "No norm, a learned factor on the branch, sequence first.",
)


class Sandwich(nn.Module):
    """Norms on both sides of the branch (CogView)."""

    def __init__(self, cfg):
        super().__init__()
        c, self.h = cfg["width"], cfg["heads"]
        self.first_norm, self.last_norm = nn.LayerNorm(c, eps=1e-6), nn.LayerNorm(c, eps=1e-6)
        self.query, self.key_value, self.output = nn.Linear(c, c), nn.Linear(c, 2 * c), nn.Linear(c, c)

    def forward(self, tokens):
        z = self.first_norm(tokens)
        k, v = self.key_value(z).split(z.size(-1), -1)
        fold = lambda t: t.view(t.size(0), t.size(1), self.h, -1).transpose(1, 2).flatten(0, 1)
        q, k, v = fold(self.query(z)), fold(k), fold(v)
        w = torch.bmm(q / math.sqrt(q.size(-1)), k.transpose(1, 2)).softmax(2)
        o = torch.bmm(w, v).unflatten(0, (-1, self.h)).transpose(1, 2).flatten(2)
        return {"states": tokens + self.last_norm(self.output(o)), "attention": None}


add(
    "sandwich-norm",
    lambda: Sandwich(dict(width=20, heads=2)),
    dict(embed_dim=20, num_heads=2, causal=False),
    "pre-norm-residual",
    "A norm before and one after the branch; a dict in, a dict out.",
)


# ---- norms of q and k


class OlmoQK(nn.Module):
    """The whole of q and of k is normalized before the heads are split."""

    def __init__(self, d_model=24, n_heads=4, n_kv=2):
        super().__init__()
        self.d = d_model // n_heads
        self.n_heads, self.n_kv = n_heads, n_kv
        self.fused_dims = (d_model, n_kv * self.d, n_kv * self.d)
        self.att_proj = nn.Linear(d_model, sum(self.fused_dims), bias=False)
        self.attn_out = nn.Linear(d_model, d_model, bias=False)
        self.q_norm, self.k_norm = RMS(d_model), RMS(n_kv * self.d)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.att_proj(x).split(self.fused_dims, dim=-1)
        q, k = self.q_norm(q), self.k_norm(k)
        q = q.view(B, T, self.n_heads, self.d).transpose(1, 2)
        k = k.view(B, T, self.n_kv, self.d).transpose(1, 2)
        v = v.view(B, T, self.n_kv, self.d).transpose(1, 2)
        k = k.repeat_interleave(self.n_heads // self.n_kv, dim=1)
        v = v.repeat_interleave(self.n_heads // self.n_kv, dim=1)
        att = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.attn_out(att.transpose(1, 2).contiguous().view(B, T, C))


add(
    "whole-width-qk-norm-gqa",
    OlmoQK,
    dict(embed_dim=24, num_heads=4, causal=True),
    "qk-norm",
    "q and k are normalized whole before the split; grouped heads.",
)


class HypersphereAttention(nn.Module):
    """nGPT: unit q and k with a learned gain, scores times sqrt(d)."""

    def __init__(self, n_embd, n_head):
        super().__init__()
        self.nh, self.hd = n_head, n_embd // n_head
        self.key, self.query, self.value, self.att_c_proj = (nn.Linear(n_embd, n_embd, bias=False) for _ in range(4))
        self.sqk = nn.Parameter(torch.linspace(0.8, 1.3, n_embd))

    def forward(self, hin):
        B, T, C = hin.shape
        sqk = self.sqk.view(1, 1, self.nh, self.hd)
        q = sqk * F.normalize(self.query(hin).view(B, T, self.nh, self.hd), dim=-1)
        k = sqk * F.normalize(self.key(hin).view(B, T, self.nh, self.hd), dim=-1)
        v = self.value(hin).view(B, T, self.nh, self.hd)
        w = torch.einsum("bthd,bshd->bhts", q, k) * self.hd**0.5
        return self.att_c_proj(torch.einsum("bhts,bshd->bthd", w.softmax(-1), v).reshape(B, T, C))


add(
    "ngpt-unit-qk",
    lambda: HypersphereAttention(32, 4),
    dict(embed_dim=32, num_heads=4, causal=False),
    "qk-norm",
    "Unit queries and keys with gains, scores multiplied by the root of the head's size by design.",
)


# ---- gates, sinks, memories


class HeadGate(nn.Module):
    def __init__(self, dim, heads, dim_head):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(dim, 3 * heads * dim_head, bias=False)
        self.to_gates = nn.Linear(dim, heads)
        self.to_out = nn.Linear(heads * dim_head, dim)

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.to_qkv(x).reshape(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v)
        gates = self.to_gates(x).sigmoid()
        out = out * gates.transpose(1, 2)[..., None]
        return self.to_out(out.transpose(1, 2).reshape(b, n, -1))


add(
    "gate-per-head",
    lambda: HeadGate(22, 3, 6),
    dict(embed_dim=22, num_heads=3, causal=False),
    "gate",
    "A sigmoid for each head and token; the inner width is 18.",
)


class SiluGated(nn.Module):
    """q and gate in one matrix, k and v in another."""

    def __init__(self, hidden, nh):
        super().__init__()
        self.nh = nh
        self.qg_proj = nn.Linear(hidden, 2 * hidden, bias=False)
        self.kv_proj = nn.Linear(hidden, 2 * hidden, bias=False)
        self.o_proj = nn.Linear(hidden, hidden, bias=False)

    def forward(self, hidden_states: torch.Tensor, output_attentions: bool | None = None):
        bsz, n, c = hidden_states.size()
        q, g = self.qg_proj(hidden_states).chunk(2, -1)
        k, v = self.kv_proj(hidden_states).chunk(2, -1)
        q, k, v = (t.reshape(bsz, n, self.nh, -1).movedim(2, 1) for t in (q, k, v))
        hide = ~torch.ones(n, n, dtype=torch.bool, device=q.device).tril()
        probs = F.softmax((q @ k.mT * (c // self.nh) ** -0.5).masked_fill(hide, torch.finfo(q.dtype).min), -1)
        y = (probs @ v).movedim(1, 2).reshape(bsz, n, c)
        return self.o_proj(y * F.silu(g)), probs if output_attentions else None


add(
    "silu-gate-causal",
    lambda: SiluGated(24, 3),
    dict(embed_dim=24, num_heads=3, causal=True),
    "gate",
    "The merged heads are multiplied by silu of a linear map of the tokens.",
)


class QuietAttention(nn.Module):
    """Softmax with one more in the denominator."""

    def __init__(self, e, h):
        super().__init__()
        self.h = h
        self.q, self.k, self.v, self.o = nn.Linear(e, e), nn.Linear(e, e), nn.Linear(e, e), nn.Linear(e, e)

    @staticmethod
    def softmax_one(x):
        m = x.amax(-1, keepdim=True).clamp(min=0)
        e = (x - m).exp()
        return e / (e.sum(-1, keepdim=True) + (-m).exp())

    def forward(self, x):
        q, k, v = (f(x).unflatten(2, (self.h, -1)).swapdims(1, 2) for f in (self.q, self.k, self.v))
        p = self.softmax_one(q @ k.mT / math.sqrt(k.size(3)))
        return self.o((p @ v).swapdims(1, 2).flatten(2))


add(
    "softmax-plus-one",
    lambda: QuietAttention(18, 3),
    dict(embed_dim=18, num_heads=3, causal=False),
    "sinks",
    "One is added to the sum in the softmax, by design: weights sum to less than one.",
)


class NullKV(nn.Module):
    """One learned null key and value behind the tokens, one key head for all."""

    def __init__(self, dim, heads=4, dim_head=8):
        super().__init__()
        self.heads, self.dh, self.scale = heads, dim_head, dim_head**-0.5
        self.norm = nn.LayerNorm(dim)
        self.null_kv = nn.Parameter(torch.randn(2, dim_head))
        self.to_q = nn.Linear(dim, heads * dim_head, bias=False)
        self.to_kv = nn.Linear(dim, 2 * dim_head, bias=False)
        self.to_out = nn.Sequential(nn.Linear(heads * dim_head, dim, bias=False), nn.LayerNorm(dim))

    def forward(self, x):
        x = self.norm(x)
        b, n = x.shape[:2]
        q = self.to_q(x).view(b, n, self.heads, self.dh).permute(0, 2, 1, 3) * self.scale
        k, v = self.to_kv(x).chunk(2, -1)
        nk, nv = (t.expand(b, 1, -1) for t in self.null_kv.unbind(0))
        k, v = torch.cat((k, nk), 1), torch.cat((v, nv), 1)
        sim = torch.einsum("bhid,bjd->bhij", q, k)
        out = torch.einsum("bhij,bjd->bhid", sim.softmax(-1), v)
        return self.to_out(out.permute(0, 2, 1, 3).reshape(b, n, -1))


add(
    "null-kv-multi-query",
    lambda: NullKV(20, 4, 6),
    dict(embed_dim=20, num_heads=4, causal=False),
    "memory-kv",
    "A learned null key and value behind the tokens, one key head, norms before and after.",
)


class PrefixTuned(nn.Module):
    """Prefix tuning: learned keys and values before those of the tokens, causal among the tokens."""

    def __init__(self, d, h, prefix):
        super().__init__()
        self.h = h
        self.prefix_k, self.prefix_v = (
            nn.Parameter(torch.randn(h, prefix, d // h)),
            nn.Parameter(torch.randn(h, prefix, d // h)),
        )
        self.in_proj, self.out_proj = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        n, t, d = x.shape
        q, k, v = self.in_proj(x).view(n, t, 3, self.h, d // self.h).transpose(1, 3).unbind(2)
        p = self.prefix_k.size(1)
        k = torch.cat([self.prefix_k.expand(n, -1, -1, -1), k], 2)
        v = torch.cat([self.prefix_v.expand(n, -1, -1, -1), v], 2)
        may = torch.ones(t, t + p, dtype=torch.bool, device=x.device).tril(p)
        return self.out_proj(F.scaled_dot_product_attention(q, k, v, attn_mask=may).transpose(1, 2).flatten(2))


add(
    "prefix-tuning-causal",
    lambda: PrefixTuned(24, 4, 2),
    dict(embed_dim=24, num_heads=4, causal=True),
    "memory-kv",
    "Two learned keys and values a head before the tokens', all of them visible.",
)


# ---- biases of positions


class BucketBias(nn.Module):
    """T5's encoder: two-sided buckets, RMS before, residual, no scale."""

    def __init__(self, d_model=24, d_kv=5, n=4, buckets=16, far=20):
        super().__init__()
        self.layer_norm = RMS(d_model)
        self.q, self.k, self.v = (nn.Linear(d_model, n * d_kv, bias=False) for _ in range(3))
        self.o = nn.Linear(n * d_kv, d_model, bias=False)
        self.relative_attention_bias = nn.Embedding(buckets, n)
        self.n, self.buckets, self.far = n, buckets, far
        for lin in (self.q,):
            nn.init.normal_(lin.weight, std=(d_model * d_kv) ** -0.5)

    def bucket(self, rel):
        half = self.buckets // 2
        side = (rel > 0).long() * half
        rel = rel.abs()
        exact = half // 2
        large = (
            exact + (torch.log(rel.float().clamp(min=1) / exact) / math.log(self.far / exact) * (half - exact)).long()
        )
        return side + torch.where(rel < exact, rel, large.clamp(max=half - 1))

    def forward(self, hidden_states, position_bias=None):
        y = self.layer_norm(hidden_states)
        b, n, _ = y.shape
        q, k, v = (f(y).view(b, n, self.n, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        if position_bias is None:
            i = torch.arange(n, device=y.device)
            position_bias = (
                self.relative_attention_bias(self.bucket(i[None, :] - i[:, None])).permute(2, 0, 1).unsqueeze(0)
            )
        w = F.softmax(q @ k.transpose(3, 2) + position_bias, dim=-1)
        return hidden_states + self.o((w @ v).transpose(1, 2).reshape(b, n, -1)), position_bias


add(
    "t5-encoder-layer",
    BucketBias,
    dict(embed_dim=24, num_heads=4, causal=False, positions=True),
    "t5-bias",
    "Unscaled by design, two-sided buckets, RMS and residual inside; heads of 5.",
)


class LevitBias(nn.Module):
    """Biases by the absolute offsets on a 2 x 4 grid; narrow keys, wide values."""

    def __init__(self, dim, key_dim, num_heads, attn_ratio=2, resolution=(2, 4)):
        super().__init__()
        self.h, self.kd, self.vd = num_heads, key_dim, key_dim * attn_ratio
        self.scale = key_dim**-0.5
        self.qkv = nn.Linear(dim, num_heads * (2 * self.kd + self.vd))
        self.proj = nn.Sequential(nn.Hardswish(), nn.Linear(num_heads * self.vd, dim))
        points = [(r, c) for r in range(resolution[0]) for c in range(resolution[1])]
        offsets, idxs = {}, []
        for p in points:
            for q in points:
                idxs.append(offsets.setdefault((abs(p[0] - q[0]), abs(p[1] - q[1])), len(offsets)))
        self.attention_biases = nn.Parameter(torch.randn(num_heads, len(offsets)))
        self.register_buffer("attention_bias_idxs", torch.tensor(idxs).view(len(points), -1), persistent=False)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).view(B, N, self.h, -1).split([self.kd, self.kd, self.vd], dim=3)
        q, k, v = q.permute(0, 2, 1, 3), k.permute(0, 2, 3, 1), v.permute(0, 2, 1, 3)
        attn = q @ k * self.scale + self.attention_biases[:, self.attention_bias_idxs]
        return self.proj((attn.softmax(dim=-1) @ v).transpose(1, 2).reshape(B, N, -1))


add(
    "levit-grid-bias",
    lambda: LevitBias(24, 4, 3),
    dict(embed_dim=24, num_heads=3, causal=False, positions=True, tokens=8),
    "swin",
    "A bias by absolute offsets on a 2 x 4 grid, values twice as wide as keys, an activation before the last map.",
)


def slopes_for(n):
    if math.log2(n).is_integer():
        return [2 ** (-8 * (i + 1) / n) for i in range(n)]
    m = 2 ** math.floor(math.log2(n))
    return slopes_for(m) + slopes_for(2 * m)[0::2][: n - m]


class SymmetricAlibi(nn.Module):
    def __init__(self, emb, num_heads):
        super().__init__()
        self.nh = num_heads
        self.Wq, self.Wk, self.Wv = (nn.Linear(emb, emb) for _ in "qkv")
        self.unify = nn.Linear(emb, emb)
        self.register_buffer("slopes", torch.tensor(slopes_for(num_heads)).view(-1, 1, 1))

    def forward(self, x):
        b, t, e = x.shape
        q, k, v = (w(x).view(b, t, self.nh, e // self.nh).transpose(1, 2) for w in (self.Wq, self.Wk, self.Wv))
        pos = torch.arange(t, device=x.device)
        bias = -(pos[:, None] - pos[None]).abs() * self.slopes
        dot = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(e // self.nh) + bias
        return self.unify(torch.matmul(dot.softmax(3), v).transpose(1, 2).reshape(b, t, e))


add(
    "alibi-two-sided",
    lambda: SymmetricAlibi(27, 3),
    dict(embed_dim=27, num_heads=3, causal=False, positions=True),
    "alibi",
    "Minus slope times distance to both sides, three heads.",
)


class SdpaAlibi(nn.Module):
    """MPT: fused Wqkv, clip, ALiBi in the float mask."""

    def __init__(self, d_model=24, n_heads=4, clip_qkv=6.0):
        super().__init__()
        self.Wqkv, self.out_proj = nn.Linear(d_model, 3 * d_model, bias=False), nn.Linear(d_model, d_model, bias=False)
        self.n_heads, self.clip_qkv = n_heads, clip_qkv

    def forward(self, x, past=None):
        s = x.size(1)
        qkv = self.Wqkv(x)
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in qkv.chunk(3, 2))
        bias = torch.arange(1 - s, 1, dtype=x.dtype, device=x.device).view(1, 1, 1, s)
        m = torch.arange(1, self.n_heads + 1, dtype=x.dtype, device=x.device) * (8 / self.n_heads)
        bias = bias * (1.0 / torch.pow(2, m)).view(1, self.n_heads, 1, 1)
        causal = torch.full((s, s), -torch.inf, dtype=x.dtype, device=x.device).triu_(1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias + causal)
        return self.out_proj(y.transpose(1, 2).flatten(2)), None, past


add(
    "mpt-alibi-sdpa",
    SdpaAlibi,
    dict(embed_dim=24, num_heads=4, causal=True, positions=True),
    "alibi",
    "Slope times the key's position, as a float mask of SDPA.",
)


class ShawKeys(nn.Module):
    """Relative keys and values (Shaw), clipped at 3."""

    def __init__(self, hid_dim, n_heads, max_k=3):
        super().__init__()
        self.h, self.hd, self.max_k = n_heads, hid_dim // n_heads, max_k
        self.fc_q, self.fc_k, self.fc_v, self.fc_o = (nn.Linear(hid_dim, hid_dim) for _ in range(4))
        self.rel_k, self.rel_v = nn.Embedding(2 * max_k + 1, self.hd), nn.Embedding(2 * max_k + 1, self.hd)

    def forward(self, x):
        bs, L, _ = x.shape
        q, k, v = (f(x).view(bs, L, self.h, self.hd).permute(0, 2, 1, 3) for f in (self.fc_q, self.fc_k, self.fc_v))
        r = torch.arange(L, device=x.device)
        dist = (r[None, :] - r[:, None]).clamp(-self.max_k, self.max_k) + self.max_k
        rk, rv = self.rel_k(dist), self.rel_v(dist)
        attn = (q @ k.transpose(-2, -1) + torch.einsum("bhid,ijd->bhij", q, rk)) / math.sqrt(self.hd)
        attn = attn.softmax(-1)
        out = attn @ v + torch.einsum("bhij,ijd->bhid", attn, rv)
        return self.fc_o(out.permute(0, 2, 1, 3).reshape(bs, L, -1))


add(
    "shaw-relative",
    lambda: ShawKeys(24, 3),
    dict(embed_dim=24, num_heads=3, causal=False, positions=True),
    "learned-positions",
    "Learned relative keys and values, clipped at three.",
)


class BartSelf(nn.Module):
    """Learned positions with BART's offset of two, normalized, then attention with a residual from there."""

    def __init__(self, width=24, heads=4, most=512):
        super().__init__()
        self.embed_positions = nn.Embedding(most + 2, width)
        self.layernorm_embedding = nn.LayerNorm(width)
        self.k_proj, self.v_proj, self.q_proj, self.out_proj = (nn.Linear(width, width) for _ in range(4))
        self.heads, self.scaling = heads, (width // heads) ** -0.5

    def forward(self, inputs_embeds):
        b, n, c = inputs_embeds.shape
        h = self.layernorm_embedding(inputs_embeds + self.embed_positions.weight[2 : n + 2])
        shape = lambda t: t.view(b, n, self.heads, -1).transpose(1, 2).reshape(b * self.heads, n, -1)
        q, k, v = shape(self.q_proj(h) * self.scaling), shape(self.k_proj(h)), shape(self.v_proj(h))
        p = torch.bmm(q, k.transpose(1, 2)).softmax(-1)
        o = torch.bmm(p, v).view(b, self.heads, n, -1).transpose(1, 2).reshape(b, n, c)
        return h + self.out_proj(o), p.view(b, self.heads, n, n)


add(
    "bart-learned-positions",
    BartSelf,
    dict(embed_dim=24, num_heads=4, causal=False, positions=True),
    "learned-positions",
    "Learned positions with an offset of two, a norm after them, the residual from behind that norm.",
)


# ---- rotary


class GPTJAttention(nn.Module):
    """Neighboring pairs, the first part of each head only."""

    def __init__(self, cfg):
        super().__init__()
        self.nh, self.hd, self.rd = cfg.n_head, cfg.n_embd // cfg.n_head, cfg.rotary_dim
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (
            nn.Linear(cfg.n_embd, cfg.n_embd, bias=False) for _ in range(4)
        )
        inv = 1.0 / 10000 ** (torch.arange(0, self.rd, 2, dtype=torch.float64) / self.rd)
        ang = torch.outer(torch.arange(cfg.n_pos, dtype=torch.float64), inv)
        self.register_buffer("sin", ang.sin(), persistent=False)
        self.register_buffer("cos", ang.cos(), persistent=False)

    def turn(self, t):
        rot, rest = t[..., : self.rd], t[..., self.rd :]
        s, c = (getattr(self, n)[: t.size(1), None].repeat_interleave(2, -1).to(t.dtype) for n in ("sin", "cos"))
        other = torch.stack((-rot[..., 1::2], rot[..., ::2]), -1).flatten(-2)
        return torch.cat((rot * c + other * s, rest), -1)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = (p(x).view(b, n, self.nh, self.hd) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k = self.turn(q), self.turn(k)
        w = torch.einsum("bqhd,bkhd->bhqk", q, k)
        w = w.masked_fill(torch.ones(n, n, device=x.device).triu(1).bool(), torch.finfo(w.dtype).min) / self.hd**0.5
        return (self.out_proj(torch.einsum("bhqk,bkhd->bqhd", w.softmax(-1), v).reshape(b, n, c)),)


add(
    "gptj-partial-interleaved",
    lambda: GPTJAttention(SimpleNamespace(n_embd=30, n_head=3, rotary_dim=6, n_pos=300)),
    dict(embed_dim=30, num_heads=3, causal=True, positions=True),
    "rotary",
    "Neighboring pairs of six of ten features, scale after the mask's finite minimum.",
)


def rope_halves(x, base=10000.0, offset=0, pos_dim=-2):
    n, d = x.size(pos_dim), x.size(-1)
    freq = base ** (-torch.arange(0, d, 2, device=x.device, dtype=torch.float64) / d)
    ang = torch.outer(torch.arange(offset, offset + n, device=x.device, dtype=torch.float64), freq)
    cos, sin = ang.cos().to(x.dtype), ang.sin().to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class EsmRotary(nn.Module):
    """Sequence first, heads in the batch, scale before the rotation."""

    def __init__(self, embed_dim, attention_heads):
        super().__init__()
        self.num_heads, self.scaling = attention_heads, (embed_dim // attention_heads) ** -0.5
        self.k_proj, self.v_proj, self.q_proj, self.out_proj = (nn.Linear(embed_dim, embed_dim) for _ in range(4))

    def forward(self, query, need_weights=True):
        t, b, e = query.shape
        q = self.q_proj(query) * self.scaling
        q, k, v = (
            y.contiguous().view(t, b * self.num_heads, -1).transpose(0, 1)
            for y in (q, self.k_proj(query), self.v_proj(query))
        )
        w = torch.bmm(rope_halves(q), rope_halves(k).transpose(1, 2)).softmax(-1)
        out = self.out_proj(torch.bmm(w, v).transpose(0, 1).contiguous().view(t, b, e))
        return out, (w.view(b, self.num_heads, t, t).transpose(1, 0) if need_weights else None)


add(
    "esm-rotary-seq-first",
    lambda: EsmRotary(24, 3),
    dict(embed_dim=24, num_heads=3, causal=False, batch_first=False, positions=True),
    "rotary",
    "Sequence first, scaled before it is rotated; weights heads first.",
)


class QwenThree(nn.Module):
    """Norm of q and k before the rotation, wide heads, grouped."""

    def __init__(self, hidden_size=24, num_attention_heads=6, num_key_value_heads=2, head_dim=8, rope_theta=500.0):
        super().__init__()
        self.hd, self.theta, self.g = head_dim, rope_theta, num_attention_heads // num_key_value_heads
        self.q_proj = nn.Linear(hidden_size, num_attention_heads * head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, num_key_value_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, num_key_value_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(num_attention_heads * head_dim, hidden_size, bias=False)
        self.q_norm, self.k_norm = RMS(head_dim), RMS(head_dim)

    def forward(self, hidden_states):
        shape = (*hidden_states.shape[:-1], -1, self.hd)
        q = self.q_norm(self.q_proj(hidden_states).view(shape)).transpose(1, 2)
        k = self.k_norm(self.k_proj(hidden_states).view(shape)).transpose(1, 2)
        v = self.v_proj(hidden_states).view(shape).transpose(1, 2)
        q, k = rope_halves(q, self.theta), rope_halves(k, self.theta)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(y.transpose(1, 2).flatten(-2))


add(
    "qwen3-gqa-norm-rope",
    QwenThree,
    dict(embed_dim=24, num_heads=6, causal=True, positions=True),
    "rotary",
    "qk-norm a head, then rotation with another base, enable_gqa, an inner width of 48.",
)


# ---- grouped and latent


class GroupedFive(nn.Module):
    """Five-dimensional einsum, heads in the order (key head, query of the group)."""

    def __init__(self, features, kv_groups, per_group, size):
        super().__init__()
        self.g, self.r, self.s = kv_groups, per_group, size
        self.q = nn.Parameter(torch.randn(features, kv_groups, per_group, size) * 0.3)
        self.kv = nn.Parameter(torch.randn(2, features, kv_groups, size) * 0.3)
        self.out = nn.Parameter(torch.randn(kv_groups, per_group, size, features) * 0.3)

    def forward(self, x):
        q = torch.einsum("btf,fgrs->bgrts", x, self.q)
        k, v = torch.einsum("btf,cfgs->cbgts", x, self.kv)
        w = torch.einsum("bgrts,bgus->bgrtu", q, k).mul(self.s**-0.5).softmax(-1)
        return torch.einsum("bgrtu,bgus,grsf->btf", w, v, self.out)


add(
    "grouped-five-dims",
    lambda: GroupedFive(20, 2, 2, 6),
    dict(embed_dim=20, num_heads=4, causal=False),
    "grouped",
    "Grouped heads by einsum alone, parameters with four dimensions.",
)


class DeepSeekMLA(nn.Module):
    """Latent keys and values, a shared rotated key, a latent query."""

    def __init__(self, dim=24, n_heads=3, q_rank=10, kv_rank=8, nope=6, rope=4, v_dim=7):
        super().__init__()
        self.h, self.nope, self.rope, self.vd, self.rank = n_heads, nope, rope, v_dim, kv_rank
        self.wq_a, self.q_norm, self.wq_b = (
            nn.Linear(dim, q_rank, bias=False),
            RMS(q_rank),
            nn.Linear(q_rank, n_heads * (nope + rope), bias=False),
        )
        self.wkv_a, self.kv_norm = nn.Linear(dim, kv_rank + rope, bias=False), RMS(kv_rank)
        self.wkv_b = nn.Linear(kv_rank, n_heads * (nope + v_dim), bias=False)
        self.wo = nn.Linear(n_heads * v_dim, dim, bias=False)
        self.softmax_scale = (nope + rope) ** -0.5

    def forward(self, x):
        b, t, _ = x.shape
        q = self.wq_b(self.q_norm(self.wq_a(x))).view(b, t, self.h, -1).transpose(1, 2)
        qn, qr = q.split([self.nope, self.rope], -1)
        c, kr = self.wkv_a(x).split([self.rank, self.rope], -1)
        kn, v = self.wkv_b(self.kv_norm(c)).view(b, t, self.h, -1).transpose(1, 2).split([self.nope, self.vd], -1)
        scores = qn @ kn.mT + rope_halves(qr) @ rope_halves(kr[:, None]).mT
        scores = (scores * self.softmax_scale) + torch.full((t, t), float("-inf"), device=x.device).triu(1).to(x.dtype)
        return self.wo((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


add(
    "mla-latent-query-rope",
    DeepSeekMLA,
    dict(embed_dim=24, num_heads=3, causal=True, positions=True),
    "mla",
    "Latent queries and keys, one rotated key for all heads, value width 7.",
)


# ---- windows


class BandAttention(nn.Module):
    """Longformer-like: unfolded keys, two to each side."""

    def __init__(self, c, h, one_sided=2):
        super().__init__()
        self.h, self.w = h, one_sided
        self.query, self.key, self.value, self.out = (nn.Linear(c, c) for _ in range(4))

    def forward(self, x):
        b, n, c = x.shape
        d = c // self.h
        q, k, v = (f(x).view(b, n, self.h, d).transpose(1, 2) for f in (self.query, self.key, self.value))
        span = 2 * self.w + 1
        k, v = (F.pad(t, (0, 0, self.w, self.w)).unfold(2, span, 1) for t in (k, v))  # b h n d span
        s = torch.einsum("bhnd,bhnds->bhns", q / d**0.5, k)
        place = torch.arange(n, device=x.device)[:, None] + torch.arange(span, device=x.device) - self.w
        s = s.masked_fill((place < 0) | (place >= n), float("-inf"))
        return self.out(torch.einsum("bhns,bhnds->bhnd", s.softmax(-1), v).transpose(1, 2).reshape(b, n, c))


add(
    "longformer-unfold",
    lambda: BandAttention(24, 2),
    dict(embed_dim=24, num_heads=2, causal=False, positions=True),
    "window",
    "Two tokens to each side, by unfolding the keys.",
)


class BlockLocal(nn.Module):
    """Buckets of four tokens, each sees itself and the bucket before, causal; pads and crops."""

    def __init__(self, dim, heads, bucket=4):
        super().__init__()
        self.heads, self.bucket = heads, bucket
        self.to_qkv, self.to_out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, c = x.shape
        w = self.bucket
        pad = -n % w
        q, k, v = (t.view(b, n, self.heads, -1).transpose(1, 2) for t in self.to_qkv(x).chunk(3, -1))
        q, k, v = (F.pad(t, (0, 0, 0, pad)).unflatten(2, (-1, w)) for t in (q, k, v))
        back = lambda t: torch.cat((torch.cat((torch.zeros_like(t[:, :, :1]), t[:, :, :-1]), 2), t), 3)
        k, v = back(k), back(v)
        s = q @ k.mT * q.size(-1) ** -0.5
        m = q.size(2)
        i = torch.arange(m * w, device=x.device).view(m, w)
        j = torch.cat((i - w, i), 1)
        s = s.masked_fill((j[:, None] > i[:, :, None]) | (j[:, None] < 0), -torch.finfo(s.dtype).max)
        out = (s.softmax(-1) @ v).flatten(2, 3)[:, :, :n]
        return self.to_out(out.transpose(1, 2).reshape(b, n, c))


add(
    "bucketed-local-causal",
    lambda: BlockLocal(24, 3),
    dict(embed_dim=24, num_heads=3, causal=True, positions=True),
    "window",
    "Buckets of four with one look back, padded to a multiple and cropped.",
)


# ---- caches


class ListCache(nn.Module):
    """A list of two tensors is carried on, (B, T, H, D)."""

    def __init__(self, n_state, n_head):
        super().__init__()
        self.n_head = n_head
        self.attn_norm = nn.LayerNorm(n_state)
        self.query, self.key, self.value = (
            nn.Linear(n_state, n_state),
            nn.Linear(n_state, n_state, bias=False),
            nn.Linear(n_state, n_state),
        )
        self.out = nn.Linear(n_state, n_state)

    def forward(self, x, cache=None):
        y = self.attn_norm(x)
        q, k, v = (f(y).unflatten(-1, (self.n_head, -1)) for f in (self.query, self.key, self.value))
        if cache:
            k, v = torch.cat([cache[0], k], 1), torch.cat([cache[1], v], 1)
        scale = q.size(-1) ** -0.25
        s = torch.einsum("bqhd,bkhd->bhqk", q * scale, k * scale)
        nq, nk = s.shape[-2:]
        s = s + torch.full((nq, nk), float("-inf"), device=x.device, dtype=s.dtype).triu(nk - nq + 1)
        return x + self.out(torch.einsum("bhqk,bkhd->bqhd", s.softmax(-1), v).flatten(2)), [k, v]


add(
    "whisper-list-cache",
    lambda: ListCache(20, 2),
    dict(embed_dim=20, num_heads=2, causal=True, cache="kv"),
    "cache",
    "Pre-norm and residual inside, keys without bias, the fourth root of the scale on each side.",
)


class MistralCache(nn.Module):
    """Window of 5 with rotary, the cache keeps what the window needs and a count."""

    State = namedtuple("State", "k v seen")

    def __init__(self, dim=24, heads=4, kv_heads=2, window=5):
        super().__init__()
        self.h, self.kvh, self.window, d = heads, kv_heads, window, dim // heads
        self.wq, self.wo = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.wk, self.wv = nn.Linear(dim, kv_heads * d, bias=False), nn.Linear(dim, kv_heads * d, bias=False)

    def forward(self, x, cache=None):
        b, n, c = x.shape
        seen = 0 if cache is None else cache.seen
        q = rope_halves(self.wq(x).view(b, n, self.h, -1).transpose(1, 2), offset=seen)
        k = rope_halves(self.wk(x).view(b, n, self.kvh, -1).transpose(1, 2), offset=seen)
        v = self.wv(x).view(b, n, self.kvh, -1).transpose(1, 2)
        if cache is not None:
            k, v = torch.cat((cache.k, k), 2), torch.cat((cache.v, v), 2)
        total = k.size(2)
        i = torch.arange(total - n, total, device=x.device)[:, None]
        j = torch.arange(total, device=x.device)[None]
        may = (j <= i) & (i - j < self.window)
        r = self.h // self.kvh
        y = F.scaled_dot_product_attention(q, k.repeat_interleave(r, 1), v.repeat_interleave(r, 1), attn_mask=may)
        keep = self.window - 1
        return self.wo(y.transpose(1, 2).reshape(b, n, c)), self.State(k[:, :, -keep:], v[:, :, -keep:], seen + n)


add(
    "mistral-window-cache",
    MistralCache,
    dict(embed_dim=24, num_heads=4, causal=True, positions=True, cache="kv"),
    "cache",
    "Grouped heads, rotary, a window of five; the cache keeps four and the count.",
)


@dataclass
class AlibiState:
    keys: torch.Tensor
    values: torch.Tensor


class AlibiCached(nn.Module):
    def __init__(self, d=18, heads=3):
        super().__init__()
        self.heads = heads
        self.qkv, self.dense = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x, cache=None):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, self.heads, 3, -1).permute(3, 0, 2, 1, 4)
        if cache is not None:
            k, v = torch.cat([cache.keys, k], dim=-2), torch.cat([cache.values, v], dim=-2)
        m = k.size(-2)
        slope = torch.tensor(slopes_for(self.heads), device=x.device, dtype=x.dtype)[:, None, None]
        i, j = torch.arange(m - n, m, device=x.device)[:, None], torch.arange(m, device=x.device)
        s = q @ k.mT / math.sqrt(q.size(-1)) + slope * (j - i)
        p = torch.softmax(s.masked_fill(j > i, -1e9), -1)
        return self.dense((p @ v).transpose(1, 2).reshape(b, n, d)), AlibiState(k, v)


add(
    "alibi-dataclass-cache",
    AlibiCached,
    dict(embed_dim=18, num_heads=3, causal=True, positions=True, cache="kv"),
    "cache",
    "ALiBi by true distances, rows packed head by head, a dataclass as the cache.",
)


# ---- fused, flex, compiled, scripted, quantized, half


class TiledAttention(nn.Module):
    """Online softmax over tiles of three keys, causal, as FlashAttention in a notebook."""

    def __init__(self, C, H, tile=3):
        super().__init__()
        self.H, self.tile = H, tile
        self.c_attn, self.c_proj = nn.Linear(C, 3 * C), nn.Linear(C, C)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.H, -1).transpose(1, 2) for t in self.c_attn(x).split(C, 2))
        o = torch.zeros_like(q)
        l = q.new_zeros(*q.shape[:3], 1)
        m = q.new_full((*q.shape[:3], 1), -torch.inf)
        rows = torch.arange(T, device=x.device)[:, None]
        for at in range(0, T, self.tile):
            kj, vj = k[:, :, at : at + self.tile], v[:, :, at : at + self.tile]
            cols = torch.arange(at, at + kj.size(2), device=x.device)
            s = (q @ kj.mT / math.sqrt(q.size(-1))).masked_fill(cols > rows, -torch.inf)
            new = torch.maximum(m, s.amax(-1, keepdim=True))
            p, fix = torch.exp(s - new), torch.exp(m - new)
            l, o, m = l * fix + p.sum(-1, keepdim=True), o * fix + p @ vj, new
        return self.c_proj((o / l).transpose(1, 2).reshape(B, T, C))


add(
    "tiled-online-softmax",
    lambda: TiledAttention(24, 3),
    dict(embed_dim=24, num_heads=3, causal=True),
    "fused",
    "Tiles of three keys with a running maximum and sum.",
)


class FlexAlibi(nn.Module):
    def __init__(self, dim=32, heads=2):
        super().__init__()
        self.heads = heads
        self.to_q, self.to_k, self.to_v, self.proj = (nn.Linear(dim, dim) for _ in range(4))
        self.register_buffer("m", torch.tensor([2.0**-2, 2.0**-4]), persistent=False)

    def forward(self, x):
        from torch.nn.attention.flex_attention import flex_attention

        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.to_q, self.to_k, self.to_v))

        def mod(score, b, h, i, j):
            return torch.where(i >= j, score - self.m[h] * (i - j), -float("inf"))

        return self.proj(flex_attention(q, k, v, score_mod=mod).transpose(1, 2).flatten(2))


add(
    "flex-alibi",
    FlexAlibi,
    dict(embed_dim=32, num_heads=2, causal=True, positions=True),
    "flex",
    "FlexAttention, the causal mask and ALiBi in the score_mod.",
)


class FlexWindow(nn.Module):
    def __init__(self, dim=32, heads=2, kv=1):
        super().__init__()
        self.heads, self.kv, self.d = heads, kv, dim // heads
        self.in_proj = nn.Linear(dim, (heads + 2 * kv) * self.d, bias=False)
        self.out_proj = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        b, n, _ = x.shape
        q, k, v = (
            t.unflatten(-1, (-1, self.d)).transpose(1, 2)
            for t in self.in_proj(x).split([self.heads * self.d, self.kv * self.d, self.kv * self.d], -1)
        )
        mask = create_block_mask(lambda b, h, i, j: (i >= j) & (i - j <= 3), None, None, n, n, device=x.device)
        return self.out_proj(flex_attention(q, k, v, block_mask=mask, enable_gqa=True).transpose(1, 2).flatten(2))


add(
    "flex-window-mqa",
    FlexWindow,
    dict(embed_dim=32, num_heads=2, causal=True, positions=True),
    "flex",
    "A block mask of the last four tokens, one key head.",
)


class Int8Linear(nn.Module):
    """Weights as int8 with a scale a row."""

    def __init__(self, i, o, bias=True):
        super().__init__()
        w = torch.randn(o, i) * i**-0.5
        s = w.abs().amax(1, keepdim=True) / 127
        self.register_buffer("weight", (w / s).round().to(torch.int8))
        self.register_buffer("scales", s)
        self.bias = nn.Parameter(torch.randn(o) * 0.1) if bias else None

    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype) * self.scales.to(x.dtype), self.bias)


class WeightOnlyAttention(nn.Module):
    def __init__(self, hidden=24, heads=3):
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (Int8Linear(hidden, hidden) for _ in range(4))

    def forward(self, x):
        q, k, v = (
            f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj)
        )
        return self.o_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


add(
    "int8-weight-only",
    WeightOnlyAttention,
    dict(embed_dim=24, num_heads=3, causal=True),
    "quantized",
    "Weights kept as int8 with a scale a row, causal SDPA.",
)


class BFloatValues(nn.Module):
    """Values are mixed in bfloat16, scores and softmax stay in the input's precision."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        p = (q @ k.mT / math.sqrt(c // self.heads)).softmax(-1)
        o = torch.matmul(p.bfloat16(), v.bfloat16()).to(x.dtype)
        return self.proj(o.transpose(1, 2).reshape(b, n, c))


add(
    "bfloat16-values",
    lambda: BFloatValues(24, 4),
    dict(embed_dim=24, num_heads=4, causal=False),
    "half-inside",
    "Weights times values in bfloat16, scores as they come.",
)


class Scriptable(nn.Module):
    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.scale = (dim // heads) ** -0.5
        self.norm = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        b, n, c = x.shape
        qkv = self.qkv(self.norm(x)).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 3, 0, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        s = torch.matmul(q, k.transpose(-2, -1)) * self.scale
        hidden = torch.ones(n, n, device=x.device).triu(1) > 0
        s = s.masked_fill(hidden, -float("inf"))
        if mask is not None:
            s = s.masked_fill(mask, -float("inf"))
        return x + self.proj(torch.matmul(s.softmax(-1), v).permute(1, 2, 0, 3).reshape(b, n, c))


add(
    "scripted-prenorm-causal",
    lambda: torch.jit.script(Scriptable(24, 4)),
    dict(embed_dim=24, num_heads=4, causal=True),
    "jit",
    "Scripted, heads before the batch, norm and residual inside.",
)

add(
    "compiled-grouped",
    lambda: torch.compile(OlmoQK(24, 4, 1), backend="eager", dynamic=True),
    dict(embed_dim=24, num_heads=4, causal=True),
    "compile",
    "torch.compile with dynamic shapes around grouped heads with norms.",
)


# ---- output forms and constructors


class AttnReturn(NamedTuple):
    context: torch.Tensor
    entropy: torch.Tensor


@dataclass
class EncoderConfig:
    d: int = 20
    heads: int = 5
    dropout: float = 0.1
    extras: dict = field(default_factory=dict)


class EntropyAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.cfg = config
        self.maps = nn.ModuleDict({n: nn.Linear(config.d, config.d) for n in ("q_lin", "k_lin", "v_lin", "merge")})
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x):
        h = self.cfg.heads
        q, k, v = (self.maps[n](x).unflatten(-1, (h, -1)).transpose(1, 2) for n in ("q_lin", "k_lin", "v_lin"))
        logp = F.log_softmax(q @ k.mT / math.sqrt(self.cfg.d / h), -1)
        p = logp.exp()
        out = self.maps["merge"]((self.drop(p) @ v).transpose(1, 2).flatten(2))
        return AttnReturn(out, -(p * logp).sum(-1))


add(
    "namedtuple-entropy",
    lambda: EntropyAttention(EncoderConfig()),
    dict(embed_dim=20, num_heads=5, causal=False),
    "output-form",
    "A ModuleDict, a log-softmax, a named tuple with entropies.",
)


class DictOut(nn.Module):
    def __init__(self, **kw):
        super().__init__()
        self.n, w = kw["n_heads"], kw["width"]
        self.heads = nn.ModuleList(
            [nn.ModuleList([nn.Linear(w, w // self.n, bias=False) for _ in range(3)]) for _ in range(self.n)]
        )
        self.mix = nn.Linear(w, w)

    def forward(self, x):
        outs, maps = [], []
        for wq, wk, wv in self.heads:
            q, k = wq(x), wk(x)
            p = torch.softmax(torch.baddbmm(x.new_zeros(1), q, k.transpose(1, 2), alpha=k.size(-1) ** -0.5), -1)
            outs.append(p @ wv(x))
            maps.append(p)
        return OrderedDict(hidden_states=self.mix(torch.cat(outs, -1)), attentions=torch.stack(maps, 1))


add(
    "head-list-ordered-dict",
    lambda: DictOut(width=24, n_heads=3),
    dict(embed_dim=24, num_heads=3, causal=False),
    "output-form",
    "Heads in a list with matrices of their own; an OrderedDict.",
)


# ---- cross-attention, masks


class FlamingoGated(nn.Module):
    def __init__(self, dim=24, dim_visual=14, heads=3, dim_head=6):
        super().__init__()
        self.heads, self.scale = heads, dim_head**-0.5
        self.norm, self.norm_media = nn.LayerNorm(dim), nn.LayerNorm(dim_visual)
        self.to_q = nn.Linear(dim, heads * dim_head, bias=False)
        self.to_kv = nn.Linear(dim_visual, 2 * heads * dim_head, bias=False)
        self.to_out = nn.Linear(heads * dim_head, dim, bias=False)
        self.attn_gate = nn.Parameter(torch.tensor([0.6]))

    def forward(self, x, media):
        q = self.to_q(self.norm(x))
        k, v = self.to_kv(self.norm_media(media)).chunk(2, -1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).permute(0, 2, 1, 3) for t in (q, k, v))
        sim = torch.einsum("... i d, ... j d -> ... i j", q * self.scale, k)
        sim = sim - sim.amax(-1, keepdim=True).detach()
        out = torch.einsum("... i j, ... j d -> ... i d", sim.softmax(-1), v)
        return x + self.to_out(out.permute(0, 2, 1, 3).flatten(2)) * self.attn_gate.tanh()


add(
    "flamingo-gated-cross",
    FlamingoGated,
    dict(embed_dim=24, num_heads=3, causal=False, inputs="x_context", key_dim=14),
    "cross-attention",
    "Two norms, a tanh gate, residual; the media have 14 features.",
)


class GuidedCross(nn.Module):
    """Memory with a mask, as a float that is added."""

    def __init__(self, d=20, mem=12, h=2):
        super().__init__()
        self.h = h
        self.lin_q, self.lin_k, self.lin_v = nn.Linear(d, d), nn.Linear(mem, d), nn.Linear(mem, d)
        self.lin_o = nn.Linear(d, d)
        self.ln = nn.LayerNorm(d)

    def forward(self, tgt, memory, memory_allowed):
        b, n, d = tgt.shape
        q, k, v = (
            t.view(b, -1, self.h, d // self.h).transpose(1, 2)
            for t in (self.lin_q(tgt), self.lin_k(memory), self.lin_v(memory))
        )
        penalty = torch.zeros(memory_allowed.shape, dtype=q.dtype, device=q.device).masked_fill(
            ~memory_allowed, torch.finfo(q.dtype).min
        )
        y = F.scaled_dot_product_attention(q, k, v, penalty[:, None])
        return self.ln(tgt + self.lin_o(y.transpose(1, 2).reshape(b, n, d)))


add(
    "postnorm-cross-masked",
    GuidedCross,
    dict(embed_dim=20, num_heads=2, causal=False, inputs="x_context_allowed", key_dim=12),
    "cross-attention",
    "A context of 12 features with a mask; norm after the residual.",
)


class AllowedMHA(nn.Module):
    def __init__(self, e, h):
        super().__init__()
        self.core = nn.MultiheadAttention(e, h, dropout=0.1, batch_first=True)

    def forward(self, q, k, v, allowed):
        hide = (~allowed).repeat_interleave(self.core.num_heads, 0)
        return self.core(q, k, v, attn_mask=hide, need_weights=True, average_attn_weights=False)


add(
    "mha-three-dim-mask",
    lambda: AllowedMHA(24, 4),
    dict(embed_dim=24, num_heads=4, causal=False, inputs="qkv_allowed"),
    "padding-mask",
    "nn.MultiheadAttention with each item's mask repeated for its heads, and weights by head.",
)


class MultiplicativeMask(nn.Module):
    """Exponentials times the mask, then normalized."""

    def __init__(self, c, h):
        super().__init__()
        self.h = h
        self.qkv, self.o = nn.Linear(c, 3 * c), nn.Linear(c, c)

    def forward(self, x, allowed):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.h, -1)).permute(2, 0, 3, 1, 4)
        a = allowed[:, None].to(x.dtype)
        s = q @ k.mT / math.sqrt(q.size(-1))
        s = s - (s + (a - 1) * 1e30).amax(-1, keepdim=True)
        e = s.clamp(max=0).exp() * a
        return self.o((e / e.sum(-1, keepdim=True).clamp_min(1e-30) @ v).transpose(1, 2).flatten(2))


add(
    "mask-times-exponentials",
    lambda: MultiplicativeMask(18, 3),
    dict(embed_dim=18, num_heads=3, causal=False, inputs="x_allowed"),
    "padding-mask",
    "The mask multiplies the exponentials, before they are normalized.",
)


# ---- other kinds


class Resampler(nn.Module):
    """Learned latents attend to the tokens and to themselves."""

    def __init__(self, dim=24, n_latents=4, heads=3):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(n_latents, dim))
        self.norm_x, self.norm_l = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.heads = heads

    def forward(self, x):
        lat = self.latents.expand(x.size(0), -1, -1)
        xn, ln = self.norm_x(x), self.norm_l(lat)
        both = torch.cat((xn, ln), 1)
        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (self.to_q(ln), self.to_k(both), self.to_v(both))
        )
        return lat + self.to_out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


add(
    "perceiver-resampler",
    Resampler,
    dict(embed_dim=24, num_heads=3, causal=False),
    "perceiver",
    "Four latents see the tokens and themselves; four outputs.",
)


class AlignmentAttention(nn.Module):
    """Additive scores of a decoder's states over an encoder's; context joined to the state."""

    def __init__(self, dec=16, enc=10, att=12):
        super().__init__()
        self.W_dec, self.W_enc = nn.Linear(dec, att, bias=False), nn.Linear(enc, att)
        self.energy = nn.Linear(att, 1, bias=False)
        self.joint = nn.Linear(dec + enc, dec)

    def forward(self, decoder_states, encoder_states):
        e = self.energy(
            torch.tanh(self.W_dec(decoder_states)[:, :, None] + self.W_enc(encoder_states)[:, None])
        ).squeeze(-1)
        alpha = F.softmax(e, dim=2)
        return torch.tanh(self.joint(torch.cat((decoder_states, torch.bmm(alpha, encoder_states)), -1))), alpha


add(
    "bahdanau-cross-joint",
    AlignmentAttention,
    dict(embed_dim=16, num_heads=1, causal=False, inputs="x_context", key_dim=10),
    "additive",
    "Additive scores over a context, no scale due, tanh of the joined state and context.",
)


class CausalLinear(nn.Module):
    """Running sums of relu features, normalized."""

    def __init__(self, d=24, h=3):
        super().__init__()
        self.h = h
        self.q, self.k, self.v, self.o = (nn.Linear(d, d, bias=False) for _ in range(4))

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (self.h, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = q.relu() + 1e-3, k.relu() + 1e-3
        kv = (k.unsqueeze(-1) * v.unsqueeze(-2)).cumsum(2)
        z = k.cumsum(2)
        y = torch.einsum("bhnd,bhnde->bhne", q, kv) / torch.einsum("bhnd,bhnd->bhn", q, z).unsqueeze(-1)
        return self.o(y.transpose(1, 2).flatten(2))


add(
    "causal-linear-relu",
    CausalLinear,
    dict(embed_dim=24, num_heads=3, causal=True),
    "linear",
    "relu features with running sums, normalized, causal.",
)


class EfficientAttention(nn.Module):
    """Softmax of q over features and of k over tokens (Shen et al.)."""

    def __init__(self, ch, head_count):
        super().__init__()
        self.hc = head_count
        self.keys, self.queries, self.values, self.reprojection = (nn.Conv1d(ch, ch, 1) for _ in range(4))

    def forward(self, x):
        t = x.transpose(1, 2)
        n, c, l = t.shape
        k = self.keys(t).view(n, self.hc, c // self.hc, l).softmax(-1)
        q = self.queries(t).view(n, self.hc, c // self.hc, l).softmax(2)
        v = self.values(t).view(n, self.hc, c // self.hc, l)
        context = k @ v.transpose(2, 3)
        out = context.transpose(2, 3) @ q
        return x + self.reprojection(out.reshape(n, c, l)).transpose(1, 2)


add(
    "efficient-two-softmaxes",
    lambda: EfficientAttention(20, 2),
    dict(embed_dim=20, num_heads=2, causal=False),
    "linear",
    "Queries normalized over features, keys over tokens, by design.",
)


class PrimerAttention(nn.Module):
    """Depthwise causal convolutions of width three behind the projections."""

    def __init__(self, width=24, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.dconv = nn.Conv1d(3 * width, 3 * width, 3, groups=3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        b, n, c = x.shape
        y = self.dconv(F.pad(self.qkv(x).transpose(1, 2), (2, 0))).transpose(1, 2)
        q, k, v = y.view(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        return self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, n, c))


add(
    "primer-causal-conv",
    PrimerAttention,
    dict(embed_dim=24, num_heads=4, causal=True, positions=True),
    "conv-projection",
    "Depthwise convolutions padded on the left only, causal.",
)


class DiffAttention(nn.Module):
    """Two softmaxes, the second subtracted with a learned factor, a norm a head."""

    def __init__(self, dim=24, heads=2, lam=0.3):
        super().__init__()
        self.h, self.d = heads, dim // heads // 2
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.lam = nn.Parameter(torch.tensor(lam))
        self.subln = RMS(2 * self.d, 1e-5)

    def forward(self, x):
        b, n, c = x.shape
        q = self.q_proj(x).view(b, n, 2 * self.h, self.d).transpose(1, 2) * self.d**-0.5
        k = self.k_proj(x).view(b, n, 2 * self.h, self.d).transpose(1, 2)
        v = self.v_proj(x).view(b, n, self.h, 2 * self.d).transpose(1, 2)
        w = (q @ k.mT).masked_fill(torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1), -torch.inf).softmax(-1)
        w = w.view(b, self.h, 2, n, n)
        y = self.subln((w[:, :, 0] - self.lam * w[:, :, 1]) @ v) * 0.8
        return self.out_proj(y.transpose(1, 2).reshape(b, n, c))


add(
    "differential-causal",
    DiffAttention,
    dict(embed_dim=24, num_heads=2, causal=True),
    "differential",
    "Difference of two softmaxes with a norm a head, causal; weights may be negative by design.",
)


class GrokCap(nn.Module):
    def __init__(self, c=24, h=3, cap=5.0):
        super().__init__()
        self.h, self.cap = h, cap
        self.w_in, self.w_out = nn.Parameter(torch.randn(c, 3 * c) * 0.25), nn.Parameter(torch.randn(c, c) * 0.25)

    def forward(self, x):
        n = x.size(1)
        q, k, v = ((x @ w).unflatten(-1, (self.h, -1)).transpose(1, 2) for w in self.w_in.chunk(3, 1))
        s = self.cap * torch.tanh(q @ k.mT * q.size(-1) ** -0.5 / self.cap)
        i = torch.arange(n, device=x.device)
        s = torch.where(i[None, :] <= i[:, None], s, torch.full_like(s, -1e30))
        return (s.softmax(-1) @ v).transpose(1, 2).flatten(2) @ self.w_out


add(
    "grok-cap-in-out-matrices",
    GrokCap,
    dict(embed_dim=24, num_heads=3, causal=True),
    "soft-cap",
    "A soft cap before the mask; one bare (in, 3 out) matrix split by columns.",
)


class Linformer(nn.Module):
    """Keys and values projected along the tokens, from 9 to 4."""

    def __init__(self, dim=20, seq_len=9, k=4, heads=2):
        super().__init__()
        self.heads = heads
        self.to_q, self.to_kv = nn.Linear(dim, dim, bias=False), nn.Linear(dim, 2 * dim, bias=False)
        self.proj_k, self.proj_v = nn.Parameter(torch.randn(seq_len, k) / 3), nn.Parameter(torch.randn(seq_len, k) / 3)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        q, (k, v) = self.to_q(x), self.to_kv(x).chunk(2, -1)
        k, v = torch.einsum("bnd,nk->bkd", k, self.proj_k), torch.einsum("bnd,nk->bkd", v, self.proj_v)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        return self.to_out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


add(
    "linformer-nine-tokens",
    Linformer,
    dict(embed_dim=20, num_heads=2, causal=False, positions=True, tokens=9),
    "low-rank",
    "Nine keys become four by learned maps over the tokens.",
)


class TrainedDropout(nn.Module):
    def __init__(self, d=24, h=3, p=0.2):
        super().__init__()
        self.h, self.p = h, p
        self.wqkv, self.wo = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in self.wqkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.p if self.training else 0.0, is_causal=True)
        return self.wo(y.transpose(1, 2).flatten(2))


add(
    "sdpa-dropout-training",
    TrainedDropout,
    dict(embed_dim=24, num_heads=3, causal=True, training=True),
    "dropout",
    "SDPA's dropout in training only, causal.",
)


def sequence_first_reader(keys, queries, values):
    """Sequence first, the keys as the first argument."""
    s = torch.einsum("qbd,kbd->bqk", queries, keys) / keys.size(-1) ** 0.5
    return torch.einsum("bqk,kbd->qbd", s.softmax(2), values)


add(
    "function-sequence-first",
    lambda: lambda q, k, v: sequence_first_reader(k, q, v),
    dict(embed_dim=14, num_heads=1, causal=False, inputs="qkv", batch_first=False),
    "single-head",
    "A function without weights, sequence first, inputs reordered by a lambda.",
)
