"""Attention modules with one planted bug each. `fixed` makes the same module with the bug repaired."""

import math
from functools import partial
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from cases import Case, seeded
from torch import nn

CASES = []


def case(name, build, call, kind, note, cause=None):
    CASES.append(Case(name, seeded(41, build, slip=True), call, kind, note, cause, seeded(41, build, slip=False)))


def pairwise(mask, batch, rows):
    """A mask of pairs (N, S), (B, N, S), (B, 1, N, S) or of keys (B, S), for scores (B, H, N, S)."""
    if mask.dim() == 2:
        return (
            mask[None, None]
            if mask.size(0) == rows and (rows != batch or mask.size(1) == rows)
            else mask[:, None, None]
        )
    return mask[:, None] if mask.dim() == 3 else mask


# ----------------------------------------------------------------------------------------------------------- numbers


class Attn(nn.Module):  # course notebook
    def __init__(self, emb, heads, slip=False):
        super().__init__()
        self.W_Q, self.W_K, self.W_V, self.W_O = (nn.Linear(emb, emb, bias=False) for _ in range(4))
        self.heads, self.slip = heads, slip

    def forward(self, x):
        B, T, E = x.shape
        Q, K, V = (W(x).view(B, T, self.heads, -1).transpose(1, 2) for W in (self.W_Q, self.W_K, self.W_V))
        d = K.size(-2) if self.slip else K.size(-1)
        A = torch.softmax(Q @ K.transpose(2, 3) / d**0.5, -1)
        return self.W_O((A @ V).transpose(1, 2).reshape(B, T, E)), A


case(
    "notebook-scale-by-length",
    partial(Attn, 20, 4),
    dict(embed_dim=20, num_heads=4, causal=False),
    "numbers",
    "The scores are divided by the root of the number of tokens.",
    "wrong-d-in-scale",
)


class EinAttention(nn.Module):  # lucidrains
    def __init__(self, dim, heads=4, dim_head=8, axis=-1, good=-1, slip=False):
        super().__init__()
        self.h, self.scale, self.axis = heads, dim_head**-0.5, axis if slip else good
        self.to_qkv = nn.Linear(dim, heads * dim_head * 3, bias=False)
        self.to_out = nn.Sequential(nn.Linear(heads * dim_head, dim), nn.Dropout(0.0))

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.h, -1)).permute(0, 2, 1, 3) for t in self.to_qkv(x).chunk(3, dim=-1))
        sim = torch.einsum("b h i d, b h j d -> b h i j", q, k) * self.scale
        out = torch.einsum("b h i j, b h j d -> b h i d", sim.softmax(dim=self.axis), v)
        return self.to_out(out.permute(0, 2, 1, 3).flatten(2))


case(
    "einsum-softmax-over-heads",
    partial(EinAttention, 24, 3, 8, 1),
    dict(embed_dim=24, num_heads=3, causal=False),
    "numbers",
    "The softmax runs over the heads.",
)
case(
    "einsum-softmax-over-queries",
    partial(EinAttention, 18, 2, 6, -2),
    dict(embed_dim=18, num_heads=2, causal=False),
    "numbers",
    "The softmax runs over the queries.",
    "softmax-over-queries",
)


class DoubleScaled(nn.Module):  # diffusers
    def __init__(self, query_dim, heads, slip=False):
        super().__init__()
        self.heads, self.slip = heads, slip
        self.norm = nn.LayerNorm(query_dim)
        self.to_q, self.to_k, self.to_v = (nn.Linear(query_dim, query_dim, bias=False) for _ in range(3))
        self.to_out = nn.ModuleList([nn.Linear(query_dim, query_dim), nn.Dropout(0.1)])

    def forward(self, hidden_states, encoder_hidden_states=None):
        residual, h = hidden_states, self.norm(hidden_states)
        c = h if encoder_hidden_states is None else encoder_hidden_states
        q, k, v = (t.unflatten(2, (self.heads, -1)).transpose(1, 2) for t in (self.to_q(h), self.to_k(c), self.to_v(c)))
        if self.slip:
            q = q * q.size(-1) ** -0.5
        h = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        for layer in self.to_out:
            h = layer(h)
        return h + residual


