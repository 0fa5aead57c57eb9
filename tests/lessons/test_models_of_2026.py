"""The page of the models of 2026: each attention gives the logits of transformers' own, and none with a slip does."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from unmasked_lessons.experiments import models_2026 as experiments
from unmasked_lessons.experiments.models import slipped

from ..running import PAGES, names_of

tf = pytest.importorskip("transformers", reason="pip install transformers>=5")
TINY = {"vocab_size": 50, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
WIDE = {"intermediate_size": 32}
EXPERTS = {"moe_intermediate_size": 8, "num_experts_per_tok": 1}
ROUTED = EXPERTS | {"n_routed_experts": 2, "n_group": 1, "topk_group": 1, "num_key_value_heads": 4}
FOUR = ["sliding_attention", "full_attention"] * 2
LAYERS = WIDE | {"head_dim": 8, "num_key_value_heads": 2}
GEMMA = LAYERS | {"global_head_dim": 16, "hidden_size_per_layer_input": 4, "vocab_size_per_layer_input": 50}
MIXED = ["linear_attention", "full_attention"]
# What the page's own small config does not say, for each variant of a model.
VARIANTS: dict[tuple[str, str], dict[str, Any]] = {
    ("DeepSeek-V3.2", "stretched"): WIDE | ROUTED,
    ("DeepSeek-V3.2", "plain"): WIDE | ROUTED | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    ("DeepSeek V4", "three kinds"): EXPERTS | {"n_routed_experts": 2, "hc_mult": 2},
    ("Gemma 4", "keys as values"): GEMMA | {"attention_k_eq_v": True, "num_global_key_value_heads": 1},
    ("Gemma 4", "keys of others"): GEMMA | {"num_kv_shared_layers": 2, "layer_types": FOUR},
    ("Kimi Linear", "two kinds"): WIDE | EXPERTS | {"num_local_experts": 2, "num_key_value_heads": 4},
    ("Qwen3.5", "two kinds"): LAYERS | {"layer_types": MIXED},
}
CLASSES = {
    "DeepSeek-V3.2": ("DeepseekV32ForCausalLM", "DeepseekV32Config"),
    "DeepSeek V4": ("DeepseekV4ForCausalLM", "DeepseekV4Config"),
    "Gemma 4": ("Gemma4ForCausalLM", "Gemma4TextConfig"),
    "Kimi Linear": ("KimiLinearForCausalLM", "KimiLinearConfig"),
    "Qwen3.5": ("Qwen3_5ForCausalLM", "Qwen3_5TextConfig"),
}


@pytest.fixture
def page() -> SimpleNamespace:
    return names_of("models_2026")


def tiny(model: str, variant: str) -> nn.Module:
    """Transformers' own model from the page's config, with random weights that are large enough to matter."""
    made_by, config_by = CLASSES[model]
    given = TINY | experiments.CONFIGS[model] | VARIANTS[model, variant]
    given["num_hidden_layers"] = len(given.get("layer_types", "12"))
    config = getattr(tf, config_by)(**given, attn_implementation="eager")
    torch.manual_seed(0)
    made: nn.Module = getattr(tf, made_by)(config).eval().requires_grad_(False)
    for name, parameter in made.named_parameters():
        parameter.copy_(experiments.spread(name, parameter))
    return made


def with_attention(model: nn.Module, attend: Callable[..., Tensor]) -> int:
    """Put an attention in the place of the model's own; how many layers had one."""
    kept: dict[str, object] = {}
    config, replaced = model.config, 0
    for number, block in enumerate(model.model.layers):  # type: ignore[union-attr, arg-type]
        linear = getattr(block, "linear_attn", None)
        if linear is None and "Qwen3_5" in type(block).__name__:
            continue  # its fourth layer is that of Qwen3-Next
        own = block.self_attn if linear is None else linear
        weights, alone = dict(own.named_parameters()), linear is not None or "Delta" in type(own).__name__
        shared = (kept,) if "Gemma" in type(block).__name__ else ()

        def forward(
            hidden_states: Tensor, *_: object, w=weights, n=number, alone=alone, shared=shared, **__: object
        ) -> Any:
            output = attend(hidden_states, w, config, n, *shared)
            return output if alone else (output, None)

        own.forward = forward
        replaced += 1
    return replaced


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_the_pages_attention_gives_the_logits_of_transformers_own_model_and_no_slip_does(
    name: str, variant: str, page: SimpleNamespace
):
    model = tiny(name, variant)
    words = torch.randint(3, 50, (2, 11), generator=torch.Generator().manual_seed(1))
    theirs = model(words, use_cache=False).logits
    assert with_attention(model, page.FUNCTIONS[name]) == len(model.model.layers) - (name == "Qwen3.5")  # type: ignore[union-attr, arg-type]
    ours = model(words, use_cache=False).logits
    largest = theirs.abs().max().item()
    torch.testing.assert_close(ours / largest, theirs / largest, rtol=0, atol=1e-5)
    for slip in experiments.SLIPS:
        if slip.model == name:
            with_attention(model, slipped(page.FUNCTIONS[name], slip))
            moved = (model(words, use_cache=False).logits - theirs).abs().max()
            there = variant == "keys as values" or "kept[kind]" not in slip.right
            assert moved > 1e-2 or not there, slip


