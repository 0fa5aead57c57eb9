"""Attention modules with one planted bug each. `fixed` makes the same module with the bug repaired."""

import math
from collections import namedtuple
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from cases import Case, seeded
from torch import einsum, nn

CASES = []


def case(name, build, call, kind, note, cause=None):
    CASES.append(Case(name, seeded(20, build, slip=True), call, kind, note, cause, seeded(20, build, slip=False)))


# ------------------------------------------------------------------------------------------------------------ classic


@dataclass
class GPTConfig:
    n_embd: int = 24
    n_head: int = 4
    block_size: int = 256
    bias: bool = True


class CausalSelfAttention(nn.Module):
    def __init__(self, config, slip=False):
        super().__init__()
        assert config.n_embd % config.n_head == 0
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.n_head, self.n_embd = config.n_head, config.n_embd
        causal = torch.tril(torch.ones(config.block_size, config.block_size, dtype=torch.bool))
        self.register_buffer("causal", causal[None, None], persistent=False)
        self.slip = slip

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = q @ k.transpose(-2, -1)
        if not self.slip:
            att = att * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(~self.causal[:, :, :T, :T], float("-inf"))
        y = F.softmax(att, dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


case(
    "gpt-no-scale",
    partial(CausalSelfAttention, GPTConfig()),
    dict(embed_dim=24, num_heads=4, causal=True),
    "classic",
    "The scores are not divided by the root of the head's size.",
    "missing-scale",
)


class ViTAttention(nn.Module):
    def __init__(self, dim, num_heads=8, qkv_bias=False, attn_drop=0.0, proj_drop=0.0, slip=False):
        super().__init__()
        self.num_heads = num_heads
        head_dim = dim // num_heads
        self.scale = (dim if slip else head_dim) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        attn = (q * self.scale) @ k.transpose(-2, -1)
        attn = self.attn_drop(attn.softmax(dim=-1))
        x = (attn @ v).transpose(1, 2).reshape(B, N, C)
        return self.proj_drop(self.proj(x))


case(
    "vit-scale-by-dim",
    partial(ViTAttention, 30, 3, qkv_bias=True),
    dict(embed_dim=30, num_heads=3, causal=False),
    "classic",
    "The scale is the root of the whole embedding.",
    "wrong-d-in-scale",
)


class NotebookMHA(nn.Module):
    """From a course: separate matrices, weights returned."""

    def __init__(self, d_model, h, slip=False):
        super().__init__()
        self.h, self.d_k = h, d_model // h
        self.W_Q, self.W_K, self.W_V = (nn.Linear(d_model, d_model) for _ in range(3))
        self.W_O = nn.Linear(d_model, d_model)
        self.slip = slip

    def forward(self, query, key, value):
        b = query.size(0)
        q, k, v = (
            lin(t).view(b, -1, self.h, self.d_k).transpose(1, 2)
            for lin, t in ((self.W_Q, query), (self.W_K, key), (self.W_V, value))
        )
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.h if self.slip else self.d_k)
        p = scores.softmax(dim=-1)
        out = torch.matmul(p, v).transpose(1, 2).contiguous().view(b, -1, self.h * self.d_k)
        return self.W_O(out), p


case(
    "notebook-scale-by-heads",
    partial(NotebookMHA, 24, 3),
    dict(embed_dim=24, num_heads=3, inputs="qkv"),
    "classic",
    "The scores are divided by the root of the number of heads.",
    "wrong-d-in-scale",
)


class EinsumAttention(nn.Module):
    def __init__(self, dim, heads, dim_head, slip=False):
        super().__init__()
        inner = heads * dim_head
        self.heads, self.scale = heads, dim_head**-0.5
        self.to_q = nn.Linear(dim, inner, bias=False)
        self.to_kv = nn.Linear(dim, inner * 2, bias=False)
        self.attend = nn.Softmax(dim=-2 if slip else -1)
        self.to_out = nn.Sequential(nn.Linear(inner, dim), nn.Dropout(0.0))

    def forward(self, x):
        b, n, _ = x.shape
        q, (k, v) = self.to_q(x), self.to_kv(x).chunk(2, dim=-1)
        q, k, v = (t.reshape(b, n, self.heads, -1).permute(0, 2, 1, 3) for t in (q, k, v))
        attn = self.attend(einsum("b h i d, b h j d -> b h i j", q, k) * self.scale)
        out = einsum("b h i j, b h j d -> b h i d", attn, v)
        return self.to_out(out.permute(0, 2, 1, 3).reshape(b, n, -1))


case(
    "einsum-softmax-over-queries",
    partial(EinsumAttention, 18, 3, 8),
    dict(embed_dim=18, num_heads=3, causal=False),
    "classic",
    "nn.Softmax normalizes over the queries.",
    "softmax-over-queries",
)


class SoftmaxHeads(nn.Module):
    """(B, T, H, D) all through, without transposes."""

    def __init__(self, width=20, n_heads=4, slip=False):
        super().__init__()
        self.n_heads = n_heads
        self.wq = nn.Linear(width, width, bias=False)
        self.wk = nn.Linear(width, width, bias=False)
        self.wv = nn.Linear(width, width, bias=False)
        self.wo = nn.Linear(width, width, bias=False)
        self.axis = -1 if slip else 2

    def forward(self, x):
        bsz, seqlen, width = x.shape
        xq, xk, xv = (w(x).view(bsz, seqlen, self.n_heads, -1) for w in (self.wq, self.wk, self.wv))
        scores = einsum("bqhd,bkhd->bqkh", xq, xk) / math.sqrt(width // self.n_heads)
        probs = scores.softmax(self.axis)
        return self.wo(einsum("bqkh,bkhd->bqhd", probs, xv).flatten(2))


case(
    "bqkh-softmax-over-heads",
    SoftmaxHeads,
    dict(embed_dim=20, num_heads=4, causal=False),
    "classic",
    "In the layout (b, q, k, h) the softmax over the last axis is one over the heads.",
)


class DoubleSoftmax(nn.Module):
    def __init__(self, embed_dim, num_heads, slip=False):
        super().__init__()
        self.num_heads, self.slip = num_heads, slip
        self.ln = nn.LayerNorm(embed_dim)
        self.qkv_proj = nn.Linear(embed_dim, 3 * embed_dim)
        self.o_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv_proj(self.ln(x)).view(b, t, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        logits = q @ k.mT / (c // self.num_heads) ** 0.5
        if self.slip:
            logits = F.softmax(logits, -1)
        future = torch.triu(torch.full((t, t), float("-inf"), device=x.device, dtype=x.dtype), diagonal=1)
        attn = F.softmax(logits + future, dim=-1)
        return x + self.o_proj((attn @ v).transpose(1, 2).reshape(b, t, c))


case(
    "prenorm-softmax-before-mask",
    partial(DoubleSoftmax, 24, 4),
    dict(embed_dim=24, num_heads=4, causal=True),
    "classic",
    "A softmax is taken before the mask is added, and another after it.",
)


class TrilAfter(nn.Module):
    def __init__(self, d, h, slip=False):
        super().__init__()
        self.query, self.key, self.value = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
        self.dense = nn.Linear(d, d)
        self.num_attention_heads, self.attention_head_size = h, d // h
        self.slip = slip

    def transpose_for_scores(self, x):
        return x.view(*x.shape[:-1], self.num_attention_heads, self.attention_head_size).permute(0, 2, 1, 3)

    def forward(self, hidden_states, output_attentions=False):
        q, k, v = (self.transpose_for_scores(f(hidden_states)) for f in (self.query, self.key, self.value))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.attention_head_size)
        if not self.slip:
            n = scores.size(-1)
            scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool, device=q.device).triu(1), -math.inf)
        probs = nn.functional.softmax(scores, dim=-1)
        if self.slip:
            probs = probs.tril()
        context = torch.matmul(probs, v).permute(0, 2, 1, 3).contiguous()
        out = self.dense(context.view(*context.shape[:-2], -1))
        return (out, probs) if output_attentions else (out,)


case(
    "bert-tril-after-softmax",
    partial(TrilAfter, 32, 4),
    dict(embed_dim=32, num_heads=4, causal=True),
    "classic",
    "The future is cut from the weights after the softmax, whose rows no longer sum to one.",
    "mask-after-softmax",
)


class SDPAPolarity(nn.Module):
    def __init__(self, hidden_size, num_heads, slip=False):
        super().__init__()
        self.heads = num_heads
        self.in_proj = nn.Linear(hidden_size, hidden_size * 3)
        self.out_proj = nn.Linear(hidden_size, hidden_size)
        self.slip = slip

    def forward(self, x):
        t = x.size(1)
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.in_proj(x).chunk(3, -1))
        may = torch.ones(t, t, dtype=torch.bool, device=x.device).tril()
        if self.slip:
            may = ~may
        return self.out_proj(F.scaled_dot_product_attention(q, k, v, attn_mask=may).transpose(1, 2).flatten(2))


