"""What calls alone tell the doctor: ways of calling a target, masks, caches, what is kept, numbers; right and wrong."""

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmasked import diagnose
from unmasked.doctor import Finding, Open, Report
from unmasked.doctor._calls import behaviour, obeys_its_mask
from unmasked.doctor._kept import caches, keeps_nothing
from unmasked.doctor._numbers import large, trained
from unmasked.doctor._subject import Subject, runs, still
from unmasked.doctor._target import Options
from unmasked.doctor._used import trainable

E, H = 12, 3


# Ways of calling it


class Calls(nn.Module):
    """One attention behind every way of calling it."""

    def __init__(self, keys: int = 12, values: int = 12) -> None:
        super().__init__()
        self.num_heads = 3
        self.q, self.k, self.v = nn.Linear(12, 12), nn.Linear(keys, 12), nn.Linear(values, 12)
        self.out = nn.Linear(12, 12)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None = None) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (3, 4)).transpose(1, 2) for f, x in ((self.q, q), (self.k, k), (self.v, v)))
        return self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=allowed).transpose(1, 2).flatten(2))

    def x(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.attend(x, x, x, mask)

    def x_context(self, x: Tensor, context: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.attend(x, context, context, mask)


@pytest.mark.parametrize(
    ("way", "inputs", "options"),
    [
        ("x", "x", {}),
        ("x", "x_allowed", {}),
        ("x_context", "x_context", {}),
        ("x_context", "x_context_allowed", {}),
        ("x_context", "x_context", {"key_dim": 7}),
        ("x_context", "x_context_allowed", {"key_dim": 7}),
        ("attend", "qkv", {"key_dim": 7}),
        ("attend", "qkv_allowed", {"key_dim": (7, 5)}),
        ("x", "x", {"tokens": 9}),
    ],
)
def test_a_target_is_called_as_it_takes_its_inputs(way: str, inputs: Any, options: dict[str, Any]) -> None:
    width = options.get("key_dim", 12)
    keys, values = width if isinstance(width, tuple) else (width, width)
    report = diagnose(getattr(Calls(keys, values), way), embed_dim=12, causal=False, inputs=inputs, **options)
    assert report.ok, report


def test_a_partial_of_a_bound_method_is_copied_with_its_module() -> None:
    calls = Calls()
    kept = {name: parameter.clone() for name, parameter in calls.named_parameters()}
    report = diagnose(functools.partial(calls.attend, allowed=None), embed_dim=12, causal=False, inputs="qkv")
    assert report.verdict == "equal", report
    assert all(torch.equal(parameter, kept[name]) for name, parameter in calls.named_parameters())
    assert {parameter.dtype for parameter in calls.parameters()} == {torch.float32}


def test_a_context_of_another_width_needs_its_width() -> None:
    with pytest.raises(ValueError, match="inputs is 'x', and the target refuses what that gives"):
        diagnose(Calls().x_context, embed_dim=12)


def test_a_target_without_values_is_refused_and_a_lazy_one_gets_some() -> None:
    with pytest.raises(ValueError, match=r"'q.weight' of the target is on the meta device, where tensors have no v"):
        diagnose(Calls().to("meta"), embed_dim=12)

    class Lazy(Calls):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = (nn.LazyLinear(12) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            return self.attend(x, x, x)

    lazy = Lazy()
    report = diagnose(lazy, embed_dim=12)
    assert report.ok, report
    assert nn.parameter.is_lazy(lazy.q.weight)


def split(x: Tensor) -> Tensor:
    return x.unflatten(-1, (H, -1)).transpose(1, 2)


def merge(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


class Steps(nn.Module):
    """Attention whose steps the cases below change; what to change is in ``slip``."""

    def __init__(self, slip: str = "") -> None:
        super().__init__()
        self.slip, self.num_heads = slip, H
        self.qkv, self.out = nn.Linear(E, 3 * E), nn.Linear(E, E)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (split(y) for y in self.qkv(x).chunk(3, -1))
        return q, k, v

    def causal(self, queries: int, keys: int) -> Tensor:
        return torch.ones(queries, keys, dtype=torch.bool, device=self.out.weight.device).tril(keys - queries)


def asked(question: Callable[[Subject], Any], target: Any, **options: Any) -> Report:
    """Ask one thing alone: what the doctor sees inside may tell it first."""
    subject = Subject(target, Options(E, H, **options))
    with torch.no_grad():
        assert runs(subject)[1]
        outcomes = list(question(subject))
    findings = tuple(each for each in outcomes if isinstance(each, Finding))
    return Report("", findings, inconclusive=tuple(each for each in outcomes if isinstance(each, Open)))


def acting(subject: Subject) -> Any:
    return behaviour(subject, equal=False)


def stays(subject: Subject) -> Any:
    return [still(subject)]


def causes(report: Report) -> list[str | None]:
    return [finding.cause for finding in report.findings]


def told(report: Report) -> str:
    return " ".join(finding.told for finding in report.findings)


# Masks that are given


class Masked(Steps):
    def forward(self, x: Tensor, allowed: Tensor) -> Tensor:
        q, k, v = self.project(x)
        if self.slip == "first":
            allowed = allowed[:1]
        if self.slip == "rows":
            allowed = allowed.mT
        if self.slip == "not":
            allowed = ~allowed
        scores = q @ k.mT / 2
        if self.slip == "repeat":
            shut = ~allowed.squeeze(1).repeat(H, 1, 1).view(len(x), H, *scores.shape[-2:])
            return self.out(merge(scores.masked_fill(shut, -1e4).softmax(-1) @ v))
        if self.slip == "after":
            return self.out(merge((scores.softmax(-1) * allowed) @ v))
        if self.slip == "added":
            return self.out(merge((scores + allowed).softmax(-1) @ v))
        if self.slip == "ignored":
            return self.out(merge(scores.softmax(-1) @ v))
        return self.out(merge(scores.masked_fill(~allowed, -1e4 if self.slip else -math.inf).softmax(-1) @ v))


@pytest.mark.parametrize(
    ("slip", "cause", "words"),
    [
        ("first", "only-first-item", "as the first one of the batch"),
        ("rows", None, "the mask is transposed"),
        ("not", "mask-polarity", ""),
        ("repeat", None, "masks are repeated item after item"),
        ("after", "mask-after-softmax", ""),
        ("added", "float-mask-of-ones", ""),
        ("ignored", "padding-ignored", ""),
    ],
)
def test_a_mask_of_ones_own_is_held_to_each_item(slip: str, cause: str | None, words: str) -> None:
    report = diagnose(Masked(slip), embed_dim=E, inputs="x_allowed")
    assert causes(report) == [cause], report
    assert words in told(report)
    (finding,) = asked(obeys_its_mask, Masked(slip), inputs="x_allowed").findings  # where nothing was heard
    assert cause is None or cause in finding.causes, finding
    assert diagnose(Masked(), embed_dim=E, inputs="x_allowed").ok


class PaddingOnly(Steps):
    """Takes (batch, keys), as many do."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        assert mask.shape == x.shape[:2]
        q, k, v = self.project(x)
        shown = mask[:, None, :, None] if self.slip else mask[:, None, None]
        return self.out(merge((q @ k.mT / 2).masked_fill(~shown, -1e4).softmax(-1) @ v))


def test_a_mask_of_keys_alone_is_recognized() -> None:
    assert not asked(obeys_its_mask, PaddingOnly(), inputs="x_allowed").findings
    report = asked(obeys_its_mask, PaddingOnly("rows"), inputs="x_allowed")
    assert "padding-ignored" in report.findings[0].causes, report


# Caches, and what else is kept


def rotated(x: Tensor, start: int, sign: float = 1.0) -> Tensor:
    angle = torch.arange(start, start + x.size(-2)).to(x)[:, None] * torch.tensor([1.0, 0.1]).to(x)
    a, b = x.chunk(2, -1)
    cos, sin = angle.cos(), sign * angle.sin()
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class Cached(Steps):
    def forward(self, x: Tensor, cache: Any = None) -> tuple[Tensor, Any]:
        q, k, v = self.project(x)
        past = 0 if cache is None else cache[0].size(2)
        start = 0 if self.slip == "restart" else past
        if self.slip != "prepended":
            q, k = rotated(q, start), rotated(k, start)
        if cache is not None:
            old = rotated(cache[0], 0) if self.slip == "again" else cache[0]
            k = torch.cat([old, k], 2)
            v = torch.cat([v, cache[1]] if self.slip == "prepended" else [cache[1], v], 2)
        allowed = self.causal(q.size(2), k.size(2))
        if self.slip == "left":
            allowed = torch.ones_like(allowed).tril()
        if self.slip == "open" and past:
            allowed = torch.ones_like(allowed)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        kept = 3 if self.slip == "cropped" else 100
        return self.out(merge(y)), (k[:, :, -kept:], v[:, :, -kept:])


@pytest.mark.parametrize(
    ("slip", "cause", "words"),
    [
        ("restart", "positions-restart", "other positions"),
        ("again", None, "not at their positions"),
        ("prepended", None, ""),
        ("left", "top-left-causal", "first keys alone"),
        ("open", "no-causal-mask", "given at once"),
        ("cropped", None, "no longer sees"),
    ],
)
def test_a_cache_is_held_to_the_whole_sequence(slip: str, cause: str | None, words: str) -> None:
    report = asked(caches, Cached(slip), causal=True, positions=True, cache="kv")
    (finding,) = report.findings
    assert (finding.check, finding.cause) == ("with a cache, the same as without", cause), report
    assert words in finding.told
    assert "tokens given as" in finding.evidence


def test_a_right_cache_passes_under_any_name_and_none_is_a_finding() -> None:
    report = diagnose(Cached(), embed_dim=E, causal=True, positions=True, cache="kv")
    assert report.ok, report
    assert "with a cache, the same as without" in report.passed

    class Named(Cached):
        def forward(self, x: Tensor, past_key_value: Any = None) -> tuple[Tensor, Any]:
            return super().forward(x, past_key_value)

    assert diagnose(Named(), embed_dim=E, positions=True, cache="past_key_value").ok
    report = diagnose(Steps_(), embed_dim=E, causal=True, cache="kv")
    assert "it does not go on with the cache that it returns" in told(report), report


class Steps_(Steps):  # noqa: N801
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x)
        return self.out(merge(F.scaled_dot_product_attention(q, k, v, is_causal=True)))


class Kept(Steps):
    """Keeps its mask, or its keys, from call to call."""

    mask: Tensor | None = None
    keys: Any = None

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x)
        t = x.size(1)
        if self.slip == "keys":
            if self.keys is not None and self.keys[0].shape[:2] == k.shape[:2]:
                k, v = torch.cat([self.keys[0], k], 2), torch.cat([self.keys[1], v], 2)
            self.keys = (k, v)
            return self.out(merge(F.scaled_dot_product_attention(q, k, v)))
        if self.mask is None or (self.mask.size(0) < t and self.slip != "mask"):
            self.mask = self.causal(t, t)
        allowed = torch.ones(t, t, dtype=torch.bool)
        allowed[: len(self.mask), : len(self.mask)] = self.mask[:t, :t]
        return self.out(merge(F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)))


def test_what_is_kept_from_call_to_call_is_found() -> None:
    assert not asked(keeps_nothing, Kept(), causal=True).findings
    report = asked(keeps_nothing, Kept("mask"), causal=True)
    assert "a longer sequence is not masked beyond them" in told(report), report
    report = asked(stays, Kept("keys"), causal=False)
    assert "it keeps something, and never resets" in told(report), report


# Numbers


class Counted(Steps):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x)
        if self.slip == "norm":
            q, k = (y / (y.square().mean(-1, keepdim=True) + 1e-6).sqrt() for y in (q, k))
        scores = q @ k.mT / 2
        if self.slip == "maximum":
            weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
        elif self.slip == "scores":
            weights = F.dropout(scores, 0.3, self.training).softmax(-1)
        elif self.slip == "half":
            weights = scores.half().softmax(-1).to(x.dtype)
        else:
            weights = F.dropout(scores.softmax(-1), 0.3, self.training)
        return self.out(merge(weights @ v))


@pytest.mark.parametrize(
    ("slip", "question", "check"),
    [
        ("maximum", large, "large inputs"),
        ("scores", trained, "in training, on average the same as in evaluation"),
    ],
)
def test_numbers_that_only_some_inputs_show_are_found(slip: str, question: Any, check: str) -> None:
    report = asked(question, Counted(slip), causal=False, training=True)
    assert [finding.check for finding in report.findings] == [check]
    for right in ("", "norm"):
        assert not asked(question, Counted(right), causal=False, training=True).findings


def test_training_is_examined_where_that_is_asked_for_and_a_narrow_softmax_always() -> None:
    check = "in training, on average the same as in evaluation"
    assert check in diagnose(Counted(), embed_dim=E, causal=False, training=True).passed
    assert check not in diagnose(Counted(), embed_dim=E, causal=False).passed
    assert "the softmax is computed in 16 bits" in told(diagnose(Counted("half"), embed_dim=E, causal=False))


# What a legitimate design explains is asked for, and no finding


class Sinks(Steps):
    """A learned share of the weights that goes nowhere, or learned keys and values; and what it returns beside."""

    def __init__(self, slip: str = "") -> None:
        super().__init__(slip)
        self.sink, self.memory = nn.Parameter(torch.randn(H, 1, 1)), nn.Parameter(torch.randn(2, H, 2, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = self.project(x)
        if self.slip == "memory":
            k, v = (torch.cat([m.expand(len(x), -1, -1, -1), y], 2) for m, y in zip(self.memory, (k, v), strict=True))
        scores = q @ k.mT / 2
        weights = scores.softmax(-1)
        if self.slip == "sink":
            weights = torch.cat([scores, self.sink.expand(*scores.shape[:-1], 1)], -1).softmax(-1)[..., :-1]
        beside = scores if self.slip == "scores" else weights
        return self.out(merge(weights @ v)), beside


@pytest.mark.parametrize("slip", ["sink", "memory", "scores"])
def test_sinks_learned_keys_and_raw_scores_are_no_finding(slip: str) -> None:
    report = diagnose(Sinks(slip), embed_dim=E, causal=False)
    assert report.ok, report


def test_a_sum_that_grows_with_every_copy_is_a_finding() -> None:
    report = asked(acting, Sigmoid(), causal=False)
    assert causes(report) == ["weights-not-normalized"], report


class Sigmoid(Steps):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x)
        return self.out(merge((q @ k.mT / 2).sigmoid() @ v))


def test_a_residual_inside_with_three_arguments_is_no_finding() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attend = nn.MultiheadAttention(E, H, batch_first=True)

        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return q + self.attend(q, k, v, need_weights=False)[0]

    report = diagnose(Residual(), embed_dim=E, causal=False, inputs="qkv")
    assert report.ok, report


def test_scores_that_depend_on_positions_are_asked_for() -> None:
    class Biased(Steps):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.project(x)
            places = torch.arange(x.size(1), dtype=x.dtype)
            bias = -(places[:, None] - places).abs() / 2 + places / 3
            return self.out(merge((q @ k.mT / 2 + bias).softmax(-1) @ v))

    report = asked(acting, Biased(), causal=False)
    assert not report.findings
    assert "pass positions=True if they do" in str(report.inconclusive)


def test_one_number_of_tokens_is_found_and_told() -> None:
    class Fixed(Steps):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(10, E))

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.project(x + self.table)
            return self.out(merge(F.scaled_dot_product_attention(q, k, v)))

    report = diagnose(Fixed(), embed_dim=E, causal=False, positions=True)
    assert report.ok, report
    assert "pass tokens=10, which it takes" in str(report.inconclusive)
    report = diagnose(Fixed(), embed_dim=E, causal=False, positions=True, tokens=10)
    assert "other numbers of tokens" not in str(report.inconclusive)


def test_outputs_of_queries_of_its_own_are_left_open() -> None:
    class Pooled(Steps):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.project(x)
            return self.out(merge(F.scaled_dot_product_attention(q[:, :, :1].expand(-1, -1, 5, -1), k, v)))

    report = diagnose(Pooled(), embed_dim=E, causal=False)
    assert report.ok, report
    assert "of any number of tokens it makes 5" in str(report.inconclusive)


# What is asked of structure and places


def test_a_diagonal_that_is_off_by_one_is_found() -> None:
    class Late(Steps):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.project(x)
            allowed = torch.ones(x.size(1), x.size(1), dtype=torch.bool).tril(-1)
            return self.out(merge((q @ k.mT / 2).masked_fill(~allowed, -1e4).softmax(-1) @ v))

    report = diagnose(Late(), embed_dim=E, causal=True)
    assert "no query sees its own token" in told(report), report


def test_one_module_many_times_in_a_list_and_heads_that_are_idle_are_found() -> None:
    class Listed(Steps):
        def __init__(self, slip: str = "") -> None:
            super().__init__(slip)
            each = nn.Linear(E, E)
            self.layers = nn.ModuleList([each] * H if slip == "list" else [nn.Linear(E, E) for _ in range(H)])

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.project(x)
            if self.slip == "idle":
                q = q[:, :1].expand_as(q)
            y = merge(F.scaled_dot_product_attention(q, k, v))
            return sum(layer(y) for layer in self.layers)  # type: ignore[return-value]

    assert diagnose(Listed(), embed_dim=E, num_heads=H, causal=False).ok
    assert "holds one module 3 times" in told(diagnose(Listed("list"), embed_dim=E, num_heads=H, causal=False))
    assert "some heads are not used" in told(asked(trainable, Listed("idle"), causal=False))
    assert "some heads" not in told(asked(trainable, Listed(), causal=False))


def test_what_is_dealt_to_items_where_heads_should_have_it_is_found() -> None:
    class Sloped(Steps):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.project(x)
            slopes = 2.0 ** -torch.arange(H, dtype=x.dtype)
            places = torch.arange(x.size(1), dtype=x.dtype)
            bias = -(places[:, None] - places).abs()
            scores = (q @ k.mT / 2).flatten(0, 1)
            each = slopes.repeat_interleave(len(x)) if self.slip else slopes.repeat(len(x))
            scores = scores + each[:, None, None] * bias
            return self.out(merge(scores.view(len(x), H, *bias.shape).softmax(-1) @ v))

    assert not asked(acting, Sloped(), causal=False, positions=True).findings
    report = diagnose(Sloped("items"), embed_dim=E, causal=False, positions=True)
    assert "differs from item to item" in told(report), report


def test_a_context_that_counts_for_nothing_is_found() -> None:
    class Cross(Steps):
        def forward(self, x: Tensor, context: Tensor) -> Tensor:
            (q, _, _), (_, k, v) = self.project(x), self.project(x if self.slip else context)
            return self.out(merge(F.scaled_dot_product_attention(q, k, v)))

    assert diagnose(Cross(), embed_dim=E, causal=False, inputs="x_context").ok
    report = asked(acting, Cross("self"), causal=False, inputs="x_context")
    assert "no output depends on the context" in told(report), report


# How it runs


def plain(x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x, x, x)


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(E, E) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x))


def in_place() -> nn.Module:
    module = Plain()
    module.compile(backend="eager")
    return module


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.compile(plain, backend="eager"),
        lambda: torch.compile(Plain(), backend="eager"),
        lambda: nn.Sequential(torch.compile(Plain(), backend="eager")),
        in_place,
        lambda: torch.jit.trace(Plain(), torch.zeros(2, 3, E)),
        lambda: Plain().half(),
        lambda: Plain().bfloat16(),
    ],
    ids=["function", "module", "inside", "in place", "traced", "half", "bfloat16"],
)
@pytest.mark.filterwarnings("ignore:.torch.jit.trace(_method)?. is deprecated")
def test_compiled_traced_and_narrow_modules_are_examined(make: Callable[[], Any]) -> None:
    report = diagnose(make(), embed_dim=E, num_heads=1, causal=False)
    assert report.ok, report
    assert "equality with the reference" in report.passed


@pytest.mark.filterwarnings("ignore")
def test_quantized_weights_and_flex_attention_are_no_finding() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    quantized = torch.ao.quantization.quantize_dynamic(Plain(), {nn.Linear}, dtype=torch.qint8)
    report = diagnose(quantized, embed_dim=E)
    assert report.ok, report
    assert "a target that is not quantized" in str(report.inconclusive)

    class Flex(Steps):
        def forward(self, x: Tensor) -> Tensor:
            y = flex_attention(*self.project(x))
            assert isinstance(y, Tensor)
            return self.out(merge(y))

    report = diagnose(Flex(), embed_dim=E, causal=False)
    assert report.ok, report
    assert "equality with the reference" in report.passed

    class Sloped(Steps):
        def forward(self, x: Tensor) -> Tensor:
            y = flex_attention(*self.project(x), score_mod=lambda score, b, h, q, k: score - (q - k).abs() / 2)
            assert isinstance(y, Tensor)
            return self.out(merge(y))

    report = diagnose(Sloped(), embed_dim=E, causal=False, positions=True)
    assert report.ok, report
    assert "equality with the reference, step by step" in report.passed
    assert "a backward pass, which is not implemented here" in str(report.inconclusive)
    assert report.verdict == "open"  # whether each parameter is used was not told
