"""Positions: rotations, distances, tables, places that are learned, and latent attention, which rotates a part."""

import math

import torch
import torch.nn.functional as F
from torch import einsum, nn

from .attention import (
    BY_HEAD,
    FOLDED,
    SDPA,
    SDPA_CAUSAL,
    SDPA_GROUPED,
    SEQUENCE_FIRST,
    TIME_FIRST,
    TOKENS_FIRST,
    Attention,
    RMSNorm,
    add,
    fill,
    fill_least,
    pair,
    sdpa,
    separate,
    with_none,
)
from .cases import Cases, Style
from .plain import OfPyTorch

CASES = Cases()
right, wrong, slip_of = CASES.right, CASES.wrong, CASES.slip

# --------------------------------------------------------------------------------------------------------- rotations


def angles(at, width, base, like):
    inverse = base ** -(torch.arange(0, width, 2, device=like.device, dtype=torch.float64) / width)
    return (at[:, None] * inverse).to(like.dtype)


def half_turned(x):
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


def rope(x, at, base=10000.0, pairs=False, width=None, sign=1.0):
    """Turns the first `width` features of (..., tokens, features) in halves or in neighboring pairs."""
    x, rest = (x, None) if width is None else (x[..., :width], x[..., width:])
    turn = sign * angles(at, x.size(-1), base, x)
    cos, sin = turn.cos(), turn.sin()
    if pairs:
        a, b = x[..., ::2], x[..., 1::2]
        y = torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)
    else:
        y = x * torch.cat((cos, cos), -1) + half_turned(x) * torch.cat((sin, sin), -1)
    return y if rest is None else torch.cat((y, rest), -1)


def complex_rope(x, at, base=10000.0):
    turn = angles(at, x.size(-1), base, x)
    z = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous())
    return torch.view_as_real(z * torch.polar(torch.ones_like(turn), turn)).flatten(-2)


def behind_heads(turn, x, at):
    """Turns (b, t, h, d)."""
    return turn(x.transpose(1, 2), at).transpose(1, 2)


def rotary(turn=rope, **how):
    return {"placed": lambda q, k, v, at: (turn(q, at, **how), turn(k, at, **how), v), "positions": True}


