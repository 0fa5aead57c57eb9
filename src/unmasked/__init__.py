"""Attention in PyTorch, unmasked: the compact library behind the pages."""

from unmasked import (  # noqa: F401 - so that `unmasked.masks` is there for who imports the package alone
    cache,
    device,
    embeddings,
    gradients,
    heads,
    kernels,
    latent,
    layouts,
    masks,
    parallel,
    plot,
    positions,
    probes,
    tiles,
    trace,
    watching,
)
from unmasked.bypass import bypass_, bypassed, is_bypassed
from unmasked.cache import KVCache
from unmasked.causal import CausalSelfAttention
from unmasked.doctor import diagnose, diagnose_model
from unmasked.functional import (
    Attention,
    attention_scores,
    attention_weights,
    cosine_attention,
    cosine_weights,
    scaled_dot_product_attention,
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
    "scaled_dot_product_attention",
    "self_attention",
    "show",
    "watch",
]
