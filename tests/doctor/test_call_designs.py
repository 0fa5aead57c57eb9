"""What calls show of places, scores, ids and caches: each slip beside its right twin."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmasked import diagnose

TOKENS, WIDTH, HEADS, DIM = 7, 24, 3, 8


def drawn(*shape: int, seed: int = 3) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Heads(nn.Module):
    """Three heads of eight features, and one switch: whether it makes its mistake."""

    def __init__(self, slip: bool = False) -> None:
        super().__init__()
        self.slip = slip
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(each.unflatten(-1, (HEADS, DIM)) for each in self.qkv(x).chunk(3, -1))  # batch tokens heads dim

    def merge(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | float = 0.0) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        weights = (q @ k.mT / math.sqrt(DIM) + bias).softmax(-1)
        output: Tensor = self.out((weights @ v).transpose(1, 2).flatten(2))
        return output


def causal(queries: int, keys: int) -> Tensor:
    hidden = torch.ones(queries, keys).triu(keys - queries + 1).bool()
    return torch.zeros(queries, keys).masked_fill(hidden, -1e9)


def turned(x: Tensor, places: Tensor, axis: int = 1) -> Tensor:
    angles = places[..., None] * 0.3 ** torch.arange(DIM // 2)
    shape = [1] * x.dim()
    shape[-1], shape[axis] = DIM // 2, x.size(axis)
    if places.dim() == 2:
        shape[0] = x.size(0)
    cos, sin = angles.cos().view(shape), angles.sin().view(shape)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Rotary(Heads):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        axis = 2 if self.slip else 1
        q, k = (turned(y, torch.arange(y.size(axis)), axis) for y in (q, k))
        return self.merge(q, k, v, causal(x.size(1), x.size(1)))


class Sines(Heads):
    def forward(self, x: Tensor) -> Tensor:
        angles = torch.arange(x.size(1))[:, None] * 0.4 ** torch.arange(WIDTH // 2)
        places = torch.cat([angles.sin(), angles.cos()], -1)
        return self.merge(*self.split(x + places * (0.0 if self.slip else 1.0)))


class Packed(Heads):
    def forward(self, x: Tensor, position_ids: Tensor) -> Tensor:
        q, k, v = self.split(x)
        q, k = turned(q, position_ids), turned(k, position_ids)
        text = (position_ids == 0).cumsum(1)
        apart = torch.where(text[:, :, None] == text[:, None], 0.0, -1e9)[:, None]
        return self.merge(q, k, v, causal(x.size(1), x.size(1)) + (0.0 if self.slip else apart))


class Memory(Heads):
    def forward(self, x: Tensor, mem: Tensor) -> Tensor:
        q, k, v = self.split(torch.cat([mem, x], 1))
        start = 0 if self.slip else mem.size(1)
        far = torch.arange(start, start + x.size(1))[:, None] - torch.arange(k.size(1))
        return self.merge(q[:, mem.size(1) :], k, v, causal(x.size(1), k.size(1)) - 0.2 * far.abs())


class Relative(Heads):
    """Transformer-XL's shift needs 2T - 1 positions where later keys are seen; T are enough where they are not."""

    def __init__(self, slip: bool = False) -> None:
        super().__init__(slip)
        self.places = nn.Parameter(drawn(HEADS, DIM, TOKENS))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        scores = q.transpose(1, 2) @ self.places[..., -x.size(1) :]
        shifted = F.pad(scores, (1, 0)).flatten(2)[..., x.size(1) :].view_as(scores)
        return self.merge(q, k, v, shifted if self.slip else shifted + causal(x.size(1), x.size(1)))


class Parted(nn.Module):
    """Cuts an image into parts, each of which attends to itself; and one switch."""

    def __init__(self, slip: bool = False) -> None:
        super().__init__()
        self.slip, self.attend = slip, nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)


class Axial(Parted):
    """Each column of an image (batch, channels, rows, columns) attends to itself."""

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        lines = x.permute(0, 2, 3, 1).reshape(b * w, h, c) if self.slip else x.permute(0, 3, 2, 1).flatten(0, 1)
        y = self.attend(lines, lines, lines)[0]
        y = y.reshape(b, h, w, c).permute(0, 3, 1, 2) if self.slip else y.view(b, w, h, c).permute(0, 3, 2, 1)
        return x + y


