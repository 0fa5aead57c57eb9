"""Correct attention modules, in the styles of many authors. Each is right as its author meant it."""

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from cases import Case
from torch import nn

# ================================================================ plain


class Head(nn.Module):
    """One head with its own three maps."""

    def __init__(self, width, size):
        super().__init__()
        self.key = nn.Linear(width, size, bias=False)
        self.query = nn.Linear(width, size, bias=False)
        self.value = nn.Linear(width, size, bias=False)

    def forward(self, x):
        k, q = self.key(x), self.query(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        return F.softmax(wei, dim=-1) @ self.value(x)


class ConcatHeads(nn.Module):
    def __init__(self, n_embd, num_heads):
        super().__init__()
        self.heads = nn.ModuleList([Head(n_embd, n_embd // num_heads) for _ in range(num_heads)])
        self.proj = nn.Linear(n_embd, n_embd)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x):
        return self.dropout(self.proj(torch.cat([h(x) for h in self.heads], dim=-1)))


class StridedHeads(nn.Module):
    """A head takes every H-th channel, in the projections as in the merge."""

    def __init__(self, channels, n_heads):
        super().__init__()
        self.nh, self.ch = n_heads, channels // n_heads
        self.f_q = nn.Linear(channels, channels)
        self.f_k = nn.Linear(channels, channels)
        self.f_v = nn.Linear(channels, channels)
        self.f_o = nn.Linear(channels, channels)

    def forward(self, inp):
        n, l, c = inp.shape
        q, k, v = [f(inp).view(n, l, self.ch, self.nh) for f in (self.f_q, self.f_k, self.f_v)]
        logits = torch.einsum("nidh,njdh->nhij", q, k).div(self.ch**0.5)
        mixed = torch.einsum("nhij,njdh->nidh", torch.softmax(logits, -1), v)
        return self.f_o(mixed.reshape(n, l, c))


# ================================================================ norms, residuals


class VanillaCore(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.in_proj = nn.Linear(d, 3 * d)
        self.out_proj = nn.Linear(d, d)

    def forward(self, z):
        bs, ln, d = z.size()
        qkv = self.in_proj(z).view(bs, ln, self.h, 3, d // self.h)
        q, k, v = (qkv.select(3, i).transpose(1, 2).reshape(bs * self.h, ln, -1) for i in range(3))
        w = torch.bmm(q, k.transpose(1, 2)).mul_(1.0 / math.sqrt(d // self.h)).softmax(dim=2)
        return self.out_proj(torch.bmm(w, v).view(bs, self.h, ln, -1).transpose(1, 2).reshape(bs, ln, d))


class ScaledBranch(nn.Module):
    """x + gamma * attn(x), gamma a small learned vector."""

    def __init__(self, embed_dim, num_heads, init=0.1):
        super().__init__()
        self.attn = VanillaCore(embed_dim, num_heads)
        self.ls1 = nn.Parameter(init * torch.ones(embed_dim))

    def forward(self, tokens):
        return tokens + self.ls1 * self.attn(tokens)


class RootNorm(nn.Module):
    """sqrt(d) times the unit vector, times 1 + a learned gain."""

    def __init__(self, d):
        super().__init__()
        self.d = d
        self.gain = nn.Parameter(torch.zeros(d))

    def forward(self, x):
        return F.normalize(x, dim=-1) * self.d**0.5 * (1 + self.gain)


class PreNormResidualHeads(nn.Module):
    def __init__(self, dim, n_heads):
        super().__init__()
        self.attention_norm = RootNorm(dim)
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.n_heads = n_heads

    def forward(self, x):
        h = self.attention_norm(x)
        xq, xk, xv = (w(h).view(*h.shape[:2], self.n_heads, -1) for w in (self.wq, self.wk, self.wv))
        scores = torch.einsum("bthd,bshd->btsh", xq, xk) * (xq.shape[-1] ** -0.5)
        out = torch.einsum("btsh,bshd->bthd", scores.softmax(dim=2), xv)
        return x + self.wo(out.flatten(-2))


class EntropyGuardAttention(nn.Module):
    """LayerNorm of each head's queries and keys, as the large vision transformers have it."""

    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, dim // num_heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.q_norm = nn.LayerNorm(self.head_dim)
        self.k_norm = nn.LayerNorm(self.head_dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = torch.tensor_split(self.qkv(x), 3, dim=-1)
        q, k, v = (t.view(B, N, self.num_heads, self.head_dim) for t in (q, k, v))
        q, k = self.q_norm(q), self.k_norm(k)
        out = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), scale=self.head_dim**-0.5)
        return self.proj(out.transpose(1, 2).flatten(-2))


class WideRMS(nn.Module):
    def __init__(self, size, eps=1e-5):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, h):
        dtype = h.dtype
        h = h.double()
        h = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * h.to(dtype)


class OlmoLikeAttention(nn.Module):
    """RMS norm over the whole projection before the split, then rotation of neighbors; causal."""

    def __init__(self, d_model, n_heads, rope_theta=1000.0):
        super().__init__()
        self.n_heads, self.rope_theta = n_heads, rope_theta
        self.w_q = nn.Linear(d_model, d_model, bias=False)
        self.w_k = nn.Linear(d_model, d_model, bias=False)
        self.w_v = nn.Linear(d_model, d_model, bias=False)
        self.w_out = nn.Linear(d_model, d_model, bias=False)
        self.q_norm, self.k_norm = WideRMS(d_model), WideRMS(d_model)

    def rotate(self, t):
        *_, s, d = t.shape
        inv = torch.pow(self.rope_theta, -torch.arange(0, d, 2, dtype=t.dtype, device=t.device) / d)
        phase = torch.arange(s, dtype=t.dtype, device=t.device).unsqueeze(1) * inv
        even, odd = t[..., 0::2], t[..., 1::2]
        return torch.stack(
            (even * phase.cos() - odd * phase.sin(), odd * phase.cos() + even * phase.sin()), -1
        ).flatten(-2)

    def forward(self, x):
        b, s, d = x.shape
        fold = lambda t: t.view(b, s, self.n_heads, -1).transpose(1, 2)
        q, k, v = fold(self.q_norm(self.w_q(x))), fold(self.k_norm(self.w_k(x))), fold(self.w_v(x))
        att = F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, is_causal=True)
        return self.w_out(att.transpose(1, 2).contiguous().view(b, s, d)), None


# ================================================================ gates


class PerHeadValve(nn.Module):
    """One gate a head and token; pre-norm; causal."""

    def __init__(self, dim, heads, dim_head):
        super().__init__()
        self.heads = heads
        self.norm = RootNorm(dim)
        self.to_qkv = nn.Linear(dim, 3 * heads * dim_head, bias=False)
        self.to_gates = nn.Linear(dim, heads)
        self.to_out = nn.Linear(heads * dim_head, dim, bias=False)

    def forward(self, x):
        x = self.norm(x)
        q, k, v = self.to_qkv(x).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out = out * self.to_gates(x).transpose(1, 2)[..., None].sigmoid()
        return self.to_out(out.transpose(1, 2).flatten(2))


class GluValues(nn.Module):
    """The values come out of a gated linear unit."""

    def __init__(self, feat, n_head):
        super().__init__()
        self.n_head = n_head
        self.qk = nn.Linear(feat, 2 * feat)
        self.val = nn.Linear(feat, 2 * feat)
        self.merge = nn.Linear(feat, feat)

    def forward(self, x):
        q, k = self.qk(x).chunk(2, -1)
        v = F.glu(self.val(x), dim=-1)
        q, k, v = (torch.stack(t.chunk(self.n_head, dim=-1), dim=1) for t in (q, k, v))
        p = torch.softmax(torch.matmul(q, k.transpose(2, 3)) / math.sqrt(k.shape[3]), dim=3)
        return self.merge(torch.cat(torch.matmul(p, v).unbind(dim=1), dim=-1))


# ================================================================ sinks, memories


class LogSumExpSink(nn.Module):
    """The sink enters after the mix: the output times sigmoid(logsumexp - sink), which is a softmax with one more logit."""

    def __init__(self, width, nheads):
        super().__init__()
        self.nheads = nheads
        self.qkv_proj = nn.Linear(width, 3 * width)
        self.dense = nn.Linear(width, width)
        self.sink = nn.Parameter(torch.randn(nheads))

    def forward(self, x):
        b, t, w = x.shape
        q, k, v = self.qkv_proj(x).view(b, t, 3, self.nheads, w // self.nheads).permute(2, 0, 3, 1, 4)
        s = q @ k.mT / math.sqrt(w // self.nheads)
        lse = torch.logsumexp(s, dim=-1, keepdim=True)
        o = torch.exp(s - lse) @ v * torch.sigmoid(lse - self.sink.view(1, -1, 1, 1))
        return self.dense(o.transpose(1, 2).reshape(b, t, w))


class PersistentMemory(nn.Module):
    """Learned vectors join keys and values and may always be seen; a mask rules the tokens."""

    def __init__(self, d_model, n_head, n_mem=2):
        super().__init__()
        self.n_head, self.n_mem = n_head, n_mem
        self.m_k = nn.Parameter(torch.randn(1, n_mem, d_model) / d_model**0.5)
        self.m_v = nn.Parameter(torch.randn(1, n_mem, d_model) / n_mem**0.5)
        self.fc_q, self.fc_k, self.fc_v, self.fc_o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x, attention_mask=None):
        b, n, _ = x.shape
        q = self.fc_q(x)
        k = torch.cat([self.fc_k(x), self.m_k.expand(b, -1, -1)], 1)
        v = torch.cat([self.fc_v(x), self.m_v.expand(b, -1, -1)], 1)
        q, k, v = (t.view(b, t.shape[1], self.n_head, -1).permute(0, 2, 1, 3) for t in (q, k, v))
        att = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(q.shape[-1])
        if attention_mask is not None:
            if attention_mask.dim() == 3:
                attention_mask = attention_mask.unsqueeze(1)
            hide = F.pad(~attention_mask, (0, self.n_mem), value=False)
            att = att.masked_fill(hide, -math.inf)
        out = torch.matmul(torch.softmax(att, -1), v).permute(0, 2, 1, 3).contiguous().view(b, n, -1)
        return self.fc_o(out)


class TorchBiasKV(nn.Module):
    """PyTorch's own module with add_bias_kv, on one tensor."""

    def __init__(self, hidden, n_heads):
        super().__init__()
        self.layer = nn.MultiheadAttention(hidden, n_heads, add_bias_kv=True, batch_first=True)

    def forward(self, x):
        return self.layer(x, x, x, need_weights=True)


class NullKeyAttention(nn.Module):
    """A key of zeros and a value of zeros: a token may attend to nothing."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.Wq, self.Wkv, self.Wo = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q = self.Wq(x).view(b, n, self.heads, -1)
        k, v = F.pad(self.Wkv(x), (0, 0, 1, 0)).view(b, n + 1, 2, self.heads, -1).unbind(2)
        logits = torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(d // self.heads)
        seen = torch.ones(n, n + 1, dtype=torch.bool, device=x.device).tril(1)
        logits = torch.where(seen, logits, logits.new_tensor(-math.inf))
        return self.Wo(torch.einsum("bhij,bjhd->bihd", logits.softmax(-1), v).flatten(2))


# ================================================================ relative positions


def relative_bucket(rel, num_buckets, max_distance):
    """key minus query to a bucket: half for each side, exact near, logarithmic far"""
    num_buckets //= 2
    side = (rel > 0).long() * num_buckets
    rel = rel.abs()
    near = num_buckets // 2
    log_ratio = torch.log(rel.clamp(min=1).double() / near) / math.log(max_distance / near)
    far = (near + (log_ratio * (num_buckets - near)).long()).clamp(max=num_buckets - 1)
    return side + torch.where(rel < near, rel, far)


class BucketBiasEncoderAttention(nn.Module):
    """A relative bias by buckets, with scaled scores; the bias comes back as the second result."""

    def __init__(self, d_model, d_kv, num_heads, num_buckets=8, max_distance=20):
        super().__init__()
        self.n_heads, self.d_kv = num_heads, d_kv
        self.num_buckets, self.max_distance = num_buckets, max_distance
        inner = num_heads * d_kv
        self.q = nn.Linear(d_model, inner, bias=False)
        self.k = nn.Linear(d_model, inner, bias=False)
        self.v = nn.Linear(d_model, inner, bias=False)
        self.o = nn.Linear(inner, d_model, bias=False)
        self.rel_bias = nn.Embedding(num_buckets, num_heads)

    def forward(self, hidden_states):
        b, n, _ = hidden_states.shape
        shape = lambda s: s.view(b, -1, self.n_heads, self.d_kv).transpose(1, 2)
        q, k, v = shape(self.q(hidden_states)), shape(self.k(hidden_states)), shape(self.v(hidden_states))
        at = torch.arange(n, device=hidden_states.device)
        bias = self.rel_bias(relative_bucket(at[None, :] - at[:, None], self.num_buckets, self.max_distance))
        bias = bias.permute(2, 0, 1)[None].to(q.dtype)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.o(y.transpose(1, 2).contiguous().view(b, n, -1)), bias


class LevitLikeAttention(nn.Module):
    """A bias for each pair of absolute offsets on a 2 x 4 grid; wider values than keys; pre-norm residual."""

    def __init__(self, dim, key_dim, num_heads, attn_ratio=2, resolution=(2, 4)):
        super().__init__()
        self.num_heads, self.key_dim, self.d = num_heads, key_dim, attn_ratio * key_dim
        self.norm = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, num_heads * (2 * key_dim + self.d))
        self.proj = nn.Linear(num_heads * self.d, dim)
        points = [(r, c) for r in range(resolution[0]) for c in range(resolution[1])]
        offsets, idxs = {}, []
        for p1 in points:
            for p2 in points:
                offset = (abs(p1[0] - p2[0]), abs(p1[1] - p2[1]))
                idxs.append(offsets.setdefault(offset, len(offsets)))
        self.offsets = offsets
        self.attention_biases = nn.Parameter(torch.zeros(num_heads, len(offsets)))
        self.register_buffer(
            "attention_bias_idxs", torch.LongTensor(idxs).view(len(points), len(points)), persistent=False
        )

    def forward(self, x):
        B, N, _ = x.shape
        qkv = self.qkv(self.norm(x)).view(B, N, self.num_heads, -1)
        q, k, v = qkv.split([self.key_dim, self.key_dim, self.d], dim=3)
        q, k, v = (t.permute(0, 2, 1, 3) for t in (q, k, v))
        attn = (q @ k.transpose(-2, -1)) * self.key_dim**-0.5 + self.attention_biases[:, self.attention_bias_idxs]
        return x + self.proj((attn.softmax(dim=-1) @ v).transpose(1, 2).reshape(B, N, -1))


class TwoSidedAlibi(nn.Module):
    """Every head has its slope on the distance, before and behind."""

    def __init__(self, model_dim, nh):
        super().__init__()
        self.nh = nh
        self.qkv = nn.Linear(model_dim, 3 * model_dim, bias=False)
        self.ff_out = nn.Linear(model_dim, model_dim, bias=False)

    def distance_bias(self, n, like):
        pos = torch.arange(n, device=like.device, dtype=like.dtype)
        slopes = torch.pow(2.0, -8.0 * torch.arange(1, self.nh + 1, device=like.device, dtype=like.dtype) / self.nh)
        return -(pos[:, None] - pos[None, :]).abs() * slopes[:, None, None]

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.nh, d // self.nh).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=self.distance_bias(n, x).expand(b, -1, -1, -1))
        return self.ff_out(out.permute(0, 2, 1, 3).reshape(b, n, d))


def rotate_every_two(x):
    x1, x2 = x[:, :, :, ::2], x[:, :, :, 1::2]
    return torch.stack((-x2, x1), dim=-1).flatten(-2)


class GPTJLikeAttention(nn.Module):
    """The first channels of each head are rotated, neighbors against each other; causal by a buffer."""

    def __init__(self, embed_dim, num_attention_heads, rotary_dim, max_positions=80):
        super().__init__()
        self.register_buffer(
            "bias", torch.tril(torch.ones(max_positions, max_positions, dtype=torch.bool))[None, None], persistent=False
        )
        inv = 1.0 / (10000 ** (torch.arange(0, rotary_dim, 2, dtype=torch.int64).double() / rotary_dim))
        phase = torch.einsum("i,j->ij", torch.arange(max_positions).double(), inv)
        self.register_buffer(
            "embed_positions", torch.cat((torch.sin(phase), torch.cos(phase)), dim=1), persistent=False
        )
        self.embed_dim, self.rotary_dim = embed_dim, rotary_dim
        self.num_attention_heads, self.head_dim = num_attention_heads, embed_dim // num_attention_heads
        self.k_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.v_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.scale_attn = math.sqrt(self.head_dim)

    def apply_rotary(self, t):
        sin, cos = self.embed_positions[: t.shape[1]].to(t.dtype).chunk(2, dim=-1)
        sin, cos = (s.repeat_interleave(2, dim=-1)[None, :, None, :] for s in (sin, cos))
        rot, keep = t[..., : self.rotary_dim], t[..., self.rotary_dim :]
        return torch.cat([rot * cos + rotate_every_two(rot) * sin, keep], dim=-1)

    def forward(self, hidden_states, output_attentions=False):
        split = lambda t: t.view(*t.shape[:-1], self.num_attention_heads, self.head_dim)
        query = self.apply_rotary(split(self.q_proj(hidden_states))).permute(0, 2, 1, 3)
        key = self.apply_rotary(split(self.k_proj(hidden_states))).permute(0, 2, 1, 3)
        value = split(self.v_proj(hidden_states)).permute(0, 2, 1, 3)
        n = query.size(-2)
        attn_weights = torch.matmul(query, key.transpose(-1, -2)) / self.scale_attn
        mask_value = torch.tensor(torch.finfo(attn_weights.dtype).min, dtype=attn_weights.dtype)
        attn_weights = F.softmax(torch.where(self.bias[:, :, :n, :n], attn_weights, mask_value), dim=-1)
        out = torch.matmul(attn_weights, value).permute(0, 2, 1, 3).contiguous()
        return self.out_proj(out.view(*out.shape[:-2], self.embed_dim)), (attn_weights if output_attentions else None)


class TokenAndPlace(nn.Module):
    """A learned embedding of each position joins the tokens; causal; sequence first."""

    def __init__(self, n_state, n_head, n_ctx=100):
        super().__init__()
        self.wpe = nn.Embedding(n_ctx, n_state)
        self.attn = VanillaCausal(n_state, n_head)

    def forward(self, x):
        return self.attn(
            (x + self.wpe(torch.arange(x.shape[0], device=x.device)).unsqueeze(1)).transpose(0, 1)
        ).transpose(0, 1)


class VanillaCausal(nn.Module):
    def __init__(self, d_in, h):
        super().__init__()
        self.h = h
        self.W_query, self.W_key, self.W_value = (nn.Linear(d_in, d_in, bias=False) for _ in range(3))
        self.out_proj = nn.Linear(d_in, d_in)

    def forward(self, x):
        b, num_tokens, d = x.shape
        keys = self.W_key(x).view(b, num_tokens, self.h, -1).transpose(1, 2)
        queries = self.W_query(x).view(b, num_tokens, self.h, -1).transpose(1, 2)
        values = self.W_value(x).view(b, num_tokens, self.h, -1).transpose(1, 2)
        attn_scores = queries @ keys.transpose(2, 3)
        mask_bool = torch.triu(torch.ones(num_tokens, num_tokens, device=x.device), diagonal=1).bool()
        attn_scores.masked_fill_(mask_bool, -torch.inf)
        attn_weights = torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=-1)
        return self.out_proj((attn_weights @ values).transpose(1, 2).contiguous().view(b, num_tokens, d))


# ================================================================ grouped heads, MLA


def repeat_kv(x, n_rep):
    bs, slen, n_kv_heads, head_dim = x.shape
    if n_rep == 1:
        return x
    return (
        x[:, :, :, None, :]
        .expand(bs, slen, n_kv_heads, n_rep, head_dim)
        .reshape(bs, slen, n_kv_heads * n_rep, head_dim)
    )


class GroupedOnThree(nn.Module):
    """Grouped heads on separate queries, keys and values."""

    def __init__(self, dim, n_heads, n_kv_heads):
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = n_heads, n_kv_heads, dim // n_heads
        self.wq = nn.Linear(dim, n_heads * self.head_dim)
        self.wk = nn.Linear(dim, n_kv_heads * self.head_dim)
        self.wv = nn.Linear(dim, n_kv_heads * self.head_dim)
        self.wo = nn.Linear(n_heads * self.head_dim, dim)

    def forward(self, query, key, value):
        b = query.shape[0]
        q = self.wq(query).view(b, -1, self.n_heads, self.head_dim).transpose(1, 2)
        k = repeat_kv(self.wk(key).view(b, -1, self.n_kv_heads, self.head_dim), self.n_heads // self.n_kv_heads)
        v = repeat_kv(self.wv(value).view(b, -1, self.n_kv_heads, self.head_dim), self.n_heads // self.n_kv_heads)
        p = (q @ k.permute(0, 2, 3, 1) / math.sqrt(self.head_dim)).softmax(-1)
        return self.wo((p @ v.transpose(1, 2)).transpose(1, 2).flatten(2))


class OneKeyHead(nn.Module):
    """Bare matrices (in, out); every query head reads the same keys and values."""

    def __init__(self, d, h, k):
        super().__init__()
        self.P_q = nn.Parameter(torch.randn(h, d, k) * d**-0.5)
        self.P_k = nn.Parameter(torch.randn(d, k) * d**-0.5)
        self.P_v = nn.Parameter(torch.randn(d, k) * d**-0.5)
        self.P_o = nn.Parameter(torch.randn(h, d, k) * (h * k) ** -0.5)

    def forward(self, X):
        Q = torch.einsum("bnd,hdk->bhnk", X, self.P_q) * self.P_k.shape[1] ** -0.5
        K, V = torch.einsum("bmd,dk->bmk", X, self.P_k), torch.einsum("bmd,dv->bmv", X, self.P_v)
        weights = torch.einsum("bhnk,bmk->bhnm", Q, K).softmax(-1)
        O = torch.einsum("bhnm,bmv->bhnv", weights, V)
        return torch.einsum("bhnv,hdv->bnd", O, self.P_o)


class LatentWithRope(nn.Module):
    """Low-rank queries and keys/values; a part of each key, shared by the heads, carries the rotation; causal."""

    def __init__(self, dim, n_heads, q_lora_rank=12, kv_lora_rank=10, nope=6, rope=4, v_head_dim=5):
        super().__init__()
        self.n_heads, self.nope, self.rope, self.v_head_dim, self.kv_lora_rank = (
            n_heads,
            nope,
            rope,
            v_head_dim,
            kv_lora_rank,
        )
        self.wq_a = nn.Linear(dim, q_lora_rank, bias=False)
        self.q_norm = WideRMS(q_lora_rank)
        self.wq_b = nn.Linear(q_lora_rank, n_heads * (nope + rope), bias=False)
        self.wkv_a = nn.Linear(dim, kv_lora_rank + rope, bias=False)
        self.kv_norm = WideRMS(kv_lora_rank)
        self.wkv_b = nn.Linear(kv_lora_rank, n_heads * (nope + v_head_dim), bias=False)
        self.wo = nn.Linear(n_heads * v_head_dim, dim, bias=False)
        self.softmax_scale = (nope + rope) ** -0.5

    def rotary(self, t):
        n, d = t.shape[1], t.shape[-1]
        ang = torch.arange(n, dtype=t.dtype, device=t.device)[:, None] * 10000.0 ** (
            -torch.arange(0, d, 2, dtype=t.dtype, device=t.device) / d
        )
        ang = ang[None, :, None]
        a, b = t.unflatten(-1, (-1, 2)).unbind(-1)
        return torch.stack((a * ang.cos() - b * ang.sin(), a * ang.sin() + b * ang.cos()), dim=-1).flatten(-2)

    def forward(self, x):
        b, n, _ = x.shape
        q = self.wq_b(self.q_norm(self.wq_a(x))).view(b, n, self.n_heads, -1)
        q_nope, q_pe = q.split([self.nope, self.rope], dim=-1)
        kv, k_pe = self.wkv_a(x).split([self.kv_lora_rank, self.rope], dim=-1)
        k_pe = self.rotary(k_pe.unsqueeze(2)).expand(-1, -1, self.n_heads, -1)
        k_nope, v = (
            self.wkv_b(self.kv_norm(kv)).view(b, n, self.n_heads, -1).split([self.nope, self.v_head_dim], dim=-1)
        )
        q, k = torch.cat([q_nope, self.rotary(q_pe)], dim=-1), torch.cat([k_nope, k_pe], dim=-1)
        scores = torch.einsum("bshd,bthd->bhst", q, k) * self.softmax_scale
        scores = scores + torch.full((n, n), -math.inf, dtype=x.dtype, device=x.device).triu(1)
        return self.wo(torch.einsum("bhst,bthd->bshd", scores.softmax(-1), v).flatten(2))


# ================================================================ windows, caps


class NeighborAttention(nn.Module):
    """A token sees two tokens on each side and itself; keys and values are gathered, not masked."""

    def __init__(self, embed, n_heads, one_sided_window=2):
        super().__init__()
        self.n_heads, self.w = n_heads, one_sided_window
        self.query, self.key, self.value = (nn.Linear(embed, embed) for _ in range(3))
        self.output = nn.Linear(embed, embed)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = (f(x).view(b, n, self.n_heads, -1) for f in (self.query, self.key, self.value))
        span = 2 * self.w + 1
        index = torch.arange(n, device=x.device)[:, None] + torch.arange(-self.w, self.w + 1, device=x.device)[None]
        outside = (index < 0) | (index >= n)
        index = index.clamp(0, n - 1)
        k_, v_ = (t[:, index.flatten()].view(b, n, span, self.n_heads, -1) for t in (k, v))
        s = torch.einsum("bnhd,bnshd->bnhs", q, k_) / math.sqrt(c // self.n_heads)
        s = s.masked_fill(outside[None, :, None], float("-inf"))
        return self.output(torch.einsum("bnhs,bnshd->bnhd", s.softmax(-1), v_).flatten(2))


@dataclass
class CappedArgs:
    width: int = 20
    heads: int = 5
    cap: float = 2.0
    options: dict[str, Any] = field(default_factory=dict)


class CappedResidual(nn.Module):
    """The scores bend at the cap; sequence first; x + attn(norm(x))."""

    def __init__(self, args: CappedArgs):
        super().__init__()
        self.args = args
        self.pre = nn.LayerNorm(args.width)
        self.linear_q, self.linear_k, self.linear_v, self.linear = (
            nn.Linear(args.width, args.width, bias=False) for _ in range(4)
        )

    def forward(self, x):
        t, b, c = x.shape
        y = self.pre(x)
        q, k, v = (f(y).view(t, b, self.args.heads, -1) for f in (self.linear_q, self.linear_k, self.linear_v))
        s = torch.einsum("tbhd,sbhd->bhts", q, k) / math.sqrt(c / self.args.heads)
        s = self.args.cap * torch.tanh(s / self.args.cap)
        o = torch.einsum("bhts,sbhd->tbhd", s.softmax(dim=-1), v)
        return x + self.linear(o.reshape(t, b, c))


# ================================================================ cross-attention, masks


class GatedCrossAttention(nn.Module):
    """x + tanh(gate) * attn(norm(x), media), the media of another width."""

    def __init__(self, dim, dim_visual, dim_head=6, heads=4):
        super().__init__()
        self.heads, self.scale = heads, dim_head**-0.5
        self.norm = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, dim_head * heads, bias=False)
        self.to_kv = nn.Linear(dim_visual, dim_head * heads * 2, bias=False)
        self.to_out = nn.Linear(dim_head * heads, dim, bias=False)
        self.attn_gate = nn.Parameter(torch.tensor([0.5]))

    def forward(self, x, media):
        q = self.to_q(self.norm(x)) * self.scale
        k, v = self.to_kv(media).chunk(2, dim=-1)
        q, k, v = (t.reshape(*t.shape[:2], self.heads, -1).movedim(2, 1) for t in (q, k, v))
        attn = torch.einsum("...id,...jd->...ij", q, k).softmax(dim=-1)
        return x + self.attn_gate.tanh() * self.to_out((attn @ v).movedim(1, 2).flatten(2))


class MaskedCross(nn.Module):
    """Tokens, a context, and who may see what of it; a token that may see nothing gets zeros from every head."""

    def __init__(self, d_token, d_ctx, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q_lin, self.k_lin, self.v_lin = (
            nn.Linear(d_token, d_token),
            nn.Linear(d_ctx, d_token),
            nn.Linear(d_ctx, d_token),
        )
        self.out_lin = nn.Linear(d_token, d_token)

    def forward(self, tokens, context, mask=None):
        bs, qlen, dim = tokens.size()
        dph = dim // self.n_heads
        q = self.q_lin(tokens).view(bs, -1, self.n_heads, dph).transpose(1, 2) / math.sqrt(dph)
        k = self.k_lin(context).view(bs, -1, self.n_heads, dph).transpose(1, 2)
        v = self.v_lin(context).view(bs, -1, self.n_heads, dph).transpose(1, 2)
        scores = torch.matmul(q, k.transpose(2, 3))
        if mask is None:
            mask = torch.ones(bs, 1, qlen, context.size(1), dtype=torch.bool, device=tokens.device)
        mask = mask.view(bs, -1, qlen, context.size(1))
        weights = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1)
        weights = torch.nan_to_num(weights, nan=0.0)
        ctx = torch.matmul(weights, v).transpose(1, 2).contiguous().view(bs, qlen, dim)
        return self.out_lin(ctx), weights


class MaskThroughMHA(nn.Module):
    """The mask is turned over and given to every head of nn.MultiheadAttention."""

    def __init__(self, d_model, nhead):
        super().__init__()
        self.nhead = nhead
        self.mha = nn.MultiheadAttention(d_model, nhead, bias=False, batch_first=True)

    def forward(self, x, allowed):
        if allowed.dim() == 4:
            allowed = allowed[:, 0]
        blocked = allowed.logical_not().repeat_interleave(self.nhead, dim=0)
        return self.mha(x, x, x, attn_mask=blocked, need_weights=False)[0]


class SequenceFirstMasked(nn.Module):
    """Query, key, value, sequence first, each through its slice of one matrix; a mask of what may be seen."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * embed_dim, embed_dim))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * embed_dim))
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        nn.init.xavier_uniform_(self.in_proj_weight)

    def _in_proj(self, inputs, start, end):
        return F.linear(inputs, self.in_proj_weight[start:end], self.in_proj_bias[start:end])

    def forward(self, query, key, value, attn_mask=None):
        E, H = self.embed_dim, self.num_heads
        tgt_len, bsz, _ = query.shape
        q = self._in_proj(query, 0, E) * (E // H) ** -0.5
        k, v = self._in_proj(key, E, 2 * E), self._in_proj(value, 2 * E, None)
        q, k, v = (t.contiguous().view(-1, bsz * H, E // H).transpose(0, 1) for t in (q, k, v))
        attn_weights = torch.bmm(q, k.transpose(1, 2)).view(bsz, H, tgt_len, -1)
        if attn_mask is not None:
            attn_mask = attn_mask if attn_mask.dim() == 4 else attn_mask.view(-1, 1, *attn_mask.shape[-2:])
            attn_weights = attn_weights.masked_fill(~attn_mask, float("-inf"))
        attn_weights = F.softmax(attn_weights, dim=-1).view(bsz * H, tgt_len, -1)
        attn = torch.bmm(attn_weights, v).transpose(0, 1).contiguous().view(tgt_len, bsz, E)
        return self.out_proj(attn)


# ================================================================ caches


class GrowingCache(nn.Module):
    """Grouped heads; learned positions go on where the cache ends; the cache is a tuple (keys, values)."""

    def __init__(self, n_embd, n_q, n_kv, context=96):
        super().__init__()
        self.n_q, self.n_kv, self.hd = n_q, n_kv, n_embd // n_q
        self.place = nn.Parameter(torch.randn(context, n_embd) * 0.2)
        self.proj_q = nn.Linear(n_embd, n_q * self.hd)
        self.proj_kv = nn.Linear(n_embd, 2 * n_kv * self.hd)
        self.proj_o = nn.Linear(n_q * self.hd, n_embd)

    def forward(self, x, cache=None):
        past = 0 if cache is None else cache[0].shape[2]
        b, t, c = x.shape
        x = x + self.place[past : past + t]
        q = self.proj_q(x).view(b, t, self.n_q, self.hd).transpose(1, 2)
        k, v = (s.view(b, t, self.n_kv, self.hd).transpose(1, 2) for s in self.proj_kv(x).chunk(2, dim=-1))
        if cache is not None:
            k, v = torch.cat([cache[0], k], dim=2), torch.cat([cache[1], v], dim=2)
        rows = torch.arange(past, past + t, device=x.device)
        seen = rows[:, None] >= torch.arange(past + t, device=x.device)[None]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
        return self.proj_o(y.transpose(1, 2).flatten(2)), (k, v)


# ================================================================ how it is run


class FlexAlibi(nn.Module):
    """FlexAttention, not compiled, whose score function adds a slope times the distance."""

    def __init__(self, width, n):
        super().__init__()
        self.n = n
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        from torch.nn.attention.flex_attention import flex_attention

        q, k, v = (f(x).unflatten(-1, (self.n, -1)).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))

        def alibi(score, batch, head, q_idx, kv_idx):
            return score - torch.exp2(-((head + 1) * 8.0 / self.n)) * (q_idx - kv_idx).abs()

        return self.o_proj(flex_attention(q, k, v, score_mod=alibi).transpose(1, 2).flatten(2))


class SeparateForInt8(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.q_lin, self.k_lin, self.v_lin, self.out_lin = (nn.Linear(d, d) for _ in range(4))

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q_lin, self.k_lin, self.v_lin))
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out_lin(y.transpose(1, 2).flatten(2))


class HalfCore(nn.Module):
    """float16 for the two products, float32 for the softmax; grouped heads."""

    def __init__(self, c, h, g):
        super().__init__()
        self.h, self.g = h, g
        self.attn_q = nn.Linear(c, c)
        self.attn_k = nn.Linear(c, c // h * g)
        self.attn_v = nn.Linear(c, c // h * g)
        self.attn_out = nn.Linear(c, c)

    def forward(self, x):
        b, n, c = x.shape
        q = (self.attn_q(x) / math.sqrt(c // self.h)).half().view(b, n, self.h, -1).transpose(1, 2)
        k, v = (f(x).half().view(b, n, self.g, -1).transpose(1, 2) for f in (self.attn_k, self.attn_v))
        k, v = (t.repeat_interleave(self.h // self.g, 1) for t in (k, v))
        p = F.softmax((q @ k.mT).float(), dim=-1).half()
        return self.attn_out((p @ v).transpose(1, 2).reshape(b, n, c).to(x.dtype))


class ScriptedCausal(nn.Module):
    def __init__(self, width: int, heads: int, block: int):
        super().__init__()
        self.heads: int = heads
        self.c_qkv = nn.Linear(width, 3 * width, bias=False)
        self.c_out = nn.Linear(width, width, bias=False)
        self.register_buffer("future", torch.full((block, block), float("-inf")).triu(1), persistent=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        B, T, C = x.shape
        parts: list[torch.Tensor] = self.c_qkv(x).split(C, dim=2)
        q = parts[0].view(B, T, self.heads, C // self.heads).transpose(1, 2)
        k = parts[1].view(B, T, self.heads, C // self.heads).transpose(1, 2)
        v = parts[2].view(B, T, self.heads, C // self.heads).transpose(1, 2)
        w = torch.softmax(q @ k.transpose(2, 3) / float(C // self.heads) ** 0.5 + self.future[:T, :T], dim=-1)
        return self.c_out((w @ v).transpose(1, 2).reshape(B, T, C)), w


class ProteinRotary(nn.Module):
    """Scaled queries, then rotation of halves; x + attn(norm(x)); both directions."""

    def __init__(self, embed_dim, attention_heads):
        super().__init__()
        self.attention_heads, self.head_dim = attention_heads, embed_dim // attention_heads
        self.layer_norm = nn.LayerNorm(embed_dim)
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(embed_dim, embed_dim) for _ in range(4))
        self.register_buffer(
            "inv_freq", 10000.0 ** -(torch.arange(0, self.head_dim, 2, dtype=torch.float64) / self.head_dim)
        )

    def rot(self, t):
        freqs = torch.outer(torch.arange(t.shape[2], device=t.device).to(self.inv_freq), self.inv_freq).to(t.dtype)
        emb = torch.cat((freqs, freqs), dim=-1)
        left, right = t.chunk(2, dim=-1)
        return t * emb.cos() + torch.cat((-right, left), dim=-1) * emb.sin()

    def forward(self, x):
        b, n, c = x.shape
        y = self.layer_norm(x)
        q = self.q_proj(y) * self.head_dim**-0.5
        q, k, v = (t.view(b, n, self.attention_heads, -1).transpose(1, 2) for t in (q, self.k_proj(y), self.v_proj(y)))
        q, k = self.rot(q), self.rot(k)
        out = F.scaled_dot_product_attention(q, k, v, scale=1.0)
        return x + self.out_proj(out.transpose(1, 2).reshape(b, n, c))


# ================================================================ what it returns


class LayerOutput(NamedTuple):
    last_hidden_state: torch.Tensor
    attentions: torch.Tensor


@dataclass
class EncoderConfig:
    d_model: int
    encoder_attention_heads: int
    attention_dropout: float = 0.1


class BartLikeAttention(nn.Module):
    """A named tuple with the mean of the heads' weights."""

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.num_heads, self.dropout = config.encoder_attention_heads, config.attention_dropout
        d = config.d_model
        self.head_dim = d // self.num_heads
        self.k_proj, self.v_proj, self.q_proj, self.out_proj = (nn.Linear(d, d) for _ in range(4))

    def _shape(self, tensor, seq_len, bsz):
        return tensor.view(bsz, seq_len, self.num_heads, self.head_dim).transpose(1, 2).contiguous()

    def forward(self, hidden_states):
        bsz, tgt_len, d = hidden_states.size()
        query = self._shape(self.q_proj(hidden_states) * self.head_dim**-0.5, tgt_len, bsz)
        key = self._shape(self.k_proj(hidden_states), tgt_len, bsz)
        value = self._shape(self.v_proj(hidden_states), tgt_len, bsz)
        proj_shape = (bsz * self.num_heads, -1, self.head_dim)
        weights = torch.bmm(query.view(*proj_shape), key.view(*proj_shape).transpose(1, 2)).softmax(dim=-1)
        probs = F.dropout(weights, p=self.dropout, training=self.training)
        out = torch.bmm(probs, value.view(*proj_shape)).view(bsz, self.num_heads, tgt_len, self.head_dim)
        out = self.out_proj(out.transpose(1, 2).reshape(bsz, tgt_len, d))
        return LayerOutput(out, weights.view(bsz, self.num_heads, tgt_len, tgt_len).mean(dim=1))


# ================================================================ other scores


class AdditiveHeads(nn.Module):
    """Additive scores in every head; causal; a dict."""

    def __init__(self, dim, num_heads, score_dim):
        super().__init__()
        self.num_heads, self.score_dim = num_heads, score_dim
        self.query_layer = nn.Linear(dim, num_heads * score_dim, bias=False)
        self.key_layer = nn.Linear(dim, num_heads * score_dim)
        self.value_layer = nn.Linear(dim, dim)
        self.energy = nn.Parameter(torch.randn(num_heads, score_dim) * score_dim**-0.5)
        self.final = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q = self.query_layer(x).view(b, n, 1, self.num_heads, self.score_dim)
        k = self.key_layer(x).view(b, 1, n, self.num_heads, self.score_dim)
        v = self.value_layer(x).view(b, n, self.num_heads, -1)
        e = (torch.tanh(q + k) * self.energy).sum(-1)
        e = e.masked_fill(torch.ones(n, n, device=x.device).triu(1).bool()[None, :, :, None], -torch.inf)
        a = e.softmax(dim=2)
        return {"out": self.final(torch.einsum("bijh,bjhd->bihd", a, v).reshape(b, n, d)), "alignments": a}


class CausalLinear(nn.Module):
    """Running sums of key times value and of keys; each query is normalized by its own past."""

    def __init__(self, d_model, h):
        super().__init__()
        self.h = h
        self.to_qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.to_out = nn.Linear(d_model, d_model)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.to_qkv(x).view(b, n, 3, self.h, d // self.h).unbind(2)
        q, k = F.elu(q) + 1.0, F.elu(k) + 1.0
        state = torch.cumsum(torch.einsum("bnhd,bnhe->bnhde", k, v), dim=1)
        norm = torch.einsum("bnhd,bnhd->bnh", q, k.cumsum(dim=1))
        y = torch.einsum("bnhd,bnhde->bnhe", q, state) / norm[..., None].clamp(min=1e-12)
        return self.to_out(y.reshape(b, n, d))


class BiasedThermal(nn.Module):
    """Plain vectors bias_q, bias_k, bias_v added to the projections; a learned softplus temperature."""

    def __init__(self, dim, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.lin_q, self.lin_k, self.lin_v = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.bias_q, self.bias_k, self.bias_v = (nn.Parameter(torch.randn(dim) * 0.1) for _ in range(3))
        self.temperature = nn.Parameter(torch.zeros(()))
        self.lin_o = nn.Linear(dim, dim, bias=False)
        self.bias_o = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        q = torch.stack((self.lin_q(x) + self.bias_q).chunk(self.n_heads, -1), 1)
        k = torch.stack((self.lin_k(x) + self.bias_k).chunk(self.n_heads, -1), 1)
        v = torch.stack((self.lin_v(x) + self.bias_v).chunk(self.n_heads, -1), 1)
        tau = F.softplus(self.temperature) * math.sqrt(q.shape[-1])
        y = torch.softmax(q @ k.mT / tau, -1) @ v
        return self.lin_o(y.transpose(1, 2).flatten(2)) + self.bias_o


class PrimerAttention(nn.Module):
    """A causal depthwise convolution of three tokens after each projection; causal."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.dconv = nn.Conv1d(3 * dim, 3 * dim, 3, groups=3 * dim)
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        y = F.pad(self.qkv(x).transpose(1, 2), (2, 0))
        q, k, v = (t.unflatten(1, (self.heads, -1)).transpose(2, 3) for t in self.dconv(y).chunk(3, dim=1))
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(z.transpose(1, 2).flatten(2))


class Resampler(nn.Module):
    """Learned queries read the tokens and themselves; as many outputs as queries; residual."""

    def __init__(self, width, heads, num_queries):
        super().__init__()
        self.heads = heads
        self.query_tokens = nn.Parameter(torch.randn(1, num_queries, width))
        self.ln_x, self.ln_q = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q_map = nn.Linear(width, width, bias=False)
        self.kv_map = nn.Linear(width, 2 * width, bias=False)
        self.o_map = nn.Linear(width, width, bias=False)

    def forward(self, feats):
        start = self.query_tokens.repeat(feats.shape[0], 1, 1)
        z, feats = self.ln_q(start), self.ln_x(feats)
        k, v = self.kv_map(torch.cat([feats, z], dim=1)).chunk(2, dim=-1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (self.q_map(z), k, v))
        sim = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        return start + self.o_map((sim.softmax(-1) @ v).transpose(1, 2).flatten(2))


class ConformerRelative(nn.Module):
    """Scores of content and of the signed distance, in both directions, each with its own bias of the query."""

    def __init__(self, n_feat, n_head):
        super().__init__()
        self.h, self.d_k, self.n_feat = n_head, n_feat // n_head, n_feat
        self.linear_q, self.linear_k, self.linear_v, self.linear_out = (nn.Linear(n_feat, n_feat) for _ in range(4))
        self.linear_pos = nn.Linear(n_feat, n_feat, bias=False)
        self.pos_bias_u = nn.Parameter(torch.zeros(n_head, self.d_k))
        self.pos_bias_v = nn.Parameter(torch.zeros(n_head, self.d_k))

    def table(self, t, like):
        """rows for the distances t - 1, ..., 0, ..., -(t - 1), query minus key"""
        dist = torch.arange(t - 1, -t, -1, device=like.device, dtype=like.dtype)
        div = torch.exp(
            torch.arange(0, self.n_feat, 2, device=like.device, dtype=like.dtype) * -(math.log(10000.0) / self.n_feat)
        )
        pe = torch.zeros(2 * t - 1, self.n_feat, device=like.device, dtype=like.dtype)
        pe[:, 0::2], pe[:, 1::2] = torch.sin(dist[:, None] * div), torch.cos(dist[:, None] * div)
        return pe

    @staticmethod
    def rel_shift(x):
        b, h, t, r = x.shape
        x = torch.cat([x.new_zeros(b, h, t, 1), x], dim=-1).view(b, h, r + 1, t)
        return x[:, :, 1:].reshape(b, h, t, r)[..., : r // 2 + 1]

    def forward(self, x):
        b, t, _ = x.shape
        q = self.linear_q(x).view(b, t, self.h, self.d_k)
        k = self.linear_k(x).view(b, t, self.h, self.d_k).transpose(1, 2)
        v = self.linear_v(x).view(b, t, self.h, self.d_k).transpose(1, 2)
        p = self.linear_pos(self.table(t, x)).view(1, -1, self.h, self.d_k).transpose(1, 2)
        ac = torch.matmul((q + self.pos_bias_u).transpose(1, 2), k.transpose(-2, -1))
        bd = self.rel_shift(torch.matmul((q + self.pos_bias_v).transpose(1, 2), p.transpose(-2, -1)))
        attn = torch.softmax((ac + bd) / math.sqrt(self.d_k), dim=-1)
        return self.linear_out(torch.matmul(attn, v).transpose(1, 2).reshape(b, t, -1))


class PositionsOnQueriesAndKeys(nn.Module):
    """Sinusoids, made on the fly, join the queries and keys and not the values."""

    def __init__(self, hidden_dim, nheads):
        super().__init__()
        self.nheads, self.hidden_dim = nheads, hidden_dim
        self.sa_q, self.sa_k, self.sa_v = (nn.Linear(hidden_dim, hidden_dim) for _ in range(3))
        self.sa_out = nn.Linear(hidden_dim, hidden_dim)
        self.norm = nn.LayerNorm(hidden_dim)

    def signal(self, n, like):
        half = self.hidden_dim // 2
        rate = 10000.0 ** (-torch.arange(half, dtype=like.dtype, device=like.device) / half)
        t = torch.arange(n, dtype=like.dtype, device=like.device)[:, None] * rate
        return torch.cat((t.sin(), t.cos()), dim=1)

    def forward(self, src, pos=None):
        pos = self.signal(src.size(1), src) if pos is None else pos
        b, n, c = src.shape
        at = src + pos
        q, k, v = self.sa_q(at), self.sa_k(at), self.sa_v(src)
        q, k, v = (t.view(b, n, self.nheads, -1).transpose(1, 2) for t in (q, k, v))
        y = (torch.softmax(q.matmul(k.mT) * (c // self.nheads) ** -0.5, -1) @ v).transpose(1, 2).reshape(b, n, c)
        return self.norm(src + self.sa_out(y))


class LazyOneHead(nn.Module):
    """One head whose input width is found at the first call."""

    def __init__(self, dim_k, dim_v):
        super().__init__()
        self.dim_k = dim_k
        self.theta = nn.LazyLinear(dim_k)
        self.phi = nn.LazyLinear(dim_k)
        self.g = nn.LazyLinear(dim_v)
        self.back = nn.LazyLinear(dim_v)

    def forward(self, x):
        affinity = torch.softmax(self.theta(x) @ self.phi(x).transpose(1, 2) / math.sqrt(self.dim_k), dim=-1)
        return self.back(affinity @ self.g(x)), affinity


@lru_cache(maxsize=32)
def future_of(n):
    return torch.ones(n, n, dtype=torch.bool).triu(1)


class SharedMaskCache(nn.Module):
    """One mask a length for all modules; the scale is a float32 tensor."""

    def __init__(self, emb, heads):
        super().__init__()
        self.heads = heads
        self.inv_scale = torch.tensor(1.0 / math.sqrt(emb // heads))
        self.to_q, self.to_k, self.to_v, self.to_y = (nn.Linear(emb, emb, bias=False) for _ in range(4))

    def forward(self, x):
        n = x.shape[1]
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.to_q, self.to_k, self.to_v))
        s = (q @ k.mT) * self.inv_scale.to(x.device)
        return self.to_y(
            (s.masked_fill(future_of(n).to(x.device), -math.inf).softmax(-1) @ v).transpose(1, 2).flatten(2)
        )


# ================================================================ the list


def build(cls, *args, seed=0, after=lambda module: module, **kwargs):
    def make():
        import warnings

        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(100 + seed)
            return after(cls(*args, **kwargs))

    return make


def int8(module):
    return torch.ao.quantization.quantize_dynamic(module.eval(), {nn.Linear}, dtype=torch.qint8)


def eager(module):
    return torch.compile(module, backend="eager")


def on(embed_dim, num_heads, causal=False, inputs="x", batch_first=True, **more):
    return dict(embed_dim=embed_dim, num_heads=num_heads, causal=causal, inputs=inputs, batch_first=batch_first, **more)


CASES = [
    Case(
        "concat-heads",
        build(ConcatHeads, 20, 4),
        on(20, 4),
        "plain",
        "A list of heads with maps of their own, concatenated.",
    ),
    Case(
        "strided-heads",
        build(StridedHeads, 24, 4, seed=1),
        on(24, 4),
        "plain",
        "A head is every fourth channel, split and merged alike.",
    ),
    Case(
        "layer-scale",
        build(ScaledBranch, 24, 3, seed=2),
        on(24, 3),
        "residual",
        "x + gamma * attn(x), rows packed head by head.",
    ),
    Case(
        "prenorm-residual-heads",
        build(PreNormResidualHeads, 28, 4, seed=3),
        on(28, 4),
        "pre-norm-residual",
        "x + attn(rmsnorm(x)), heads in the last axis of the scores.",
    ),
    Case(
        "qk-layernorm",
        build(EntropyGuardAttention, 24, 3, seed=4),
        on(24, 3),
        "qk-norm",
        "LayerNorm of each head's q and k.",
    ),
    Case(
        "olmo-wide-norm",
        build(OlmoLikeAttention, 24, 3, seed=5),
        on(24, 3, True, positions=True),
        "qk-norm",
        "RMS norm over all heads at once, then rotation of neighbors.",
    ),
    Case(
        "per-head-valve",
        build(PerHeadValve, 18, 3, 8, seed=6),
        on(18, 3, True),
        "gated-output",
        "One sigmoid gate a head; pre-norm; causal; inner width 24.",
    ),
    Case("glu-values", build(GluValues, 24, 4, seed=7), on(24, 4), "value-gate", "Values from a gated linear unit."),
    Case(
        "lse-sink",
        build(LogSumExpSink, 24, 4, seed=8),
        on(24, 4),
        "sinks",
        "A learned sink by the logsumexp; not causal.",
    ),
    Case(
        "persistent-memory",
        build(PersistentMemory, 24, 4, seed=9),
        on(24, 4, inputs="x_allowed"),
        "memory-kv",
        "Two learned keys and values appended, always seen, with a mask over the tokens.",
    ),
    Case(
        "torch-bias-kv",
        build(TorchBiasKV, 24, 4, seed=10),
        on(24, 4),
        "bias-kv",
        "nn.MultiheadAttention(add_bias_kv=True).",
    ),
    Case(
        "null-key",
        build(NullKeyAttention, 24, 3, seed=11),
        on(24, 3, True),
        "sink-token",
        "A key and a value of zeros first, seen by all; causal.",
    ),
    Case(
        "bucket-encoder",
        build(BucketBiasEncoderAttention, 24, 8, 4, seed=12),
        on(24, 4, positions=True),
        "t5-bias",
        "Two-sided buckets, scaled scores, the bias returned second, inner width 32.",
    ),
    Case(
        "levit-window",
        build(LevitLikeAttention, 24, 5, 3, seed=13),
        on(24, 3, positions=True, tokens=8),
        "swin",
        "A bias by absolute offsets on a 2 x 4 window; values wider than keys; pre-norm residual.",
    ),
    Case(
        "two-sided-alibi",
        build(TwoSidedAlibi, 32, 4, seed=14),
        on(32, 4, positions=True),
        "alibi",
        "Slopes on the absolute distance.",
    ),
    Case(
        "gptj-partial",
        build(GPTJLikeAttention, 36, 3, 8, seed=15),
        on(36, 3, True, positions=True),
        "rotary",
        "8 of 12 channels are rotated, neighbors against each other; causal.",
    ),
    Case(
        "token-and-place",
        build(TokenAndPlace, 20, 2, seed=16),
        on(20, 2, True, batch_first=False, positions=True),
        "learned-positions",
        "A learned embedding of positions; causal; sequence first.",
    ),
    Case(
        "grouped-on-three",
        build(GroupedOnThree, 36, 6, 3, seed=17),
        on(36, 6, inputs="qkv"),
        "grouped-query",
        "Pairs of query heads share a key head; three inputs.",
    ),
    Case(
        "one-key-head",
        build(OneKeyHead, 20, 4, 6, seed=18),
        on(20, 4),
        "multi-query",
        "Bare (in, out) matrices; one key and value head; inner width 24.",
    ),
    Case(
        "latent-rope",
        build(LatentWithRope, 24, 3, seed=19),
        on(24, 3, True, positions=True),
        "mla",
        "Low-rank q and kv, a shared rotated part of the key; causal.",
    ),
    Case(
        "neighbors",
        build(NeighborAttention, 24, 3, seed=20),
        on(24, 3, positions=True),
        "sliding-window",
        "Two tokens on each side, gathered.",
    ),
    Case(
        "capped-residual",
        build(CappedResidual, CappedArgs(), seed=21),
        on(20, 5, batch_first=False),
        "soft-cap",
        "Capped scores, pre-norm residual, sequence first.",
    ),
    Case(
        "gated-cross",
        build(GatedCrossAttention, 20, 14, seed=22),
        on(20, 4, inputs="x_context", key_dim=14),
        "cross-attention",
        "x + tanh(gate) * attn(norm(x), media).",
    ),
    Case(
        "masked-cross",
        build(MaskedCross, 24, 18, 3, seed=23),
        on(24, 3, inputs="x_context_allowed", key_dim=18),
        "cross-attention",
        "A context of another width and a mask; nothing to see gives the output's bias.",
    ),
    Case(
        "mask-through-mha",
        build(MaskThroughMHA, 24, 4, seed=24),
        on(24, 4, inputs="x_allowed"),
        "mha-wrapper",
        "The mask turned over, repeated for each head of nn.MultiheadAttention; NaN for a query without keys.",
    ),
    Case(
        "seq-first-masked",
        build(SequenceFirstMasked, 24, 3, seed=25),
        on(24, 3, inputs="qkv_allowed", batch_first=False),
        "padding-mask",
        "One in_proj_weight in slices, bmm, sequence first; NaN for a query without keys.",
    ),
    Case(
        "growing-cache",
        build(GrowingCache, 24, 4, 2, seed=26),
        on(24, 4, True, positions=True, cache="kv"),
        "cache",
        "Grouped heads, learned positions that go on after the cache.",
    ),
    Case(
        "flex-alibi",
        build(FlexAlibi, 32, 4, seed=27),
        on(32, 4, positions=True),
        "flex",
        "FlexAttention with a score function.",
    ),
    Case(
        "int8-sdpa",
        build(SeparateForInt8, 24, 3, seed=28, after=int8),
        on(24, 3),
        "quantized",
        "Dynamic int8; float32 only; the range of the whole batch sets the rounding.",
    ),
    Case(
        "half-core",
        build(HalfCore, 24, 4, 2, seed=29),
        on(24, 4),
        "half-inside",
        "float16 products, float32 softmax, grouped heads.",
    ),
    Case(
        "scripted-causal",
        build(ScriptedCausal, 24, 3, 64, seed=30, after=torch.jit.script),
        on(24, 3, True),
        "jit",
        "Scripted, causal by a float buffer; (output, weights).",
    ),
    Case(
        "compiled-protein",
        build(ProteinRotary, 24, 3, seed=31, after=eager),
        on(24, 3, positions=True),
        "compile",
        "Compiled; pre-norm residual with rotated halves, in both directions.",
    ),
    Case(
        "bart-named-tuple",
        build(BartLikeAttention, EncoderConfig(30, 5), seed=32),
        on(30, 5),
        "output-form",
        "A named tuple; the weights are the heads' mean.",
    ),
    Case(
        "additive-heads",
        build(AdditiveHeads, 18, 3, 5, seed=33),
        on(18, 3, True),
        "additive",
        "Additive scores in three heads; causal; a dict; no scale is due.",
    ),
    Case(
        "causal-linear",
        build(CausalLinear, 24, 4, seed=34),
        on(24, 4, True),
        "linear",
        "Causal linear attention by running sums.",
    ),
    Case(
        "biased-thermal",
        build(BiasedThermal, 24, 4, seed=35),
        on(24, 4),
        "bias-vectors",
        "bias_q, bias_k, bias_v are plain biases; a learned temperature.",
    ),
    Case(
        "primer-dconv",
        build(PrimerAttention, 24, 3, seed=36),
        on(24, 3, True, positions=True),
        "conv-projection",
        "Causal convolutions of three tokens after the projections.",
    ),
    Case(
        "resampler",
        build(Resampler, 20, 4, 6, seed=37),
        on(20, 4),
        "perceiver",
        "Six learned queries read tokens and themselves; six outputs.",
    ),
    Case(
        "conformer-relative",
        build(ConformerRelative, 24, 3, seed=38),
        on(24, 3, positions=True),
        "transformer-xl",
        "Relative scores in both directions, with the shift.",
    ),
    Case(
        "positions-on-qk",
        build(PositionsOnQueriesAndKeys, 24, 4, seed=39),
        on(24, 4, positions=True),
        "detr",
        "Sinusoids join q and k, not v; norm(x + attn).",
    ),
    Case("lazy-one-head", build(LazyOneHead, 10, 16, seed=40), on(16, 1), "lazy", "One lazy head of 10 channels."),
    Case(
        "shared-mask-cache",
        build(SharedMaskCache, 30, 3, seed=41),
        on(30, 3, True),
        "mask-cache",
        "A mask a length for all modules; a float32 tensor as the scale, 1/sqrt(10).",
    ),
]
