"""Attention modules with a planted bug each that the doctor had not seen."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[], Any]
    call: dict
    kind: str
    note: str
    cause: str | None = None


CASES: list[Case] = []


def case(name, build, kind, note, cause=None, /, **call):
    def make():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(19)
            return build()

    CASES.append(Case(name, make, call, kind, note, cause))


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
