"""A sweep of wrong calls: of every public function each argument in turn is replaced by what it cannot be.

None may pass in silence, and each error names the argument. The functions come from the package itself, and so do
classes with their methods: one that is new fails here until `RIGHT` has a right call of it.
"""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from unmasked import CausalSelfAttention, KVCache, LatentAttention, MultiheadAttention, masks, tiles
from unmasked.latent import LatentCache
from unmasked.positions import Rotary
from unmasked_lessons import embeddings

MODULES = ["functional", "masks", "heads", "positions", "tiles", "gradients", "kernels", "embeddings", "device"]
MODULES += ["watching", "parallel", "cache", "causal", "latent", "multihead"]

q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 6, 8), torch.randn(2, 2, 6, 8)
x, stacked, ids = torch.randn(3, 5, 8), torch.randn(2, 8, 4), torch.tensor([0, 0, 1])
allowed = torch.ones(5, 6, dtype=torch.bool)
layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
QKV: dict[str, Any] = {"query": q, "key": k, "value": v}
MASKS: dict[str, Any] = {"allowed": allowed, "bias": torch.zeros(5, 6), "sinks": torch.zeros(4)}
MADE: dict[str, Any] = {"device": "cpu", "dtype": torch.float32}
row, square, places = torch.randn(2, 2, 1, 4), torch.zeros(5, 5, dtype=torch.bool), torch.arange(5)
COUNTS: dict[str, Any] = {"num_heads": 2, "queries": 3, "keys": 4, "device": "cpu"}

