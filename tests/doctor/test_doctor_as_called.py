"""The doctor is handed a call as its user makes it, and finds what each tensor of it is."""

import contextlib
import functools
import io
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from unmasked import diagnose


class Mine(nn.Module):
    """Three heads of four features; what a mask of it means is its subclasses' own."""

    def __init__(self, context_dim: int = 12) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(12, 12), nn.Linear(context_dim, 12)
        self.v, self.o = nn.Linear(context_dim, 12), nn.Linear(12, 12)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | float = 0.0) -> Tensor:
        q, k, v = (x.unflatten(-1, (3, 4)).transpose(1, 2) for x in (self.q(query), self.k(key), self.v(value)))
        weights = (q @ k.mT / 2 + bias).softmax(-1)
        output: Tensor = self.o((weights @ v).transpose(1, 2).flatten(2))
        return output

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, x, x)


class Turned(Mine):
    def forward(self, values: Tensor, keys: Tensor, queries: Tensor) -> Tensor:
        return self.attend(queries, keys, values)


class Nameless(Mine):
    def forward(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return self.attend(c, b, a)


class Cross(Mine):
    def forward(self, x: Tensor, context: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.attend(x, context, context, 0.0 if mask is None else torch.where(mask, 0.0, -1e9))


class Hides(Mine):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.attend(x, x, x, mask * -1e9)


class Pads(Mine):
    def forward(self, x: Tensor, padded: Tensor) -> Tensor:
        return self.attend(x, x, x, padded[:, None, None, :] * -1e9)


class Added(Mine):
    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return self.attend(x, x, x, 0.0 if attention_mask is None else attention_mask)


class Image(Mine):
    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(2).transpose(1, 2)
        return self.attend(tokens, tokens, tokens).transpose(1, 2).reshape(x.shape)


SQUARE = torch.ones(5, 5).tril().bool()
PADDED = torch.tensor([[0, 0, 0, 0, 1], [0, 0, 0, 1, 1]]).bool()


def x(items: int = 2, tokens: int = 5, features: int = 12) -> Tensor:
    return torch.randn(items, tokens, features, generator=torch.Generator().manual_seed(items + tokens))


@pytest.mark.parametrize(
    ("target", "call"),
    [
        (Mine(), x()),
        (Mine(), (x(3, 3),)),  # items, tokens and heads are as many
        (Turned(), (x(2, 7), x(2, 7), x())),
        (Nameless(), (x(2, 7), x(2, 7), x())),
        (Nameless(), (x(), x() + 1, x() - 1)),  # only what is averaged tells
        (Cross(8), {"x": x(), "context": x(2, 7, 8)}),
        (Cross(8), (x(), x(2, 7, 8), {"mask": torch.ones(2, 1, 5, 7).bool()})),
        (Hides(), (x(), ~SQUARE)),
        (Pads(), (x(), PADDED)),
        (Added(), {"x": x(), "attention_mask": torch.zeros(2, 1, 5, 5).masked_fill(~SQUARE, -math.inf)}),
        (Image(), torch.randn(2, 12, 3, 4)),
        (nn.functional.scaled_dot_product_attention, (torch.randn(2, 3, 5, 4),) * 3),
        (nn.MultiheadAttention(12, 3, batch_first=True), (x(), x(), x(), {"attn_mask": ~SQUARE})),
    ],
)  # fmt: skip
def test_what_is_right_is_equal_as_it_is_called(target: Any, call: Any) -> None:
    report = diagnose(target, call)
    assert (report.causes, report.verdict) == ((), "equal")


def test_a_mask_that_means_the_reverse_of_what_it_says_is_found() -> None:
    assert diagnose(Hides(), (x(), SQUARE)).causes == ("mask-polarity",)


def test_it_tells_what_it_took_and_what_was_never_passed() -> None:
    assert diagnose(Hides(), (x(), ~SQUARE)).given == ("True hides in mask",)
    left = diagnose(Cross(8), (x(), x(2, 7, 8)))
    assert left.never_passed == ("mask",)
    assert left.to_dict()["never_passed"] == ["mask"]
    assert "= never passed: mask" in left.text()


def test_known_orders_and_masks_need_no_call() -> None:
    """By the names of its arguments, or as PyTorch's own layer, whose True hides."""
    assert not diagnose(Turned(), embed_dim=12, inputs="qkv").named
    assert not diagnose(nn.MultiheadAttention(12, 3, batch_first=True), embed_dim=12, inputs="qkv_allowed").named


class Causal(Mine):
    """A slip each: what it computes where it is called as its user does."""

    def __init__(self, slip: str = "") -> None:
        super().__init__()
        self.slip, self.kept = slip, None

    def seen(self, items: int, tokens: int) -> Tensor:
        return torch.ones(tokens, tokens).tril(1 if self.slip == "ahead" else 0).bool().expand(items, 1, -1, -1)

    def forward(self, x: Tensor, pad_mask: Tensor | None = None, past: Any = None) -> Any:
        seen = self.seen(len(x), x.size(1))
        if pad_mask is not None:
            shown = pad_mask if self.slip == "reversed" else ~pad_mask
            shown = shown.roll(1, 0) if self.slip == "another's" else shown
            if self.slip == "kept":
                self.kept = shown if self.kept is None else self.kept
                shown = self.kept
            rows = shown[:, None, :, None] if self.slip == "queries" else shown[:, None, None, :]
            seen = seen & rows if self.slip != "ignored" else seen
        x = x + 0.1 * x.mean(0, keepdim=True) if self.slip == "mixed" else x
        x = x.roll(1, 0) if self.slip == "turned" else x
        seen = (
            seen & (torch.arange(x.size(1)) < x.size(1) - 2) | torch.eye(x.size(1)).bool()
            if self.slip == "deaf"
            else seen
        )
        return self.attend(x, x, x, torch.where(seen, 0.0, -1e9))


class Kept(Mine):
    """Goes on with keys and values; new tokens may see what comes after them, as a slip."""

    def __init__(self, offset: int = 1) -> None:
        super().__init__()
        self.offset = offset

    def forward(self, x: Tensor, past: Tensor | None = None) -> tuple[Tensor, Tensor]:
        whole = x if past is None else torch.cat([past, x], 1)
        before = whole.size(1) - x.size(1)
        seen = torch.ones(x.size(1), whole.size(1)).tril(before * self.offset).bool()
        return self.attend(x, whole, whole, torch.where(seen, 0.0, -1e9)), whole


class Ids(Mine):
    def __init__(self, *, padding: bool) -> None:
        super().__init__()
        self.padding = padding

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        hidden = (ids == 0) == self.padding
        return self.attend(x, x, x, torch.where(hidden[:, None, None, :], -1e9, 0.0))


class Packed(Mine):
    def __init__(self, more: int = 0) -> None:
        super().__init__()
        self.more = more

    def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        which = torch.bucketize(torch.arange(len(x)) + self.more, cu_seqlens[1:], right=True)
        return self.attend(x[None], x[None], x[None], torch.where(which[:, None] == which, 0.0, -1e9))[0]


IDS = torch.tensor([[7, 3, 9, 2, 8], [4, 6, 2, 0, 0]])
PARTS = (x(1, 9)[0], torch.tensor([0, 4, 9]))
ALONE, FUTURE = "batch items independent", "no leak from the future, in value and gradient"
MASK, CACHE = "mask polarity, and padding respected", "with a cache, the same as without"


@pytest.mark.parametrize(
    ("target", "call"),
    [
        (Causal(), x()),
        (Causal(), (x(), PADDED)),
        (Causal(), {"x": x(3), "pad_mask": torch.cat([PADDED, PADDED[:1]])}),
        (Kept(), x()),
        (Ids(padding=True), (x(), IDS)),
        (Packed(), PARTS),
    ],
)  # fmt: skip
def test_what_keeps_its_promises_as_it_is_called_is_not_accused(target: Any, call: Any) -> None:
    report = diagnose(target, call, causal=True if isinstance(target, Causal | Kept) else None)
    assert report.named == (), report


@pytest.mark.parametrize(
    ("target", "call", "check"),
    [
        (Causal("ahead"), x(), FUTURE),
        (Causal("ignored"), (x(), PADDED), MASK),
        (Causal("queries"), (x(), PADDED), MASK),
        (Causal("another's"), (x(), PADDED), ALONE),
        (Causal("mixed"), (x(), PADDED), ALONE),
        (Causal("turned"), x(), ALONE),
        (Causal("kept"), (x(), PADDED), "calls do not change each other"),
        (Kept(0), x(), CACHE),
        (Ids(padding=False), (x(), IDS), MASK),
        (Packed(1), PARTS, MASK),
    ],
)  # fmt: skip
def test_a_promise_that_a_call_breaks_is_found(target: Any, call: Any, check: str) -> None:
    report = diagnose(target, call, causal=True if isinstance(target, Causal | Kept) else None)
    assert check in [finding.check for finding in report.findings], report
    for finding in report.findings:
        if finding.pair is not None:
            told = io.StringIO()
            with contextlib.redirect_stdout(told), torch.no_grad():
                exec(finding.show(), {"target": target, "call": call})  # what a reader would do with it
            assert float(told.getvalue()) == pytest.approx(finding.pair.difference, rel=1e-3)
            assert finding.pair.difference > 1e-6


@pytest.mark.parametrize("slip", ["ahead", "mixed"])
def test_what_calls_show_has_lines_that_run(slip: str) -> None:
    report = diagnose(Causal(slip), (x(), PADDED), causal=True)
    assert any(finding.pair is not None for finding in report.findings), report


class Sealed(Causal):
    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("this cannot be copied")


def test_what_cannot_be_copied_is_called_as_it_is_and_left_in_its_mode() -> None:
    sealed = Sealed("ahead").train()
    report = diagnose(sealed, x(), causal=True)
    assert [finding.check for finding in report.findings] == [FUTURE], report
    assert sealed.training
    with pytest.raises(ValueError, match="Nothing returns no floating tensor, of which something could be asked"):
        diagnose(Nothing(), x())


class Nothing(Mine):
    def forward(self, x: Tensor) -> Any:
        return [len(x)]


def narrow(x: Tensor, ahead: int = 0) -> Tensor:
    """Multiplies in 16 bits, where no step can be told from rounding."""
    y = x.bfloat16()
    scores = (y @ y.mT).to(x.dtype) * 12**-0.5
    return scores.masked_fill(torch.ones_like(scores).triu(1 + ahead).bool(), -math.inf).softmax(-1) @ x


def test_a_promise_that_calls_show_to_be_broken_is_told_whatever_else_cannot_be_asked() -> None:
    reports = [diagnose(functools.partial(narrow, ahead=ahead), x(), causal=True) for ahead in (0, 1)]
    assert [[finding.check for finding in report.findings] for report in reports] == [[], [FUTURE]], reports
    assert all("somewhere inside it computes in 16 bits" in str(report.inconclusive) for report in reports)


def rounded(x: Tensor) -> Tensor:
    """Rounds what it gives, so that a small step moves nothing."""
    return ((x @ x.mT) * 12**-0.5).softmax(-1).matmul(x).mul(100).round()


def test_what_rounds_a_small_step_away_has_no_cut_gradient() -> None:
    report = diagnose(rounded, x(), causal=False)
    assert report.named == (), report
    assert "somewhere inside it computes in 16 bits" in str(report.inconclusive)


class Pooled(Mine):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).mean(1)


def test_an_option_that_could_not_be_used_is_told_and_one_that_is_none_is_refused() -> None:
    report = diagnose(Pooled(), x(), causal=False, tokens=5, training=True)
    told = {each.check: each.needs for each in report.inconclusive}
    assert {"tokens=5", "training=True"} <= told.keys(), report
    assert "whose outputs tell which are tokens" in told["tokens=5"]
    for name in ("causal", "positions"):
        with pytest.raises(ValueError, match=f"{name} is 'yes'; pass True, False, or None if that is not known"):
            diagnose(Pooled(), x(), **{name: "yes"})
    with pytest.raises(ValueError, match="call has mask \\(2, 5\\), and none of them can be tokens: pass floating"):
        diagnose(lambda mask: mask.double(), {"mask": PADDED})


def test_whether_later_tokens_may_be_seen_is_asked_for() -> None:
    assert "pass causal=True or False" in str(diagnose(Causal(), x()).inconclusive)
    assert "pass causal=True or False" not in str(diagnose(Causal(), x(), causal=True).inconclusive)


class Twice(Causal):
    """Takes two masks, of which one may be ignored."""

    def __init__(self, ignored: str) -> None:
        super().__init__()
        self.ignored = ignored

    def forward(self, x: Tensor, seen: Tensor, pad_mask: Tensor) -> Tensor:
        shown = torch.ones(1, 5, 5).bool() if self.ignored == "seen" else seen
        shown = shown & (~pad_mask[:, None] if self.ignored != "pad_mask" else True)
        return self.attend(x, x, x, torch.where(shown[:, None], 0.0, -1e9))


@pytest.mark.parametrize("ignored", ["", "pad_mask"])
def test_each_mask_is_asked_about(ignored: str) -> None:
    report = diagnose(Twice(ignored), (x(), SQUARE.expand(2, -1, -1), PADDED.flip(1)))
    assert [f"what {ignored} hides" in finding.told for finding in report.findings] == [True] * bool(ignored), report


def test_what_breaks_no_promise_is_a_difference() -> None:
    """A name that says the reverse, and tokens that nobody sees."""
    reversed_ = diagnose(Causal("reversed"), (x(), PADDED), causal=True)
    assert (reversed_.findings, reversed_.causes) == ((), ("mask-polarity",)), reversed_
    assert "True shows in pad_mask" in reversed_.given
    deaf = diagnose(Causal("deaf"), x(), causal=None)
    assert deaf.ok, deaf


def test_what_cannot_be_told_is_asked_for() -> None:
    with pytest.raises(ValueError, match="call has x \\(2,\\), and the target refuses them"):
        diagnose(Mine(), torch.ones(2))
    with pytest.raises(TypeError, match="call is a str; pass its arguments"):
        diagnose(Mine(), "x")
    with pytest.raises(ValueError, match="embed_dim is None and call is None; pass the call that you make"):
        diagnose(Mine())
    with pytest.raises(ValueError, match="key_dim is 8 and call is given, which tells it: leave key_dim out"):
        diagnose(Mine(), x(), key_dim=8)


class Biased(Mine):
    """It adds its mask, and hides nothing of itself."""

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return self.attend(x, x, x, 0.0 if bias is None else bias)


@pytest.mark.parametrize(
    ("module", "mask"),
    [
        (Hides(), torch.ones(5, 5).triu(1)),
        (Cross(), torch.ones(5, 5).tril().bool()),
        (Biased(), torch.zeros(5, 5).masked_fill(torch.ones(5, 5).triu(1).bool(), -math.inf)),
    ],
)
def test_a_module_whose_callers_mask_hides_the_future_need_not_hide_it_again(module: nn.Module, mask: Tensor) -> None:
    x = torch.randn(2, 5, 12)
    call = (x, x, mask) if isinstance(module, Cross) else (x, mask)
    report = diagnose(module, call, causal=True)
    assert not report.named, report
    assert "its mask hides the future" in report.given
    late = mask.clone()
    late[0, 1] = mask[0, 0]  # the first token sees the second
    assert any("leak" in each.check for each in diagnose(module, (*call[:-1], late), causal=True).findings)
