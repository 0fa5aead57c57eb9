"""What calls alone tell the doctor: ways of calling a target, masks, caches, what is kept, numbers; right and wrong."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmasked import diagnose
from unmasked_doctor import Finding, Open, Report
from unmasked_doctor._ask.kept import caches, keeps_nothing
from unmasked_doctor._ask.numbers import large, trained
from unmasked_doctor._ask.questions import behaviour, obeys_its_mask
from unmasked_doctor._ask.used import trainable
from unmasked_doctor._subject import Subject, runs, still
from unmasked_doctor._target import Options

from .test_zoo import RIGHT, WRONG, examined
from .zoo.attention import Attention, Cached, separate
from .zoo.cases import Style
from .zoo.positions import near, places

E, H = 12, 3


# Ways of calling it


def test_a_partial_of_a_bound_method_is_copied_with_its_module() -> None:
    module = Attention(E, H, names=separate("", "_proj"))
    kept = {name: parameter.clone() for name, parameter in module.named_parameters()}
    report = diagnose(functools.partial(module.attend, allowed=None), embed_dim=E, causal=False, inputs="qkv")
    assert report.verdict == "equal", report
    assert all(torch.equal(parameter, kept[name]) for name, parameter in module.named_parameters())
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float32}


def test_a_context_of_another_width_needs_its_width() -> None:
    with pytest.raises(ValueError, match="inputs is 'x', and the target refuses what that gives"):
        diagnose(RIGHT["image-text-kdim"].make(), embed_dim=24)


def test_a_target_without_values_is_refused_and_a_lazy_one_gets_some() -> None:
    with pytest.raises(ValueError, match=r"'qkv.weight' of the target is on the meta device, where tensors have no v"):
        diagnose(Attention(E, H).to("meta"), embed_dim=E)
    case = RIGHT["lazy-d2l"]
    lazy = case.make()
    report = diagnose(lazy, **case.call)
    assert not report.named, report
    assert nn.parameter.is_lazy(lazy.W_q.weight)


def asked(question: Callable[[Subject], Any], stranger: Style | None, **options: Any) -> Report:
    """Ask one thing alone: what the doctor sees inside may tell it first."""
    assert stranger is not None
    subject = Subject(stranger.make(), Options(**stranger.call | options))
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
    return [finding.cause for finding in report.named]


def told(report: Report) -> str:
    return " ".join(finding.told for finding in report.named)


# Masks that are given


@pytest.mark.parametrize(
    ("name", "cause", "words"),
    [
        ("first-items-mask", "only-first-item", "as the first one of the batch"),
        ("allowed-transposed", None, "the mask is transposed"),
        ("allowed-taken-for-hidden", "mask-polarity", ""),
        ("bmm-mask-repeat", None, "masks are repeated item after item"),
        ("mask-times-weights", "mask-after-softmax", ""),
        ("mha-float-mask-of-ones", "float-mask-of-ones", ""),
        ("cross-mask-ignored", "padding-ignored", ""),
    ],
)
def test_a_mask_of_ones_own_is_held_to_each_item(name: str, cause: str | None, words: str) -> None:
    report = examined(WRONG[name])
    assert causes(report) == [cause], report
    assert words in told(report)
    (finding,) = asked(obeys_its_mask, WRONG[name].style).named  # where nothing was heard
    assert cause is None or cause in finding.causes, finding
    assert not asked(obeys_its_mask, WRONG[name].twin).named


def test_a_mask_of_keys_alone_is_recognized() -> None:
    def taken(rows: bool) -> Callable[[Tensor, int], Tensor]:
        """Takes (batch, keys), as many do."""

        def spread(mask: Tensor, heads: int) -> Tensor:
            items, _ = mask.shape
            return mask.view(items, 1, -1, 1) if rows else mask.view(items, 1, 1, -1)

        return spread

    padded = Style(Attention, dim=E, inputs="x_allowed")
    assert not asked(obeys_its_mask, padded(spread=taken(rows=False))).named
    report = asked(obeys_its_mask, padded(spread=taken(rows=True)))
    assert "padding-ignored" in report.named[0].causes, report


# Caches, and what else is kept


@pytest.mark.parametrize(
    ("name", "cause", "words"),
    [
        ("decode-restart", "positions-restart", "other positions"),
        ("cached-keys-rotated-again", None, "not at their positions"),
        ("cache-values-prepended", None, ""),
        ("decode-topleft", "top-left-causal", "first keys alone"),
        ("decode-chunk", "no-causal-mask", "given at once"),
        ("decode-cropped", None, "no longer sees"),
    ],
)
def test_a_cache_is_held_to_the_whole_sequence(name: str, cause: str | None, words: str) -> None:
    report = asked(caches, WRONG[name].style)
    (finding,) = report.named
    assert (finding.check, finding.cause) == ("with a cache, the same as without", cause), report
    assert words in finding.told
    assert "tokens given as" in finding.evidence


def test_a_right_cache_passes_under_any_name_and_none_is_a_finding() -> None:
    class Named(Cached):
        def forward(self, x: Tensor, past_key_value: Any = None) -> tuple[Tensor, Any]:
            return super().forward(x, past_key_value)

    report = diagnose(Named(E, causal=True, cache="kv"), embed_dim=E, cache="past_key_value")
    assert not report.named, report
    assert "with a cache, the same as without" in report.passed
    report = diagnose(Attention(E, causal=True), embed_dim=E, causal=True, cache="kv")
    assert "it does not go on with the cache that it returns" in told(report), report


def test_what_is_kept_from_call_to_call_is_found() -> None:
    assert not asked(keeps_nothing, WRONG["mask-cached-by-device"].twin).named
    report = asked(keeps_nothing, WRONG["mask-cached-by-device"].style)
    assert "a longer sequence is not masked beyond them" in told(report), report
    report = asked(stays, WRONG["stream-never-reset"].style)
    assert "it keeps something, and never resets" in told(report), report


# Numbers


@pytest.mark.parametrize(
    ("name", "question", "check"),
    [
        ("softmax-without-maximum", large, "large inputs"),
        ("dropout-on-scores", trained, "in training, on average the same as in evaluation"),
    ],
)
def test_numbers_that_only_some_inputs_show_are_found(name: str, question: Any, check: str) -> None:
    report = asked(question, WRONG[name].style)
    assert [finding.check for finding in report.named] == [check]
    for right in (WRONG[name].twin, RIGHT["qwenish-rms"].style):
        assert not asked(question, right, training=True).named


def test_training_is_examined_where_that_is_asked_for_and_a_narrow_softmax_always() -> None:
    check = "in training, on average the same as in evaluation"
    assert check in examined(RIGHT["dropping"]).passed
    assert check not in diagnose(RIGHT["dropping"].make(), embed_dim=24).passed
    assert "the softmax is computed in 16 bits" in told(examined(WRONG["gpt-softmax-in-float16"]))


# What a legitimate design explains is asked for, and no finding


def test_a_sum_that_grows_with_every_copy_is_a_finding() -> None:
    report = asked(acting, WRONG["sigmoid-for-softmax"].style)
    assert causes(report) == ["weights-not-normalized"], report


def test_scores_that_depend_on_positions_are_asked_for() -> None:
    biased = Style(Attention, dim=E, causal=False, show=lambda s, allowed: s + near(s) / 2 + places(s) / 3)
    report = asked(acting, biased, positions=None)
    assert not report.named
    assert "pass positions=True if they do" in str(report.inconclusive)


def test_one_number_of_tokens_is_found_and_told() -> None:
    case = RIGHT["swin-window"]
    report = diagnose(case.make(), **case.call | {"tokens": None})
    assert not report.named, report
    assert "pass tokens=9, which it takes" in str(report.inconclusive)
    assert "other numbers of tokens" not in str(examined(case).inconclusive)


def test_outputs_of_queries_of_its_own_are_left_open() -> None:
    report = examined(RIGHT["perceiver-latents"])
    assert not report.named, report
    assert "of any number of tokens it makes 5" in str(report.inconclusive)


# What is asked of structure and places


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fairseq-causal-hides-itself", "no query sees its own token"),
        ("head-list-of-one-module", "holds one module 3 times"),
        ("bloom-slopes-order", "differs from item to item"),
    ],
)
def test_what_is_wrong_with_structure_and_places_is_told(name: str, words: str) -> None:
    report = examined(WRONG[name])
    assert words in told(report), report


@pytest.mark.parametrize(
    ("name", "question", "words"),
    [
        ("meeting-heads-idle", trainable, "some heads are not used"),
        ("cross-both", acting, "no output depends on the context"),
    ],
)
def test_what_counts_for_nothing_is_found(name: str, question: Any, words: str) -> None:
    assert words in told(asked(question, WRONG[name].style))
    assert words not in told(asked(question, WRONG[name].twin))


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
@pytest.mark.filterwarnings("ignore:.torch.jit.trace(_method)?. is (deprecated|not supported)")
def test_compiled_traced_and_narrow_modules_are_examined(make: Callable[[], Any]) -> None:
    report = diagnose(make(), embed_dim=E, num_heads=1, causal=False)
    assert not report.named, report
    assert "equality with the reference" in report.passed


@pytest.mark.parametrize("name", ["concat-heads", "image-of-tokens"])
def test_lists_of_heads_and_features_before_tokens_are_compared_with_the_reference(name: str) -> None:
    assert "equality with the reference" in examined(RIGHT[name]).passed


@pytest.mark.filterwarnings("ignore")
def test_quantized_weights_and_flex_attention_are_no_finding() -> None:
    quantized, flex, sloped = (examined(RIGHT[name]) for name in ("quantized-dynamic", "flex-causal", "flex-alibi"))
    assert not quantized.named, quantized
    assert "a target that is not quantized" in str(quantized.inconclusive)
    assert not flex.named, flex
    assert "equality with the reference" in flex.passed
    assert not sloped.named, sloped
    assert "equality with the reference, step by step" in sloped.passed
    assert "a backward pass, which is not implemented here" in str(sloped.inconclusive)
    assert sloped.verdict == "open"  # whether each parameter is used was not told