class Windows(Parted):
    """Windows of 2 x 3 tokens of (batch, rows, columns, features), rolled by one."""

    def cut(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        return x.view(b, h // 2, 2, w // 3, 3, c).transpose(2, 3).reshape(-1, 6, c)

    def forward(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        rolled = self.cut(x.roll((-1, -1), (1, 2)))
        part = (torch.arange(h) < 1).long()[:, None] + 2 * (torch.arange(w) < 1).long()
        parts = self.cut(part.roll((-1, -1), (0, 1))[None, :, :, None].expand(b, -1, -1, -1))[..., 0]
        apart = None if self.slip else (parts[:, :, None] != parts[:, None]).repeat_interleave(HEADS, 0)
        y = self.attend(rolled, rolled, rolled, attn_mask=apart)[0]
        y = y.view(b, h // 2, w // 3, 2, 3, c).transpose(2, 3).reshape(b, h, w, c)
        return y.roll((1, 1), (1, 2))


class Frames(nn.Module):
    """Each frame of (batch, channels, times, places) attends to itself; its layers are convolutions."""

    def __init__(self, slip: bool = False) -> None:
        super().__init__()
        self.slip = slip
        self.q, self.k, self.v, self.out = (nn.Conv2d(WIDTH, WIDTH, 1) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        b, c, t, n = x.shape
        q, k, v = self.q(x), self.k(x), self.v(x)
        q, k, v = (y.reshape(b * t, c, n) if self.slip else y.transpose(1, 2).flatten(0, 1) for y in (q, k, v))
        y = v @ (q.mT @ k * WIDTH**-0.5).softmax(-1).mT
        y = y.reshape(b, c, t, n) if self.slip else y.view(b, t, c, n).transpose(1, 2)
        return x + self.out(y)


class Batch(Heads):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        x, padded = batch["x"], batch.get("is_pad" if not self.slip else "ispad")
        return self.merge(*self.split(x), 0.0 if padded is None else padded[:, None, None] * -1e9)


class Words(Heads):
    """Takes ids, of which one is padding."""

    def __init__(self, slip: bool = False, pad: int = 1) -> None:
        super().__init__(slip)
        self.pad, self.embedding = pad, nn.Embedding(40, WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        padded = (ids == self.pad)[:, None]
        hidden = padded.mT[:, None] if self.slip else padded[:, None]
        return self.merge(*self.split(self.embedding(ids)), hidden * -1e30)


class WordsToo(Heads):
    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        padded = (ids == 1)[:, None]
        return self.merge(*self.split(x), (padded.mT[:, None] if self.slip else padded[:, None]) * -1e30)


class Kept(Heads):
    def forward(self, x: Tensor, past_k: Tensor | None = None, past_v: Tensor | None = None) -> tuple[Tensor, ...]:
        q, k, v = self.split(x)
        places = torch.arange(x.size(1)) + (0 if past_k is None or self.slip else past_k.size(1))
        q, k = turned(q, places), turned(k, places)
        if past_k is not None and past_v is not None:
            k, v = torch.cat([past_k, k], 1), torch.cat([past_v, v], 1)
        return self.merge(q, k, v, causal(x.size(1), k.size(1))), k, v


class Sections(Heads):
    """Half of its pairs are turned by rows, half by columns: places (2, batch, tokens)."""

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        q, k, v = self.split(x)
        for place in (places[0], places[0 if self.slip else 1]):
            q, k = turned(q, place), turned(k, place)
        return self.merge(q, k, v)


class Marked(Heads):
    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        hidden = (attention_mask == (1 if self.slip else 0))[:, None, None]
        return self.merge(*self.split(x), hidden * -1e9)


class Segments(Heads):
    """Observations see each other, actions what is before them; a mask is kept for each pair of lengths."""

    def __init__(self, slip: bool = False) -> None:
        super().__init__(slip)
        self.masks: dict[Any, Tensor] = {}

    def forward(self, seen: Tensor, actions: Tensor) -> Tensor:
        x, before = torch.cat([seen, actions], 1), seen.size(1)
        key = x.size(1) if self.slip else (x.size(1), before)
        if key not in self.masks:
            self.masks[key] = causal(x.size(1), x.size(1))
            self.masks[key][:before, :before] = 0.0
        return self.merge(*self.split(x), self.masks[key])[:, :before] + actions.mean(1, keepdim=True)


PLACES = torch.arange(TOKENS)
IDS = torch.tensor([[5, 9, 7, 2, 8, 3, 6], [4, 8, 5, 9, 1, 1, 1]])


class Offset(Heads):
    """Places counted from an offset; the slip keeps those of the first one."""

    def __init__(self, slip: bool) -> None:
        super().__init__(slip)
        self.kept: dict[int, Tensor] = {}

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        places = torch.arange(offset, offset + x.size(1)).to(x.dtype)
        if self.slip:
            places = self.kept.setdefault(x.size(1), places)
        return self.merge(*self.split(x + places[:, None].sin()))


class Absolute(Offset):
    """The slip counts from nothing, whatever the offset says."""

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        places = torch.arange(x.size(1)).to(x.dtype) + (0 if self.slip else offset)
        return self.merge(*self.split(x + places[:, None].sin()))


SHARED: dict[int, Tensor] = {}


class Default(Heads):
    """The slip keeps in a default argument what the first call gave."""

    def forward(self, x: Tensor, shared: dict[int, Tensor] = SHARED) -> Tensor:
        q, k, v = self.split(x)
        return self.merge(q, shared.setdefault(x.size(1), k) if self.slip else k, v)


class Grid(Heads):
    """A bias for each offset of two tokens in a grid of 2 x 4; the slip multiplies rows by too little."""

    def __init__(self, slip: bool) -> None:
        super().__init__(slip)
        self.table = nn.Parameter(torch.randn(3 * 7, HEADS))

    def forward(self, x: Tensor) -> Tensor:
        places = torch.cartesian_prod(torch.arange(2), torch.arange(4))
        rows, columns = (places[:, None] - places + torch.tensor([1, 3])).unbind(-1)
        bias = self.table[rows * (3 if self.slip else 7) + columns].permute(2, 0, 1)
        return self.merge(*self.split(x), bias)


class Normed(Heads):
    """Queries and keys are normalized; the slip normalizes keys and values."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        normed = nn.functional.normalize
        return (
            self.merge(q, normed(k, dim=-1), normed(v, dim=-1))
            if self.slip
            else self.merge(normed(q, dim=-1), normed(k, dim=-1), v)
        )


class Appended(Heads):
    """A token of its own is appended, and dropped again; the slip scales by the features of all heads."""

    def __init__(self, slip: bool) -> None:
        super().__init__(slip)
        self.token = nn.Parameter(torch.randn(1, 1, WIDTH))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = self.split(torch.cat([x, self.token.expand(len(x), 1, WIDTH)], 1))
        output = self.merge(q / HEADS**0.5 if self.slip else q, k, v)
        return output[:, :-1], output[:, -1]


class Videos(Heads):
    """Rows are frames of videos, one after another; the slip repeats a video's context in another order."""

    def forward(self, frames: Tensor, context: Tensor, num_frames: int) -> Tensor:
        each = context.repeat(num_frames, 1, 1) if self.slip else context.repeat_interleave(num_frames, 0)
        mean = frames.unflatten(0, (-1, num_frames)).mean(1).repeat_interleave(num_frames, 0)
        (q, _, _), (_, k, v) = self.split(frames + mean), self.split(each)
        return self.merge(q, k, v)


class Borders(Heads):
    """Sequences in one axis, by their borders; the slip multiplies scores instead of hiding them."""

    def forward(self, x: Tensor, borders: list[int]) -> Tensor:
        which = torch.bucketize(torch.arange(len(x)), torch.tensor(borders[1:]), right=True)
        apart = which[:, None] != which
        q, k, v = (y.transpose(1, 2) for y in self.split(x[None]))
        scores = q @ k.mT / math.sqrt(DIM)
        scores = scores * torch.where(apart, -1e6, 1.0) if self.slip else scores.masked_fill(apart, -math.inf)
        output: Tensor = self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))[0]
        return output


class Filled(Heads):
    """Sequences in one axis, filled up to the longest; the slip lets what fills them count."""

    def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        rows = x.split(torch.diff(cu_seqlens).tolist())
        full = nn.utils.rnn.pad_sequence([*rows], batch_first=True)
        real = torch.arange(full.size(1)) < torch.diff(cu_seqlens)[:, None]
        q, k, v = (y * real[..., None, None] for y in self.split(full))
        return self.merge(q, k, v, 0.0 if self.slip else (~real)[:, None, None] * -1e9)[real]


class Page(Heads):
    """Turned by rows and columns of a grid; the slip forgets the columns."""

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        rows = torch.arange(grid[0]).repeat_interleave(grid[1]) * 1.0
        columns = torch.arange(grid[1]).repeat(grid[0]) * (0.0 if self.slip else 7.0)
        q, k, v = self.split(x)
        return self.merge(turned(q, rows + columns), turned(k, rows + columns), v)


class Neighbors(Heads):
    """A node reads its neighbors; the slip lets the graphs' masks fall on the heads, where there are as many."""

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        hidden = torch.where(adj, 0.0, -1e9)
        return self.merge(*self.split(x), hidden if self.slip else hidden[:, None])


class Virtual(Heads):
    """A virtual node stands before the others, and kinds of bonds, one of which is none; the slip hides no node."""

    def __init__(self, slip: bool = False) -> None:
        super().__init__(slip)
        self.first, self.bonds = nn.Parameter(torch.randn(1, 1, WIDTH)), nn.Embedding(4, HEADS, padding_idx=0)

    def forward(self, nodes: Tensor, kinds: Tensor, num_nodes: Tensor) -> Tensor:
        x = torch.cat([self.first.expand(len(nodes), -1, -1), nodes], 1)
        bias = F.pad(self.bonds(kinds).permute(0, 3, 1, 2), (1, 0, 1, 0))
        hidden = (torch.arange(x.size(1)) > num_nodes[:, None])[:, None, None]
        return self.merge(*self.split(x), bias if self.slip else bias.masked_fill(hidden, -torch.inf))


class Stream(Heads):
    """A block whose norm comes first; the slip adds to what the norm gives."""

    def __init__(self, slip: bool, norm: Callable[[int], nn.Module] = nn.LayerNorm) -> None:
        super().__init__(slip)
        self.norm = norm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        return (normed if self.slip else x) + self.merge(*self.split(normed))


class RootStream(Stream):
    def __init__(self, slip: bool) -> None:
        super().__init__(slip, nn.RMSNorm)


class Behind(Stream):
    """A norm behind the residual is the textbook's first; the slip adds a second in front."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x) if self.slip else x
        return self.norm(x + self.merge(*self.split(x)))


class OneSided(Stream):
    """The slip norms what makes queries, and not what makes keys and values."""

    def forward(self, x: Tensor) -> Tensor:
        (q, k, v), (_, raw_k, raw_v) = self.split(self.norm(x)), self.split(x)
        return x + (self.merge(q, raw_k, raw_v) if self.slip else self.merge(q, k, v))


class Asks(Heads):
    """The slip makes its queries of the keys' tokens."""

    def forward(self, memory: Tensor, query: Tensor, value: Tensor) -> Tensor:
        q, k, v = (self.split(x)[n] for n, x in enumerate((memory if self.slip else query, memory, value)))
        return self.merge(q, k, v)


class Bonds(nn.Module):
    """Weights of edges that arrive at a node; the slip divides them by the sums of those that leave one."""

    def __init__(self, slip: bool) -> None:
        super().__init__()
        self.slip, self.score, self.value = slip, nn.Linear(2 * WIDTH, HEADS), nn.Linear(WIDTH, HEADS)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        start, end = edges
        weights = self.score(torch.cat([x[start], x[end]], 1)).exp()
        group = start if self.slip else end
        weights = weights / weights.new_zeros(len(x), HEADS).index_add(0, group, weights)[group]
        return x.new_zeros(len(x), HEADS).index_add(0, end, weights * self.value(x)[start])


class Placed(nn.Module):
    """As bonds, by other functions; the slip sums the values where edges leave."""

    def __init__(self, slip: bool) -> None:
        super().__init__()
        self.slip, self.score, self.value = slip, nn.Linear(2 * WIDTH, 1), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        start, end = edges
        weights = self.score(torch.cat([x[start], x[end]], 1)).exp()
        sums = weights.new_zeros(len(x), 1).index_put((end,), weights, accumulate=True)
        values = weights / sums[end] * self.value(x)[start]
        group = start if self.slip else end
        return torch.zeros_like(x).scatter_add(0, group[:, None].expand_as(values), values)


class Ring(Heads):
    """Each token reads itself and the three before it, from a cache of four; the slip rolls it when three are in."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        kept_k, kept_v = k.new_zeros(len(x), 4, HEADS, DIM), v.new_zeros(len(x), 4, HEADS, DIM)
        outputs = []
        for n in range(x.size(1)):
            if n >= (3 if self.slip else 4):
                kept_k, kept_v = (torch.cat([kept[:, 1:], kept[:, :1]], 1) for kept in (kept_k, kept_v))
            at = min(n, 3)
            kept_k[:, at], kept_v[:, at] = k[:, n], v[:, n]
            hidden = torch.where(torch.arange(4) <= n, 0.0, -1e9)
            outputs.append(self.merge(q[:, n : n + 1], kept_k, kept_v, hidden))
        return torch.cat(outputs, 1)


class Sliding(Heads):
    """Its first tokens see each other whole; the slip shows later ones a token more."""

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.size(1))
        far = places[:, None] - places
        window = torch.where(places < 5, 2, 3)[:, None] if self.slip else torch.full((x.size(1), 1), 3)
        return self.merge(*self.split(x), torch.where((far >= 0) & (far <= window), 0.0, -1e9))


class Left(Heads):
    """Padding stands before the tokens; the slip counts places over it."""

    def __init__(self, slip: bool) -> None:
        super().__init__(slip)
        self.table = nn.Embedding(20, WIDTH)

    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        places = (attention_mask.cumsum(1) - 1).clamp(min=0)
        places = torch.arange(x.size(1)).expand_as(places) if self.slip else places
        hidden = (attention_mask == 0)[:, None, None] * -1e9
        return self.merge(*self.split(x + self.table(places)), hidden + causal(x.size(1), x.size(1)))


class Angles(Heads):
    """Places as they are passed; the slip computes their angles in 16 bits."""

    def forward(self, x: Tensor, position_ids: Tensor) -> Tensor:
        q, k, v = self.split(x)
        dtype = torch.bfloat16 if self.slip else x.dtype
        angles = position_ids.to(dtype)[..., None] * (0.3 ** torch.arange(DIM // 2)).to(dtype)
        cos, sin = (y.to(x.dtype)[:, :, None] for y in (angles.cos(), angles.sin()))
        q, k = (
            torch.cat([a * cos - b * sin, b * cos + a * sin], -1) for a, b in (each.chunk(2, -1) for each in (q, k))
        )
        return self.merge(q, k, v, causal(x.size(1), x.size(1)))


class Rows(Heads):
    """Sines of places, as they are passed; the slip takes them in the precision of its queries, which is half."""

    def forward(self, x: Tensor, position_ids: Tensor) -> Tensor:
        places = position_ids.to(torch.bfloat16 if self.slip else torch.float64)
        angles = places.double()[..., None] * 0.4 ** torch.arange(WIDTH // 2)
        return self.merge(*self.split(x + torch.cat([angles.sin(), angles.cos()], -1).to(x.dtype)))


class Images(Heads):
    """Patches of images in one axis; the slip hides no image from another."""

    def forward(self, patches: Tensor, grids: list[tuple[int, int]]) -> Tensor:
        which = torch.arange(len(grids)).repeat_interleave(torch.tensor([a * b for a, b in grids]))
        apart = 0.0 if self.slip else torch.where(which[:, None] == which, 0.0, -1e9)
        return self.merge(*self.split(patches[None]), apart)[0]


class Longest(Heads):
    """Items are cut at their lengths, and filled up to the longest; the slip lets what fills them count."""

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        full = nn.utils.rnn.pad_sequence([row[:n] for row, n in zip(x, lengths.tolist(), strict=True)], True)
        hidden = torch.arange(full.size(1)) >= lengths[:, None]
        y = self.merge(*self.split(full), 0.0 if self.slip else hidden[:, None, None] * -1e9)
        return (y * ~hidden[..., None]).sum(1)


ADJACENT = torch.eye(TOKENS).bool() | torch.rand(HEADS, TOKENS, TOKENS, generator=torch.Generator().manual_seed(2)).gt(
    0.6
)
EDGES = torch.tensor([[0, 1, 2, 3, 3, 4, 0], [1, 2, 0, 2, 1, 0, 4]])
MEMORY = drawn(2, TOKENS, WIDTH, seed=5)
PADDED = torch.tensor([[0] * TOKENS, [0, 0, 0, 0, 1, 1, 1]]).bool()
CASES: list[tuple[type[nn.Module], Callable[[], Any], dict[str, Any], str]] = [
    (Rotary, lambda: (drawn(2, TOKENS, WIDTH),), {"num_heads": HEADS, "causal": True}, "turned alike at every place"),
    (Sines, lambda: (drawn(2, TOKENS, WIDTH),), {}, "computes sines and cosines of places"),
    (
        Packed,
        lambda: (drawn(2, TOKENS, WIDTH), torch.tensor([[0, 1, 2, 0, 1, 2, 3], [0, 1, 0, 1, 2, 3, 4]])),
        {"causal": True},
        "position_ids begins again at token 3",
    ),
    (Memory, lambda: (drawn(2, TOKENS, WIDTH), drawn(2, 4, WIDTH, seed=5)), {}, "where mem ends"),
    (Relative, lambda: (drawn(2, TOKENS, WIDTH),), {}, "moves with a third token"),
    (Axial, lambda: (drawn(2, WIDTH, 3, 5),), {"causal": False}, "are no rows, no columns and no windows"),
    (Windows, lambda: (drawn(2, 4, 6, WIDTH),), {"causal": False}, "at opposite borders"),
    (Frames, lambda: (drawn(2, WIDTH, 5, 3),), {"causal": False}, "put together of several tokens' features"),
    (Batch, lambda: ({"x": drawn(2, TOKENS, WIDTH), "is_pad": PADDED},), {}, "the mask is ignored"),
    (Words, lambda: (IDS,), {"causal": False}, "padding behind the tokens, id 1, is seen"),
    (WordsToo, lambda: (drawn(2, TOKENS, WIDTH), IDS), {"causal": False}, "laid on the axis of queries"),
    (
        Kept,
        lambda: {name: drawn(2, *sizes) for name, sizes in
                 {"x": (2, WIDTH), "past_k": (4, HEADS, DIM), "past_v": (4, HEADS, DIM)}.items()},
        {"causal": True},
        "each with the past_k and past_v that the one before returned",
    ),
    (
        Sections,
        lambda: (drawn(2, TOKENS, WIDTH), torch.stack([PLACES // 3, PLACES % 3])[:, None].repeat(1, 2, 1)),
        {},
        "no output depends on places[1]",
    ),
    (
        Segments,
        lambda: (drawn(2, 4, WIDTH), drawn(2, 3, WIDTH, seed=5)),
        {"causal": False},
        "something is kept from call to call",
    ),
    (Marked, lambda: (drawn(2, TOKENS, WIDTH), (~PADDED).long()), {}, "tokenizers mark what is a token with 1"),
    (Offset, lambda: (drawn(2, TOKENS, WIDTH), 3), {}, "something is kept from call to call"),
    (Absolute, lambda: (drawn(2, TOKENS, WIDTH), {"offset": 3}), {}, "no output depends on offset"),
    (Default, lambda: (drawn(2, TOKENS, WIDTH),), {}, "something is kept from call to call"),
    (Grid, lambda: (drawn(2, 8, WIDTH),), {}, "pairs of tokens at different offsets share rows of table"),
    (Normed, lambda: (drawn(2, TOKENS, WIDTH),), {}, "keys and values are normalized, and queries are not"),
    (Appended, lambda: (drawn(2, TOKENS, WIDTH),), {"causal": False}, f"its scores are scaled by 1/sqrt({WIDTH})"),
    (Videos, lambda: (drawn(6, 5, WIDTH), drawn(2, 4, WIDTH), 3), {"causal": False}, "num_frames says which rows"),
    (Borders, lambda: (drawn(9, WIDTH), [0, 4, 7, 9]), {"causal": False}, "borders says which rows belong"),
    (Filled, lambda: (drawn(9, WIDTH), torch.tensor([0, 4, 7, 9])), {"causal": False}, "gives something else without"),
    (Page, lambda: (drawn(2, 12, WIDTH), (3, 4)), {"causal": False}, "places along axis 1 of grid count for nothing"),
    (Stream, lambda: (drawn(2, TOKENS, WIDTH),), {"causal": False}, "its residual adds what its norm gives"),
    (RootStream, lambda: (drawn(2, TOKENS, WIDTH),), {"causal": False}, "its residual adds what its norm gives"),
    (Behind, lambda: (drawn(2, TOKENS, WIDTH),), {"causal": False}, "its residual adds what its norm gives"),
    (OneSided, lambda: (3 * drawn(2, TOKENS, WIDTH),), {"causal": False}, "its key and value read tokens without"),
    (Asks, lambda: (MEMORY, drawn(2, TOKENS, WIDTH), MEMORY), {"causal": False}, "no output depends on query"),
    (Bonds, lambda: (drawn(5, WIDTH), EDGES), {"causal": False}, "are divided by the sums of one grouping"),
    (Placed, lambda: (drawn(5, WIDTH), EDGES), {"causal": False}, "are divided by the sums of one grouping"),
    (Ring, lambda: (drawn(2, 9, WIDTH),), {"causal": True}, "a token is lost to an output"),
    (Sliding, lambda: (drawn(2, 9, WIDTH),), {"causal": True}, "a token is lost to an output"),
    (
        Left,
        lambda: (drawn(2, TOKENS, WIDTH), (~PADDED).long().flip(1)),
        {"causal": True},
        "with one more token of padding before a text",
    ),
    (Angles, lambda: (drawn(2, TOKENS, WIDTH), PLACES.expand(2, -1) + 300), {"causal": True}, "are rounded"),
    (Rows, lambda: (drawn(2, TOKENS, WIDTH), PLACES.expand(2, -1) + 300), {"causal": False}, "places are rounded"),
    (Images, lambda: (drawn(13, WIDTH), [(2, 3), (2, 2), (3, 1)]), {"causal": False}, "grids says which rows belong"),
    (
        Longest,
        lambda: (drawn(3, TOKENS, WIDTH), torch.tensor([7, 3, 5])),
        {"causal": False},
        "an item's output depends on",
    ),
    (
        Virtual,
        lambda: (drawn(2, 6, WIDTH), torch.arange(72).view(2, 6, 6) % 5 % 4, torch.tensor([6, 4])),
        {"causal": False},
        "what num_nodes hides is seen",
    ),
    (Neighbors, lambda: (drawn(HEADS, TOKENS, WIDTH), ADJACENT), {"causal": False}, "adj has no axis for the heads"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "call", "options", "text"), CASES, ids=[case[0].__name__ for case in CASES])
def test_slip_is_named_and_its_right_twin_is_not(
    kind: type[nn.Module], call: Callable[[], Any], options: dict[str, Any], text: str
) -> None:
    torch.manual_seed(7)
    assert any(text in each.told for each in diagnose(kind(slip=True), call(), **options).named)
    right = diagnose(kind(slip=False), call(), **options)
    assert not [each.told for each in right.named]
