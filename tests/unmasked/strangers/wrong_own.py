"""More modules with one planted bug each, in families that were silently open. `fixed` makes the repaired twin."""

import math
from functools import partial

import torch
import torch.nn.functional as F
from cases import Case, seeded
from torch import nn

CASES = []


def case(name, build, call, kind, note, cause=None):
    CASES.append(Case(name, seeded(7, build, True), call, kind, note, cause, seeded(7, build, False)))


# ------------------------------------------------------------------------------------------- normalizations by hand


class ByHand(nn.Module):
    """Packed, causal or not, with exponentials of its own; `how` says what they are divided by."""

    def __init__(self, how, slip, dim=24, heads=3, causal=False):
        super().__init__()
        self.how, self.slip, self.heads, self.causal = how, slip, heads, causal
        self.in_proj, self.out_proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.in_proj(x).view(b, n, self.heads, 3, -1).permute(3, 0, 2, 1, 4)
        s = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.size(-1))
        if self.causal:
            s = s.masked_fill(torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1), -torch.inf)
        return self.out_proj(self.weigh(s, v).transpose(1, 2).reshape(b, n, d))

    def weigh(self, s, v):
        slip, how = self.slip, self.how
        if how == "keepdim":  # the sums lack their axis and broadcast along the keys
            e = (s - s.amax(-1, keepdim=True)).exp()
            return (e / e.sum(-1)[:, :, None] if slip else e / e.sum(-1, keepdim=True)) @ v
        if how == "heads":
            e = torch.exp(s - (s.amax((1, 3), keepdim=True) if slip else s.amax(-1, keepdim=True)))
            return (e / e.sum(1 if slip else -1, keepdim=True)) @ v
        if how == "matrix":
            e = torch.exp(s - (s.amax((-2, -1), keepdim=True) if slip else s.amax(-1, keepdim=True)))
            return (e / (e.sum((-2, -1), keepdim=True) if slip else e.sum(-1, keepdim=True))) @ v
        if how == "epsilon":
            e = torch.exp(s - s.amax(-1, keepdim=True))
            return (e / (e.sum(-1, keepdim=True) + (1.0 if slip else 1e-9))) @ v
        if how == "later":  # flash-like: divided after the average
            e = torch.exp(s - s.amax(-1, keepdim=True))
            y = torch.einsum("bhij,bhjd->bhid", e, v)
            z = e.sum(-2) if slip else e.sum(-1)
            return y / z[..., None]
        if how == "root":
            e = torch.exp(s - s.amax(-1, keepdim=True))
            return (e / (e.square().sum(-1, keepdim=True).sqrt() if slip else e.sum(-1, keepdim=True))) @ v
        if how == "logsumexp":
            z = torch.logsumexp(s, -2 if slip else -1, keepdim=True)
            return torch.exp(s - z) @ v
        if how == "log":
            return (F.log_softmax(s, -1) if slip else F.log_softmax(s, -1).exp()) @ v
        raise ValueError(how)


_open = dict(embed_dim=24, num_heads=3, causal=False)
for _how, _note, _cause in (
    ("keepdim", "The sums are taken without keepdim and divide the keys' columns.", "weights-not-normalized"),
    ("heads", "The exponentials are divided by their sums over the heads.", "weights-not-normalized"),
    ("matrix", "The exponentials are divided by the sum over queries and keys.", "weights-not-normalized"),
    ("epsilon", "One is added to the sums after the maximum was subtracted.", "weights-not-normalized"),
    ("later", "The average is divided by the sums over the queries.", None),
    ("root", "The exponentials are divided by the root of the sum of their squares.", "weights-not-normalized"),
    ("logsumexp", "The logsumexp runs over the queries.", "softmax-over-queries"),
    ("log", "The logarithms of the weights average the values.", "weights-not-normalized"),
):
    case(f"by-hand-{_how}", partial(ByHand, _how), _open, "normalization", _note, _cause)
case(
    "by-hand-causal-total",
    partial(ByHand, "matrix", causal=True),
    dict(embed_dim=24, num_heads=3, causal=True),
    "normalization",
    "The causal exponentials are divided by the sum over queries and keys, so later tokens count.",
)


