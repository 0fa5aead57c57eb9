from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from unmasked import attend, masks, tiles
from unmasked.gradients import attention_backward

from ..refusals import refused

BLIND = (torch.rand(21, 37, generator=torch.Generator().manual_seed(3)) < 0.5) & (torch.arange(21) != 4)[:, None]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"is_causal": True},
    {"scale": 0.7},
    {"allowed": BLIND},
    {"allowed": BLIND, "is_causal": True, "scale": 0.7},
]


def inputs(kv_heads: int = 6, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradient of a context, query, key and value: all sizes differ."""
    query = torch.randn(2, 6, 21, 5, dtype=dtype, requires_grad=True)
    key = torch.randn(2, kv_heads, 37, 5, dtype=dtype, requires_grad=True)
    value = torch.randn(2, kv_heads, 37, 4, dtype=dtype, requires_grad=True)
    return torch.randn(2, 6, 21, 4, dtype=dtype), query, key, value


def by_autograd(grad_context: Tensor, *qkv: Tensor, **options: Any) -> tuple[Tensor, ...]:
    context = attend(*qkv, implementation="eager", **options).context
    return torch.autograd.grad(context, qkv, grad_context)


assert_close = partial(torch.testing.assert_close, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("kv_heads", [6, 2, 1])
@pytest.mark.parametrize("options", OPTIONS)
def test_they_are_autograds(kv_heads: int, options: dict[str, Any]) -> None:
    given = inputs(kv_heads)
    assert_close(attention_backward(*given, **options), by_autograd(*given, **options))


@pytest.mark.parametrize("options", OPTIONS)
def test_from_what_the_forward_pass_saved_they_are_the_same(options: dict[str, Any]) -> None:
    given = inputs(kv_heads=2)
    saved = tiles.tiled_attention(*given[1:], **options)
    assert_close(attention_backward(*given, **options, saved=saved), by_autograd(*given, **options))


def test_parts_of_the_keys_have_their_own_gradients_and_add_up_to_the_querys() -> None:
    grad_context, query, key, value = given = inputs()
    saved = tiles.tiled_attention(query, key, value, is_causal=True)
    causal = masks.causal(21, 37)
    parts = [slice(0, 7), slice(7, 23), slice(23, 37)]
    each = [
        attention_backward(
            grad_context, query, key[..., part, :], value[..., part, :], allowed=causal[:, part], saved=saved
        )
        for part in parts
    ]
    with pytest.raises(ValueError, match="is_causal would align the last query with the last of these; pass allowed="):
        attention_backward(grad_context, query, key[..., :7, :], value[..., :7, :], is_causal=True, saved=saved)
    expected = by_autograd(*given, is_causal=True)
    d_query, d_key, d_value = zip(*each, strict=True)
    assert_close((sum(d_query), torch.cat(d_key, dim=-2), torch.cat(d_value, dim=-2)), expected)


class ByHand(torch.autograd.Function):
    """The fused forward pass, with the backward pass of this package in the place of the kernel's."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        ctx.save_for_backward(query, key, value)
        return attend(query, key, value, is_causal=True, scale=0.7).context

    @staticmethod
    def backward(ctx: Any, grad_context: Tensor) -> Any:  # type: ignore[override]
        return tuple(attention_backward(grad_context, *ctx.saved_tensors, is_causal=True, scale=0.7))


def test_finite_differences_agree_also_on_second_derivatives() -> None:
    shapes = [(2, 3, 4), (2, 5, 4), (2, 5, 3)]
    given = tuple(torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes)
    assert torch.autograd.gradcheck(ByHand.apply, given)
    assert torch.autograd.gradgradcheck(ByHand.apply, given)


def test_a_hand_computed_case() -> None:
    # Two equal keys: weights of a half. The values are 1 and 3, the context is 2, the gradient of the context is 1.
    # The weights' gradients are 1 and 3; less their mean, times a half, the scores': -0.5 and 0.5.
    query, key = torch.tensor([[2.0]]), torch.tensor([[1.0], [1.0]])
    value, one = torch.tensor([[1.0], [3.0]]), torch.tensor([[1.0]])
    gradients = attention_backward(one, query, key, value, scale=10.0)
    assert gradients.value.tolist() == [[0.5], [0.5]]
    assert gradients.query.tolist() == [[0.0]]  # 10 * (-0.5 * 1 + 0.5 * 1)
    assert gradients.key.tolist() == [[-10.0], [10.0]]  # 10 * (-0.5 * 2), 10 * (0.5 * 2)


def test_what_is_hidden_gets_no_gradient_at_all() -> None:
    grad_context, query, key, value = inputs()
    only_first = torch.zeros_like(grad_context)
    only_first[..., 0, :] = grad_context[..., 0, :]  # the first query sees the keys up to 37 - 21
    d_query, d_key, d_value = attention_backward(only_first, query, key, value, is_causal=True)
    assert not d_query[..., 1:, :].any()
    assert d_key[..., :17, :].all()
    assert not d_key[..., 17:, :].any()
    assert not d_value[..., 17:, :].any()
    blind = attention_backward(grad_context, query, key, value, allowed=BLIND).query
    assert not blind[..., 4, :].any()
    assert blind.isfinite().all()


def test_a_batch_that_shares_its_keys_gets_the_sum_of_their_gradients() -> None:
    grad_context, query, key, value = inputs()
    key, value = key[:1].detach(), value[:1].detach()
    alone = [attention_backward(grad_context[b : b + 1], query[b : b + 1], key, value) for b in range(2)]
    together = attention_backward(grad_context, query, key, value)
    torch.testing.assert_close(together.key, alone[0].key + alone[1].key)
    torch.testing.assert_close(together.value, alone[0].value + alone[1].value)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bits_are_computed_in_float32_and_come_back_in_their_own(dtype: torch.dtype) -> None:
    given = [x.detach() for x in inputs(kv_heads=2, dtype=dtype)]
    for mine, exact in zip(attention_backward(*given), attention_backward(*(x.double() for x in given)), strict=True):
        assert mine.dtype == dtype
        torch.testing.assert_close(mine, exact.to(dtype), atol=1e-5, rtol=2 * torch.finfo(dtype).eps)


def test_one_sequence_without_heads() -> None:
    query, key, value = (
        torch.randn(n, d, dtype=torch.float64, requires_grad=True) for n, d in ((3, 4), (5, 4), (5, 2))
    )
    grad_context = torch.randn(3, 2, dtype=torch.float64)
    assert_close(attention_backward(grad_context, query, key, value), by_autograd(grad_context, query, key, value))


GRADIENT, Q, K = torch.zeros(2, 6, 21, 4), torch.zeros(2, 6, 21, 5), torch.zeros(2, 6, 37, 5)
test_a_gradient_of_another_shape_is_refused = refused(
    {
        ValueError: {
            "grad_context has shape (2, 6, 21, 3); it must have the context's, (2, 6, 21, 4)": lambda: (
                attention_backward(GRADIENT[..., :3], Q, K, K[..., :4])
            ),
            "query has 5 features and key 4; a dot product needs as many of both": lambda: attention_backward(
                GRADIENT, Q, K[..., :4], K[..., :4]
            ),
        }
    }
)
