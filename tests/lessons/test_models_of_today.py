"""The page of today's models: each attention gives the logits of transformers' own model, and none with a slip does."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from unmasked.positions import Rotary
from unmasked_lessons.experiments import models as experiments

from ..running import PAGES, names_of, prose_of

tf = pytest.importorskip("transformers", reason="pip install transformers>=5")
PAGE = PAGES / "models.py"

TINY = {
    "vocab_size": 50,
    "intermediate_size": 32,
    "num_hidden_layers": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {"moe_intermediate_size": 8, "num_experts_per_tok": 1}
LINEAR = {f"linear_{what}": size for what, size in [("num_key_heads", 2), ("num_value_heads", 2)]}
LINEAR |= {"linear_key_head_dim": 8, "linear_value_head_dim": 8}
MORE: dict[str, dict[str, Any]] = {
    "Qwen3": {},
    "Gemma 3": {},
    "gpt-oss": {"num_local_experts": 2, "num_experts_per_tok": 2},
    "DeepSeek-V3": EXPERTS | {"n_routed_experts": 2, "n_group": 1, "topk_group": 1},
    "Qwen3-Next": EXPERTS | LINEAR | {"num_experts": 2, "shared_expert_intermediate_size": 8},
}
NAMES = {
    "Qwen3": ("Qwen3ForCausalLM", "Qwen3Config"),
    "Gemma 3": ("Gemma3ForCausalLM", "Gemma3TextConfig"),
    "gpt-oss": ("GptOssForCausalLM", "GptOssConfig"),
    "DeepSeek-V3": ("DeepseekV3ForCausalLM", "DeepseekV3Config"),
    "Qwen3-Next": ("Qwen3NextForCausalLM", "Qwen3NextConfig"),
}


@pytest.fixture
def page() -> SimpleNamespace:
    return names_of("models")


def tiny(model: str, **options: Any) -> nn.Module:
    """Transformers' own model from the page's config, with random weights that are large enough to matter."""
    name, config = NAMES[model]
    given = TINY | experiments.CONFIGS[model] | MORE[model] | options
    if "layer_types" in given:
        given["layer_types"] = list(given["layer_types"]) * 2
    torch.manual_seed(0)
    made: nn.Module = getattr(tf, name)(getattr(tf, config)(**given)).eval().requires_grad_(False)
    for name, parameter in made.named_parameters():
        matrix = parameter.dim() > 1
        spread = parameter.size(-1) ** -0.5 if matrix else 0.3
        whole = "norm" in name and model not in ("Gemma 3", "Qwen3-Next")
        parameter.copy_(spread * torch.randn_like(parameter) + whole)
    return made


def with_attention(model: nn.Module, attend: Callable[..., Tensor], config: Any) -> int:
    """Put an attention in the place of the model's own; how many layers had one."""
    replaced = 0
    for number, block in enumerate(model.model.layers):  # type: ignore[union-attr, arg-type]
        if hasattr(block, "self_attn"):
            weights = dict(block.self_attn.named_parameters())
            block.self_attn.forward = lambda hidden_states, w=weights, n=number, **_: (
                attend(hidden_states, w, config, n),
                None,
            )
            replaced += 1
    return replaced


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_the_pages_attention_gives_the_logits_of_transformers_own_model_and_no_slip_does(
    name: str, page: SimpleNamespace
):
    function, words = page.FUNCTIONS[name], torch.randint(3, 50, (2, 11), generator=torch.Generator().manual_seed(1))
    model = tiny(name)
    theirs = model(words).logits
    assert with_attention(model, function, model.config) == (1 if name == "Qwen3-Next" else 4)
    torch.testing.assert_close(model(words).logits, theirs, rtol=0, atol=1e-5)
    for slip in experiments.SLIPS:
        if slip.model == name:
            with_attention(model, experiments.slipped(function, slip), model.config)
            assert (model(words).logits - theirs).abs().max() > 1e-2, slip


YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 40.0, "original_max_position_embeddings": 4096}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("rope", [YARN, {"rope_type": "default", "rope_theta": 1e4}], ids=["yarn", "default"])
def test_without_mscale_all_dim_the_scale_of_deepseek_v3_does_not_grow(rope: dict[str, Any], page: SimpleNamespace):
    words = torch.randint(3, 50, (2, 11), generator=torch.Generator().manual_seed(1))
    model = tiny("DeepSeek-V3", rope_parameters=rope)
    theirs = model(words).logits
    with_attention(model, page.deepseek_v3, model.config)
    torch.testing.assert_close(model(words).logits, theirs, rtol=0, atol=1e-5)


