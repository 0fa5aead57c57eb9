import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from unmasked import attend, masks, tiles

from ..refusals import refused
from .helpers import Operations

TILES = (1, 7, 16, 64)
ALL = ("queries", "keys")
MASKS = [(), (1,), ("keys",), ("queries", 1), ALL, (2, 1, *ALL), (2, 6, 1, "keys")]


def inputs(queries: int = 21, keys: int = 37, kv_heads: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value in float64, with scores that grow, so that the maximum moves from tile to tile."""
    query = torch.randn(2, 6, queries, 5, dtype=torch.float64)
    key = torch.randn(2, kv_heads, keys, 5, dtype=torch.float64) * torch.linspace(0.1, 6, keys)[:, None].double()
    return query, key, torch.randn(2, kv_heads, keys, 4, dtype=torch.float64)


def whole(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """The same, from the whole matrix, by PyTorch's own softmax and logsumexp; a blind row is 0 and -inf."""
    key, value = (x.repeat_interleave(query.size(1) // x.size(1), dim=1) for x in (key, value))
    scores = (query @ key.mT * scale).masked_fill(~allowed, -math.inf)
    return scores.softmax(-1).nan_to_num(0.0) @ value, scores.logsumexp(-1)


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("scale", [None, 0.9])
def test_every_tile_gives_the_whole_softmax_and_its_logsumexp(tile: int, scale: float | None) -> None:
    query, key, value = inputs()
    allowed = torch.rand(2, 1, 21, 37) < 0.7
    context, logsumexp = tiles.tiled_attention(
        query, key, value, allowed=allowed, is_causal=True, scale=scale, tile=tile
    )
    both = allowed & masks.causal(21, 37)
    expected = whole(query, key, value, both, 5**-0.5 if scale is None else scale)
    torch.testing.assert_close(context, expected[0], atol=1e-13, rtol=1e-12)
    torch.testing.assert_close(logsumexp, expected[1], atol=1e-13, rtol=1e-12)


@given(
    queries=st.integers(1, 9),
    keys=st.integers(0, 9),
    tile=st.integers(1, 10),
    shape=st.sampled_from(MASKS),
    is_causal=st.booleans(),
    seed=st.integers(0, 99),
)
def test_it_is_the_librarys_attention_for_every_mask_and_size(
    queries: int, keys: int, tile: int, shape: tuple[int | str, ...], is_causal: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    query, key, value = inputs(queries, keys, kv_heads=2)
    sizes = {"queries": queries, "keys": keys}
    allowed = torch.rand([sizes.get(axis, axis) for axis in shape]) < 0.5
    ours = tiles.tiled_attention(query, key, value, allowed=allowed, is_causal=is_causal, tile=tile)
    expected = attend(query, key, value, allowed=allowed, is_causal=is_causal, implementation="eager")
    torch.testing.assert_close(ours.context, expected.context, atol=1e-13, rtol=1e-12)


def test_its_logsumexp_is_the_one_of_pytorchs_kernel() -> None:
    q, k, v = (torch.randn(2, 3, n, 8) for n in (21, 37, 37))
    context, logsumexp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)
    ours = tiles.tiled_attention(q, k, v, tile=7)
    torch.testing.assert_close(ours.context, context, atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(ours.logsumexp, logsumexp, atol=2e-6, rtol=1e-5)


def test_a_row_that_sees_nothing_is_zero_and_so_are_its_gradients() -> None:
    query, key, value = (x.requires_grad_() for x in inputs(kv_heads=6))
    allowed = torch.ones(21, 37, dtype=torch.bool)
    allowed[4] = False
    context, logsumexp = tiles.tiled_attention(query, key, value, allowed=allowed, tile=5)
    assert not context[..., 4, :].any()
    assert (logsumexp[..., 4] == -math.inf).all()
    gradients = torch.autograd.grad(
        (context, logsumexp), (query, key, value), (context * 3, logsumexp.isfinite() * 2.0)
    )
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert not gradients[0][..., 4, :].any()


def test_gradients_of_both_results_are_those_of_the_whole() -> None:
    query, key, value = (x.requires_grad_() for x in inputs())
    allowed = masks.sliding_window(21, 37, window=6)
    ours = tiles.tiled_attention(query, key, value, allowed=allowed, tile=5)
    expected = whole(query, key, value, allowed, 5**-0.5)
    cotangents = [torch.randn_like(x) for x in ours]
    gradients = [torch.autograd.grad(each, (query, key, value), cotangents) for each in (ours, expected)]
    torch.testing.assert_close(*gradients, atol=1e-12, rtol=1e-11)


def test_large_scores_stay_finite_because_each_is_measured_from_the_largest() -> None:
    query, key, value = torch.randn(3, 40, 8)
    context, logsumexp = tiles.tiled_attention(1e3 * query, key, value, tile=3)
    assert logsumexp.max() > 500  # whose exponential is no float32
    expected = tiles.tiled_attention(1e3 * query.double(), key.double(), value.double(), tile=40)
    torch.testing.assert_close(context.double(), expected.context, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bits_are_summed_in_float32(dtype: torch.dtype) -> None:
    q, k, v = (torch.randn(2, 3, 300, 8, dtype=dtype) for _ in range(3))
    context, logsumexp = tiles.tiled_attention(q, k, v, tile=7)
    exact = tiles.tiled_attention(q.double(), k.double(), v.double())
    assert (context.dtype, logsumexp.dtype) == (dtype, torch.float32)
    torch.testing.assert_close(context, exact.context.to(dtype), atol=1e-6, rtol=2 * torch.finfo(dtype).eps)
    torch.testing.assert_close(logsumexp.double(), exact.logsumexp, atol=1e-5, rtol=1e-5)


@given(cuts=st.lists(st.integers(0, 37), max_size=5), seed=st.integers(0, 99))
def test_parts_merge_into_the_whole_however_the_keys_are_cut(cuts: list[int], seed: int) -> None:
    torch.manual_seed(seed)
    query, key, value = inputs()
    allowed = torch.rand(2, 1, 21, 37) < 0.3
    edges = [0, *sorted(cuts), 37]
    parts = [
        tiles.tiled_attention(query, key[..., a:b, :], value[..., a:b, :], allowed=allowed[..., a:b], tile=4)
        for a, b in pairwise(edges)
    ]
    expected = whole(query, key, value, allowed, 5**-0.5)
    merged = tiles.merge(parts)
    torch.testing.assert_close(merged.context, expected[0], atol=1e-13, rtol=1e-12)
    torch.testing.assert_close(merged.logsumexp, expected[1], atol=1e-13, rtol=1e-12)
    one_by_one = parts[0]
    for part in parts[1:]:
        one_by_one = tiles.merge([one_by_one, part])
    torch.testing.assert_close(one_by_one.context, expected[0], atol=1e-13, rtol=1e-12)


def test_gradients_go_through_a_merge_also_where_a_part_or_all_of_them_are_blind() -> None:
    query, key, value = (x.requires_grad_() for x in inputs())
    allowed = masks.causal(21, 37).clone()
    allowed[2] = False
    allowed[3, 18:] = False
    parts = [
        tiles.tiled_attention(query, key[..., part, :], value[..., part, :], allowed=allowed[:, part])
        for part in (slice(0, 18), slice(18, 37))
    ]
    context = tiles.merge(parts).context
    expected, _ = whole(query, key, value, allowed | (torch.arange(21) == 2)[:, None], 5**-0.5)
    expected = expected.masked_fill((torch.arange(21) == 2)[:, None], 0.0)
    cotangent = torch.randn_like(context)
    gradients = [torch.autograd.grad(each, (query, key, value), cotangent) for each in (context, expected)]
    torch.testing.assert_close(*gradients, atol=1e-12, rtol=1e-11)


def test_it_holds_no_matrix_of_queries_and_keys() -> None:
    query, key, value = (torch.randn(200, 8) for _ in range(3))
    with Operations() as ran:
        tiles.tiled_attention(query, key, value, is_causal=True, tile=16)
    assert ran.largest <= 200 * 16


Q, K, V = (torch.zeros(2, 3, n, 4) for n in (5, 7, 7))
PART = torch.zeros(2, 3, 5, 4), torch.zeros(2, 3, 5)
EACH = "every part needs a context (..., queries, value_dim) with a logsumexp (..., queries), the same for all"
test_what_does_not_fit_is_refused = refused(
    {
        ValueError: {
            "tile is 0; it must be 1 or more": lambda: tiles.tiled_attention(Q, K, V, tile=0),
            "query has 4 features and key 3; a dot product needs as many of both": lambda: tiles.tiled_attention(
                Q, K[..., :3], V
            ),
            "allowed has shape (5, 6), which does not broadcast to the scores' (2, 3, 5, 7)": lambda: (
                tiles.tiled_attention(Q, K, V, allowed=torch.ones(5, 6).bool())
            ),
            "parts is empty; give at least one pair (context, logsumexp)": lambda: tiles.merge([]),
            f"parts have shapes (2, 3, 4, 4) with (2, 3, 4); (2, 3, 5, 4) with (2, 3, 5); {EACH}": lambda: tiles.merge(
                [PART, (PART[0][..., :4, :], PART[1][..., :4])]
            ),
            f"parts have shapes (2, 3, 5, 4) with (2, 3, 5); (2, 3, 5, 4) with (2, 3, 5, 1); {EACH}": lambda: (
                tiles.merge([PART, (PART[0], PART[1][..., None])])
            ),
        }
    }
)


def test_without_keys_the_context_is_zero_and_gradients_of_zero_reach_all() -> None:
    leaves = [torch.randn(2, n, 4, requires_grad=True) for n in (3, 0, 0)]
    context, logsumexp = tiles.tiled_attention(*leaves)
    assert not context.any()
    assert (logsumexp == -torch.inf).all()
    gradients = torch.autograd.grad(context.sum(), leaves)
    assert [each.shape for each in gradients] == [each.shape for each in leaves]
    assert not gradients[0].any()
