"""Attention in PyTorch, unmasked: the compact library behind the pages."""

from importlib import import_module
from typing import TYPE_CHECKING

from unmasked import device, embeddings, heads, layouts, masks, plot, probes, trace
from unmasked.bypass import bypass_, bypassed, is_bypassed
from unmasked.causal import CausalSelfAttention
from unmasked.doctor import diagnose
from unmasked.functional import (
    Attention,
    attention_scores,
    attention_weights,
    cosine_attention,
    cosine_weights,
    scaled_dot_product_attention,
    self_attention,
)
from unmasked.multihead import MultiheadAttention
from unmasked.viewer import show

if TYPE_CHECKING:  # the names of _LATER
    from unmasked import cache, gradients, kernels, latent, parallel, positions, tiles, watching
    from unmasked.cache import KVCache
    from unmasked.doctor import diagnose_model
    from unmasked.latent import LatentAttention
    from unmasked.watching import ablate, rollout, watch

__all__ = [
    "Attention",
    "CausalSelfAttention",
    "KVCache",
    "LatentAttention",
    "MultiheadAttention",
    "ablate",
    "attention_scores",
    "attention_weights",
    "bypass_",
    "bypassed",
    "cache",
    "cosine_attention",
    "cosine_weights",
    "device",
    "diagnose",
    "diagnose_model",
    "embeddings",
    "gradients",
    "heads",
    "is_bypassed",
    "kernels",
    "latent",
    "layouts",
    "masks",
    "parallel",
    "plot",
    "positions",
    "probes",
    "rollout",
    "scaled_dot_product_attention",
    "self_attention",
    "show",
    "tiles",
    "trace",
    "watch",
    "watching",
]

# A public name, and the module that has it: imported when it is first asked for, so that `import unmasked` stays quick.
_LATER: dict[str, str] = {
    "KVCache": "unmasked.cache",
    "LatentAttention": "unmasked.latent",
    "ablate": "unmasked.watching",
    "cache": "unmasked.cache",
    "diagnose_model": "unmasked.doctor",
    "gradients": "unmasked.gradients",
    "kernels": "unmasked.kernels",
    "latent": "unmasked.latent",
    "parallel": "unmasked.parallel",
    "positions": "unmasked.positions",
    "rollout": "unmasked.watching",
    "tiles": "unmasked.tiles",
    "watch": "unmasked.watching",
    "watching": "unmasked.watching",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _LATER:
            raise AttributeError(f"module 'unmasked' has no attribute {name!r}")
        module = import_module(_LATER[name])
        return module if module.__name__ == f"unmasked.{name}" else getattr(module, name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *_LATER})