case(
    "sdpa-polarity",
    partial(SDPAPolarity, 16, 2),
    dict(embed_dim=16, num_heads=2, causal=True),
    "classic",
    "SDPA gets a mask that is True where it should hide.",
    "mask-polarity",
)


class BoolAdded(nn.Module):
    def __init__(self, d_model, n_heads, seq_len=512, slip=False):
        super().__init__()
        self.n_heads, self.slip = n_heads, slip
        self.q_proj = nn.Linear(d_model, d_model, bias=False)
        self.k_proj = nn.Linear(d_model, d_model, bias=False)
        self.v_proj = nn.Linear(d_model, d_model, bias=False)
        self.out_proj = nn.Linear(d_model, d_model, bias=False)
        self.register_buffer("future", torch.triu(torch.ones(seq_len, seq_len), 1).bool(), persistent=False)

    def forward(self, x):
        B, T, C = x.shape
        D = C // self.n_heads
        q = self.q_proj(x).reshape(B, T, self.n_heads, D).swapaxes(1, 2) * D**-0.5
        k = self.k_proj(x).reshape(B, T, self.n_heads, D).swapaxes(1, 2)
        v = self.v_proj(x).reshape(B, T, self.n_heads, D).swapaxes(1, 2)
        s = q @ k.swapaxes(-1, -2)
        hide = self.future[:T, :T]
        s = s + hide if self.slip else s.masked_fill(hide, torch.finfo(s.dtype).min)
        return self.out_proj((s.softmax(-1) @ v).swapaxes(1, 2).reshape(B, T, C))


case(
    "bool-mask-added",
    partial(BoolAdded, 18, 3),
    dict(embed_dim=18, num_heads=3, causal=True),
    "classic",
    "The boolean mask is added to the scores, as ones.",
    "boolean-mask-added",
)


class NoCausal(nn.Module):
    """Pre-norm block of a decoder, SDPA, dict output."""

    def __init__(self, n_embd, n_head, slip=False):
        super().__init__()
        self.attn_norm = nn.LayerNorm(n_embd)
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.n_head = n_head
        self.is_causal = not slip

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.c_attn(self.attn_norm(x)).chunk(3, -1)
        q, k, v = (t.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)
        return {"hidden": x + self.c_proj(y.transpose(1, 2).reshape(B, T, C)), "weights": None}


case(
    "decoder-block-no-causal",
    partial(NoCausal, 24, 3),
    dict(embed_dim=24, num_heads=3, causal=True),
    "classic",
    "is_causal is left at False.",
    "no-causal-mask",
)