# A right call of each, with every argument that a wrong one is tried for.
RIGHT: dict[str, dict[str, Any]] = {
    "functional.attend": QKV | MASKS | {"is_causal": False, "scale": 0.5, "softcap": 2.0, "dropout_p": 0.0}
    | {"need_weights": True, "implementation": "eager"},
    "functional.self_attention": {"x": x, "is_causal": True, "scale": 0.5, "softcap": 2.0, "dropout_p": 0.0}
    | {"allowed": allowed[:, :5], "bias": torch.zeros(5, 5), "sinks": torch.zeros(3), "need_weights": True}
    | {"implementation": "eager"},
    "functional.attention_scores": {"query": x, "key": x, "scale": 0.5, "softcap": 2.0},
    "functional.attention_weights": MASKS | {"scores": torch.zeros(2, 4, 5, 6), "is_causal": True},
    "functional.cosine_attention": {"x": x},
    "functional.cosine_weights": {"x": x},
    "masks.additive_from_allowed": {"allowed": allowed, "dtype": torch.float32},
    "masks.allowed_from_additive": {"additive": torch.zeros(3, 4)},
    "masks.allowed_from_blocked": {"blocked": torch.ones(2, 3, 4).bool(), "num_heads": 2},
    "masks.blocked_from_allowed": {"allowed": torch.ones(1, 2, 3, 4).bool(), "num_heads": 2},
    "masks.causal": {"queries": 3, "keys": 4, "device": "cpu"},
    "masks.cu_seqlens": {"ids": ids},
    "masks.documents": {"ids": ids},
    "masks.ids_from_cu_seqlens": {"cu_seqlens": ids.cumsum(0)},
    "masks.mask_mod": {"allowed": allowed},
    "masks.padding": {"lengths": ids, "keys": 3, "side": "left"},
    "masks.positions_of": {"allowed": allowed},
    "masks.sliding_window": {"queries": 3, "keys": 4, "window": 2, "device": "cpu"},
    "masks.tree": {"parents": ids - 1, "keys": 5},
    "masks.zero_hidden": {"x": x, "allowed": allowed[:, :5]},
    "heads.fused_qkv": {"x": x, "weight": torch.randn(24, 8), "bias": torch.zeros(24), "num_heads": 2},
    "heads.merge_heads": {"x": x},
    "heads.split_heads": {"x": x, "num_heads": 2},
    **{f"heads.project_{how}": {"x": x, "stacked": stacked} for how in ("loop", "bmm", "einsum", "linear")},
    "positions.alibi": COUNTS,
    "positions.alibi_slopes": {"num_heads": 2, "device": "cpu"},
    "positions.apply_rotary": {"x": x, "cos": torch.ones(5, 4), "sin": torch.zeros(5, 4), "pairing": "halves"},
    "positions.convert_pairing": {"weight": torch.randn(16, 8), "num_heads": 2, "to": "halves", "rotary_dim": 4},
    "positions.sinusoids": {"positions": ids, "dim": 4, "base": 10.0, "pairing": "halves"},
    "positions.Rotary": {"head_dim": 8, "base": 10.0, "pairing": "halves", "rotary_dim": 4, "factor": 1.0},
    "tiles.tiled_attention": QKV | {"allowed": allowed, "is_causal": True, "scale": 0.5, "tile": 2},
    "tiles.merge": {"parts": [tiles.tiled_attention(q, k, v)]},
    "gradients.attention_backward": QKV | {"grad_context": q, "allowed": allowed, "is_causal": True, "scale": 0.5}
    | {"saved": tuple(tiles.tiled_attention(q, k, v, allowed=allowed, is_causal=True, scale=0.5))},
    "kernels.sdpa_backends": {"query": q, "key": q, "value": q, "dropout_p": 0.0, "is_causal": False}
    | {"enable_gqa": False, "attn_mask": torch.zeros(5, 5)},
    "kernels.takes_fast_path": {"layer": layer, "src": x},
    "kernels.kernels_of": {"f": lambda: None},
    "embeddings.read_glove": {"path": "nowhere.txt", "words": ["a"], "dim": 2, "member": "a", "dtype": torch.float32},
    "embeddings.common_vectors": {},
    "embeddings.ship_vectors": {},
    "device.best_device": {"name": "cpu"},
    "cache.KVCache": {"batch": 2, "num_kv_heads": 2, "max_tokens": 8, "head_dim": 4, "window": 3} | MADE,
    "cache.KVCache.append": {"key": row, "value": row},
    "cache.KVCache.peek": {"key": row, "value": row},
    "cache.KVCache.crop": {"length": 0},
    "cache.KVCache.reorder": {"order": ids[:2]},
    "cache.KVCache.bytes_per_token": {"num_kv_heads": 2, "head_dim": 4, "num_layers": 3, "dtype": torch.float32},
    "causal.CausalSelfAttention": {"d_in": 8, "d_out": 8, "num_heads": 4, "num_kv_heads": 2, "context_length": 5}
    | {"dropout": 0.0, "rotary": lambda x, positions: x, "scale": 0.5, "softcap": 2.0, "sinks": True}
    | {"qkv_bias": False, "out_bias": False} | MADE,
    "causal.CausalSelfAttention.forward": {"x": x, "allowed": square, "positions": places},
    "causal.CausalSelfAttention.weights": {"x": x, "allowed": square, "positions": places},
    "causal.CausalSelfAttention.cache": {"batch": 2, "max_tokens": 8, "window": 3},
    "latent.LatentCache": {"batch": 2, "max_tokens": 8, "width": 3} | MADE,
    "latent.LatentCache.append": {"new": torch.randn(2, 1, 3)},
    "latent.LatentAttention": {"d_in": 8, "d_out": 8, "num_heads": 4, "latent_dim": 5, "head_dim": 2, "rotary_dim": 2}
    | {"rotary": lambda x, positions: x, "normalize": True, "scale": 0.5} | MADE,
    "latent.LatentAttention.forward": {"x": x, "positions": places, "form": "expanded"},
    "latent.LatentAttention.cache": {"batch": 2, "max_tokens": 8},
    "latent.LatentAttention.bytes_per_token": {"latent_dim": 5, "rotary_dim": 2, "num_layers": 3}
    | {"dtype": torch.float32},
    "multihead.MultiheadAttention": {"embed_dim": 8, "num_heads": 2, "dropout": 0.0, "bias": True, "kdim": 8, "vdim": 8}
    | {"add_bias_kv": False, "add_zero_attn": False, "batch_first": True} | MADE,
    "multihead.MultiheadAttention.forward": {"query": x, "key": x, "value": x, "attn_mask": square}
    | {"key_padding_mask": torch.zeros(3, 5).bool(), "need_weights": True, "average_attn_weights": True}
    | {"is_causal": False},
    "positions.Rotary.__call__": {"x": x, "positions": places},
    "positions.Rotary.from_config": {"head_dim": 8, "rope": {"rope_theta": 1e4}, "pairing": "halves"},
    "embeddings.Embeddings": {"words": ("a",), "vectors": torch.ones(1, 3)},
    "embeddings.Embeddings.lookup": {"words": ["ship"]},
    "embeddings.Embeddings.nearest": {"vector": torch.ones(50), "count": 2},
    "watching.ablate": {"model": nn.MultiheadAttention(8, 2), "heads": {"": [0]}},
    "watching.rollout": {"calls": [], "residual": True},
    "watching.watch": {"model": nn.MultiheadAttention(8, 2), "keep": "inputs", "only": lambda call: True},
    "parallel.head_bytes": {"batch": 1, "tokens": 4, "d_in": 8, "d_out": 8, "dtype": torch.float32, "backward": True},
    "parallel.positions_of_rank": {"tokens": 8, "rank": 0, "ranks": 2, "layout": "zigzag", "device": "cpu"},
    "parallel.ring_bytes": {"batch": 1, "kv_heads": 2, "tokens": 8, "head_dim": 4, "ranks": 2, "dtype": torch.float32}
    | {"backward": True},
}  # fmt: skip
# What runs in a group of ranks, or starts one: tests/unmasked/test_parallel.py and test_ranks.py refuse for them.
ELSEWHERE = {"parallel.ring_attention", "parallel.launch", "parallel.count_bytes", "masks.combine"}
ELSEWHERE |= {"parallel.HeadParallel", "parallel.HeadParallel.forward"}


