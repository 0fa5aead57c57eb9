"""Attention modules with a planted bug each that the doctor had not seen."""

import torch
import torch.nn.functional as F
from cases import Case, seeded
from torch import nn

CASES = []


def case(name, build, kind, note, cause=None, /, **call):
    CASES.append(Case(name, seeded(19, build), call, kind, note, cause))


class RolledFurther(nn.Module):
    """Chunks of four tokens of a ring, moved by one and then by one more."""

    def __init__(self, dim=16, heads=2, chunk=4):
        super().__init__()
        self.heads, self.chunk = heads, chunk
        self.norm = nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, c = x.shape
        y = self.norm(x).roll(-1, 1).reshape(-1, self.chunk, c)
        q, k, v = self.qkv(y).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, c)
        return x + self.proj(y.roll(-1, 1))


case(
    "rolled-further",
    RolledFurther,
    "windows",
    "rolled the same way twice",
    embed_dim=16,
    causal=False,
    tokens=12,
    positions=True,
)


class ColumnsStay(nn.Module):
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
        columns = self.along(self.columns(grid.transpose(1, 2))).reshape(rows.shape)
        return self.out((rows + columns).flatten(1, 2)) + x


case(
    "columns-stay",
    ColumnsStay,
    "axial",
    "columns are never turned back",
    embed_dim=16,
    causal=False,
    tokens=15,
    positions=True,
)


class RegistersKept(nn.Module):
    def __init__(self, dim=16, heads=2, count=3):
        super().__init__()
        self.registers = nn.Parameter(torch.randn(1, count, dim))
        self.norm, self.attn = nn.LayerNorm(dim), nn.MultiheadAttention(dim, heads, batch_first=True)

    def forward(self, x):
        y = torch.cat([self.registers.expand(len(x), -1, -1), x], 1)
        z = self.norm(y)
        return (y + self.attn(z, z, z, need_weights=False)[0])[:, : x.size(1)]


case(
    "registers-kept",
    RegistersKept,
    "registers",
    "the last tokens are dropped, not the registers",
    embed_dim=16,
    causal=False,
)


class SortedTwice(nn.Module):
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
        return self.out(y.gather(1, order[..., None].expand_as(y)))


case(
    "sorted-twice",
    SortedTwice,
    "sorted",
    "put back in the order of sorting, not its inverse",
    embed_dim=16,
    causal=False,
    tokens=12,
)


class LargestElseZero(nn.Module):
    """Scores that are not among the largest are multiplied by zero."""

    def __init__(self, dim=24, heads=3, count=4):
        super().__init__()
        self.heads, self.count = heads, count
        self.q, self.kv, self.out = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (self.q(x), *self.kv(x).chunk(2, -1)))
        scores = torch.einsum("bhid,bhjd->bhij", q / q.size(-1) ** 0.5, k)
        least = scores.topk(min(self.count, x.size(1)), -1).values[..., -1:]
        weights = (scores * (scores >= least)).softmax(-1)
        return x + self.out(torch.einsum("bhij,bhjd->bihd", weights, v).flatten(2))


case("largest-else-zero", LargestElseZero, "sparse", "what is left out gets the score zero", embed_dim=24, causal=False)


class WindowByZeros(nn.Module):
    def __init__(self, dim=24, heads=3, reach=2):
        super().__init__()
        self.heads, self.reach = heads, reach
        self.norm, self.qkv, self.out = nn.LayerNorm(dim), nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        at = torch.arange(x.size(1))
        near = ((at - at[:, None]).abs() <= self.reach).to(x.dtype)
        weights = (q @ k.mT * q.size(-1) ** -0.5 * near).softmax(-1)
        return x + self.out((weights @ v).transpose(1, 2).flatten(2))


case(
    "window-by-zeros", WindowByZeros, "windows", "the window's mask is a factor", "float-mask-of-ones",
    embed_dim=24, causal=False, positions=True,
)  # fmt: skip


