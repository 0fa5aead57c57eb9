"""What the doctor must never say: right code that it accused, and wrong code that it called decided, each a row."""

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from unmasked import diagnose, diagnose_model

E, H = 12, 3
Heads = tuple[Tensor, Tensor, Tensor]


def turned(x: Tensor, start: int = 0, back: bool = False) -> Tensor:
    places = torch.arange(start, start + x.size(-2), dtype=x.dtype)
    angle = places[:, None] * 10.0 ** -torch.arange(x.size(-1) // 2, dtype=x.dtype)
    cos, sin = angle.cos(), -angle.sin() if back else angle.sin()
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class Steps(nn.Module):
    """Self-attention in steps; `slip` says which of them is done otherwise."""

    def __init__(self, slip: str = "", heads: int = H, dim: int = E // H) -> None:
        super().__init__()
        self.slip, self.heads, self.dim = slip, heads, dim
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(E, heads * dim) for _ in range(3))
        self.o_proj = nn.Linear(heads * dim, E)

    def split(self, x: Tensor) -> Tensor:
        split: Tensor = x.unflatten(-1, (self.heads, -1))
        return split.transpose(1, 2)

    def project(self, x: Tensor) -> Heads:
        return self.split(self.q_proj(x)), self.split(self.k_proj(x)), self.split(self.v_proj(x))

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        scores: Tensor = q @ k.mT * self.dim**-0.5
        return scores

    def weigh(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1)

    def finish(self, context: Tensor) -> Any:
        return self.o_proj(context.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Any:
        q, k, v = self.project(x)
        return self.finish(self.weigh(self.scores(q, k)) @ v)


class Rotary(Steps):
    """Positions: right; keys one late; values too; values, and outputs turned back."""

    def project(self, x: Tensor) -> Heads:
        q, k, v = super().project(x)
        v = turned(v) if self.slip in ("values", "values and back") else v
        return turned(q), turned(k, 1 if self.slip == "late" else 0), v

    def finish(self, context: Tensor) -> Any:
        return super().finish(turned(context, back=True) if self.slip == "values and back" else context)


class Through(Rotary):
    """Queries and keys through fewer features than a head has."""

    def __init__(self) -> None:
        super().__init__(dim=8)
        self.q_proj = nn.Sequential(nn.Linear(E, 5), nn.Linear(5, 24))  # type: ignore[assignment]


class Spectral(Steps):
    def __init__(self) -> None:
        super().__init__()
        for name in ("q_proj", "k_proj", "v_proj"):
            setattr(self, name, nn.utils.parametrizations.spectral_norm(getattr(self, name)))


class Grouped(Steps):
    """Two key heads for four query heads, dealt out in turn."""

    def __init__(self) -> None:
        super().__init__(heads=4)
        self.k_proj, self.v_proj = nn.Linear(E, 2 * 4), nn.Linear(E, 2 * 4)

    def project(self, x: Tensor) -> Heads:
        q = self.split(self.q_proj(x))
        k, v = (f(x).unflatten(-1, (2, -1)).transpose(1, 2).repeat(1, 2, 1, 1) for f in (self.k_proj, self.v_proj))
        return q, k, v


class NormedLate(Rotary):
    """Queries and keys are normed after they are turned, with a factor for each feature."""

    def __init__(self) -> None:
        super().__init__(dim=8)
        self.q_norm, self.k_norm = nn.RMSNorm(8), nn.RMSNorm(8)

    def project(self, x: Tensor) -> Heads:
        q, k, v = super().project(x)
        return self.q_norm(q), self.k_norm(k), v


class Added(Steps):
    """Products by baddbmm, with its arguments by keyword."""

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        q, k = q.flatten(0, 1), k.flatten(0, 1)
        zeros = torch.zeros(len(q), q.size(1), k.size(1), dtype=q.dtype)
        scores: Tensor = torch.baddbmm(zeros, batch1=q, batch2=k.mT, alpha=self.dim**-0.5)
        return scores.view(-1, self.heads, *scores.shape[1:])


class Unscaled(Steps):
    """Scores without a scale, which an attribute says."""

    def __init__(self) -> None:
        super().__init__()
        self.scaling = 1.0

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT * self.scaling


class InPlace(Steps):
    """Scores that are cut to a triangle in place, and then masked."""

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        scores = super().scores(q, k).tril_()
        return scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)


RIGHT: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "rotary": (Rotary, {"positions": True}),
    "rotary, head_dim more than embed_dim": (lambda: Rotary(heads=1, dim=16), {"positions": True}),
    "rotary, a low rank": (Through, {"positions": True}),
    "spectral_norm": (Spectral, {}),
    "values turned and outputs turned back": (lambda: Rotary("values and back"), {"positions": True}),
    "an encoder layer in training": (
        lambda: nn.TransformerEncoderLayer(E, H, 16, batch_first=True),
        {"training": True},
    ),
    "key heads dealt in turn": (Grouped, {}),
    "baddbmm by keyword": (Added, {}),
    "unscaled by design": (Unscaled, {}),
    "a triangle in place": (InPlace, {"causal": True}),
}


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("seed", range(3))
def test_right_code_that_was_accused_is_not(name: str, seed: int) -> None:
    torch.manual_seed(seed)
    make, options = RIGHT[name]
    given: dict[str, Any] = {"causal": False, **options}
    report = diagnose(make(), embed_dim=E, **given)
    assert report.ok, report


