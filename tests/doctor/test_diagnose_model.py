"""Whole models: nothing is found in healthy ones, and a mistake in one layer of twelve is found in that layer."""

import copy
import importlib
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import unmasked
from unmasked import diagnose_model
from unmasked.positions import alibi_slopes
from unmasked_doctor import ModelReport

from .zoo.attention import SDPA, Attention, fill, sdpa
from .zoo.positions import ahead, rope
from .zoo.weights import Sinks

IDS = torch.arange(14).reshape(2, 7) * 3 % 50
TINY = {"vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 12, "num_attention_heads": 6, "intermediate_size": 20}
TINY |= {"max_position_embeddings": 32, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
GPT2 = {"vocab_size": 50, "n_embd": 24, "n_layer": 12, "n_head": 6, "n_positions": 32, "bos_token_id": 0}
VIT = {"hidden_size": 24, "num_hidden_layers": 12, "num_attention_heads": 6, "intermediate_size": 20, "image_size": 12}
T5 = {"vocab_size": 50, "d_model": 24, "d_kv": 4, "d_ff": 20, "num_layers": 12, "num_heads": 6, "pad_token_id": 0}
MODELS: dict[str, tuple[dict[str, Any], Any]] = {
    "GPT2": (GPT2 | {"eos_token_id": 0}, IDS),
    "Bert": (TINY, IDS),
    "Llama": (TINY | {"num_key_value_heads": 2}, {"input_ids": IDS}),
    "Mistral": (TINY | {"num_key_value_heads": 3, "sliding_window": 3}, IDS),
    "Qwen2": (TINY | {"num_key_value_heads": 2}, IDS),
    "ViT": (VIT | {"patch_size": 4}, torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(0))),
    "T5": (T5 | {"decoder_start_token_id": 0}, {"input_ids": IDS, "decoder_input_ids": IDS[:, :5]}),
}
TOLD = {
    "GPT2": "h.0.attn ... h.11.attn: causal, 6 heads of 4 features",
    "Bert": "encoder.layer.0.attention.self ... encoder.layer.11.attention.self: every token sees every, 6 heads of 4",
    "Llama": "layers.0.self_attn ... layers.11.self_attn: causal, 6 heads of 4 features, 2 key heads, rotary",
    "Mistral": "layers.11.self_attn: causal, window 3, 6 heads of 4 features, 3 key heads, rotary",
    "Qwen2": "layers.0.self_attn ... layers.11.self_attn: causal, 6 heads of 4 features, 2 key heads, rotary",
    "ViT": "layers.0.attention ... layers.11.attention: every token sees every, 6 heads of 4 features",
    "T5": "decoder.block.11.layer.0.SelfAttention: causal, 6 heads of 4 features, scale 1, bias",
}


def made(name: str, how: str = "eager") -> Any:
    transformers = importlib.import_module("transformers")
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**MODELS[name][0]))
    model.set_attn_implementation(how)
    return model


def text(report: ModelReport) -> str:
    return re.sub(r"\s+", " ", report.text())


@pytest.mark.drawn
@pytest.mark.parametrize("how", ["sdpa", "eager"])
@pytest.mark.parametrize("name", MODELS)
def test_nothing_is_found_in_healthy_models_and_every_layer_is_followed(name: str, how: str) -> None:
    model = made(name, how)
    before, generator = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    report = diagnose_model(model, MODELS[name][1])
    assert (report.named, report.cautions, report.unwatched) == ((), (), ())
    assert not report.named, report
    assert report.verdict != "open"
    assert len(report.layers) == (36 if name == "T5" else 12)
    assert TOLD[name] in text(report)
    assert report.layers[0].kernel == ("written out" if how == "eager" else report.layers[0].kernel)
    assert ("no output sees later tokens" in report.passed) == (name not in ("Bert", "ViT"))
    assert ("padding is hidden" in report.passed) == (name != "ViT")
    assert model.training  # as it was
    assert torch.equal(generator, torch.get_rng_state())
    assert all(torch.equal(x, before[key]) for key, x in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


Attend = Callable[..., tuple[Tensor, Any]]


def planted(change: Callable[[dict[str, Any]], Any]) -> Attend:
    """Attention as transformers calls it, with one step done wrong."""

    def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any) -> Any:
        s = {"scale": options.get("scaling") or query.size(-1) ** -0.5, "mask": mask, "dim": -1, "swap": False}
        s |= {"repeat": torch.repeat_interleave, "merge": lambda c: c.transpose(1, 2), "after": lambda w: w}
        change(s)
        key, value = (value, key) if s["swap"] else (key, value)
        groups = query.size(1) // key.size(1)
        key, value = (s["repeat"](x, groups, 1) for x in (key, value))
        scores = query @ key.mT * s["scale"]
        if s["mask"] is not None:
            scores = scores + s["mask"]
        return s["merge"](s["after"](F.softmax(scores, dim=s["dim"])) @ value), None

    return attend


