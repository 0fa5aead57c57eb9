"""Correct attention modules that were accused, or that stopped the doctor, when it first saw them."""

import torch
import torch.nn.functional as F
from cases import Case, seeded
from torch import nn

CASES = []


def case(name, build, kind, note, **call):
    CASES.append(Case(name, seeded(19, build), call, kind, note))


class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return self.weight * x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()


class UnscaledCross(nn.Module):
    """The scale is in what the query's weights are drawn with."""

    def __init__(self, dim=16, heads=2, residual=True):
        super().__init__()
        self.heads, self.residual = heads, residual
        self.norm = RMSNorm(dim)
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        for layer in (self.k, self.v, self.o):
            nn.init.normal_(layer.weight, std=dim**-0.5)
        nn.init.normal_(self.q.weight, std=(dim * dim // heads) ** -0.5)

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x, memory):
        q = self.split(self.q(self.norm(x) if self.residual else x))
        k, v = self.split(self.k(memory)), self.split(self.v(memory))
        y = self.o(((q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2))
        return x + y if self.residual else y


case("unscaled-cross-residual", UnscaledCross, "t5", "", embed_dim=16, causal=False, inputs="x_context")
case("unscaled-cross", lambda: UnscaledCross(residual=False), "t5", "", embed_dim=16, causal=False, inputs="x_context")


class RolledChunks(nn.Module):
    """Chunks of four tokens of a ring, moved by two and back."""

    def __init__(self, dim=16, heads=2, chunk=4):
        super().__init__()
        self.heads, self.chunk = heads, chunk
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, c = x.shape
        y = x.roll(-(self.chunk // 2), 1).reshape(-1, self.chunk, c)
        q, k, v = self.qkv(y).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, c)
        return x + self.proj(y.roll(self.chunk // 2, 1))


case("rolled-chunks", RolledChunks, "windows", "", embed_dim=16, causal=False, tokens=12, positions=True)


class RowsAndColumns(nn.Module):
    """Attention along rows plus attention along columns, written with einsum."""

    def __init__(self, dim=16, heads=2, height=3, width=5):
        super().__init__()
        self.grid, self.heads = (height, width), heads
        self.rows, self.columns = nn.Linear(dim, 3 * dim), nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def along(self, qkv):
        q, k, v = qkv.unflatten(-1, (3, self.heads, -1)).unbind(-3)
        weights = torch.einsum("brihd,brjhd->brhij", q, k).mul(q.size(-1) ** -0.5).softmax(-1)
        return torch.einsum("brhij,brjhd->brihd", weights, v).flatten(-2)

    def forward(self, x):
        grid = x.unflatten(1, self.grid)
        rows = self.along(self.rows(grid))
        columns = self.along(self.columns(grid.transpose(1, 2))).transpose(1, 2)
        return self.out((rows + columns).flatten(1, 2))


case("rows-and-columns", RowsAndColumns, "axial", "", embed_dim=16, causal=False, tokens=15, positions=True)


class LeadingRegisters(nn.Module):
    def __init__(self, dim=16, heads=2, count=3):
        super().__init__()
        self.registers = nn.Parameter(torch.randn(1, count, dim))
        self.norm, self.attn = nn.LayerNorm(dim), nn.MultiheadAttention(dim, heads, batch_first=True)

    def forward(self, x):
        y = torch.cat([self.registers.expand(len(x), -1, -1), x], 1)
        z = self.norm(y)
        y = y + self.attn(z, z, z, need_weights=False)[0]
        return y[:, self.registers.size(1) :]


case("leading-registers", LeadingRegisters, "registers", "", embed_dim=16, causal=False)


class SortedChunks(nn.Module):
    """Tokens are sorted by a score, attend in chunks, and are put back."""

    def __init__(self, dim=16, heads=2):
        super().__init__()
        self.score, self.heads = nn.Linear(dim, 1), heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, c = x.shape
        order = self.score(x).squeeze(-1).argsort(-1)
        y = x.gather(1, order[..., None].expand_as(x)).reshape(-1, 4, c)
        q, k, v = self.qkv(y).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, c)
        return self.out(y.gather(1, order.argsort(-1)[..., None].expand_as(y)))


case("sorted-chunks", SortedChunks, "sorted", "", embed_dim=16, causal=False, tokens=12)


class LargestKeys(nn.Module):
    """The largest scores of each query; what is left out is hidden, or gets its weight taken away."""

    def __init__(self, dim=24, heads=4, count=3, late=False):
        super().__init__()
        self.heads, self.count, self.late = heads, count, late
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT * q.size(-1) ** -0.5
        count = min(self.count, x.size(1))
        chosen = torch.zeros_like(scores).scatter(-1, scores.topk(count, -1).indices, 1.0)
        if self.late:
            weights = (scores * chosen).softmax(-1) * chosen
            weights = weights / weights.sum(-1, keepdim=True)
        else:
            weights = scores.masked_fill(chosen == 0, -torch.inf).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


case("largest-keys", LargestKeys, "sparse", "", embed_dim=24, causal=False)
case("largest-keys-cleared", lambda: LargestKeys(late=True), "sparse", "", embed_dim=24, causal=False)


class Rectified(nn.Module):
    """Scores below zero are zero before the softmax."""

    def __init__(self, dim=24, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        weights = (q @ k.mT * q.size(-1) ** -0.5).relu().softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


case("rectified-scores", Rectified, "sparse", "", embed_dim=24, causal=False)


class OneProjection(nn.Module):
    """Queries, keys and values are made by one matrix on purpose."""

    def __init__(self, dim=24, heads=4):
        super().__init__()
        self.heads = heads
        self.subspaces, self.out = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim)

    def forward(self, x):
        z = self.subspaces(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return self.out(F.scaled_dot_product_attention(z, z, z).transpose(1, 2).flatten(2))


case("one-projection", OneProjection, "shared", "", embed_dim=24, causal=False)


class InBlocks(nn.Module):
    """A softmax over blocks of keys, with a sink if that is asked for, and the last block filled up and hidden."""

    def __init__(self, dim=24, heads=3, block=3, sink=False, filled=False):
        super().__init__()
        self.heads, self.block, self.filled = heads, block, filled
        self.qkv, self.proj = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)
        self.sink = nn.Parameter(torch.zeros(heads)) if sink else None

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        extra = -n % self.block if self.filled else 0
        k, v = F.pad(k, (0, 0, 0, extra)), F.pad(v, (0, 0, 0, extra))
        top = q.new_full((b, self.heads, n, 1), -torch.inf)
        total, summed = torch.zeros_like(top), torch.zeros_like(q)
        if self.sink is not None:
            top, total = self.sink.view(-1, 1, 1).expand_as(top), torch.ones_like(top)
        for start in range(0, n + extra, self.block):
            s = q @ k[:, :, start : start + self.block].mT / q.size(-1) ** 0.5
            s = s.masked_fill(torch.arange(start, start + s.size(-1)) >= n, -torch.inf)
            new = torch.maximum(top, s.amax(-1, keepdim=True))
            p, old = torch.exp(s - new), torch.exp(top - new)
            total = total * old + p.sum(-1, keepdim=True)
            summed = summed * old + p @ v[:, :, start : start + self.block]
            top = new
        return self.proj((summed / total).transpose(1, 2).flatten(2))


case("in-blocks", InBlocks, "blocks", "", embed_dim=24, causal=False)
case("in-blocks-with-a-sink", lambda: InBlocks(sink=True), "blocks", "", embed_dim=24, causal=False)
case("in-blocks-filled-up", lambda: InBlocks(filled=True), "blocks", "", embed_dim=24, causal=False)


class ContextInBlocks(nn.Module):
    """The context is filled up to whole blocks, and what fills it is hidden; beside it stand zeros of its own."""

    def __init__(self, dim=24, heads=2, block=4, zeros=0):
        super().__init__()
        self.heads, self.block, self.zeros = heads, block, zeros
        self.q, self.kv, self.out = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)

    def forward(self, x, context):
        n = context.size(1)
        extra = -n % self.block
        k, v = self.kv(F.pad(context, (0, 0, 0, extra))).chunk(2, -1)
        k, v = (F.pad(t, (0, 0, self.zeros, 0)) for t in (k, v))
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (self.q(x), k, v))
        shown = (torch.arange(k.size(2)) < self.zeros + n).expand(q.size(2), -1)
        return self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=shown).transpose(1, 2).flatten(2))