class Ahead(Steps):
    """Each query sees its own token, all before it and the next one."""

    def weigh(self, scores: Tensor) -> Tensor:
        return scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(2), -torch.inf).softmax(-1)


def test_where_nobody_said_whether_it_is_causal_a_window_into_the_future_is_asked_about() -> None:
    report = diagnose(Ahead(), embed_dim=E)
    told = "each query sees all tokens before it and 1 after it: pass causal=True if that is too many"
    assert (report.ok, report.verdict) == (True, "open")
    assert told in [each.needs for each in report.inconclusive]
    assert not diagnose(Ahead(), embed_dim=E, causal=True).ok


def test_what_does_not_run_is_told_with_its_line() -> None:
    def fails(x: Tensor) -> Tensor:
        return x[:, 99]

    (finding,) = diagnose(fails, embed_dim=E).findings
    line = fails.__code__.co_firstlineno + 1
    assert finding.evidence.endswith(f", at line {line} of test_doctor_sound.py")


def test_what_is_changed_in_place_is_followed() -> None:
    assert diagnose(InPlace(), embed_dim=E, causal=True).verdict == "equal"


@pytest.mark.parametrize(
    ("make", "options", "cause"),
    [
        (Grouped, {}, "repeat-for-repeat-interleave"),
        (NormedLate, {"positions": True}, "norm-after-rope"),
    ],
)
def test_what_is_right_by_some_checkpoints_is_a_caution_and_open(
    make: Callable[[], nn.Module], options: dict[str, Any], cause: str
) -> None:
    report = diagnose(make(), embed_dim=E, causal=False, **options)
    assert [caution.cause for caution in report.cautions] == [cause]
    assert (report.ok, report.verdict) == (True, "open")


# Wrong, and once said to be decided


class Kept(Steps):
    """A number that is kept for something else is the scale."""

    def __init__(self) -> None:
        super().__init__()
        self.max_len = 7.3

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT / self.max_len


class Half(Steps):
    """Half of the key is the query's."""

    def project(self, x: Tensor) -> Heads:
        q, k, v = super().project(x)
        return q, torch.cat([q[..., :2], k[..., 2:]], -1), v