def tiled(x: Tensor, groups: int, dim: int) -> Tensor:
    return x.repeat(1, groups, 1, 1)


def keep_causal(s: dict[str, Any]) -> None:
    if s["mask"] is not None:
        n = s["mask"].size(-1)
        s["mask"] = torch.full((n, n), -torch.inf).triu(1)


MISTAKES: dict[str, tuple[Callable[[dict[str, Any]], Any], str | None]] = {
    "scale": (lambda s: s.update(scale=1.0), "missing-scale"),
    "the root of another d": (lambda s: s.update(scale=24**-0.5), "wrong-d-in-scale"),
    "mask": (lambda s: s.update(mask=None), "no-causal-mask"),
    "softmax": (lambda s: s.update(dim=-2), "softmax-over-queries"),
    "swapped": (lambda s: s.update(swap=True), "wrong-value"),
    "merge": (lambda s: s.update(merge=lambda c: c.reshape(c.size(0), c.size(2), c.size(1), -1)),
              "merge-without-transpose"),
    "padding": (keep_causal, "padding-ignored"),
    "repeat": (lambda s: s.update(repeat=tiled), "repeat-for-repeat-interleave"),
    "weights changed": (lambda s: s.update(after=lambda w: w * 0.5), "weights-not-normalized"),
    "order of heads": (lambda s: s.update(merge=lambda c: c.flip(1).transpose(1, 2)), None),
    "a mask of ones": (lambda s: s.update(mask=torch.ones(7, 7).tril()), "boolean-mask-added"),
    "dropout": (lambda s: s.update(after=lambda w: F.dropout(w, 0.3, True)), "dropout-in-eval"),
}  # fmt: skip


@pytest.fixture(scope="module")
def theirs() -> dict[str, nn.Module]:
    return {name: made(name) for name in ("Llama", "GPT2", "Bert")}


SOME = ("scale", "merge", "softmax", "swapped")  # of the models beside Llama, whose tests take their time


@pytest.mark.drawn
@pytest.mark.parametrize(
    ("name", "mistake"),
    [
        *(("Llama", mistake) for mistake in MISTAKES),
        *((name, mistake) for name in ("GPT2", "Bert") for mistake in SOME),
    ],
)
def test_a_mistake_in_one_layer_of_twelve_is_named_there(name: str, mistake: str, theirs: dict[str, nn.Module]) -> None:
    change, cause = MISTAKES[mistake]
    functions = importlib.import_module("transformers.modeling_utils").ALL_ATTENTION_FUNCTIONS
    functions["planted"] = planted(change)
    model: Any = theirs[name]
    layers = {"Llama": lambda: model.layers[7].self_attn, "GPT2": lambda: model.h[7].attn}
    layer = layers.get(name, lambda: model.encoder.layer[7].attention.self)()
    kept, layer.config = layer.config, copy.copy(layer.config)
    layer.config._attn_implementation_internal = "planted"
    try:
        report = diagnose_model(model, IDS)
    finally:
        layer.config = kept
        functions._local_mapping.pop("planted", None)
    (where,) = {finding.where for finding in report.named}
    assert re.fullmatch(r".*\.7\..*|h\.7\.attn", where)
    assert cause in report.causes if cause else report.causes == ()
    assert [layer.name for layer in report.layers if layer.findings] == [where]


