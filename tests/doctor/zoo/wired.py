"""Small models whose layers are unlike each other, in words of our own: each mistake is one of wiring."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DIM, HEADS, WORDS = 24, 3, 40


class Attend(nn.Module):
    """Queries of one sequence, keys and values of the same or of another."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_v, self.out = (nn.Linear(DIM, DIM) for _ in range(4))
        self.wrong = wrong

    def forward(self, x: Tensor, source: Tensor | None = None, allowed: Tensor | None = None) -> Tensor:
        source = x if source is None else source
        q, k, v = (
            y.unflatten(-1, (HEADS, -1)).transpose(1, 2) for y in (self.to_q(x), self.to_k(source), self.to_v(source))
        )
        scores = q @ k.mT * (1.0 if self.wrong == "scale" else q.size(-1) ** -0.5)
        if allowed is not None:
            scores = scores.masked_fill(~allowed, -torch.inf)
        weights = scores.softmax(1 if self.wrong == "heads" else -1)
        context = weights @ (k if self.wrong == "values" else v)
        output: Tensor = self.out(context.transpose(1, 2).flatten(2))
        return output


def padding_of(keep: Tensor) -> Tensor:
    return keep[:, None, None, :]


class Reader(nn.Module):
    """An encoder, learned queries that read it, and a pooled output.

    Args:
        wrong: "polarity", the reader sees padding alone; "mean" and "ones", the pooling sees it too; or a step of the
            reader.
        by: Padding is told by a "mask", by "lengths", by an "added" mask, or by "words" that are zero.
    """

    def __init__(self, wrong: str = "", by: str = "mask") -> None:
        super().__init__()
        self.wrong, self.by = wrong, by
        self.embed = nn.Embedding(WORDS, DIM)
        self.encoder = nn.ModuleList(Attend() for _ in range(2))
        self.queries, self.reader = nn.Parameter(torch.randn(1, 4, DIM)), Attend(wrong)
        self.gate, self.head = nn.Linear(DIM, 1), nn.Linear(DIM, 5)

    def forward(self, x: Tensor, mask: Tensor | None = None, lengths: Tensor | None = None) -> Tensor:
        if self.by == "words":
            keep = x != 0
        elif lengths is not None:
            keep = torch.arange(x.size(1)) < lengths[:, None]
        else:
            assert mask is not None
            keep = mask[:, 0, 0] == 0 if mask.dim() == 4 else mask.bool()
        x = self.embed(x)
        for layer in self.encoder:
            x = x + layer(x, allowed=padding_of(keep))
        read = self.reader(self.queries, x, padding_of(~keep if self.wrong == "polarity" else keep))
        gates = self.gate(x).squeeze(-1)
        gates = gates + keep if self.wrong == "ones" else gates.masked_fill(~keep, -torch.inf)
        weights = torch.full_like(gates, 1 / gates.size(1)) if self.wrong == "mean" else gates.softmax(-1)
        output: Tensor = self.head(read.mean(1) + (weights[..., None] * x).sum(1))
        return output


class Translator(nn.Module):
    """An encoder and a decoder.

    Args:
        wrong: "source", the decoder reads itself where it should read the encoder; "ahead", a convolution before the
            decoder sees the next token; or a step of the cross attention.
    """

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong, self.embed = wrong, nn.Embedding(WORDS, DIM)
        self.near = nn.Conv1d(DIM, DIM, 2)
        self.encoder, self.decoder, self.reads = Attend(), Attend(), Attend(wrong)
        self.head = nn.Linear(DIM, 7)

    def forward(self, source: Tensor, written: Tensor) -> Tensor:
        memory = self.embed(source)
        memory = memory + self.encoder(memory)
        x = self.embed(written)
        sides = (0, 1) if self.wrong == "ahead" else (1, 0)
        x = x + self.near(F.pad(x.mT, sides)).mT
        x = x + self.decoder(x, allowed=torch.ones(x.size(1), x.size(1)).tril().bool())
        x = x + self.reads(x, x if self.wrong == "source" else memory)
        output: Tensor = self.head(x)
        return output


