"""What the doctor must never say: right code that it accused, and wrong code that it called decided, each a row."""

import math
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from unmasked import diagnose, diagnose_model

from .test_zoo import WRONG as STRANGERS
from .test_zoo import examined
from .zoo.attention import Attention, fill, separate
from .zoo.cases import Style
from .zoo.positions import rope, rotary

E, H = 12, 3
STEPS = Style(Attention, dim=E, heads=H, names=separate("", "_proj"), causal=False)
ROTARY = STEPS(**rotary(base=100.0))


def turned(x: Tensor, sign: float = 1.0) -> Tensor:
    return rope(x, torch.arange(x.size(-2), device=x.device), 100.0, sign=sign)


def through(dim: int = E, heads: int = H, **options: Any) -> nn.Module:
    """Queries through fewer features than a head has."""
    module = Attention(dim, heads, **options)
    module.q_proj = nn.Sequential(nn.Linear(dim, 5), nn.Linear(5, 24))
    return module


def encoder_layer(dim: int = E, heads: int = H) -> nn.Module:
    return nn.TransformerEncoderLayer(dim, heads, 16, batch_first=True)


def added(q: Tensor, k: Tensor) -> Tensor:
    """Products by baddbmm, with its arguments by keyword."""
    zeros = torch.zeros(q.size(0) * q.size(1), q.size(2), k.size(2), dtype=q.dtype)
    scores = torch.baddbmm(zeros, batch1=q.flatten(0, 1), batch2=k.flatten(0, 1).mT, alpha=q.size(-1) ** -0.5)
    return scores.unflatten(0, q.shape[:2])


class Divided(Attention):
    """Scores are divided by a number that is kept under this name."""

    def __init__(self, kept_as: str = "scaling", number: float = 1.0, **options: Any) -> None:
        super().__init__(**options)
        self.kept_as = kept_as
        setattr(self, kept_as, number)

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT / getattr(self, self.kept_as)


IN_PLACE = STEPS(causal=True, show=lambda s, allowed: fill(s.tril_(), allowed))
RIGHT = {
    "rotary": ROTARY,
    "rotary, head_dim more than embed_dim": ROTARY(heads=1, width=16),
    "rotary, a low rank": Style(through, width=8, names=separate("", "_proj"), **rotary()),
    "spectral_norm": STEPS(linear=lambda i, o, bias: nn.utils.parametrizations.spectral_norm(nn.Linear(i, o, bias))),
    "values turned and outputs turned back": ROTARY(
        placed=lambda q, k, v, at: (turned(q), turned(k), turned(v)), mix=lambda w, v: turned(w @ v, sign=-1.0)
    ),
    "an encoder layer in training": Style(encoder_layer, causal=False, training=True),
    "baddbmm by keyword": STEPS(score=added),
    "unscaled by design": Style(Divided, dim=E, causal=False),
    "a triangle in place": IN_PLACE,
}


@pytest.mark.drawn
@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("seed", range(3))
def test_right_code_that_was_accused_is_not(name: str, seed: int) -> None:
    report = RIGHT[name].examine(seed)
    assert not report.named, report


def test_where_nobody_said_whether_it_is_causal_a_window_into_the_future_is_asked_about() -> None:
    ahead = Attention(E, H, sees=lambda at, keys: keys <= at[:, None] + 1)
    report = diagnose(ahead, embed_dim=E)
    told = "each query sees all tokens before it and 1 after it: pass causal=True if that is too many"
    assert (not report.named, report.verdict) == (True, "open")
    assert told in [each.needs for each in report.inconclusive]
    assert not diagnose(ahead, embed_dim=E, causal=True).ok


def test_the_width_of_a_head_is_not_taken_for_the_length_of_a_window() -> None:
    windowed = Style(
        Attention, dim=E, heads=H, causal=True, sees=lambda at, keys: (keys <= at[:, None]) & (keys > at[:, None] - 3)
    )
    assert windowed.make().width != 3
    assert windowed.examine().verdict == "followed"


@pytest.mark.parametrize("style", [STEPS(causal=True), STEPS(inputs="x_allowed")], ids=["its own", "given"])
def test_of_a_mask_of_the_other_polarity_nothing_else_is_said_where_a_token_then_sees_nothing(style: Style) -> None:
    report = style(show=lambda s, allowed: s.masked_fill(allowed, -math.inf)).examine()
    assert [finding.cause for finding in report.named] == ["mask-polarity"]


