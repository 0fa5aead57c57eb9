"""Attention in PyTorch, unmasked: the compact library behind the pages."""

from typing import TYPE_CHECKING

from unmasked import (  # noqa: F401 - so that `unmasked.masks` is there for who imports the package alone
    _without_numpy,  # before all that imports PyTorch
    cache,
    device,
    embeddings,
    gradients,
    heads,
    kernels,
    latent,
    layouts,
    masks,
    measure,
    parallel,
    plot,
    positions,
    probes,
    tiles,
    trace,
    viewer,
    watching,
)
from unmasked._renamed import renamed
from unmasked.bypass import bypass_, bypassed, is_bypassed
from unmasked.cache import KVCache
from unmasked.causal import CausalSelfAttention
from unmasked.doctor import diagnose, diagnose_model
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

if not TYPE_CHECKING:
    __getattr__ = renamed(__name__, {"scaled_dot_product_attention": "unmasked.functional:attend"})
