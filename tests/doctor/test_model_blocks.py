"""Layers of a model asked as modules, items given alone, padding before texts, and pieces: slips beside right twins."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from unmasked_doctor import diagnose_model

WIDTH, HEADS, WORDS = 16, 2, 20


class Attend(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(
        self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None, bias: Tensor | float = 0.0
    ) -> Tensor:
        key = query if key is None else key
        made = ((self.q, query), (self.k, key), (self.v, key if value is None else value))
        q, k, v = (layer(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for layer, x in made)
        weights = (q @ k.mT / math.sqrt(WIDTH // HEADS) + bias).softmax(-1)
        output: Tensor = self.out((weights @ v).transpose(1, 2).flatten(2))
        return output


def causal(queries: int, keys: int) -> Tensor:
    return torch.zeros(queries, keys).masked_fill(torch.ones(queries, keys).triu(keys - queries + 1).bool(), -1e9)


class Layer(nn.Module):
    """A block whose norm comes first; where it slips, its residual or one of its roles takes the wrong stream."""

    def __init__(self, slip: str = "") -> None:
        super().__init__()
        self.slip, self.norm, self.attend = slip, nn.LayerNorm(WIDTH), Attend()
        self.wider, self.narrower = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, bias: Tensor | float = 0.0) -> Tensor:
        normed = self.norm(x)
        raw = {"keys": (normed, x, normed), "both": (normed, x, x)}.get(self.slip, (normed, normed, normed))
        x = (normed if self.slip == "residual" else x) + self.attend(*raw, bias)
        output: Tensor = x + self.narrower(self.wider(x).relu())
        return output


class Stack(nn.Module):
    """Three layers, of which the second may slip."""

    def __init__(self, slip: str = "") -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(slip if n == 1 else "") for n in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Along(nn.Module):
    """Attends along the rows, or the columns, of (batch, rows, columns, features)."""

    def __init__(self, axis: int, slip: bool = False) -> None:
        super().__init__()
        self.axis, self.slip, self.attend = axis, slip, Attend()

    def forward(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        if self.slip:
            return x + self.attend(x.reshape(b * w, h, c)).reshape(x.shape)
        lines = x if self.axis == 2 else x.transpose(1, 2)
        y = self.attend(lines.flatten(0, 1)).view(lines.shape)
        return x + (y if self.axis == 2 else y.transpose(1, 2))


class Grid(nn.Module):
    def __init__(self, slip: str = "") -> None:
        super().__init__()
        self.layers = nn.ModuleList([Along(2), Along(1, bool(slip)), Along(2)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Rolled(nn.Module):
    """Windows of 3 x 3, rolled by one."""

    def __init__(self, shift: int, masked: str) -> None:
        super().__init__()
        self.shift, self.masked, self.attend = shift, masked, Attend()

    def cut(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        return x.view(b, h // 3, 3, w // 3, 3, c).transpose(2, 3).reshape(-1, 9, c)

    def forward(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        part = torch.zeros(1, h, w, 1)
        part[:, h - self.shift :] += "rows" in self.masked
        part[:, :, w - self.shift :] += 2 * ("columns" in self.masked)
        parts = self.cut(part.expand(b, -1, -1, -1))[..., 0]
        apart = (parts[:, :, None] != parts[:, None])[:, None] * -1e9 if self.shift else 0.0
        y = self.attend(self.cut(x.roll((-self.shift, -self.shift), (1, 2))), bias=apart)
        y = y.view(b, h // 3, w // 3, 3, 3, c).transpose(2, 3).reshape(x.shape)
        return x + y.roll((self.shift, self.shift), (1, 2))


class Shifted(nn.Module):
    """Plain windows and shifted ones; columns may be a circle, as longitudes are."""

    def __init__(self, slip: str = "") -> None:
        super().__init__()
        masked = {"": "rows columns", "circle": "rows"}.get(slip, "")
        self.layers = nn.ModuleList([Rolled(0, ""), Rolled(1, masked)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Texts(nn.Module):
    """Cuts texts at their lengths, and pads to the longest; the slip's mask is all ones."""

    def __init__(self, slip: str = "") -> None:
        super().__init__()
        self.slip, self.embedding, self.layer = slip, nn.Embedding(WORDS, WIDTH), Layer()

    def forward(self, ids: Tensor, counts: Tensor) -> Tensor:
        rows = [row[:n] for row, n in zip(ids, counts.tolist(), strict=True)]
        full = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        hidden = (torch.arange(full.size(1)) >= counts[:, None])[:, None, None]
        output: Tensor = self.layer(self.embedding(full), 0.0 if self.slip else hidden * -1e9)[:, 0]
        return output


class Packed(nn.Module):
    """Images in one axis; where it slips, its layer is not given the mask."""

    def __init__(self, slip: str = "") -> None:
        super().__init__()
        self.slip, self.embed, self.layer = slip, nn.Linear(6, WIDTH), Layer()

    def forward(self, patches: Tensor, sizes: list[tuple[int, int]]) -> Tensor:
        which = torch.arange(len(sizes)).repeat_interleave(torch.tensor([a * b for a, b in sizes]))
        apart = torch.where(which[:, None] == which, 0.0, -1e9)
        output: Tensor = self.layer(self.embed(patches)[None], apart * (0.0 if self.slip else 1.0))[0]
        return output


