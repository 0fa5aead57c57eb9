"""Why a promise is broken: each slip is named by its own mistake, and its right twin is not accused."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmasked import diagnose, diagnose_model
from unmasked_doctor._report import Finding, Layer, ModelReport, Report

WIDTH, HEADS, DIM, TOKENS = 24, 3, 8, 8


def drawn(*shape: int, seed: int = 3) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Heads(nn.Module):
    """Three heads of eight features, and which mistake it makes, if any."""

    def __init__(self, slip: str = "") -> None:
        super().__init__()
        self.slip = slip
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def split(self, x: Tensor) -> list[Tensor]:
        return [each.unflatten(-1, (HEADS, DIM)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1)]

    def merge(self, context: Tensor) -> Tensor:
        merged: Tensor = self.out(context.transpose(1, 2).flatten(2))
        return merged

    def weights(self, q: Tensor, k: Tensor, hidden: Tensor) -> Tensor:
        return (q @ k.mT / math.sqrt(DIM)).masked_fill(hidden, -math.inf).softmax(-1)


class Dropped(Heads):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        return self.merge(F.scaled_dot_product_attention(q, k, v, dropout_p=0.3 if self.slip or self.training else 0.0))


class Noisy(Heads):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x + torch.randn_like(x) if self.slip else x)
        return self.merge(F.scaled_dot_product_attention(q, k, v))


class Keeping(Heads):
    def __init__(self, slip: str = "") -> None:
        super().__init__(slip)
        self.table: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        if self.table is None or not self.slip:
            self.table = k
        return self.merge(F.scaled_dot_product_attention(q, self.table, v))


class TokensFirst(nn.Module):
    def __init__(self, slip: str = "") -> None:
        super().__init__()
        self.mix = nn.MultiheadAttention(WIDTH, HEADS, batch_first=not slip)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mix(x, x, x, need_weights=False)[0]


class Items(Heads):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        if self.slip == "mean":
            k = k - k.mean(0)
        scores = q @ k.mT / math.sqrt(DIM)
        context = scores.softmax(-1) @ v
        if self.slip == "view":
            context = context.reshape(HEADS, len(x), -1, DIM).transpose(0, 1)
        return self.merge(context)


class Branches(nn.Module):
    """Weighs two layers for each item, and reads each token of them by itself."""

    def __init__(self, slip: str = "") -> None:
        super().__init__()
        self.slip, self.ways = slip, nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.choose = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        both = torch.stack([way(x) for way in self.ways])  # ways batch tokens features
        chosen: Tensor = (self.choose(both.mean(2, keepdim=True)).softmax(1 if self.slip else 0) * both).sum(0)
        return chosen


class Graphs(nn.Module):
    """Nodes of several graphs, one after another: ``ptr`` says where each begins."""

    def __init__(self, slip: str = "") -> None:
        super().__init__()
        self.slip, self.query, self.key, self.value = slip, *(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor, ptr: Tensor) -> Tensor:
        which = torch.bucketize(torch.arange(len(x)), ptr[1:], right=True)
        scores, apart = self.query(x) @ self.key(x).mT / WIDTH**0.5, which[:, None] != which
        scores = scores * torch.where(apart, -1e6, 1.0) if self.slip else scores.masked_fill(apart, -math.inf)
        output: Tensor = scores.softmax(-1) @ self.value(x)
        return output


class Padded(Heads):
    """``mask`` (batch, tokens) is True for padding."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.split(x)
        hidden = mask[:, None, None].expand(-1, HEADS, len(mask[0]), -1)
        scores = q @ k.mT / math.sqrt(DIM)
        if self.slip == "queries":
            return self.merge(scores.masked_fill(hidden.mT, -1e4).softmax(-1) @ v)
        if self.slip == "fill":
            return self.merge(scores.masked_fill(hidden, 0.0).softmax(-1) @ v)
        if self.slip == "late":
            return self.merge((scores.softmax(-1) * ~hidden) @ v)
        if self.slip == "added late":
            return self.merge((scores.softmax(-1) + ~hidden) @ v)
        if self.slip == "order":
            hidden = mask.repeat(HEADS, 1).view(len(x), HEADS, 1, -1).expand_as(hidden)
        if self.slip == "heads":
            hidden = hidden & (torch.arange(HEADS) > 0)[:, None, None]
        return self.merge(self.weights(q, k, hidden) @ v)