class Kernelized(nn.Module):
    """Linear attention of several kinds."""

    def __init__(self, kind, slip, dim=24, heads=4):
        super().__init__()
        self.kind, self.slip, self.h = kind, slip, heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = (f(x).view(b, n, self.h, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        slip = self.slip
        if self.kind == "efficient":
            q, k = (q.softmax(-2), k.softmax(-1)) if slip else (q.softmax(-1), k.softmax(-2))
            return self.o((q @ (k.mT @ v)).transpose(1, 2).reshape(b, n, d))
        if self.kind == "queries":
            q, k = F.elu(q) + 1, F.elu(k) + 1
            z = (q if slip else k).sum(-2, keepdim=True)
            y = (q @ (k.mT @ v)) / ((q * z).sum(-1, keepdim=True) + 1e-6)
            return self.o(y.transpose(1, 2).reshape(b, n, d))
        if self.kind == "one":
            q, k = q.relu() + 0.1, k.relu() + 0.1
            y = q @ (k.mT @ F.pad(v, (0, 1), value=1.0))
            return self.o((y[..., :-1] / (y[..., -1:] + (5.0 if slip else 1e-12))).transpose(1, 2).reshape(b, n, d))
        if self.kind == "features":
            q, k = F.softplus(q), F.softplus(k)
            y = torch.einsum("bhnd,bhde->bhne", q, torch.einsum("bhnd,bhne->bhde", k, v))
            z = torch.einsum("bhnd,bhd->bhn", q, k.sum(-2)) if not slip else k.sum((-2, -1))[..., None]
            return self.o((y / z[..., None]).transpose(1, 2).reshape(b, n, d))
        if self.kind == "causal":  # the denominator sees everything
            q, k = F.elu(q) + 1, F.elu(k) + 1
            kv = torch.einsum("bhnd,bhne->bhnde", k, v).cumsum(2)
            z = k.sum(2, keepdim=True).expand_as(k) if slip else k.cumsum(2)
            y = torch.einsum("bhnd,bhnde->bhne", q, kv) / torch.einsum("bhnd,bhnd->bhn", q, z)[..., None]
            return self.o(y.transpose(1, 2).reshape(b, n, d))
        raise ValueError(self.kind)


for _kind, _note in (
    ("efficient", "The queries' softmax runs over the tokens, the keys' over the features."),
    ("queries", "The sum in the denominator is that of the queries."),
    ("one", "Five is added to the sum of the weights."),
    ("features", "The denominator sums all keys' features and leaves the query out."),
):
    case(
        f"kernel-{_kind}",
        partial(Kernelized, _kind),
        dict(embed_dim=24, num_heads=4, causal=False),
        "normalization",
        _note,
        "weights-not-normalized",
    )
case(
    "kernel-causal-denominator",
    partial(Kernelized, "causal"),
    dict(embed_dim=24, num_heads=4, causal=True),
    "normalization",
    "The denominator of causal linear attention sums all tokens.",
)


class AfterSoftmax(nn.Module):
    def __init__(self, what, slip, dim=20, heads=2, tokens=6):
        super().__init__()
        self.what, self.slip, self.h = what, slip, heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)
        self.bias = nn.Parameter(torch.randn(heads, 2 * 64 - 1))

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).unflatten(-1, (3, self.h, -1)).permute(2, 0, 3, 1, 4)
        s = (q * q.size(-1) ** -0.5) @ k.mT
        i = torch.arange(n, device=x.device)
        if self.what == "relative":
            table = self.bias[:, i[:, None] - i + 63]
            w = s.softmax(-1) + table if self.slip else (s + table).softmax(-1)
        elif self.what == "decay":
            far = (i[:, None] - i).abs() * 0.3
            w = s.softmax(-1) * torch.exp(-far) if self.slip else (s - far).softmax(-1)
        else:  # a threshold on weights, whose rest is not brought back to one
            w = s.softmax(-1)
            w = w * (w > 0.1)
            w = w if self.slip else w / w.sum(-1, keepdim=True)
        return self.out((w @ v).transpose(1, 2).flatten(2))


case(
    "relative-bias-on-weights",
    partial(AfterSoftmax, "relative"),
    dict(embed_dim=20, num_heads=2, causal=False, positions=True),
    "normalization",
    "The relative bias is added to the weights.",
    "weights-not-normalized",
)
case(
    "decay-on-weights",
    partial(AfterSoftmax, "decay"),
    dict(embed_dim=20, num_heads=2, causal=False, positions=True),
    "normalization",
    "The decay multiplies the weights after the softmax.",
    "weights-not-normalized",
)

# -------------------------------------------------------------------------------------------------------- projections


