"""Small models of transformers, and what its releases call otherwise."""

import importlib
import inspect
from typing import Any

import torch

WIDTH, HEADS, LAYERS, VOCABULARY = 24, 6, 2, 50
SIZES = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 0}
GPT2 = SIZES | {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": 32}
OTHERS = SIZES | {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
OTHERS |= {"intermediate_size": 20, "max_position_embeddings": 32, "pad_token_id": 0}


def tiny(name: str, **options: Any) -> Any:
    """A small model in evaluation, with weights that are drawn: GPT2LMHeadModel, LlamaModel."""
    torch.manual_seed(0)
    cls = getattr(importlib.import_module("transformers"), name)  # which takes seconds
    return cls(cls.config_class(**(GPT2 if name.startswith("GPT2") else OTHERS) | options)).eval()


def with_cache(model: Any) -> dict[str, Any]:
    """The argument by which a model is given a new cache: `past_key_values` before 5.24."""
    cache = importlib.import_module("transformers").DynamicCache(config=model.config)
    names = inspect.signature(model.forward).parameters
    return {"cache" if "cache" in names else "past_key_values": cache}