# Whose methods are called: one is made for each call, since a wrong call may not be the last.
OBJECTS: dict[str, Callable[[], Any]] = {
    "cache.KVCache": lambda: KVCache(2, 2, 8, 4),
    "causal.CausalSelfAttention": lambda: CausalSelfAttention(8, 8, 4, rotary=lambda x, positions: x),
    "latent.LatentCache": lambda: LatentCache(2, 8, 3),
    "latent.LatentAttention": lambda: LatentAttention(
        8, 8, 4, latent_dim=5, rotary=lambda x, positions: x, rotary_dim=2
    ),
    "multihead.MultiheadAttention": lambda: MultiheadAttention(8, 2, batch_first=True),
    "positions.Rotary": lambda: Rotary(8),
    "embeddings.Embeddings": embeddings.ship_vectors,
}
# What only holds what is returned or raised, or is made by the library alone.
HELD = {
    "functional.Attention",
    "tiles.Part",
    "gradients.Gradients",
    "embeddings.UnknownWordError",
    "watching.AttentionCall",
}
HELD |= {"watching.AttentionCalls", "parallel.Traffic", "kernels.FastPath", "kernels.Kernel", "kernels.Kernels"}
HELD |= {"kernels.Backend", "kernels.Backends"}


def named(name: str) -> Any:
    package = "unmasked_lessons" if name.partition(".")[0] == "embeddings" else "unmasked"
    return resolve_name(f"{package}.{name}")


def functions() -> Iterator[str]:
    for module in MODULES:
        for name in named(module).__all__:
            thing = named(f"{module}.{name}")
            if inspect.isroutine(thing):
                yield f"{module}.{name}"
            elif inspect.isclass(thing) and f"{module}.{name}" not in HELD:
                yield f"{module}.{name}"
                for method, each in vars(thing).items():
                    takes = isinstance(each, staticmethod | classmethod) or inspect.isfunction(each)
                    public = not method.startswith("_") or method == "__call__"
                    if takes and public and [*inspect.signature(getattr(thing, method)).parameters][1:]:
                        yield f"{module}.{name}.{method}"


def wrong_for(right: object) -> dict[str, object]:
    """What can stand nowhere where this stands, by a word for each."""
    odd: dict[str, object] = {"an object": object(), "an array": np.zeros(2), "bytes": b"no"}
    if isinstance(right, Tensor):
        kinds: dict[str, object] = {"complex": right + 0j, "sparse": right.float().to_sparse().to(right.dtype)}
        other = right.float() if right.dtype == torch.bool else right > 0
        kinds |= {"another dtype": other} if right.dtype != torch.int64 else {"another dtype": right.float()}
        return odd | kinds | {"a list": right.tolist(), "a string": "no", "a number": 1.0}
    if isinstance(right, bool):
        return odd | {"a string": "no", "a number": 1, "None": None, "a tensor": torch.tensor(True)}
    if isinstance(right, int):
        return odd | {
            "negative": -1,
            "a fraction": 2.5,
            "a string": "2",
            "a list": [2],
            "a flag": True,
            "NaN": torch.nan,
        }
    if isinstance(right, float):
        return odd | {"a string": "1", "NaN": torch.nan, "infinite": torch.inf, "a flag": True, "a list": [1.0]}
    return odd | {"a number": 1.5, "a tensor": x} | ({"a string": "no"} if not callable(right) else {})