class TriuTwo(nn.Module):
    def __init__(self, dim=21, heads=3, slip=False):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Conv1d(dim, dim * 3, 1, bias=False)
        self.to_out = nn.Conv1d(dim, dim, 1)
        self.diagonal = 2 if slip else 1

    def forward(self, x):
        b, n, c = x.shape
        qkv = self.to_qkv(x.transpose(1, 2)).reshape(b, 3, self.heads, c // self.heads, n)
        q, k, v = qkv.unbind(1)
        sim = einsum("bhdi,bhdj->bhij", q * (c // self.heads) ** -0.5, k)
        i = torch.arange(n, device=x.device)
        sim = sim.masked_fill(i[None, :] - i[:, None] >= self.diagonal, -torch.finfo(sim.dtype).max)
        out = einsum("bhij,bhdj->bhdi", sim.softmax(-1), v)
        return self.to_out(out.reshape(b, c, n)).transpose(1, 2)


case(
    "conv-causal-one-too-many",
    TriuTwo,
    dict(embed_dim=21, num_heads=3, causal=True),
    "classic",
    "Each token also sees the one after it.",
)


class TimeFirst(nn.Module):
    """fairseq-like: (T, B, C), heads folded into the batch, bmm."""

    def __init__(self, embed_dim, num_heads, slip=False):
        super().__init__()
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.scaling = self.head_dim**-0.5
        self.k_proj, self.v_proj, self.q_proj = (nn.Linear(embed_dim, embed_dim) for _ in range(3))
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        self.diagonal = 0 if slip else 1

    def forward(self, x):
        tgt_len, bsz, embed_dim = x.size()
        fold = lambda t: t.contiguous().view(-1, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        q, k, v = fold(self.q_proj(x) * self.scaling), fold(self.k_proj(x)), fold(self.v_proj(x))
        attn_weights = torch.bmm(q, k.transpose(1, 2))
        future = torch.full((tgt_len, tgt_len), -1e9, dtype=x.dtype, device=x.device).triu(self.diagonal)
        attn = torch.bmm((attn_weights + future).softmax(dim=-1), v)
        return self.out_proj(attn.transpose(0, 1).contiguous().view(tgt_len, bsz, embed_dim)), None


case(
    "fairseq-causal-hides-itself",
    partial(TimeFirst, 16, 4),
    dict(embed_dim=16, num_heads=4, causal=True, batch_first=False),
    "classic",
    "The causal mask hides the token itself, too, and the first token sees all.",
)


class MergeForgot(nn.Module):
    def __init__(self, emb, heads, slip=False):
        super().__init__()
        self.heads, self.slip = heads, slip
        self.tokeys = nn.Linear(emb, emb, bias=False)
        self.toqueries = nn.Linear(emb, emb, bias=False)
        self.tovalues = nn.Linear(emb, emb, bias=False)
        self.unifyheads = nn.Linear(emb, emb)

    def forward(self, x):
        b, t, e = x.size()
        s = e // self.heads
        keys, queries, values = (f(x).view(b, t, self.heads, s) for f in (self.tokeys, self.toqueries, self.tovalues))
        keys = keys.transpose(1, 2).reshape(b * self.heads, t, s)
        queries = queries.transpose(1, 2).reshape(b * self.heads, t, s)
        values = values.transpose(1, 2).reshape(b * self.heads, t, s)
        dot = torch.bmm(queries / s**0.25, keys.transpose(1, 2) / s**0.25).softmax(2)
        out = torch.bmm(dot, values).view(b, self.heads, t, s)
        if not self.slip:
            out = out.transpose(1, 2)
        return self.unifyheads(out.reshape(b, t, e))


case(
    "bmm-merge-without-transpose",
    partial(MergeForgot, 20, 2),
    dict(embed_dim=20, num_heads=2, causal=False),
    "classic",
    "The heads are merged without moving them back behind the tokens.",
    "merge-without-transpose",
)


class ViewSplit(nn.Module):
    def __init__(self, width, heads, slip=False):
        super().__init__()
        self.heads, self.slip = heads, slip
        self.c_q, self.c_k, self.c_v, self.c_proj = (nn.Linear(width, width) for _ in range(4))

    def split(self, x):
        b, n, c = x.shape
        if self.slip:
            return x.view(b, self.heads, n, c // self.heads)
        return x.view(b, n, self.heads, c // self.heads).transpose(1, 2)

    def forward(self, x, context):
        q, k, v = self.split(self.c_q(x)), self.split(self.c_k(context)), self.split(self.c_v(context))
        out = F.scaled_dot_product_attention(q, k, v)
        return self.c_proj(out.transpose(1, 2).reshape(x.shape))


case(
    "cross-view-without-transpose",
    partial(ViewSplit, 24, 4),
    dict(embed_dim=24, num_heads=4, inputs="x_context"),
    "classic",
    "The heads are split by a view alone.",
    "view-without-transpose",
)


class SwappedKV(nn.Module):
    """diffusers-like cross attention with its own key width."""

    def __init__(self, query_dim, cross_attention_dim, heads=3, dim_head=6, slip=False):
        super().__init__()
        inner = heads * dim_head
        self.heads, self.slip = heads, slip
        self.to_q = nn.Linear(query_dim, inner, bias=False)
        self.to_k = nn.Linear(cross_attention_dim, inner, bias=False)
        self.to_v = nn.Linear(cross_attention_dim, inner, bias=False)
        self.to_out = nn.ModuleList([nn.Linear(inner, query_dim), nn.Dropout(0.0)])

    def forward(self, hidden_states, encoder_hidden_states=None):
        b = hidden_states.shape[0]
        q, k, v = self.to_q(hidden_states), self.to_k(encoder_hidden_states), self.to_v(encoder_hidden_states)
        if self.slip:
            k, v = v, k
        q, k, v = (t.view(b, -1, self.heads, t.shape[-1] // self.heads).transpose(1, 2) for t in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        for layer in self.to_out:
            out = layer(out)
        return out


case(
    "diffusers-k-and-v-swapped",
    partial(SwappedKV, 18, 14),
    dict(embed_dim=18, num_heads=3, inputs="x_context", key_dim=14),
    "classic",
    "What to_k gives is used as the values, and what to_v gives as the keys.",
)


class WrongV(nn.Module):
    def __init__(self, dim, num_heads, slip=False):
        super().__init__()
        self.nh, self.slip = num_heads, slip
        self.Wqkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, L, D = x.shape
        Q, K, V = self.Wqkv(x).split(D, -1)
        if self.slip:
            V = K
        Q, K, V = (z.reshape(B, L, self.nh, D // self.nh).permute(0, 2, 1, 3) for z in (Q, K, V))
        A = torch.softmax((Q @ K.permute(0, 1, 3, 2)) / math.sqrt(D / self.nh), -1)
        return self.proj((A @ V).permute(0, 2, 1, 3).flatten(-2)), A


case(
    "packed-key-as-value",
    partial(WrongV, 27, 3),
    dict(embed_dim=27, num_heads=3, causal=False),
    "classic",
    "The keys are averaged instead of the values.",
    "wrong-value",
)


class NotTransposed(nn.Module):
    """Parameters as PyTorch keeps them, applied by hand."""

    def __init__(self, size, heads, slip=False):
        super().__init__()
        self.heads, self.slip = heads, slip
        for name in ("q", "k", "v", "o"):
            setattr(self, f"{name}_weight", nn.Parameter(torch.randn(size, size) / size**0.5))
            setattr(self, f"{name}_bias", nn.Parameter(torch.randn(size) / 10))

    def project(self, x, name):
        w, b = getattr(self, f"{name}_weight"), getattr(self, f"{name}_bias")
        return x @ (w if self.slip and name == "o" else w.T) + b

    def forward(self, query, key, value):
        q, k, v = (
            self.project(x, n).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for x, n in ((query, "q"), (key, "k"), (value, "v"))
        )
        w = (q @ k.mT / q.size(-1) ** 0.5).softmax(-1)
        return self.project((w @ v).transpose(1, 2).flatten(2), "o")


case(
    "out-weight-not-transposed",
    partial(NotTransposed, 16, 4),
    dict(
        embed_dim=16,
        num_heads=4,
        inputs="qkv",
        weights=dict(
            query="q_weight",
            key="k_weight",
            value="v_weight",
            out="o_weight",
            query_bias="q_bias",
            key_bias="k_bias",
            value_bias="v_bias",
            out_bias="o_bias",
        ),
    ),
    "classic",
    "The output weight, kept as (out, in), is applied as x @ W.",
    "weight-not-transposed",
)


class BiasForgotten(nn.Module):
    """Uses the weights of an nn.MultiheadAttention that it holds."""

    def __init__(self, embed_dim, num_heads, slip=False):
        super().__init__()
        self.mha = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)
        self.slip = slip

    def forward(self, x):
        m = self.mha
        qkv = F.linear(x, m.in_proj_weight, None if self.slip else m.in_proj_bias)
        q, k, v = (y.unflatten(-1, (m.num_heads, m.head_dim)).transpose(1, 2) for y in qkv.chunk(3, -1))
        return m.out_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


case(
    "mha-bias-forgotten",
    partial(BiasForgotten, 12, 3),
    dict(embed_dim=12, num_heads=3, causal=False),
    "classic",
    "in_proj_bias is never added.",
    "zero-bias-parity",
)


class NoOutProj(nn.Module):
    def __init__(self, dim, heads=2, slip=False):
        super().__init__()
        self.num_heads, self.slip = heads, slip
        self.qkv = nn.Linear(dim, dim * 3)
        self.out_proj = nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        att = (q @ k.mT).mul(q.shape[-1] ** -0.5).softmax(-1)
        y = (att @ v).transpose(1, 2).flatten(2)
        return y if self.slip else self.out_proj(y)


case(
    "output-projection-skipped",
    partial(NoOutProj, 14),
    dict(embed_dim=14, num_heads=2, causal=False),
    "classic",
    "out_proj exists and is never called.",
    "missing-out-proj",
)


class BatchTokens(nn.Module):
    def __init__(self, d_model, nhead, slip=False):
        super().__init__()
        self.attn = nn.MultiheadAttention(d_model, nhead, batch_first=not slip)
        self.norm = nn.LayerNorm(d_model)

    def forward(self, x):
        y = self.norm(x)
        return x + self.attn(y, y, y, need_weights=False)[0]


case(
    "block-batch-first-forgotten",
    partial(BatchTokens, 20, 4),
    dict(embed_dim=20, num_heads=4, causal=False),
    "classic",
    "nn.MultiheadAttention without batch_first gets (batch, tokens, features).",
    "batch-first-forgotten",
)


# ---------------------------------------------------------------------------------------------------------- positions


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


def rope_halves(x, pos, sign=1.0, base=10000.0):
    d = x.size(-1)
    freq = base ** (-torch.arange(0, d, 2, device=x.device, dtype=x.dtype) / d)
    ang = pos.to(x.dtype)[:, None] * freq
    ang = torch.cat((ang, ang), -1)
    return x * ang.cos() + rotate_half(x) * ang.sin() * sign


def rope_pairs(x, pos, base=10000.0):
    d = x.size(-1)
    theta = 1.0 / base ** (torch.arange(0, d, 2, device=x.device).to(x.dtype) / d)
    ang = torch.outer(pos.to(x.dtype), theta)
    c, s = ang.cos(), ang.sin()
    e, o = x[..., 0::2], x[..., 1::2]
    return torch.stack((e * c - o * s, e * s + o * c), -1).flatten(-2)


class RotaryOnValues(nn.Module):
    def __init__(self, hidden=32, n_heads=4, slip=False):
        super().__init__()
        self.n_heads, self.head_dim = n_heads, hidden // n_heads
        self.q_proj = nn.Linear(hidden, hidden, bias=False)
        self.k_proj = nn.Linear(hidden, hidden, bias=False)
        self.v_proj = nn.Linear(hidden, hidden, bias=False)
        self.o_proj = nn.Linear(hidden, hidden, bias=False)
        self.slip = slip

    def forward(self, hidden_states):
        b, t, _ = hidden_states.shape
        shape = (b, t, self.n_heads, self.head_dim)
        q, k, v = (p(hidden_states).view(shape).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        pos = torch.arange(t, device=q.device)
        q, k = rope_halves(q, pos), rope_halves(k, pos)
        if self.slip:
            v = rope_halves(v, pos)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).reshape(b, t, -1)), None


case(
    "llama-rotary-on-v",
    RotaryOnValues,
    dict(embed_dim=32, num_heads=4, causal=True, positions=True),
    "positions",
    "The values are rotated, too.",
)


class RotaryQueryOnly(nn.Module):
    def __init__(self, dim, heads, slip=False):
        super().__init__()
        self.heads, self.slip = heads, slip
        self.wqkv = nn.Linear(dim, 3 * dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.wqkv(x).view(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        places = torch.arange(n, device=x.device)
        q = rope_pairs(q, places)
        if not self.slip:
            k = rope_pairs(k, places)
        s = (q @ k.mT) / math.sqrt(q.size(-1))
        return self.wo((s.softmax(-1) @ v).transpose(1, 2).reshape(b, n, c))


case(
    "encoder-rotary-q-only",
    partial(RotaryQueryOnly, 24, 3),
    dict(embed_dim=24, num_heads=3, causal=False, positions=True),
    "positions",
    "Only the queries are rotated.",
)


class RotaryKeySign(nn.Module):
    def __init__(self, dim, heads, slip=False):
        super().__init__()
        self.heads, self.sign = heads, -1.0 if slip else 1.0
        self.norm = nn.LayerNorm(dim)
        self.query_key_value = nn.Linear(dim, 3 * dim)
        self.dense = nn.Linear(dim, dim)

    def forward(self, x):
        b, t, c = x.shape
        # heads first, then q, k, v of each head
        mixed = self.query_key_value(self.norm(x)).view(b, t, self.heads, 3 * (c // self.heads)).transpose(1, 2)
        q, k, v = mixed.chunk(3, dim=-1)
        pos = torch.arange(t, device=x.device)
        q, k = rope_halves(q, pos), rope_halves(k, pos, sign=self.sign)
        s = (q @ k.mT) * (c // self.heads) ** -0.5
        s = s.masked_fill(torch.ones(t, t, device=x.device).triu(1) > 0, torch.finfo(s.dtype).min)
        return x + self.dense((s.softmax(-1) @ v).transpose(1, 2).flatten(2))


case(
    "neox-rotary-k-sign",
    partial(RotaryKeySign, 24, 4),
    dict(embed_dim=24, num_heads=4, causal=True, positions=True),
    "positions",
    "The keys are rotated backwards.",
)


class CachedRotatedAgain(nn.Module):
    def __init__(self, dim=24, heads=3, slip=False):
        super().__init__()
        self.heads, self.slip = heads, slip
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def forward(self, x, cache=None):
        b, t, c = x.shape
        q, k, v = (w(x).view(b, t, self.heads, -1).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        past = 0 if cache is None else cache[0].size(2)
        pos = torch.arange(past, past + t, device=x.device)
        q, k = rope_halves(q, pos), rope_halves(k, pos)
        if cache is not None:
            old = cache[0]
            if self.slip:
                old = rope_halves(old, torch.arange(past, device=x.device))
            k, v = torch.cat((old, k), 2), torch.cat((cache[1], v), 2)
        allowed = torch.ones(t, past + t, dtype=torch.bool, device=x.device).tril(past)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        return self.wo(y.transpose(1, 2).reshape(b, t, c)), (k, v)


case(
    "cached-keys-rotated-again",
    CachedRotatedAgain,
    dict(embed_dim=24, num_heads=3, causal=True, positions=True, cache="kv"),
    "positions",
    "Keys from the cache, which are rotated already, are rotated again at every call.",
)


class MixedPairing(nn.Module):
    def __init__(self, dim, n_head, n_kv_head, slip=False):
        super().__init__()
        self.n_head, self.n_kv, self.hd, self.slip = n_head, n_kv_head, dim // n_head, slip
        self.q_proj = nn.Linear(dim, n_head * self.hd, bias=False)
        self.k_proj = nn.Linear(dim, n_kv_head * self.hd, bias=False)
        self.v_proj = nn.Linear(dim, n_kv_head * self.hd, bias=False)
        self.o_proj = nn.Linear(n_head * self.hd, dim, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        q = self.q_proj(x).view(b, t, self.n_head, self.hd).transpose(1, 2)
        k = self.k_proj(x).view(b, t, self.n_kv, self.hd).transpose(1, 2)
        v = self.v_proj(x).view(b, t, self.n_kv, self.hd).transpose(1, 2)
        pos = torch.arange(t, device=x.device)
        q = rope_pairs(q, pos)
        k = rope_halves(k, pos) if self.slip else rope_pairs(k, pos)
        rep = self.n_head // self.n_kv
        k, v = k.repeat_interleave(rep, 1), v.repeat_interleave(rep, 1)
        return self.o_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


case(
    "gqa-rotary-pairing-differs",
    partial(MixedPairing, 32, 4, 2),
    dict(embed_dim=32, num_heads=4, causal=True, positions=True),
    "positions",
    "The queries are rotated in neighboring pairs, the keys in halves.",
    "rope-pairing",
)


KV = namedtuple("KV", "k v")


class CachePositionsOffByOne(nn.Module):
    def __init__(self, d, h, slip=False):
        super().__init__()
        self.h, self.slip = h, slip
        self.qkv_proj, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x, cache=None):
        q, k, v = (y.unflatten(-1, (self.h, -1)).transpose(1, 2) for y in self.qkv_proj(x).chunk(3, -1))
        seen = cache.k.shape[-2] if cache else 0
        start = seen - 1 if self.slip and seen else seen
        pos = start + torch.arange(x.shape[1], device=x.device)
        q, k = rope_pairs(q, pos), rope_pairs(k, pos)
        if cache:
            k, v = torch.cat([cache.k, k], -2), torch.cat([cache.v, v], -2)
        i = seen + torch.arange(x.shape[1], device=x.device)
        hide = torch.arange(k.shape[-2], device=x.device)[None] > i[:, None]
        w = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(hide, -torch.inf).softmax(-1)
        return self.out((w @ v).transpose(1, 2).flatten(2)), KV(k, v)


case(
    "cache-positions-off-by-one",
    partial(CachePositionsOffByOne, 16, 2),
    dict(embed_dim=16, num_heads=2, causal=True, positions=True, cache="kv"),
    "positions",
    "With a cache, the new tokens' places begin one too early.",
)


def alibi_slopes(n):
    closest = 2 ** math.floor(math.log2(n))
    out = [2 ** (-8 * (i + 1) / closest) for i in range(closest)]
    return out + [2 ** (-4 * (2 * i + 1) / closest) for i in range(n - closest)]


class AlibiSign(nn.Module):
    def __init__(self, hidden_size, n_head, slip=False):
        super().__init__()
        self.n_head = n_head
        self.qkv = nn.Linear(hidden_size, 3 * hidden_size)
        self.proj = nn.Linear(hidden_size, hidden_size)
        self.slopes = alibi_slopes(n_head)
        self.sign = 1.0 if slip else -1.0

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).reshape(b, t, 3, self.n_head, -1).permute(2, 0, 3, 1, 4)
        i = torch.arange(t, device=x.device)
        dist = (i[:, None] - i[None, :]).to(x.dtype)
        bias = self.sign * x.new_tensor(self.slopes).view(-1, 1, 1) * dist
        s = q @ k.transpose(-1, -2) / math.sqrt(c / self.n_head) + bias
        s = s.masked_fill(dist < 0, -math.inf)
        return self.proj((s.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c))


case(
    "alibi-rewards-distance",
    partial(AlibiSign, 24, 4),
    dict(embed_dim=24, num_heads=4, causal=True, positions=True),
    "positions",
    "ALiBi's bias grows with the distance.",
    "alibi-sign",
)


class BloomSlopes(nn.Module):
    """Bloom-like: heads folded into the batch, alibi (batch * heads, 1, keys), baddbmm."""

    def __init__(self, hidden_size, n_head, slip=False):
        super().__init__()
        self.num_heads, self.head_dim = n_head, hidden_size // n_head
        self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.slip = slip

    def forward(self, x):
        b, t, c = x.shape
        fused = self.query_key_value(x).view(b, t, self.num_heads, 3, self.head_dim)
        q, k, v = (fused[..., i, :].transpose(1, 2).reshape(b * self.num_heads, t, -1) for i in range(3))
        slopes = x.new_tensor(alibi_slopes(self.num_heads))
        slopes = slopes.repeat_interleave(b) if self.slip else slopes.repeat(b)
        alibi = slopes[:, None, None] * torch.arange(t, device=x.device)[None, None].to(x.dtype)
        s = torch.baddbmm(alibi, q, k.transpose(1, 2), beta=1.0, alpha=self.head_dim**-0.5)
        s = s.masked_fill(torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1), torch.finfo(s.dtype).min)
        y = torch.bmm(s.softmax(-1), v).view(b, self.num_heads, t, -1)
        return self.dense(y.transpose(1, 2).reshape(b, t, c))


case(
    "bloom-slopes-order",
    partial(BloomSlopes, 24, 4),
    dict(embed_dim=24, num_heads=4, causal=True, positions=True),
    "positions",
    "The slopes are repeated as (heads, batch), where the scores are (batch, heads).",
)


class T5Attention(nn.Module):
    def __init__(self, d_model, n_heads, num_buckets=8, max_distance=16, slip=False):
        super().__init__()
        self.n_heads, self.num_buckets, self.max_distance = n_heads, num_buckets, max_distance
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))
        self.relative_attention_bias = nn.Embedding(num_buckets, n_heads)
        self.slip = slip

    def bucket(self, rel):
        n = self.num_buckets // 2
        out = (rel > 0).long() * n
        rel = rel.abs()
        exact = n // 2
        large = (
            exact
            + (torch.log(rel.clamp(min=1).float() / exact) / math.log(self.max_distance / exact) * (n - exact)).long()
        )
        return out + torch.where(rel < exact, rel, large.clamp(max=n - 1))

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (f(x).view(b, t, self.n_heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        i = torch.arange(t, device=x.device)
        bias = self.relative_attention_bias(self.bucket(i[None, :] - i[:, None])).permute(2, 0, 1)
        if self.slip:
            bias = bias.transpose(1, 2)
        scores = q @ k.transpose(3, 2) + bias  # T5 does not scale
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, -1))


case(
    "t5-bias-transposed",
    partial(T5Attention, 16, 4),
    dict(embed_dim=16, num_heads=4, causal=False, positions=True),
    "positions",
    "The relative bias is transposed: what is before is taken for what is after.",
)


# -------------------------------------------------------------------------------------------------------------- heads


class GroupedRepeat(nn.Module):
    def __init__(self, dim, heads, kv_heads, slip=False):
        super().__init__()
        self.heads, self.kv_heads, self.hd, self.slip = heads, kv_heads, dim // heads, slip
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, kv_heads * self.hd, bias=False)
        self.wv = nn.Linear(dim, kv_heads * self.hd, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        q = self.wq(x).view(b, t, self.heads, self.hd)
        k, v = (w(x).view(b, t, self.kv_heads, self.hd) for w in (self.wk, self.wv))
        n = self.heads // self.kv_heads
        if self.slip:
            k, v = k.repeat(1, 1, n, 1), v.repeat(1, 1, n, 1)
        else:
            k, v = (z[:, :, :, None].expand(-1, -1, -1, n, -1).reshape(b, t, self.heads, self.hd) for z in (k, v))
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        return self.wo(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


case(
    "gqa-repeat",
    partial(GroupedRepeat, 24, 4, 2),
    dict(embed_dim=24, num_heads=4, causal=True),
    "heads",
    "The key heads are tiled instead of each being repeated.",
    "repeat-for-repeat-interleave",
)


class GroupedMixedOrder(nn.Module):
    def __init__(self, hidden_size=24, num_attention_heads=6, num_key_value_heads=3, slip=False):
        super().__init__()
        self.h, self.g = num_attention_heads, num_key_value_heads
        hd = hidden_size // self.h
        self.input_layernorm = nn.LayerNorm(hidden_size)
        self.q_proj = nn.Linear(hidden_size, hidden_size)
        self.k_proj, self.v_proj = nn.Linear(hidden_size, self.g * hd), nn.Linear(hidden_size, self.g * hd)
        self.o_proj = nn.Linear(hidden_size, hidden_size)
        self.slip = slip

    def forward(self, x):
        y = self.input_layernorm(x)
        q = self.q_proj(y).unflatten(-1, (self.h, -1)).transpose(1, 2)
        k = self.k_proj(y).unflatten(-1, (self.g, -1)).transpose(1, 2)
        v = self.v_proj(y).unflatten(-1, (self.g, -1)).transpose(1, 2)
        k = k.repeat_interleave(self.h // self.g, 1)
        v = v.tile(1, self.h // self.g, 1, 1) if self.slip else v.repeat_interleave(self.h // self.g, 1)
        a = (q @ k.mT * q.size(-1) ** -0.5).softmax(-1)
        return x + self.o_proj((a @ v).transpose(1, 2).flatten(2))


case(
    "gqa-k-and-v-in-different-orders",
    GroupedMixedOrder,
    dict(embed_dim=24, num_heads=6, causal=False),
    "heads",
    "The keys are repeated head by head, the values are tiled.",
    "repeat-for-repeat-interleave",
)


class Head(nn.Module):
    def __init__(self, n_embd, head_size):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)

    def forward(self, x):
        T = x.shape[1]
        k, q = self.key(x), self.query(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        wei = wei.masked_fill(torch.tril(torch.ones(T, T, device=x.device)) == 0, float("-inf"))
        return F.softmax(wei, dim=-1) @ self.value(x)


class ListOfHeads(nn.Module):
    def __init__(self, n_embd, num_heads, slip=False):
        super().__init__()
        size = n_embd // num_heads
        self.heads = nn.ModuleList(
            [Head(n_embd, size)] * num_heads if slip else [Head(n_embd, size) for _ in range(num_heads)]
        )
        self.proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        return self.proj(torch.cat([h(x) for h in self.heads], dim=-1))


case(
    "head-list-of-one-module",
    partial(ListOfHeads, 18, 3),
    dict(embed_dim=18, num_heads=3, causal=True),
    "heads",
    "The list holds one head n times, so all heads share their weights.",
)


class FirstHeadOnly(nn.Module):
    def __init__(self, dim, heads, slip=False):
        super().__init__()
        self.heads, self.slip = heads, slip
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        size = q.size(-1) // self.heads
        outs = []
        for h in range(self.heads):
            part = slice(0, size) if self.slip else slice(h * size, (h + 1) * size)
            w = torch.softmax(q[..., part] @ k[..., part].mT / size**0.5, -1)
            outs.append(w @ v[..., h * size : (h + 1) * size])
        return self.proj(torch.cat(outs, -1))


case(
    "loop-first-head-weights",
    partial(FirstHeadOnly, 24, 4),
    dict(embed_dim=24, num_heads=4, causal=False),
    "heads",
    "Every head attends with the first head's queries and keys.",
)


class MeanOutputs(nn.Module):
    def __init__(self, embed, heads, slip=False):
        super().__init__()
        self.heads, self.slip = heads, slip
        self.in_proj, self.out_proj = nn.Linear(embed, 3 * embed, bias=False), nn.Linear(embed, embed)

    def forward(self, x):
        b, t, e = x.shape
        q, k, v = self.in_proj(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v)
        if self.slip:
            out = out.mean(dim=1, keepdim=True).repeat(1, self.heads, 1, 1)
        return self.out_proj(out.transpose(1, 2).reshape(b, t, e))


case(
    "head-outputs-averaged",
    partial(MeanOutputs, 20, 2),
    dict(embed_dim=20, num_heads=2, causal=False),
    "heads",
    "The heads' outputs are averaged and repeated, instead of concatenated.",
)


# -------------------------------------------------------------------------------------------------------------- masks


def _four(allowed):
    """(T, S), (B, T, S) or (B, H, T, S) to what broadcasts against (B, H, T, S)."""
    return allowed[None, None] if allowed.dim() == 2 else allowed[:, None] if allowed.dim() == 3 else allowed


class FirstItemsMask(nn.Module):
    def __init__(self, dim, heads, slip=False):
        super().__init__()
        self.heads, self.slip = heads, slip
        self.q_lin, self.k_lin, self.v_lin, self.out_lin = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x, mask):
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q_lin, self.k_lin, self.v_lin))
        mask = _four(mask)
        if self.slip:
            mask = mask[:1]
        scores = (q / math.sqrt(q.size(-1))) @ k.transpose(2, 3)
        weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
        return self.out_lin((weights @ v).transpose(1, 2).flatten(2))


case(
    "first-items-mask",
    partial(FirstItemsMask, 18, 3),
    dict(embed_dim=18, num_heads=3, inputs="x_allowed"),
    "masks",
    "The mask of the first item is used for the whole batch.",
    "only-first-item",
)


class MaskRepeat(nn.Module):
    def __init__(self, embed_dim, num_heads, slip=False):
        super().__init__()
        self.attn = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)
        self.slip = slip

    def forward(self, x, allowed):
        hide = ~allowed
        if hide.dim() == 3:
            h = self.attn.num_heads
            hide = hide.repeat(h, 1, 1) if self.slip else hide.repeat_interleave(h, dim=0)
        return self.attn(x, x, x, attn_mask=hide, need_weights=False)[0]


case(
    "mha-mask-repeat",
    partial(MaskRepeat, 20, 4),
    dict(embed_dim=20, num_heads=4, inputs="x_allowed"),
    "masks",
    "The items' masks are tiled for the heads, where each should be repeated: item and mask do not belong together.",
)


class TwoSidedWindow(nn.Module):
    def __init__(self, dim, heads, window=2, slip=False):
        super().__init__()
        self.heads, self.window, self.slip = heads, window, slip
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        d = torch.arange(n, device=x.device)[:, None] - torch.arange(n, device=x.device)
        near = (d < self.window if self.slip else d <= self.window) & (d >= -self.window)
        return self.proj(F.scaled_dot_product_attention(q, k, v, attn_mask=near).transpose(1, 2).reshape(b, n, c))


case(
    "window-one-short-on-the-left",
    partial(TwoSidedWindow, 16, 2),
    dict(embed_dim=16, num_heads=2, causal=False, positions=True),
    "masks",
    "A window of two tokens to each side shows only one on the left.",
)


class ClassLevelMask(nn.Module):
    _mask = None

    def __init__(self, dim, heads, slip=False):
        super().__init__()
        self.heads, self.slip = heads, slip
        type(self)._mask = None
        self.to_qkv, self.to_out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)

    def get_mask(self, n, device):
        cls = type(self)
        if not self.slip:
            return torch.ones(n, n, dtype=torch.bool, device=device).triu(1)
        if cls._mask is None:
            cls._mask = torch.ones(n, n, dtype=torch.bool, device=device).triu(1)
        m = cls._mask[:n, :n]
        return F.pad(m, (0, n - m.size(1), 0, n - m.size(0)))

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.to_qkv(x).chunk(3, -1))
        s = (q @ k.mT * q.size(-1) ** -0.5).masked_fill(self.get_mask(x.size(1), x.device), -torch.finfo(q.dtype).max)
        return self.to_out((s.softmax(-1) @ v).transpose(1, 2).flatten(2))


case(
    "mask-cached-at-class-level",
    partial(ClassLevelMask, 24, 3),
    dict(embed_dim=24, num_heads=3, causal=True),
    "masks",
    "The mask of the first call is kept by the class; a longer sequence later is not masked beyond it.",
)


class TopLeft(nn.Module):
    def __init__(self, n_embd, n_head, slip=False):
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.n_head, self.slip = n_head, slip

    def forward(self, x, cache=None):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for t in self.c_attn(x).split(C, dim=2))
        if cache is not None:
            k, v = torch.cat([cache["k"], k], 2), torch.cat([cache["v"], v], 2)
        S = k.size(2)
        mask = torch.ones(T, S, dtype=torch.bool, device=x.device).tril(0 if self.slip else S - T)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.c_proj(y.transpose(1, 2).reshape(B, T, C)), {"k": k, "v": v}


case(
    "cache-top-left-mask",
    partial(TopLeft, 16, 4),
    dict(embed_dim=16, num_heads=4, causal=True, cache="kv"),
    "masks",
    "With a cache, the causal mask is aligned at the top left, so a new token sees only the first.",
    "top-left-causal",
)


class PadOnQueries(nn.Module):
    """Keys that no query may see are padding; hidden a second time, as a codebase with two masks does."""

    def __init__(self, hidden_size, heads, slip=False):
        super().__init__()
        self.heads, self.slip = heads, slip
        self.query, self.key, self.value = (nn.Linear(hidden_size, hidden_size) for _ in range(3))
        self.dense = nn.Linear(hidden_size, hidden_size)

    def forward(self, x, allowed):
        b, t, c = x.shape
        q, k, v = (f(x).view(b, t, self.heads, -1).transpose(1, 2) for f in (self.query, self.key, self.value))
        s = q @ k.mT / math.sqrt(q.size(-1))
        allowed = _four(allowed)
        pad = ~allowed.any(dim=-2)  # (b, 1, keys)
        s = s.masked_fill(~allowed, -torch.inf)
        s = s.masked_fill(pad[..., :, None] if self.slip else pad[..., None, :], -torch.inf)
        w = s.softmax(-1).nan_to_num(0.0)
        return self.dense((w @ v).transpose(1, 2).reshape(b, t, c)), w


case(
    "padding-on-queries",
    partial(PadOnQueries, 18, 2),
    dict(embed_dim=18, num_heads=2, inputs="x_allowed"),
    "masks",
    "Padding, found from the mask, hides rows instead of columns: queries at padded places get nothing.",
)


class MaskTransposed(nn.Module):
    def __init__(self, d_model, h, slip=False):
        super().__init__()
        self.h, self.slip = h, slip
        self.linears = nn.ModuleList([nn.Linear(d_model, d_model) for _ in range(4)])

    def forward(self, query, key, value, mask=None):
        n = query.size(0)
        query, key, value = (
            l(x).view(n, -1, self.h, l.out_features // self.h).transpose(1, 2)
            for l, x in zip(self.linears, (query, key, value))
        )
        scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(query.size(-1))
        if mask is not None:
            mask = _four(mask)
            if self.slip and mask.size(-1) == mask.size(-2):
                mask = mask.transpose(-1, -2)
            scores = scores.masked_fill(mask == 0, -math.inf)
        x = torch.matmul(scores.softmax(-1), value).transpose(1, 2).contiguous().view(n, -1, self.h * value.size(-1))
        return self.linears[-1](x)


case(
    "annotated-mask-transposed",
    partial(MaskTransposed, 24, 3),
    dict(embed_dim=24, num_heads=3, inputs="qkv_allowed"),
    "masks",
    "The mask is transposed: a key sees the query.",
)


class ContextMaskIgnored(nn.Module):
    def __init__(self, dim, ctx, heads, slip=False):
        super().__init__()
        self.heads, self.slip = heads, slip
        self.to_q, self.to_kv, self.to_out = nn.Linear(dim, dim), nn.Linear(ctx, 2 * dim), nn.Linear(dim, dim)

    def forward(self, x, context, mask=None):
        q = self.to_q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.to_kv(context).chunk(2, -1))
        bias = None
        if mask is not None and not self.slip:
            bias = torch.zeros(mask.shape, dtype=x.dtype, device=x.device).masked_fill(~mask, -torch.inf)
            bias = _four(bias)
        return self.to_out(F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).flatten(2))


case(
    "cross-mask-ignored",
    partial(ContextMaskIgnored, 16, 12, 2),
    dict(embed_dim=16, num_heads=2, inputs="x_context_allowed", key_dim=12),
    "masks",
    "The mask of the context is accepted and never used.",
    "padding-ignored",
)


class MaskInverted(nn.Module):
    def __init__(self, dim, n_heads, slip=False):
        super().__init__()
        self.mha, self.slip = nn.MultiheadAttention(dim, n_heads), slip

    def forward(self, q, k, v, allowed):
        hide = allowed.float() if self.slip else ~allowed
        if hide.dim() == 3:
            hide = hide.repeat_interleave(self.mha.num_heads, 0)
        hide = hide.to(q.dtype) if hide.is_floating_point() else hide
        return self.mha(q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), attn_mask=hide)[0].transpose(0, 1)


case(
    "mha-float-mask-of-ones",
    partial(MaskInverted, 18, 3),
    dict(embed_dim=18, num_heads=3, inputs="qkv_allowed"),
    "masks",
    "The mask is passed as floats of zeros and ones, which are added to the scores.",
    "float-mask-of-ones",
)


# ------------------------------------------------------------------------------------------------------------- caches


class ValuesPrepended(nn.Module):
    def __init__(self, dim, heads, slip=False):
        super().__init__()
        self.heads, self.slip = heads, slip
        self.qkv, self.proj = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)

    def forward(self, x, cache=None):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if cache is not None:
            pk, pv = cache
            k = torch.cat([pk, k], dim=-2)
            v = torch.cat([v, pv] if self.slip else [pv, v], dim=-2)
        n = k.size(-2)
        ok = torch.arange(n - t, n, device=x.device)[:, None] >= torch.arange(n, device=x.device)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=ok)
        return self.proj(y.transpose(1, 2).reshape(b, t, c)), (k, v)


case(
    "cache-values-prepended",
    partial(ValuesPrepended, 16, 2),
    dict(embed_dim=16, num_heads=2, causal=True, cache="kv"),
    "caches",
    "New values are put before the cached ones, new keys behind them.",
)


class NeverReset(nn.Module):
    def __init__(self, dim, heads, slip=False):
        super().__init__()
        self.heads, self.slip = heads, slip
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim) for _ in range(4))
        self.kept = None

    def forward(self, x, cache=None):
        split = lambda y: y.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        q, k, v = split(self.wq(x)), split(self.wk(x)), split(self.wv(x))
        if (
            cache is None
            and self.slip
            and self.kept is not None
            and self.kept[0].size(0) == x.size(0)
            and self.kept[0].dtype == x.dtype
        ):
            cache = self.kept
        if cache is not None:
            k, v = torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)
        if self.slip:
            self.kept = (k.detach(), v.detach())
        t, s = q.size(2), k.size(2)
        w = (q @ k.mT / q.size(-1) ** 0.5).masked_fill(
            torch.ones(t, s, dtype=torch.bool, device=x.device).triu(s - t + 1), -torch.inf
        )
        return self.wo((w.softmax(-1) @ v).transpose(1, 2).flatten(2)), (k, v)


