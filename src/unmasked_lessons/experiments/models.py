"""The attention of five published models: their configs, small layers of each, and slips in their lines."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType, SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unmasked.plot.tables import Table, table

ROWS = [row.split(" | ") for row in (
    "A textbook's | h, h, d | none | 1/√d | base 10⁴ | all before | ",
    "Qwen3 8B | 32, 8, 128 | RMS, times w | 1/√128 | base 10⁶ | all before | ",
    "Gemma 3 27B | 32, 16, 128 | RMS, times 1 + w | 1/√168 | near: 10⁴, far: 10⁶, by 8 | 5 of 6: 1,024 | ",
    "gpt-oss 20B | 64, 8, 64 | none | 1.81/√64 | 150,000, YaRN by 32 | 1 of 2: 128 | sinks, biases",
    "DeepSeek-V3 | 128, 128, 192 | of latents | 1.87/√192 | 10⁴, YaRN by 40, 64 turn, interleaved | all before | "
    "latents",
    "Qwen3-Next 80B | 16, 2, 256 | RMS, times 1 + w | 1/√256 | base 10⁷, 64 turn | all before | gates; 1 layer of 4",
)]  # fmt: skip


def published() -> Table:
    """Return a table of the published models' configs."""
    header = ["Model", "Query heads, key heads, features", "Norms of Q and K", "Scale", "Rotary", "Sees", "Also has"]
    return table(header, ROWS)


class Slip(NamedTuple):
    """A line of a model's attention, and a wrong one that is easily written instead."""

    model: str
    right: str
    wrong: str
    within: str = ""  # the function that has the line, if the model's own calls it


SLIPS = [
    Slip("Qwen3", 'query = norm(query, w["q_norm.weight"], eps)', "pass"),
    Slip("Qwen3", "rotary = Rotary.from_config(dim, config.rope_parameters)", "rotary = Rotary(dim)"),
    Slip("Gemma 3", '1 + w["q_norm.weight"]', 'w["q_norm.weight"]'),
    Slip("Gemma 3", "config.query_pre_attn_scalar**-0.5", "dim**-0.5"),
    Slip("Gemma 3", "config.rope_parameters[kind]", 'config.rope_parameters["full_attention"]'),
    Slip("gpt-oss", 'w["sinks"]', "None"),
    Slip("gpt-oss", "near = config", "near = not config"),
    Slip("gpt-oss", "window=window", "window=window + 1"),
    Slip("DeepSeek-V3", '"interleaved" if', '"halves" if'),
    Slip("DeepSeek-V3", "** -0.5 * stretch**2", "** -0.5"),
    Slip("Qwen3-Next", "context * gate.sigmoid()", "context"),
    Slip("Qwen3-Next", "query, gate = both", "gate, query = both"),
]

