"""Sinks and the soft-cap against the code of the models that have them, FlexAttention, and what is computed by hand."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention
from transformers.models.gemma2 import modeling_gemma2
from transformers.models.gpt_oss import modeling_gpt_oss

from unmasked import attend, attention_weights, masks, self_attention

from ..refusals import refused

HEADS, KV_HEADS, TOKENS = 6, 2, 7
SINKS = torch.tensor([-3.0, -1.0, 0.0, 0.5, 1.0, 3.0])
CAUSAL_WINDOW = masks.sliding_window(TOKENS, window=3)


def inputs(dtype: torch.dtype = torch.float32, head_dim: int = 5) -> list[Tensor]:
    return [torch.randn(2, heads, TOKENS, head_dim, dtype=dtype) for heads in (HEADS, KV_HEADS, KV_HEADS)]


def module(**options: object) -> SimpleNamespace:
    return SimpleNamespace(num_key_value_groups=HEADS // KV_HEADS, training=False, head_dim=5, **options)


def test_a_sink_takes_its_share_by_hand() -> None:
    scores = torch.tensor([[1.0, 2.0], [2.0, 4.0]]).log()  # e^score
    weights = attention_weights(scores, sinks=torch.tensor(3.0).log())
    torch.testing.assert_close(weights, torch.tensor([[1 / 6, 2 / 6], [2 / 9, 4 / 9]]))
    hidden = attention_weights(scores, is_causal=True, sinks=torch.tensor(3.0).log())
    torch.testing.assert_close(hidden, torch.tensor([[1 / 4, 0], [2 / 9, 4 / 9]]))


def test_sinks_are_those_of_gpt_oss_with_their_gradients() -> None:
    query, key, value = inputs(torch.float64)
    ours, theirs = (SINKS.double().requires_grad_() for _ in range(2))
    mask = masks.additive_from_allowed(CAUSAL_WINDOW, torch.float64)
    expected, weights = modeling_gpt_oss.eager_attention_forward(
        module(sinks=theirs), query, key, value, mask, scaling=0.3
    )
    actual = attend(query, key, value, allowed=CAUSAL_WINDOW, scale=0.3, sinks=ours, need_weights=True)
    torch.testing.assert_close(actual.context, expected.transpose(1, 2))
    torch.testing.assert_close(actual.weights, weights)
    cotangent = torch.randn_like(actual.context)
    (of_ours,) = torch.autograd.grad(actual.context, ours, cotangent)
    (of_theirs,) = torch.autograd.grad(expected.transpose(1, 2), theirs, cotangent)
    torch.testing.assert_close(of_ours, of_theirs)
    assert of_ours.abs().min() > 1e-3


def test_the_soft_cap_is_that_of_gemma_2_before_the_mask() -> None:
    query, key, value = (3 * x for x in inputs())
    mask = masks.additive_from_allowed(CAUSAL_WINDOW)
    expected, weights = modeling_gemma2.eager_attention_forward(module(), query, key, value, mask, softcap=2.0)
    actual = attend(query, key, value, allowed=CAUSAL_WINDOW, softcap=2.0, need_weights=True)
    torch.testing.assert_close(actual.context, expected.transpose(1, 2))
    torch.testing.assert_close(actual.weights, weights)
    uncapped = attend(query, key, value, allowed=CAUSAL_WINDOW).context
    assert (uncapped - actual.context).abs().max() > 0.1


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_agrees_on_a_window_a_soft_cap_and_sinks() -> None:
    query, key, value = inputs(head_dim=16)

    def capped(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return 1.5 * torch.tanh(score / 1.5)

    blocks = create_block_mask(masks.mask_mod(CAUSAL_WINDOW), None, None, TOKENS, TOKENS, device="cpu")
    plain, aux = flex_attention(
        query, key, value, score_mod=capped, block_mask=blocks, enable_gqa=True, return_aux=AuxRequest(lse=True)
    )
    options = {"allowed": CAUSAL_WINDOW, "softcap": 1.5}
    torch.testing.assert_close(attend(query, key, value, **options).context, plain)
    # the sum that divides a row grows by e^sink: with the logarithm of the sum, that is a sigmoid
    with_sinks = plain * torch.sigmoid(aux.lse - SINKS[:, None])[..., None]
    ours = attend(query, key, value, **options, sinks=SINKS).context
    torch.testing.assert_close(ours, with_sinks)


def sunk(sinks: Tensor, **options: Any) -> Any:
    return partial(attend, *inputs(), sinks=sinks, **options)


test_what_is_no_sink_is_refused = refused(
    {
        TypeError: {"sinks is torch.int32; it joins the scores and must be floating": sunk(torch.ones(6).int())},
        ValueError: {
            f"sinks has shape {shape}; it must be (6,), one for each head, or a number": sunk(torch.ones(shape))
            for shape in [(2,), (1,), (6, 1)]
        }
        | {
            'sinks needs implementation="eager": no fused kernel does it': sunk(SINKS, implementation="fused"),
            "sinks has shape (1,); it must be a number, where there is no axis of heads": (
                lambda: self_attention(torch.ones(3, 4), sinks=torch.ones(1)),
                lambda: attention_weights(torch.ones(3, 4), sinks=torch.ones(1)),
            ),
        },
    }
)