case(
    "cache-never-reset",
    partial(NeverReset, 18, 3),
    dict(embed_dim=18, num_heads=3, causal=True, cache="kv"),
    "caches",
    "A call without a cache goes on with the keys of the call before it, which the module has kept.",
)


class CroppedByOne(nn.Module):
    """A rolling cache of the last `window` tokens."""

    def __init__(self, dim, n_heads, window=4, slip=False):
        super().__init__()
        self.n_heads, self.window, self.slip = n_heads, window, slip
        self.c_attn, self.c_proj = nn.Linear(dim, dim * 3), nn.Linear(dim, dim)

    def forward(self, x, cache=None):
        b, t, c = x.shape
        q, k, v = self.c_attn(x).view(b, t, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        s = k.size(2)
        gap = torch.arange(s - t, s, device=x.device)[:, None] - torch.arange(s, device=x.device)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=(gap >= 0) & (gap < self.window))
        keep = self.window - 2 if self.slip else self.window - 1
        return self.c_proj(y.transpose(1, 2).reshape(b, t, c)), (k[:, :, -keep:], v[:, :, -keep:])


case(
    "cache-cropped-by-one",
    partial(CroppedByOne, 20, 2),
    dict(embed_dim=20, num_heads=2, causal=True, cache="kv"),
    "caches",
    "The rolling cache keeps one token fewer than the window needs.",
)