def test_what_does_not_run_is_told_with_its_line() -> None:
    def fails(x: Tensor) -> Tensor:
        return x[:, 99]

    (finding,) = diagnose(fails, embed_dim=E).named
    line = fails.__code__.co_firstlineno + 1
    assert finding.evidence.endswith(f", at line {line} of test_doctor_sound.py")


def test_what_is_changed_in_place_is_followed() -> None:
    assert IN_PLACE.examine().verdict == "equal"


@pytest.mark.parametrize(
    ("style", "cause"),
    [
        (STRANGERS["gqa-repeat"].style, "repeat-for-repeat-interleave"),
        (
            STEPS(width=8, qk_norm=nn.RMSNorm, positions=True, headed=lambda q, k, v: (turned(q), turned(k), v)),
            "norm-after-rope",
        ),
    ],
)
def test_what_is_right_by_some_checkpoints_is_a_difference(style: Style, cause: str) -> None:
    report = style.examine()
    assert report.ok
    assert [difference.cause for difference in report.differences] == [cause]


# Wrong, and once said to be decided


class KeysNormed(Attention):
    """The norm of queries is forgotten, that of keys is not."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.q_rms_norm, self.k_rms_norm = nn.RMSNorm(self.width), nn.RMSNorm(self.width)

    def headed(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return q, self.k_rms_norm(k), v


class Forgotten(Attention):
    """The value's projection is there, and the key's makes the value, before its norm."""

    def project(self, x: Tensor, *_: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q_proj(x), self.k_proj(x), self.k_proj(x)


class Window(Attention):
    """Five tokens where the attribute says four."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.window = 4

    def sees(self, at: Tensor, keys: Tensor) -> Tensor:
        return (keys <= at[:, None]) & (at[:, None] - keys <= self.window)


def shut_in_float32(scores: Tensor, allowed: Tensor) -> Tensor:
    return scores.masked_fill(torch.ones(allowed.shape).tril() == 0, -math.inf)


