"""Small models of public designs, in words of our own, whose blocks take each step as an option: one may be wrong."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmasked.positions import alibi_slopes

from .attention import RMSNorm
from .positions import rope

DIM, HEADS, WORDS = 24, 3, 40


def causal(n: int) -> Tensor:
    return torch.ones(n, n, dtype=torch.bool).tril()


class Mixer(nn.Module):
    """Attention of one layer.

    Args:
        groups: Heads of keys and values.
        sees: Makes from the number of tokens which keys a query may see; None for all.
        turn: Whether queries and keys are turned by their places.
        norm: Whether queries and keys are normed.
        slopes: What is added to the scores for a distance, for each head.
        scale: What the scores are multiplied by; None for the root of head_dim.
        hidden: The score of padding.
        wrong: The step that is left out or done otherwise.
    """

    def __init__(
        self,
        groups: int = HEADS,
        *,
        sees: Any = None,
        turn: bool = False,
        norm: bool = False,
        slopes: bool = False,
        scale: float | None = None,
        window: int | None = None,
        hidden: float = -1e9,
        wrong: str = "",
    ) -> None:
        super().__init__()
        self.groups, self.turn, self.slopes, self.wrong, self.width = groups, turn, slopes, wrong, DIM // HEADS
        self.sees, self.scale, self.window = sees, scale or self.width**-0.5, window
        self.hidden = hidden
        self.to_q, self.to_k, self.to_v = (nn.Linear(DIM, n * self.width) for n in (HEADS, groups, groups))
        self.q_norm, self.k_norm = (RMSNorm(self.width), RMSNorm(self.width)) if norm else (None, None)
        self.o_proj = nn.Linear(DIM, DIM)

    def allowed(self, n: int) -> Tensor | None:
        if self.window is not None and self.wrong != "mask":
            far = torch.arange(n)[:, None] - torch.arange(n)
            return (far >= 0) & (far < self.window + (self.wrong == "window"))
        return None if self.sees is None or self.wrong == "mask" else self.sees(n)

    def forward(self, x: Tensor, context: Tensor | None = None, pad: Tensor | None = None) -> Tensor:
        items, n, _ = x.shape
        source = x if context is None or self.wrong == "source" else context
        kept = source[:, 1:] if self.wrong == "class token" else source
        q = self.to_q(x).view(items, n, HEADS, self.width).transpose(1, 2)
        k = self.to_k(kept).view(items, -1, self.groups, self.width).transpose(1, 2)
        v = self.to_v(kept).view(items, -1, self.groups, self.width).transpose(1, 2)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), k if self.wrong == "k_norm" else self.k_norm(k)
        if self.turn:
            at = torch.arange(n)
            q, k = rope(q, at, 100.0), rope(k, at, 100.0)
        if self.wrong == "value norm":
            v = F.normalize(v, dim=-1)
        if self.groups != HEADS:
            k, v = (y.repeat_interleave(HEADS // self.groups, 1) for y in (k, v))
        scores = q @ k.mT * (1.0 if self.wrong == "scale" else self.scale)
        if self.slopes and self.wrong != "slopes":
            far = torch.arange(n)[:, None] - torch.arange(n)
            scores = scores - alibi_slopes(HEADS)[:, None, None] * far
        allowed = self.allowed(n)
        if self.wrong == "future":
            allowed = None if allowed is None else ~allowed | torch.eye(n, dtype=torch.bool)
        if allowed is not None:
            scores = scores.masked_fill(~allowed, -torch.inf)
        if pad is not None and self.wrong != "padding":
            hidden = pad.repeat(HEADS, 1).view(items, HEADS, -1) if self.wrong == "order" else pad[:, None]
            scores = scores.masked_fill(hidden[:, :, None], self.hidden)
        out = (scores.softmax(0 if self.wrong == "items" else -1) @ v).transpose(1, 2).flatten(2)
        return out if self.wrong == "o_proj" else self.o_proj(out)


class Block(nn.Module):
    def __init__(self, mixer: nn.Module, cross: nn.Module | None = None) -> None:
        super().__init__()
        self.norm, self.mixer, self.cross = nn.LayerNorm(DIM), mixer, cross
        self.mlp = nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, 32), nn.GELU(), nn.Linear(32, DIM))

    def forward(self, x: Tensor, context: Tensor | None = None, **more: Any) -> Tensor:
        x = x + self.mixer(self.norm(x), **more)
        if self.cross is not None:
            x = x + self.cross(self.norm(x), context)
        return x + self.mlp(x)


class Model(nn.Module):
    """Words or patches, blocks, and a head.

    Args:
        blocks: The blocks.
        places: Whether a vector is learned for each place.
        patches: Whether it takes vectors, with a class token before them.
        config: What it says of itself.
    """

    def __init__(
        self, blocks: list[nn.Module], *, places: bool = True, patches: bool = False, config: Any = None
    ) -> None:
        super().__init__()
        self.embed: nn.Module = nn.Linear(5, DIM) if patches else nn.Embedding(WORDS, DIM)
        self.first = nn.Parameter(torch.randn(1, 1, DIM)) if patches else None
        self.places = nn.Parameter(torch.randn(32, DIM)) if places else None
        self.blocks, self.head = nn.ModuleList(blocks), nn.Linear(DIM, 7)
        if config is not None:
            self.config = SimpleNamespace(**config)

    def forward(self, x: Tensor, pad: Tensor | None = None, context: Tensor | None = None) -> Tensor:
        x = self.embed(x)
        if self.first is not None:
            x = torch.cat([self.first.expand(len(x), -1, -1), x], 1)
        if self.places is not None:
            x = x + self.places[: x.size(1)]
        more = {} if pad is None else {"pad": pad}
        for block in self.blocks:
            x = block(x, context, **more)
        return self.head(x)


def stacked(layers: int, at: int, wrong: str, **options: Any) -> list[nn.Module]:
    """Blocks of which one is wrong."""
    return [Block(Mixer(wrong=wrong if n == at else "", **options)) for n in range(layers)]


class Running(nn.Module):
    """What mixes tokens without attention: a decayed sum of what came before, as linear recurrences have it."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        y = self.into(x)
        far = torch.arange(x.size(1))[:, None] - torch.arange(x.size(1))
        return self.out(torch.einsum("ts,bsd->btd", 0.8 ** far.clamp(min=0) * (far >= 0), y))