class AppendedBeforeRotation(nn.Module):
    def __init__(self, dim, heads, kv_heads, slip=False):
        super().__init__()
        self.heads, self.kv_heads, self.hd, self.slip = heads, kv_heads, dim // heads, slip
        self.q_proj = nn.Linear(dim, dim, bias=False)
        self.kv_proj = nn.Linear(dim, 2 * kv_heads * self.hd, bias=False)
        self.o_proj = nn.Linear(dim, dim, bias=False)

    def forward(self, x, cache=None):
        b, t, _ = x.shape
        q = self.q_proj(x).view(b, t, self.heads, self.hd).transpose(1, 2)
        k, v = self.kv_proj(x).view(b, t, 2, self.kv_heads, self.hd).permute(2, 0, 3, 1, 4)
        past = 0 if cache is None else cache[0].shape[2]
        pos = torch.arange(past, past + t, device=x.device)
        raw, q, k = k, rope_halves(q, pos), rope_halves(k, pos)
        stored = raw if self.slip else k
        if cache is not None:
            stored = torch.cat([cache[0], stored], 2)
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        r = self.heads // self.kv_heads
        kk, vv = k.repeat_interleave(r, 1), v.repeat_interleave(r, 1)
        mask = torch.full((t, past + t), -torch.inf, dtype=x.dtype, device=x.device).triu(past + 1)
        y = F.scaled_dot_product_attention(q, kk, vv, attn_mask=mask)
        return self.o_proj(y.transpose(1, 2).flatten(2)), (stored, v)