def test_an_attention_of_the_page_has_at_most_forty_lines():
    code = PAGE.read_text()
    for cell in re.findall(r"\n(def (\w+)\(x, w, config.*?)\n\n\n", code, flags=re.DOTALL):
        assert len(cell[0].splitlines()) <= 40, cell[1]
    assert len(re.findall(r"\ndef \w+\(x, w, config", code)) == 5


def test_the_table_has_what_the_configs_say():
    sizes = {row[0].split()[0]: row[1] for row in experiments.ROWS}
    for name, config in {"gpt-oss": tf.GptOssConfig(), "Qwen3-Next": tf.Qwen3NextConfig()}.items():
        told = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        assert sizes[name] == ", ".join(map(str, told))
    deepseek = tf.DeepseekV3Config()
    head = deepseek.qk_nope_head_dim + deepseek.qk_rope_head_dim
    assert sizes["DeepSeek-V3"] == f"{deepseek.num_attention_heads}, {deepseek.num_key_value_heads}, {head}"
    scales = {row[0].split()[0]: row[3] for row in experiments.ROWS}
    for name, factor, root in (("gpt-oss", 32, 64), ("DeepSeek-V3", 40, 192)):  # by how much each is stretched
        assert scales[name] == f"{(0.1 * math.log(factor) + 1) ** 2:.2f}/√{root}"
    ours, config = experiments.ROWS[3], tf.GptOssConfig()
    rope, window = config.rope_parameters, config.sliding_window
    assert ours[4] == f"{rope['rope_theta']:,.0f}, {rope['rope_type'].replace('yarn', 'YaRN')} by {rope['factor']:.0f}"
    assert ours[5] == f"1 of 2: {window}"
    text = PAGE.read_text()
    for figure in (window, config.num_attention_heads, config.head_dim, config.hidden_size):
        assert f"{figure:,}<!--~ its config -->" in text
    assert f"{config.num_attention_heads * config.head_dim:,}<!--~ their product -->" in text
    for sentence, model, begins in (
        ("Five layers out of six see only a window", tf.Gemma3TextConfig, ["sliding_attention"] * 5),
        ("Every other layer has a window", tf.GptOssConfig, ["sliding_attention"]),
        ("Three layers out of four have another kind of attention", tf.Qwen3NextConfig, ["linear_attention"] * 3),
    ):
        assert sentence in prose_of("models")
        pattern = [*begins, "full_attention"]
        assert model().layer_types[: 2 * len(pattern)] == 2 * pattern


@pytest.mark.filterwarnings("ignore")
def test_newer_models_attend_as_the_page_says(page: SimpleNamespace):
    given = TINY | experiments.CONFIGS["Qwen3-Next"] | LINEAR
    torch.manual_seed(0)
    model = tf.Qwen3_5ForCausalLM(tf.Qwen3_5TextConfig(**given)).eval().requires_grad_(False)
    for parameter in model.parameters():
        spread = parameter.size(-1) ** -0.5 if parameter.dim() > 1 else 0.3
        parameter.copy_(spread * torch.randn_like(parameter))
    words = torch.randint(3, 50, (2, 11), generator=torch.Generator().manual_seed(1))
    theirs = model(words).logits
    assert with_attention(model, page.qwen3_next, model.config) == 1
    torch.testing.assert_close(model(words).logits, theirs, rtol=0, atol=1e-5)
    assert tf.models.kimi_k25.configuration_kimi_k25.Kimi_K25Config().text_config.model_type == "deepseek_v3"
    gemma = tf.Gemma4TextConfig(**TINY, hidden_size=24, num_attention_heads=4, num_key_value_heads=2, head_dim=8)
    layer = tf.models.gemma4.modeling_gemma4.Gemma4TextAttention(gemma, 0)
    assert layer.scaling == 1
    assert layer.v_norm is not None


@pytest.mark.filterwarnings("ignore")
def test_the_pages_snippet_runs(page: SimpleNamespace):
    (snippet,) = re.findall(r"```python\n(.*?)```", re.sub(r"(?m)^# ?", "", PAGE.read_text()), flags=re.DOTALL)
    exec(snippet, {"qwen3": page.qwen3})


