"""Sinks and the soft-cap against the code of the models that have them, FlexAttention, and what is computed by hand."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention
from transformers.models.gemma2 import modeling_gemma2
from transformers.models.gpt_oss import modeling_gpt_oss

from unmasked import attend, attention_weights, masks, self_attention
from unmasked.kernels import kernels_of

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


MASKS: dict[str, dict[str, Any]] = {
    "none": {},
    "causal": {"is_causal": True},
    "a window": {"allowed": CAUSAL_WINDOW},
    "of keys": {"allowed": torch.tensor([False, True, True, False, True, True, False])},
    "of texts, and causal": {"allowed": masks.padding(torch.tensor([7, 4]), side="left"), "is_causal": True},
    "a bias": {"bias": torch.linspace(-2, 2, TOKENS).expand(TOKENS, TOKENS), "is_causal": True},
    "a negative scale": {"scale": -0.4, "is_causal": True},
    "a scale of zero": {"scale": 0.0},
}


@pytest.mark.parametrize("queries", [TOKENS, 3, 1])
@pytest.mark.parametrize("mask", MASKS)
def test_fused_sinks_are_those_of_the_eager_formula_with_their_gradients(mask: str, queries: int) -> None:
    query, key, value = inputs(torch.float64)
    options = {
        name: x[..., -queries:, :] if isinstance(x, Tensor) and x.shape[-2:] == (TOKENS, TOKENS) else x
        for name, x in MASKS[mask].items()
    }
    of_each = []
    for implementation in ("eager", "fused"):
        given = [x.clone().requires_grad_() for x in (query[..., -queries:, :], key, value[..., :3], SINKS)]
        context = attend(*given[:3], sinks=given[3], implementation=implementation, **options).context
        weighted = (context * torch.linspace(-1, 1, context.numel()).view_as(context)).sum()
        of_each.append([context, *torch.autograd.grad(weighted, given)])
    for ours, theirs in zip(*of_each, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_sink_of_minus_infinity_takes_nothing_fused_either(dtype: torch.dtype) -> None:
    query, key, value = inputs(dtype)
    without = attend(query, key, value, is_causal=True).context
    sunk = attend(query, key, value, is_causal=True, sinks=torch.full((HEADS,), -torch.inf)).context
    torch.testing.assert_close(sunk, without)


def test_sinks_run_on_the_fused_kernel_beside_grouped_heads_and_a_window() -> None:
    for options in ({"is_causal": True}, {"allowed": CAUSAL_WINDOW}):
        assert kernels_of(attend, *inputs(), sinks=SINKS, **options).names == ("flash",)


def test_where_no_fused_kernel_may_run_sinks_are_the_eager_formula_and_have_a_second_derivative() -> None:
    query, key, value = inputs()
    query.requires_grad_()
    with sdpa_kernel(SDPBackend.MATH):
        context = attend(query, key, value, sinks=SINKS).context
    assert torch.equal(context, attend(query, key, value, sinks=SINKS, implementation="eager").context)
    (first,) = torch.autograd.grad(context.square().sum(), query, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), query)
    assert second.abs().max() > 0


def test_one_number_is_the_sink_of_all_heads_and_of_a_sequence_without_heads() -> None:
    query, key, value = inputs()
    of_all = attend(query, key, value, sinks=torch.tensor(0.5)).context
    torch.testing.assert_close(of_all, attend(query, key, value, sinks=torch.full((HEADS,), 0.5)).context)
    x = query[0, 0]
    eager = attend(x, x, x, sinks=torch.tensor(0.5), implementation="eager").context
    torch.testing.assert_close(attend(x, x, x, sinks=torch.tensor(0.5)).context, eager)


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
            "sinks has shape (1,); it must be a number, where there is no axis of heads": (
                lambda: self_attention(torch.ones(3, 4), sinks=torch.ones(1)),
                lambda: attention_weights(torch.ones(3, 4), sinks=torch.ones(1)),
            ),
        },
    }
)