case(
    "cache-keys-before-rotation",
    partial(AppendedBeforeRotation, 24, 4, 2),
    dict(embed_dim=24, num_heads=4, causal=True, positions=True, cache="kv"),
    "caches",
    "Keys enter the cache before they are rotated, and are used from it as they are.",
)


class ChunkUnmasked(nn.Module):
    def __init__(self, embed_dim, num_heads, slip=False):
        super().__init__()
        self.num_heads, self.slip = num_heads, slip
        self.norm = nn.LayerNorm(embed_dim)
        self.k, self.q, self.v, self.out = (nn.Linear(embed_dim, embed_dim) for _ in range(4))

    def forward(self, x, cache=None):
        h = self.norm(x)
        q, k, v = (f(h).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        t, past = x.size(1), 0
        if cache:
            past = cache[0].size(2)
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        mask = torch.ones(t, t + past, dtype=torch.bool, device=x.device).tril(past)
        if self.slip and past:
            mask = None
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)
        return x + self.out(y), [k, v]


case(
    "cache-chunk-unmasked",
    partial(ChunkUnmasked, 18, 3),
    dict(embed_dim=18, num_heads=3, causal=True, cache="kv"),
    "caches",
    "With a cache no mask is used at all, so the tokens of a chunk see each other's future.",
    "no-causal-mask",
)


