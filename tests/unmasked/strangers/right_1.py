"""Correct attention modules, in the styles of many authors. Each is right as its author meant it."""

import math
from dataclasses import dataclass
from types import SimpleNamespace

import torch
import torch.nn as nn
import torch.nn.functional as F
from cases import Case, seeded
from torch import Tensor, einsum


def exists(val):
    return val is not None


def default(val, d):
    return val if exists(val) else d


# ---------------------------------------------------------------- plain


class ViTAttention(nn.Module):
    """One image-token attention, fused where it can be."""

    def __init__(self, dim, num_heads=8, qkv_bias=False, attn_drop=0.0, proj_drop=0.0):
        super().__init__()
        assert dim % num_heads == 0, "dim should be divisible by num_heads"
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.scale = self.head_dim**-0.5
        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        x = F.scaled_dot_product_attention(q, k, v, dropout_p=self.attn_drop.p if self.training else 0.0)
        x = x.transpose(1, 2).reshape(B, N, C)
        return self.proj_drop(self.proj(x))


class ParallelSelfAttention(nn.Module):
    """Sequence first; each head's query, key and value rows lie together."""

    def __init__(self, hidden_size, num_attention_heads):
        super().__init__()
        self.hidden_size_per_attention_head = hidden_size // num_attention_heads
        self.num_attention_heads = num_attention_heads
        self.norm_factor = math.sqrt(self.hidden_size_per_attention_head)
        self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)

    def forward(self, hidden_states, attention_mask=None):
        mixed = self.query_key_value(hidden_states)
        np_, hn = self.num_attention_heads, self.hidden_size_per_attention_head
        mixed = mixed.view(*mixed.shape[:-1], np_, 3 * hn)
        query, key, value = torch.split(mixed, hn, dim=-1)
        sq, b = query.shape[:2]
        sk = key.size(0)
        query = query.reshape(sq, b * np_, hn)
        key = key.reshape(sk, b * np_, hn)
        value = value.reshape(sk, b * np_, hn)
        scores = torch.baddbmm(
            query.new_empty(b * np_, sq, sk),
            query.transpose(0, 1),
            key.transpose(0, 1).transpose(1, 2),
            beta=0.0,
            alpha=1.0 / self.norm_factor,
        )
        scores = scores.view(b, np_, sq, sk)
        if attention_mask is not None:
            scores = scores.masked_fill(attention_mask, torch.finfo(scores.dtype).min)
        probs = scores.softmax(-1).view(b * np_, sq, sk)
        context = torch.bmm(probs, value.transpose(0, 1)).view(b, np_, sq, hn)
        context = context.permute(2, 0, 1, 3).contiguous().view(sq, b, np_ * hn)
        return self.dense(context), None


class LucidAttention(nn.Module):
    def __init__(self, dim, heads=4, dim_head=16, dropout=0.0):
        super().__init__()
        inner_dim = dim_head * heads
        self.heads = heads
        self.scale = dim_head**-0.5
        self.attend = nn.Softmax(dim=-1)
        self.to_qkv = nn.Linear(dim, inner_dim * 3, bias=False)
        self.to_out = nn.Sequential(nn.Linear(inner_dim, dim), nn.Dropout(dropout))

    def forward(self, x):
        b, n, _, h = *x.shape, self.heads
        q, k, v = (t.reshape(b, n, h, -1).transpose(1, 2) for t in self.to_qkv(x).chunk(3, dim=-1))
        dots = einsum("b h i d, b h j d -> b h i j", q, k) * self.scale
        attn = self.attend(dots)
        out = einsum("b h i j, b h j d -> b h i d", attn, v)
        return self.to_out(out.permute(0, 2, 1, 3).flatten(-2))


class HookedHeads(nn.Module):
    """Three-dimensional parameters, a slice for each head."""

    def __init__(self, d_model, n_heads, d_head):
        super().__init__()
        self.W_Q = nn.Parameter(torch.empty(n_heads, d_model, d_head))
        self.W_K = nn.Parameter(torch.empty(n_heads, d_model, d_head))
        self.W_V = nn.Parameter(torch.empty(n_heads, d_model, d_head))
        self.W_O = nn.Parameter(torch.empty(n_heads, d_head, d_model))
        self.b_Q = nn.Parameter(torch.zeros(n_heads, d_head))
        self.b_K = nn.Parameter(torch.zeros(n_heads, d_head))
        self.b_V = nn.Parameter(torch.zeros(n_heads, d_head))
        self.b_O = nn.Parameter(torch.zeros(d_model))
        self.attn_scale = math.sqrt(d_head)
        for w in (self.W_Q, self.W_K, self.W_V, self.W_O):
            nn.init.normal_(w, std=0.2)

    def forward(self, normalized_resid_pre):
        q = einsum("bpm,hmd->bphd", normalized_resid_pre, self.W_Q) + self.b_Q
        k = einsum("bpm,hmd->bphd", normalized_resid_pre, self.W_K) + self.b_K
        v = einsum("bpm,hmd->bphd", normalized_resid_pre, self.W_V) + self.b_V
        pattern = (einsum("bqhd,bkhd->bhqk", q, k) / self.attn_scale).softmax(-1)
        z = einsum("bkhd,bhqk->bqhd", v, pattern)
        return einsum("bqhd,hdm->bqm", z, self.W_O) + self.b_O


# ---------------------------------------------------------------- single head


def dot_product_self_attention(x: Tensor) -> Tensor:
    """The function of the first lesson: no matrices, one head."""
    d_k = x.size(-1)
    energy = torch.matmul(x, x.transpose(-2, -1)) / math.sqrt(d_k)
    return torch.matmul(F.softmax(energy, dim=-1), x)


# ---------------------------------------------------------------- causal


class CausalSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.attn_dropout = nn.Dropout(config.dropout)
        self.resid_dropout = nn.Dropout(config.dropout)
        self.n_head = config.n_head
        self.n_embd = config.n_embd
        self.register_buffer(
            "bias", torch.tril(torch.ones(config.block_size, config.block_size)).view(1, 1, config.block_size, -1)
        )

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        att = self.attn_dropout(F.softmax(att, dim=-1))
        y = (att @ v).transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.c_proj(y))


class Conv1D(nn.Module):
    """A linear layer that keeps its weight as (in, out)."""

    def __init__(self, nf, nx):
        super().__init__()
        self.nf = nf
        self.weight = nn.Parameter(torch.empty(nx, nf).normal_(std=0.1))
        self.bias = nn.Parameter(torch.zeros(nf))

    def forward(self, x):
        return torch.addmm(self.bias, x.reshape(-1, x.size(-1)), self.weight).view(*x.shape[:-1], self.nf)


@dataclass
class TinyGPTConfig:
    hidden_size: int = 30
    num_attention_heads: int = 5
    n_positions: int = 96
    attn_pdrop: float = 0.1
    scale_attn_weights: bool = True


class GPTBlockAttention(nn.Module):
    def __init__(self, config: TinyGPTConfig):
        super().__init__()
        m = config.n_positions
        self.register_buffer(
            "causal_mask", torch.tril(torch.ones((m, m), dtype=torch.bool))[None, None], persistent=False
        )
        self.embed_dim, self.num_heads = config.hidden_size, config.num_attention_heads
        self.head_dim = self.embed_dim // self.num_heads
        self.scale_attn_weights = config.scale_attn_weights
        self.c_attn = Conv1D(3 * self.embed_dim, self.embed_dim)
        self.c_proj = Conv1D(self.embed_dim, self.embed_dim)
        self.attn_dropout = nn.Dropout(config.attn_pdrop)

    def _attn(self, query, key, value):
        w = torch.matmul(query, key.transpose(-1, -2))
        if self.scale_attn_weights:
            w = w / torch.full([], value.size(-1) ** 0.5, dtype=w.dtype, device=w.device)
        q_len, k_len = query.size(-2), key.size(-2)
        visible = self.causal_mask[:, :, k_len - q_len : k_len, :k_len]
        w = torch.where(visible, w, torch.full([], torch.finfo(w.dtype).min, dtype=w.dtype, device=w.device))
        w = self.attn_dropout(w.softmax(-1).type(value.dtype))
        return torch.matmul(w, value)

    def forward(self, hidden_states, output_attentions=False):
        split = [
            t.view(*t.shape[:-1], self.num_heads, self.head_dim).permute(0, 2, 1, 3)
            for t in self.c_attn(hidden_states).split(self.embed_dim, dim=2)
        ]
        out = self._attn(*split).permute(0, 2, 1, 3).contiguous()
        return self.c_proj(out.view(*out.shape[:-2], -1))


# ---------------------------------------------------------------- norms and residuals


class PreNormAttention(nn.Module):
    def __init__(self, dim, *, heads=4, dim_head=8):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.heads, self.scale = heads, dim_head**-0.5
        self.to_q = nn.Linear(dim, heads * dim_head, bias=False)
        self.to_kv = nn.Linear(dim, 2 * heads * dim_head, bias=False)
        self.to_out = nn.Linear(heads * dim_head, dim, bias=False)

    def forward(self, x):
        x = self.norm(x)
        q, (k, v) = self.to_q(x), self.to_kv(x).chunk(2, dim=-1)
        q, k, v = map(lambda t: t.unflatten(-1, (self.heads, -1)).transpose(1, 2), (q, k, v))
        q = q * self.scale
        sim = q @ k.transpose(-1, -2)
        sim = sim - sim.amax(dim=-1, keepdim=True).detach()
        return self.to_out((sim.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


class PostNormSublayer(nn.Module):
    """The original order: norm(x + attn(x))."""

    def __init__(self, d_model, h, dropout=0.1):
        super().__init__()
        self.d_k, self.h = d_model // h, h
        self.linears = nn.ModuleList([nn.Linear(d_model, d_model) for _ in range(4)])
        self.dropout = nn.Dropout(dropout)
        self.layer_norm = nn.LayerNorm(d_model, eps=1e-6)

    def forward(self, x):
        nbatches = x.size(0)
        query, key, value = [
            lin(t).view(nbatches, -1, self.h, self.d_k).transpose(1, 2) for lin, t in zip(self.linears, (x, x, x))
        ]
        p_attn = F.softmax(query @ key.transpose(-2, -1) / math.sqrt(self.d_k), dim=-1)
        y = (p_attn @ value).transpose(1, 2).contiguous().view(nbatches, -1, self.h * self.d_k)
        return self.layer_norm(x + self.dropout(self.linears[-1](y)))


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class PreLNCausalBlock(nn.Module):
    def __init__(self, width, n_head):
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.in_proj_weight = nn.Parameter(torch.randn(3 * width, width) * width**-0.5)
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * width))
        self.out_proj = nn.Linear(width, width)
        self.n_head = n_head

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (
            F.linear(self.ln_1(x), self.in_proj_weight, self.in_proj_bias).view(b, t, 3, self.n_head, -1).unbind(2)
        )
        a = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        return x + self.out_proj(a.transpose(1, 2).reshape(b, t, c))