class Store:
    """Keys and values of the tokens so far."""

    def __init__(self) -> None:
        self.kept: Tensor | None = None

    def put(self, x: Tensor) -> Tensor:
        self.kept = x if self.kept is None else torch.cat([self.kept, x], 1)
        return self.kept


class Writer(nn.Module):
    """A decoder that may be fed in pieces.

    Args:
        wrong: "shared", its layers share one store; "places", a piece begins at place 0; "newest", a new token sees the
            first of its keys alone.
        keeps: What holds the tokens so far: "buffers" that a number says where to write, a "returned" list, "objects"
            that are passed, or a "window" of the last three.
    """

    def __init__(self, wrong: str = "", keeps: str = "buffers") -> None:
        super().__init__()
        self.wrong, self.keeps, layers = wrong, keeps, 3
        self.embed, self.places = nn.Embedding(WORDS, DIM), nn.Parameter(torch.randn(16, DIM))
        self.layers, self.head = nn.ModuleList(Attend() for _ in range(layers)), nn.Linear(DIM, WORDS)
        kept = [torch.zeros(4, 16, DIM) for _ in range(layers)]
        self.kept = kept[:1] * layers if wrong == "shared" else kept

    def forward(self, ids: Tensor, start: int = 0, cache: Any = None) -> Any:
        known: list[Any] = list(cache) if cache else [None] * len(self.layers)
        before = start
        if self.keeps == "objects" and cache:
            before = 0 if cache[0].kept is None else cache[0].kept.size(1)
        elif cache:
            before = cache[0].size(1)
        at = 0 if self.wrong == "places" else before
        x = self.embed(ids) + self.places[at : at + ids.size(1)]
        for n, layer in enumerate(self.layers):
            if self.keeps == "buffers":
                self.kept[n][: len(x), start : start + x.size(1)] = x
                source = self.kept[n][: len(x), : start + x.size(1)]
            elif self.keeps == "objects":
                source = known[n].put(x) if cache else x
            else:
                source = x if known[n] is None else torch.cat([known[n], x], 1)
                known[n] = source[:, -3:] if self.keeps == "window" else source
            offset = 0 if self.wrong == "newest" else source.size(1) - x.size(1)
            x = x + layer(x, source, torch.ones(x.size(1), source.size(1)).tril(offset).bool())
        return (self.head(x), known) if self.keeps in ("returned", "window") else self.head(x)


class Table(nn.Module):
    """Columns of a table as tokens; rows are items.

    Args:
        wrong: "mixer", one layer takes tokens for items; "mean", a mean is taken over the items too.
    """

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong, self.number = wrong, nn.Parameter(torch.randn(4, DIM))
        self.words = nn.ModuleList(nn.Embedding(count, DIM) for count in (2, 5))
        self.layer, self.mixer = Attend(), nn.MultiheadAttention(DIM, HEADS, batch_first=wrong != "mixer")
        self.head = nn.Linear(DIM, 3)

    def forward(self, numbers: Tensor, words: Tensor) -> Tensor:
        x = torch.cat(
            [numbers[..., None] * self.number, *(e(words[:, n : n + 1]) for n, e in enumerate(self.words))], 1
        )
        x = x + self.layer(x)
        x = x + self.mixer(x, x, x)[0]
        mean = x.mean((0, 1), keepdim=True) if self.wrong == "mean" else x.mean(1, keepdim=True)
        output: Tensor = self.head(x[:, 0] + mean[:, 0])
        return output


class Keeping(nn.Module):
    """Its running mean goes on in evaluation, if it is wrong."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.embed, self.layer, self.wrong = nn.Embedding(WORDS, DIM), Attend(), wrong
        self.mean = torch.zeros(DIM)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        if self.wrong:
            self.mean = 0.9 * self.mean + 0.1 * x.mean((0, 1)).detach()
        x = x - self.mean
        return x + self.layer(x)


class Blind(nn.Module):
    """A query may see the tokens before itself; the first one sees itself, unless it is wrong."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.embed, self.layer, self.wrong = nn.Embedding(WORDS, DIM), Attend(), wrong

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        return x + self.layer(x, allowed=torch.ones(ids.size(1), ids.size(1)).tril(-1 if self.wrong else 0).bool())