def of_grid(x, at, side=3):
    """Half of the features turns by the row, half by the column."""
    a, b = x.chunk(2, -1)
    return torch.cat((rope(a, at // side, 10.0), rope(b, at % side, 10.0)), -1)


def tables_of_pairs(x, at):
    """Halves are turned with the tables of neighboring pairs."""
    turn = angles(at, x.size(-1), 10000.0, x).repeat_interleave(2, -1)
    return x * turn.cos() + half_turned(x) * turn.sin()


def in_sixteen_bits(x, at):
    turn = angles(at, x.size(-1), 10000.0, x).bfloat16().repeat(1, 2)
    return x * turn.cos().to(x) + half_turned(x) * turn.sin().to(x)


def reflected(x, at):
    turn = angles(at, x.size(-1), 50.0, x)
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack((a * turn.cos() - b * turn.sin(), a * turn.sin() - b * turn.cos()), -1).flatten(-2)


def turned_by_head(x, at):
    """The angle grows with the head where it should grow with the token."""
    return rope(x.transpose(1, 2), torch.arange(x.size(1), device=x.device), 50.0, pairs=True).transpose(1, 2)


def one_in_other(q, k, v, at):
    """The query's sine takes the key."""
    turn = angles(at, q.size(-1), 10000.0, q).repeat(1, 2)
    q, k = (x * turn.cos() + half_turned(k) * turn.sin() for x in (q, k))
    return q, k, v


class StaleTable(Attention):
    """Rotary positions; the slip keeps the table of the first call, and clamps the places to it."""

    def __init__(self, slip="", **options):
        super().__init__(**options)
        self.slip, self.table = slip, None

    def placed(self, q, k, v, at):
        if self.slip and self.table is not None:
            at = at.clamp(max=self.table - 1)
        else:
            self.table = len(at)
        return rope(q, at, 50.0, pairs=True), rope(k, at, 50.0, pairs=True), v


class WideNorm(Attention):
    """The whole of the queries and of the keys is normalized, before the heads are split."""

    def __init__(self, **options):
        super().__init__(**options)
        self.wide_q, self.wide_k = RMSNorm(self.sizes[0]), RMSNorm(self.sizes[1])

    def made(self, q, k, v):
        return self.wide_q(q), self.wide_k(k), v


ROPE = Style(Attention, dim=24, heads=3, bias=False, **rotary())
LLAMA = ROPE(dim=32, heads=4, names=separate("", "_proj"), out_bias=False, causal=True)

# ------------------------------------------------------------------------------------------ distances and their slopes


def slopes(heads, like):
    closest = 2 ** math.floor(math.log2(heads))
    made = [2 ** (-8 * (i + 1) / closest) for i in range(closest)]
    made += [2 ** (-4 * (2 * i + 1) / closest) for i in range(heads - closest)]
    return like.new_tensor(made)[:, None, None]


def ahead(s):
    """How many tokens each key of the scores is ahead of the query."""
    t, n = s.shape[-2:]
    return torch.arange(n, device=s.device) - torch.arange(n - t, n, device=s.device)[:, None]


def sloped(distance, hide=fill):
    """Adds a slope for each head, times a distance, to scores (b, h, t, s)."""
    return lambda s, allowed: hide(s + slopes(s.size(1), s) * distance(s), allowed)


def near(s):
    return -ahead(s).abs()


def places(s):
    return torch.arange(s.size(-1), device=s.device)


def sloped_sdpa(distance):
    def core(q, k, v, allowed):
        s = (q @ k.mT)[:1] * 0
        return sdpa(q, k, v, fill(s + slopes(q.size(1), q) * distance(s), allowed))

    return core


def sloped_folded(repeat):
    """Slopes of a batch that has the heads in it."""
    return lambda s, a: fill_least(s + repeat(slopes(4, s)[:, 0, 0], s.size(0) // 4)[:, None, None] * places(s), a)


ALIBI = Style(Attention, dim=24, heads=4, positions=True)


class Biased(Attention):
    """Adds a bias to the scores; the slip adds it to the weights."""

    def __init__(self, fused=False, slip="", **options):
        super().__init__(**options)
        self.fused, self.slip = fused, slip

    def core(self, q, k, v, allowed):
        bias = self.bias(q)
        if self.fused:
            return sdpa(q, k, v, fill(bias, allowed))
        if self.slip == "after softmax":
            w = fill(self.score(q, k), allowed).softmax(-1) + bias
        else:
            w = fill(self.score(q, k) + bias, allowed).softmax(-1)
        return w @ v, w


class Buckets(Biased):
    """T5: a learned bias for each bucket of distances, to one side or to both."""

    def __init__(self, buckets=8, far=16, two_sided=True, **options):
        super().__init__(**options)
        self.buckets, self.far, self.two_sided = buckets, far, two_sided
        self.relative_attention_bias = nn.Embedding(buckets, self.heads)

    def bucket(self, distance):
        n = self.buckets // 2 if self.two_sided else self.buckets
        side, distance = (distance > 0).long() * n, distance.abs() if self.two_sided else -distance.clamp(max=0)
        exact = n // 2
        large = torch.log(distance.clamp(min=1).float() / exact) / math.log(self.far / exact) * (n - exact)
        large = (exact + large.long()).clamp(max=n - 1)
        return side * self.two_sided + torch.where(distance < exact, distance, large)

    def bias(self, q):
        at = torch.arange(q.size(2), device=q.device)
        bias = self.relative_attention_bias(self.bucket(at - at[:, None])).permute(2, 0, 1)
        return bias.mT if self.slip == "transposed" else bias


class Table(Biased):
    """Swin: a learned bias for each offset on a grid, or, as LeViT has it, for each distance along both sides."""

    def __init__(self, grid=(3, 3), absolute=False, **options):
        super().__init__(**options)
        h, w = grid
        y, x = (t.flatten() for t in torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij"))
        y, x = y[:, None] - y, x[:, None] - x
        row = 1 if self.slip == "rows as columns" else 2 * w - 1
        index = y.abs() * w + x.abs() if absolute else (y + h - 1) * row + x + w - 1
        self.table = nn.Parameter(torch.randn(h * w if absolute else (2 * h - 1) * (2 * w - 1), self.heads) * 0.5)
        self.register_buffer("index", index.T.contiguous() if self.slip == "transposed" else index, persistent=False)

    def bias(self, q):
        n = len(self.index)
        bias = self.table[self.index.view(-1)].view(n, n, -1).to(q.dtype)
        return bias.reshape(-1, n, n) if self.slip == "viewed" else bias.permute(2, 0, 1)


class CoordinateBias(Biased):
    """Swin V2: cosines with a learned scale that is clamped, and a bias from a small network of log-spaced offsets."""

    def __init__(self, grid=(2, 3), **options):
        super().__init__(**options)
        self.logit_scale = nn.Parameter(torch.full((self.heads, 1, 1), math.log(10.0)))
        self.net = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, self.heads, bias=False))
        at = torch.stack(torch.meshgrid(*(torch.arange(s) for s in grid), indexing="ij"), -1).flatten(0, 1)
        offset = (at[:, None] - at) * 8 / (torch.tensor(grid) - 1)
        self.register_buffer("offset", offset.sign() * torch.log2(offset.abs() + 1) / 3, persistent=False)

    def score(self, q, k):
        return F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * self.logit_scale.clamp(max=math.log(100.0)).exp()

    def bias(self, q):
        return 16 * torch.sigmoid(self.net(self.offset.to(q.dtype)).permute(2, 0, 1))


def skewed(x):
    """From (..., t, n) by distance to scores by key."""
    x = F.pad(x, (1, 0))
    return x.reshape(*x.shape[:-2], x.size(-1), x.size(-2))[..., 1:, :].reshape(*x.shape[:-1], x.size(-1) - 1)


class Distances(Attention):
    """Transformer-XL: scores of content and of the distance, each with its own bias of the query."""

    def __init__(self, dim=24, two_sided=True, **options):
        super().__init__(dim, **options)
        self.two_sided, self.of_distance = two_sided, nn.Linear(dim, dim, bias=False)
        self.u, self.w = (nn.Parameter(torch.randn(self.heads, 1, self.width) * 0.3) for _ in "uw")

    def score(self, q, k):
        n = q.size(-2)
        at = torch.arange(n - 1, -n if self.two_sided else -1, -1, device=q.device)
        turn = angles(at, self.of_distance.in_features, 10000.0, q)
        p = self.of_distance(torch.cat((turn.sin(), turn.cos()), -1)).unflatten(-1, (self.heads, -1)).transpose(0, 1)
        return ((q + self.u) @ k.mT + skewed((q + self.w) @ p.mT)[..., :n]) / math.sqrt(q.size(-1))


class Skewed(Attention):
    """Distances back by a table of which the last rows are taken, and skewed; the slip takes the first rows."""

    def __init__(self, longest=64, slip="", **options):
        super().__init__(**options)
        self.table, self.slip = nn.Parameter(torch.randn(longest, self.width)), slip

    def score(self, q, k):
        n = q.size(-2)
        rows = self.table[:n] if self.slip else self.table[-n:]
        return (q @ k.mT + skewed(einsum("bhid,nd->bhin", q, rows))) * q.size(-1) ** -0.5


class RelativeKeys(Attention):
    """Relative keys and values (Shaw), clipped at three."""

    def __init__(self, most=3, **options):
        super().__init__(**options)
        self.most = most
        self.of_keys, self.of_values = (nn.Embedding(2 * most + 1, self.width) for _ in "kv")

    def core(self, q, k, v, allowed):
        at = torch.arange(q.size(2), device=q.device)
        far = (at - at[:, None]).clamp(-self.most, self.most) + self.most
        s = q @ k.mT + einsum("bhid,ijd->bhij", q, self.of_keys(far))
        w = (s / math.sqrt(q.size(-1))).softmax(-1)
        return w @ v + einsum("bhij,ijd->bhid", w, self.of_values(far)), w


# ------------------------------------------------------------------------------------------------------------- places


def sinusoids(x):
    turn = angles(torch.arange(x.size(1), device=x.device), x.size(-1), 10000.0, x)
    return torch.cat((turn.sin(), turn.cos()), -1)


class Placed(Attention):
    """Learned vectors of the tokens' places join the tokens."""

    def __init__(self, dim=24, first=0, longest=4200, batch_first=True, inputs="x", **options):
        super().__init__(dim, batch_first=batch_first, inputs=inputs, **options)
        self.place, self.first, self.batch_first = nn.Embedding(longest, dim), first, batch_first
        self.behind = nn.LayerNorm(dim) if first else nn.Identity()

    def at(self, at):
        return at

    def attend(self, x, key, value, allowed=None, cache=None):
        past = 0 if cache is None else self.past(cache)
        at = self.at(torch.arange(past, past + x.size(1 if self.batch_first else 0), device=x.device))
        places = self.place(at + self.first)
        x = self.behind(x + (places if self.batch_first else places[:, None]))
        return super().attend(x, x, x, allowed, cache)


class PyTorchPlaced(OfPyTorch):
    """nn.MultiheadAttention, with places that join the queries, the keys and the values, or some of them."""

    def __init__(self, dim=24, *, join="qkv", learned=True, longest=128, slip="", **options):
        super().__init__(dim, **options)
        self.place = nn.Parameter(torch.randn(longest, dim)) if learned else None
        self.joined, self.slip = join, slip

    def taken(self, query, key, value):
        p = sinusoids(query) if self.place is None else self.place[: query.size(1 if self.mha.batch_first else 0)]
        p = {"first": p[:1], "mean": p.mean(0)}.get(self.slip, p)
        p = p if self.mha.batch_first else p.unsqueeze(1)
        each = zip("qkv", (query, key, value), strict=True)
        return [x + p if name in self.joined else x for name, x in each]


# ------------------------------------------------------------------------------------------------------------- latents


class Latent(Attention):
    """Keys and values come out of a latent vector; a part of the key, which all heads share, is rotated."""

    def __init__(
        self,
        dim=24,
        rank=8,
        plain=6,
        turned=4,
        value=6,
        q_rank=0,
        norm=RMSNorm,
        packed=True,
        causal=True,
        slip="",
        **options,
    ):
        sizes = {"width": plain + turned, "value_width": value}
        super().__init__(dim, names="q kv_a o", causal=causal, bias=False, out_bias=False, **sizes, **options)
        self.rank, self.plain, self.turned, self.packed, self.slip = rank, plain, turned, packed, slip
        if q_rank:
            self.q = nn.Sequential(
                nn.Linear(dim, q_rank, bias=False), norm(q_rank), nn.Linear(q_rank, self.sizes[0], bias=False)
            )
        self.kv_a, self.latent_norm = nn.Linear(dim, rank + turned, bias=False), norm(rank)
        k, v = self.heads * plain, self.heads * value
        if packed:
            self.kv_b = nn.Linear(rank, k + v, bias=False)
        else:
            self.k_b, self.v_b = nn.Linear(rank, k, bias=False), nn.Linear(rank, v, bias=False)

    def up(self, latent):
        if self.packed:
            kv = super().split(self.kv_b(latent), self.heads)
            return kv.chunk(2, -1)[::-1] if self.slip == "halves" else kv.tensor_split([self.plain], -1)
        k, v = (self.v_b, self.k_b) if self.slip == "up-projections" else (self.k_b, self.v_b)
        return super().split(k(latent), self.heads), super().split(v(latent), self.heads)

    def project(self, x, *_):
        at = torch.arange(x.size(1), device=x.device)
        q, q_turned = super().split(self.q(x), self.heads).tensor_split([self.plain], -1)
        latent, k_turned = self.kv_a(x).tensor_split([self.rank], -1)
        k, v = self.up(self.latent_norm(latent))
        if self.turned:
            k_turned = k_turned[:, None] if self.slip == "shared key" else rope(k_turned[:, None], at)
            q = torch.cat((q, rope(q_turned, at)), -1)
            k = torch.cat((k, k_turned.expand(-1, self.heads, -1, -1)), -1)
        return q, k, v

    def split(self, t, heads):
        return t


MLA = Style(Latent, positions=True)

# ----------------------------------------------------------------------------------------------------------- rotations

right("llama-rotary", LLAMA(names=separate("w"), show=add, **rotary(complex_rope)))
right(
    "llama-rotary-complex",
    LLAMA(dim=24, heads=2, names=separate("w"), show=add, **TOKENS_FIRST),
    placed=lambda q, k, v, at: (behind_heads(complex_rope, q, at), behind_heads(complex_rope, k, at), v),
)
right("llama-rotary-halves", LLAMA(groups=2, returns=with_none, **SDPA_CAUSAL | rotary(base=500.0)))
right(
    "gptj-partial-interleaved",
    LLAMA(dim=30, heads=3, returns=with_none, **rotary(pairs=True, width=6)),
    show=lambda s, a: fill_least(s * 10**0.5, a) / 10**0.5,
)
right("vit-rotary-2d", ROPE(dim=16, heads=2, tokens=9, **SDPA | rotary(of_grid)))
right("whole-width-qk-norm-gqa", Style(WideNorm, heads=4, groups=2, bias=False, **SDPA_CAUSAL))
wrong(
    "llama2-no-scale",
    LLAMA(names=separate("w"), show=add, **rotary(complex_rope)),
    "missing-scale",
    score=lambda q, k: q @ k.mT,
)
GROUPED = LLAMA(groups=2, returns=with_none, **SDPA_CAUSAL)
wrong(
    "llama-rotary-on-v",
    LLAMA(returns=with_none, **SDPA_CAUSAL),
    placed=lambda q, k, v, at: (rope(q, at), rope(k, at), rope(v, at)),
)
wrong(
    "rotary-behind-norms-over-tokens",
    LLAMA(names=separate("w"), qk_norm=RMSNorm),
    qk_norm=lambda width: RMSNorm(width, axis=-2),
)
wrong("encoder-rotary-q-only", ROPE(**rotary(pairs=True)), placed=lambda q, k, v, at: (rope(q, at, pairs=True), k, v))
wrong(
    "gqa-rotary-k-only",
    LLAMA(groups=2, qk_norm=RMSNorm, **SDPA_GROUPED),
    placed=lambda q, k, v, at: (q, rope(k, at), v),
)
wrong("llama-conjugate", GROUPED, placed=lambda q, k, v, at: (rope(q, at), rope(k, at, sign=-1.0), v))
wrong(
    "gqa-rotary-pairing-differs",
    LLAMA(groups=2, **SDPA_CAUSAL | rotary(pairs=True)),
    "rope-pairing",
    placed=lambda q, k, v, at: (rope(q, at, pairs=True), rope(k, at), v),
)
wrong(
    "partial-rotary-keys-other-pairs",
    LLAMA(heads=2, bias=True, norm=nn.LayerNorm, residual=True, **SDPA_CAUSAL | rotary(width=8)),
    "rope-pairing",
    placed=lambda q, k, v, at: (rope(q, at, width=8), rope(k, at, width=8, pairs=True), v),
)
wrong("rotary-tables-paired-otherwise", ROPE(**SDPA), "rope-pairing", **rotary(tables_of_pairs))
wrong("rotary-in-bfloat16", ROPE(**SDPA), "rope-in-bfloat16", **rotary(in_sixteen_bits))
wrong("query-turned-into-key", ROPE(heads=4, **SDPA), placed=one_in_other)
wrong(
    "gqa-keys-tiled-values-repeated",
    LLAMA(groups=2),
    "repeat-for-repeat-interleave",
    widen=lambda k, v, n: (torch.cat([k] * n, 1), v.repeat_interleave(n, 1)),
)
TURNED = ROPE(out_bias=False, **SDPA_CAUSAL | rotary(base=50.0, pairs=True))
wrong("rotary-heads-encoder", TURNED(causal=False), **rotary(turned_by_head))
wrong("rotary-zero", TURNED, **rotary(lambda x, at: rope(x, at * 0, 50.0, pairs=True)))
wrong("rotary-sign", TURNED, **rotary(reflected))
wrong("rotary-stale", Style(StaleTable, positions=True, bias=False, out_bias=False, **SDPA_CAUSAL), slip="first call")
SMEARED = {"placed": lambda q, k, v, at: (q, 0.6 * k + 0.4 * F.pad(k, (0, 0, 1, -1)), v)}
right("own-smeared-keys", Style(Attention, positions=True, **SDPA_CAUSAL | SMEARED))

# ----------------------------------------------------------------------------------------------------------- distances

right("bloom-alibi-by-a-mask", ALIBI(causal=True, core=sloped_sdpa(places), **BY_HEAD))
wrong("alibi-rewards-distance", ALIBI(causal=True, show=sloped(near)), "alibi-sign", show=sloped(lambda s: -near(s)))
wrong("alibi-of-three-up", ALIBI(dim=27, heads=3, show=sloped(near)), "alibi-sign", show=sloped(lambda s: -near(s)))
wrong("linear-bias-encoder", ALIBI(show=sloped(near), **TIME_FIRST), "alibi-sign", show=sloped(ahead))
wrong(
    "alibi-slopes-reversed",
    ALIBI(dim=32, heads=8, bias=False, causal=True, core=sloped_sdpa(ahead)),
    core=lambda q, k, v, a: sdpa(q, k, v, fill(slopes(8, q).flip(0) * ahead(q @ k.mT), a)),
)
wrong(
    "bloom-slopes-order",
    ALIBI(causal=True, **FOLDED | {"show": sloped_folded(lambda m, b: m.repeat(b))}),
    show=sloped_folded(lambda m, b: m.repeat_interleave(b)),
)
wrong(
    "decay-on-weights",
    Style(Attention, dim=20, heads=2, positions=True, show=lambda s, a: s + 0.3 * near(s)),
    "weights-not-normalized",
    show=lambda s, a: s,
    weigh=lambda s, a: s.softmax(-1) * torch.exp(0.3 * near(s)),
)

NO_BIAS = {"names": separate("", "_"), "bias": False, "out_bias": False}
T5 = Style(Buckets, dim=16, heads=4, positions=True, score=lambda q, k: q @ k.mT, **NO_BIAS)
right("t5-encoder-layer", T5(dim=24, width=5, buckets=16, far=20, norm=RMSNorm, residual=True, returns=pair))
right("bucket-encoder", Style(Buckets, heads=4, width=8, bias=False, positions=True, fused=True, returns=pair))
wrong(
    "relative-bias-on-weights",
    Style(Buckets, dim=20, heads=2, bias=False, positions=True),
    "weights-not-normalized",
    slip="after softmax",
)

SWIN = Style(Table, dim=24, heads=4, positions=True, tokens=9)
LEVIT = SWIN(heads=3, grid=(2, 4), tokens=8, absolute=True)
right("swin-window", SWIN(heads=3))
right("levit-grid-bias", LEVIT(width=4, value_width=8, after=lambda y, x: F.hardswish(y)))
right("swin-v2-cosine", Style(CoordinateBias, dim=16, heads=2, positions=True, tokens=6))
wrong("swin-table-transposed", SWIN(dim=18, heads=3, grid=(1, 7), tokens=7), slip="transposed")
wrong("swin-bias-viewed", SWIN(grid=(1, 9)), "view-without-transpose", slip="viewed")
wrong("swin-rows-as-columns", SWIN, slip="rows as columns")

right("transformer-xl", Style(Distances, two_sided=False, causal=True, positions=True, bias=False, **TIME_FIRST))
right("shaw-relative", Style(RelativeKeys, names=separate("fc_"), positions=True))
right("relative-by-length", ALIBI(heads=3, causal=True, show=lambda s, a: fill(s + near(s) / s.size(-1), a)))
wrong("skew-from-the-start", Style(Skewed, causal=True, positions=True), slip="first rows")

# ------------------------------------------------------------------------------------------------------------- places

PLACED = Style(Placed, positions=True)
right("token-and-place", PLACED(dim=20, heads=2, causal=True, **SEQUENCE_FIRST))
right("bart-learned-positions", PLACED(heads=4, first=2, residual=True, returns=pair, **FOLDED))
right("nine-learned-positions", PLACED(dim=12, longest=9, causal=False))
right(
    "positions-on-qk",
    ALIBI(names=separate("sa_"), residual="before"),
    taken=lambda q, k, v: (q + sinusoids(q), k + sinusoids(k), v),
)
right("detr-query-pos", Style(PyTorchPlaced, join="qk", residual="before", batch_first=False, positions=True))
right("detr-sinusoids", Style(PyTorchPlaced, dim=16, join="qk", learned=False, residual="before", positions=True))
right("own-placed-queries", Style(PyTorchPlaced, heads=3, join="q", inputs="x_context", residual=True, positions=True))
right("own-two-places", Style(PyTorchPlaced, heads=3, join="q", longest=2, tokens=2, positions=True))
wrong("places-first", Style(PyTorchPlaced, dim=20, heads=2, positions=True), slip="first")
wrong("places-mean", Style(PyTorchPlaced, dim=20, heads=2, positions=True), slip="mean")

# ------------------------------------------------------------------------------------------------------------- latents

right("mla-latent-query-rope", MLA(q_rank=10, value=7))
wrong(
    "mla-scale-without-rotary",
    MLA(rank=10, value=8, packed=False),
    "wrong-d-in-scale",
    score=lambda q, k: q @ k.mT * 6**-0.5,
)
wrong(
    "mla-up-projections-swapped",
    Style(Latent, dim=20, heads=2, plain=10, turned=0, value=10, norm=nn.Identity, packed=False, **SDPA_CAUSAL),
    slip="up-projections",
)
wrong("mla-absorbed-wrong-half", MLA(dim=20, heads=2, rank=9, norm=nn.LayerNorm, **SDPA_CAUSAL), slip="halves")
wrong("mla-shared-key-unrotated", MLA(**SDPA_CAUSAL), slip="shared key")
