"""Correct attention modules, in the styles of many authors. Each is right as its author meant it."""

import math
from dataclasses import dataclass
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from cases import Case, seeded
from torch import Tensor, nn

CASES = []


def case(name, build, call, kind, note):
    CASES.append(Case(name, seeded(17, build), call, kind, note))


def pairwise(mask, batch, rows):
    """A mask of pairs (N, S), (B, N, S), (B, 1, N, S) or of keys (B, S), for scores (B, H, N, S)."""
    if mask.dim() == 2:
        return (
            mask[None, None]
            if mask.size(0) == rows and (rows != batch or mask.size(1) == rows)
            else mask[:, None, None]
        )
    return mask[:, None] if mask.dim() == 3 else mask


def heads_first(t, h):
    return t.unflatten(-1, (h, -1)).transpose(1, 2)


# ----------------------------------------------------------------------------------------------------------- classic


class TimmAttention(nn.Module):
    def __init__(self, dim, num_heads, qk_norm=True, proj_drop=0.1):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, dim // num_heads
        self.qkv = nn.Linear(dim, dim * 3)
        self.q_norm = nn.LayerNorm(self.head_dim) if qk_norm else nn.Identity()
        self.k_norm = nn.LayerNorm(self.head_dim) if qk_norm else nn.Identity()
        self.proj, self.proj_drop = nn.Linear(dim, dim), nn.Dropout(proj_drop)

    def forward(self, x, attn_mask: Tensor | None = None):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        x = F.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v, attn_mask=attn_mask)
        return self.proj_drop(self.proj(x.transpose(1, 2).reshape(B, N, C)))


case(
    "timm-qk-norm",
    lambda: TimmAttention(24, 3),
    dict(embed_dim=24, num_heads=3, causal=False),
    "classic",
    "Layer norm per head on queries and keys, a fused kernel.",
)


class PreNormCausal(nn.Module):
    def __init__(self, dim, heads=2, dim_head=10):
        super().__init__()
        self.h, self.scale = heads, dim_head**-0.5
        self.norm = nn.LayerNorm(dim)
        self.to_q, self.to_kv = (
            nn.Linear(dim, heads * dim_head, bias=False),
            nn.Linear(dim, heads * dim_head * 2, bias=False),
        )
        self.to_out = nn.Linear(heads * dim_head, dim, bias=False)

    def forward(self, x):
        skip, x = x, self.norm(x)
        q, k, v = (heads_first(t, self.h) for t in (self.to_q(x), *self.to_kv(x).chunk(2, dim=-1)))
        sim = torch.einsum("bhid,bhjd->bhij", q * self.scale, k)
        hide = torch.ones(sim.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
        attn = sim.masked_fill(hide, -torch.finfo(sim.dtype).max).softmax(-1)
        return skip + self.to_out(torch.einsum("bhij,bhjd->bhid", attn, v).transpose(1, 2).flatten(2))


case(
    "pre-norm-residual",
    lambda: PreNormCausal(16),
    dict(embed_dim=16, num_heads=2, causal=True),
    "classic",
    "Norm before, residual after, heads wider than the embedding divided.",
)


class BertLayerAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.n = config.num_attention_heads
        self.query, self.key, self.value = (nn.Linear(config.hidden_size, config.hidden_size) for _ in range(3))
        self.dense, self.LayerNorm = (
            nn.Linear(config.hidden_size, config.hidden_size),
            nn.LayerNorm(config.hidden_size, eps=1e-12),
        )
        self.dropout = nn.Dropout(config.p)

    def forward(self, hidden_states, output_attentions=True):
        q, k, v = (heads_first(f(hidden_states), self.n) for f in (self.query, self.key, self.value))
        probs = self.dropout(nn.functional.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), dim=-1))
        ctx = (probs @ v).permute(0, 2, 1, 3).contiguous().view(hidden_states.shape)
        out = self.LayerNorm(self.dropout(self.dense(ctx)) + hidden_states)
        return (out, probs) if output_attentions else (out,)


case(
    "bert-post-norm",
    lambda: BertLayerAttention(SimpleNamespace(hidden_size=24, num_attention_heads=4, p=0.1)),
    dict(embed_dim=24, num_heads=4, causal=False),
    "classic",
    "Residual and norm after, from a config, returns a tuple.",
)


class SequenceFirst(nn.Module):
    def __init__(self, d_model, nhead):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(d_model, nhead, dropout=0.1)

    def forward(self, src):
        mask = torch.full((len(src), len(src)), float("-inf"), device=src.device, dtype=src.dtype).triu(1)
        return self.self_attn(src, src, src, attn_mask=mask, need_weights=False)[0]


case(
    "torch-sequence-first",
    lambda: SequenceFirst(18, 3),
    dict(embed_dim=18, num_heads=3, causal=True, batch_first=False),
    "classic",
    "nn.MultiheadAttention, tokens first, a float mask.",
)