class OneLayerThrice(nn.Module):
    def __init__(self, dim=24, heads=4):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(dim)
        self.projections = nn.ModuleList([nn.Linear(dim, dim)] * 4)

    def forward(self, x):
        y = self.norm(x)
        q, k, v = (f(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in self.projections[:3])
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return x + self.projections[3](y)


case("one-layer-in-the-list", OneLayerThrice, "shared", "one layer four times", embed_dim=24, causal=False)


class SumsNotRescaled(nn.Module):
    """A softmax over blocks of keys, whose sum of weights is not brought to the newest maximum."""

    def __init__(self, dim=24, heads=3, block=4):
        super().__init__()
        self.heads, self.block = heads, block
        self.norm = nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        top = q.new_full((b, self.heads, n), -torch.inf)
        total, summed = torch.zeros_like(top), torch.zeros_like(q)
        for keys, values in zip(k.split(self.block, 2), v.split(self.block, 2)):
            s = torch.einsum("bhid,bhjd->bhij", q, keys) * q.size(-1) ** -0.5
            new = torch.maximum(top, s.amax(-1))
            p, old = (s - new[..., None]).exp(), (top - new).exp()
            total = total + p.sum(-1)
            summed = summed * old[..., None] + torch.einsum("bhij,bhjd->bhid", p, values)
            top = new
        return x + self.proj((summed / total[..., None]).transpose(1, 2).flatten(2))


case(
    "sums-not-rescaled", SumsNotRescaled, "blocks", "the denominator keeps old maxima", "weights-not-normalized",
    embed_dim=24, causal=False,
)  # fmt: skip


class FilledUpAndSeen(nn.Module):
    def __init__(self, dim=24, heads=2, block=8):
        super().__init__()
        self.heads, self.block = heads, block
        self.q, self.kv, self.out = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        k, v = self.kv(F.pad(x, (0, 0, 0, -x.size(1) % self.block))).chunk(2, -1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (self.q(x), k, v))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


case(
    "filled-up-and-seen", FilledUpAndSeen, "blocks", "tokens of zeros take weight", "padding-ignored",
    embed_dim=24, causal=False,
)  # fmt: skip


class QueryTurnedIntoKey(nn.Module):
    """The query's sine takes the key."""

    def __init__(self, dim=24, heads=4):
        super().__init__()
        self.heads, self.width = heads, dim // heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        half = self.width // 2
        angles = torch.outer(torch.arange(x.size(1)), 10000.0 ** (-torch.arange(half) / half)).to(x)
        cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)

        def turned(t):
            return torch.cat([-t[..., half:], t[..., :half]], -1)

        q, k = q * cos + turned(k) * sin, k * cos + turned(k) * sin
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


case(
    "query-turned-into-key", QueryTurnedIntoKey, "rotary", "the query's sine takes the key",
    embed_dim=24, causal=False, positions=True,
)  # fmt: skip


class SkewFromTheStart(nn.Module):
    """The table's first rows are taken, though the skew wants the last ones."""

    def __init__(self, dim=24, heads=3, longest=64):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.table = nn.Parameter(torch.randn(longest, dim // heads))

    def forward(self, x):
        n = x.size(1)
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        skewed = F.pad(torch.einsum("bhid,nd->bhin", q, self.table[:n]), (1, 0))
        scores = q @ k.mT + skewed.reshape(*skewed.shape[:2], n + 1, n)[:, :, 1:]
        later = torch.ones(n, n, dtype=torch.bool).triu(1)
        scores = scores.mul(q.size(-1) ** -0.5).masked_fill(later, -torch.inf)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


case(
    "skew-from-the-start", SkewFromTheStart, "relative", "distance d has the row of n - 1 - d",
    embed_dim=24, causal=True, positions=True,
)  # fmt: skip


class HalfForTheKernel(nn.Module):
    def __init__(self, dim=24, heads=3):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = (q.bfloat16() @ k.bfloat16().mT).to(x.dtype) * q.size(-1) ** -0.5
        return x + self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


case("half-for-the-kernel", HalfForTheKernel, "precision", "scores of 8 bits of fraction", embed_dim=24, causal=False)


class HeadsMixedLast(nn.Module):
    """What the mask has lowered is mixed between heads before the softmax."""

    def __init__(self, dim=24, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mix = nn.Conv2d(heads, heads, 1, bias=False)

    def forward(self, x):
        n = x.size(1)
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT * q.size(-1) ** -0.5
        scores = self.mix(scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -1e5))
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


case(
    "heads-mixed-behind-the-mask", HeadsMixedLast, "talking", "mixing turns the mask's sign", embed_dim=24, causal=True
)


class SumOfAllKeys(nn.Module):
    """Causal linear attention that is divided by the sum over all keys."""

    def __init__(self, dim=16, heads=2):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        summed = (q @ k.mT).tril() @ v
        total = (q * k.sum(2, keepdim=True)).sum(-1, keepdim=True)
        return self.out((summed / (total + 1e-6)).transpose(1, 2).flatten(2))


case("sum-of-all-keys", SumOfAllKeys, "linear", "the divisor sees the future", embed_dim=16, causal=True)
