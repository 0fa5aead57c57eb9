"""Correct attention modules that were accused, or that stopped the doctor, when it first saw them."""

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


CASES: list[Case] = []


def case(name, build, kind, note, **call):
    def make():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(19)
            return build()

    CASES.append(Case(name, make, call, kind, note))


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