# ---------------------------------------------------------------- qk-norm


class QwenishAttention(nn.Module):
    """RMS norm of each head's queries and keys, one weight for all heads; grouped keys; causal."""

    def __init__(self, hidden_size, num_heads, num_kv_heads, head_dim):
        super().__init__()
        self.head_dim, self.num_key_value_groups = head_dim, num_heads // num_kv_heads
        self.q_proj = nn.Linear(hidden_size, num_heads * head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * head_dim, hidden_size, bias=False)
        self.q_norm, self.k_norm = RMSNorm(head_dim), RMSNorm(head_dim)
        self.scaling = head_dim**-0.5

    def forward(self, hidden_states):
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        q = self.q_norm(self.q_proj(hidden_states).view(shape)).transpose(1, 2)
        k = self.k_norm(self.k_proj(hidden_states).view(shape)).transpose(1, 2)
        v = self.v_proj(hidden_states).view(shape).transpose(1, 2)
        k, v = (t.repeat_interleave(self.num_key_value_groups, dim=1) for t in (k, v))
        w = torch.matmul(q, k.transpose(2, 3)) * self.scaling
        n = w.size(-1)
        w = w + torch.full((n, n), float("-inf"), dtype=w.dtype, device=w.device).triu(1)
        w = F.softmax(w, dim=-1)
        return self.o_proj(torch.matmul(w, v).transpose(1, 2).reshape(*hidden_states.shape[:-1], -1)), None


class L2NormAttention(nn.Module):
    """Unit queries and keys, a learned scale for each head and channel, and a fixed factor on the scores."""

    def __init__(self, dim, heads=3, dim_head=8, qk_scale=8.0):
        super().__init__()
        self.heads, self.qk_scale = heads, qk_scale
        inner = heads * dim_head
        self.to_q, self.to_k, self.to_v = (nn.Linear(dim, inner, bias=False) for _ in range(3))
        self.q_scale = nn.Parameter(torch.ones(heads, 1, dim_head))
        self.k_scale = nn.Parameter(torch.ones(heads, 1, dim_head))
        self.to_out = nn.Linear(inner, dim, bias=False)

    def forward(self, x, mask=None):
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.to_q, self.to_k, self.to_v))
        q, k = F.normalize(q, dim=-1) * self.q_scale, F.normalize(k, dim=-1) * self.k_scale
        sim = einsum("bhid,bhjd->bhij", q, k) * self.qk_scale
        if exists(mask):
            sim = sim.masked_fill(~mask[:, None, None], -torch.finfo(sim.dtype).max)
        out = einsum("bhij,bhjd->bhid", sim.softmax(dim=-1), v)
        return self.to_out(out.transpose(1, 2).flatten(2))


# ---------------------------------------------------------------- gates


class GatedFoldAttention(nn.Module):
    """The output of every head is gated by the sigmoid of a linear map of the query's token."""

    def __init__(self, c_q, c_hidden, no_heads, inf=1e9):
        super().__init__()
        self.c_hidden, self.no_heads = c_hidden, no_heads
        self.linear_q = nn.Linear(c_q, c_hidden * no_heads, bias=False)
        self.linear_k = nn.Linear(c_q, c_hidden * no_heads, bias=False)
        self.linear_v = nn.Linear(c_q, c_hidden * no_heads, bias=False)
        self.linear_g = nn.Linear(c_q, c_hidden * no_heads)
        self.linear_o = nn.Linear(c_hidden * no_heads, c_q)
        self.sigmoid = nn.Sigmoid()

    def forward(self, q_x):
        split = lambda t: t.view(t.shape[:-1] + (self.no_heads, -1)).transpose(-2, -3)
        q, k, v = split(self.linear_q(q_x)), split(self.linear_k(q_x)), split(self.linear_v(q_x))
        q = q / math.sqrt(self.c_hidden)
        a = torch.softmax(torch.matmul(q, k.permute(0, 1, 3, 2)), -1)
        o = torch.matmul(a, v).transpose(-2, -3)
        g = self.sigmoid(self.linear_g(q_x)).view(q_x.shape[:-1] + (self.no_heads, -1))
        return self.linear_o((o * g).flatten(-2))


