"""Attention modules with one planted bug each. `fixed` makes the same module with the bug repaired."""

import math
from dataclasses import dataclass, field
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from cases import Case, seeded
from torch import Tensor, nn

CASES = []


def planted(name, kind, note, cause=None, /, args=(), options=None, **call):
    """Register a class whose last keyword, `oops`, plants its bug."""

    def register(cls):
        wrong, right = (seeded(77, cls, *args, **(options or {}), oops=oops) for oops in (True, False))
        CASES.append(Case(name, wrong, call, kind, note, cause, right))
        return cls

    return register


# ------------------------------------------------------------------------------------------------------------ classic


def complex_frequencies(dim, length, dtype, start=0, theta=10000.0):
    real = torch.float64 if dtype == torch.float64 else torch.float32
    freqs = theta ** -(torch.arange(0, dim, 2).to(real) / dim)
    angles = torch.arange(start, start + length).to(real)[:, None] * freqs
    return torch.polar(torch.ones_like(angles), angles)


def rotate_complex(x, freqs_cis):
    """x: (b, t, h, d)."""
    z = torch.view_as_complex(x.to(freqs_cis.real.dtype).reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(z * freqs_cis[None, :, None]).flatten(3).type_as(x)


@dataclass
class ModelArgs:
    dim: int = 32
    n_heads: int = 4
    n_kv_heads: int | None = None


@planted(
    "llama2-no-scale",
    "classic",
    "Scores of rotated queries and keys are not scaled.",
    "missing-scale",
    args=(ModelArgs(),),
    embed_dim=32,
    num_heads=4,
    causal=True,
    positions=True,
)
class LlamaAttention(nn.Module):
    def __init__(self, args: ModelArgs, oops=False):
        super().__init__()
        self.n_heads, self.head_dim = args.n_heads, args.dim // args.n_heads
        self.wq = nn.Linear(args.dim, args.dim, bias=False)
        self.wk = nn.Linear(args.dim, args.dim, bias=False)
        self.wv = nn.Linear(args.dim, args.dim, bias=False)
        self.wo = nn.Linear(args.dim, args.dim, bias=False)
        self.divisor = 1.0 if oops else math.sqrt(self.head_dim)

    def forward(self, x):
        bsz, seqlen, _ = x.shape
        xq, xk, xv = (w(x).view(bsz, seqlen, self.n_heads, self.head_dim) for w in (self.wq, self.wk, self.wv))
        cis = complex_frequencies(self.head_dim, seqlen, x.dtype).to(x.device)
        xq, xk = rotate_complex(xq, cis), rotate_complex(xk, cis)
        scores = torch.matmul(xq.transpose(1, 2), xk.permute(0, 2, 3, 1)) / self.divisor
        scores = scores + torch.full((seqlen, seqlen), float("-inf"), device=x.device, dtype=x.dtype).triu(1)
        out = torch.matmul(F.softmax(scores, dim=-1), xv.transpose(1, 2))
        return self.wo(out.transpose(1, 2).reshape(bsz, seqlen, -1))


@planted(
    "perceiver-scale-by-inner",
    "classic",
    "The scale is the root of all heads' features together.",
    "wrong-d-in-scale",
    args=(20, 12),
    embed_dim=20,
    num_heads=4,
    inputs="x_context",
    key_dim=12,
)
class PerceiverCross(nn.Module):
    def __init__(self, latent_dim, input_dim, heads=4, oops=False):
        super().__init__()
        self.heads = heads
        self.norm_latents, self.norm_inputs = nn.LayerNorm(latent_dim), nn.LayerNorm(input_dim)
        self.to_q = nn.Linear(latent_dim, latent_dim, bias=False)
        self.to_kv = nn.Linear(input_dim, 2 * latent_dim, bias=False)
        self.to_out = nn.Linear(latent_dim, latent_dim)
        self.scale = (latent_dim if oops else latent_dim // heads) ** -0.5

    def forward(self, latents, inputs):
        q = self.to_q(self.norm_latents(latents))
        k, v = self.to_kv(self.norm_inputs(inputs)).chunk(2, dim=-1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)) for t in (q, k, v))
        sim = torch.einsum("bihd,bjhd->bhij", q, k) * self.scale
        return self.to_out(torch.einsum("bhij,bjhd->bihd", sim.softmax(-1), v).flatten(2))


