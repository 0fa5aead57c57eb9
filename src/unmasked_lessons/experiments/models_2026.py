"""The attention of five models of 2026: their configs, small layers of each, and slips in their lines."""

import zlib
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from unmasked.plot.tables import Table, table
from unmasked_lessons.experiments import models
from unmasked_lessons.experiments.models import Slip

ROWS = [row.split(" | ") for row in (
    "[DeepSeek-V3.2](#choose-then-attend-deepseek-v32) | the 2,048 best keys | latents | 64 turn, interleaved; halves "
    "in the indexer | an indexer",
    "[DeepSeek V4](#sum-up-then-choose-deepseek-v4) | 128 words, and summaries of 4 or of 128 | one head, that is "
    "both | the last 64 turn, and the output turns back | sinks, an indexer",
    "[Gemma 4](#share-keys-and-values-gemma-4) | near 512 words; 1 layer of 6 all | heads of 256, far of 512; "
    "some shared | far: a quarter of the pairs | norms of Q, K and V; scale 1",
    "[Kimi Linear](#write-into-a-fixed-memory-kimi-linear-and-qwen35) | 1 layer of 4 all | latents; else a memory | "
    "none | a gate for each feature",
    "[Qwen3.5](#write-into-a-fixed-memory-kimi-linear-and-qwen35) | 1 layer of 4 all | heads of 256; else a memory | "
    "a quarter turns | a gate for each head",
)]  # fmt: skip


def published() -> Table:
    """Return a table of what each model sees and keeps."""
    return table(["Model", "A query sees", "Keys and values", "Positions", "Also has"], ROWS)


SLIPS = [
    Slip("DeepSeek-V3.2", "scores = scores.masked_fill(~allowed, -torch.inf)", "pass", "best_of"),
    Slip("DeepSeek-V3.2", 'size, "halves")', "size)"),
    Slip("DeepSeek-V3.2", "F.relu(query @ key.mT)", "(query @ key.mT)", "index_scores"),
    Slip("DeepSeek V4", "found = turn(found, -place, rope, size)", "pass"),
    Slip("DeepSeek V4", "begins + every - 1 <= place", "begins <= place", "far_words"),
    Slip("DeepSeek V4", "share = share + w", "w", "summaries"),
    Slip("DeepSeek V4", "overlapping(share, -torch.inf)", "overlapping(share, 0.0)", "summaries"),
    Slip("DeepSeek V4", 'sinks = w["sinks"]', "sinks = None"),
    Slip("Gemma 4", "value = F.rms_norm(value, (dim,), eps=eps)", "pass"),
    Slip("Gemma 4", "kept[kind] = key, value", "kept[kind] = key, key"),
    Slip("Gemma 4", "scale=1.0", "scale=dim**-0.5"),
    Slip("Kimi Linear", "slow).exp()", "slow).exp().mean(-1, True)"),
    Slip("Kimi Linear", 'narrow("g").sigmoid()', 'F.silu(narrow("g"))'),
    Slip("Qwen3.5", "repeat_interleave(groups, dim=1)", "repeat(1, groups, 1, 1)"),
    Slip("Qwen3.5", "state = alpha.mT * state", "pass", "delta"),
    Slip("Qwen3.5", "F.silu(F.conv1d(before, weight, groups=len(weight)).mT)", "x", "with_words_before"),
]

_YARN = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 16, "mscale": 1.0}
_NEAR = {"rope_type": "default", "rope_theta": 1e4}
_SIZES = {"hidden_size": 24, "num_attention_heads": 4, "rms_norm_eps": 1e-6}
_LATENT = {"kv_lora_rank": 10, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 5}
_INDEX = {"q_lora_rank": 12, "index_n_heads": 2, "index_head_dim": 6, "index_topk": 3}
CONFIGS: dict[str, dict[str, Any]] = {
    "DeepSeek-V3.2": _SIZES
    | _LATENT
    | _INDEX
    | {"rope_parameters": _YARN | {"rope_theta": 1e4, "mscale_all_dim": 1.0}},
    "DeepSeek V4": {
        **_SIZES,
        **_INDEX,
        "head_dim": 8,
        "index_topk": 2,
        "sliding_window": 3,
        "o_groups": 2,
        "o_lora_rank": 6,
        "layer_types": ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"],
        "compress_rates": {"compressed_sparse_attention": 2, "heavily_compressed_attention": 4},
        "rope_parameters": {
            "main": _NEAR | {"partial_rotary_factor": 0.5},
            "compress": _YARN | {"rope_theta": 16e4, "partial_rotary_factor": 0.5},
        },
    },
    "Gemma 4": {
        **_SIZES,
        "sliding_window": 3,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {
            "sliding_attention": _NEAR,
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
        },
    },
    "Kimi Linear": {
        **_SIZES,
        **_LATENT,
        "linear_num_heads": 3,
        "linear_head_dim": 8,
        "layer_types": ["linear_attention", "full_attention"],
    },
    "Qwen3.5": {
        **_SIZES,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 6,
    },
}