class Convolved(nn.Module):
    """A convolution over the tokens before each."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(DIM, DIM, 3, groups=DIM)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.pad(x.mT, (2, 0))).mT


class Forgetful(nn.Module):
    """An encoder of PyTorch's layers in which batch_first may be forgotten."""

    def __init__(self, *, batch_first: bool, places: bool = True, pooled: bool = False, swap: bool = False) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(DIM, HEADS, 32, batch_first=batch_first)
        self.embed, self.encoder = nn.Embedding(WORDS, DIM), nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.places = nn.Parameter(torch.randn(32, DIM)) if places else None
        self.pooled, self.swap = pooled, swap

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        if self.places is not None:
            places = self.places[: x.size(0), None] if self.swap else self.places[: x.size(1)]
            x = x + places
        x = self.encoder(x)
        return x.mean(1) if self.pooled else x


class Rounded(nn.Module):
    """A linear layer in eight bits; its scale may be that of other weights."""

    def __init__(self, stale: float = 1.0) -> None:
        super().__init__()
        weight = torch.randn(DIM, DIM) / math.sqrt(DIM)
        scale = weight.abs().amax() / 127
        self.register_buffer("weight", (weight / scale).round().to(torch.int8))
        self.register_buffer("scale", scale * stale)

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.weight * self.scale).T


def quantized(layers: int, at: int, stale: float) -> list[nn.Module]:
    blocks = stacked(layers, 0, "")
    for n, block in enumerate(blocks):
        block.mixer.to_k = Rounded(stale if n == at else 1.0)  # type: ignore[union-attr, assignment]
    return blocks
