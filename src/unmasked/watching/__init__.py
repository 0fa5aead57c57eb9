"""Watch a model attend: every call of attention with its weights, heads switched off, and weights rolled out.

`torch.nn.functional.scaled_dot_product_attention` returns no table of weights, so a model that runs it has none to
return. `watch` keeps the inputs of each call, and computes the weights when they are asked for.
"""

from unmasked.watching.calls import AttentionCall, AttentionCalls
from unmasked.watching.models import ablate, rollout, watch

__all__ = ["AttentionCall", "AttentionCalls", "ablate", "rollout", "watch"]