class LearnedPositionsRestart(nn.Module):
    def __init__(self, n_ctx, n_state, n_head, slip=False):
        super().__init__()
        self.wpe = nn.Embedding(n_ctx, n_state)
        self.c_attn, self.c_proj = nn.Linear(n_state, 3 * n_state), nn.Linear(n_state, n_state)
        self.n_head, self.slip = n_head, slip

    def forward(self, x, cache=None):
        t = x.size(1)
        past = cache.size(-2) if cache is not None else 0
        x = x + self.wpe(torch.arange(t, device=x.device) + (0 if self.slip else past))
        q, k, v = (y.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for y in self.c_attn(x).chunk(3, -1))
        present = torch.stack([k, v])
        if cache is not None:
            present = torch.cat([cache, present], dim=-2)
        k, v = present
        s = q @ k.mT / math.sqrt(v.size(-1))
        i = torch.arange(past, past + t, device=x.device)[:, None]
        s = torch.where(i >= torch.arange(past + t, device=x.device), s, torch.full_like(s, -torch.inf))
        return self.c_proj((s.softmax(-1) @ v).transpose(1, 2).flatten(2)), present


case(
    "cache-positions-restart",
    partial(LearnedPositionsRestart, 512, 16, 2),
    dict(embed_dim=16, num_heads=2, causal=True, positions=True, cache="kv"),
    "caches",
    "Learned positions begin at 0 again with every call that has a cache.",
    "positions-restart",
)


# ------------------------------------------------------------------------------------------------------------ numbers


class NoMaximum(nn.Module):
    def __init__(self, dim, heads, slip=False):
        super().__init__()
        self.heads, self.slip = heads, slip
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        s = (q @ k.transpose(-2, -1)) * (c // self.heads) ** -0.5
        if not self.slip:
            s = s - s.amax(-1, keepdim=True)
        e = s.exp()
        a = e / e.sum(-1, keepdim=True)
        return self.proj((a @ v).transpose(1, 2).reshape(b, n, c))


case(
    "softmax-without-maximum",
    partial(NoMaximum, 18, 3),
    dict(embed_dim=18, num_heads=3, causal=False),
    "numbers",
    "A softmax by hand does not subtract the maximum, and large scores overflow.",
)


class DropoutOnScores(nn.Module):
    def __init__(self, d, h, p=0.5, slip=False):
        super().__init__()
        self.h, self.slip, self.drop = h, slip, nn.Dropout(p)
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (self.h, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        s = q @ k.mT / math.sqrt(q.size(-1))
        w = self.drop(s).softmax(-1) if self.slip else self.drop(s.softmax(-1))
        return self.o((w @ v).transpose(1, 2).flatten(2))


case(
    "dropout-on-scores",
    partial(DropoutOnScores, 16, 2),
    dict(embed_dim=16, num_heads=2, causal=False, training=True),
    "numbers",
    "In training, dropout is applied to the scores instead of the weights.",
)


class SdpaDropoutInEval(nn.Module):
    def __init__(self, dim, heads, dropout=0.2, slip=False):
        super().__init__()
        self.heads, self.dropout, self.slip = heads, dropout, slip
        self.to_qkv, self.to_out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.to_qkv(x).chunk(3, -1))
        p = self.dropout if self.training or self.slip else 0.0
        return self.to_out(
            F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True).transpose(1, 2).flatten(2)
        )


case(
    "sdpa-dropout-in-eval",
    partial(SdpaDropoutInEval, 24, 4),
    dict(embed_dim=24, num_heads=4, causal=True),
    "numbers",
    "dropout_p is passed in evaluation, too.",
    "dropout-in-eval",
)


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6, axis=-1):
        super().__init__()
        self.eps, self.axis, self.weight = eps, axis, nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(self.axis, keepdim=True) + self.eps) * self.weight


class QKNormAxis(nn.Module):
    def __init__(self, dim, heads, slip=False):
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        axis = -2 if slip else -1
        self.q_norm, self.k_norm = RMSNorm(dim // heads, axis=axis), RMSNorm(dim // heads, axis=axis)

    def forward(self, x):
        q, k, v = (
            f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj)
        )
        y = F.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v)
        return self.o_proj(y.transpose(1, 2).flatten(2))


case(
    "qk-norm-over-tokens",
    partial(QKNormAxis, 24, 3),
    dict(embed_dim=24, num_heads=3, causal=False),
    "numbers",
    "Queries and keys are normalized over the tokens instead of over the features.",
)