class FairseqBmm(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, embed_dim // num_heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(embed_dim, embed_dim) for _ in range(4))

    def forward(self, query, key, value):
        T, B, E = query.shape
        q = (
            (self.q_proj(query) * self.head_dim**-0.5)
            .contiguous()
            .view(T, B * self.num_heads, self.head_dim)
            .transpose(0, 1)
        )
        k = self.k_proj(key).contiguous().view(-1, B * self.num_heads, self.head_dim).transpose(0, 1)
        v = self.v_proj(value).contiguous().view(-1, B * self.num_heads, self.head_dim).transpose(0, 1)
        w = torch.bmm(k, q.transpose(1, 2)).softmax(dim=1)  # (B * H, S, T)
        attn = torch.bmm(w.transpose(1, 2), v)
        return self.out_proj(attn.transpose(0, 1).reshape(T, B, E)), w.view(B, self.num_heads, -1, T).mean(1).transpose(
            1, 2
        )


case(
    "fairseq-keys-in-rows",
    lambda: FairseqBmm(16, 4),
    dict(embed_dim=16, num_heads=4, causal=False, inputs="qkv", batch_first=False),
    "classic",
    "The score matrix is stored transposed and its softmax runs over dim 1, the keys.",
)


class LayerScaled(nn.Module):
    def __init__(self, dim, heads, init=0.1):
        super().__init__()
        self.norm1, self.gamma_1 = nn.LayerNorm(dim), nn.Parameter(init * torch.ones(dim))
        self.attn = TimmAttention(dim, heads, qk_norm=False)
        self.drop_path = 0.1

    def forward(self, x):
        y = self.gamma_1 * self.attn(self.norm1(x))
        if self.training:
            keep = 1 - self.drop_path
            y = y * torch.empty(len(x), 1, 1, device=x.device, dtype=x.dtype).bernoulli_(keep) / keep
        return x + y


case(
    "cait-layer-scale",
    lambda: LayerScaled(20, 2),
    dict(embed_dim=20, num_heads=2, causal=False),
    "classic",
    "Layer scale, stochastic depth in training only, a residual.",
)

# ------------------------------------------------------------------------------------------------------------- gates


class GatedProtein(nn.Module):
    def __init__(self, c, heads, c_hidden):
        super().__init__()
        self.h, self.inf = heads, 1e9
        self.layer_norm = nn.LayerNorm(c)
        self.linear_q, self.linear_k, self.linear_v = (nn.Linear(c, heads * c_hidden, bias=False) for _ in range(3))
        self.linear_g, self.linear_o = nn.Linear(c, heads * c_hidden), nn.Linear(heads * c_hidden, c)

    def forward(self, m, mask=None):
        m = self.layer_norm(m)
        q, k, v, g = (heads_first(f(m), self.h) for f in (self.linear_q, self.linear_k, self.linear_v, self.linear_g))
        a = torch.matmul(q / math.sqrt(q.size(-1)), k.mT)
        if mask is not None:
            a = a + self.inf * (mask.to(a.dtype) - 1)[:, None, None]
        return self.linear_o((torch.sigmoid(g) * (a.softmax(-1) @ v)).transpose(-2, -3).flatten(-2))


case(
    "openfold-gated",
    lambda: GatedProtein(16, 2, 6),
    dict(embed_dim=16, num_heads=2, causal=False),
    "gates",
    "A sigmoid gate from the tokens on each head's result.",
)


class SinkAttention(nn.Module):
    def __init__(self, hidden_size, num_heads, num_kv):
        super().__init__()
        self.h, self.kv, self.d = num_heads, num_kv, hidden_size // num_heads
        self.qkv = nn.Linear(hidden_size, (num_heads + 2 * num_kv) * self.d)
        self.sinks, self.out = nn.Parameter(torch.randn(num_heads)), nn.Linear(hidden_size, hidden_size)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).split([self.h * self.d, self.kv * self.d, self.kv * self.d], -1)
        q = q.view(b, n, self.kv, self.h // self.kv, self.d)
        qk = torch.einsum("bqhmd,bkhd->bhmqk", q, k.view(b, n, self.kv, self.d)) / math.sqrt(self.d)
        qk = qk + torch.triu(qk.new_full((n, n), -float("inf")), diagonal=1)
        s = self.sinks.reshape(1, self.kv, -1, 1, 1).expand(b, -1, -1, n, 1)
        w = torch.cat([qk, s], dim=-1).softmax(-1)[..., :-1]
        return self.out(torch.einsum("bhmqk,bkhd->bqhmd", w, v.view(b, n, self.kv, self.d)).reshape(b, n, c))


case(
    "oss-sinks",
    lambda: SinkAttention(24, 4, 2),
    dict(embed_dim=24, num_heads=4, causal=True),
    "gates",
    "A learned sink per head takes part of the weight; grouped heads.",
)


class MemoryKeys(nn.Module):
    def __init__(self, dim, heads, num_mem=3):
        super().__init__()
        self.h = heads
        self.mem_kv = nn.Parameter(torch.randn(2, heads, num_mem, dim // heads))
        self.to_qkv, self.to_out = nn.Linear(dim, dim * 3, bias=False), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (heads_first(t, self.h) for t in self.to_qkv(x).chunk(3, -1))
        mk, mv = (m[None].expand(len(x), -1, -1, -1) for m in self.mem_kv)
        out = F.scaled_dot_product_attention(q, torch.cat((mk, k), -2), torch.cat((mv, v), -2))
        return self.to_out(out.transpose(1, 2).flatten(2))


case(
    "memory-key-values",
    lambda: MemoryKeys(16, 2),
    dict(embed_dim=16, num_heads=2, causal=False),
    "gates",
    "Learned keys and values before the tokens' own.",
)


class TalkingHeads(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv, self.proj = nn.Linear(dim, dim * 3), nn.Linear(dim, dim)
        self.proj_l, self.proj_w = nn.Linear(num_heads, num_heads), nn.Linear(num_heads, num_heads)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        attn = self.proj_l((q * q.size(-1) ** -0.5 @ k.mT).permute(0, 2, 3, 1)).permute(0, 3, 1, 2).softmax(-1)
        attn = self.proj_w(attn.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.proj((attn @ v).transpose(1, 2).reshape(B, N, C))


case(
    "cait-talking-heads",
    lambda: TalkingHeads(24, 4),
    dict(embed_dim=24, num_heads=4, causal=False),
    "gates",
    "Heads are mixed before and after the softmax.",
)


class CosineTemperature(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.logit_scale = nn.Parameter(torch.log(10 * torch.ones(heads, 1, 1)))
        self.qkv, self.proj = nn.Linear(dim, dim * 3, bias=False), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (heads_first(t, self.heads) for t in self.qkv(x).chunk(3, dim=-1))
        attn = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        attn = attn * self.logit_scale.clamp(max=math.log(100.0)).exp()
        return self.proj((attn.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


case(
    "swinv2-cosine",
    lambda: CosineTemperature(18, 3),
    dict(embed_dim=18, num_heads=3, causal=False),
    "gates",
    "Cosines with a learned temperature per head.",
)

# --------------------------------------------------------------------------------------------------------- positions


class T5Attention(nn.Module):
    def __init__(self, d_model, n_heads, d_kv, buckets=8, far=16):
        super().__init__()
        self.n_heads, self.buckets, self.far = n_heads, buckets, far
        self.q, self.k, self.v = (nn.Linear(d_model, n_heads * d_kv, bias=False) for _ in range(3))
        self.o = nn.Linear(n_heads * d_kv, d_model, bias=False)
        self.relative_attention_bias = nn.Embedding(buckets, n_heads)

    def bucket(self, rel):
        half = self.buckets // 2
        side, n, exact = (rel > 0).long() * half, rel.abs(), half // 2
        large = exact + (torch.log(n.clamp(min=1).float() / exact) / math.log(self.far / exact) * (half - exact)).long()
        return side + torch.where(n < exact, n, large.clamp(max=half - 1))

    def forward(self, hidden_states):
        q, k, v = (heads_first(f(hidden_states), self.n_heads) for f in (self.q, self.k, self.v))
        i = torch.arange(q.size(2), device=q.device)
        position_bias = self.relative_attention_bias(self.bucket(i[None] - i[:, None])).permute(2, 0, 1)[None]
        scores = torch.matmul(q, k.transpose(3, 2)) + position_bias
        attn = F.softmax(scores.float() if scores.dtype == torch.half else scores, dim=-1).type_as(scores)
        return (self.o(torch.matmul(attn, v).transpose(1, 2).flatten(2)), position_bias)


case(
    "t5-buckets-unscaled",
    lambda: T5Attention(16, 2, 6),
    dict(embed_dim=16, num_heads=2, causal=False, positions=True),
    "positions",
    "T5: no scale, a learned bias by bucket of distance.",
)


class WindowBias2d(nn.Module):
    def __init__(self, dim, window, num_heads):
        super().__init__()
        self.h = num_heads
        self.relative_position_bias_table = nn.Parameter(0.5 * torch.randn((2 * window - 1) ** 2, num_heads))
        y, x = torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")
        y, x = y.flatten(), x.flatten()
        index = (y[:, None] - y + window - 1) * (2 * window - 1) + x[:, None] - x + window - 1
        self.register_buffer("relative_position_index", index)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, mask=None):
        B_, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B_, N, 3, self.h, C // self.h).permute(2, 0, 3, 1, 4)
        bias = self.relative_position_bias_table[self.relative_position_index.view(-1)].view(N, N, -1).permute(2, 0, 1)
        attn = (q * (C // self.h) ** -0.5) @ k.transpose(-2, -1) + bias.unsqueeze(0)
        return self.proj((attn.softmax(-1) @ v).transpose(1, 2).reshape(B_, N, C))


case(
    "swin-window-bias",
    lambda: WindowBias2d(16, 3, 4),
    dict(embed_dim=16, num_heads=4, causal=False, positions=True, tokens=9),
    "positions",
    "A learned bias by two-dimensional offset, nine tokens.",
)


class AlibiCausal(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.h = heads
        self.query_key_value, self.dense = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.register_buffer("slopes", 2 ** (-8 * torch.arange(1, heads + 1) / heads), persistent=False)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.query_key_value(x).view(b, n, self.h, 3, c // self.h).transpose(1, 2).unbind(-2)
        places = torch.arange(n, device=x.device, dtype=x.dtype)
        alibi = self.slopes.to(x.dtype)[:, None, None] * places  # constant along a row, up to the distance
        bias = alibi.expand(-1, n, -1).masked_fill(places > places[:, None], float("-inf"))
        return self.dense(F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).reshape(b, n, c))


case(
    "bloom-alibi",
    lambda: AlibiCausal(24, 4),
    dict(embed_dim=24, num_heads=4, causal=True, positions=True),
    "positions",
    "ALiBi by the key's place, a packing head by head.",
)


def halves(t, cos, sin):
    a, b = t.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


@dataclass
class ModelArgs:
    dim: int = 32
    n_heads: int = 4
    n_kv_heads: int = 2
    rope_theta: float = 500.0
    max_seq_len: int = 64


class LlamaHalves(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.a, self.hd = args, args.dim // args.n_heads
        self.q_proj, self.o_proj = (nn.Linear(args.dim, args.dim, bias=False) for _ in range(2))
        self.k_proj, self.v_proj = (nn.Linear(args.dim, args.n_kv_heads * self.hd, bias=False) for _ in range(2))

    def forward(self, x, position_ids=None):
        b, n, _ = x.shape
        q, k, v = (p(x).view(b, n, -1, self.hd).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        pos = torch.arange(n, device=x.device) if position_ids is None else position_ids
        f = pos[:, None] * self.a.rope_theta ** -(torch.arange(0, self.hd, 2, device=x.device, dtype=x.dtype) / self.hd)
        q, k = halves(q, f.cos(), f.sin()), halves(k, f.cos(), f.sin())
        g = self.a.n_heads // self.a.n_kv_heads
        k, v = (t[:, :, None].expand(-1, -1, g, -1, -1).flatten(1, 2) for t in (k, v))
        return self.o_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)), None


case(
    "llama-rotary-halves",
    lambda: LlamaHalves(ModelArgs()),
    dict(embed_dim=32, num_heads=4, causal=True, positions=True),
    "positions",
    "Rotary halves and grouped heads.",
)


class ComplexRotary(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.h, self.hd = args.n_heads, args.dim // args.n_heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(args.dim, args.dim, bias=False) for _ in range(4))
        freqs = 1.0 / (100.0 ** (torch.arange(0, self.hd, 2).double() / self.hd))
        self.table = torch.outer(torch.arange(args.max_seq_len).double(), freqs)

    def turn(self, t):  # (B, N, H, D), neighbours as complex numbers
        z = torch.view_as_complex(t.double().reshape(*t.shape[:-1], -1, 2).contiguous())
        w = torch.polar(torch.ones_like(self.table), self.table)[: t.size(1), None].to(t.device)
        return torch.view_as_real(z * w).flatten(3).type_as(t)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = (w(x).view(b, n, self.h, self.hd) for w in (self.wq, self.wk, self.wv))
        scores = torch.einsum("bqhd,bkhd->bhqk", self.turn(q), self.turn(k)) / math.sqrt(self.hd)
        scores = scores + torch.full((n, n), float("-inf"), device=x.device, dtype=x.dtype).triu(1)
        return self.wo(torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).reshape(b, n, c))


case(
    "llama-rotary-complex",
    lambda: ComplexRotary(ModelArgs(dim=24, n_heads=2)),
    dict(embed_dim=24, num_heads=2, causal=True, positions=True),
    "positions",
    "Rotary by complex numbers, neighbours paired.",
)


class PartialRotary(nn.Module):
    def __init__(self, dim, heads, rotary_pct=0.5):
        super().__init__()
        self.h, self.r = heads, int(dim // heads * rotary_pct)
        self.qkv, self.dense = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (heads_first(t, self.h) for t in self.qkv(x).chunk(3, -1))
        a = torch.arange(x.size(1), device=x.device)[:, None] * 10000 ** -(
            torch.arange(0, self.r, 2, device=x.device, dtype=x.dtype) / self.r
        )
        q, k = (torch.cat((halves(t[..., : self.r], a.cos(), a.sin()), t[..., self.r :]), -1) for t in (q, k))
        return self.dense(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


case(
    "neox-partial-rotary",
    lambda: PartialRotary(32, 4),
    dict(embed_dim=32, num_heads=4, causal=True, positions=True),
    "positions",
    "The first half of each head rotates.",
)


class Rotary2d(nn.Module):
    def __init__(self, dim, heads, side):
        super().__init__()
        self.h, self.side = heads, side
        self.qkv, self.proj = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (heads_first(t, self.h) for t in self.qkv(x).chunk(3, -1))
        d = q.size(-1) // 2
        w = 10.0 ** -(torch.arange(0, d, 2, device=x.device, dtype=x.dtype) / d)
        place = torch.arange(self.side**2, device=x.device)
        rows, cols = (place // self.side)[:, None] * w, (place % self.side)[:, None] * w
        q, k = (
            torch.cat([halves(t[..., :d], rows.cos(), rows.sin()), halves(t[..., d:], cols.cos(), cols.sin())], -1)
            for t in (q, k)
        )
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


case(
    "vit-rotary-2d",
    lambda: Rotary2d(16, 2, 3),
    dict(embed_dim=16, num_heads=2, causal=False, positions=True, tokens=9),
    "positions",
    "Half of each head rotates by the row, half by the column.",
)


class DetrSelf(nn.Module):
    """Sinusoidal places on queries and keys, not on values."""

    def __init__(self, d_model, nhead):
        super().__init__()
        self.attn, self.norm = (
            nn.MultiheadAttention(d_model, nhead, dropout=0.1, batch_first=True),
            nn.LayerNorm(d_model),
        )

    def pos(self, x):
        d = x.size(-1)
        a = torch.arange(x.size(1), device=x.device)[:, None] / 10000 ** (
            torch.arange(0, d, 2, device=x.device, dtype=x.dtype) / d
        )
        return torch.stack((a.sin(), a.cos()), -1).flatten(1)

    def forward(self, src):
        q = k = src + self.pos(src)
        return {"tgt": self.norm(src + self.attn(q, k, value=src)[0])}


case(
    "detr-sinusoids",
    lambda: DetrSelf(16, 4),
    dict(embed_dim=16, num_heads=4, causal=False, positions=True),
    "positions",
    "Sinusoids added to queries and keys only, residual and norm after, returns a dict.",
)


class LearnedPositions(nn.Module):
    def __init__(self, n_embd, n_head, block_size=64):
        super().__init__()
        self.wpe, self.ln = nn.Embedding(block_size, n_embd), nn.LayerNorm(n_embd)
        self.c_attn, self.c_proj, self.n_head = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd), n_head

    def forward(self, x):
        x = x + self.wpe(torch.arange(x.size(1), device=x.device))
        q, k, v = (heads_first(t, self.n_head) for t in self.c_attn(self.ln(x)).split(x.size(-1), dim=2))
        return x + self.c_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


case(
    "gpt-learned-positions",
    lambda: LearnedPositions(20, 2),
    dict(embed_dim=20, num_heads=2, causal=True, positions=True),
    "positions",
    "Learned positions, then a block with norm and residual.",
)


class RelPosEspnet(nn.Module):
    def __init__(self, n_feat, n_head):
        super().__init__()
        self.h, self.d_k = n_head, n_feat // n_head
        self.linear_q, self.linear_k, self.linear_v, self.linear_out = (nn.Linear(n_feat, n_feat) for _ in range(4))
        self.linear_pos = nn.Linear(n_feat, n_feat, bias=False)
        self.pos_bias_u, self.pos_bias_v = (nn.Parameter(0.3 * torch.randn(n_head, self.d_k)) for _ in range(2))

    def forward(self, x):
        T, E = x.shape[1:]
        far = torch.arange(T - 1, -T, -1, device=x.device)
        a = far[:, None] * 10000 ** -(torch.arange(0, E, 2, device=x.device, dtype=x.dtype) / E)
        p = (
            self.linear_pos(torch.stack((a.sin(), a.cos()), -1).flatten(1))
            .view(1, -1, self.h, self.d_k)
            .transpose(1, 2)
        )
        q = self.linear_q(x).view(len(x), T, self.h, self.d_k)
        k, v = heads_first(self.linear_k(x), self.h), heads_first(self.linear_v(x), self.h)
        ac = (q + self.pos_bias_u).transpose(1, 2) @ k.mT
        bd = (q + self.pos_bias_v).transpose(1, 2) @ p.mT  # (B, H, T, 2T - 1)
        bd = F.pad(bd, (1, 0)).view(*bd.shape[:2], 2 * T, T)[:, :, 1:].reshape_as(bd)[..., :T]
        attn = ((ac + bd) / math.sqrt(self.d_k)).softmax(-1)
        return self.linear_out((attn @ v).transpose(1, 2).flatten(2))


case(
    "conformer-relative",
    lambda: RelPosEspnet(16, 2),
    dict(embed_dim=16, num_heads=2, causal=False, positions=True),
    "positions",
    "Transformer-XL's relative positions with the relative shift.",
)

# ----------------------------------------------------------------------------------------------------- masks, windows


class DilatedWindow(nn.Module):
    def __init__(self, dim, heads, w, step):
        super().__init__()
        self.h, self.w, self.step = heads, w, step
        self.query, self.key, self.value, self.out = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x):
        q, k, v = (heads_first(f(x), self.h) for f in (self.query, self.key, self.value))
        i = torch.arange(x.size(1), device=x.device)
        d = i[:, None] - i
        near = (d.abs() <= self.w * self.step) & (d % self.step == 0)
        s = torch.where(near, q @ k.mT / q.size(-1) ** 0.5, -torch.inf)
        return self.out((s.softmax(-1) @ v).transpose(1, 2).flatten(2))


case(
    "longformer-dilated",
    lambda: DilatedWindow(18, 3, 1, 2),
    dict(embed_dim=18, num_heads=3, causal=False, positions=True),
    "masks",
    "Every second token to each side, a dilated window.",
)


class MistralWindow(nn.Module):
    def __init__(self, dim, n_heads, n_kv, window):
        super().__init__()
        self.h, self.kv, self.window = n_heads, n_kv, window
        self.wq, self.wo = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.wk, self.wv = (nn.Linear(dim, dim // n_heads * n_kv, bias=False) for _ in range(2))

    def forward(self, x):
        q, k, v = heads_first(self.wq(x), self.h), heads_first(self.wk(x), self.kv), heads_first(self.wv(x), self.kv)
        k, v = (torch.repeat_interleave(t, self.h // self.kv, dim=1) for t in (k, v))
        band = torch.ones(x.size(1), x.size(1), device=x.device).tril().triu(1 - self.window)
        return self.wo(
            F.scaled_dot_product_attention(q, k, v, attn_mask=band.log().to(x.dtype)).transpose(1, 2).flatten(2)
        )


case(
    "mistral-window",
    lambda: MistralWindow(24, 4, 1, 3),
    dict(embed_dim=24, num_heads=4, causal=True),
    "masks",
    "A causal window of three from the logarithm of a band, one key head.",
)


class SpeechPadding(nn.Module):
    """ESPnet: finfo.min before the softmax and zeros after it."""

    def __init__(self, n_head, n_feat, dropout_rate=0.1):
        super().__init__()
        self.h = n_head
        self.linear_q, self.linear_k, self.linear_v, self.linear_out = (nn.Linear(n_feat, n_feat) for _ in range(4))
        self.dropout = nn.Dropout(dropout_rate)

    def forward(self, query, key, value, mask):
        q, k, v = (
            heads_first(f(t), self.h) for f, t in ((self.linear_q, query), (self.linear_k, key), (self.linear_v, value))
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        hide = pairwise(mask, len(q), q.size(2)).eq(0)
        attn = scores.masked_fill(hide, torch.finfo(scores.dtype).min).softmax(-1).masked_fill(hide, 0.0)
        return self.linear_out((self.dropout(attn) @ v).transpose(1, 2).flatten(2))


case(
    "espnet-padding",
    lambda: SpeechPadding(4, 16),
    dict(embed_dim=16, num_heads=4, causal=None, inputs="qkv_allowed"),
    "masks",
    "Hidden scores at the smallest number, and zeros after the softmax.",
)


class GraphTransformer(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.lin, self.skip = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, nodes, adj):
        q, k, v = (heads_first(t, self.h) for t in self.lin(nodes).chunk(3, -1))
        adj = pairwise(adj, len(q), q.size(2))
        e = (q @ k.mT / math.sqrt(q.size(-1))).masked_fill(~adj, -torch.inf)
        alpha = torch.nan_to_num(e.softmax(-1))  # an isolated node receives nothing
        return (alpha @ v).transpose(1, 2).flatten(2) + self.skip(nodes)


case(
    "graph-conv-attention",
    lambda: GraphTransformer(16, 2),
    dict(embed_dim=16, num_heads=2, causal=None, inputs="x_allowed"),
    "masks",
    "Attention to a node's neighbours plus a linear skip, without an output layer.",
)

# -------------------------------------------------------------------------------------------------- cross and induced


class PerceiverCross(nn.Module):
    def __init__(self, query_dim, context_dim, heads, dim_head):
        super().__init__()
        self.h = heads
        self.norm, self.norm_context = nn.LayerNorm(query_dim), nn.LayerNorm(context_dim)
        self.to_q = nn.Linear(query_dim, heads * dim_head, bias=False)
        self.to_kv = nn.Linear(context_dim, heads * dim_head * 2, bias=False)
        self.to_out = nn.Linear(heads * dim_head, query_dim)

    def forward(self, x, context):
        context = self.norm_context(context)
        q, k, v = (heads_first(t, self.h) for t in (self.to_q(self.norm(x)), *self.to_kv(context).chunk(2, dim=-1)))
        sim = torch.einsum("bhid,bhjd->bhij", q, k) * q.size(-1) ** -0.5
        return self.to_out(torch.einsum("bhij,bhjd->bhid", sim.softmax(-1), v).transpose(1, 2).flatten(2)) + x


case(
    "perceiver-cross",
    lambda: PerceiverCross(16, 20, 2, 6),
    dict(embed_dim=16, num_heads=2, causal=False, inputs="x_context", key_dim=20),
    "cross",
    "Cross-attention to wider tokens, both normed, a residual.",
)


@dataclass
class Output:
    last_hidden_state: Tensor
    attentions: Tensor | None = None


class DecoderCross(nn.Module):
    def __init__(self, dim, heads, key_dim):
        super().__init__()
        self.mha = nn.MultiheadAttention(dim, heads, kdim=key_dim, vdim=key_dim, batch_first=True, bias=False)

    def forward(self, hidden_states, encoder_hidden_states):
        out, w = self.mha(hidden_states, encoder_hidden_states, encoder_hidden_states, average_attn_weights=False)
        return Output(last_hidden_state=out, attentions=w)


case(
    "decoder-cross-dataclass",
    lambda: DecoderCross(18, 3, 10),
    dict(embed_dim=18, num_heads=3, causal=False, inputs="x_context", key_dim=10),
    "cross",
    "nn.MultiheadAttention with kdim and vdim, returns a dataclass.",
)


class MAB(nn.Module):
    def __init__(self, dim, h):
        super().__init__()
        self.h = h
        self.fc_q, self.fc_k, self.fc_v, self.fc_o = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, Q, K):
        Q, K, V = self.fc_q(Q), self.fc_k(K), self.fc_v(K)
        Q_, K_, V_ = (torch.cat(t.split(t.size(2) // self.h, 2), 0) for t in (Q, K, V))
        A = torch.softmax(Q_.bmm(K_.transpose(1, 2)) / math.sqrt(Q.size(2)), 2)
        O = torch.cat((Q_ + A.bmm(V_)).split(Q.size(0), 0), 2)
        return O + F.relu(self.fc_o(O))


class ISAB(nn.Module):
    def __init__(self, dim, h, m):
        super().__init__()
        self.I, self.mab0, self.mab1 = nn.Parameter(torch.randn(1, m, dim)), MAB(dim, h), MAB(dim, h)

    def forward(self, X):
        return self.mab1(X, self.mab0(self.I.repeat(X.size(0), 1, 1), X))


case(
    "set-transformer-induced",
    lambda: ISAB(16, 2, 3),
    dict(embed_dim=16, num_heads=2, causal=False),
    "induced",
    "Two attentions by way of three induced points, scaled by the whole width as its authors do.",
)

# ----------------------------------------------------------------------------------------------------------- other kinds


class Bahdanau(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.Wa, self.Ua, self.Va = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, 1)

    def forward(self, query, keys):
        scores = self.Va(torch.tanh(self.Wa(query)[:, :, None] + self.Ua(keys)[:, None])).squeeze(-1)
        weights = F.softmax(scores, dim=-1)
        return torch.bmm(weights, keys), weights


case(
    "bahdanau",
    lambda: Bahdanau(12),
    dict(embed_dim=12, num_heads=1, causal=False, inputs="x_context"),
    "other",
    "Additive attention, the context mixed as it is.",
)


class EluLinear(nn.Module):
    def __init__(self, dim, heads, causal):
        super().__init__()
        self.h, self.causal = heads, causal
        self.to_qkv, self.to_out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (heads_first(t, self.h) for t in self.to_qkv(x).chunk(3, -1))
        q, k = F.elu(q) + 1, F.elu(k) + 1
        if self.causal:
            kv, z = (k[..., None] * v[..., None, :]).cumsum(2), k.cumsum(2)
            out = (q[..., None, :] @ kv).squeeze(-2) / (q * z).sum(-1, keepdim=True).clamp(min=1e-6)
        else:
            out = q @ (k.mT @ v) / (q @ k.sum(2)[..., None]).clamp(min=1e-6)
        return self.to_out(out.transpose(1, 2).flatten(2))


case(
    "linear-elu",
    lambda: EluLinear(16, 2, False),
    dict(embed_dim=16, num_heads=2, causal=False),
    "other",
    "Linear attention.",
)
case(
    "linear-elu-causal",
    lambda: EluLinear(18, 3, True),
    dict(embed_dim=18, num_heads=3, causal=True),
    "other",
    "Linear attention by running sums.",
)


class ExternalAttention(nn.Module):
    def __init__(self, d_model, S=10):
        super().__init__()
        self.mk, self.mv = nn.Linear(d_model, S, bias=False), nn.Linear(S, d_model, bias=False)

    def forward(self, queries):
        attn = self.mk(queries).softmax(dim=1)
        return self.mv(attn / attn.sum(dim=2, keepdim=True))


case(
    "external-attention",
    lambda: ExternalAttention(14),
    dict(embed_dim=14, num_heads=1, causal=False),
    "other",
    "Two memories, and the double norm: a softmax over the tokens, then sums of one over the memory.",
)


class Axial(nn.Module):
    def __init__(self, dim, heads, height, width):
        super().__init__()
        self.hw, self.h = (height, width), heads
        self.row, self.row_out, self.col, self.col_out = (nn.Linear(dim, dim * m) for m in (3, 1, 3, 1))

    def along(self, x, qkv, out):
        q, k, v = (heads_first(t, self.h) for t in qkv(x).chunk(3, -1))
        return out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    def forward(self, x):
        b, n, c = x.shape
        h, w = self.hw
        g = x.view(b, h, w, c)
        rows = self.along(g.reshape(b * h, w, c), self.row, self.row_out).view(b, h, w, c)
        cols = (
            self.along(g.transpose(1, 2).reshape(b * w, h, c), self.col, self.col_out).view(b, w, h, c).transpose(1, 2)
        )
        return (rows + cols).reshape(b, n, c)


case(
    "axial-sum",
    lambda: Axial(16, 2, 3, 4),
    dict(embed_dim=16, num_heads=2, causal=False, tokens=12),
    "other",
    "Attention along the rows and along the columns of a grid, summed.",
)


class LatentAttention(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.c = cfg
        self.q_proj = nn.Linear(cfg.dim, cfg.heads * (cfg.nope + cfg.rope), bias=False)
        self.kv_down, self.kv_norm = nn.Linear(cfg.dim, cfg.rank + cfg.rope, bias=False), nn.RMSNorm(cfg.rank, eps=1e-6)
        self.kv_up = nn.Linear(cfg.rank, cfg.heads * (cfg.nope + cfg.v), bias=False)
        self.o_proj = nn.Linear(cfg.heads * cfg.v, cfg.dim, bias=False)

    def forward(self, x):
        c, n = self.c, x.size(1)
        a = torch.arange(n, device=x.device)[:, None] * 100 ** -(
            torch.arange(0, c.rope, 2, device=x.device, dtype=x.dtype) / c.rope
        )
        q, q_pe = heads_first(self.q_proj(x), c.heads).split([c.nope, c.rope], -1)
        latent, k_pe = self.kv_down(x).split([c.rank, c.rope], -1)
        k, v = heads_first(self.kv_up(self.kv_norm(latent)), c.heads).split([c.nope, c.v], -1)
        q_pe, k_pe = halves(q_pe, a.cos(), a.sin()), halves(k_pe[:, None], a.cos(), a.sin())
        q, k = torch.cat((q, q_pe), -1), torch.cat((k, k_pe.expand(-1, c.heads, -1, -1)), -1)
        return self.o_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


case(
    "deepseek-latent",
    lambda: LatentAttention(SimpleNamespace(dim=24, heads=2, nope=6, rope=4, v=5, rank=8)),
    dict(embed_dim=24, num_heads=2, causal=True, positions=True),
    "other",
    "Latent keys and values, a shared rotary key.",
)

# ------------------------------------------------------------------------------------------------------ caches, kernels


class CachedRotary(nn.Module):
    def __init__(self, dim, heads, rotary):
        super().__init__()
        self.h, self.rotary = heads, rotary
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, cache=None):
        q, k, v = (heads_first(t, self.h) for t in self.qkv(x).chunk(3, -1))
        past = 0 if cache is None else cache[0].shape[-2]
        n, d = x.size(1), q.size(-1)
        at = torch.arange(past, past + n, device=x.device)
        if self.rotary:
            a = at[:, None] * 1000 ** -(torch.arange(0, d, 2, device=x.device, dtype=x.dtype) / d)
            q, k = halves(q, a.cos(), a.sin()), halves(k, a.cos(), a.sin())
        if cache is not None:
            k, v = torch.cat((cache[0], k), -2), torch.cat((cache[1], v), -2)
        sees = at[:, None] >= torch.arange(past + n, device=x.device)
        return self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=sees).transpose(1, 2).flatten(2)), (k, v)


case(
    "cache-rotary",
    lambda: CachedRotary(16, 2, True),
    dict(embed_dim=16, num_heads=2, causal=True, cache="kv", positions=True),
    "cache",
    "A cache of rotated keys, positions that go on, any chunk.",
)
case(
    "cache-plain",
    lambda: CachedRotary(18, 3, False),
    dict(embed_dim=18, num_heads=3, causal=True, cache="kv"),
    "cache",
    "A cache without positions.",
)


class FlexCapped(nn.Module):
    def __init__(self, dim, heads, cap=4.0):
        super().__init__()
        self.h, self.cap = heads, cap
        self.qkv, self.o = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        from torch.nn.attention.flex_attention import flex_attention

        def capped(score, b, h, i, j):
            return torch.where(i >= j, self.cap * torch.tanh(score / self.cap), -float("inf"))

        q, k, v = (heads_first(t, self.h) for t in self.qkv(x).chunk(3, -1))
        return self.o(flex_attention(q, k, v, score_mod=capped).transpose(1, 2).flatten(2))


case(
    "flex-soft-cap",
    lambda: FlexCapped(32, 2),
    dict(embed_dim=32, num_heads=2, causal=True),
    "kernels",
    "Flex attention whose score function caps and then masks.",
)


class HalfInside(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h, self.qkv, self.o = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (heads_first(t, self.h).to(torch.bfloat16) for t in self.qkv(x).chunk(3, -1))
        return self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).to(x.dtype).transpose(1, 2).flatten(2))


case(
    "bfloat16-inside",
    lambda: HalfInside(16, 2),
    dict(embed_dim=16, num_heads=2, causal=True),
    "kernels",
    "The kernel runs in bfloat16, as flash attention wants it.",
)


class Scripted(nn.Module):
    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.to_qkv, self.to_out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        qkv = self.to_qkv(x).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        attn = torch.softmax(torch.matmul(qkv[0], qkv[1].transpose(-2, -1)) * self.scale, dim=-1)
        return self.to_out(torch.matmul(attn, qkv[2]).transpose(1, 2).reshape(b, n, c))


case(
    "jit-scripted",
    lambda: torch.jit.script(Scripted(18, 3)),
    dict(embed_dim=18, num_heads=3, causal=False),
    "kernels",
    "torch.jit.script.",
)
case(
    "compiled-eager",
    lambda: torch.compile(Scripted(16, 4), backend="eager"),
    dict(embed_dim=16, num_heads=4, causal=False),
    "kernels",
    "torch.compile with the backend that needs no compiler.",
)