class GatedValues(nn.Module):
    """Each token gates its own value before it is mixed."""

    def __init__(self, n_state, n_head):
        super().__init__()
        self.n_head = n_head
        self.query = nn.Linear(n_state, n_state)
        self.key = nn.Linear(n_state, n_state, bias=False)
        self.value = nn.Linear(n_state, n_state)
        self.value_gate = nn.Linear(n_state, n_state)
        self.out = nn.Linear(n_state, n_state)

    def forward(self, x):
        n_batch, n_ctx, n_state = x.shape
        scale = (n_state // self.n_head) ** -0.25
        v = self.value(x) * torch.sigmoid(self.value_gate(x))
        q = self.query(x).view(n_batch, n_ctx, self.n_head, -1).permute(0, 2, 1, 3) * scale
        k = self.key(x).view(n_batch, n_ctx, self.n_head, -1).permute(0, 2, 3, 1) * scale
        v = v.view(n_batch, n_ctx, self.n_head, -1).permute(0, 2, 1, 3)
        return self.out((F.softmax(q @ k, dim=-1) @ v).permute(0, 2, 1, 3).flatten(start_dim=2))


# ---------------------------------------------------------------- sinks, memory


class SinkLogitAttention(nn.Module):
    """A learned logit a head joins the softmax and is dropped after it."""

    def __init__(self, config):
        super().__init__()
        self.head_dim = config.head_dim
        self.groups = config.num_attention_heads // config.num_key_value_heads
        self.q_proj = nn.Linear(config.hidden_size, config.num_attention_heads * self.head_dim)
        self.k_proj = nn.Linear(config.hidden_size, config.num_key_value_heads * self.head_dim)
        self.v_proj = nn.Linear(config.hidden_size, config.num_key_value_heads * self.head_dim)
        self.o_proj = nn.Linear(config.num_attention_heads * self.head_dim, config.hidden_size)
        self.sinks = nn.Parameter(torch.zeros(config.num_attention_heads))

    def forward(self, hidden_states):
        bsz, n, _ = hidden_states.shape
        q = self.q_proj(hidden_states).view(bsz, n, -1, self.head_dim).transpose(1, 2)
        k = self.k_proj(hidden_states).view(bsz, n, -1, self.head_dim).transpose(1, 2)
        v = self.v_proj(hidden_states).view(bsz, n, -1, self.head_dim).transpose(1, 2)
        k = k[:, :, None].expand(-1, -1, self.groups, -1, -1).flatten(1, 2)
        v = v[:, :, None].expand(-1, -1, self.groups, -1, -1).flatten(1, 2)
        w = q @ k.transpose(2, 3) * self.head_dim**-0.5
        w = w.masked_fill(torch.ones(n, n, dtype=torch.bool, device=w.device).triu(1), float("-inf"))
        sinks = self.sinks.reshape(1, -1, 1, 1).expand(bsz, -1, n, -1)
        logits = torch.cat([w, sinks], dim=-1)
        logits = logits - logits.max(dim=-1, keepdim=True).values
        scores = F.softmax(logits, dim=-1)[..., :-1]
        return self.o_proj((scores @ v).transpose(1, 2).reshape(bsz, n, -1)), scores


class MemKVAttention(nn.Module):
    def __init__(self, dim, heads=4, dim_head=8, num_mem_kv=3):
        super().__init__()
        self.scale, self.heads = dim_head**-0.5, heads
        hidden = dim_head * heads
        self.mem_kv = nn.Parameter(torch.randn(2, heads, num_mem_kv, dim_head))
        self.to_qkv = nn.Linear(dim, hidden * 3, bias=False)
        self.to_out = nn.Linear(hidden, dim)

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = (t.view(b, n, self.heads, -1).transpose(1, 2) for t in self.to_qkv(x).chunk(3, dim=-1))
        mk, mv = (t[None].expand(b, -1, -1, -1) for t in self.mem_kv)
        k, v = torch.cat((mk, k), dim=-2), torch.cat((mv, v), dim=-2)
        attn = (einsum("bhid,bhjd->bhij", q * self.scale, k)).softmax(dim=-1)
        return self.to_out(einsum("bhij,bhjd->bhid", attn, v).transpose(1, 2).reshape(b, n, -1))


class SeqFirstBiasKV(nn.Module):
    """A learned key and value appended after the projections, as add_bias_kv does."""

    def __init__(self, embed_dim, num_heads, dropout=0.0):
        super().__init__()
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.scaling = self.head_dim**-0.5
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        self.bias_k = nn.Parameter(torch.empty(1, 1, embed_dim))
        self.bias_v = nn.Parameter(torch.empty(1, 1, embed_dim))
        nn.init.xavier_normal_(self.bias_k)
        nn.init.xavier_normal_(self.bias_v)

    def forward(self, query, key, value):
        tgt_len, bsz, embed_dim = query.size()
        q = self.q_proj(query) * self.scaling
        k = torch.cat([self.k_proj(key), self.bias_k.repeat(1, bsz, 1)])
        v = torch.cat([self.v_proj(value), self.bias_v.repeat(1, bsz, 1)])
        q = q.contiguous().view(tgt_len, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        k = k.contiguous().view(-1, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        v = v.contiguous().view(-1, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        probs = F.softmax(torch.bmm(q, k.transpose(1, 2)), dim=-1)
        attn = torch.bmm(probs, v).transpose(0, 1).contiguous().view(tgt_len, bsz, embed_dim)
        return self.out_proj(attn), None


# ---------------------------------------------------------------- relative positions


def t5_bucket(relative_position, bidirectional=True, num_buckets=32, max_distance=128):
    ret = torch.zeros_like(relative_position)
    n = -relative_position
    if bidirectional:
        num_buckets //= 2
        ret = ret + (n < 0).long() * num_buckets
        n = n.abs()
    else:
        n = n.clamp(min=0)
    max_exact = num_buckets // 2
    is_small = n < max_exact
    far = (
        max_exact
        + (
            torch.log(n.float().clamp(min=1) / max_exact)
            / math.log(max_distance / max_exact)
            * (num_buckets - max_exact)
        ).long()
    )
    far = far.clamp(max=num_buckets - 1)
    return ret + torch.where(is_small, n, far)


class T5CausalAttention(nn.Module):
    """As T5 has it: no scale on the scores (it is in the initialization); returns the position bias second."""

    def __init__(self, d_model, num_heads, num_buckets=8):
        super().__init__()
        self.h, self.num_buckets = num_heads, num_buckets
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))
        self.relative_attention_bias = nn.Embedding(num_buckets, num_heads)
        nn.init.normal_(self.q.weight, std=(d_model * d_model // num_heads) ** -0.5)

    def forward(self, hidden_states, position_bias=None):
        b, n, _ = hidden_states.shape
        q, k, v = (f(hidden_states).view(b, n, self.h, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        if position_bias is None:
            pos = torch.arange(n, device=hidden_states.device)
            position_bias = self.relative_attention_bias(
                t5_bucket(pos[None] - pos[:, None], False, self.num_buckets, 16)
            )
            position_bias = position_bias.permute(2, 0, 1)[None]
            hidden = (pos[None] > pos[:, None]).to(q.dtype) * torch.finfo(q.dtype).min
            position_bias = position_bias + hidden
        scores = q @ k.transpose(-1, -2) + position_bias
        y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, -1)
        return self.o(y), position_bias


class WindowAttention(nn.Module):
    def __init__(self, dim, window_size, num_heads, qkv_bias=True):
        super().__init__()
        self.dim, self.window_size, self.num_heads = dim, window_size, num_heads
        self.scale = (dim // num_heads) ** -0.5
        wh, ww = window_size
        self.relative_position_bias_table = nn.Parameter(torch.zeros((2 * wh - 1) * (2 * ww - 1), num_heads))
        coords = torch.stack(torch.meshgrid(torch.arange(wh), torch.arange(ww), indexing="ij")).flatten(1)
        rel = (coords[:, :, None] - coords[:, None, :]).permute(1, 2, 0).contiguous()
        rel[:, :, 0] += wh - 1
        rel[:, :, 1] += ww - 1
        rel[:, :, 0] *= 2 * ww - 1
        self.register_buffer("relative_position_index", rel.sum(-1))
        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)
        self.softmax = nn.Softmax(dim=-1)
        nn.init.trunc_normal_(self.relative_position_bias_table, std=0.02)

    def forward(self, x):
        B_, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B_, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        attn = (q * self.scale) @ k.transpose(-2, -1)
        bias = self.relative_position_bias_table[self.relative_position_index.view(-1)].view(N, N, -1)
        attn = self.softmax(attn + bias.permute(2, 0, 1).contiguous().unsqueeze(0))
        return self.proj((attn @ v).transpose(1, 2).reshape(B_, N, C))


class WindowAttentionV2(nn.Module):
    """Cosine scores with a clamped learned scale, and a bias from a small network of log-spaced offsets."""

    def __init__(self, dim, window_size, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.logit_scale = nn.Parameter(torch.log(10 * torch.ones((num_heads, 1, 1))))
        self.cpb_mlp = nn.Sequential(nn.Linear(2, 16), nn.ReLU(inplace=True), nn.Linear(16, num_heads, bias=False))
        h, w = window_size
        ch = torch.arange(-(h - 1), h, dtype=torch.float32)
        cw = torch.arange(-(w - 1), w, dtype=torch.float32)
        table = torch.stack(torch.meshgrid([ch, cw], indexing="ij"), -1)
        table = table / torch.tensor([max(h - 1, 1), max(w - 1, 1)]) * 8
        table = torch.sign(table) * torch.log2(table.abs() + 1.0) / 3
        self.register_buffer("relative_coords_table", table, persistent=False)
        grid = torch.stack(torch.meshgrid([torch.arange(h), torch.arange(w)], indexing="ij")).flatten(1)
        rel = grid[:, :, None] - grid[:, None]
        self.register_buffer(
            "relative_position_index", (rel[0] + h - 1) * (2 * w - 1) + rel[1] + w - 1, persistent=False
        )
        self.qkv = nn.Linear(dim, dim * 3, bias=False)
        self.q_bias = nn.Parameter(torch.zeros(dim))
        self.v_bias = nn.Parameter(torch.zeros(dim))
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, mask=None):
        B, N, C = x.shape
        bias = torch.cat((self.q_bias, torch.zeros_like(self.v_bias, requires_grad=False), self.v_bias))
        q, k, v = (
            F.linear(x, self.qkv.weight, bias).reshape(B, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        )
        attn = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        attn = attn * torch.clamp(self.logit_scale, max=math.log(1.0 / 0.01)).exp()
        table = self.cpb_mlp(self.relative_coords_table).view(-1, self.num_heads)
        attn = attn + 16 * torch.sigmoid(table[self.relative_position_index.view(-1)].view(N, N, -1).permute(2, 0, 1))
        return self.proj((attn.softmax(-1) @ v).transpose(1, 2).reshape(B, N, C))


def alibi_slopes(n):
    def power_of_2(n):
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]

    if math.log2(n).is_integer():
        return power_of_2(n)
    closest = 2 ** math.floor(math.log2(n))
    return power_of_2(closest) + alibi_slopes(2 * closest)[0::2][: n - closest]


class AlibiCausalAttention(nn.Module):
    """ALiBi as BLOOM has it: a slope a head times the key's position; the softmax makes it relative."""

    def __init__(self, hidden, heads):
        super().__init__()
        self.heads, self.hd = heads, hidden // heads
        self.query_key_value = nn.Linear(hidden, 3 * hidden, bias=True)
        self.dense = nn.Linear(hidden, hidden)
        self.register_buffer("slopes", torch.tensor(alibi_slopes(heads), dtype=torch.float32), persistent=False)

    def forward(self, hidden_states):
        b, n, _ = hidden_states.shape
        fused = self.query_key_value(hidden_states).view(b, n, self.heads, 3, self.hd)
        q, k, v = (fused[..., i, :].transpose(1, 2) for i in range(3))
        alibi = self.slopes[:, None, None] * torch.arange(n, device=q.device)[None, None, :]
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.hd) + alibi
        future = torch.triu(torch.ones(n, n, dtype=torch.bool, device=q.device), diagonal=1)
        probs = F.softmax(scores.masked_fill(future, torch.finfo(scores.dtype).min), dim=-1)
        return self.dense((probs @ v).transpose(1, 2).reshape(b, n, -1))


# ---------------------------------------------------------------- rotary


def precompute_freqs_cis(dim, end, theta=10000.0):
    freqs = 1.0 / (theta ** (torch.arange(0, dim, 2)[: dim // 2].float() / dim))
    return torch.polar(torch.ones(end, dim // 2), torch.outer(torch.arange(end).float(), freqs))


class LlamaAttention(nn.Module):
    """Neighboring channels are rotated as complex numbers."""

    def __init__(self, args):
        super().__init__()
        self.n_heads, self.head_dim = args.n_heads, args.dim // args.n_heads
        self.wq = nn.Linear(args.dim, args.dim, bias=False)
        self.wk = nn.Linear(args.dim, args.dim, bias=False)
        self.wv = nn.Linear(args.dim, args.dim, bias=False)
        self.wo = nn.Linear(args.dim, args.dim, bias=False)
        self.max_seq_len, self.theta = args.max_seq_len, args.rope_theta

    def forward(self, x):
        bsz, seqlen, _ = x.shape
        xq, xk, xv = self.wq(x), self.wk(x), self.wv(x)
        xq, xk, xv = (t.view(bsz, seqlen, self.n_heads, self.head_dim) for t in (xq, xk, xv))
        freqs_cis = precompute_freqs_cis(self.head_dim, self.max_seq_len, self.theta).to(x.device)[:seqlen]
        freqs_cis = freqs_cis.view(1, seqlen, 1, -1)
        xq_ = torch.view_as_complex(xq.reshape(*xq.shape[:-1], -1, 2))
        xk_ = torch.view_as_complex(xk.reshape(*xk.shape[:-1], -1, 2))
        xq = torch.view_as_real(xq_ * freqs_cis).flatten(3).type_as(x).transpose(1, 2)
        xk = torch.view_as_real(xk_ * freqs_cis).flatten(3).type_as(x).transpose(1, 2)
        scores = torch.matmul(xq, xk.transpose(2, 3)) / math.sqrt(self.head_dim)
        if seqlen > 1:
            mask = torch.full((seqlen, seqlen), float("-inf"), device=x.device)
            scores = scores + torch.triu(mask, diagonal=1).type_as(scores)
        out = torch.matmul(F.softmax(scores, dim=-1), xv.transpose(1, 2))
        return self.wo(out.transpose(1, 2).contiguous().view(bsz, seqlen, -1))


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


class PartialRotaryNeoX(nn.Module):
    """The first half of each head's channels is rotated, halves against each other; no causal mask."""

    def __init__(self, hidden_size, heads, rotary_pct=0.5):
        super().__init__()
        self.heads, self.hd = heads, hidden_size // heads
        self.rotary_ndims = int(self.hd * rotary_pct)
        self.register_buffer(
            "inv_freq", 1.0 / (10000 ** (torch.arange(0, self.rotary_ndims, 2).float() / self.rotary_ndims))
        )
        self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)

    def forward(self, hidden_states):
        b, n, c = hidden_states.shape
        qkv = self.query_key_value(hidden_states).view(b, n, self.heads, 3 * self.hd).permute(0, 2, 1, 3)
        q, k, v = qkv[..., : self.hd], qkv[..., self.hd : 2 * self.hd], qkv[..., 2 * self.hd :]
        t = torch.arange(n, device=q.device, dtype=self.inv_freq.dtype)
        emb = torch.outer(t, self.inv_freq).repeat(1, 2)
        cos, sin = emb.cos()[None, None], emb.sin()[None, None]
        r = self.rotary_ndims
        q = torch.cat((q[..., :r] * cos + rotate_half(q[..., :r]) * sin, q[..., r:]), dim=-1)
        k = torch.cat((k[..., :r] * cos + rotate_half(k[..., :r]) * sin, k[..., r:]), dim=-1)
        out = F.scaled_dot_product_attention(q, k, v)
        return self.dense(out.permute(0, 2, 1, 3).reshape(b, n, c))


class RotaryGQA(nn.Module):
    """Halves against each other over the whole head; grouped keys and values; causal."""

    def __init__(self, dim, n_q, n_kv, base=500.0):
        super().__init__()
        self.n_q, self.n_kv, self.base = n_q, n_kv, base
        self.d = dim // n_q
        self.q_proj = nn.Linear(dim, n_q * self.d, bias=True)
        self.k_proj = nn.Linear(dim, n_kv * self.d, bias=True)
        self.v_proj = nn.Linear(dim, n_kv * self.d, bias=True)
        self.o_proj = nn.Linear(n_q * self.d, dim, bias=False)

    def cos_sin(self, n, like):
        inv = self.base ** (-torch.arange(0, self.d, 2, device=like.device, dtype=torch.float64) / self.d)
        ang = torch.arange(n, device=like.device, dtype=torch.float64)[:, None] * inv[None]
        ang = torch.cat((ang, ang), dim=-1)
        return ang.cos().to(like.dtype), ang.sin().to(like.dtype)

    def forward(self, hidden_states, position_ids=None):
        b, n, _ = hidden_states.shape
        q = self.q_proj(hidden_states).view(b, n, self.n_q, self.d).transpose(1, 2)
        k = self.k_proj(hidden_states).view(b, n, self.n_kv, self.d).transpose(1, 2)
        v = self.v_proj(hidden_states).view(b, n, self.n_kv, self.d).transpose(1, 2)
        cos, sin = self.cos_sin(n, q)
        q, k = q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(o.transpose(1, 2).reshape(b, n, -1)), None, None


# ---------------------------------------------------------------- absolute positions inside


class LearnedPositionAttention(nn.Module):
    def __init__(self, emb, heads, max_len=64):
        super().__init__()
        self.pos_emb = nn.Parameter(torch.zeros(1, max_len, emb))
        nn.init.normal_(self.pos_emb, std=0.3)
        self.heads = heads
        self.tokeys = nn.Linear(emb, emb, bias=False)
        self.toqueries = nn.Linear(emb, emb, bias=False)
        self.tovalues = nn.Linear(emb, emb, bias=False)
        self.unifyheads = nn.Linear(emb, emb)

    def forward(self, x):
        b, t, e = x.size()
        h, s = self.heads, e // self.heads
        x = x + self.pos_emb[:, :t]
        keys = self.tokeys(x).view(b, t, h, s).transpose(1, 2).contiguous().view(b * h, t, s)
        queries = self.toqueries(x).view(b, t, h, s).transpose(1, 2).contiguous().view(b * h, t, s)
        values = self.tovalues(x).view(b, t, h, s).transpose(1, 2).contiguous().view(b * h, t, s)
        dot = torch.bmm(queries / s**0.25, (keys / s**0.25).transpose(1, 2)).softmax(dim=2)
        out = torch.bmm(dot, values).view(b, h, t, s).transpose(1, 2).contiguous().view(b, t, s * h)
        return self.unifyheads(out)


class SinusoidalAttention(nn.Module):
    def __init__(self, d_model, n_heads, max_len=128):
        super().__init__()
        pe = torch.zeros(max_len, d_model)
        position = torch.arange(0, max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe[:, 0::2], pe[:, 1::2] = torch.sin(position * div_term), torch.cos(position * div_term)
        self.register_buffer("pe", pe.unsqueeze(0))
        self.mha = nn.MultiheadAttention(d_model, n_heads, batch_first=True)

    def forward(self, x):
        x = x + self.pe[:, : x.size(1)]
        return self.mha(x, x, x, need_weights=False)[0]


# ---------------------------------------------------------------- grouped heads, MLA


class GroupedHeadsEinsum(nn.Module):
    """Queries in groups of consecutive heads, each group with one key and one value head."""

    def __init__(self, d, q_heads, kv_heads):
        super().__init__()
        self.g, self.r, self.hd = kv_heads, q_heads // kv_heads, d // q_heads
        self.q_proj = nn.Linear(d, d)
        self.kv_proj = nn.Linear(d, 2 * kv_heads * self.hd)
        self.out_proj = nn.Linear(d, d)

    def forward(self, x):
        b, n, _ = x.shape
        q = self.q_proj(x).view(b, n, self.g, self.r, self.hd)
        k, v = self.kv_proj(x).view(b, n, 2, self.g, self.hd).unbind(2)
        logits = torch.einsum("bqgrd,bkgd->bgrqk", q, k) / math.sqrt(self.hd)
        o = torch.einsum("bgrqk,bkgd->bqgrd", logits.softmax(-1), v)
        return self.out_proj(o.reshape(b, n, -1))


class MultiQueryAttention(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads, self.head_dim, self.d_model = n_heads, d_model // n_heads, d_model
        self.Wqkv = nn.Linear(d_model, d_model + 2 * self.head_dim)
        self.out_proj = nn.Linear(d_model, d_model)

    def forward(self, x):
        b, s, _ = x.shape
        query, key, value = self.Wqkv(x).split([self.d_model, self.head_dim, self.head_dim], dim=2)
        q = query.view(b, s, self.n_heads, -1).transpose(1, 2)
        w = torch.matmul(q, key.unsqueeze(1).transpose(-1, -2)) * self.head_dim**-0.5
        causal = torch.ones(s, s, dtype=torch.bool, device=x.device).tril()
        w = torch.softmax(w.masked_fill(~causal, -torch.inf), dim=-1)
        return self.out_proj(torch.matmul(w, value.unsqueeze(1)).transpose(1, 2).flatten(2))


class LatentKVAttention(nn.Module):
    """Keys and values are expanded from one low-rank latent of each token; the key head is wider than the value head."""

    def __init__(self, hidden, heads, kv_lora_rank, qk_dim, v_dim):
        super().__init__()
        self.heads, self.qk_dim, self.v_dim = heads, qk_dim, v_dim
        self.q_proj = nn.Linear(hidden, heads * qk_dim, bias=False)
        self.kv_a_proj = nn.Linear(hidden, kv_lora_rank, bias=False)
        self.kv_a_layernorm = RMSNorm(kv_lora_rank)
        self.kv_b_proj = nn.Linear(kv_lora_rank, heads * (qk_dim + v_dim), bias=False)
        self.o_proj = nn.Linear(heads * v_dim, hidden, bias=False)
        self.softmax_scale = qk_dim**-0.5

    def forward(self, x):
        b, n, _ = x.shape
        q = self.q_proj(x).view(b, n, self.heads, self.qk_dim)
        latent = self.kv_a_layernorm(self.kv_a_proj(x))
        k, v = self.kv_b_proj(latent).view(b, n, self.heads, -1).split([self.qk_dim, self.v_dim], dim=-1)
        scores = torch.einsum("bshd,bthd->bsht", q, k) * self.softmax_scale
        future = torch.full((n, n), float("-inf"), device=x.device, dtype=scores.dtype).triu_(1)
        scores = (scores + future.unsqueeze(1)).softmax(dim=-1)
        return self.o_proj(torch.einsum("bsht,bthd->bshd", scores, v).flatten(2))


# ---------------------------------------------------------------- windows, soft-cap


class LocalCausalAttention(nn.Module):
    """Each token sees itself and the three before it."""

    def __init__(self, dim, heads, sliding_window=4):
        super().__init__()
        self.n_heads, self.sliding_window = heads, sliding_window
        self.wqkv = nn.Linear(dim, 3 * dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.wqkv(x).view(b, n, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)
        i = torch.arange(n, device=x.device).view(-1, 1)
        j = torch.arange(n, device=x.device).view(1, -1)
        keep = (j <= i) & (i - j < self.sliding_window)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=keep)
        return self.wo(out.transpose(1, 2).reshape(b, n, c))


class SoftCapAttention(nn.Module):
    """tanh caps the scores, then the mask is applied; one key and value head for all queries."""

    def __init__(self, config):
        super().__init__()
        self.nh, self.hd = config["num_heads"], config["head_dim"]
        self.scaling = config["query_pre_attn_scalar"] ** -0.5
        self.softcap = config["attn_logit_softcapping"]
        d = config["hidden_size"]
        self.q_proj = nn.Linear(d, self.nh * self.hd, bias=False)
        self.k_proj = nn.Linear(d, self.hd, bias=False)
        self.v_proj = nn.Linear(d, self.hd, bias=False)
        self.o_proj = nn.Linear(self.nh * self.hd, d, bias=False)

    def forward(self, hidden_states, **kwargs):
        b, n, _ = hidden_states.shape
        q = self.q_proj(hidden_states).view(b, n, self.nh, self.hd).transpose(1, 2)
        k, v = self.k_proj(hidden_states).unsqueeze(1), self.v_proj(hidden_states).unsqueeze(1)
        w = torch.matmul(q, k.transpose(2, 3)) * self.scaling
        w = torch.tanh(w / self.softcap) * self.softcap
        mask = torch.full((n, n), torch.finfo(w.dtype).min, dtype=w.dtype, device=w.device).triu(1)
        w = F.softmax((w + mask), dim=-1)
        return self.o_proj(torch.matmul(w, v).transpose(1, 2).reshape(b, n, -1)), w


# ---------------------------------------------------------------- cross-attention


class CrossAttention(nn.Module):
    """Queries from x, keys and values from a context of another width; no biases but at the end."""

    def __init__(self, query_dim, context_dim=None, heads=8, dim_head=64, dropout=0.0):
        super().__init__()
        inner_dim = dim_head * heads
        context_dim = default(context_dim, query_dim)
        self.scale, self.heads = dim_head**-0.5, heads
        self.to_q = nn.Linear(query_dim, inner_dim, bias=False)
        self.to_k = nn.Linear(context_dim, inner_dim, bias=False)
        self.to_v = nn.Linear(context_dim, inner_dim, bias=False)
        self.to_out = nn.Sequential(nn.Linear(inner_dim, query_dim), nn.Dropout(dropout))

    def forward(self, x, context=None):
        h = self.heads
        context = default(context, x)
        q, k, v = self.to_q(x), self.to_k(context), self.to_v(context)
        fold = lambda t: t.reshape(t.shape[0], t.shape[1], h, -1).permute(0, 2, 1, 3).flatten(0, 1)
        q, k, v = fold(q), fold(k), fold(v)
        sim = einsum("b i d, b j d -> b i j", q, k) * self.scale
        out = einsum("b i j, b j d -> b i d", sim.softmax(dim=-1), v)
        out = out.unflatten(0, (-1, h)).permute(0, 2, 1, 3).flatten(2)
        return self.to_out(out)


class EncoderDecoderAttention(nn.Module):
    """The decoder's sublayer: pre-norm of x, residual, keys and values from the encoder's memory."""

    def __init__(self, size, nhead):
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.q_proj = nn.Linear(size, size)
        self.kv_proj = nn.Linear(size, 2 * size)
        self.out_proj = nn.Linear(size, size)
        self.nhead = nhead

    def forward(self, x, memory):
        q = self.q_proj(self.norm(x)).unflatten(-1, (self.nhead, -1)).transpose(1, 2)
        k, v = self.kv_proj(memory).chunk(2, -1)
        k = k.unflatten(-1, (self.nhead, -1)).permute(0, 2, 3, 1)
        v = v.unflatten(-1, (self.nhead, -1)).transpose(1, 2)
        a = torch.softmax(q @ k / q.size(-1) ** 0.5, dim=-1)
        return x + self.out_proj((a @ v).transpose(1, 2).flatten(2))


class ImageTextBridge(nn.Module):
    """A wrapper around nn.MultiheadAttention with keys and values of other widths."""

    def __init__(self, dim, text_dim, num_heads):
        super().__init__()
        self.cross = nn.MultiheadAttention(dim, num_heads, kdim=text_dim, vdim=text_dim, batch_first=True)

    def forward(self, x, context):
        attended, attention = self.cross(x, context, context)
        return {"hidden_states": attended, "attention": attention}


class CausalMHA(nn.Module):
    """Sequence first, a float mask made for each call."""

    def __init__(self, d_model, n_head):
        super().__init__()
        self.attn = nn.MultiheadAttention(d_model, n_head)
        self.ln_1 = nn.LayerNorm(d_model)

    def build_attention_mask(self, length, like):
        mask = torch.empty(length, length, device=like.device, dtype=like.dtype)
        mask.fill_(float("-inf"))
        return mask.triu_(1)

    def forward(self, x):
        y = self.ln_1(x)
        return x + self.attn(y, y, y, need_weights=False, attn_mask=self.build_attention_mask(x.shape[0], x))[0]


# ---------------------------------------------------------------- masks that are given


class MaskedMultiHead(nn.Module):
    """Query, key, value and a mask of what may be seen; a query that may see nothing gets zeros from the heads."""

    def __init__(self, n_feat, n_head, dropout_rate=0.0):
        super().__init__()
        self.d_k, self.h = n_feat // n_head, n_head
        self.linear_q, self.linear_k, self.linear_v, self.linear_out = (nn.Linear(n_feat, n_feat) for _ in range(4))
        self.attn = None
        self.dropout = nn.Dropout(p=dropout_rate)

    def forward(self, query, key, value, mask=None):
        n_batch = query.size(0)
        q = self.linear_q(query).view(n_batch, -1, self.h, self.d_k).transpose(1, 2)
        k = self.linear_k(key).view(n_batch, -1, self.h, self.d_k).transpose(1, 2)
        v = self.linear_v(value).view(n_batch, -1, self.h, self.d_k).transpose(1, 2)
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.d_k)
        if mask is not None:
            mask = mask.unsqueeze(1) if mask.dim() == 3 else mask
            mask = mask.eq(0)
            scores = scores.masked_fill(mask, torch.finfo(scores.dtype).min)
            attn = torch.softmax(scores, dim=-1).masked_fill(mask, 0.0)
        else:
            attn = torch.softmax(scores, dim=-1)
        x = torch.matmul(self.dropout(attn), v)
        x = x.transpose(1, 2).contiguous().view(n_batch, -1, self.h * self.d_k)
        return self.linear_out(x)


class PaddedEncoderAttention(nn.Module):
    """One tensor and a mask; it adds an additive mask, and zeroes the outputs of padded tokens, those that see nothing."""

    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv_proj = nn.Linear(hidden_size, 3 * hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)

    def forward(self, hidden_states, attention_mask=None):
        b, n, c = hidden_states.shape
        q, k, v = self.qkv_proj(hidden_states).view(b, n, 3, self.num_heads, c // self.num_heads).permute(2, 0, 3, 1, 4)
        real = None
        if attention_mask is not None:
            if attention_mask.dim() < 4:
                attention_mask = attention_mask.view(-1, 1, *attention_mask.shape[-2:])
            real = attention_mask.any(dim=-1)[:, 0, :, None].expand(b, n, 1)
            key_padding = ~attention_mask.any(dim=-2)  # keys that no query may see
            v = v.masked_fill(key_padding.unsqueeze(-1), 0.0)
            extended = torch.zeros(attention_mask.shape, dtype=q.dtype, device=q.device)
            attention_mask = extended.masked_fill(~attention_mask, torch.finfo(q.dtype).min)
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.size(-1))
        if attention_mask is not None:
            scores = scores + attention_mask
        out = self.dense((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, c))
        return out if real is None else out.masked_fill(~real, 0.0)


# ---------------------------------------------------------------- caches


class CachedCausalAttention(nn.Module):
    """Keys and values of earlier calls come first; the mask is aligned at the end."""

    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)

    def forward(self, x, cache=None):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for t in self.c_attn(x).split(C, dim=-1))
        if cache is not None:
            k = torch.cat((cache[0], k), dim=2)
            v = torch.cat((cache[1], v), dim=2)
        S = k.size(2)
        allowed = torch.ones(T, S, dtype=torch.bool, device=x.device).tril(diagonal=S - T)
        att = (q @ k.mT / math.sqrt(q.size(-1))).masked_fill(~allowed, float("-inf")).softmax(-1)
        y = self.c_proj((att @ v).transpose(1, 2).reshape(B, T, C))
        return y, (k, v)


class RotaryCachedAttention(nn.Module):
    """Keys are rotated once, at the positions that they have in the whole sequence, and kept rotated."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.d = heads, dim // heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def rope(self, t, start):
        half = self.d // 2
        freq = 100.0 ** (-torch.arange(half, device=t.device, dtype=t.dtype) / half)
        angle = torch.arange(start, start + t.size(1), device=t.device, dtype=t.dtype)[:, None, None] * freq
        a, b = t[..., :half], t[..., half:]
        return torch.cat((a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()), -1)

    def forward(self, x, cache=None):
        start = 0 if cache is None else cache["k"].size(1)
        q, k, v = (f(x).unflatten(-1, (self.heads, self.d)) for f in (self.q, self.k, self.v))
        q, k = self.rope(q, start), self.rope(k, start)
        if cache is not None:
            k, v = torch.cat((cache["k"], k), 1), torch.cat((cache["v"], v), 1)
        scores = torch.einsum("bihd,bjhd->bhij", q, k) * self.d**-0.5
        i = torch.arange(start, start + x.size(1), device=x.device)
        j = torch.arange(k.size(1), device=x.device)
        scores = scores.masked_fill(j[None] > i[:, None], float("-inf"))
        out = torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v).flatten(2)
        return self.o(out), {"k": k, "v": v}


# ---------------------------------------------------------------- how it is run


class FlexCausalAttention(nn.Module):
    """FlexAttention, not compiled, with a causal block mask."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        block = create_block_mask(lambda b, h, i, j: i >= j, B=None, H=None, Q_LEN=n, KV_LEN=n, device=str(x.device))
        y = flex_attention(q, k, v, block_mask=block)
        return self.proj(y.transpose(1, 2).reshape(b, n, c))


def quantized_attention(dim, heads):
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = LucidAttention(dim, heads, dim // heads).eval()
        return torch.ao.quantization.quantize_dynamic(module, {nn.Linear}, dtype=torch.qint8)


class BFloatInside(nn.Module):
    """The matrix products in bfloat16, the softmax in float32, the result in the input's type."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, embed_dim // num_heads
        self.in_proj = nn.Linear(embed_dim, 3 * embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x):
        dtype = x.dtype
        b, n, _ = x.shape
        q, k, v = self.in_proj(x).bfloat16().view(b, n, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        scores = torch.matmul(q * self.head_dim**-0.5, k.transpose(-1, -2))
        weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(v.dtype)
        return self.out_proj(torch.matmul(weights, v).transpose(1, 2).reshape(b, n, -1).to(dtype))


class ScriptableAttention(nn.Module):
    def __init__(self, dim: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.q = nn.Linear(dim, dim)
        self.kv = nn.Linear(dim, 2 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        B, N, C = x.shape
        head_dim = C // self.num_heads
        q = self.q(x).reshape(B, N, self.num_heads, head_dim).permute(0, 2, 1, 3)
        kv = self.kv(x).reshape(B, N, 2, self.num_heads, head_dim).permute(2, 0, 3, 1, 4)
        k, v = kv[0], kv[1]
        attn = (q @ k.transpose(-2, -1)) * (float(head_dim) ** -0.5)
        if mask is not None:
            attn = attn.masked_fill(~mask, float("-inf"))
        attn = attn.softmax(dim=-1)
        x = (attn @ v).transpose(1, 2).reshape(B, N, C)
        return self.proj(x)


def scripted(dim, num_heads):
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(ScriptableAttention(dim, num_heads))


def compiled(dim, num_heads):
    return torch.compile(ViTAttention(dim, num_heads, qkv_bias=True), backend="eager")


# ---------------------------------------------------------------- what it returns


class BertSelfAttention(nn.Module):
    """(context, probabilities), the probabilities before dropout; its dense layer is part of it."""

    def __init__(self, config):
        super().__init__()
        self.num_attention_heads = config.num_attention_heads
        self.attention_head_size = config.hidden_size // config.num_attention_heads
        self.all_head_size = self.num_attention_heads * self.attention_head_size
        self.query = nn.Linear(config.hidden_size, self.all_head_size)
        self.key = nn.Linear(config.hidden_size, self.all_head_size)
        self.value = nn.Linear(config.hidden_size, self.all_head_size)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(config.attention_probs_dropout_prob)

    def transpose_for_scores(self, x):
        x = x.view(x.size()[:-1] + (self.num_attention_heads, self.attention_head_size))
        return x.permute(0, 2, 1, 3)

    def forward(self, hidden_states, attention_mask=None, head_mask=None, output_attentions=True):
        key_layer = self.transpose_for_scores(self.key(hidden_states))
        value_layer = self.transpose_for_scores(self.value(hidden_states))
        query_layer = self.transpose_for_scores(self.query(hidden_states))
        attention_scores = torch.matmul(query_layer, key_layer.transpose(-1, -2))
        attention_scores = attention_scores / math.sqrt(self.attention_head_size)
        if attention_mask is not None:
            attention_scores = attention_scores + attention_mask
        attention_probs = nn.functional.softmax(attention_scores, dim=-1)
        context_layer = torch.matmul(self.dropout(attention_probs), value_layer).permute(0, 2, 1, 3).contiguous()
        context_layer = context_layer.view(context_layer.size()[:-2] + (self.all_head_size,))
        out = self.dense(context_layer)
        return (out, attention_probs) if output_attentions else (out,)


@dataclass
class AttentionResult:
    output: Tensor
    scores: Tensor


class RawScoresAttention(nn.Module):
    """A dataclass with the scores before the softmax."""

    def __init__(self, features, heads):
        super().__init__()
        self.heads = heads
        self.proj_q = nn.Linear(features, features)
        self.proj_k = nn.Linear(features, features)
        self.proj_v = nn.Linear(features, features)
        self.proj_o = nn.Linear(features, features)

    def forward(self, x):
        b, s, f = x.shape
        q, k, v = (p(x).view(b, s, self.heads, -1).transpose(1, 2) for p in (self.proj_q, self.proj_k, self.proj_v))
        scores = q @ k.transpose(-2, -1) / (f // self.heads) ** 0.5
        y = scores.softmax(-1) @ v
        return AttentionResult(output=self.proj_o(y.transpose(1, 2).contiguous().view(b, s, f)), scores=scores)


# ---------------------------------------------------------------- other scores


class BahdanauSelfAttention(nn.Module):
    """Additive scores, v . tanh(W q + U k); the values are the tokens."""

    def __init__(self, hidden, units):
        super().__init__()
        self.W = nn.Linear(hidden, units)
        self.U = nn.Linear(hidden, units, bias=False)
        self.v = nn.Linear(units, 1, bias=False)

    def forward(self, x):
        energy = self.v(torch.tanh(self.W(x).unsqueeze(2) + self.U(x).unsqueeze(1))).squeeze(-1)
        alpha = F.softmax(energy, dim=-1)
        return torch.bmm(alpha, x), alpha


class LinearAttention(nn.Module):
    """elu + 1 features, and the normalizer of every query."""

    def __init__(self, dim, heads, eps=1e-9):
        super().__init__()
        self.heads, self.eps = heads, eps
        self.query_projection = nn.Linear(dim, dim)
        self.key_projection = nn.Linear(dim, dim)
        self.value_projection = nn.Linear(dim, dim)
        self.out_projection = nn.Linear(dim, dim)

    def forward(self, x):
        n, l, _ = x.shape
        q = self.query_projection(x).view(n, l, self.heads, -1)
        k = self.key_projection(x).view(n, l, self.heads, -1)
        v = self.value_projection(x).view(n, l, self.heads, -1)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        kv = torch.einsum("nshd,nshm->nhmd", k, v)
        z = 1 / (torch.einsum("nlhd,nhd->nlh", q, k.sum(dim=1)) + self.eps)
        out = torch.einsum("nlhd,nhmd,nlh->nlhm", q, kv, z)
        return self.out_projection(out.contiguous().view(n, l, -1))


class BiasVectorAttention(nn.Module):
    """Three plain vectors bias_q, bias_k, bias_v are the biases of the projections."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.bias_q = nn.Parameter(torch.zeros(dim))
        self.bias_k = nn.Parameter(torch.zeros(dim))
        self.bias_v = nn.Parameter(torch.zeros(dim))
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.to_qkv(x).chunk(3, dim=-1)
        q, k, v = q + self.bias_q, k + self.bias_k, v + self.bias_v
        b, n, c = x.shape
        q, k, v = (t.reshape(b, n, self.heads, c // self.heads).transpose(1, 2) for t in (q, k, v))
        w = torch.softmax(q @ k.transpose(-1, -2) * (c // self.heads) ** -0.5, dim=-1)
        return dict(output=self.to_out((w @ v).transpose(1, 2).reshape(b, n, c)), attention_weights=w)


class MatrixAttention(nn.Module):
    """x @ W with bare matrices (in, out), as a course writes it."""

    def __init__(self, d_in, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.W_query = nn.Parameter(torch.rand(d_in, d_in) / d_in)
        self.W_key = nn.Parameter(torch.rand(d_in, d_in) / d_in)
        self.W_value = nn.Parameter(torch.rand(d_in, d_in) / d_in)
        self.W_out = nn.Parameter(torch.rand(d_in, d_in) / d_in)

    def forward(self, x):
        queries, keys, values = x @ self.W_query, x @ self.W_key, x @ self.W_value
        outs = []
        for q, k, v in zip(*(torch.tensor_split(t, self.n_heads, dim=-1) for t in (queries, keys, values))):
            attn_weights = torch.softmax(q @ k.transpose(1, 2) / k.shape[-1] ** 0.5, dim=-1)
            outs.append(attn_weights @ v)
        return torch.cat(outs, dim=-1) @ self.W_out


class TensorScaleAttention(nn.Module):
    """The scale is a float32 tensor that is neither parameter nor buffer."""

    def __init__(self, hid_dim, n_heads, dropout=0.1):
        super().__init__()
        self.hid_dim, self.n_heads, self.head_dim = hid_dim, n_heads, hid_dim // n_heads
        self.fc_q = nn.Linear(hid_dim, hid_dim)
        self.fc_k = nn.Linear(hid_dim, hid_dim)
        self.fc_v = nn.Linear(hid_dim, hid_dim)
        self.fc_o = nn.Linear(hid_dim, hid_dim)
        self.dropout = nn.Dropout(dropout)
        self.scale = torch.sqrt(torch.FloatTensor([self.head_dim]))

    def forward(self, query, key, value):
        batch_size = query.shape[0]
        Q = self.fc_q(query).view(batch_size, -1, self.n_heads, self.head_dim).permute(0, 2, 1, 3)
        K = self.fc_k(key).view(batch_size, -1, self.n_heads, self.head_dim).permute(0, 2, 1, 3)
        V = self.fc_v(value).view(batch_size, -1, self.n_heads, self.head_dim).permute(0, 2, 1, 3)
        energy = torch.matmul(Q, K.permute(0, 1, 3, 2)) / self.scale.to(Q.device)
        attention = torch.softmax(energy, dim=-1)
        x = torch.matmul(self.dropout(attention), V).permute(0, 2, 1, 3).contiguous()
        return self.fc_o(x.view(batch_size, -1, self.hid_dim)), attention


class TemperatureAttention(nn.Module):
    """The scale is learned: exp of a log-temperature for each head, begun at 1/sqrt(d)."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.log_temperature = nn.Parameter(torch.full((heads, 1, 1), 0.5 * math.log(dim / heads)))
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attn = (q @ k.transpose(-2, -1) / self.log_temperature.exp()).softmax(dim=-1)
        return self.proj((attn @ v).transpose(1, 2).reshape(b, n, c))


class LazyHeads(nn.Module):
    """The width of the input is learned at the first call."""

    def __init__(self, num_hiddens, num_heads, bias=False):
        super().__init__()
        self.num_heads = num_heads
        self.W_q = nn.LazyLinear(num_hiddens, bias=bias)
        self.W_k = nn.LazyLinear(num_hiddens, bias=bias)
        self.W_v = nn.LazyLinear(num_hiddens, bias=bias)
        self.W_o = nn.LazyLinear(num_hiddens, bias=bias)

    def transpose_qkv(self, X):
        X = X.reshape(X.shape[0], X.shape[1], self.num_heads, -1).permute(0, 2, 1, 3)
        return X.reshape(-1, X.shape[2], X.shape[3])

    def transpose_output(self, X):
        X = X.reshape(-1, self.num_heads, X.shape[1], X.shape[2]).permute(0, 2, 1, 3)
        return X.reshape(X.shape[0], X.shape[1], -1)

    def forward(self, queries, keys, values):
        queries = self.transpose_qkv(self.W_q(queries))
        keys = self.transpose_qkv(self.W_k(keys))
        values = self.transpose_qkv(self.W_v(values))
        scores = torch.bmm(queries, keys.transpose(1, 2)) / math.sqrt(queries.shape[-1])
        return self.W_o(self.transpose_output(torch.bmm(F.softmax(scores, dim=-1), values)))


class TalkingHeadAttn(nn.Module):
    """The heads' scores are mixed before the softmax and their weights after it."""

    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3, bias=True)
        self.proj = nn.Linear(dim, dim)
        self.proj_l = nn.Linear(num_heads, num_heads)
        self.proj_w = nn.Linear(num_heads, num_heads)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0] * self.scale, qkv[1], qkv[2]
        attn = q @ k.transpose(-2, -1)
        attn = self.proj_l(attn.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        attn = attn.softmax(dim=-1)
        attn = self.proj_w(attn.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.proj((attn @ v).transpose(1, 2).reshape(B, N, C))


class ConvProjectionAttention(nn.Module):
    """A depthwise convolution along the tokens before each projection."""

    def __init__(self, dim, heads, kernel_size=3):
        super().__init__()
        self.heads = heads

        def branch():
            depthwise = nn.Conv1d(dim, dim, kernel_size, padding=kernel_size // 2, groups=dim, bias=False)
            return nn.Sequential(depthwise, nn.Conv1d(dim, dim, 1))

        self.conv_proj_q, self.conv_proj_k, self.conv_proj_v = branch(), branch(), branch()
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        x = x.transpose(1, 2)
        q, k, v = (f(x).unflatten(1, (self.heads, -1)) for f in (self.conv_proj_q, self.conv_proj_k, self.conv_proj_v))
        attn = (torch.einsum("bhdi,bhdj->bhij", q, k) * q.size(2) ** -0.5).softmax(-1)
        out = torch.einsum("bhij,bhdj->bhdi", attn, v).flatten(1, 2)
        return self.proj(out.transpose(1, 2))


class DroppingAttention(nn.Module):
    """Dropout on the probabilities in training, and on nothing else."""

    def __init__(self, emb_size, num_heads, dropout=0.15):
        super().__init__()
        self.emb_size, self.num_heads = emb_size, num_heads
        self.queries = nn.Linear(emb_size, emb_size)
        self.keys = nn.Linear(emb_size, emb_size)
        self.values = nn.Linear(emb_size, emb_size)
        self.projection = nn.Linear(emb_size, emb_size)
        self.att_drop = nn.Dropout(dropout)

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = (
            f(x).reshape(b, n, self.num_heads, -1).swapaxes(1, 2) for f in (self.queries, self.keys, self.values)
        )
        att = F.softmax(torch.einsum("bhqd,bhkd->bhqk", q, k) / (self.emb_size // self.num_heads) ** 0.5, dim=-1)
        out = torch.einsum("bhal,bhlv->bhav", self.att_drop(att), v)
        return self.projection(out.swapaxes(1, 2).reshape(b, n, -1))


class MaskByLengthAttention(nn.Module):
    """The causal mask of every length is kept after its first use."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.wq, self.wk, self.wv, self.proj = (nn.Linear(width, width) for _ in range(4))
        self._mask_cache = {}

    def causal_mask(self, n, device):
        key = (n, str(device))
        if key not in self._mask_cache:
            self._mask_cache[key] = torch.ones((n, n), dtype=torch.bool, device=device).triu_(1)
        return self._mask_cache[key]

    def forward(self, x):
        n = x.size(1)
        q, k, v = (w(x).unflatten(2, (self.heads, -1)).movedim(2, 1) for w in (self.wq, self.wk, self.wv))
        logits = torch.matmul(q / math.sqrt(q.shape[-1]), k.mT)
        logits = logits.masked_fill(self.causal_mask(n, x.device), -torch.inf)
        return self.proj(torch.matmul(logits.softmax(dim=-1), v).movedim(1, 2).flatten(2))


class SinkTokenWindow(nn.Module):
    """A learned token stands before the sequence; every token sees it, itself and the two tokens before."""

    def __init__(self, dim, heads, window=3):
        super().__init__()
        self.heads, self.window = heads, window
        self.sink_token = nn.Parameter(torch.randn(1, 1, dim))
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        x = torch.cat((self.sink_token.expand(x.size(0), -1, -1), x), dim=1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.to_qkv(x).chunk(3, -1))
        gap = torch.arange(x.size(1))[:, None] - torch.arange(x.size(1))[None]
        seen = (gap >= 0) & (gap < self.window)
        seen[:, 0] = True
        sim = (q @ k.mT * q.size(-1) ** -0.5).masked_fill(~seen.to(x.device), -torch.finfo(q.dtype).max)
        return self.to_out((sim.softmax(-1) @ v).transpose(1, 2).flatten(2))[:, 1:]


class LatentReader(nn.Module):
    """Learned latents are the queries, as in a Perceiver; as many outputs as latents."""

    def __init__(self, dim, num_latents, heads):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(num_latents, dim))
        self.norm_media, self.norm_latents = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_kv = nn.Linear(dim, dim * 2, bias=False)
        self.to_out = nn.Linear(dim, dim, bias=False)
        self.heads = heads

    def forward(self, x):
        latents = self.norm_latents(self.latents).expand(x.size(0), -1, -1)
        q = self.to_q(latents)
        k, v = self.to_kv(self.norm_media(x)).chunk(2, dim=-1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        return self.to_out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class MAB(nn.Module):
    def __init__(self, dim_Q, dim_K, dim_V, num_heads, ln=False):
        super().__init__()
        self.dim_V, self.num_heads = dim_V, num_heads
        self.fc_q = nn.Linear(dim_Q, dim_V)
        self.fc_k = nn.Linear(dim_K, dim_V)
        self.fc_v = nn.Linear(dim_K, dim_V)
        self.ln0, self.ln1 = (nn.LayerNorm(dim_V), nn.LayerNorm(dim_V)) if ln else (nn.Identity(), nn.Identity())
        self.fc_o = nn.Linear(dim_V, dim_V)

    def forward(self, Q, K):
        Q = self.fc_q(Q)
        K, V = self.fc_k(K), self.fc_v(K)
        split = self.dim_V // self.num_heads
        Q_, K_, V_ = (torch.cat(t.split(split, 2), 0) for t in (Q, K, V))
        A = torch.softmax(Q_.bmm(K_.transpose(1, 2)) / math.sqrt(split), 2)
        O = torch.cat((Q_ + A.bmm(V_)).split(Q.size(0), 0), 2)
        O = self.ln0(O)
        return self.ln1(O + F.relu(self.fc_o(O)))


class ISAB(nn.Module):
    """Induced set attention: learned points read the set, then the set reads the points."""

    def __init__(self, dim, num_heads, num_inds, ln=True):
        super().__init__()
        self.I = nn.Parameter(torch.empty(1, num_inds, dim))
        nn.init.xavier_uniform_(self.I)
        self.mab0 = MAB(dim, dim, dim, num_heads, ln=ln)
        self.mab1 = MAB(dim, dim, dim, num_heads, ln=ln)

    def forward(self, X):
        H = self.mab0(self.I.repeat(X.size(0), 1, 1), X)
        return self.mab1(X, H)


class DetrSelfAttention(nn.Module):
    """Learned query positions join the queries and the keys, not the values; post-norm residual; sequence first."""

    def __init__(self, d_model, nhead, num_queries=100):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(d_model, nhead, dropout=0.1)
        self.query_embed = nn.Embedding(num_queries, d_model)
        self.norm1, self.dropout1 = nn.LayerNorm(d_model), nn.Dropout(0.1)

    @staticmethod
    def with_pos_embed(tensor, pos):
        return tensor if pos is None else tensor + pos

    def forward(self, tgt):
        query_pos = self.query_embed.weight[: tgt.size(0)].unsqueeze(1)
        q = k = self.with_pos_embed(tgt, query_pos)
        tgt2 = self.self_attn(q, k, value=tgt)[0]
        return self.norm1(tgt + self.dropout1(tgt2))


class RelPartialLearnable(nn.Module):
    """Transformer-XL's scores: content and distance, each with its own bias of the query; causal; sequence first."""

    def __init__(self, n_head, d_model, d_head):
        super().__init__()
        self.n_head, self.d_model, self.d_head = n_head, d_model, d_head
        self.qkv_net = nn.Linear(d_model, 3 * n_head * d_head, bias=False)
        self.r_net = nn.Linear(d_model, n_head * d_head, bias=False)
        self.o_net = nn.Linear(n_head * d_head, d_model, bias=False)
        self.r_w_bias = nn.Parameter(torch.zeros(n_head, d_head))
        self.r_r_bias = nn.Parameter(torch.zeros(n_head, d_head))
        self.scale = 1 / (d_head**0.5)
        self.register_buffer("inv_freq", 1 / (10000 ** (torch.arange(0.0, d_model, 2.0) / d_model)))

    def _rel_shift(self, x):
        zero_pad = torch.zeros((x.size(0), 1, *x.size()[2:]), device=x.device, dtype=x.dtype)
        x_padded = torch.cat([zero_pad, x], dim=1).view(x.size(1) + 1, x.size(0), *x.size()[2:])
        return x_padded[1:].view_as(x)

    def forward(self, w):
        qlen, bsz = w.size(0), w.size(1)
        pos_seq = torch.arange(qlen - 1, -1, -1.0, device=w.device, dtype=w.dtype)
        sinusoid = torch.outer(pos_seq, self.inv_freq)
        r = torch.cat([sinusoid.sin(), sinusoid.cos()], dim=-1)
        w_q, w_k, w_v = (t.view(qlen, bsz, self.n_head, self.d_head) for t in self.qkv_net(w).chunk(3, dim=-1))
        r_k = self.r_net(r).view(qlen, self.n_head, self.d_head)
        AC = torch.einsum("ibnd,jbnd->ijbn", w_q + self.r_w_bias, w_k)
        BD = self._rel_shift(torch.einsum("ibnd,jnd->ijbn", w_q + self.r_r_bias, r_k))
        attn_score = (AC + BD) * self.scale
        mask = torch.triu(w.new_ones(qlen, qlen), diagonal=1).bool()[:, :, None, None]
        attn_prob = F.softmax(attn_score.masked_fill(mask, -float("inf")), dim=1)
        attn_vec = torch.einsum("ijbn,jbnd->ibnd", attn_prob, w_v).contiguous()
        return self.o_net(attn_vec.view(qlen, bsz, self.n_head * self.d_head))


# ---------------------------------------------------------------- the list

GPT = SimpleNamespace(n_embd=24, n_head=4, block_size=64, dropout=0.1, bias=True)
OSS = SimpleNamespace(hidden_size=32, head_dim=8, num_attention_heads=4, num_key_value_heads=2)
LLAMA = SimpleNamespace(dim=32, n_heads=4, max_seq_len=128, rope_theta=10000.0)
BERT = SimpleNamespace(hidden_size=36, num_attention_heads=6, attention_probs_dropout_prob=0.1)
GEMMA = dict(hidden_size=24, num_heads=3, head_dim=8, query_pre_attn_scalar=8, attn_logit_softcapping=5.0)


def x(embed_dim, num_heads, causal=False, inputs="x", batch_first=True, **more):
    return dict(embed_dim=embed_dim, num_heads=num_heads, causal=causal, inputs=inputs, batch_first=batch_first) | more


CASES = [
    Case(
        "vit-fused",
        seeded(0, ViTAttention, 24, 4, True),
        x(24, 4),
        "plain",
        "Image-token attention with fused qkv and SDPA.",
    ),
    Case(
        "neox-seq-first",
        seeded(1, ParallelSelfAttention, 24, 3),
        x(24, 3, batch_first=False),
        "plain",
        "Rows packed head by head, sequence first, (output, None).",
    ),
    Case(
        "lucid-inner-dim",
        seeded(2, LucidAttention, 20, 4, 6),
        x(20, 4),
        "plain",
        "The heads' total width, 24, is not the embedding's, 20.",
    ),
    Case(
        "hooked-3d-weights",
        seeded(3, HookedHeads, 18, 3, 6),
        x(18, 3),
        "plain",
        "Three-dimensional weights, a slice a head.",
    ),
    Case(
        "function-no-matrices",
        lambda: dot_product_self_attention,
        x(12, 1),
        "single-head",
        "A function without weights.",
    ),
    Case(
        "nano-causal",
        seeded(4, CausalSelfAttention, GPT),
        x(24, 4, True),
        "causal",
        "Causal by a float buffer of ones.",
    ),
    Case(
        "gpt2-conv1d",
        seeded(5, GPTBlockAttention, TinyGPTConfig()),
        x(30, 5, True),
        "config",
        "A dataclass configures it; (in, out) weights; boolean mask buffer and where.",
    ),
    Case(
        "prenorm-lucid",
        seeded(6, PreNormAttention, 28, heads=4, dim_head=8),
        x(28, 4),
        "pre-norm",
        "LayerNorm first, maximum subtracted by hand.",
    ),
    Case("postnorm-sublayer", seeded(7, PostNormSublayer, 24, 4), x(24, 4), "residual", "norm(x + attn(x))."),
    Case(
        "preln-causal-block",
        seeded(8, PreLNCausalBlock, 30, 3),
        x(30, 3, True),
        "pre-norm-residual",
        "x + attn(norm(x)), causal, bare in_proj_weight.",
    ),
    Case(
        "qwenish-rms",
        seeded(9, QwenishAttention, 24, 4, 2, 8),
        x(24, 4, True),
        "qk-norm",
        "RMS norm on each head of q and k, grouped heads, causal.",
    ),
    Case(
        "l2-qk-scale",
        seeded(10, L2NormAttention, 21),
        x(21, 3),
        "qk-norm",
        "Unit queries and keys with learned scales and a factor of 8.",
    ),
    Case(
        "openfold-gate",
        seeded(11, GatedFoldAttention, 16, 8, 3),
        x(16, 3),
        "gated-output",
        "Output gated by a sigmoid of x before the last linear map.",
    ),
    Case(
        "gated-values",
        seeded(12, GatedValues, 32, 4),
        x(32, 4),
        "value-gate",
        "Each token's value is gated by itself; scale split between q and k.",
    ),
    Case(
        "sink-logits",
        seeded(13, SinkLogitAttention, OSS),
        x(32, 4, True),
        "sinks",
        "A learned logit a head in the softmax; returned weights sum to less than one.",
    ),
    Case(
        "mem-kv",
        seeded(14, MemKVAttention, 24, 3, 8),
        x(24, 3),
        "memory-kv",
        "Three learned keys and values prepended.",
    ),
    Case(
        "seq-first-bias-kv",
        seeded(15, SeqFirstBiasKV, 24, 4),
        x(24, 4, inputs="qkv", batch_first=False),
        "bias-kv",
        "A learned key and value appended, sequence first.",
    ),
    Case(
        "t5-causal",
        seeded(17, T5CausalAttention, 24, 4),
        x(24, 4, True, positions=True),
        "t5-bias",
        "T5's decoder: unscaled scores by design, and the position bias as the second result.",
    ),
    Case(
        "swin-window",
        seeded(18, WindowAttention, 24, (3, 3), 3),
        x(24, 3, positions=True, tokens=9),
        "swin",
        "A window of 3 x 3 tokens with a table of relative positions.",
    ),
    Case(
        "swin-v2-cosine",
        seeded(19, WindowAttentionV2, 16, (2, 3), 2),
        x(16, 2, positions=True, tokens=6),
        "cosine",
        "Cosine scores with a learned clamped scale, and a continuous position bias.",
    ),
    Case(
        "bloom-alibi",
        seeded(20, AlibiCausalAttention, 36, 6),
        x(36, 6, True, positions=True),
        "alibi",
        "A slope a head times the key's position, causal; 6 heads.",
    ),
    Case(
        "llama-rotary",
        seeded(21, LlamaAttention, LLAMA),
        x(32, 4, True, positions=True),
        "rotary",
        "Interleaved rotation by complex numbers, causal.",
    ),
    Case(
        "neox-partial-rotary",
        seeded(22, PartialRotaryNeoX, 32, 2),
        x(32, 2, positions=True),
        "rotary",
        "Half of each head is rotated, halves against each other.",
    ),
    Case(
        "rotary-gqa",
        seeded(23, RotaryGQA, 32, 4, 2),
        x(32, 4, True, positions=True),
        "rotary",
        "Rotated halves with grouped heads; (output, None, None).",
    ),
    Case(
        "learned-positions",
        seeded(24, LearnedPositionAttention, 24, 3),
        x(24, 3, positions=True),
        "learned-positions",
        "Adds learned positions to x; scale split as a fourth root.",
    ),
    Case(
        "sinusoidal-mha",
        seeded(25, SinusoidalAttention, 24, 4),
        x(24, 4, positions=True),
        "sinusoidal",
        "Adds sinusoids to x, then nn.MultiheadAttention.",
    ),
    Case(
        "grouped-einsum",
        seeded(26, GroupedHeadsEinsum, 36, 6, 2),
        x(36, 6),
        "grouped-query",
        "Three query heads in a row for each key head.",
    ),
    Case(
        "multi-query",
        seeded(27, MultiQueryAttention, 24, 4),
        x(24, 4, True),
        "multi-query",
        "One key and value head, fused Wqkv, causal.",
    ),
    Case(
        "latent-kv",
        seeded(28, LatentKVAttention, 24, 3, 10, 8, 6),
        x(24, 3, True),
        "mla",
        "Low-rank normalized latent for keys and values; widths 8 and 6; causal.",
    ),
    Case(
        "local-causal",
        seeded(29, LocalCausalAttention, 24, 3),
        x(24, 3, True),
        "sliding-window",
        "Itself and the three tokens before.",
    ),
    Case(
        "softcap-mqa",
        seeded(30, SoftCapAttention, GEMMA),
        x(24, 3, True),
        "soft-cap",
        "Scores capped before the mask; one key head; takes a dict.",
    ),
    Case(
        "diffusers-cross",
        seeded(31, CrossAttention, 24, 16, 3, 8),
        x(24, 3, inputs="x_context", key_dim=16),
        "cross-attention",
        "A context of 16 features.",
    ),
    Case(
        "decoder-cross-block",
        seeded(32, EncoderDecoderAttention, 24, 4),
        x(24, 4, inputs="x_context"),
        "cross-attention",
        "Pre-norm of x alone and a residual around it.",
    ),
    Case(
        "image-text-kdim",
        seeded(33, ImageTextBridge, 24, 20, 3),
        x(24, 3, inputs="x_context", key_dim=20),
        "mha-wrapper",
        "nn.MultiheadAttention with kdim and vdim; a dict.",
    ),
    Case(
        "clip-causal-mha",
        seeded(34, CausalMHA, 24, 3),
        x(24, 3, True, batch_first=False),
        "mha-wrapper",
        "x + mha(norm(x)) with a float mask, sequence first.",
    ),
    Case(
        "espnet-masked",
        seeded(35, MaskedMultiHead, 24, 4),
        x(24, 4, inputs="qkv_allowed"),
        "padding-mask",
        "A mask of what may be seen; nothing to see gives the output's bias.",
    ),
    Case(
        "padded-encoder",
        seeded(36, PaddedEncoderAttention, 30, 5),
        x(30, 5, inputs="x_allowed"),
        "padding-mask",
        "An additive mask from the boolean one; queries without keys get zeros.",
    ),
    Case(
        "cached-causal",
        seeded(37, CachedCausalAttention, 24, 3),
        x(24, 3, True, cache="kv"),
        "cache",
        "A tuple of keys and values is carried on.",
    ),
    Case(
        "cached-rotary",
        seeded(38, RotaryCachedAttention, 24, 3),
        x(24, 3, True, positions=True, cache="kv"),
        "cache",
        "Keys are cached after their rotation; a dict is carried on.",
    ),
    Case("flex-causal", seeded(39, FlexCausalAttention, 32, 2), x(32, 2, True), "flex", "FlexAttention, uncompiled."),
    Case(
        "quantized-dynamic",
        seeded(40, quantized_attention, 24, 3),
        x(24, 3),
        "quantized",
        "Dynamically quantized linear maps; float32 only.",
    ),
    Case(
        "bfloat16-inside",
        seeded(41, BFloatInside, 24, 3),
        x(24, 3),
        "half-inside",
        "bfloat16 products, float32 softmax.",
    ),
    Case("jit-script", seeded(42, scripted, 24, 4), x(24, 4), "jit", "Scripted."),
    Case("compiled-eager", seeded(43, compiled, 24, 4), x(24, 4), "compile", "torch.compile with the eager backend."),
    Case("bert-probs", seeded(44, BertSelfAttention, BERT), x(36, 6), "output-form", "(output, probabilities)."),
    Case(
        "raw-scores-dataclass",
        seeded(45, RawScoresAttention, 24, 4),
        x(24, 4),
        "output-form",
        "A dataclass with raw scores as its second field.",
    ),
    Case(
        "bahdanau-self",
        seeded(46, BahdanauSelfAttention, 16, 10),
        x(16, 1),
        "additive",
        "Additive scores; the values are the tokens; no scale is due.",
    ),
    Case("linear-elu", seeded(47, LinearAttention, 24, 3), x(24, 3), "linear", "elu + 1 features, normalized."),
    Case(
        "bias-vectors",
        seeded(48, BiasVectorAttention, 24, 3),
        x(24, 3),
        "bias-vectors",
        "bias_q, bias_k, bias_v are plain biases; a dict.",
    ),
    Case(
        "x-at-w",
        seeded(49, MatrixAttention, 24, 3),
        x(24, 3, weights=dict(query="W_query", key="W_key", value="W_value", out="W_out")),
        "x-at-w",
        "Bare (in, out) matrices, named by the user.",
    ),
    Case(
        "scale-tensor",
        seeded(50, TensorScaleAttention, 24, 4),
        x(24, 4, inputs="qkv"),
        "scale-tensor",
        "The scale, sqrt(6), is a float32 tensor and stays one.",
    ),
    Case(
        "log-temperature",
        seeded(51, TemperatureAttention, 24, 3),
        x(24, 3),
        "temperature",
        "A learned temperature a head in place of the scale.",
    ),
    Case("lazy-d2l", seeded(52, LazyHeads, 24, 4), x(24, 4, inputs="qkv"), "lazy", "Lazy linear maps."),
    Case(
        "talking-heads",
        seeded(53, TalkingHeadAttn, 24, 4),
        x(24, 4),
        "talking-heads",
        "Heads are mixed before and after the softmax.",
    ),
    Case(
        "cvt-conv",
        seeded(54, ConvProjectionAttention, 24, 3),
        x(24, 3, positions=True),
        "conv-projection",
        "Depthwise convolutions over the tokens in the projections.",
    ),
    Case(
        "dropping",
        seeded(55, DroppingAttention, 24, 4),
        x(24, 4, training=True),
        "dropout",
        "Dropout on the probabilities in training.",
    ),
    Case(
        "mask-by-length",
        seeded(56, MaskByLengthAttention, 24, 4),
        x(24, 4, True),
        "mask-cache",
        "A mask kept for each length, of this object.",
    ),
    Case(
        "sink-token-window",
        seeded(57, SinkTokenWindow, 24, 3),
        x(24, 3, True),
        "sink-token",
        "A learned first token that all see, and a causal window.",
    ),
    Case(
        "perceiver-latents",
        seeded(58, LatentReader, 24, 5, 3),
        x(24, 3),
        "perceiver",
        "Five learned queries; five outputs, whatever the input's length.",
    ),
    Case(
        "isab",
        seeded(59, ISAB, 24, 3, 4),
        x(24, 3),
        "set-transformer",
        "Two attention blocks through induced points.",
    ),
    Case(
        "detr-query-pos",
        seeded(60, DetrSelfAttention, 24, 4),
        x(24, 4, batch_first=False, positions=True),
        "detr",
        "Positions join q and k, not v; residual and norm; sequence first.",
    ),
    Case(
        "transformer-xl",
        seeded(61, RelPartialLearnable, 3, 24, 8),
        x(24, 3, True, batch_first=False, positions=True),
        "transformer-xl",
        "Content and distance scores with two biases; sequence first.",
    ),
]