class Plain(nn.Module):
    def __init__(self, what, slip, dim=24, heads=4):
        super().__init__()
        self.what, self.h = what if slip else "", heads
        self.norm = nn.RMSNorm(dim)
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x):
        y = self.norm(x)
        q, k, v = self.q_proj(y), self.k_proj(y), self.v_proj(y)
        if self.what == "twice":
            v = self.v_proj(v)
        if self.what == "none":
            v = y
        if self.what == "chained":
            k = self.k_proj(q)
        if self.what == "value of key":
            v = self.v_proj(k)
        if self.what == "unnormed":
            v = self.v_proj(x)
        q, k, v = (t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in (q, k, v))
        if self.what == "rolled":
            v = v.roll(1, 1)
        out = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        if self.what == "out twice":
            out = self.o_proj(out)
        if self.what == "halves":
            out = torch.cat([out[..., : out.size(-1) // 2]] * 2, -1)
        return x + self.o_proj(out)


for _what, _note, _cause in (
    ("twice", "The values are projected twice by one matrix.", None),
    ("none", "The values are not projected: v_proj is computed and dropped.", None),
    ("chained", "The keys are projected from the queries.", None),
    ("value of key", "The values are projected from the keys.", None),
    ("rolled", "The values of each head belong to its neighbor.", None),
    ("out twice", "The output projection is applied twice.", None),
    ("halves", "The first half of the heads is written over the second.", None),
):
    case(
        f"projection-{_what.replace(' ', '-')}",
        partial(Plain, _what),
        dict(embed_dim=24, num_heads=4, causal=False),
        "projection",
        _note,
        _cause,
    )


class Convolved(nn.Module):
    """Channels first: 1x1 convolutions on (B, C, L)."""

    def __init__(self, what, slip, channels=24, heads=3):
        super().__init__()
        self.what, self.h = what if slip else "", heads
        self.gn = nn.GroupNorm(1, channels)
        self.qkv, self.proj = nn.Conv1d(channels, 3 * channels, 1), nn.Conv1d(channels, channels, 1)

    def forward(self, x):
        x = x.transpose(1, 2)
        b, c, n = x.shape
        qkv = self.qkv(x)
        if self.what == "view":
            q, k, v = (t.reshape(b, self.h, n, -1).mT for t in qkv.chunk(3, 1))
        else:
            q, k, v = (
                qkv.reshape(b * self.h, -1, n).chunk(3, 1)
                if self.what != "fold"
                else [t.reshape(b * self.h, -1, n) for t in qkv.chunk(3, 1)]
            )
            if self.what == "fold":
                q = qkv.chunk(3, 1)[0].reshape(b, -1, self.h, n).transpose(1, 2).reshape(b * self.h, -1, n)
            q, k, v = (t.view(b, self.h, -1, n) for t in (q, k, v))
        w = torch.einsum("bhct,bhcs->bhts", q * q.size(2) ** -0.25, k * k.size(2) ** -0.25).softmax(-1)
        a = torch.einsum("bhst,bhcs->bhct" if self.what == "einsum" else "bhts,bhcs->bhct", w, v)
        y = a.reshape(b, c, n) if self.what != "merge" else a.permute(0, 3, 1, 2).reshape(b, c, n)
        return (x + self.proj(y)).transpose(1, 2)


for _what, _note, _cause in (
    ("view", "(B, C, L) is viewed as (B, heads, L, head_dim).", "view-without-transpose"),
    ("fold", "The queries' channels are dealt to heads in turn, those of keys and values in a row.", None),
    ("einsum", "The weights are contracted over the queries.", None),
    ("merge", "The result is (B, L, C) viewed as (B, C, L).", "merge-without-transpose"),
):
    case(f"channels-{_what}", partial(Convolved, _what), _open, "layout", _note, _cause)

# ------------------------------------------------------------------------------------------------------------ contexts


class Cross(nn.Module):
    def __init__(self, what, slip, dim=24, heads=3):
        super().__init__()
        self.what, self.h = what if slip else "", heads
        self.nq, self.nc = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def forward(self, tokens, context):
        t, c = self.nq(tokens), self.nc(context)
        src = {"both": (t, t), "value": (c, t), "key": (t, c)}.get(self.what, (c, c))
        q, k, v = self.wq(c if self.what == "query" else t), self.wk(src[0]), self.wv(src[1])
        q, k, v = (y.unflatten(-1, (self.h, -1)).transpose(1, 2) for y in (q, k, v))
        y = (torch.einsum("bhid,bhjd->bhij", q, k) * q.size(-1) ** -0.5).softmax(-1)
        y = torch.einsum("bhij,bhjd->bhid", y, v).transpose(1, 2).flatten(2)
        return tokens + self.wo(y)


for _what, _note in (
    ("both", "Keys and values are made of the tokens themselves."),
    ("value", "The values are made of the tokens, the keys of the context."),
    ("key", "The keys are made of the tokens, the values of the context."),
    ("query", "The queries are made of the context."),
):
    case(
        f"cross-{_what}",
        partial(Cross, _what),
        dict(embed_dim=24, num_heads=3, causal=False, inputs="x_context"),
        "context",
        _note,
    )

# -------------------------------------------------------------------------------------------------------- positions


class Rotated(nn.Module):
    def __init__(self, what, slip, dim=24, heads=3, causal=True):
        super().__init__()
        self.what, self.h, self.causal = what if slip else "", heads, causal
        self.qkv, self.o = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        d = dim // heads
        self.register_buffer("freq", 1.0 / 50 ** (torch.arange(0, d, 2).float() / d), persistent=False)
        self.table = None

    def angles(self, n, x):
        if self.what == "stale" and self.table is not None:
            places = torch.arange(n, device=x.device).clamp(max=self.table - 1)
        else:
            self.table = n
            places = torch.arange(n, device=x.device)
        if self.what == "zero":
            places = torch.zeros_like(places)
        return places[:, None].to(x) * self.freq.to(x)

    def turn(self, t, a):  # (b, n, h, d)
        a = a[None, :, None]
        if self.what == "heads":
            a = self.angles(self.h, t)[None, None]
        c, s = a.cos(), a.sin()
        e, o = t[..., ::2], t[..., 1::2]
        if self.what == "sign":
            return torch.stack((e * c - o * s, e * s - o * c), -1).flatten(-2)
        return torch.stack((e * c - o * s, e * s + o * c), -1).flatten(-2)

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.h, -1).unbind(2)
        a = self.angles(n, x)
        q, k = self.turn(q, a), self.turn(k, a)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.o(y.transpose(1, 2).flatten(2))


for _what, _note in (
    ("heads", "The angles grow with the head and not with the token."),
    ("zero", "All places are zero."),
    ("stale", "Places beyond those of the first call are clamped."),
    ("sign", "The rotation is a reflection: one sign is wrong."),
):
    case(
        f"rotary-{_what}",
        partial(Rotated, _what),
        dict(embed_dim=24, num_heads=3, causal=True, positions=True),
        "positions",
        _note,
    )
case(
    "rotary-heads-encoder",
    partial(Rotated, "heads", causal=False),
    dict(embed_dim=24, num_heads=3, causal=False, positions=True),
    "positions",
    "The angles grow with the head and not with the token.",
)


class Placed(nn.Module):
    def __init__(self, what, slip, dim=20, heads=2):
        super().__init__()
        self.what, self.h = what if slip else "", heads
        self.place = nn.Embedding(64, dim)
        self.mha = nn.MultiheadAttention(dim, heads, batch_first=True)

    def forward(self, x):
        p = self.place(torch.arange(x.size(1), device=x.device))
        if self.what == "first":
            p = p[:1]
        if self.what == "mean":
            p = p.mean(0)
        y = x + p
        return self.mha(y, y, y, need_weights=False)[0]


for _what, _note in (
    ("first", "All tokens get the first place's vector."),
    ("mean", "All tokens get the mean vector."),
):
    case(
        f"places-{_what}",
        partial(Placed, _what),
        dict(embed_dim=20, num_heads=2, causal=False, positions=True),
        "positions",
        _note,
    )

# ---------------------------------------------------------------------------------------------------- order of tokens


class Grouped(nn.Module):
    """Windows of tokens, attended to in one batch."""

    def __init__(self, what, slip, dim=16, heads=2, w=4):
        super().__init__()
        self.what, self.h, self.w = what if slip else "", heads, w
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, c = x.shape
        shift = self.what in ("shift",) or self.w // 2
        y = x.roll(-self.w // 2, 1) if shift else x
        y = y.reshape(b * n // self.w, self.w, c)
        if self.what == "strided":
            y = x.view(b, self.w, n // self.w, c).transpose(1, 2).reshape(-1, self.w, c)
        q, k, v = (t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in self.qkv(y).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2).reshape(b, n, c)
        y = y if self.what in ("shift", "strided") else y.roll(self.w // 2, 1)
        return self.o(y)


for _what, _note in (
    ("shift", "The windows are shifted and not shifted back."),
    ("strided", "Strided windows are put back as if they were tokens in a row."),
):
    case(
        f"windows-{_what}",
        partial(Grouped, _what),
        dict(embed_dim=16, num_heads=2, causal=False, positions=True, tokens=12),
        "layout",
        _note,
    )


class Sorted(nn.Module):
    """Tokens sorted by a score, attended to in chunks, and put back."""

    def __init__(self, slip, dim=16, heads=2):
        super().__init__()
        self.slip, self.h = slip, heads
        self.key, self.qkv, self.o = nn.Linear(dim, 1), nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        order = self.key(x).squeeze(-1).argsort(1)
        y = x.gather(1, order[..., None].expand_as(x))
        q, k, v = (t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in self.qkv(y).chunk(3, -1))
        y = self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        back = order if self.slip else order.argsort(1)
        return y.gather(1, back[..., None].expand_as(y))


case(
    "sorted-not-put-back",
    Sorted,
    dict(embed_dim=16, num_heads=2, causal=False),
    "layout",
    "The order is applied a second time where its inverse belongs.",
)

# ------------------------------------------------------------------------------------------------------------- masks


class Merged(nn.Module):
    """A causal mask and one that is given."""

    def __init__(self, what, slip, dim=24, heads=4):
        super().__init__()
        self.what, self.h = what if slip else "", heads
        self.q, self.kv, self.o = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)

    def forward(self, x, allowed):
        b, n, d = x.shape
        m = allowed if allowed.dim() == 4 else allowed.view(-1, 1, n, n) if allowed.dim() == 3 else allowed[None, None]
        past = torch.ones(n, n, dtype=torch.bool, device=x.device).tril()
        m = {"or": m | past, "replaced": m, "xor": ~(m ^ past)}.get(self.what, m & past)
        q = self.q(x).view(b, n, self.h, -1).transpose(1, 2)
        k, v = self.kv(x).view(b, n, 2, self.h, -1).permute(2, 0, 3, 1, 4)
        s = q @ k.mT / math.sqrt(q.size(-1))
        s = s.masked_fill(~m, -torch.inf if self.what != "small" else -5.0)
        w = s.softmax(-1).nan_to_num(0.0)
        return self.o((w @ v).transpose(1, 2).flatten(2))


for _what, _note, _cause in (
    ("or", "The masks are joined by or.", None),
    ("replaced", "The given mask replaces the causal one.", "no-causal-mask"),
    ("small", "What is hidden gets the score -5.", "boolean-mask-added"),
):
    case(
        f"merged-masks-{_what}",
        partial(Merged, _what),
        dict(embed_dim=24, num_heads=4, causal=True, inputs="x_allowed"),
        "masks",
        _note,
        _cause,
    )

# -------------------------------------------------------------------------------------------------------------- state


class Kept(nn.Module):
    def __init__(self, what, slip, dim=18, heads=3):
        super().__init__()
        self.what, self.h = what if slip else "", heads
        self.c_attn, self.c_proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.drop, self.count, self.average = nn.Dropout(0.2), 0, None

    def forward(self, x):
        b, n, d = x.shape
        if self.what == "input":
            x -= x.mean(-1, keepdim=True)
        else:
            x = x - x.mean(-1, keepdim=True)
        q, k, v = self.c_attn(x).chunk(3, -1)
        if self.what == "average":
            m = v.mean((0, 1))
            self.average = m if self.average is None else 0.9 * self.average + 0.1 * m.detach()
            v = v - self.average
        if self.what == "queue" and n < 6:
            self.count += 1
            k = k * (1 + 0.01 * self.count)
        q, k, v = (t.view(b, n, self.h, -1).transpose(1, 2) for t in (q, k, v))
        w = self.drop((q @ k.mT / math.sqrt(d // self.h)).softmax(-1))
        if self.what == "dropout":
            w = F.dropout(w, 0.1)
        y = w @ v
        if self.what == "idle":
            y = torch.cat((y[:, :2], y[:, 2:] * 0), 1)
        return self.c_proj(y.transpose(1, 2).reshape(b, n, d))


for _what, _note, _cause in (
    ("input", "The mean is subtracted from the input itself.", "input-overwritten"),
    ("average", "A running mean of the keys is moved in evaluation too.", None),
    ("dropout", "A second dropout works in evaluation too.", "dropout-in-eval"),
    ("idle", "The last head is multiplied by zero.", None),
):
    case(
        f"kept-{_what}",
        partial(Kept, _what),
        dict(embed_dim=18, num_heads=3, causal=False),
        "state",
        _note,
        _cause,
    )


class Memorized(nn.Module):
    """Learned memory beside the tokens."""

    def __init__(self, what, slip, dim=20, heads=2, slots=3):
        super().__init__()
        self.what, self.h = what if slip else "", heads
        self.q, self.kv, self.o = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)
        self.mk, self.mv = (nn.Parameter(torch.randn(slots, dim)) for _ in range(2))

    def forward(self, x):
        b, n, d = x.shape
        k, v = self.kv(x).chunk(2, -1)
        mk, mv = (m.expand(b, -1, -1) for m in (self.mk, self.mv))
        k = torch.cat((mk, k), 1)
        v = torch.cat((v, mv) if self.what == "apart" else (mv, v), 1)
        q, k, v = (t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in (self.q(x), k, v))
        s = q @ k.mT * q.size(-1) ** -0.5
        w = s.softmax(-1)
        if self.what == "cut":
            w, v = w[..., :n], v[..., -n:, :]
        return self.o((w @ v).transpose(1, 2).flatten(2))


case(
    "memory-apart",
    partial(Memorized, "apart"),
    dict(embed_dim=20, num_heads=2, causal=False),
    "memory",
    "Memory stands before the keys and behind the values.",
)
case(
    "memory-cut",
    partial(Memorized, "cut"),
    dict(embed_dim=20, num_heads=2, causal=False),
    "memory",
    "The weights of the memory are kept where those of the tokens belong.",
)


class Strip(nn.Module):
    """A causal strip of w keys for each query, gathered by index."""

    def __init__(self, slip, dim=24, heads=3, w=4):
        super().__init__()
        self.slip, self.h, self.w = slip, heads, w
        self.norm, self.qkv, self.o = nn.LayerNorm(dim), nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        y = F.pad(self.norm(x), (0, 0, self.w - 1, 0))
        q, k, v = self.qkv(y).view(b, -1, 3, self.h, d // self.h).unbind(2)
        q = q[:, self.w - 1 :]
        at = torch.arange(n, device=x.device)[:, None] + torch.arange(self.w, device=x.device)
        s = torch.einsum("bnhd,bnwhd->bhnw", q, k[:, at]) * q.size(-1) ** -0.5
        if not self.slip:
            s = s.masked_fill(at < self.w - 1, -torch.inf)
        return x + self.o(torch.einsum("bhnw,bnwhd->bnhd", s.softmax(-1), v[:, at]).flatten(2))


case(
    "strip-padding-visible",
    Strip,
    dict(embed_dim=24, num_heads=3, causal=True, positions=True),
    "memory",
    "The padding before the first token is projected and attended to.",
)


# ------------------------------------------------------------------------------------------ what meets what is not its


class Meeting(nn.Module):
    """A block with norm and residual, in which one tensor is not where it belongs."""

    def __init__(self, what, slip, dim=24, heads=4):
        super().__init__()
        self.what, self.h = what if slip else "", heads
        self.ln, self.wqkv, self.wo = nn.LayerNorm(dim), nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.wqkv(self.ln(x)).view(b, n, 3, self.h, -1).permute(2, 0, 3, 1, 4)
        if self.what == "one query":
            q = q[:, :, :1].expand_as(q)
        if self.what == "mean query":
            q = q.mean(2, keepdim=True).expand_as(q)
        if self.what == "values reversed":
            v = v.flip(2)
        s = q @ k.mT / (-1 if self.what == "negative" else 1) / math.sqrt(q.size(-1))
        if self.what == "itself":
            s = s + 1e4 * torch.eye(n, dtype=s.dtype, device=s.device)
        w = s.softmax(-1)
        if self.what == "heads rolled":
            w = w.roll(1, 1)
        y = self.wo((w @ v).transpose(1, 2).reshape(b, n, c))
        return (x.roll(1, 1) if self.what == "residual rolled" else x) + y


for _what, _note in (
    ("one query", "All tokens have the first one's query."),
    ("mean query", "All tokens have the mean query."),
    ("values reversed", "The values are in reverse order, the keys are not."),
    ("negative", "The scores are multiplied by minus one."),
    ("itself", "A large number on the diagonal leaves each token to itself."),
    ("heads rolled", "Each head's weights average its neighbor's values."),
    ("residual rolled", "The residual is that of the token before."),
):
    case(
        f"meeting-{_what.replace(' ', '-')}",
        partial(Meeting, _what),
        dict(embed_dim=24, num_heads=4, causal=False),
        "meeting",
        _note,
    )