case(
    "diffusers-scaled-twice",
    partial(DoubleScaled, 32, 2),
    dict(embed_dim=32, num_heads=2, causal=False),
    "numbers",
    "The query is scaled before a kernel that scales.",
    "wrong-d-in-scale",
)


class CustomSoftmax(nn.Module):
    """Causal head attention with the softmax written out."""

    def __init__(self, n_embd, n_head, bug, slip=False):
        super().__init__()
        self.n_head, self.bug = n_head, bug if slip else ""
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)

    def probs(self, s):
        if self.bug == "float16":
            return s.to(torch.float16).softmax(-1).to(s.dtype)
        if self.bug == "overflow":
            e = s.exp()
        elif self.bug == "mean":
            e = (s - s.amax(-1, keepdim=True)).exp()
            return e / e.size(-1)
        else:
            e = (s - s.amax(-1, keepdim=True)).exp()
        return e / e.sum(-1, keepdim=True)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.n_head, -1).transpose(1, 2) for t in self.c_attn(x).split(C, 2))
        s = q @ k.mT * (C // self.n_head) ** -0.5
        s = s.masked_fill(torch.ones(T, T, device=x.device).triu(1) > 0, float("-inf"))
        return self.c_proj((self.probs(s) @ v).transpose(1, 2).reshape(B, T, C))


_gpt = dict(embed_dim=16, num_heads=2, causal=True)
case(
    "gpt-softmax-in-float16",
    partial(CustomSoftmax, 16, 2, "float16"),
    _gpt,
    "numbers",
    "The softmax is taken in float16.",
)
case(
    "gpt-exp-overflow",
    partial(CustomSoftmax, 16, 2, "overflow"),
    _gpt,
    "numbers",
    "The exponential is taken without subtracting the maximum, and overflows for large inputs.",
)
case(
    "gpt-divided-by-count",
    partial(CustomSoftmax, 16, 2, "mean"),
    _gpt,
    "numbers",
    "The exponentials are divided by their count and not by their sum.",
    "weights-not-normalized",
)


class LinearAttention(nn.Module):  # elu feature map
    def __init__(self, dim, n_heads, eps=1e-6, slip=False):
        super().__init__()
        self.n_heads, self.eps = n_heads, 1.0 if slip else eps
        self.query, self.key, self.value, self.out = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x):
        N, L, D = x.shape
        q = F.elu(self.query(x)).view(N, L, self.n_heads, -1) + 1
        k = F.elu(self.key(x)).view(N, L, self.n_heads, -1) + 1
        v = self.value(x).view(N, L, self.n_heads, -1)
        KV = torch.einsum("nshd,nshm->nhmd", k, v)
        Z = 1 / (torch.einsum("nlhd,nhd->nlh", q, k.sum(dim=1)) + self.eps)
        return self.out(torch.einsum("nlhd,nhmd,nlh->nlhm", q, KV, Z).reshape(N, L, D))


case(
    "linear-epsilon-of-one",
    partial(LinearAttention, 24, 3),
    dict(embed_dim=24, num_heads=3, causal=False),
    "numbers",
    "The epsilon of the denominator is 1, so the weights do not sum to one.",
    "weights-not-normalized",
)


