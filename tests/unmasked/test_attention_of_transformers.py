"""The pages about watching and packing are right about transformers: masks, weights, and attention of one's own."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from unmasked import attend, masks, watch

from .of_transformers import tiny, with_cache

transformers = pytest.importorskip("transformers", reason="pip install transformers>=5")
masking = pytest.importorskip("transformers.masking_utils", reason="pip install transformers>=5")

IDS = torch.randint(32, (2, 7), generator=torch.Generator().manual_seed(0))
LEFT = torch.tensor([[0] * 3 + [1] * 4, [1] * 7])
PLACES = masks.positions_of(LEFT.bool())
ALLOWED = masks.combine(masks.causal(7), LEFT[:, None, None].bool())
LOWEST = torch.finfo(torch.float32).min


@pytest.fixture
def model() -> Iterator[Any]:
    """A Llama with random weights, called "sdpa"; what a test registers goes with it."""
    with torch.no_grad():
        yield tiny("LlamaForCausalLM", num_attention_heads=4, num_key_value_heads=2, attention_dropout=0.5)
    for registry in (transformers.AttentionInterface, transformers.AttentionMaskInterface):
        registry._global_mapping.pop("mine", None)


def off(model: Any, mask: Tensor | None) -> float:
    """Return the difference of the padded text from itself alone."""
    alone = model(IDS[:1, 3:]).logits
    return (model(IDS, attention_mask=mask, position_ids=PLACES).logits[:1, 3:] - alone).abs().max().item()


def added(allowed: Tensor, number: float) -> Tensor:
    return torch.zeros(allowed.shape).masked_fill(~allowed, number)


@pytest.mark.parametrize("how", ["sdpa", "eager"])
def test_which_masks_hide_the_padding(how: str, model: Any) -> None:
    model.set_attn_implementation(how)
    assert ALLOWED is not None
    for right in (LEFT, LEFT.bool(), LEFT.float(), added(ALLOWED, LOWEST), *[ALLOWED] * (how == "sdpa")):
        assert off(model, right) < 1e-5
    real = LEFT.bool()
    wrong = [None, added(real, -torch.inf), ALLOWED.float(), real[:, None, None].expand(-1, 1, 7, -1)]
    for mask in [*wrong, *[ALLOWED] * (how == "eager")]:
        assert off(model, mask) > 0.05
    assert off(model, added(real, -torch.inf)) == off(model, ~real)


def test_in_a_step_the_mask_is_of_all_tokens_so_far(model: Any) -> None:
    whole = model(IDS, attention_mask=LEFT, position_ids=PLACES).logits[:, 6:]

    def step(mask: Tensor) -> Tensor:
        kept = with_cache(model)
        model(IDS[:, :6], attention_mask=LEFT[:, :6], position_ids=PLACES[:, :6], **kept)
        return model(IDS[:, 6:], attention_mask=mask, position_ids=PLACES[:, 6:], **kept).logits

    first = torch.zeros_like(LEFT).index_fill_(1, torch.tensor([0]), 1)
    torch.testing.assert_close(step(LEFT), whole, rtol=0, atol=1e-5)
    assert (step(LEFT[:, 6:]) - whole).abs().max() > 0.05
    assert torch.equal(step(LEFT[:, 6:]), step(first))


def test_what_each_implementation_gets(model: Any) -> None:
    def kinds(how: str) -> list[Any]:
        model.config._attn_implementation_internal = how
        inputs = (None, torch.ones_like(LEFT), LEFT, ALLOWED)
        made = [masking.create_causal_mask(model.config, torch.zeros(2, 7, 24), mask, None) for mask in inputs]
        assert made[3] is ALLOWED
        return [None if each is None else getattr(each, "dtype", type(each).__name__) for each in made[:3]]

    assert kinds("sdpa") == [None, None, torch.bool]
    assert kinds("eager") == [torch.float32] * 3
    assert kinds("flash_attention_2") == [None, None, torch.bool]
    assert kinds("mine") == [None] * 3, "a name without a mask of its own"


@pytest.mark.parametrize("booleans", [True, False])
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_adds_the_first_heads_mask_to_all_heads(booleans: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ALLOWED is not None
    mask = ALLOWED if booleans else added(ALLOWED, LOWEST)
    integration = importlib.import_module("transformers.integrations.flex_attention")

    def uncompiled(*inputs: Any, training: bool, **more: Any) -> Any:
        return flex_attention(*inputs, **more)

    monkeypatch.setattr(integration, "compile_friendly_flex_attention", uncompiled)
    query, key, value = torch.randn(3, 2, 4, 7, 6, generator=torch.Generator().manual_seed(1))
    layer = torch.nn.Module().eval()
    of_heads = torch.cat([mask, torch.zeros_like(mask).expand(-1, 3, -1, -1)], dim=1)
    context = integration.flex_attention_forward(layer, query, key, value, of_heads)[0].transpose(1, 2)
    expected = (query @ key.mT / 6**0.5 + mask).softmax(-1) @ value
    torch.testing.assert_close(context, expected, rtol=0, atol=1e-5)


def test_what_output_attentions_gives(model: Any) -> None:
    assert model(IDS, output_attentions=True).attentions == ()
    with pytest.raises(ValueError, match="Please set it to 'eager' instead"):
        model.config.output_attentions = True
    model.set_attn_implementation("eager")
    assert (model.train()(IDS, output_attentions=True).attentions[0].sum(-1) - 1).abs().max() > 0.1, "after dropout"


def test_a_function_of_ones_own_needs_a_mask_made_for_its_name(model: Any) -> None:
    page = (Path(__file__).parents[2] / "docs/pytorch/watching.py").read_text()
    (fence,) = re.findall(r"(?s)# ```python\n(.*?)# ```", page)
    program = re.sub(r"(?m)^# ?", "", fence)
    whole = model(IDS).logits
    names: dict[str, Any] = {"model": model, "ids": IDS}
    exec(program, names)
    assert [tuple(each.shape) for each in names["weights"]] == [(2, 4, 7, 7)] * 2
    torch.testing.assert_close(model(IDS).logits, whole, rtol=0, atol=1e-5)
    assert off(model, LEFT) < 1e-5
    query, key, value = torch.randn(3, 2, 4, 7, 6, generator=torch.Generator().manual_seed(1))
    sinks = torch.tensor([0.0, 1.0, -1.0, 2.0])
    mine = names["mine"](None, query, key, value, None, softcap=2.0, s_aux=sinks)[0].transpose(1, 2)
    capped = attend(query, key, value, softcap=2.0, sinks=sinks).context
    torch.testing.assert_close(mine, capped, rtol=0, atol=1e-5)
    transformers.AttentionMaskInterface.register("mine", masking.sdpa_mask)
    futures = [model(IDS, output_attentions=True).attentions[0].triu(1).sum()]
    transformers.AttentionMaskInterface._global_mapping.pop("mine")
    futures += [model(IDS, output_attentions=True).attentions[0].triu(1).sum()]
    assert min(futures) > 1, "each token sees the future"


DOCUMENTS, PLACES_ANEW = slice(3, 7), torch.tensor([[0, 1, 2, 0, 1, 2, 3]])
MOE = {"num_local_experts": 2, "num_experts_per_tok": 2, "head_dim": 4, "num_key_value_heads": 2}
LINEAR = {"num_experts": 2, "num_experts_per_tok": 2, "layer_types": ["linear_attention", "full_attention"]} | {
    f"linear_{name}": size for name, size in [("num_value_heads", 2), ("key_head_dim", 8), ("value_head_dim", 8)]
}
LINEAR |= {"linear_num_key_heads": 2, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8}
OPT = {"ffn_dim": 20, "word_embed_proj_dim": 24}


def apart(model: Any, rows: int = 1, **options: Any) -> bool:
    """Whether each document of a pack has the logits that it has alone: its positions begin anew."""
    ids = IDS[:rows]
    packed = model(ids, position_ids=PLACES_ANEW.expand(rows, -1), **options).logits[:, DOCUMENTS]
    return bool((packed - model(ids[:, DOCUMENTS]).logits).abs().max() < 1e-4)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "makes_the_mask", "options"),
    [
        ("LlamaForCausalLM", True, {}),
        ("GPT2LMHeadModel", True, {}),
        ("GptOssForCausalLM", False, MOE),
        ("OPTForCausalLM", False, OPT),
        ("BloomForCausalLM", False, {}),
        ("Qwen3NextForCausalLM", False, LINEAR | {"head_dim": 8, "num_key_value_heads": 2}),
    ],
)
def test_which_models_make_the_mask_of_documents_from_their_positions(
    name: str, makes_the_mask: bool, options: dict[str, Any]
) -> None:
    model = tiny(name, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
        assert apart(model, use_cache=False) == makes_the_mask
        if makes_the_mask:
            assert apart(model, rows=2, use_cache=False)
        assert not apart(model)
        assert not apart(model, use_cache=False, attention_mask=torch.ones(1, 7))


def test_flash_attention_reads_the_positions_by_itself_in_one_row_alone(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    utilities = importlib.import_module("transformers.modeling_flash_attention_utils")

    def whole(query: Tensor, key: Tensor, value: Tensor, **_: Any) -> Tensor:
        given = (x.transpose(1, 2) for x in (query, key, value))
        return attend(*given, is_causal=True).context.transpose(1, 2)

    def varlen(query: Tensor, key: Tensor, value: Tensor, *, cu_seqlens_q: Tensor, **_: Any) -> Tensor:
        lengths = cu_seqlens_q.diff().tolist()
        parts = zip(*(x[None].split(lengths, 1) for x in (query, key, value)), strict=True)
        return torch.cat([whole(*part)[0] for part in parts])

    functions = (whole, varlen, None, None, None), (lambda **_: {}, None)
    monkeypatch.setattr(utilities, "lazy_import_flash_attention", lambda _: functions)
    model.config._attn_implementation_internal = "flash_attention_2"
    assert apart(model, use_cache=False)
    assert apart(model)
    assert apart(model, attention_mask=torch.ones(1, 7))
    assert not apart(model, rows=2, use_cache=False)


@pytest.mark.parametrize(
    ("name", "options"), [("GptOssForCausalLM", MOE), ("Gemma2ForCausalLM", {"head_dim": 4, "num_key_value_heads": 2})]
)
def test_a_model_that_loads_with_attention_written_out_is_not_heard(name: str, options: dict[str, Any]) -> None:
    model = tiny(name, **options)
    with pytest.warns(UserWarning, match="recorded"), watch(model) as seen:
        model(IDS)
    assert not seen


def test_the_pages_own_function_adds_the_positions_of_t5() -> None:
    page = (Path(__file__).parents[2] / "docs/pytorch/watching.py").read_text()
    (fence,) = re.findall(r"(?s)# ```python\n(.*?)# ```", page)
    names: dict[str, Any] = {"attend": attend}
    exec(re.findall(r"(?ms)^def mine.*?^    return .*?$", re.sub(r"(?m)^# ?", "", fence))[0], names)
    query, key, value = torch.randn(3, 2, 4, 7, 6, generator=torch.Generator().manual_seed(1))
    bias = torch.randn(1, 4, 7, 7, generator=torch.Generator().manual_seed(2))
    t5 = importlib.import_module("transformers.models.t5.modeling_t5")
    module = torch.nn.Module().eval()
    for mask in (None, added(masks.causal(7), LOWEST)):
        theirs, _ = t5.eager_attention_forward(module, query, key, value, mask, scaling=1.0, position_bias=bias)
        ours, _ = names["mine"](module, query, key, value, mask, scaling=1.0, position_bias=bias)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


def test_a_window_is_counted_to_each_side_in_an_encoder_and_with_the_query_in_a_decoder() -> None:
    places = torch.arange(9)
    decoder, encoder = masking.sliding_window_causal_mask_function(3), masking.sliding_window_bidirectional_overlay(3)
    assert [int(decoder(0, 0, places[8], each)) for each in places] == [0] * 6 + [1] * 3
    assert sum(int(encoder(0, 0, places[4], each)) for each in places) == 2 * 3 + 1
    assert transformers.ModernBertConfig(local_attention=128).sliding_window == 64


def test_some_encoders_count_both_sides_of_a_window_together() -> None:
    from transformers.models.t5gemma2 import modeling_t5gemma2

    places = torch.arange(9)
    seen = modeling_t5gemma2.sliding_window_mask_function(3, is_causal=False)
    assert sum(int(seen(0, 0, places[4], each)) for each in places) == 3
    made = transformers.Gemma3TextConfig(sliding_window=6, use_bidirectional_attention=True)
    assert made.sliding_window - 1 == 6 // 2, "keys to each side, since its mask leaves the bound out"