class Normed(Steps):
    """The norm of queries is forgotten, that of keys is not."""

    def __init__(self) -> None:
        super().__init__()
        self.q_norm, self.k_norm = nn.RMSNorm(E // H), nn.RMSNorm(E // H)

    def project(self, x: Tensor) -> Heads:
        q, k, v = super().project(x)
        return q, self.k_norm(k), v


class Window(Steps):
    """Five tokens where the attribute says four."""

    window = 4

    def __init__(self) -> None:
        super().__init__()
        self.window = 4

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        n = q.size(-2)
        seen = torch.ones(n, n, dtype=torch.bool).tril().triu(-self.window)
        return super().scores(q, k).masked_fill(~seen, -math.inf)


class Returns(Steps):
    """The weights that it returns are transposed."""

    def forward(self, x: Tensor) -> Any:
        q, k, v = self.project(x)
        weights = self.weigh(self.scores(q, k))
        return self.finish(weights @ v), weights.mean(1).mT


class Detached(Steps):
    """A cut gradient behind a mask of float32."""

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        shut = torch.tril(torch.ones(q.size(-2), q.size(-2))) == 0
        return super().scores(q, k).masked_fill(shut, -math.inf)

    def weigh(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1).detach()


class Forgotten(Normed):
    """The value's projection is there, and the key's makes the value, before its norm."""

    def project(self, x: Tensor) -> Heads:
        q, k, v = self.q_proj(x), self.k_proj(x), self.k_proj(x)
        return self.q_norm(self.split(q)), self.k_norm(self.split(k)), self.split(v)


class Overwritten(Steps):
    """The softmax's own numbers are masked, which its gradient takes."""

    def weigh(self, scores: Tensor) -> Tensor:
        weights = scores.softmax(-1).tril_()
        return weights / weights.sum(-1, keepdim=True)


WRONG: dict[str, tuple[Callable[[], nn.Module], dict[str, Any], str]] = {
    "a number kept for something else": (Kept, {}, ""),
    "half of the key is the query": (Half, {}, "made by rows that make the"),
    "one norm of two": (Normed, {}, "only one of queries and keys is normalized"),
    "a window one too long": (Window, {"causal": True, "positions": True}, ""),
    "returned weights transposed": (Returns, {}, "the weights that it returns are transposed"),
    "values turned": (lambda: Rotary("values"), {"positions": True}, "values are turned with their places"),
    "keys one late": (lambda: Rotary("late"), {"positions": True}, ""),
    "a projection that nothing reads": (Forgotten, {}, ""),
    "a cut gradient behind float32": (Detached, {"causal": True}, "a gradient is cut off"),
    "a backward pass that fails": (Overwritten, {"causal": True}, "its backward pass fails"),
    "a number of heads that it has not": (Steps, {"num_heads": 4}, "num_heads=4 was given"),
    "no cache though cache is said": (
        lambda: Steps("causal"),
        {"cache": "kv", "causal": True},
        "",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_code_is_found_or_left_open_and_never_settled(name: str) -> None:
    torch.manual_seed(0)
    make, options, told = WRONG[name]
    given: dict[str, Any] = {"causal": False, **options}
    report = diagnose(make(), embed_dim=E, **given)
    assert not report.ok or report.verdict == "open", report
    if told:
        assert any(told in finding.told for finding in report.findings), report


# What it promises


def test_three_words_say_how_well_it_is_known() -> None:
    targets = ((Steps(), False), (Rotary(), True), (lambda x: x.cumsum(1).tanh(), True))
    equal, followed, unknown = (
        diagnose(target, embed_dim=E, causal=False, positions=positions) for target, positions in targets
    )
    assert [each.verdict for each in (equal, followed, unknown)] == ["equal", "followed", "open"]
    assert followed.given == ("how places turn queries and keys",)
    assert "taken as given: how places turn queries and keys" in re.sub(r"\s+", " ", followed.text())
    (finding,) = diagnose(Kept_(), embed_dim=E, causal=False).findings
    assert (finding.cause, finding.how) == ("missing-scale", "equal")


class Kept_(Steps):  # noqa: N801
    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT


class Makes(Steps):
    """Makes its cache in the first call, where it was given."""

    def forward(self, x: Tensor, cache: Any = None) -> Any:
        q, k, v = self.project(x)
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        n, m = q.size(2), k.size(2)
        seen = torch.ones(n, m, dtype=torch.bool).tril(m - n)
        y = (self.scores(q, k).masked_fill(~seen, -math.inf).softmax(-1)) @ v
        return self.finish(y), (k, v)


def test_a_cache_that_the_first_call_makes_is_examined() -> None:
    report = diagnose(Makes(), embed_dim=E, cache="kv")
    assert report.ok, report
    assert "with a cache, the same as without" in report.passed


def test_a_default_device_is_no_obstacle() -> None:
    target = Steps()
    here = diagnose(target, embed_dim=E, causal=False)
    torch.set_default_device("meta")
    try:
        there = diagnose(target, embed_dim=E, causal=False)
    finally:
        torch.set_default_device(None)
    assert there == here


def test_a_table_of_positions_that_is_too_short_is_no_crash() -> None:
    class Short(Steps):
        def __init__(self) -> None:
            super().__init__()
            self.places = nn.Embedding(9, E)

        def forward(self, x: Tensor) -> Any:
            return super().forward(x + self.places(torch.arange(x.size(1))))

    report = diagnose(Short(), embed_dim=E, causal=False, positions=True)
    assert report.ok, report


# Whole models, one layer of which is wrong


class Layered(nn.Module):
    def __init__(self, *kinds: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(kind() for kind in kinds)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


class Slipped(Steps):
    def project(self, x: Tensor) -> Heads:
        q, k, v = super().project(x)
        if self.slip == "first":
            return q, k[:1].expand_as(k), v
        if self.slip == "view":
            q = self.q_proj(x).view(x.size(0), H, x.size(1), -1)
        if self.slip == "shifted":
            return q, k.roll(1, 2), v
        return q, k, v

    def weigh(self, scores: Tensor) -> Tensor:
        weights = scores.softmax(-1)
        return weights.masked_fill(weights > 0.5, math.nan) if self.slip == "nan" else weights

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return super().scores(q, k) * (9.0 if self.slip == "nan" else 1.0)


@pytest.mark.parametrize(
    ("slip", "cause", "told"),
    [
        ("first", "only-first-item", "every item has the key of the first one"),
        ("view", "view-without-transpose", "are split by a view alone"),
        ("shifted", None, "is read of other tokens than its own"),
        ("nan", None, "some of its weights are not numbers"),
    ],
)
def test_one_wrong_layer_of_a_model_is_found_in_its_place(slip: str, cause: str | None, told: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 6, E)
    report = diagnose_model(Layered(Slipped, lambda: Slipped(slip), Slipped), x)
    assert {finding.where for finding in report.findings} == {"layers.1"}, report
    assert any(finding.cause == cause and told in finding.told for finding in report.findings), report
    right = diagnose_model(Layered(Slipped, Slipped, Slipped), x)
    assert (right.ok, right.verdict) == (True, "followed"), right


def test_cross_attention_that_reads_its_own_tokens_is_unlike_its_name() -> None:
    class Cross(Steps):
        def forward(self, x: Tensor, memory: Tensor) -> Any:  # type: ignore[override]
            memory = x if self.slip else memory
            q, k, v = (self.split(f(y)) for f, y in ((self.q_proj, x), (self.k_proj, memory), (self.v_proj, memory)))
            return self.finish(self.weigh(self.scores(q, k)) @ v)

    class Decoder(nn.Module):
        def __init__(self, *slips: str) -> None:
            super().__init__()
            self.cross_attn = nn.ModuleList(Cross(slip) for slip in slips)

        def forward(self, x: Tensor, memory: Tensor) -> Tensor:
            for layer in self.cross_attn:
                x = x + layer(x, memory)
            return x

    inputs = (torch.randn(2, 6, E), torch.randn(2, 6, E))
    assert diagnose_model(Decoder("", "", ""), inputs).ok
    assert {f.where for f in diagnose_model(Decoder("", "own", ""), inputs).findings} == {"cross_attn.1"}