def sloped(slopes: Tensor) -> nn.Module:
    """Causal attention whose heads forget by these slopes, beside a residual connection."""

    def core(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> tuple[Tensor, None]:
        return sdpa(q, k, v, fill(slopes[:, None, None] * ahead(q @ k.mT), allowed))

    return Attention(12, 3, causal=True, residual=True, core=core)


def test_a_layer_that_adds_something_else_than_its_likes_is_told_and_none_where_all_differ() -> None:
    torch.manual_seed(0)
    slopes, x = alibi_slopes(3), torch.randn(2, 6, 12)
    report = diagnose_model(nn.Sequential(*(sloped(slopes[:1].expand(3) if n == 3 else slopes) for n in range(5))), x)
    (finding,) = report.named
    assert (finding.where, finding.told) == ("3", "it adds something else to its scores")
    assert not diagnose_model(nn.Sequential(*(sloped(slopes) for _ in range(5))), x).named
    assert not diagnose_model(nn.Sequential(*(sloped(slopes * (n + 1)) for n in range(5))), x).named


def turned(of_queries: float = 1.0, of_keys: float = 1.0) -> nn.Module:
    """Attention whose queries and keys are turned, by so many times their places, beside a residual connection."""

    def placed(q: Tensor, k: Tensor, v: Tensor, at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return rope(q, of_queries * at, 100.0), rope(k, of_keys * at, 100.0), v

    return Attention(12, 3, residual=True, placed=placed, **SDPA)


class Placed(nn.Module):
    """Adds a vector to each place."""

    def __init__(self) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.randn(6, 12))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.vectors


@pytest.mark.parametrize("rate", [-1.0, 2.0])
def test_a_layer_whose_keys_are_turned_unlike_its_queries_is_told_and_none_where_places_are_added(rate: float) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 6, 12)
    report = diagnose_model(nn.Sequential(*(turned(1.0, rate if n == 3 else 1.0) for n in range(5))), x)
    (finding,) = report.named
    assert (finding.where, finding.check) == ("3", "positions")
    assert finding.told == "where all tokens are the same, its scores depend on more than the distance"
    assert not diagnose_model(nn.Sequential(*(turned(n + 1.0, n + 1.0) for n in range(5))), x).named
    assert not diagnose_model(nn.Sequential(turned(), turned(), turned(), Placed(), turned()), x).named


def sunk(sink: bool) -> nn.Module:
    """Attention some of whose layers have a sink, as MiMo's with a window have and those without have not."""
    layer = Sinks(dim=12, heads=3, residual=True)
    if not sink:
        layer.sinks, layer.weigh = None, lambda scores, allowed: scores.softmax(-1)
    return layer


def test_layers_with_other_parameters_are_no_likes() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 6, 12)
    assert not diagnose_model(nn.Sequential(*(sunk(n != 2) for n in range(5))), x).named


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.parametrize("batch_first", [True, False])
def test_pytorchs_own_layers_are_followed(batch_first: bool) -> None:
    x = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(0))
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(12, 3, 8, batch_first=batch_first), 4)
    report = diagnose_model(encoder, x)
    assert (not report.named, report.verdict != "open", len(report.layers)) == (True, True, 4)
    mask = nn.Transformer.generate_square_subsequent_mask(5 if batch_first else 2)
    report = diagnose_model(
        nn.Transformer(12, 3, 4, 4, 8, batch_first=batch_first), {"src": x, "tgt": x, "tgt_mask": mask}
    )
    assert (not report.named, report.verdict != "open", len(report.layers)) == (True, True, 12)
    assert [layer.causal for layer in report.layers if "decoder" in layer.name and "self" in layer.name] == [True] * 4
    assert "layers.0.self_attn ... decoder.layers.3.self_attn: causal" in text(report)


def test_what_is_not_heard_is_said_and_nothing_is_decided() -> None:
    class WrittenAttention(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            weights = (x @ x.mT).exp()
            return weights / weights.sum(-1, keepdim=True) @ x

    report = diagnose_model(nn.Sequential(WrittenAttention()), torch.randn(2, 5, 6))
    assert (not report.named, report.verdict != "open", report.layers) == (True, False, ())
    assert report.unwatched == ("0 (WrittenAttention): no call of attention was found in it",)
    assert text(report).startswith("Sequential, 0 calls of attention: no finding, but no call of attention was found")


def test_the_models_report_goes_to_json_and_names_are_public() -> None:
    assert unmasked.diagnose_model is diagnose_model
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(12, 2, 8, batch_first=True), 2)
    report = diagnose_model(model, (torch.randn(2, 5, 12),))
    told = json.loads(json.dumps(report.to_dict()))
    assert (told["version"], told["ok"], told["verdict"]) == (3, True, "equal")
    assert [layer["name"] for layer in told["layers"]] == told["watched"] == list(report.watched)
    assert repr(report) == report.text()
    assert "\033[32m" in report.text(color=True)


def refusal(model: nn.Module, x: Tensor) -> str:
    """What PyTorch says, which versions word differently."""
    with pytest.raises(RuntimeError) as raised:
        model(x)
    return str(raised.value)


@pytest.mark.parametrize(
    ("model", "inputs", "error", "said"),
    [
        (len, torch.ones(2, 3), TypeError, "model is a builtin_function_or_method; pass a torch.nn.Module"),
        (nn.Linear(3, 3), [1], TypeError, "inputs is a list; pass a tensor, a tuple, or a dict of keyword arguments"),
        (
            nn.Linear(3, 3),
            torch.ones(2, 4),
            ValueError,
            f"Linear does not run with these inputs: RuntimeError: {refusal(nn.Linear(3, 3), torch.ones(2, 4))}",
        ),
    ],
)
def test_bad_input_is_told(unhooked: Any, model: Any, inputs: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=re.escape(said)):
        diagnose_model(model, inputs)