class Writer(nn.Module):
    """Padding stands before the texts; the slip counts places by columns."""

    def __init__(self, slip: str = "") -> None:
        super().__init__()
        self.slip, self.embedding, self.places = slip, nn.Embedding(WORDS, WIDTH), nn.Embedding(30, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(2))

    def forward(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
        places = (attention_mask.cumsum(1) - 1).clamp(min=0)
        x = self.embedding(ids) + self.places(torch.arange(ids.size(1)) if self.slip else places)
        bias = causal(ids.size(1), ids.size(1)) + (attention_mask == 0)[:, None, None] * -1e9
        for layer in self.layers:
            x = layer(x, bias)
        return x


class Remembering(nn.Module):
    """Tokens first, with what each layer was given before; the slip keeps what it gave."""

    def __init__(self, slip: str = "") -> None:
        super().__init__()
        self.slip, self.layers = slip, nn.ModuleList(Attend() for _ in range(2))

    def forward(self, x: Tensor, mems: list[Tensor] | None = None) -> tuple[Tensor, list[Tensor]]:
        mems = [x[:0] for _ in self.layers] if mems is None else mems
        kept = []
        for layer, mem in zip(self.layers, mems, strict=True):
            keys = torch.cat([mem, x])
            y = x + layer(x.transpose(0, 1), keys.transpose(0, 1), bias=causal(len(x), len(keys))).transpose(0, 1)
            kept.append(torch.cat([mem, y]) if self.slip else keys)
            x = y
        return x, kept


def drawn(*shape: int, seed: int = 3) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


IDS = torch.tensor([[5, 9, 7, 2, 8, 3, 6], [4, 8, 5, 9, 1, 2, 1], [7, 3, 3, 2, 8, 5, 4]])
LEFT = torch.tensor([[1] * 7, [0, 0, 0, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1, 1]])
GRID, IMAGE, STATES = drawn(2, 4, 6, WIDTH), drawn(2, 6, 6, WIDTH), [drawn(3, 2, WIDTH), drawn(3, 2, WIDTH, seed=4)]
CASES: list[tuple[Callable[[str], nn.Module], Any, dict[str, Any], str, str, str]] = [
    (Stack, 3 * drawn(2, 7, WIDTH), {}, "residual", "layers.1", "its residual adds what its norm gives"),
    (Stack, 3 * drawn(2, 7, WIDTH), {}, "keys", "layers.1", "without the norm that the others read them with"),
    (Stack, 3 * drawn(2, 7, WIDTH), {}, "both", "layers.1", "without the norm that the others read them with"),
    (Grid, GRID, {}, "reshaped", "layers.1", "are no rows, no columns and no windows"),
    (Shifted, IMAGE, {}, "unmasked", "layers.1", "at opposite borders"),
    (Texts, (IDS, torch.tensor([7, 3, 5])), {}, "ones", "", "depends on which others are beside it"),
    (Packed, (drawn(13, 6), [(2, 3), (2, 2), (3, 1)]), {}, "lost", "", "sizes says which rows belong together"),
    (Writer, (IDS, LEFT), {"causal": True}, "columns", "", "with one more token of padding before a text"),
    (Remembering, (drawn(6, 2, WIDTH), STATES), {"causal": True, "batch_first": False}, "given", "",
     "fed with its tokens in pieces"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("make", "inputs", "options", "slip", "where", "text"),
    CASES,
    ids=[f"{case[0].__name__}, {case[3]}" for case in CASES],
)
def test_a_slip_is_found_in_its_layer_and_the_right_twin_is_not_named(
    make: Callable[[str], nn.Module], inputs: Any, options: dict[str, Any], slip: str, where: str, text: str
) -> None:
    torch.manual_seed(5)
    report = diagnose_model(make(slip).eval(), inputs, **options)
    assert [each for each in report.named if text in each.told and each.where.startswith(where)], report.text()
    assert {each.where.rpartition(".attend")[0] or each.where for each in report.named} == {where}, report.text()
    right = diagnose_model(make("").eval(), inputs, **options)
    assert not right.named, right.text()


def test_windows_that_roll_over_one_axis_of_a_circle_are_no_mistake() -> None:
    torch.manual_seed(5)
    assert not diagnose_model(Shifted("circle").eval(), IMAGE).named


def test_a_design_that_all_layers_share_is_not_named() -> None:
    """As where queries alone are normed in each layer, by design."""
    torch.manual_seed(5)
    model = Stack()
    for layer in model.layers:
        layer.slip = "both"
    assert not diagnose_model(model.eval(), 3 * drawn(2, 7, WIDTH)).named


def test_a_model_that_draws_numbers_for_all_items_is_not_asked_for_one_alone() -> None:
    class Drawn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attend = Attend()

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = self.attend(x[:, torch.rand(len(x), x.size(1)).sum(0).argsort()])
            return output

    torch.manual_seed(0)
    report = diagnose_model(Drawn().eval(), (torch.randn(3, 7, WIDTH),), causal=False)
    assert not any("depends on which others" in each.told for each in report.named), report.text()