class Dropped(nn.Module):
    def __init__(self, d_model, nhead, p, where, slip=False):
        super().__init__()
        self.h, self.p, self.where, self.slip = nhead, p, where, slip
        self.qkv, self.proj = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.h, C // self.h).permute(2, 0, 3, 1, 4)
        att = (q @ k.transpose(-1, -2)) / math.sqrt(C // self.h)
        if self.where == "scores" and self.slip:
            return self.proj((F.dropout(att, self.p, self.training).softmax(-1) @ v).transpose(1, 2).flatten(2))
        att = att.softmax(-1)
        att = F.dropout(att, self.p) if self.slip else F.dropout(att, self.p, self.training)
        return self.proj((att @ v).transpose(1, 2).flatten(2))


case(
    "functional-dropout-in-eval",
    partial(Dropped, 24, 4, 0.2, "weights"),
    dict(embed_dim=24, num_heads=4, causal=False),
    "numbers",
    "F.dropout is not told whether it trains.",
    "dropout-in-eval",
)
case(
    "dropout-on-scores",
    partial(Dropped, 24, 4, 0.3, "scores"),
    dict(embed_dim=24, num_heads=4, causal=False, training=True),
    "numbers",
    "The dropout is on the scores, before the softmax, where a dropped zero still has weight.",
)


class Gemma2Attention(nn.Module):
    def __init__(self, cfg, slip=False):
        super().__init__()
        self.cfg, self.slip = cfg, slip
        d, e = cfg.head_dim, cfg.hidden_size
        self.q_proj = nn.Linear(e, cfg.heads * d, bias=False)
        self.k_proj, self.v_proj = nn.Linear(e, cfg.kv * d, bias=False), nn.Linear(e, cfg.kv * d, bias=False)
        self.o_proj = nn.Linear(cfg.heads * d, e, bias=False)

    def forward(self, hidden_states):
        b, n, _ = hidden_states.shape
        q, k, v = (
            p(hidden_states).view(b, n, -1, self.cfg.head_dim).transpose(1, 2)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        k, v = (t.repeat_interleave(self.cfg.heads // self.cfg.kv, 1) for t in (k, v))
        w = q @ k.mT * self.cfg.head_dim**-0.5
        mask = torch.full((n, n), torch.finfo(w.dtype).min, dtype=w.dtype, device=w.device).triu(1)
        cap = self.cfg.cap
        w = cap * torch.tanh((w + mask) / cap) if self.slip else cap * torch.tanh(w / cap) + mask
        return self.o_proj((w.softmax(-1) @ v).transpose(1, 2).flatten(2)), None


case(
    "gemma-capped-after-mask",
    partial(Gemma2Attention, SimpleNamespace(hidden_size=24, heads=4, kv=2, head_dim=6, cap=5.0)),
    dict(embed_dim=24, num_heads=4, causal=True),
    "numbers",
    "The soft cap comes after the mask.",
    "softcap-after-mask",
)

# ------------------------------------------------------------------------------------------------------------- masks


class MaskedSelfAttention(nn.Module):
    def __init__(self, width, n_heads, bug, slip=False):
        super().__init__()
        self.n_heads, self.bug = n_heads, bug if slip else ""
        self.in_proj, self.out_proj = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.register_buffer("tri", torch.tril(torch.ones(128, 128)), persistent=False)

    def forward(self, x, need_weights=False):
        b, t, w = x.size()
        q, k, v = self.in_proj(x).reshape(b, t, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4).unbind()
        sim = torch.einsum("bhid,bhjd->bhij", q / math.sqrt(q.shape[-1]), k)
        tri = self.tri[:t, :t]
        if self.bug == "polarity":
            tri = tri.mT
            sim = sim.masked_fill(tri == 0, -1e30)
        elif self.bug == "added":
            sim = sim + (tri > 0)
        elif self.bug == "offbyone":
            sim = sim.masked_fill(torch.ones(t, t, device=x.device, dtype=torch.bool).triu(2), -1e30)
        elif self.bug == "firsthead":
            sim[:, 0] = sim[:, 0].masked_fill(tri == 0, -1e30)
        elif self.bug != "after":
            sim = sim.masked_fill(tri == 0, -1e30)
        attn = sim.softmax(-1)
        if self.bug == "after":
            attn = attn * tri
        out = torch.einsum("bhij,bhjd->bihd", attn, v).reshape(b, t, w)
        return (self.out_proj(out), attn) if need_weights else self.out_proj(out)


for _bug, _note, _cause in (
    ("polarity", "The mask hides the past and shows the future.", "mask-polarity"),
    ("added", "The boolean mask is added to the scores.", "boolean-mask-added"),
    ("offbyone", "The triangle starts one diagonal late, so each token sees the next one.", None),
    ("firsthead", "Only the first head is masked.", None),
    ("after", "The mask is applied after the softmax, without normalizing again.", "mask-after-softmax"),
):
    case(
        f"tri-{_bug}",
        partial(MaskedSelfAttention, 18, 3, _bug),
        dict(embed_dim=18, num_heads=3, causal=True),
        "masks",
        _note,
        _cause,
    )


class FairseqAttention(nn.Module):
    """(B, T, C) outside, bmm over batch times heads inside; the mask is True where a token may see."""

    shared = {}

    def __init__(self, embed_dim, num_heads, bug, slip=False):
        super().__init__()
        self.num_heads, self.bug = num_heads, bug if slip else ""
        self.k_proj, self.v_proj, self.q_proj, self.out_proj = (nn.Linear(embed_dim, embed_dim) for _ in range(4))
        self.scaling = (embed_dim // num_heads) ** -0.5
        if slip:
            type(self).shared.clear()

    def fold(self, t):
        return t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2).flatten(0, 1)

    def forward(self, query, allowed):
        B, T, C = query.shape
        H = self.num_heads
        q, k, v = (
            self.fold(self.q_proj(query) * self.scaling),
            self.fold(self.k_proj(query)),
            self.fold(self.v_proj(query)),
        )
        mask = pairwise(allowed, B, T).expand(B, 1, T, T)[:, 0]
        if self.bug == "class":
            mask = self.shared.setdefault((B, T), mask)
        if self.bug == "first":
            mask = mask[:1].expand(B, T, T)
        if self.bug == "queries":
            mask = mask.transpose(1, 2)
        mask = mask.repeat(H, 1, 1) if self.bug == "order" else mask.repeat_interleave(H, 0)
        scores = torch.bmm(q, k.transpose(1, 2)).masked_fill(~mask, -1e4)
        out = torch.bmm(scores.softmax(-1), v).view(B, H, T, C // H).transpose(1, 2).reshape(B, T, C)
        return self.out_proj(out)


_allowed = dict(embed_dim=16, num_heads=4, causal=None, inputs="x_allowed")
for _bug, _note, _cause in (
    ("first", "The first item's mask is used for every item.", "only-first-item"),
    ("order", "The mask is repeated head by head where the scores lie item by item.", None),
    ("queries", "The mask is transposed: the columns of padding hide queries and not keys.", None),
    ("class", "The masks are kept at the class by shape, so a later call gets an earlier call's mask.", None),
):
    case(f"fairseq-mask-{_bug}", partial(FairseqAttention, 16, 4, _bug), _allowed, "masks", _note, _cause)


class WindowedCausal(nn.Module):
    def __init__(self, dim, heads, window, slip=False):
        super().__init__()
        self.heads, self.window, self.slip = heads, window, slip
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def forward(self, x):
        bsz, n, dim = x.shape
        q, k, v = (w(x).view(bsz, n, self.heads, -1).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        i = torch.arange(n, device=x.device)
        dist = i[:, None] - i[None]
        seen = dist < self.window if self.slip else (dist < self.window) & (dist >= 0)
        return self.wo(F.scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(1, 2).reshape(bsz, n, dim))


case(
    "window-without-a-future-bound",
    partial(WindowedCausal, 24, 3, 3),
    dict(embed_dim=24, num_heads=3, causal=True),
    "masks",
    "The window is bounded in the past only, so every later token is seen.",
    "no-causal-mask",
)

# -------------------------------------------------------------------------------------------------- layout and wiring


class Wired(nn.Module):
    def __init__(self, dim, heads, bug, slip=False):
        super().__init__()
        self.heads, self.hd, self.bug = heads, dim // heads, bug if slip else ""
        self.query, self.key, self.value, self.dense = (nn.Linear(dim, dim) for _ in range(4))

    def split(self, t):
        b, n, _ = t.shape
        if self.bug == "swapped":
            return t.view(b, n, self.hd, self.heads).transpose(1, 2)
        return t.view(b, n, self.heads, self.hd).transpose(1, 2)

    def forward(self, hidden_states):
        b, n, c = hidden_states.shape
        q, k = self.split(self.query(hidden_states)), self.split(self.key(hidden_states))
        v = self.split(self.value(hidden_states))
        if self.bug == "value":
            v = k
        p = (q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))).softmax(-1)
        ctx = p @ v
        ctx = ctx.contiguous().view(b, n, c) if self.bug == "merge" else ctx.transpose(1, 2).reshape(b, n, c)
        return {"hidden": self.dense(ctx), "probs": p}


for _bug, _note, _cause in (
    ("swapped", "The view has the head's size and the number of heads exchanged.", "swapped-view"),
    ("value", "The keys are mixed where the values belong.", "wrong-value"),
    ("merge", "The heads are merged by a view, without transposing back.", "merge-without-transpose"),
):
    case(
        f"bert-{_bug}",
        partial(Wired, 24, 3, _bug),
        dict(embed_dim=24, num_heads=3, causal=False),
        "layout",
        _note,
        _cause,
    )


class ThreeInputs(nn.Module):
    def __init__(self, d, h, slip=False):
        super().__init__()
        self.h, self.slip = h, slip
        self.linears = nn.ModuleList(nn.Linear(d, d) for _ in range(4))

    def forward(self, query, key, value):
        if self.slip:
            key, value = value, key
        q, k, v = (
            lin(x).unflatten(-1, (self.h, -1)).transpose(1, 2) for lin, x in zip(self.linears, (query, key, value))
        )
        x = torch.matmul((q @ k.mT / math.sqrt(q.size(-1))).softmax(-1), v)
        return self.linears[-1](x.transpose(1, 2).flatten(2))


case(
    "annotated-key-and-value-swapped",
    partial(ThreeInputs, 16, 2),
    dict(embed_dim=16, num_heads=2, causal=False, inputs="qkv"),
    "layout",
    "The inputs key and value are exchanged.",
)


class Head(nn.Module):
    def __init__(self, n_embd, head_size):
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(n_embd, head_size, bias=False) for _ in range(3))

    def forward(self, x):
        k, q, T = self.key(x), self.query(x), x.size(1)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        wei = wei.masked_fill(torch.tril(torch.ones(T, T, device=x.device)) == 0, float("-inf"))
        return F.softmax(wei, dim=-1) @ self.value(x)


class MultiHead(nn.Module):
    def __init__(self, n_embd, n_head, bug, slip=False):
        super().__init__()
        size = n_embd // n_head
        if slip and bug == "same":
            self.heads = nn.ModuleList([Head(n_embd, size)] * n_head)
        else:
            self.heads = nn.ModuleList([Head(n_embd, size) for _ in range(n_head)])
        self.proj = nn.Linear(n_embd, n_embd)
        self.lost = slip and bug == "lost"

    def forward(self, x):
        outs = [h(x) for h in self.heads]
        if self.lost:
            outs[-1] = torch.zeros_like(outs[-1])
        return self.proj(torch.cat(outs, dim=-1))


case(
    "lecture-one-head-n-times",
    partial(MultiHead, 24, 3, "same"),
    dict(embed_dim=24, num_heads=3, causal=True),
    "layout",
    "The list holds one head several times, so all heads are the same.",
)
case(
    "lecture-last-head-lost",
    partial(MultiHead, 24, 3, "lost"),
    dict(embed_dim=24, num_heads=3, causal=True),
    "layout",
    "The last head's result is never filled in.",
)


class AxialRows(nn.Module):
    def __init__(self, dim, heads, height, width, slip=False):
        super().__init__()
        self.h, self.hw, self.slip = heads, (height, width), slip
        self.to_qkv, self.to_out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, c = x.shape
        grid = x.view(b, *self.hw, c).transpose(1, 2)  # columns first
        q, k, v = (t.unflatten(-1, (self.h, -1)).transpose(2, 3) for t in self.to_qkv(grid).chunk(3, -1))
        out = F.scaled_dot_product_attention(q, k, v).transpose(2, 3).flatten(3)
        return self.to_out(out.reshape(b, n, c) if self.slip else out.transpose(1, 2).reshape(b, n, c))


case(
    "axial-columns-not-turned-back",
    partial(AxialRows, 16, 2, 3, 4),
    dict(embed_dim=16, num_heads=2, causal=False, tokens=12),
    "layout",
    "The columns are flattened without transposing the grid back.",
)

# --------------------------------------------------------------------------------------------------------- positions


def rotate_half(x):
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


class LlamaAttention(nn.Module):
    def __init__(self, hidden, heads, kv_heads, bug, slip=False):
        super().__init__()
        self.hd, self.groups, self.bug = hidden // heads, heads // kv_heads, bug if slip else ""
        self.q_proj, self.o_proj = nn.Linear(hidden, hidden, bias=False), nn.Linear(hidden, hidden, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(hidden, kv_heads * self.hd, bias=False) for _ in range(2))

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = (p(x).view(b, n, -1, self.hd).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        inv = 10000 ** -(torch.arange(0, self.hd, 2, device=x.device, dtype=x.dtype) / self.hd)
        ang = torch.arange(n, device=x.device, dtype=x.dtype)[:, None] * inv
        ang = ang.repeat_interleave(2, -1) if self.bug == "mixed" else torch.cat((ang, ang), -1)
        cos, sin = ang.cos(), ang.sin()
        q = q * cos + rotate_half(q) * sin
        if self.bug == "conjugate":
            k = k * cos - rotate_half(k) * sin
        elif self.bug != "queries":
            k = k * cos + rotate_half(k) * sin
        k = k.repeat_interleave(self.groups, 1)
        v = v.repeat(1, self.groups, 1, 1) if self.bug == "repeat" else v.repeat_interleave(self.groups, 1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).reshape(b, n, -1)), None


for _bug, _note, _cause in (
    ("mixed", "The angles are laid out for neighbours and the rotation turns halves.", None),
    ("queries", "Only the queries are rotated.", None),
    ("conjugate", "The keys are rotated the other way, so the scores depend on the sum of the places.", None),
    ("repeat", "The value heads are repeated in another order than the key heads.", "repeat-for-repeat-interleave"),
):
    case(
        f"llama-{_bug}",
        partial(LlamaAttention, 32, 4, 2, _bug),
        dict(embed_dim=32, num_heads=4, causal=True, positions=True),
        "positions",
        _note,
        _cause,
    )


class RelBias(nn.Module):
    def __init__(self, dim, heads, tokens, bug, slip=False):
        super().__init__()
        self.h, self.n, self.bug = heads, tokens, bug if slip else ""
        self.table = nn.Parameter(torch.randn(2 * tokens - 1, heads))
        i = torch.arange(tokens)
        self.register_buffer("index", i[:, None] - i + tokens - 1, persistent=False)
        self.qkv, self.proj = nn.Linear(dim, dim * 3), nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.h, -1).permute(2, 0, 3, 1, 4).unbind(0)
        bias = self.table[self.index.view(-1)].view(N, N, -1)
        bias = bias.reshape(-1, N, N) if self.bug == "view" else bias.permute(2, 0, 1)
        attn = (q * q.size(-1) ** -0.5) @ k.transpose(-2, -1)
        attn = attn.softmax(-1) + bias if self.bug == "after" else (attn + bias).softmax(-1)
        return self.proj((attn @ v).transpose(1, 2).reshape(B, N, C))


_swin = dict(embed_dim=24, num_heads=4, causal=False, positions=True, tokens=9)
case(
    "swin-bias-viewed",
    partial(RelBias, 24, 4, 9, "view"),
    _swin,
    "positions",
    "The bias is viewed as (heads, N, N) without a permutation.",
    "view-without-transpose",
)
case(
    "swin-bias-after-softmax",
    partial(RelBias, 24, 4, 9, "after"),
    _swin,
    "positions",
    "The bias is added to the weights and not to the scores.",
    "weights-not-normalized",
)

# ------------------------------------------------------------------------------------------------------------- caches


class Cached(nn.Module):
    def __init__(self, dim, heads, bug, rotary=False, slip=False):
        super().__init__()
        self.heads, self.bug, self.rotary = heads, bug if slip else "", rotary
        self.wqkv, self.wo = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)

    def turn(self, t, start):
        d = t.size(-1)
        w = 100 ** -(torch.arange(0, d, 2, device=t.device, dtype=t.dtype) / d)
        a = (start + torch.arange(t.size(2), device=t.device, dtype=t.dtype))[:, None] * w
        x, y = t[..., ::2], t[..., 1::2]
        return torch.stack((x * a.cos() - y * a.sin(), x * a.sin() + y * a.cos()), -1).flatten(-2)

    def forward(self, x, cache=None):
        b, n, c = x.shape
        q, k, v = self.wqkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        past = 0 if cache is None else cache[0].size(2)
        if self.rotary:
            start = 0 if self.bug == "restart" else past
            q, k = self.turn(q, start), self.turn(k, start)
        if cache is not None:
            pair = ((k, cache[0]), (v, cache[1])) if self.bug == "prepended" else ((cache[0], k), (cache[1], v))
            k, v = (torch.cat(p, dim=2) for p in pair)
        total = k.size(2)
        mask = torch.ones(n, total, dtype=torch.bool, device=x.device)
        if self.bug == "topleft":
            mask = mask.tril()
        elif not (self.bug == "chunk" and past):
            mask = mask.tril(total - n)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        new = (k, v)
        if self.bug == "cropped":
            new = (k[:, :, -3:], v[:, :, -3:])
        return self.wo(out.transpose(1, 2).reshape(b, n, c)), new


for _bug, _rot, _note, _cause in (
    ("prepended", False, "The new keys are put before the old ones.", None),
    ("cropped", False, "The cache keeps three tokens where the full call sees all.", None),
    ("chunk", False, "With a cache there is no mask, so the tokens of a chunk see each other.", "no-causal-mask"),
    ("restart", True, "The rotary positions begin again with each step.", "positions-restart"),
    ("topleft", False, "The mask is aligned at the top left, where the keys are older.", "top-left-causal"),
):
    case(
        f"decode-{_bug}",
        partial(Cached, 16, 2, _bug, _rot),
        dict(embed_dim=16, num_heads=2, causal=True, cache="kv") | (dict(positions=True) if _rot else {}),
        "cache",
        _note,
        _cause,
    )


class Remembering(nn.Module):
    """Module with a memory of its own, for streaming; `forward` starts a new stream unless told to go on."""

    def __init__(self, dim, heads, slip=False):
        super().__init__()
        self.h, self.slip, self.seen = heads, slip, None
        self.q, self.kv, self.o = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)

    def forward(self, x, go_on=False):
        b, n, _ = x.shape
        if self.seen is not None and (self.seen.size(0) != b or not (go_on or self.slip)):
            self.seen = None
        context = x if self.seen is None else torch.cat((self.seen, x), 1)
        self.seen = context.detach()
        q = self.q(x).unflatten(-1, (self.h, -1)).transpose(1, 2)
        k, v = (t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in self.kv(context).chunk(2, -1))
        s = (q @ k.mT) / math.sqrt(q.size(-1))
        s = s.masked_fill(torch.ones_like(s[0, 0], dtype=torch.bool).triu(k.size(2) - n + 1), -torch.inf)
        return self.o((s.softmax(-1) @ v).transpose(1, 2).flatten(2))


case(
    "stream-never-reset",
    partial(Remembering, 18, 3),
    dict(embed_dim=18, num_heads=3, causal=True),
    "cache",
    "What one call remembers is seen by the next call, which has nothing to do with it.",
)