case("context-in-blocks", ContextInBlocks, "blocks", "", embed_dim=24, causal=False, inputs="x_context")
case(
    "context-in-blocks-and-zeros", lambda: ContextInBlocks(zeros=1), "blocks", "",
    embed_dim=24, causal=False, inputs="x_context",
)  # fmt: skip


class LocalAndGlobal(nn.Module):
    """Two softmaxes, of which a gate for each token takes its parts."""

    def __init__(self, dim=24, heads=3):
        super().__init__()
        self.heads = heads
        self.qkv, self.far, self.gate = nn.Linear(dim, 3 * dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, 1)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        far, value = self.far(x).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        near = torch.ones(x.size(1), x.size(1), dtype=torch.bool).tril(1).triu(-1)
        scores = [(q @ k.mT).masked_fill(~near, -torch.inf), q @ far.mT]
        a, b = (s.mul(q.size(-1) ** -0.5) for s in scores)
        a, b = ((s - s.logsumexp(-1, keepdim=True)).exp() for s in (a, b))
        part = self.gate(x).sigmoid().unsqueeze(1)
        return self.out((part * (a @ v) + (1 - part) * (b @ value)).transpose(1, 2).flatten(2))


case("local-and-global", LocalAndGlobal, "blocks", "", embed_dim=24, causal=False, positions=True)


