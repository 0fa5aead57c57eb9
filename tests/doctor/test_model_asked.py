"""Whole models: what is promised is asked by inputs that differ in one thing; a layer is compared with its likes."""

import contextlib
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from unmasked_doctor import ModelReport, diagnose_model

from .zoo.models import DIM, WORDS, Block, Convolved, Forgetful, Mixer, Model, Running, causal, quantized, stacked
from .zoo.wired import Blind, Keeping, Reader, Store, Table, Translator, Writer

IDS = torch.randint(WORDS, (2, 7), generator=torch.Generator().manual_seed(0))
PAD = torch.tensor([[False] * 7, [True] * 2 + [False] * 5])
PATCHES = torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(1))
CONTEXT = torch.randn(2, 5, DIM, generator=torch.Generator().manual_seed(2))
TYPES = ["local", "local", "local", "whole"] * 2


def decoder(wrong: str) -> nn.Module:
    return Model(stacked(4, 2, wrong, sees=causal))


def alternating(wrong: str) -> nn.Module:
    windows = [3 if kind == "local" else None for kind in TYPES]
    mixers = [Mixer(window=w, sees=causal, wrong=wrong if n == 2 else "") for n, w in enumerate(windows)]
    return Model([Block(mixer) for mixer in mixers], config={"layer_types": TYPES})


def normed(wrong: str) -> nn.Module:
    return Model(stacked(4, 2, wrong, groups=1, sees=causal, turn=True, norm=True), places=False)


def two_streams(wrong: str) -> nn.Module:
    return Model([Block(Mixer(sees=causal), Mixer(wrong=wrong if n == 2 else "")) for n in range(4)])


# Of public designs: how each is made, what it takes, the mistakes of one layer, and what is told of it.
DESIGNS: dict[str, tuple[Callable[[str], nn.Module], Any, dict[str, str | None]]] = {
    "decoder with learned places": (decoder, IDS, {
        "mask": "no-causal-mask", "future": "mask-polarity", "scale": "missing-scale", "o_proj": "missing-out-proj"}),
    "decoder with normed queries and keys": (normed, IDS, {
        "k_norm": None, "value norm": None, "mask": "no-causal-mask"}),
    "encoder of patches": (lambda wrong: Model(stacked(4, 2, wrong), patches=True), PATCHES, {"class token": None}),
    "decoder with a window": (lambda wrong: Model(stacked(4, 2, wrong, window=4)), IDS, {
        "window": "window-off-by-one"}),
    "layers of two types": (alternating, IDS, {"window": "window-off-by-one"}),
    "decoder with slopes": (lambda wrong: Model(stacked(4, 2, wrong, sees=causal, slopes=True), places=False), IDS, {
        "slopes": None}),
    "encoder with padding": (lambda wrong: Model(stacked(4, 2, wrong)), {"x": IDS, "pad": PAD}, {
        "padding": "padding-ignored", "order": None}),
    "the same, padding left to the doctor": (lambda wrong: Model(stacked(4, 2, wrong)), IDS, {
        "padding": "padding-ignored", "order": None}),
    "two layers with padding": (lambda wrong: Model(stacked(3, 2, wrong)[1:]), IDS, {"padding": "padding-ignored"}),
    "decoder with a context": (two_streams, {"x": IDS, "context": CONTEXT}, {"source": None}),
    "quantized encoder": (lambda wrong: Model(quantized(4, 2, 9.0 if wrong else 1.0)), IDS, {"stale": None}),
}  # fmt: skip
MISTAKES = [(name, wrong) for name, (_, _, wrongs) in DESIGNS.items() for wrong in wrongs]


def examined(name: str, wrong: str) -> ModelReport:
    make, inputs, _ = DESIGNS[name]
    torch.manual_seed(0)
    return diagnose_model(make(wrong), inputs)


@pytest.mark.drawn
@pytest.mark.parametrize("name", DESIGNS)
def test_a_design_is_not_accused(name: str) -> None:
    report = examined(name, "")
    assert (report.named, report.cautions, report.unwatched) == ((), (), ()), report.text()
    assert report.verdict == "followed"