def test_a_slip_in_a_line_that_is_not_there_is_refused(page: SimpleNamespace):
    with pytest.raises(ValueError, match=r"function has 'no such line' 0 times; a slip changes one place"):
        experiments.slipped(page.qwen3, experiments.Slip("Qwen3", "no such line", ""))


ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 1e6},
    "partial": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
    "linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 8.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "yarn": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 40.0, "original_max_position_embeddings": 4096},
}
ROPES["proportional"] = {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25}
ROPES["proportional, slowed"] = ROPES["proportional"] | {"factor": 4.0}
ROPES["of words, where images have several axes"] = ROPES["default"] | {"mrope_section": [8, 12, 12]}
ROPES["yarn of gpt-oss"] = ROPES["yarn"] | {"rope_theta": 150_000.0, "factor": 32.0, "truncate": False}
ROPES["yarn of DeepSeek"] = ROPES["yarn"] | {"mscale": 1.0, "mscale_all_dim": 1.0}
ROPES["yarn, uneven"] = ROPES["yarn"] | {"mscale": 1.0, "mscale_all_dim": 0.7, "beta_fast": 16.0, "beta_slow": 2.0}
ROPES["yarn, said"] = ROPES["yarn"] | {"attention_factor": 1.5}
ROPES["yarn, partial"] = ROPES["yarn"] | {"partial_rotary_factor": 0.5}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES)
def test_a_config_gives_the_angles_of_transformers(rope: dict[str, Any]):
    config = tf.Qwen3NextConfig(
        head_dim=64, max_position_embeddings=131_072, rope_parameters={"partial_rotary_factor": 1.0, **rope}
    )
    theirs = tf.models.qwen3_next.modeling_qwen3_next.Qwen3NextRotaryEmbedding(config)
    rotary = Rotary.from_config(64, rope)
    assert rotary.rotary_dim == 2 * len(theirs.inv_freq)
    torch.testing.assert_close(rotary.frequencies, theirs.inv_freq, rtol=1e-5, atol=0)
    assert rotary.factor == pytest.approx(theirs.attention_scaling)
    x, place = torch.randn(2, 3, 5, 64), torch.arange(5)
    cos, sin = theirs(x, place[None])
    turned, _ = tf.models.qwen3_next.modeling_qwen3_next.apply_rotary_pos_emb(x, x, cos, sin)
    torch.testing.assert_close(rotary(x, place), turned, rtol=0, atol=1e-5)


def test_what_a_config_lacks_is_told():
    with pytest.raises(
        ValueError, match=r"rope has the type 'dynamic'; known are \"default\", \"linear\", .*frequencies="
    ):
        Rotary.from_config(8, {"rope_type": "dynamic", "rope_theta": 1e4})
    with pytest.raises(
        ValueError, match=r"rope lacks rope_theta, factor, which the type 'linear' needs; take them from"
    ):
        Rotary.from_config(8, {"type": "linear"})
    null = ROPES["yarn"] | {"factor": None}
    with pytest.raises(ValueError, match=r"lacks factor, .* null there is max_position_embeddings / original_max_pos"):
        Rotary.from_config(8, null)
    with pytest.raises(ValueError, match="rope has parameters for full_attention: pass those of one kind of layer"):
        Rotary.from_config(8, {"rope_theta": 1e4, "full_attention": {"rope_theta": 1e6}})


def test_what_a_config_leaves_empty_is_its_default():
    rope = {"rope_type": None, "rope_theta": 1e4, "partial_rotary_factor": None}
    assert repr(Rotary.from_config(8, rope)) == repr(Rotary(8))


@pytest.mark.filterwarnings("ignore")
def test_the_pages_name_what_transformers_has():
    models = tf.models
    pairings = {
        name: "halves" if code.rotate_half(torch.arange(4.0)).tolist() == [-2, -3, 0, 1] else "interleaved"
        for name, code in {
            "Llama": models.llama.modeling_llama,
            "Cohere": models.cohere.modeling_cohere,
            "GLM-4": models.glm4.modeling_glm4,
            "GLM-4.5": models.glm4_moe.modeling_glm4_moe,
        }.items()
    }
    assert pairings == {"Llama": "halves", "Cohere": "interleaved", "GLM-4": "interleaved", "GLM-4.5": "halves"}
    positions, linear = prose_of("positions"), prose_of("linear")
    said = "Llama's has halves, those of Cohere and GLM-4 are interleaved, and that of GLM-4.5 has halves"
    assert said in positions
    for turns in (1, 0):
        config = tf.SmolLM3Config(**TINY | {"num_hidden_layers": 1}, no_rope_layers=[turns])
        assert models.smollm3.modeling_smollm3.SmolLM3Attention(config, 0).use_rope == turns
    assert "a one means that the layer *does* turn, and a zero that it does not" in positions
    assert tf.Qwen3NextConfig().linear_conv_kernel_dim == 1 + 3
    assert "with those of the three words before" in linear
    assert f"chooses {tf.DeepseekV32Config().index_topk:,} keys for each query" in linear