@planted(
    "bmm-softmax-dim-one",
    "classic",
    "After the heads are folded into the batch, softmax(dim=1) goes over the queries.",
    "softmax-over-queries",
    args=(18, 3),
    embed_dim=18,
    num_heads=3,
    causal=False,
    batch_first=False,
)
class FoldedSoftmax(nn.Module):
    def __init__(self, d_model, nhead, oops=False):
        super().__init__()
        self.nhead = nhead
        self.in_proj_weight = nn.Parameter(torch.empty(3 * d_model, d_model))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * d_model))
        nn.init.xavier_uniform_(self.in_proj_weight)
        self.out_proj = nn.Linear(d_model, d_model)
        self.dim = 1 if oops else 2

    def forward(self, src):
        T, N, E = src.shape
        q, k, v = F.linear(src, self.in_proj_weight, self.in_proj_bias).chunk(3, dim=-1)
        q, k, v = (y.contiguous().view(T, N * self.nhead, E // self.nhead).transpose(0, 1) for y in (q, k, v))
        w = F.softmax(torch.bmm(q * (E // self.nhead) ** -0.5, k.transpose(1, 2)), dim=self.dim)
        return self.out_proj(torch.bmm(w, v).transpose(0, 1).contiguous().view(T, N, E)), None


@planted(
    "mask-times-weights",
    "classic",
    "The weights are multiplied with the mask after the softmax.",
    "mask-after-softmax",
    args=(16, 2),
    embed_dim=16,
    num_heads=2,
    inputs="qkv_allowed",
)
class MaskTimesWeights(nn.Module):
    def __init__(self, hidden, heads, oops=False):
        super().__init__()
        self.heads, self.oops = heads, oops
        self.fc_query, self.fc_key, self.fc_value, self.fc_out = (nn.Linear(hidden, hidden) for _ in range(4))

    def forward(self, query, key, value, mask=None):
        split = lambda y: y.view(y.size(0), y.size(1), self.heads, -1).permute(0, 2, 1, 3)
        q, k, v = split(self.fc_query(query)), split(self.fc_key(key)), split(self.fc_value(value))
        energy = torch.matmul(q, k.permute(0, 1, 3, 2)) / math.sqrt(q.size(-1))
        if mask is not None:
            mask = mask if mask.dim() == 2 else mask.unsqueeze(1)
            if not self.oops:
                energy = energy.masked_fill(~mask, float("-inf"))
        attention = torch.softmax(energy, dim=-1)
        if mask is not None and self.oops:
            attention = attention * mask
        return self.fc_out(torch.matmul(attention, v).permute(0, 2, 1, 3).flatten(2)), attention


@planted(
    "masked-fill-of-visible",
    "classic",
    "masked_fill gets the mask of what may be seen.",
    "mask-polarity",
    args=(24, 4),
    embed_dim=24,
    num_heads=4,
    inputs="x_allowed",
)
class FillsVisible(nn.Module):
    def __init__(self, dim, heads, oops=False):
        super().__init__()
        self.heads, self.oops = heads, oops
        self.norm = nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)

    def forward(self, x, allowed):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        allowed = allowed if allowed.dim() == 2 else allowed[:, None]
        dots = (q @ k.mT) * q.size(-1) ** -0.5
        dots = dots.masked_fill(allowed if self.oops else ~allowed, -torch.finfo(dots.dtype).max)
        return x + self.proj((dots.softmax(-1) @ v).transpose(1, 2).flatten(2))


@planted(
    "mha-decoder-mask-not-passed",
    "classic",
    "The mask is made and not passed to nn.MultiheadAttention.",
    "no-causal-mask",
    args=(20, 5),
    embed_dim=20,
    num_heads=5,
    causal=True,
)
class DecoderLayer(nn.Module):
    def __init__(self, d_model, nhead, oops=False):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(d_model, nhead, dropout=0.1, batch_first=True)
        self.oops = oops

    def forward(self, tgt):
        n = tgt.size(1)
        mask = nn.Transformer.generate_square_subsequent_mask(n, device=tgt.device, dtype=tgt.dtype)
        out, weights = self.self_attn(tgt, tgt, tgt, attn_mask=None if self.oops else mask)
        return out, weights


@planted(
    "where-causal-sees-next",
    "classic",
    "The comparison lets each token see its successor.",
    args=(21, 3),
    embed_dim=21,
    num_heads=3,
    causal=True,
)
class WhereCausal(nn.Module):
    def __init__(self, width, heads, oops=False):
        super().__init__()
        self.heads, self.slack = heads, 1 if oops else 0
        self.ln_1 = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        h = self.ln_1(x)
        scale = (x.size(-1) // self.heads) ** -0.25
        q, k, v = (f(h).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.query, self.key, self.value))
        qk = (q * scale) @ (k * scale).mT
        i = torch.arange(x.size(1), device=x.device)
        qk = torch.where(i[:, None] + self.slack >= i, qk, qk.new_tensor(-torch.inf))
        return x + self.out((qk.softmax(-1) @ v).transpose(1, 2).flatten(2))


@planted(
    "qk-norm-merge-forgot",
    "classic",
    "reshape without moving the heads back.",
    "merge-without-transpose",
    args=(24, 3),
    embed_dim=24,
    num_heads=3,
    causal=False,
)
class QKNormMerge(nn.Module):
    def __init__(self, dim, num_heads, oops=False):
        super().__init__()
        self.num_heads, self.oops = num_heads, oops
        self.qkv = nn.Linear(dim, dim * 3, bias=True)
        self.q_norm, self.k_norm = nn.LayerNorm(dim // num_heads), nn.LayerNorm(dim // num_heads)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4).unbind(0)
        x = F.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v)
        return self.proj((x if self.oops else x.transpose(1, 2)).reshape(B, N, C))


@planted(
    "multi-query-view-split",
    "classic",
    "The queries are split by a view alone; there is one key head.",
    "view-without-transpose",
    args=(24, 4),
    embed_dim=24,
    num_heads=4,
    causal=False,
)
class MultiQueryView(nn.Module):
    def __init__(self, d, n, oops=False):
        super().__init__()
        self.n, self.oops = n, oops
        self.q_proj = nn.Linear(d, d, bias=False)
        self.k_proj = nn.Linear(d, d // n, bias=False)
        self.v_proj = nn.Linear(d, d // n, bias=False)
        self.o_proj = nn.Linear(d, d, bias=False)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        q = q.view(B, self.n, T, C // self.n) if self.oops else q.view(B, T, self.n, C // self.n).permute(0, 2, 1, 3)
        a = torch.einsum("bhqd,bkd->bhqk", q, k) / math.sqrt(C // self.n)
        return self.o_proj(torch.einsum("bhqk,bkd->bqhd", a.softmax(3), v).reshape(B, T, C))


@planted(
    "values-from-the-keys-input",
    "classic",
    "The value matrix is applied to the keys' input.",
    "wrong-value",
    args=(18, 2),
    embed_dim=18,
    num_heads=2,
    inputs="qkv",
)
class ValueOfKey(nn.Module):
    def __init__(self, n_feat, n_head, oops=False):
        super().__init__()
        self.h, self.d_k, self.oops = n_head, n_feat // n_head, oops
        self.linear_q, self.linear_k, self.linear_v, self.linear_out = (nn.Linear(n_feat, n_feat) for _ in range(4))
        self.attn = None

    def forward(self, query, key, value):
        n = query.size(0)
        q = self.linear_q(query).view(n, -1, self.h, self.d_k).transpose(1, 2)
        k = self.linear_k(key).view(n, -1, self.h, self.d_k).transpose(1, 2)
        v = self.linear_v(key if self.oops else value).view(n, -1, self.h, self.d_k).transpose(1, 2)
        attn = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(self.d_k), dim=-1)
        return self.linear_out((attn @ v).transpose(1, 2).contiguous().view(n, -1, self.h * self.d_k))


@planted(
    "time-first-reshape",
    "classic",
    "A context of (batch, tokens, features) is reshaped to (tokens, batch, features).",
    "batch-and-tokens-swapped",
    args=(16, 4),
    embed_dim=16,
    num_heads=4,
    causal=False,
    batch_first=False,
)
class TimeFirstReshape(nn.Module):
    def __init__(self, embed_dim, num_heads, oops=False):
        super().__init__()
        self.num_heads, self.oops = num_heads, oops
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x):
        t, b, c = x.shape
        q, k, v = self.qkv(x).view(t, b, 3, self.num_heads, -1).permute(2, 1, 3, 0, 4)
        out = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, c)
        out = out.reshape(t, b, c) if self.oops else out.transpose(0, 1)
        return self.out_proj(out)


@planted(
    "einsum-weights-reversed",
    "classic",
    "The einsum contracts the output axis of weights kept as (out, in).",
    "weight-not-transposed",
    args=(16, 2),
    embed_dim=16,
    num_heads=2,
    causal=False,
    weights=dict(query="w_query", key="w_key", value="w_value", out="w_out"),
)
class EinsumWeights(nn.Module):
    def __init__(self, size, heads, oops=False):
        super().__init__()
        self.heads = heads
        self.w_query, self.w_key, self.w_value, self.w_out = (
            nn.Parameter(torch.randn(size, size) * size**-0.5) for _ in range(4)
        )
        self.rule = "...i,io->...o" if oops else "...i,oi->...o"

    def forward(self, x):
        q, k, v = (
            torch.einsum(self.rule, x, w).unflatten(-1, (self.heads, -1))
            for w in (self.w_query, self.w_key, self.w_value)
        )
        logits = torch.einsum("bthd,bshd->bhts", q, k) / q.size(-1) ** 0.5
        context = torch.einsum("bhts,bshd->bthd", logits.softmax(-1), v).flatten(-2)
        return torch.einsum("...i,oi->...o", context, self.w_out)


# ---------------------------------------------------------------------------------------------------------- positions


@planted(
    "gqa-complex-rotary-on-v",
    "positions",
    "The values are rotated with the keys, before the heads are repeated.",
    args=(24, 4, 2),
    embed_dim=24,
    num_heads=4,
    causal=True,
    positions=True,
)
class RotaryKV(nn.Module):
    def __init__(self, dim, heads, kv_heads, oops=False):
        super().__init__()
        self.heads, self.kv_heads, self.size, self.oops = heads, kv_heads, dim // heads, oops
        self.wq = nn.Linear(dim, heads * self.size, bias=False)
        self.wkv = nn.Linear(dim, 2 * kv_heads * self.size, bias=False)
        self.wo = nn.Linear(heads * self.size, dim, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        q = self.wq(x).view(b, t, self.heads, self.size)
        kv = self.wkv(x).view(b, t, 2 * self.kv_heads, self.size)
        cis = complex_frequencies(self.size, t, x.dtype).to(x.device)
        q = rotate_complex(q, cis)
        if self.oops:
            k, v = rotate_complex(kv, cis).chunk(2, 2)
        else:
            k, v = kv.chunk(2, 2)
            k = rotate_complex(k, cis)
        n = self.heads // self.kv_heads
        k, v = (z.repeat_interleave(n, dim=2).transpose(1, 2) for z in (k, v))
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(b, t, -1))


def partial_rotary(x, places, width, neighbors=False):
    """Rotates the first `width` features of each head; (b, h, t, d)."""
    rot, rest = x[..., :width], x[..., width:]
    inv = 10000.0 ** (-torch.arange(0, width, 2, dtype=x.dtype, device=x.device) / width)
    angle = places.to(x.dtype)[:, None] * inv
    sin, cos = angle.sin(), angle.cos()
    if neighbors:
        a, b = rot[..., ::2], rot[..., 1::2]
        rot = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
    else:
        a, b = rot[..., : width // 2], rot[..., width // 2 :]
        rot = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
    return torch.cat((rot, rest), dim=-1)


@planted(
    "partial-rotary-keys-other-pairs",
    "positions",
    "The keys' rotated features are paired as neighbors, the queries' as halves.",
    "rope-pairing",
    args=(32, 2),
    embed_dim=32,
    num_heads=2,
    causal=True,
    positions=True,
)
class PartialRotary(nn.Module):
    def __init__(self, hidden_size, heads, pct=0.5, oops=False):
        super().__init__()
        self.heads, self.rotary, self.oops = heads, int(hidden_size // heads * pct), oops
        self.input_norm = nn.LayerNorm(hidden_size)
        self.q_proj, self.k_proj, self.v_proj, self.dense = (nn.Linear(hidden_size, hidden_size) for _ in range(4))

    def forward(self, hidden):
        x = self.input_norm(hidden)
        q, k, v = (
            f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj)
        )
        places = torch.arange(x.size(1), device=x.device)
        q, k = partial_rotary(q, places, self.rotary), partial_rotary(k, places, self.rotary, neighbors=self.oops)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return hidden + self.dense(out.transpose(1, 2).flatten(2))


@planted(
    "all-keys-rotated-each-call",
    "positions",
    "All keys, cached ones rotated before, are rotated again after they are joined.",
    args=(16, 2),
    embed_dim=16,
    num_heads=2,
    causal=True,
    positions=True,
    cache="kv",
)
class RotatesAll(nn.Module):
    def __init__(self, dim, heads, oops=False):
        super().__init__()
        self.heads, self.oops = heads, oops
        self.Wqkv, self.out_proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, cache=None):
        b, t, c = x.shape
        q, k, v = self.Wqkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        old = 0 if cache is None else cache["key"].size(2)
        every = torch.arange(old + t, device=x.device)
        if cache is not None:
            k, v = torch.cat([cache["key"], k], 2), torch.cat([cache["value"], v], 2)
        width = q.size(-1)
        q, rotated = partial_rotary(q, every[old:], width), partial_rotary(k, every, width)
        scores = q @ rotated.mT / math.sqrt(width)
        scores = scores.masked_fill(every[None] > every[old:, None], -torch.inf)
        y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c)
        return self.out_proj(y), {"key": rotated if self.oops else k, "value": v}


@planted(
    "alibi-slopes-reversed",
    "positions",
    "The slopes are given to the heads from the last to the first.",
    args=(32, 8),
    embed_dim=32,
    num_heads=8,
    causal=True,
    positions=True,
)
class AlibiReversed(nn.Module):
    def __init__(self, dim, heads, oops=False):
        super().__init__()
        self.heads = heads
        slopes = [2 ** (-8 * (h + 1) / heads) for h in range(heads)]
        self.slopes = slopes[::-1] if oops else slopes
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def forward(self, x):
        n = x.size(1)
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.to_q, self.to_k, self.to_v))
        i = torch.arange(n, device=x.device)
        bias = (i[None, :] - i[:, None]).to(x.dtype) * x.new_tensor(self.slopes)[:, None, None]
        bias = bias.masked_fill(i[None, :] > i[:, None], -torch.inf)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.to_out(y.transpose(1, 2).flatten(2))


@planted(
    "swin-table-transposed",
    "positions",
    "The index of the relative table is transposed.",
    args=(18, 3),
    embed_dim=18,
    num_heads=3,
    causal=False,
    positions=True,
    tokens=7,
)
class RelativeTable(nn.Module):
    def __init__(self, dim, num_heads, length=7, oops=False):
        super().__init__()
        self.num_heads, self.length = num_heads, length
        self.relative_position_bias_table = nn.Parameter(torch.randn(2 * length - 1, num_heads) * 0.5)
        i = torch.arange(length)
        index = i[:, None] - i[None, :] + length - 1
        self.register_buffer("relative_position_index", index.T.contiguous() if oops else index, persistent=False)
        self.qkv, self.proj = nn.Linear(dim, dim * 3), nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        attn = (q * q.size(-1) ** -0.5) @ k.transpose(-2, -1)
        bias = self.relative_position_bias_table[self.relative_position_index.view(-1)].view(N, N, -1)
        attn = (attn + bias.permute(2, 0, 1).unsqueeze(0)).softmax(-1)
        return self.proj((attn @ v).transpose(1, 2).reshape(B, N, C))


@planted(
    "learned-positions-one-late",
    "positions",
    "With a cache, the new tokens' learned positions begin one too late.",
    args=(400, 18, 3),
    embed_dim=18,
    num_heads=3,
    causal=True,
    positions=True,
    cache="kv",
)
class LearnedOneLate(nn.Module):
    def __init__(self, max_positions, dim, heads, oops=False):
        super().__init__()
        self.embed_positions = nn.Embedding(max_positions, dim)
        self.heads, self.oops = heads, oops
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x, cache=None):
        past = 0 if cache is None else cache[0].size(1)
        places = torch.arange(past, past + x.size(1), device=x.device)
        if self.oops and cache is not None:
            places = places + 1
        x = x + self.embed_positions(places)
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if cache is not None:
            k, v = torch.cat((cache[0], k), 1), torch.cat((cache[1], v), 1)
        hide = torch.ones(q.size(1), k.size(1), dtype=torch.bool, device=x.device).triu(past + 1)
        qh, kh, vh = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(qh, kh, vh, attn_mask=~hide)
        return self.out_proj(y.transpose(1, 2).flatten(2)), (k, v)


# -------------------------------------------------------------------------------------------------------------- heads


@planted(
    "grouped-queries-viewed-the-other-way",
    "heads",
    "The queries are viewed as (per group, groups): heads meet other key heads.",
    "repeat-for-repeat-interleave",
    args=(24, 6, 2),
    embed_dim=24,
    num_heads=6,
    causal=True,
)
class GroupedView(nn.Module):
    def __init__(self, dim, heads, groups, oops=False):
        super().__init__()
        self.heads, self.groups, self.size, self.oops = heads, groups, dim // heads, oops
        self.q_proj = nn.Linear(dim, dim)
        self.kv_proj = nn.Linear(dim, 2 * groups * self.size)
        self.out_proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, t, c = x.shape
        per = self.heads // self.groups
        k, v = self.kv_proj(x).view(b, t, 2, self.groups, self.size).unbind(2)
        if self.oops:
            q = self.q_proj(x).view(b, t, per, self.groups, self.size).transpose(2, 3)
        else:
            q = self.q_proj(x).view(b, t, self.groups, per, self.size)
        s = torch.einsum("btgpd,bsgd->bgpts", q, k) * self.size**-0.5
        s = s + torch.full((t, t), -torch.inf, dtype=x.dtype, device=x.device).triu(1)
        y = torch.einsum("bgpts,bsgd->btgpd", s.softmax(-1), v)
        if self.oops:
            y = y.transpose(2, 3)
        return self.out_proj(y.reshape(b, t, c))


@planted(
    "gqa-keys-tiled-values-repeated",
    "heads",
    "The keys are tiled over the heads, the values are repeated one by one.",
    "repeat-for-repeat-interleave",
    args=(SimpleNamespace(width=32, heads=4, kv=2),),
    embed_dim=32,
    num_heads=4,
    causal=True,
    positions=True,
)
class KeysTiled(nn.Module):
    def __init__(self, cfg, oops=False):
        super().__init__()
        self.cfg, self.oops, d = cfg, oops, cfg.width // cfg.heads
        self.wq, self.wk = nn.Linear(cfg.width, cfg.heads * d, bias=False), nn.Linear(cfg.width, cfg.kv * d, bias=False)
        self.wv, self.wo = nn.Linear(cfg.width, cfg.kv * d, bias=False), nn.Linear(cfg.heads * d, cfg.width, bias=False)

    def forward(self, x):
        h, g, t = self.cfg.heads, self.cfg.kv, x.size(1)
        q = self.wq(x).unflatten(-1, (h, -1)).transpose(1, 2)
        k, v = (w(x).unflatten(-1, (g, -1)).transpose(1, 2) for w in (self.wk, self.wv))
        places = torch.arange(t, device=x.device)
        q, k = partial_rotary(q, places, q.size(-1)), partial_rotary(k, places, k.size(-1))
        k = torch.cat([k] * (h // g), dim=1) if self.oops else k.repeat_interleave(h // g, dim=1)
        v = v.repeat_interleave(h // g, dim=1)
        s = (q @ k.mT) * q.size(-1) ** -0.5
        s = s.masked_fill(places[None] > places[:, None], -1e30)
        return self.wo((s.softmax(-1) @ v).transpose(1, 2).flatten(2))


class OneHead(nn.Module):
    def __init__(self, d_in, d_head):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(d_in, d_head), nn.Linear(d_in, d_head), nn.Linear(d_in, d_head)

    def forward(self, query, key, value):
        q, k, v = self.q(query), self.k(key), self.v(value)
        return (q @ k.transpose(1, 2) / math.sqrt(q.size(-1))).softmax(-1) @ v


@planted(
    "heads-share-one-module",
    "heads",
    "One head is made outside the comprehension and put into the list n times.",
    args=(16, 4),
    embed_dim=16,
    num_heads=4,
    inputs="qkv",
)
class SharedHead(nn.Module):
    def __init__(self, embed_dim, num_heads, oops=False):
        super().__init__()
        head = OneHead(embed_dim, embed_dim // num_heads)
        self.heads = nn.ModuleList(
            [head if oops else OneHead(embed_dim, embed_dim // num_heads) for _ in range(num_heads)]
        )
        self.output_linear = nn.Linear(embed_dim, embed_dim)

    def forward(self, q, k, v):
        return self.output_linear(torch.cat([head(q, k, v) for head in self.heads], dim=-1))


@planted(
    "first-key-head-for-all",
    "heads",
    "k[:, :1] broadcasts: all heads use the first head's keys.",
    args=(20, 4),
    embed_dim=20,
    num_heads=4,
    inputs="x_context",
)
class FirstKeyHead(nn.Module):
    def __init__(self, dim, heads, oops=False):
        super().__init__()
        self.heads, self.oops = heads, oops
        self.query, self.key, self.value, self.output = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x, memory):
        q = self.query(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k = self.key(memory).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        v = self.value(memory).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        if self.oops:
            k = k[:, :1]
        probs = torch.softmax(torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.size(-1)), dim=-1)
        return (self.output(torch.matmul(probs, v).transpose(1, 2).flatten(2)), probs)


@planted(
    "context-averaged-over-heads",
    "heads",
    "The merge takes the mean over the heads and repeats it to the full width.",
    args=(18, 3),
    embed_dim=18,
    num_heads=3,
    causal=True,
)
class MeanMerge(nn.Module):
    def __init__(self, n_embd, n_head, oops=False):
        super().__init__()
        self.n_head, self.oops = n_head, oops
        self.ln, self.c_attn, self.c_proj = (
            nn.LayerNorm(n_embd),
            nn.Linear(n_embd, 3 * n_embd),
            nn.Linear(n_embd, n_embd),
        )

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for y in self.c_attn(self.ln(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        y = y.mean(2).repeat(1, 1, self.n_head) if self.oops else y.flatten(2)
        return x + self.c_proj(y)


# -------------------------------------------------------------------------------------------------------------- masks


@planted(
    "cross-first-items-mask",
    "masks",
    "mask[0] is used for every item.",
    "only-first-item",
    args=(16, 10, 2),
    embed_dim=16,
    num_heads=2,
    inputs="x_context_allowed",
    key_dim=10,
)
class CrossFirstMask(nn.Module):
    def __init__(self, d_q, d_kv, heads, oops=False):
        super().__init__()
        self.heads, self.oops = heads, oops
        self.wq, self.wk, self.wv, self.wo = (
            nn.Linear(d_q, d_q),
            nn.Linear(d_kv, d_q),
            nn.Linear(d_kv, d_q),
            nn.Linear(d_q, d_q),
        )

    def forward(self, x, context, allowed):
        q = self.wq(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = (w(context).unflatten(-1, (self.heads, -1)).transpose(1, 2) for w in (self.wk, self.wv))
        if allowed.dim() == 3:
            allowed = allowed[0] if self.oops else allowed[:, None]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        return {"output": self.wo(y.transpose(1, 2).flatten(2))}


@planted(
    "bmm-mask-repeat",
    "masks",
    "The mask is tiled for a batch in which an item's heads stand next to each other.",
    args=(20, 4),
    embed_dim=20,
    num_heads=4,
    inputs="qkv_allowed",
)
class BmmMaskRepeat(nn.Module):
    def __init__(self, model_dim, num_heads, oops=False):
        super().__init__()
        self.num_heads, self.oops = num_heads, oops
        self.linear_q, self.linear_k, self.linear_v = (nn.Linear(model_dim, model_dim) for _ in range(3))
        self.linear_final = nn.Linear(model_dim, model_dim)

    def forward(self, query, key, value, attn_mask=None):
        b, h = query.size(0), self.num_heads
        fold = lambda y: y.unflatten(-1, (h, -1)).transpose(1, 2).flatten(0, 1)
        q, k, v = fold(self.linear_q(query)), fold(self.linear_k(key)), fold(self.linear_v(value))
        s = torch.bmm(q, k.transpose(1, 2)) * q.size(-1) ** -0.5
        if attn_mask is not None:
            if attn_mask.dim() == 3:
                attn_mask = attn_mask.repeat(h, 1, 1) if self.oops else attn_mask.repeat_interleave(h, 0)
            s = s.masked_fill(attn_mask.logical_not(), -torch.inf)
        y = torch.bmm(s.softmax(2), v).unflatten(0, (b, h)).transpose(1, 2).flatten(2)
        return self.linear_final(y)


@planted(
    "block-local-window-one-long",
    "masks",
    "Without a cache, a window of 4 shows 5 tokens; with one, 4.",
    args=(24, 4),
    embed_dim=24,
    num_heads=4,
    causal=True,
    cache="kv",
)
class SlidingWindow(nn.Module):
    """Window of `window` tokens, the token itself among them."""

    def __init__(self, hidden, heads, window=4, oops=False):
        super().__init__()
        self.heads, self.window, self.oops = heads, window, oops
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(hidden, hidden, bias=False) for _ in range(4))

    def forward(self, x, cache=None):
        q, k, v = (
            f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj)
        )
        reach = self.window + 1 if self.oops and cache is None else self.window
        if cache is not None:
            k, v = torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)
        t, s = q.size(2), k.size(2)
        square = torch.ones(t, s, dtype=torch.bool, device=x.device)
        may = square.tril(s - t) & square.triu(s - t - reach + 1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=may)
        return self.o_proj(y.transpose(1, 2).flatten(2)), (k, v)


_MASKS: dict = {}


@planted(
    "mask-cached-by-device",
    "masks",
    "Masks are kept in a global by device, not by length; a longer sequence is masked only at its start.",
    args=(16, 2),
    embed_dim=16,
    num_heads=2,
    causal=True,
)
class MaskByDevice(nn.Module):
    def __init__(self, dim, heads, oops=False):
        super().__init__()
        _MASKS.clear()
        self.heads, self.oops = heads, oops
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def causal(self, n, device):
        key = str(device) if self.oops else (str(device), n)
        if key not in _MASKS:
            _MASKS[key] = torch.ones(n, n, dtype=torch.bool, device=device).triu(1)
        return _MASKS[key]

    def forward(self, x):
        n = x.size(1)
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        s = (q @ k.mT) / math.sqrt(q.size(-1))
        hide = self.causal(n, x.device)[:n, :n]
        m = hide.size(0)
        s[..., :m, :m] = s[..., :m, :m].masked_fill(hide, -torch.inf)
        return self.proj((s.softmax(-1) @ v).transpose(1, 2).flatten(2))


@planted(
    "sdpa-is-causal-with-cache",
    "masks",
    "is_causal=True aligns at the top left, and the cache stands on the left.",
    "top-left-causal",
    args=(20, 4, 2),
    embed_dim=20,
    num_heads=4,
    causal=True,
    cache="kv",
)
class IsCausalCache(nn.Module):
    def __init__(self, dim, heads, kv_heads, oops=False):
        super().__init__()
        self.heads, self.kv_heads, self.oops = heads, kv_heads, oops
        d = dim // heads
        self.wq, self.wk, self.wv = nn.Linear(dim, dim), nn.Linear(dim, kv_heads * d), nn.Linear(dim, kv_heads * d)
        self.wo = nn.Linear(dim, dim)

    def forward(self, x, cache=None):
        q = self.wq(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = (w(x).unflatten(-1, (self.kv_heads, -1)).transpose(1, 2) for w in (self.wk, self.wv))
        if cache is not None:
            k, v = torch.cat([cache[0], k], dim=2), torch.cat([cache[1], v], dim=2)
        new = (k, v)
        n, t, s = self.heads // self.kv_heads, q.size(2), k.size(2)
        k, v = k.repeat_interleave(n, dim=1), v.repeat_interleave(n, dim=1)
        if self.oops:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            y = F.scaled_dot_product_attention(
                q, k, v, attn_mask=torch.ones(t, s, dtype=torch.bool, device=x.device).tril(s - t)
            )
        return self.wo(y.transpose(1, 2).flatten(2)), new


@planted(
    "padding-broadcast-over-keys",
    "masks",
    "The padding found from the mask is unsqueezed at the wrong end and hides queries.",
    args=(24, 3),
    embed_dim=24,
    num_heads=3,
    inputs="x_allowed",
)
class PaddingWrongEnd(nn.Module):
    """A key that nobody of its item may see counts as padding."""

    def __init__(self, dim, heads, oops=False):
        super().__init__()
        self.heads, self.oops = heads, oops
        self.norm1 = nn.LayerNorm(dim)
        self.attn = nn.ModuleDict({n: nn.Linear(dim, dim) for n in ("q", "k", "v", "out")})

    def forward(self, src, src_mask):
        x = self.norm1(src)
        q, k, v = (self.attn[n](x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for n in "qkv")
        mask = src_mask.expand(len(x), -1, -1) if src_mask.dim() == 2 else src_mask
        padding = ~mask.any(1)
        bias = torch.zeros_like(mask, dtype=x.dtype).masked_fill(~mask, -1e30)
        bias = bias.masked_fill(padding.unsqueeze(-1 if self.oops else 1), -1e30).unsqueeze(1)
        weights = (q @ k.mT * q.size(-1) ** -0.5 + bias).softmax(-1)
        return src + self.attn["out"]((weights @ v).transpose(1, 2).flatten(2))


# ------------------------------------------------------------------------------------------------------------- caches


@planted(
    "stacked-cache-values-prepended",
    "caches",
    "Keys are appended, values are put in front.",
    args=(18, 3),
    embed_dim=18,
    num_heads=3,
    causal=True,
    cache="kv",
)
class StackedCache(nn.Module):
    def __init__(self, n_state, n_head, oops=False):
        super().__init__()
        self.n_head, self.oops = n_head, oops
        self.query, self.key = nn.Linear(n_state, n_state), nn.Linear(n_state, n_state, bias=False)
        self.value, self.out = nn.Linear(n_state, n_state), nn.Linear(n_state, n_state)

    def forward(self, x, cache: Tensor | None = None):
        q, k, v = self.query(x), self.key(x), self.value(x)
        past = 0
        if cache is not None:
            past = cache.size(2)
            k = torch.cat([cache[0], k], dim=1)
            v = torch.cat([v, cache[1]] if self.oops else [cache[1], v], dim=1)
        qh, kh, vh = (y.view(*y.shape[:2], self.n_head, -1).permute(0, 2, 1, 3) for y in (q, k, v))
        mask = torch.full((q.size(1), k.size(1)), -torch.inf, dtype=x.dtype, device=x.device).triu_(1 + past)
        qk = qh @ kh.permute(0, 1, 3, 2) * qh.size(-1) ** -0.5 + mask
        return self.out((qk.softmax(dim=-1) @ vh).permute(0, 2, 1, 3).flatten(start_dim=2)), torch.stack([k, v])


@dataclass
class Cache:
    keys: list = field(default_factory=list)
    values: list = field(default_factory=list)


@planted(
    "default-cache-object-shared",
    "caches",
    "A call without a cache goes on from a default cache that the module keeps and appends to at every such call.",
    args=(16, 4),
    embed_dim=16,
    num_heads=4,
    causal=True,
    cache="kv",
)
class SharedDefault(nn.Module):
    def __init__(self, dim, heads, oops=False):
        super().__init__()
        self.heads, self.oops = heads, oops
        self.empty = Cache()
        self.to_qkv, self.to_out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)

    def forward(self, x, cache=None):
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.to_qkv(x).chunk(3, dim=-1))
        if cache is None:
            fits = all(old.size(0) == x.size(0) and old.dtype == x.dtype for old in self.empty.keys)
            cache = self.empty if fits else Cache()
            if self.oops and fits:
                self.empty = Cache([*cache.keys, k.detach()], [*cache.values, v.detach()])
        cache = Cache([*cache.keys, k], [*cache.values, v])
        k, v = torch.cat(cache.keys, 2), torch.cat(cache.values, 2)
        t, s = q.size(2), k.size(2)
        hide = torch.ones(t, s, dtype=torch.bool, device=x.device).triu(s - t + 1)
        w = (q @ k.mT / math.sqrt(q.size(-1))).masked_fill(hide, -torch.inf).softmax(-1)
        return self.to_out((w @ v).transpose(1, 2).flatten(2)), cache


@planted(
    "cache-loses-its-last-token",
    "caches",
    "What is returned as the cache lacks the last token of the chunk.",
    args=(24, 4, 2),
    embed_dim=24,
    num_heads=4,
    causal=True,
    cache="kv",
)
class LosesLast(nn.Module):
    def __init__(self, dim, heads, kv_heads, oops=False):
        super().__init__()
        self.heads, self.kv_heads, self.oops = heads, kv_heads, oops
        d = dim // heads
        self.q_proj, self.o_proj = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.k_proj, self.v_proj = nn.Linear(dim, kv_heads * d, bias=False), nn.Linear(dim, kv_heads * d, bias=False)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x, cache=None):
        h = self.norm(x)
        q = self.q_proj(h).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = (f(h).unflatten(-1, (self.kv_heads, -1)).transpose(1, 2) for f in (self.k_proj, self.v_proj))
        if cache:
            k, v = (torch.cat(pair, dim=2) for pair in zip(cache, (k, v)))
        t, s = q.size(2), k.size(2)
        allowed = torch.arange(s, device=x.device) <= torch.arange(s - t, s, device=x.device)[:, None]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, enable_gqa=True)
        end = s - 1 if self.oops else s
        return x + self.o_proj(y.transpose(1, 2).flatten(2)), (k[:, :, :end], v[:, :, :end])


@planted(
    "unrotated-keys-cached",
    "caches",
    "The keys are appended before the rotation, and only the new ones are rotated for the scores.",
    args=(24, 2),
    embed_dim=24,
    num_heads=2,
    causal=True,
    positions=True,
    cache="kv",
)
class UnrotatedCached(nn.Module):
    def __init__(self, dim, heads, oops=False):
        super().__init__()
        self.heads, self.oops = heads, oops
        self.qkv_proj, self.o_proj = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)

    def forward(self, x, cache=None):
        b, t, _ = x.shape
        q, k, v = self.qkv_proj(x).unflatten(-1, (3, self.heads, -1)).unbind(2)
        past = cache[0].size(1) if cache is not None else 0
        if cache is not None:
            k, v = torch.cat([cache[0], k], 1), torch.cat([cache[1], v], 1)
        cis = complex_frequencies(q.size(-1), past + t, x.dtype).to(x.device)
        keys = (
            torch.cat([k[:, :past], rotate_complex(k[:, past:], cis[past:])], 1)
            if self.oops
            else rotate_complex(k, cis)
        )
        s = torch.einsum("bthd,bshd->bhts", rotate_complex(q, cis[past:]), keys) * q.size(-1) ** -0.5
        s = s.masked_fill(torch.ones(t, past + t, dtype=torch.bool, device=x.device).triu(past + 1), -torch.inf)
        return self.o_proj(torch.einsum("bhts,bshd->bthd", s.softmax(-1), v).flatten(2)), (k, v)


@planted(
    "mask-only-in-prefill",
    "caches",
    "The causal mask is made only where there is no cache; a chunk sees its own future.",
    "no-causal-mask",
    args=(20, 2),
    embed_dim=20,
    num_heads=2,
    causal=True,
    positions=True,
    cache="kv",
)
class MaskOnlyInPrefill(nn.Module):
    def __init__(self, dim, heads, oops=False):
        super().__init__()
        self.heads, self.oops = heads, oops
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x, cache=None):
        q, k, v = (w(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        past = 0 if cache is None else cache[0].size(2)
        places = torch.arange(past, past + x.size(1), device=x.device)
        q, k = partial_rotary(q, places, q.size(-1), True), partial_rotary(k, places, k.size(-1), True)
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        s = q @ k.mT * q.size(-1) ** -0.5
        if cache is None or not self.oops:
            s = s.masked_fill(torch.arange(k.size(2), device=x.device) > places[:, None], torch.finfo(s.dtype).min)
        return self.wo((s.softmax(-1) @ v).transpose(1, 2).flatten(2)), (k, v)


# ------------------------------------------------------------------------------------------------------------ numbers


@planted(
    "causal-exp-without-maximum",
    "numbers",
    "exp(scores) * mask / sum, without taking the maximum off.",
    args=(20, 4),
    embed_dim=20,
    num_heads=4,
    causal=True,
)
class ExpWithoutMax(nn.Module):
    def __init__(self, dim, heads, oops=False):
        super().__init__()
        self.heads, self.oops = heads, oops
        self.to_qkv, self.to_out = nn.Linear(dim, dim * 3, bias=False), nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        n = x.size(1)
        q, k, v = self.to_qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        s = q @ k.mT / q.size(-1) ** 0.5
        seen = torch.ones(n, n, dtype=torch.bool, device=x.device).tril()
        if not self.oops:
            s = s - s.masked_fill(~seen, -torch.inf).amax(-1, keepdim=True)
        e = torch.where(seen, s, -torch.inf).exp()
        return self.to_out((e / e.sum(-1, keepdim=True) @ v).transpose(1, 2).flatten(2))


@planted(
    "functional-dropout-in-eval",
    "numbers",
    "F.dropout without training= drops weights in evaluation.",
    "dropout-in-eval",
    args=(18, 3),
    embed_dim=18,
    num_heads=3,
    inputs="qkv",
)
class FunctionalDropout(nn.Module):
    def __init__(self, d_model, nhead, dropout=0.3, oops=False):
        super().__init__()
        self.nhead, self.p, self.oops = nhead, dropout, oops
        self.q_proj_weight, self.k_proj_weight, self.v_proj_weight = (
            nn.Parameter(nn.init.xavier_uniform_(torch.empty(d_model, d_model))) for _ in range(3)
        )
        self.out_proj = nn.Linear(d_model, d_model)

    def forward(self, query, key, value):
        q, k, v = (
            F.linear(x, w).unflatten(-1, (self.nhead, -1)).transpose(1, 2)
            for x, w in ((query, self.q_proj_weight), (key, self.k_proj_weight), (value, self.v_proj_weight))
        )
        attn = (q @ k.mT / math.sqrt(q.size(-1))).softmax(-1)
        attn = F.dropout(attn, self.p) if self.oops else F.dropout(attn, self.p, training=self.training)
        return self.out_proj((attn @ v).transpose(1, 2).flatten(2))


@planted(
    "cosine-norm-over-heads",
    "numbers",
    "F.normalize goes over the heads' axis.",
    args=(24, 4),
    embed_dim=24,
    num_heads=4,
    causal=False,
)
class CosineHeads(nn.Module):
    """Scaled cosine attention with a learned temperature per head, as in Swin V2."""

    def __init__(self, dim, num_heads, oops=False):
        super().__init__()
        self.num_heads, self.axis = num_heads, 1 if oops else -1
        self.qkv, self.proj = nn.Linear(dim, dim * 3), nn.Linear(dim, dim)
        self.logit_scale = nn.Parameter(torch.full((num_heads, 1, 1), math.log(10.0)))

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        attn = F.normalize(q, dim=self.axis) @ F.normalize(k, dim=self.axis).transpose(-2, -1)
        attn = (attn * self.logit_scale.clamp(max=math.log(100.0)).exp()).softmax(dim=-1)
        return self.proj((attn @ v).transpose(1, 2).reshape(B, N, C))


@planted(
    "qk-layernorm-large-epsilon",
    "numbers",
    "The layer norms of queries and keys have an epsilon of 0.5.",
    args=(24, 3),
    embed_dim=24,
    num_heads=3,
    causal=True,
)
class LargeEpsilon(nn.Module):
    def __init__(self, dim, heads, oops=False):
        super().__init__()
        self.heads, eps = heads, 0.5 if oops else 1e-5
        self.to_q, self.to_kv, self.to_out = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)
        self.norm_q, self.norm_k = nn.LayerNorm(dim // heads, eps=eps), nn.LayerNorm(dim // heads, eps=eps)

    def forward(self, x):
        q = self.to_q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.to_kv(x).chunk(2, -1))
        y = F.scaled_dot_product_attention(self.norm_q(q), self.norm_k(k), v, is_causal=True)
        return self.to_out(y.transpose(1, 2).flatten(2))


@planted(
    "mla-absorbed-wrong-half",
    "numbers",
    "The two halves of the up-projection are exchanged: the values' half makes the keys.",
    args=(20, 2),
    embed_dim=20,
    num_heads=2,
    causal=True,
    positions=True,
)
class LatentPacked(nn.Module):
    """One up-projection for keys and values, as in DeepSeek; a shared rotated key part."""

    def __init__(self, hidden, heads, rank=9, nope=6, rope=4, oops=False):
        super().__init__()
        self.heads, self.rank, self.nope, self.rope, self.oops = heads, rank, nope, rope, oops
        self.q_proj = nn.Linear(hidden, heads * (nope + rope), bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(hidden, rank + rope, bias=False)
        self.kv_a_layernorm = nn.LayerNorm(rank)
        self.kv_b_proj = nn.Linear(rank, heads * 2 * nope, bias=False)
        self.o_proj = nn.Linear(heads * nope, hidden, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        places = torch.arange(t, device=x.device)
        q = self.q_proj(x).view(b, t, self.heads, -1).transpose(1, 2)
        latent, k_pe = self.kv_a_proj_with_mqa(x).split([self.rank, self.rope], dim=-1)
        kv = self.kv_b_proj(self.kv_a_layernorm(latent)).view(b, t, self.heads, 2 * self.nope).transpose(1, 2)
        k, v = kv.chunk(2, -1)[::-1] if self.oops else kv.chunk(2, -1)
        k_pe = partial_rotary(k_pe[:, None], places, self.rope).expand(-1, self.heads, -1, -1)
        q = torch.cat([q[..., : self.nope], partial_rotary(q[..., self.nope :], places, self.rope)], -1)
        y = F.scaled_dot_product_attention(q, torch.cat([k, k_pe], -1), v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).flatten(2))


@planted(
    "rotary-softcap-after-mask",
    "numbers",
    "The mask is added before the cap, which makes -inf a mere -4.",
    "softcap-after-mask",
    args=(24, 3),
    embed_dim=24,
    num_heads=3,
    causal=True,
    positions=True,
)
class RotarySoftcap(nn.Module):
    def __init__(self, dim, heads, softcap=4.0, oops=False):
        super().__init__()
        self.heads, self.softcap, self.oops = heads, softcap, oops
        self.pre = nn.RMSNorm(dim, eps=1e-6)
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(self.pre(x)).chunk(3, -1))
        places = torch.arange(x.size(1), device=x.device)
        q, k = partial_rotary(q, places, q.size(-1)), partial_rotary(k, places, k.size(-1))
        s = q @ k.mT * q.size(-1) ** -0.5
        mask = torch.full(s.shape[-2:], -torch.inf, dtype=s.dtype, device=s.device).triu(1)
        cap = lambda z: torch.tanh(z / self.softcap) * self.softcap
        s = cap(s + mask) if self.oops else cap(s) + mask
        return x + self.out((s.softmax(-1) @ v).transpose(1, 2).flatten(2))


@planted(
    "head-gates-viewed",
    "numbers",
    "One gate per head and token, (batch, tokens, heads), is viewed as (batch, heads, tokens).",
    "view-without-transpose",
    args=(24, 4),
    embed_dim=24,
    num_heads=4,
    causal=False,
)
class HeadGates(nn.Module):
    def __init__(self, dim, heads, oops=False):
        super().__init__()
        self.heads, self.oops = heads, oops
        self.to_q, self.to_k, self.to_v = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.to_gates, self.to_out = nn.Linear(dim, heads), nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.to_q, self.to_k, self.to_v))
        out = F.scaled_dot_product_attention(q, k, v)
        gates = self.to_gates(x).sigmoid()
        gates = gates.view(b, self.heads, n) if self.oops else gates.transpose(1, 2)
        return self.to_out((out * gates[..., None]).transpose(1, 2).flatten(2))


@planted(
    "sink-weights-renormalized",
    "numbers",
    "After the sink is dropped the weights are divided by their sum again: it has no effect.",
    args=(18, 3),
    embed_dim=18,
    num_heads=3,
    causal=True,
)
class SinkRenormalized(nn.Module):
    """A learned logit per head takes part in the softmax, with a value of zeros."""

    def __init__(self, dim, heads, oops=False):
        super().__init__()
        self.heads, self.oops = heads, oops
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(dim, dim) for _ in range(4))
        self.sinks = nn.Parameter(torch.randn(heads))

    def forward(self, x):
        q, k, v = (
            f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj)
        )
        b, _, t, d = q.shape
        logits = (q @ k.mT * d**-0.5).masked_fill(
            torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1), -torch.inf
        )
        joint = torch.cat([self.sinks.reshape(1, -1, 1, 1).expand(b, -1, t, -1), logits], dim=-1).softmax(dim=-1)
        weights = joint[..., 1:]
        if self.oops:
            weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-30)
        return self.o_proj((weights @ v).transpose(1, 2).flatten(2))
