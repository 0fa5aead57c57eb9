"""Attention in PyTorch, unmasked: the compact library behind the pages."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from unmasked import (  # noqa: F401 - so that `unmasked.masks` is there for who imports the package alone
    _without_numpy,  # before all that imports PyTorch
    cache,
    device,
    gradients,
    heads,
    kernels,
    latent,
    layouts,
    masks,
    parallel,
    plot,
    positions,
    tiles,
    trace,
    watching,
)
from unmasked.bypass import bypass_, bypassed, is_bypassed
from unmasked.cache import KVCache
from unmasked.causal import CausalSelfAttention
from unmasked.functional import (
    Attention,
    attend,
    attention_scores,
    attention_weights,
    cosine_attention,
    cosine_weights,
    self_attention,
)
from unmasked.latent import LatentAttention
from unmasked.multihead import MultiheadAttention
from unmasked.plot import show
from unmasked.watching import ablate, rollout, watch

if TYPE_CHECKING:
    from unmasked_doctor import diagnose, diagnose_model

__all__ = [
    "Attention",
    "CausalSelfAttention",
    "KVCache",
    "LatentAttention",
    "MultiheadAttention",
    "ablate",
    "attend",
    "attention_scores",
    "attention_weights",
    "bypass_",
    "bypassed",
    "cosine_attention",
    "cosine_weights",
    "diagnose",
    "diagnose_model",
    "is_bypassed",
    "rollout",
    "self_attention",
    "show",
    "watch",
]


def __getattr__(name: str) -> Any:
    """Import the doctor when it is first asked for: no other part of the library needs it."""
    if name in ("diagnose", "diagnose_model"):
        return getattr(import_module("unmasked_doctor"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
