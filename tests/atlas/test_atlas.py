"""The atlas: its probes find what was built in, a drawn few of its models are measured anew, and a dozen was read."""

import json
import random
import re
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from markdown.extensions.toc import slugify
from torch import Tensor

from unmasked import masks
from unmasked.positions import Rotary, alibi
from unmasked_lessons.figures.atlas import TRAITS, Atlas, Listing

from . import __main__ as sweep
from .hearing import Call
from .layers import added, norm, origin, scores, sees, turning
from .trials import flash, flexible

ATLAS = Atlas()
# Those that take less than a few seconds, for they are measured at each push.
QUICK = [m.name for m in ATLAS.models if m.layers and m.record["seconds"] < 4]
SOURCES = b"".join((Path(__file__).parent / f"{name}.py").read_bytes() for name in sweep.MEASURING)
DRAWN = random.Random(int(sha256(SOURCES).hexdigest(), 16)).sample(QUICK, 4)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The drawn models, measured as the sweep does it: by a command that no check of annotations slows down."""
    folder = tmp_path_factory.mktemp("atlas")
    command = [
        sys.executable,
        "-m",
        "tests.atlas",
        "--only",
        f"^({'|'.join(DRAWN)})$",
        "--kept",
        folder,
        "--workers",
        "1",
    ]
    subprocess.run(command, cwd=sweep.ROOT, check=True, capture_output=True, timeout=600)
    (kept,) = folder.iterdir()
    lines = filter(None, kept.read_text("utf-8").splitlines())
    return {kind: each for line in lines for kind, each in json.loads(line).items()}


@pytest.mark.parametrize("kind", DRAWN)
def test_a_drawn_model_is_as_the_record_has_it(kind: str, measured: dict[str, Any]) -> None:
    record, again = ATLAS.record, measured[kind]
    assert "reason" not in again
    known, found = (sweep.without(each, "doctor") for each in (record["models"][kind], again))
    if {name: record[name].partition("+")[0] for name in ("transformers", "torch")} == {
        name: each.partition("+")[0] for name, each in sweep.versions().items()
    }:
        assert sweep.changes(known, found) == []
    else:  # the weekly workflow says what a newer version changes
        assert found.keys() >= known.keys()


def layer(kind: str, key: str) -> list[Any]:
    return [each[key] for each in ATLAS.record["models"][kind]["layers"]]


# What the code of transformers says, as it was read.
READ: list[tuple[str, str, Any]] = [
    ("llama", "scale", "1/sqrt(head_dim)"),
    ("llama", "biases", ""),
    ("bert", "sees", "all"),
    ("bloom", "added", "a slope by distance"),
    ("cohere", "turns", {"pairs": "interleaved", "share": 1.0, "where": "first", "base": 500000.0}),
    ("deepseek_v3", "turns", {"pairs": "interleaved", "share": 0.5, "where": "last", "base": 10000.0}),
    ("deepseek_v3", "latent", 8),
    ("gemma2", "cap", 50.0),
    ("gpt_neox", "turns", {"pairs": "halves", "share": 0.25, "where": "first", "base": 10000.0}),
    ("gpt_oss", "sink", True),
    (
        "hunyuan_v1_dense",
        "query_norm",
        {"over": "each head", "centered": False, "learned": True, "stands": "after turning"},
    ),
    ("mpt", "turns", None),
    ("olmo2", "query_norm", {"over": "all heads", "centered": None, "learned": True, "stands": "before turning"}),
    ("qwen2", "biases", "qkv"),
    ("qwen3_next", "gate", True),
    ("t5", "scale", "1"),
]


@pytest.mark.parametrize(("kind", "key", "value"), READ)
def test_a_model_has_what_its_code_says(kind: str, key: str, value: Any) -> None:
    assert value in layer(kind, key), layer(kind, key)


def test_layers_of_two_kinds_are_told_apart() -> None:
    assert {*layer("gemma2", "sees")} == {"4 keys: a window before", "all before"}
    assert {*layer("llama4_text", "sees")} == {"4 keys: a chunk", "all before"}
    assert {*layer("modernbert", "sees")} == {"5 keys: a window on both sides", "all"}
    assert [turns is None for turns in layer("cohere2", "turns")] == [
        see == "all before" for see in layer("cohere2", "sees")
    ]


@pytest.mark.parametrize("pairing", ["halves", "interleaved"])
def test_turning_finds_pairs_share_and_base(pairing: Any) -> None:
    x = torch.randn(1, 3, 1, 12, dtype=torch.float64).expand(-1, -1, 20, -1)
    rotary = Rotary(8, base=5000.0, pairing=pairing)
    turned = torch.cat([rotary(x[..., :8], torch.arange(20)), x[..., 8:]], -1)
    assert turning(turned) == {"pairs": pairing, "share": 0.667, "where": "first", "base": 5000.0}
    assert turning(x) is None


def test_pairs_are_counted_as_the_projection_has_them() -> None:
    given = torch.randn(2, 8, dtype=torch.float64)  # heads, features
    halves = given[:, [0, 2, 4, 6, 1, 3, 5, 7]]  # what DeepSeek does before it turns halves
    turned = Rotary(8)(halves[None, :, None].expand(-1, -1, 9, -1), torch.arange(9))
    found = origin(turned[0, :, 0], [given.flatten()])
    assert found is not None
    assert turning(turned)["pairs"] == "halves"
    assert turning(turned, found[1])["pairs"] == "interleaved"


SEEN = {
    "all": torch.ones(9, 9, dtype=torch.bool),
    "all before": masks.causal(9),
    "4 keys: a window before": masks.sliding_window(9, window=4),
    "3 keys: a chunk": masks.causal(9) & (torch.arange(9)[:, None] // 3 == torch.arange(9) // 3),
    "3 keys: a block": torch.arange(9)[:, None] // 3 == torch.arange(9) // 3,
    "5 keys: a window on both sides": (torch.arange(9)[:, None] - torch.arange(9)).abs() < 3,
    "all of another sequence": torch.ones(9, 5, dtype=torch.bool),
}


@pytest.mark.parametrize("told", SEEN)
def test_keys_are_counted(told: str) -> None:
    assert sees(SEEN[told].expand(2, 3, -1, -1)) == told


def test_keys_that_differ_from_item_to_item_are_chosen_by_content() -> None:
    seen = masks.causal(9) & (torch.rand(2, 1, 9, 9) < 0.3) | torch.eye(9, dtype=torch.bool)
    assert "content chooses" in sees(seen)


def call(bias: Tensor | float = 0.0, scale: float = 0.5, cap: float = 0.0) -> Call:
    q, k = torch.randn(2, 3, 9, 8), torch.randn(2, 3, 9, 8)
    made = q @ k.mT * scale
    made = (cap * torch.tanh(made / cap) if cap else made) + bias
    made = made.masked_fill(~masks.causal(9), -torch.inf)
    return Call(q, k, made, made.softmax(-1), k)


def test_scale_slope_and_sink_are_found() -> None:
    found = scores(call(), None, 1.0)
    assert found == {
        "scale": "0.5 (1/sqrt(head_dim) is 0.354)",
        "added": None,
        "sink": False,
        "cap": "not measured: fused",
    }
    assert scores(call(scale=8**-0.5), None, 1.0)["scale"] == "1/sqrt(head_dim)"
    assert scores(call(alibi(3, 9)), None, 1.0)["added"] == "a slope by distance"
    sunk = call()
    sunk.weights = sunk.weights * 0.9
    assert scores(sunk, None, 1.0)["sink"] is True
    assert scores(call(), call(scale=1e5, cap=30.0), 1.0)["cap"] == 30.0


def test_numbers_by_distance_are_told_from_numbers_by_place() -> None:
    away = torch.arange(9)[:, None] - torch.arange(9) + 8
    by_distance = torch.randn(3, 17)[:, away]
    assert added(by_distance, by_distance.abs().max()) == "numbers by distance"
    by_place = torch.randn(3, 9, 9)
    assert added(by_place, by_place.abs().max()) == "numbers by place"


def test_norms_are_found_over_a_head_and_over_all() -> None:
    x = torch.randn(2, 3, 9, 8)
    assert norm(x, None, None, None, "query") is None
    assert norm(F.rms_norm(x, (8,)), None, None, None, "query")["over"] == "each head"
    whole = F.rms_norm(x.transpose(1, 2).flatten(2), (24,)).unflatten(2, (3, 8)).transpose(1, 2)
    assert norm(whole, None, None, None, "query")["over"] == "all heads"
    assert norm(F.layer_norm(x, (8,)), None, None, None, "query")["centered"] is True


def test_what_stands_for_flash_and_flex_computes_attention() -> None:
    q, k, v = torch.randn(2, 4, 9, 8), torch.randn(2, 2, 9, 8), torch.randn(2, 2, 9, 8)
    right = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)
    swapped = [x.transpose(1, 2) for x in (q, k, v)]
    torch.testing.assert_close(flash(*swapped, causal=True), right)
    torch.testing.assert_close(flash(*[swapped[0][:, -2:], *swapped[1:]], causal=True), right[:, -2:])
    near = F.scaled_dot_product_attention(q, k, v, attn_mask=masks.sliding_window(9, window=4), enable_gqa=True)
    torch.testing.assert_close(flash(*swapped, causal=True, window_size=(3, 3)), near.transpose(1, 2))
    ends = torch.tensor([0, 4, 9])
    apart = flash(*[x[0] for x in swapped], ends, ends, causal=True)
    torch.testing.assert_close(apart[:4], right[0, :4])
    torch.testing.assert_close(apart[4:], flash(*[x[:1, 4:] for x in swapped], causal=True)[0])
    free = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    torch.testing.assert_close(flexible(q, k, v), free)


def test_a_sweep_goes_on_where_it_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def measure(_: Any, kind: str) -> dict[str, Any]:
        asked.append(kind)
        return dict(sweep.DIED) if kind == "dies" else {"layers": []}

    monkeypatch.setattr(sweep.Lane, "measure", measure)
    kept = tmp_path / "build" / "kept.jsonl"
    assert [*sweep.swept(["a", "dies"], kept, 1)] == ["a", "dies"]
    with kept.open("a") as file:
        file.write('\n{"b": {"lay')  # as it is left by who is stopped while it writes
    assert sweep.swept(["a", "dies", "b"], kept, 1)["a"] == {"layers": []}
    assert asked == ["a", "dies", "dies", "b"]
    assert sweep.swept(["b"], kept, 1) == {"b": {"layers": []}}
    assert asked[4:] == []


def test_what_changed_is_told_and_rounding_is_none() -> None:
    before = {"a": {"steps": 1e-6, "layers": [{"heads": 6}], "cap": None}}
    assert sweep.changes(before, {"a": {"steps": 3e-6, "layers": [{"heads": 6}], "cap": None}}) == []
    after = {"a": {"steps": 0.5, "layers": [{"heads": 4}], "cap": 30.0}, "b": {}}
    told = sweep.changes(before, after)
    assert told == [
        "a: cap: None -> 30.0",
        "a: layers 0: {'heads': 6} -> {'heads': 4}",
        "a: steps: 1e-06 -> 0.5",
        "b: nothing -> {}",
    ]


def test_the_record_names_its_versions_and_a_reason_for_each_model_that_is_missing() -> None:
    assert {"measured", "transformers", "torch", "models", "missing"} == {*ATLAS.record}
    assert all(ATLAS.missing.values())
    assert len(ATLAS.models) > 100
    assert not [kind for kind, reason in ATLAS.missing.items() if "site-packages" in reason], "no place of one machine"
    lines = sweep.RECORD.read_text("utf-8").splitlines()
    assert sum(line.startswith('  "') for line in lines) == len(ATLAS.models) + len(ATLAS.missing), "a model a line"


@pytest.mark.parametrize("trait", TRAITS)
def test_a_trait_leads_to_a_section_that_is_there(trait: str) -> None:
    page, _, anchor = TRAITS[trait].page.partition("#")
    text = (sweep.ROOT / "docs/pytorch" / page).read_text("utf-8")
    heads = [line.removeprefix("# ").lstrip("#").strip() for line in text.splitlines() if line.startswith("# ##")]
    assert not anchor or anchor in {slug(head) for head in heads}


def slug(head: str) -> str:
    return slugify(re.sub(r"<!--.*?-->|`", "", head), "-")


def test_the_table_has_each_model_with_its_anchor_and_links_each_trait() -> None:
    html = Listing(ATLAS)._repr_html_()
    for model in ATLAS.models:
        assert html.count(f'<tr id="{model.name}" ') == 1
    assert 'href="../long/#two-things-called-sink"' in html
    assert ATLAS.has("gpt_oss", "sink")
    assert not ATLAS.has("llama", "sink")
    with pytest.raises(KeyError, match="was not measured of it"):
        ATLAS.has("no_such_model", "sink")