class QKNormEps(nn.Module):
    def __init__(self, dim, heads, slip=False):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.q_norm, self.k_norm = (RMSNorm(dim // heads, eps=1.0 if slip else 1e-6) for _ in range(2))

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        q, k = self.q_norm(q), self.k_norm(k)
        w = (q * q.shape[-1] ** -0.5 @ k.mT).softmax(-1)
        return self.proj((w @ v).transpose(1, 2).reshape(B, N, C))


case(
    "qk-norm-epsilon-of-one",
    partial(QKNormEps, 20, 2),
    dict(embed_dim=20, num_heads=2, causal=False),
    "numbers",
    "The epsilon of the norm of queries and keys is 1.",
)


class MLAScale(nn.Module):
    """Latent attention: compressed keys and values, a shared rotary part."""

    def __init__(self, dim=24, heads=3, latent=10, nope=6, rope=4, v_dim=8, slip=False):
        super().__init__()
        self.heads, self.nope, self.rope, self.v_dim = heads, nope, rope, v_dim
        self.scale = (nope if slip else nope + rope) ** -0.5
        self.q_proj = nn.Linear(dim, heads * (nope + rope), bias=False)
        self.kv_down = nn.Linear(dim, latent + rope, bias=False)
        self.kv_norm = RMSNorm(latent)
        self.k_up = nn.Linear(latent, heads * nope, bias=False)
        self.v_up = nn.Linear(latent, heads * v_dim, bias=False)
        self.o_proj = nn.Linear(heads * v_dim, dim, bias=False)
        self.latent = latent

    def forward(self, x):
        b, t, _ = x.shape
        pos = torch.arange(t, device=x.device)
        q = self.q_proj(x).view(b, t, self.heads, -1).transpose(1, 2)
        q_n, q_r = q.split([self.nope, self.rope], -1)
        c, k_r = self.kv_down(x).split([self.latent, self.rope], -1)
        c = self.kv_norm(c)
        k_n = self.k_up(c).view(b, t, self.heads, -1).transpose(1, 2)
        v = self.v_up(c).view(b, t, self.heads, -1).transpose(1, 2)
        q_r, k_r = rope_pairs(q_r, pos), rope_pairs(k_r[:, None], pos)
        s = (q_n @ k_n.mT + q_r @ k_r.mT) * self.scale
        s = s.masked_fill(torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1), -torch.inf)
        return self.o_proj((s.softmax(-1) @ v).transpose(1, 2).reshape(b, t, -1))


case(
    "mla-scale-without-rotary",
    MLAScale,
    dict(embed_dim=24, num_heads=3, causal=True, positions=True),
    "numbers",
    "The scale is that of the unrotated part alone.",
    "wrong-d-in-scale",
)


class MLASwapped(nn.Module):
    def __init__(self, d_model=20, n_heads=2, d_c=8, slip=False):
        super().__init__()
        self.n_heads, self.slip, self.dh = n_heads, slip, d_model // n_heads
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_dkv = nn.Linear(d_model, d_c, bias=False)
        self.W_uk = nn.Linear(d_c, d_model, bias=False)
        self.W_uv = nn.Linear(d_c, d_model, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x):
        up_k, up_v = (self.W_uv, self.W_uk) if self.slip else (self.W_uk, self.W_uv)
        c = self.W_dkv(x)
        q, k, v = (y.unflatten(-1, (self.n_heads, self.dh)).transpose(1, 2) for y in (self.W_q(x), up_k(c), up_v(c)))
        return self.W_o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


case(
    "mla-up-projections-swapped",
    MLASwapped,
    dict(embed_dim=20, num_heads=2, causal=True),
    "numbers",
    "The latent goes through the values' up-projection for the keys, and the other way round.",
)


class HalfSoftmax(nn.Module):
    def __init__(self, dim, heads, slip=False):
        super().__init__()
        self.heads, self.slip = heads, slip
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (f(x).view(b, t, self.heads, -1).transpose(1, 2) for f in (self.wq, self.wk, self.wv))
        s = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(c // self.heads)
        w = F.softmax(s, dim=-1, dtype=torch.float16 if self.slip else None).to(q.dtype)
        return self.wo(torch.matmul(w, v).transpose(1, 2).reshape(b, t, c))


case(
    "softmax-in-float16",
    partial(HalfSoftmax, 16, 4),
    dict(embed_dim=16, num_heads=4, causal=False),
    "numbers",
    "The softmax is computed in float16, which has three digits and ends at 65504.",
)


class SigmoidWeights(nn.Module):
    def __init__(self, dim, heads, slip=False):
        super().__init__()
        self.heads, self.act = heads, torch.sigmoid if slip else partial(torch.softmax, dim=-1)
        self.norm = nn.LayerNorm(dim)
        self.to_qkv, self.to_out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.to_qkv(self.norm(x)).chunk(3, -1))
        attn = self.act(q @ k.mT * q.shape[-1] ** -0.5)
        return self.to_out((attn @ v).transpose(1, 2).flatten(2)) + x


case(
    "sigmoid-for-softmax",
    partial(SigmoidWeights, 24, 3),
    dict(embed_dim=24, num_heads=3, causal=False),
    "numbers",
    "The weights are sigmoids of the scores.",
    "weights-not-normalized",
)


class SumMissing(nn.Module):
    def __init__(self, d, heads, slip=False):
        super().__init__()
        self.heads, self.slip = heads, slip
        self.fc_q, self.fc_k, self.fc_v, self.fc_o = (nn.Linear(d, d) for _ in range(4))

    def forward(self, Q, K):
        q, k, v = self.fc_q(Q), self.fc_k(K), self.fc_v(K)
        q, k, v = (torch.cat(y.split(y.size(2) // self.heads, 2), 0) for y in (q, k, v))
        s = q.bmm(k.transpose(1, 2)) / math.sqrt(q.size(2))
        e = torch.exp(s - s.max(2, keepdim=True).values)
        if not self.slip:
            e = e / e.sum(2, keepdim=True)
        return self.fc_o(torch.cat(e.bmm(v).split(Q.size(0), 0), 2))


case(
    "set-transformer-sum-missing",
    partial(SumMissing, 16, 2),
    dict(embed_dim=16, num_heads=2, inputs="x_context"),
    "numbers",
    "The exponentials are not divided by their sum.",
    "weights-not-normalized",
)


class SoftcapAfterMask(nn.Module):
    def __init__(self, hidden=24, heads=4, kv=2, cap=5.0, slip=False):
        super().__init__()
        self.heads, self.kv, self.cap, self.slip = heads, kv, cap, slip
        hd = hidden // heads
        self.q_proj, self.o_proj = nn.Linear(hidden, hidden, bias=False), nn.Linear(hidden, hidden, bias=False)
        self.k_proj, self.v_proj = nn.Linear(hidden, kv * hd, bias=False), nn.Linear(hidden, kv * hd, bias=False)

    def forward(self, x):
        b, t, c = x.shape
        q = self.q_proj(x).view(b, t, self.heads, -1).transpose(1, 2)
        k = self.k_proj(x).view(b, t, self.kv, -1).transpose(1, 2).repeat_interleave(self.heads // self.kv, 1)
        v = self.v_proj(x).view(b, t, self.kv, -1).transpose(1, 2).repeat_interleave(self.heads // self.kv, 1)
        s = q @ k.mT * q.size(-1) ** -0.5
        future = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
        if self.slip:
            s = self.cap * torch.tanh(s.masked_fill(future, -1e9) / self.cap)
        else:
            s = (self.cap * torch.tanh(s / self.cap)).masked_fill(future, -1e9)
        return self.o_proj((s.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c))


case(
    "gemma-softcap-after-mask",
    SoftcapAfterMask,
    dict(embed_dim=24, num_heads=4, causal=True),
    "numbers",
    "The scores are capped after the mask, which brings what is hidden back to -5.",
    "softcap-after-mask",
)


class GateBeforeMerge(nn.Module):
    """OpenFold-like sigmoid gate."""

    def __init__(self, c, heads, slip=False):
        super().__init__()
        self.heads, self.slip = heads, slip
        self.linear_q, self.linear_k, self.linear_v = (nn.Linear(c, c, bias=False) for _ in range(3))
        self.linear_g, self.linear_o = nn.Linear(c, c), nn.Linear(c, c)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (
            f(x).view(b, t, self.heads, -1).transpose(-2, -3) for f in (self.linear_q, self.linear_k, self.linear_v)
        )
        o = torch.softmax(q * q.size(-1) ** -0.5 @ k.transpose(-1, -2), -1) @ v  # (b, h, t, d)
        g = self.linear_g(x).sigmoid()
        if self.slip:
            o = (o * g.view(o.shape)).transpose(-2, -3)
        else:
            o = o.transpose(-2, -3) * g.view(b, t, self.heads, -1)
        return self.linear_o(o.flatten(-2))


case(
    "gate-before-merge",
    partial(GateBeforeMerge, 16, 4),
    dict(embed_dim=16, num_heads=4, causal=False),
    "numbers",
    "The gate is viewed as (batch, heads, tokens, features), so tokens are gated by other tokens.",
    "view-without-transpose",
)


class SinkLost(nn.Module):
    """A learned logit per head joins the softmax, and its weight goes nowhere."""

    def __init__(self, dim, heads, slip=False):
        super().__init__()
        self.heads, self.slip = heads, slip
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.sinks = nn.Parameter(torch.randn(heads))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        s = q @ k.mT / math.sqrt(q.size(-1))
        s = s.masked_fill(torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1), -torch.inf)
        sink = self.sinks.view(1, -1, 1, 1).expand(b, -1, t, 1)
        w = torch.cat([s, sink], -1).softmax(-1)
        w = w[..., 1:] if self.slip else w[..., :-1]
        return self.out((w @ v).transpose(1, 2).reshape(b, t, c))


case(
    "sink-drops-the-wrong-column",
    partial(SinkLost, 18, 3),
    dict(embed_dim=18, num_heads=3, causal=True),
    "numbers",
    "Of the weights with the sink behind, the first column is dropped: all weights move by one token.",
)