def test_an_attention_of_the_page_has_at_most_sixty_lines(page: SimpleNamespace):
    text = (PAGES / "models_2026.py").read_text()
    cells = re.split(r"\n# %%.*\n", text)
    functions = [each for cell in cells for each in re.findall(r"(?ms)^def .+?(?=^\S|\Z)", cell)]
    assert {re.match(r"def (\w+)", each)[1] for each in functions} >= {f.__name__ for f in page.FUNCTIONS.values()}  # type: ignore[index]
    for each in functions:
        assert len(each.strip().splitlines()) <= 60, each


def test_the_table_has_what_the_configs_say():
    v32, v4, gemma = tf.DeepseekV32Config(), tf.DeepseekV4Config(), tf.Gemma4TextConfig()
    kimi, qwen = tf.KimiLinearConfig(), tf.Qwen3_5TextConfig()
    sees = {row[0].split("]")[0][1:]: row for row in experiments.ROWS}
    assert sees["DeepSeek-V3.2"][1] == f"the {v32.index_topk:,} best keys"
    assert sees["DeepSeek-V3.2"][3].startswith(f"{v32.qk_rope_head_dim} turn")
    first, second = v4.compress_rates.values()
    assert sees["DeepSeek V4"][1] == f"{v4.sliding_window} words, and summaries of {first} or of {second}"
    turned = int(v4.head_dim * v4.rope_parameters["compress"]["partial_rotary_factor"])
    assert sees["DeepSeek V4"][3].startswith(f"the last {turned} turn")
    pattern = ["sliding_attention"] * 5 + ["full_attention"]
    assert gemma.layer_types[:6] == pattern
    assert sees["Gemma 4"][1] == f"near {gemma.sliding_window} words; 1 layer of {len(pattern)} all"
    assert gemma.per_layer_config["full_attention"].head_dim == 512
    assert sees["Gemma 4"][2].startswith(f"heads of {gemma.per_layer_config[0].head_dim}, far of 512")
    assert gemma.rope_parameters["full_attention"]["partial_rotary_factor"] == 0.25
    for config, name in ((kimi, "Kimi Linear"), (qwen, "Qwen3.5")):
        assert config.layer_types[1:5].count("full_attention") == 1
        assert sees[name][1] == "1 layer of 4 all"
    assert sees["Qwen3.5"][2].startswith(f"heads of {qwen.head_dim}")
    assert qwen.rope_parameters["partial_rotary_factor"] == 0.25


@pytest.mark.filterwarnings("ignore")
def test_models_of_a_kind_attend_as_the_page_says():
    smaller, larger = tf.Gemma4TextConfig(num_kv_shared_layers=6), tf.Gemma4TextConfig(attention_k_eq_v=True)
    attention = tf.models.gemma4.modeling_gemma4.Gemma4TextAttention
    with torch.device("meta"):
        assert not hasattr(attention(smaller, 29), "k_proj")
        assert attention(larger, 5).v_proj is None
        assert attention(larger, 4).v_proj is not None
        latent = tf.models.kimi_linear.modeling_kimi_linear.KimiLinearAttention(tf.KimiLinearConfig(), 3)
    assert not hasattr(latent, "rotary_emb")