# What the drop-in takes as PyTorch does, or refuses with its exceptions.
OF_PYTORCH = {(f"{name}_mask", word) for name in ("attn", "key_padding") for word in ("another dtype", "complex")}
OF_PYTORCH |= {(name, "a number") for name in ("bias", "add_bias_kv", "add_zero_attn", "batch_first", "is_causal")}
OF_PYTORCH |= {("need_weights", "a number"), ("average_attn_weights", "a number")}


def cases(name: str) -> Iterator[tuple[str, str, object]]:
    """The wrong arguments that a function is tried with: which, by what word, and what."""
    for argument, right in RIGHT[name].items():
        for word, wrong in wrong_for(right).items():
            if (
                (name, argument) not in {("embeddings.read_glove", "path"), ("kernels.takes_fast_path", "src")}
                and not (name == "kernels.sdpa_backends" and isinstance(wrong, Tensor))  # it says what PyTorch would do
                and (name, argument, word) != ("embeddings.read_glove", "member", "a string")
                and (argument, word) != ("words", "a string")
                and not (name.startswith("multihead") and (argument, word) in OF_PYTORCH)
                and not (name in ("heads.split_heads", "heads.merge_heads") and word in ("complex", "another dtype"))
            ):
                yield argument, word, wrong


def call(name: str, arguments: dict[str, Any]) -> object:
    thing: Callable[..., object] = named(name)
    owner, _, method = name.rpartition(".")
    if owner in OBJECTS:
        thing = getattr(OBJECTS[owner](), method)
    result = thing(**arguments)
    return result.__enter__() if isinstance(result, AbstractContextManager) else result


def refusal(name: str, argument: str, wrong: object) -> Exception | None:
    """The error of a call with a wrong argument; any other than of its type or value is raised with the argument."""
    try:
        call(name, RIGHT[name] | {argument: wrong})
    except (TypeError, ValueError) as error:
        return error
    except Exception as error:
        error.add_note(f"{name}({argument}={wrong!r})")
        raise
    return None


@pytest.mark.usefixtures("unhooked")
@pytest.mark.parametrize("name", RIGHT)
def test_no_wrong_argument_passes_in_silence_and_its_error_names_it(name: str) -> None:
    faults = []
    for argument, word, wrong in cases(name):
        error = refusal(name, argument, wrong)
        where = traceback.extract_tb(error.__traceback__)[-1].filename if error else ""
        if not re.search(rf"\b{argument}\b", str(error)) or "unmasked" not in where:
            faults.append(f"{name}({argument}={word}): {error!r} of {where}")
    assert faults == []


def misshapen(right: Tensor) -> list[Tensor]:
    doubled = (torch.cat([right] * 2, axis) for axis in range(right.dim()))
    return [right[0], right[None], right.flatten(), right.to("meta"), *doubled]


@pytest.mark.usefixtures("unhooked")
@pytest.mark.parametrize("name", [name for name in RIGHT if not name.startswith(("kernels.", "multihead."))])
def test_a_tensor_that_fits_nowhere_is_refused_by_name(name: str) -> None:
    """Shapes that the kernels and the drop-in refuse are refused with PyTorch's exceptions."""
    tensors = {each: it for each, it in RIGHT[name].items() if isinstance(it, Tensor) and it.dim()}
    names = "|".join(each for each, it in RIGHT[name].items() if isinstance(it, Tensor | tuple | int))
    refused = [refusal(name, each, wrong) for each, right in tensors.items() for wrong in misshapen(right)]
    messages = [str(error) for error in refused if error]  # some are taken: a batch more, other lengths
    assert [message for message in messages if not re.search(rf"\b({names})\b", message)] == []


def test_every_function_is_swept() -> None:
    assert {*functions()} - ELSEWHERE <= RIGHT.keys()
    swept = {name for name in RIGHT if name not in ("kernels.takes_fast_path", "kernels.kernels_of")}
    for name in swept:
        taken = inspect.signature(named(name)).parameters
        given = RIGHT[name].keys() | {"self", "cache"}
        assert not [each for each in taken if each not in given] or name in (
            "masks.combine", "positions.Rotary", "watching.rollout"
        ), name  # fmt: skip


def test_masks_that_do_not_fit_one_another_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^allowed have shapes \(3, 3\) on cpu, \(2, 4\) on cpu; they must broadcast"):
        masks.combine(masks.causal(3), masks.causal(2, 4))
    assert embeddings.ship_vectors()