WRONG: dict[str, tuple[Style, str]] = {
    "a number kept for something else": (Style(Divided, dim=E, causal=False, kept_as="max_len", number=7.3), ""),
    "half of the key is the query": (
        STEPS(headed=lambda q, k, v: (q, torch.cat([q[..., :2], k[..., 2:]], -1), v)),
        "made by rows that make the",
    ),
    "one norm of two": (Style(KeysNormed, dim=E, causal=False), "only one of queries and keys is normalized"),
    "a window one too long": (Style(Window, dim=E, causal=True, positions=True), ""),
    "a mask of ones that is added before a cap": (
        STEPS(causal=True, show=lambda s, allowed: 20 * ((s + ~allowed) / 20).tanh()),
        "the mask of what is hidden is added",
    ),
    "returned weights transposed": (
        STEPS(returns=lambda y, w: (y, w.mean(1).mT)),
        "the weights that it returns are transposed",
    ),
    "values turned": (
        ROTARY(placed=lambda q, k, v, at: (turned(q), turned(k), turned(v))),
        "values are turned with their places",
    ),
    "keys one late": (ROTARY(placed=lambda q, k, v, at: (rope(q, at, 100.0), rope(k, at + 1, 100.0), v)), ""),
    "a projection that nothing reads": (
        Style(Forgotten, dim=E, names=separate("", "_proj"), qk_norm=nn.RMSNorm, causal=False),
        "",
    ),
    "a cut gradient behind float32": (
        STEPS(causal=True, show=shut_in_float32, weigh=lambda s, allowed: s.softmax(-1).detach()),
        "a gradient is cut off",
    ),
    "a number of heads that it has not": (
        Style(lambda dim=E, heads=4: STEPS.make(), causal=False),
        "num_heads=4 was given",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_code_is_found_or_left_open_and_never_settled(name: str) -> None:
    style, told = WRONG[name]
    report = style.examine()
    assert report.named or report.verdict == "open", report
    if told:
        assert any(told in finding.told for finding in report.named), report


# What it promises


def test_three_words_say_how_well_it_is_known() -> None:
    targets = ((STEPS.make(), False), (ROTARY.make(), True), (lambda x: x.cumsum(1).tanh(), True))
    equal, followed, unknown = (
        diagnose(target, embed_dim=E, causal=False, positions=positions) for target, positions in targets
    )
    assert [each.verdict for each in (equal, followed, unknown)] == ["equal", "followed", "open"]
    assert followed.given == ("how places turn queries and keys",)
    assert "taken as given: how places turn queries and keys" in re.sub(r"\s+", " ", followed.text())
    (finding,) = examined(STRANGERS["gpt-no-scale"]).named
    assert (finding.cause, finding.how) == ("missing-scale", "equal")


class Single(nn.Module):
    """Attention that computes in float32, whatever it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(E, 3 * E), nn.Linear(E, E)

    def forward(self, x: Tensor) -> Tensor:
        rows = nn.functional.linear(x.float(), self.qkv.weight.float(), self.qkv.bias.float())
        q, k, v = rows.unflatten(-1, (3 * H, -1)).transpose(1, 2).chunk(3, 1)
        context = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return nn.functional.linear(context, self.proj.weight.float(), self.proj.bias.float()).to(x.dtype)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "inference mode": torch.inference_mode,
    "no grad": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "a default device": lambda: torch.device("meta"),
    "a default dtype": lambda: default_dtype(torch.float64),
}


@pytest.mark.parametrize("mode", MODES)
def test_the_mode_that_a_caller_is_in_changes_nothing_in_what_is_found(mode: str) -> None:
    targets = [STEPS.make(), Single()]
    model, x = nn.TransformerEncoder(encoder_layer(), 3, enable_nested_tensor=False), torch.randn(2, 5, E)

    def found() -> list[object]:
        reports = [diagnose(target, embed_dim=E, num_heads=H, causal=False) for target in targets]
        reports += [diagnose(target, x, num_heads=H, causal=False) for target in targets]
        return [*reports, diagnose_model(model, x).ok]

    here = found()
    with MODES[mode]():
        assert found() == here


def test_a_target_that_is_made_in_inference_mode_is_examined_in_it_and_outside() -> None:
    with torch.inference_mode():
        target = STEPS.make()
        assert diagnose(target, embed_dim=E, causal=False).verdict == "equal"
    assert diagnose(target, embed_dim=E, causal=False).verdict == "equal"


# Whole models, one layer of which is wrong


@pytest.mark.parametrize(
    ("cause", "told", "slip"),
    [
        (
            "only-first-item",
            "every item has the key of the first one",
            {"headed": lambda q, k, v: (q, k[:1].expand_as(k), v)},
        ),
        (
            "view-without-transpose",
            "are split by a view alone",
            {"split": lambda t, heads: t.view(t.size(0), heads, t.size(1), -1)},
        ),
        (None, "is read of other tokens than its own", {"headed": lambda q, k, v: (q, k.roll(1, 2), v)}),
        (
            None,
            "some of its weights are not numbers",
            {"weigh": lambda s, allowed: (w := (9 * s).softmax(-1)).masked_fill(w > 0.5, math.nan)},
        ),
    ],
)
def test_one_wrong_layer_of_a_model_is_found_in_its_place(cause: str | None, told: str, slip: dict[str, Any]) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 6, E)
    names = separate("", "_proj")
    wrong, *right = (Attention(E, H, names, residual=True, **each) for each in (slip, {}, {}, {}))
    report = diagnose_model(nn.Sequential(right[0], wrong, right[1]), x)
    assert {finding.where for finding in report.named} == {"1"}, report
    assert any(finding.cause == cause and told in finding.told for finding in report.named), report
    healthy = diagnose_model(nn.Sequential(*right), x)
    assert (not healthy.named, healthy.verdict) == (True, "followed"), healthy


def test_cross_attention_that_reads_its_own_tokens_is_unlike_its_name() -> None:
    class Decoder(nn.Module):
        def __init__(self, *slips: dict[str, Any]) -> None:
            super().__init__()
            names = separate("", "_proj")
            self.cross_attn = nn.ModuleList(Attention(E, H, names, inputs="x_context", **slip) for slip in slips)

        def forward(self, x: Tensor, memory: Tensor) -> Tensor:
            for layer in self.cross_attn:
                x = x + layer(x, memory)
            return x

    inputs = (torch.randn(2, 6, E), torch.randn(2, 6, E))
    own = {"taken": lambda x, memory, _: (x, x, x)}
    assert not diagnose_model(Decoder({}, {}, {}), inputs).named
    assert {f.where for f in diagnose_model(Decoder({}, own, {}), inputs).named} == {"cross_attn.1"}