def rotated(x, angles, other=None):
    """Turn pairs of halves; what is turned in is of another tensor where one is given."""
    a, b = (x if other is None else other).chunk(2, -1)
    return x * angles.cos().repeat(1, 2) + torch.cat([-b, a], -1) * angles.sin().repeat(1, 2)


class Rotary(nn.Module):
    """Rotary positions, with keys that are shared by all heads."""

    def __init__(self, dim=24, heads=3):
        super().__init__()
        self.heads, self.width = heads, dim // heads
        self.norm = nn.LayerNorm(dim)
        self.q, self.k, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim // heads), nn.Linear(dim, dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        y = self.norm(x)
        q, v = (f(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.v))
        half = self.width // 2
        angles = torch.outer(torch.arange(x.size(1)), 10000.0 ** (-torch.arange(half) / half)).to(x)
        q, k = rotated(q, angles), rotated(self.k(y), angles).unsqueeze(1).expand_as(q)
        return x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


case("rotary-shared-key", Rotary, "rotary", "", embed_dim=24, causal=False, positions=True)


class RelativeSkew(nn.Module):
    """Distances back by a table that is skewed, in a decoder; or one that is divided by the number of tokens."""

    def __init__(self, dim=24, heads=3, longest=64, by_length=False):
        super().__init__()
        self.heads, self.by_length = heads, by_length
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.table = nn.Parameter(torch.randn(longest, dim // heads))

    def forward(self, x):
        n = x.size(1)
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores, at = q @ k.mT, torch.arange(n)
        if self.by_length:
            scores = scores - (at[:, None] - at).abs().to(x) / n
        else:
            skewed = F.pad(q @ self.table[-n:].T, (1, 0))
            scores = scores + skewed.reshape(*skewed.shape[:2], n + 1, n)[:, :, 1:]
        scores = scores.mul(q.size(-1) ** -0.5).masked_fill(at > at[:, None], -torch.inf)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


case("relative-skew", RelativeSkew, "relative", "", embed_dim=24, causal=True, positions=True)
case(
    "relative-by-length",
    lambda: RelativeSkew(by_length=True),
    "relative",
    "",
    embed_dim=24,
    causal=True,
    positions=True,
)


class MeantNarrow(nn.Module):
    """Attention in 16 bits because that is asked for, by an attribute or by an autocast."""

    def __init__(self, dim=24, heads=3, dtype=None):
        super().__init__()
        self.heads, self.compute_dtype = heads, dtype
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.compute_dtype is None:
            with torch.autocast("cpu", torch.bfloat16):
                y = F.scaled_dot_product_attention(q, k, v)
        else:
            y = F.scaled_dot_product_attention(*(t.to(self.compute_dtype) for t in (q, k, v)))
        return self.out(y.to(x.dtype).transpose(1, 2).flatten(2))


case("narrow-by-autocast", MeantNarrow, "precision", "", embed_dim=24, causal=False)
case("narrow-by-attribute", lambda: MeantNarrow(dtype=torch.bfloat16), "precision", "", embed_dim=24, causal=False)


class HeadsMixedFirst(nn.Module):
    """Heads are mixed before the mask, and after the softmax."""

    def __init__(self, dim=24, heads=4, value=-1e9):
        super().__init__()
        self.heads, self.value = heads, value
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.before, self.behind = nn.Linear(heads, heads, bias=False), nn.Linear(heads, heads, bias=False)

    def forward(self, x):
        n = x.size(1)
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = self.before((q @ k.mT * q.size(-1) ** -0.5).movedim(1, -1)).movedim(-1, 1)
        scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), self.value)
        weights = self.behind(scores.softmax(-1).movedim(1, -1)).movedim(-1, 1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


case("heads-mixed-before-the-mask", HeadsMixedFirst, "talking", "", embed_dim=24, causal=True)