def _latents(c: SimpleNamespace) -> dict[str, tuple[int, ...]]:
    heads, turned = c.num_attention_heads, c.qk_rope_head_dim
    return {
        "kv_a_proj_with_mqa.weight": (c.kv_lora_rank + turned, c.hidden_size),
        "kv_a_layernorm.weight": (c.kv_lora_rank,),
        "kv_b_proj.weight": (heads * (c.qk_nope_head_dim + c.v_head_dim), c.kv_lora_rank),
        "o_proj.weight": (c.hidden_size, heads * c.v_head_dim),
    }


def _deepseek_v32(c: SimpleNamespace, layer: int) -> dict[str, tuple[int, ...]]:
    queries = c.num_attention_heads * (c.qk_nope_head_dim + c.qk_rope_head_dim)
    return _latents(c) | {
        "q_a_proj.weight": (c.q_lora_rank, c.hidden_size),
        "q_a_layernorm.weight": (c.q_lora_rank,),
        "q_b_proj.weight": (queries, c.q_lora_rank),
        "indexer.wq_b.weight": (c.index_n_heads * c.index_head_dim, c.q_lora_rank),
        "indexer.wk.weight": (c.index_head_dim, c.hidden_size),
        "indexer.k_norm.weight": (c.index_head_dim,),
        "indexer.k_norm.bias": (c.index_head_dim,),
        "indexer.weights_proj.weight": (c.index_n_heads, c.hidden_size),
    }