class Cut(Heads):
    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        q, k, v = self.split(x)
        lengths = lengths.max().expand_as(lengths) if self.slip == "longest" else lengths + (self.slip == "one")
        hidden = torch.arange(x.size(1)) >= lengths[:, None]
        return self.merge(self.weights(q, k, hidden[:, None, None]) @ v)


class Later(Heads):
    def forward(self, x: Tensor) -> Tensor:
        if self.slip == "norm":
            x = x / x.norm(dim=(1, 2), keepdim=True)
        q, k, v = self.split(x)
        place = torch.arange(x.size(1))
        hidden = place[None, :] > place[:, None] + (2 if self.slip == "two" else 0)
        if self.slip == "blocks":
            hidden = place[None, :] // 4 > place[:, None] // 4
        return self.merge(self.weights(q, k, hidden) @ v)


class PaddedLater(Heads):
    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        q, k, v = self.split(x)
        hidden = (torch.arange(x.size(1)) >= lengths[:, None])[:, None, None]
        later = torch.ones(x.size(1), x.size(1)).triu(1).bool()
        return self.merge(self.weights(q, k, hidden if self.slip else hidden | later) @ v)


class Cached(Heads):
    """Returns its output and its keys and values, to be passed with the tokens that follow."""

    def forward(self, x: Tensor, past: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        q, k, v = self.split(x)
        before, count = 0 if past is None else past[0].size(2), x.size(1)
        places = torch.arange(count) + (0 if self.slip == "places" else before)
        q, k = turned(q, places), turned(k, places)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        key, query = torch.arange(before + count), torch.arange(before, before + count)
        if self.slip == "left":
            query = torch.arange(count)
        far = query[:, None] - key
        if self.slip == "bias":
            far = torch.arange(count)[:, None] - key
        hidden = key > query[:, None]
        if self.slip == "open" and past is not None:
            hidden = torch.zeros_like(hidden)
        scores = (q @ k.mT / math.sqrt(DIM) - 0.3 * far.abs()).masked_fill(hidden, -math.inf)
        kept = (k, v) if self.slip != "order" else (k.flip(2), v.flip(2))
        return self.merge(scores.softmax(-1) @ v), kept


def turned(x: Tensor, places: Tensor) -> Tensor:
    angles = places[:, None] * 0.3 ** torch.arange(DIM // 2)
    a, b = x.chunk(2, -1)
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)


def tokens() -> tuple[Any, ...]:
    return (drawn(3, TOKENS, WIDTH),)


def padded() -> tuple[Any, ...]:
    return drawn(2, TOKENS, WIDTH), torch.arange(TOKENS) >= torch.tensor([8, 5])[:, None]


def lengths() -> tuple[Any, ...]:
    return drawn(3, TOKENS, WIDTH), torch.tensor([7, 5, 3])


def graphs() -> tuple[Any, ...]:
    return drawn(11, WIDTH), torch.tensor([0, 4, 7, 11])


def cached() -> tuple[Any, ...]:
    past = tuple(drawn(2, HEADS, 5, DIM, seed=seed) for seed in (4, 5))
    return drawn(2, 3, WIDTH), past


CASES: list[tuple[type[nn.Module], str, Callable[[], Any], dict[str, Any], str | None, str]] = [
    (Dropped, "drops", tokens, {"causal": False}, "dropout-in-eval", "dropout acts in evaluation"),
    (Noisy, "draws", tokens, {"causal": False}, None, "random numbers are drawn in evaluation"),
    (Keeping, "keeps", tokens, {"causal": False}, None, "a call changes table"),
    (TokensFirst, "first", tokens, {"causal": False}, "batch-first-forgotten", "mix takes tokens first"),
    (Items, "mean", tokens, {"causal": False}, None, "a sum, mean or norm runs over the items of the batch"),
    (Items, "view", tokens, {"causal": False}, None, "features of several items stand in one row"),
    (Padded, "queries", padded, {"causal": False}, "padding-ignored", "laid on the axis of queries, not of keys"),
    (Padded, "fill", padded, {"causal": False}, "float-mask-of-ones", "become 0, and a softmax gives"),
    (Padded, "late", padded, {"causal": False}, "mask-after-softmax", "still takes its share"),
    (Padded, "added late", padded, {"causal": False}, "mask-after-softmax", "still takes its share"),
    (Padded, "order", padded, {"causal": False}, None, "masks are repeated item after item"),
    (Padded, "heads", padded, {"causal": False}, None, "some heads hide what mask hides"),
    (Cut, "longest", lengths, {"causal": False}, None, "the largest of all items is used"),
    (Cut, "one", lengths, {"causal": False}, None, "one too many"),
    (Branches, "softmax", tokens, {"causal": False}, None, "a softmax runs over the items of the batch"),
    (Graphs, "times", graphs, {"causal": False}, None, "multiplied by a large number"),
    (Later, "norm", tokens, {"causal": True}, None, "a sum, mean or norm runs over the tokens"),
    (Later, "two", tokens, {"causal": True}, None, "the 2 tokens that follow"),
    (Later, "blocks", tokens, {"causal": True}, None, "block of 4"),
    (PaddedLater, "padding", lengths, {"causal": True}, "no-causal-mask", "no mask hides them in attention"),
    (Cached, "places", cached, {"causal": True}, "positions-restart", "begin again at 0"),
    (Cached, "left", cached, {"causal": True}, "top-left-causal", "aligned with the first key"),
    (Cached, "bias", cached, {"causal": True}, "positions-restart", "what is added to the scores of a later piece"),
    (Cached, "open", cached, {"causal": True}, "no-causal-mask", "tokens of one piece see those that follow"),
    (Cached, "order", cached, {"causal": True}, None, "finds the tokens"),
]


@pytest.mark.parametrize(
    ("kind", "slip", "call", "options", "cause", "text"), CASES, ids=[f"{case[0].__name__} {case[1]}" for case in CASES]
)
def test_a_broken_promise_is_named_by_its_cause(
    kind: type[nn.Module], slip: str, call: Callable[[], Any], options: dict[str, Any], cause: str | None, text: str
) -> None:
    torch.manual_seed(7)
    found = diagnose(kind(slip), call(), **options).findings
    assert (cause, True) in [(each.cause, text in each.told) for each in found], [(e.cause, e.told) for e in found]


@pytest.mark.parametrize(
    ("kind", "call", "options"), {case[0]: (case[0], *case[2:4]) for case in CASES}.values(), ids=lambda each: ""
)
def test_its_right_twin_is_not_accused(kind: type[nn.Module], call: Callable[[], Any], options: dict[str, Any]) -> None:
    torch.manual_seed(7)
    assert not [each.told for each in diagnose(kind(), call(), **options).findings]


def test_the_line_that_mixes_items_is_told() -> None:
    torch.manual_seed(7)
    (found,) = diagnose(Items("mean"), tokens(), causal=False).findings
    assert "`k = k - k.mean(0)` (line" in found.told
    assert "of test_doctor_why.py)" in found.told


def test_a_layer_that_takes_tokens_first_is_named_in_a_model() -> None:
    torch.manual_seed(7)
    model = nn.Sequential(TokensFirst(), nn.LayerNorm(WIDTH), TokensFirst("first"))
    (found,) = diagnose_model(model, tokens(), causal=False).findings
    assert found.cause == "batch-first-forgotten"
    assert "2.mix takes tokens first" in found.told


def test_equal_findings_of_several_layers_stand_in_one_line() -> None:
    where = [f"layers.{n}.attention" for n in range(6)]
    found = tuple(Finding("scale", "missing-scale", "not scaled", "seen", where=each, step="scale") for each in where)
    layers = (Layer("layers.0.attention", "causal", "sdpa", 3, 3, 8, causal=True),)
    text = ModelReport("Model", layers, differences=found).text(width=200)
    assert "layers.0.attention, layers.1.attention and 4 more: missing-scale" in text
    assert text.count("not scaled") == 1


def test_an_equal_headline_says_without_what_it_was_asked() -> None:
    head = Report("Layer", verdict="equal", never_passed=("memory_pad", "bias")).text(width=200).partition("\n")[0]
    assert head.endswith("equal to an independent attention, asked without memory_pad and bias")