@pytest.mark.drawn
@pytest.mark.parametrize(("name", "wrong"), MISTAKES)
def test_the_wrong_layer_of_a_design_is_found(name: str, wrong: str) -> None:
    report = examined(name, wrong)
    at = 1 if name.startswith("two layers") else 2
    assert {finding.where.rpartition(".")[0] for finding in report.named} == {f"blocks.{at}"}, report.text()
    cause = DESIGNS[name][2][wrong]
    assert cause is None or cause in report.causes, report.text()


# Items


@pytest.mark.parametrize("options", [{}, {"pooled": True}, {"places": False}])
def test_batch_first_forgotten_is_found(options: dict[str, bool]) -> None:
    torch.manual_seed(0)
    report = diagnose_model(Forgetful(batch_first=False, **options), IDS)
    assert report.causes == ("batch-first-forgotten",), report.text()
    assert {layer.heads for layer in report.layers} == {3}
    assert "pass batch_first=False" in report.named[0].evidence
    right = diagnose_model(Forgetful(batch_first=True, **options), IDS)
    assert not right.named
    assert "no item reaches another" in right.passed


def test_tokens_first_is_no_mistake_where_positions_or_the_caller_say_so() -> None:
    torch.manual_seed(0)
    for model, said in (
        (Forgetful(batch_first=False, swap=True), None),
        (Forgetful(batch_first=False, places=False), False),
    ):
        report = diagnose_model(model, IDS.T.contiguous(), batch_first=said)
        assert not report.named, report.text()
        assert "no item reaches another" in report.passed