def _deepseek_v4(c: SimpleNamespace, layer: int) -> dict[str, tuple[int, ...]]:
    wide, heads, dim, kind = c.hidden_size, c.num_attention_heads, c.head_dim, c.layer_types[layer]
    shapes: dict[str, tuple[int, ...]] = {
        "q_a_proj.weight": (c.q_lora_rank, wide),
        "q_a_norm.weight": (c.q_lora_rank,),
        "q_b_proj.weight": (heads * dim, c.q_lora_rank),
        "kv_proj.weight": (dim, wide),
        "kv_norm.weight": (dim,),
        "o_a_proj.weight": (c.o_groups * c.o_lora_rank, heads * dim // c.o_groups),
        "o_b_proj.weight": (wide, c.o_groups * c.o_lora_rank),
        "sinks": (heads,),
    }
    overlaps = kind == "compressed_sparse_attention"
    made = {"compressor": dim, "compressor.indexer": c.index_head_dim}
    for name, size in list(made.items())[: ["sliding_attention", "heavily_compressed_attention", kind].index(kind)]:
        both = size * (1 + overlaps)
        shapes |= {f"{name}.{part}_proj.weight": (both, wide) for part in ("kv", "gate")}
        shapes |= {f"{name}.position_bias": (c.compress_rates[kind], both), f"{name}.kv_norm.weight": (size,)}
    if overlaps:
        queries = c.index_n_heads * c.index_head_dim
        shapes["compressor.indexer.q_b_proj.weight"] = (queries, c.q_lora_rank)
        shapes["compressor.indexer.scorer.weights_proj.weight"] = (c.index_n_heads, wide)
    return shapes


def _gemma4(c: SimpleNamespace, layer: int) -> dict[str, tuple[int, ...]]:
    dim, heads = (8, 2) if c.layer_types[layer] == "sliding_attention" else (16, 1)
    shapes: dict[str, tuple[int, ...]] = {
        "q_proj.weight": (c.num_attention_heads * dim, c.hidden_size),
        "k_proj.weight": (heads * dim, c.hidden_size),
        "q_norm.weight": (dim,),
        "k_norm.weight": (dim,),
        "o_proj.weight": (c.hidden_size, c.num_attention_heads * dim),
    }
    return shapes | ({"v_proj.weight": (heads * dim, c.hidden_size)} if dim == 8 else {})


def _kimi_linear(c: SimpleNamespace, layer: int) -> dict[str, tuple[int, ...]]:
    wide, dim, heads = c.hidden_size, c.linear_head_dim, c.linear_num_heads
    if c.layer_types[layer] == "full_attention":
        queries = c.num_attention_heads * (c.qk_nope_head_dim + c.qk_rope_head_dim)
        return _latents(c) | {"q_proj.weight": (queries, wide)}
    shapes: dict[str, tuple[int, ...]] = {f"{name}_proj.weight": (heads * dim, wide) for name in "qkv"}
    for name in ("forget_gate.f", "g"):
        shapes |= {f"{name}_a_proj.weight": (dim, wide), f"{name}_b_proj.weight": (heads * dim, dim)}
    return shapes | {
        "conv1d.weight": (3 * heads * dim, 1, 4),
        "forget_gate.dt_bias": (heads * dim,),
        "forget_gate.A_log": (1, 1, heads, 1),
        "b_proj.weight": (heads, wide),
        "o_norm.weight": (dim,),
        "o_proj.weight": (wide, heads * dim),
    }


def _qwen35(c: SimpleNamespace, layer: int) -> dict[str, tuple[int, ...]]:
    wide, heads = c.hidden_size, c.linear_num_value_heads
    values = heads * c.linear_value_head_dim
    every = 2 * c.linear_num_key_heads * c.linear_key_head_dim + values
    return {
        "in_proj_qkv.weight": (every, wide),
        "conv1d.weight": (every, 1, 4),
        "in_proj_z.weight": (values, wide),
        "in_proj_a.weight": (heads, wide),
        "in_proj_b.weight": (heads, wide),
        "dt_bias": (heads,),
        "A_log": (heads,),
        "norm.weight": (c.linear_value_head_dim,),
        "out_proj.weight": (wide, values),
    }


_SHAPES = {
    "DeepSeek-V3.2": _deepseek_v32,
    "DeepSeek V4": _deepseek_v4,
    "Gemma 4": _gemma4,
    "Kimi Linear": _kimi_linear,
    "Qwen3.5": _qwen35,
}


def spread(name: str, weight: Tensor) -> Tensor:
    """Random numbers for a weight of this name and shape, large enough to matter, and around one for a norm's."""
    size = weight.size(-1) ** -0.5 if weight.dim() > 1 else 0.3
    return size * torch.randn(weight.shape, generator=torch.Generator().manual_seed(zlib.crc32(name.encode()))) + (
        "norm" in name and weight.dim() == 1 and not name.endswith("bias")
    )


def calls(model: str, *, tokens: int = 12) -> list[tuple[Any, ...]]:
    """Return what the page's function of a model is given, for each kind of its layers.

    That is random words, weights by checkpoints' names, the model's config, the number of the layer, and for Gemma 4 a
    dict of what layers keep for others.
    """
    config = SimpleNamespace(**CONFIGS[model])
    generator = torch.Generator().manual_seed(0)
    given = []
    for layer in range(len(CONFIGS[model].get("layer_types", "1"))):
        shapes = _SHAPES[model](config, layer)
        weights = {name: spread(name, torch.empty(shape)) for name, shape in shapes.items()}
        x = torch.randn(1, tokens, config.hidden_size, generator=generator)
        given.append((x, weights, config, layer) + (({},) if model == "Gemma 4" else ()))
    return given


def effects(functions: Mapping[str, Callable[..., Tensor]]) -> dict[Slip, float]:
    """Return how far each slip moves its model's output, as a share of its size, in the layer where it moves most."""
    return models.effects(functions, SLIPS, calls)


def leaking(functions: Mapping[str, Callable[..., Tensor]]) -> list[Slip]:
    """Return the slips by which, in some layer, another last word moves an earlier output."""
    found = []
    for slip in SLIPS:
        function = models.slipped(functions[slip.model], slip)
        for x, *given in calls(slip.model):
            other = torch.cat([x[:, :-1], -x[:, -1:]], dim=1)
            if not torch.allclose(function(x, *given)[:, :-1], function(other, *given)[:, :-1], atol=1e-5):
                found.append(slip)
                break
    return found