_YARN = {"rope_type": "yarn", "original_max_position_embeddings": 16, "beta_fast": 32.0, "beta_slow": 1.0}
_SIZES = {"hidden_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-6}
_KINDS = {"sliding_window": 3, "layer_types": ["sliding_attention", "full_attention"]}
CONFIGS: dict[str, dict[str, object]] = {
    "Qwen3": _SIZES | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    "Gemma 3": {
        **_SIZES,
        **_KINDS,
        "query_pre_attn_scalar": 12,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        },
    },
    "gpt-oss": {
        **_SIZES,
        **_KINDS,
        "rope_parameters": _YARN | {"rope_theta": 150_000.0, "factor": 32.0, "truncate": False},
    },
    "DeepSeek-V3": {
        **_SIZES,
        "num_key_value_heads": 4,
        "head_dim": 4,
        "q_lora_rank": 12,
        "kv_lora_rank": 10,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 6,
        "v_head_dim": 5,
        "rope_interleave": True,
        "rope_parameters": _YARN | {"rope_theta": 1e4, "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 1.0},
    },
    "Qwen3-Next": {
        **_SIZES,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
    },
}


def _shapes(config: SimpleNamespace, model: str) -> dict[str, tuple[int, ...]]:
    """The shapes of a layer's weights, by the names that checkpoints give them."""
    wide, heads, dim = config.hidden_size, config.num_attention_heads, config.head_dim
    if model == "DeepSeek-V3":
        plain, turned, value = config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim
        return {
            "q_a_proj.weight": (config.q_lora_rank, wide),
            "q_a_layernorm.weight": (config.q_lora_rank,),
            "q_b_proj.weight": (heads * (plain + turned), config.q_lora_rank),
            "kv_a_proj_with_mqa.weight": (config.kv_lora_rank + turned, wide),
            "kv_a_layernorm.weight": (config.kv_lora_rank,),
            "kv_b_proj.weight": (heads * (plain + value), config.kv_lora_rank),
            "o_proj.weight": (wide, heads * value),
        }
    keys = config.num_key_value_heads * dim
    queries = heads * dim * (2 if model == "Qwen3-Next" else 1)
    shapes: dict[str, tuple[int, ...]] = {
        "q_proj.weight": (queries, wide),
        "k_proj.weight": (keys, wide),
        "v_proj.weight": (keys, wide),
        "o_proj.weight": (wide, heads * dim),
    }
    if model == "gpt-oss":
        return shapes | {"sinks": (heads,)} | {f"{name[0]}_proj.bias": shape[:1] for name, shape in shapes.items()}
    return shapes | {"q_norm.weight": (dim,), "k_norm.weight": (dim,)}


def layer(model: str, *, tokens: int = 12) -> tuple[SimpleNamespace, dict[str, Tensor], Tensor]:
    """A small layer of one of `CONFIGS`: its config, random weights by checkpoints' names, and words for it."""
    config = SimpleNamespace(**CONFIGS[model])
    generator = torch.Generator().manual_seed(0)
    weights = {}
    for name, shape in _shapes(config, model).items():
        spread = 1 / math.sqrt(shape[-1]) if len(shape) > 1 else 0.3
        weights[name] = spread * torch.randn(shape, generator=generator)
        if "norm" in name and model in ("Qwen3", "DeepSeek-V3"):
            weights[name] += 1  # a whole factor; the others' is added to one
    return config, weights, torch.randn(1, tokens, config.hidden_size, generator=generator)


def slipped(function: Callable[..., Tensor], slip: Slip) -> Callable[..., Tensor]:
    """The function with the slip in its line, which must stand once in it, or in the function that the slip names."""
    names = dict(function.__globals__)
    source = inspect.getsource(names[slip.within] if slip.within else function)
    if source.count(slip.right) != 1:
        raise ValueError(f"function has {slip.right!r} {source.count(slip.right)} times; a slip changes one place")
    for name, each in function.__globals__.items():  # so that each calls the changed one
        if isinstance(each, FunctionType) and each.__globals__ is function.__globals__:
            names[name] = FunctionType(each.__code__, names, name, each.__defaults__)
    exec(source.replace(slip.right, slip.wrong), names)
    changed: Callable[..., Tensor] = names[function.__name__]
    return changed


def in_table(moved: Mapping[Slip, float]) -> tuple[list[str], list[tuple[object, ...]], list[str]]:
    """Return the header, the rows and the forms of a table of slips, and of how far each moves its model's output."""
    rows: list[tuple[object, ...]] = [
        (slip.model, f"`{slip.right}`", f"`{slip.wrong}`", share) for slip, share in moved.items()
    ]
    return ["Model", "The line", "Written instead", "The output moves by"], rows, ["{}", "{}", "{:.0%}"]


def calls(model: str) -> list[tuple[Any, ...]]:
    """What the function of a model is given, for each kind of its layers."""
    config, weights, x = layer(model)
    return [(x, weights, config, place) for place in range(2)]


def effects(
    functions: Mapping[str, Callable[..., Tensor]],
    slips: Sequence[Slip] = SLIPS,
    calls: Callable[[str], list[tuple[Any, ...]]] = calls,
) -> dict[Slip, float]:
    """Return how far each slip moves its model's output, as a share of its size, in the layer where it moves most.

    Args:
        functions: The attention of each model.
        slips: What is written instead of some lines.
        calls: Gives what the function of a model is given, for each kind of its layers.
    """
    shares = {}
    for slip in slips:
        function, changes = functions[slip.model], []
        for given in calls(slip.model):
            right, wrong = function(*given), slipped(function, slip)(*given)
            assert wrong.shape == right.shape, slip
            changes.append(((wrong - right).norm() / right.norm()).item())
        shares[slip] = max(changes)
    return shares