def test_an_item_that_reaches_another_is_told_with_its_layer_and_pairs_of_items_are_none() -> None:
    class Centered(nn.Module):
        def forward(self, x: Tensor, context: Any = None) -> Tensor:
            return x - x.mean(0, keepdim=True)

    class Paired(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model(stacked(3, 0, ""))

        def forward(self, x: Tensor) -> Tensor:
            pooled = self.model(x).mean(1)
            return pooled @ pooled.T

    torch.manual_seed(0)
    blocks = stacked(3, 0, "")
    report = diagnose_model(Model([*blocks[:2], Centered(), blocks[2]]), IDS)
    (finding,) = report.named
    assert (finding.check, finding.cause) == ("no item reaches another", None)
    assert "first in 'blocks.2'" in finding.evidence
    assert not diagnose_model(Paired(), IDS).named


def test_one_item_is_asked_with_another_one() -> None:
    torch.manual_seed(0)
    report = diagnose_model(decoder(""), IDS[:1])
    assert not report.named, report
    assert "no item reaches another" in report.passed


# The future


def test_causal_is_asked_where_it_was_asked_for() -> None:
    torch.manual_seed(0)
    encoder = Model(stacked(3, 0, ""))
    assert not diagnose_model(encoder, IDS).named
    report = diagnose_model(encoder, IDS, causal=True)
    assert [(f.where, f.cause) for f in report.named] == [("blocks.0.mixer", "no-causal-mask")]
    assert "no output sees later tokens" in diagnose_model(decoder(""), IDS, causal=True).passed


def test_a_decoder_that_sees_the_future_alone_is_found_and_a_pair_of_readers_is_not() -> None:
    torch.manual_seed(0)
    report = diagnose_model(Model([Block(Mixer(sees=causal, wrong="future")) for _ in range(3)]), IDS)
    assert report.causes == ("mask-polarity",) * 3
    both = [Block(Mixer(sees=causal, wrong=wrong)) for wrong in ("", "future") * 2]
    assert not diagnose_model(Model(both), IDS).named


# What no attention mixes, and what all padding gives


def test_what_mixes_tokens_without_attention_is_listed_and_the_verdict_is_open() -> None:
    torch.manual_seed(0)
    mixers = [Mixer(sees=causal), Running(), Mixer(sees=causal), Convolved()]
    report = diagnose_model(Model([Block(mixer) for mixer in mixers]), IDS)
    assert (not report.named, report.verdict) == (True, "open")
    assert report.unwatched == (
        "blocks.1.mixer (Running): it mixes tokens, and no attention was found in it",
        "blocks.3.mixer (Convolved): it mixes tokens, and no attention was found in it",
    )


class Leaking(nn.Module):
    """Adds what other items are, times zero: NaN spreads."""

    def forward(self, x: Tensor, context: Any = None, **more: Any) -> Tensor:
        return x + 0 * x.sum()


def test_an_item_that_is_all_padding_and_gives_nan_is_a_caution_and_a_finding_if_strict_or_if_it_spreads() -> None:
    torch.manual_seed(0)
    model = Model(stacked(2, 0, "", hidden=-torch.inf))
    report = diagnose_model(model, IDS)
    assert not report.named, report
    assert [caution.cause for caution in report.cautions] == ["fully-masked-row"]
    assert diagnose_model(model, IDS, strict=True).causes == ("fully-masked-row",)
    assert "an item that is all padding gives numbers" in diagnose_model(Model(stacked(2, 0, "")), IDS).passed
    spread = diagnose_model(Model([*stacked(2, 0, "", hidden=-torch.inf), Leaking()]), IDS)
    assert [finding.told for finding in spread.named] == ["an item that is all padding, by pad, makes others NaN"]


@pytest.mark.parametrize("option", ["causal", "batch_first", "strict"])
def test_an_option_of_another_type_is_refused(option: str) -> None:
    with pytest.raises(TypeError, match=option):
        diagnose_model(decoder(""), IDS, **{option: "yes"})  # type: ignore[arg-type]


def test_no_earlier_token_is_changed_where_a_text_repeats_its_first_half() -> None:
    """The first half, put into the second, changes nothing there: something else must, and in the second half alone."""
    twice = torch.cat([IDS[:, :4], IDS[:, :4]], dim=1)
    torch.manual_seed(0)
    right = diagnose_model(decoder(""), twice)
    assert right.ok, right
    assert "no output sees later tokens" in right.passed
    assert "no-causal-mask" in diagnose_model(decoder("mask"), twice, causal=True).causes


def test_a_model_without_positions_and_without_a_mask_sees_later_tokens() -> None:
    """The order of later tokens counts for nothing in it, so other tokens must come in."""

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(12, 36)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (y.unflatten(-1, (3, 4)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
            return x + ((q @ k.mT / 2).softmax(-1) @ v).transpose(1, 2).flatten(2)

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.layers = nn.Embedding(9, 12), nn.Sequential(Plain(), Plain())

        def forward(self, ids: Tensor) -> Tensor:
            result: Tensor = self.layers(self.embedding(ids))
            return result

    torch.manual_seed(0)
    for model, inputs in (
        (nn.Sequential(Plain(), Plain()), torch.randn(2, 5, 12)),
        (Words(), torch.randint(9, (2, 6))),
    ):
        report = diagnose_model(model, inputs, causal=True)
        assert "no output sees later tokens" in [finding.check for finding in report.named]
        alike = diagnose_model(model, inputs[:, :1].expand_as(inputs).clone(), causal=True)
        assert "no output sees later tokens" not in alike.passed, "nothing was asked"


# Layers that are unlike each other, and what is wired between them


ROWS = torch.randint(1, WORDS, (3, 7), generator=torch.Generator().manual_seed(3))
KEPT = torch.arange(7) < torch.tensor([7, 4, 5])[:, None]
PADDED: dict[str, dict[str, Tensor]] = {
    "mask": {"x": ROWS, "mask": KEPT},
    "lengths": {"x": ROWS, "lengths": KEPT.sum(1)},
    "added": {"x": ROWS, "mask": torch.where(KEPT, 0.0, -1e9)[:, None, None]},
    "words": {"x": ROWS * KEPT},
}


def read(wrong: str, by: str = "mask") -> ModelReport:
    torch.manual_seed(0)
    return diagnose_model(Reader(wrong, by), PADDED[by])


@pytest.mark.parametrize("by", PADDED)
def test_padding_is_asked_of_a_mask_of_lengths_of_what_is_added_and_of_words(by: str) -> None:
    right = read("", by)
    assert not right.named, right.text()
    assert "padding is hidden" in right.passed
    turned = read("polarity", by)
    assert [(f.where, f.check) for f in turned.findings if f.cause == "mask-polarity"] == [("reader", "padding")], (
        turned
    )
    for wrong in ("mean", "ones"):
        (finding,) = read(wrong, by).findings
        assert finding.check == "padding", wrong
        assert "no attention that was found looks at it" in finding.told
        assert "padding is hidden" not in read(wrong, by).passed


def test_a_convolution_over_padding_is_a_difference_and_no_broken_promise() -> None:
    class Near(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.near = Model(stacked(3, 0, "")), nn.Conv1d(7, 7, 3, padding=1)

        def forward(self, x: Tensor, pad: Tensor) -> Tensor:
            return self.near(self.model(x, pad).mT).mT

    torch.manual_seed(0)
    report = diagnose_model(Near(), {"x": IDS[:, 1:], "pad": PAD[:, 1:]})
    assert (report.ok, [f.step for f in report.differences]) == (True, ["layout"]), report.text()


def test_padding_behind_a_causal_model_is_hidden_by_its_order() -> None:
    torch.manual_seed(0)
    report = diagnose_model(decoder(""), {"x": IDS, "pad": PAD.flip(1)})
    assert not report.named, report.text()
    assert "padding is hidden" in report.passed


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
def test_a_mask_of_the_encoder_alone_accuses_no_layer_of_the_decoder() -> None:
    torch.manual_seed(0)
    x, tgt = torch.randn(2, 5, 12), torch.randn(2, 5, 12)
    causal_mask = nn.Transformer.generate_square_subsequent_mask(5)
    model = nn.Transformer(12, 3, 2, 2, 8, batch_first=True)
    assert not diagnose_model(model, {"src": x, "tgt": tgt, "tgt_mask": causal_mask}).named
    pad = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    given = {"src": x, "tgt": tgt, "tgt_mask": causal_mask, "src_key_padding_mask": pad}
    report = diagnose_model(model, given)
    assert {f.where.rpartition(".")[2] for f in report.findings} == {"multihead_attn"}, report.text()
    assert diagnose_model(model, given | {"memory_key_padding_mask": pad}).ok


@pytest.mark.parametrize(
    ("wrong", "cause", "step"),
    [("scale", "missing-scale", "scale"), ("values", None, "parameters"), ("heads", None, "softmax")],
)
def test_a_layer_that_has_no_likes_is_compared_with_the_textbook(wrong: str, cause: str | None, step: str) -> None:
    torch.manual_seed(0)
    report = diagnose_model(Translator(wrong), {"source": ROWS[:, :5], "written": ROWS}, causal=True)
    assert report.ok
    assert [(f.where, f.cause, f.step) for f in report.differences] == [("reads", cause, step)], report.text()


@pytest.mark.parametrize("tokens", [5, 7])
def test_the_future_is_asked_of_the_sequence_that_is_written_and_not_of_its_source(tokens: int) -> None:
    inputs = {"source": ROWS[:, :tokens].flip(0), "written": ROWS}
    torch.manual_seed(0)
    right = diagnose_model(Translator(), inputs, causal=True)
    assert not right.named, right.text()
    assert "no output sees later tokens" in right.passed
    (finding,) = diagnose_model(Translator("ahead"), inputs, causal=True).findings
    assert (finding.check, finding.where) == ("no output sees later tokens", "")
    report = diagnose_model(Translator("source"), inputs, causal=True)
    assert [(f.where, f.cause) for f in report.findings] == [("reads", "no-causal-mask")]
    assert [f.told for f in report.differences] == ["no output notices source"]


def test_what_causal_asks_and_cannot_be_told_is_open() -> None:
    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = decoder("")

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = self.model(x).amax()
            return output

    report = diagnose_model(Pooled(), IDS[:, :2], causal=True)
    assert "no output sees later tokens" in [each.check for each in report.inconclusive]
    assert "no output sees later tokens" not in report.passed


@pytest.mark.parametrize(
    ("keeps", "wrong"),
    [
        ("buffers", "shared"),
        *((keeps, w) for keeps in ("buffers", "returned", "objects") for w in ("places", "newest")),
    ],
)
def test_a_model_with_a_cache_is_fed_in_pieces(keeps: str, wrong: str) -> None:
    check = "in pieces it gives what it gives at once"
    inputs: dict[str, Any] = {"ids": ROWS}
    inputs |= (
        {"start": 0} if keeps == "buffers" else {"cache": [Store(), Store(), Store()]} if keeps == "objects" else {}
    )
    torch.manual_seed(0)
    right = diagnose_model(Writer("", keeps), inputs, causal=True)
    assert not right.named, right.text()
    assert check in right.passed
    assert [f.check for f in diagnose_model(Writer(wrong, keeps), inputs, causal=True).findings] == [check]
    assert all(each.kept is None for each in inputs.get("cache", [])), "what was passed is left as it was"


def test_a_cache_that_forgets_by_design_is_open_and_a_model_without_one_is_not_asked() -> None:
    check = "in pieces it gives what it gives at once"
    torch.manual_seed(0)
    report = diagnose_model(Writer("", "window"), ROWS, causal=True)
    assert not report.named
    assert [each.check for each in report.inconclusive] == [check]
    report = diagnose_model(decoder(""), IDS, causal=True)
    assert check not in (*report.passed, *(each.check for each in report.inconclusive))


def test_one_layer_that_takes_tokens_for_items_is_named_and_words_stay_in_their_columns() -> None:
    numbers = torch.randn(5, 4, generator=torch.Generator().manual_seed(2))
    words = torch.tensor([[0, 4], [1, 0], [0, 2], [1, 3], [1, 1]])  # the first column has two words
    torch.manual_seed(0)
    right = diagnose_model(Table(), (numbers, words))
    assert not right.named, right.text()
    assert "no item reaches another" in right.passed
    report = diagnose_model(Table("mixer"), (numbers, words))
    assert [(f.where, f.cause) for f in report.findings] == [("mixer", "batch-first-forgotten")]
    assert report.layers[0].heads == 3, "the layers before it keep their layout"
    assert [f.check for f in diagnose_model(Table("mean"), (numbers, words)).findings] == ["no item reaches another"]


def test_what_is_kept_from_call_to_call_and_nan_are_broken_promises() -> None:
    for make, check in ((Keeping, "the same call gives the same again"), (Blind, "finite inputs give finite outputs")):
        torch.manual_seed(0)
        assert not diagnose_model(make(), ROWS).named
        assert check in [finding.check for finding in diagnose_model(make("wrong"), ROWS).findings]


def test_a_mask_that_is_not_passed_and_is_of_another_input_accuses_nobody() -> None:
    class Hearing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model(stacked(3, 0, ""))

        def forward(self, x: Tensor, feature_attention_mask: Tensor | None = None) -> Tensor:
            output: Tensor = self.model(x)
            return output

    torch.manual_seed(0)
    report = diagnose_model(Hearing(), IDS)
    assert not report.named, report.text()
    assert "padding is hidden" in [each.check for each in report.inconclusive]


class Slipping(nn.Module):
    """Words, and a layer of attention that keeps its promises, but for one."""

    def __init__(self, slip: str, *, causal: bool) -> None:
        super().__init__()
        self.words, self.read = nn.Embedding(30, 12), nn.Linear(12, 30)
        self.attention = nn.ModuleList(nn.MultiheadAttention(12, 3, batch_first=True) for _ in range(3))
        self.slip, self.causal = slip, causal

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        x = self.words(ids)
        later = torch.ones(ids.size(1), ids.size(1), dtype=torch.bool).triu(1)
        padded = None if attention_mask is None else ~attention_mask.bool()
        for n, layer in enumerate(self.attention):
            hidden = None if not self.causal or (n == 1 and self.slip == "later") else later
            padding = None if n == 1 and self.slip == "padding" else padded
            x = x + layer(x, x, x, attn_mask=hidden, key_padding_mask=padding, need_weights=False)[0]
            x = x + x.mean(0, keepdim=True) if n == 1 and self.slip == "items" else x
        y: Tensor = self.read(x)
        return y


@pytest.mark.parametrize("slip", ["later", "padding", "items"])
@pytest.mark.parametrize("form", ["tensor", "tuple", "dict"])
def test_what_breaks_a_promise_of_a_model_has_lines_that_run(slip: str, form: str) -> None:
    torch.manual_seed(3)
    ids, mask = torch.randint(1, 30, (2, 7)), torch.ones(2, 7, dtype=torch.long)
    mask[1, 5:] = 0
    forms = {"tensor": ids, "tuple": (ids, mask), "dict": {"ids": ids, "attention_mask": mask}}
    target = Slipping(slip, causal=slip != "padding").double()
    call = forms["tuple" if (form, slip) == ("tensor", "padding") else form]
    shown = [each for each in diagnose_model(target, call, causal=slip == "later" or None).findings if each.pair]
    assert shown
    for each in shown:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(each.show(), {"target": target, "call": call})
        assert each.pair is not None
        assert float(printed.getvalue()) == pytest.approx(each.pair.difference, rel=1e-6)
