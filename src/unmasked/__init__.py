"""Attention in PyTorch, unmasked: the compact library behind the pages."""

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

__all__ = [
    "Attention",
    "CausalSelfAttention",
    "MultiheadAttention",
    "attention_scores",
    "attention_weights",
    "bypass_",
    "bypassed",
    "cosine_attention",
    "cosine_weights",
    "device",
    "diagnose",
    "embeddings",
    "heads",
    "is_bypassed",
    "layouts",
    "masks",
    "plot",
    "probes",
    "scaled_dot_product_attention",
    "self_attention",
    "show",
    "trace",
]
