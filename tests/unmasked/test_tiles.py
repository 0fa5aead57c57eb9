import math
import re
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from unmasked import attend, masks, tiles

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
    context, logsumexp = tiles.attention(query, key, value, allowed=allowed, is_causal=True, scale=scale, tile=tile)
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
    ours = tiles.attention(query, key, value, allowed=allowed, is_causal=is_causal, tile=tile)
    expected = attend(query, key, value, allowed=allowed, is_causal=is_causal, implementation="eager")
    torch.testing.assert_close(ours.context, expected.context, atol=1e-13, rtol=1e-12)


def test_its_logsumexp_is_the_one_of_pytorchs_kernel() -> None:
    q, k, v = (torch.randn(2, 3, n, 8) for n in (21, 37, 37))
    context, logsumexp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)
    ours = tiles.attention(q, k, v, tile=7)
    torch.testing.assert_close(ours.context, context, atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(ours.logsumexp, logsumexp, atol=2e-6, rtol=1e-5)


def naive(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor, tile: int) -> Tensor:
    """The rule as it is mostly written down: for a row that sees nothing of the first tile, -inf minus -inf."""
    largest, total, summed = torch.tensor(-math.inf), torch.tensor(0.0), torch.tensor(0.0)
    for start in range(0, key.size(-2), tile):
        part = slice(start, start + tile)
        scores = (query @ key[part].mT * query.size(-1) ** -0.5).masked_fill(~allowed[:, part], -math.inf)
        before, largest = largest, torch.maximum(largest, scores.amax(-1, keepdim=True))
        powers, rescaled = torch.exp(scores - largest), torch.exp(before - largest)
        total = total * rescaled + powers.sum(-1, keepdim=True)
        summed = summed * rescaled + powers @ value[part]
    return summed / total


def test_an_empty_first_tile_is_no_nan_where_the_naive_rule_makes_most_rows_nan() -> None:
    query, key, value = torch.randn(3, 64, 8)
    window = masks.sliding_window(64, window=8)
    broken = naive(query, key, value, window, tile=1).isnan().any(-1)
    assert broken.tolist() == [i >= 8 for i in range(64)]  # 56 of 64: all that do not see the first key
    ours = tiles.attention(query, key, value, allowed=window, tile=1).context
    torch.testing.assert_close(ours, F.scaled_dot_product_attention(query[None], key[None], value[None], window)[0])


def test_a_row_that_sees_nothing_is_zero_and_so_are_its_gradients() -> None:
    query, key, value = (x.requires_grad_() for x in inputs(kv_heads=6))
    allowed = torch.ones(21, 37, dtype=torch.bool)
    allowed[4] = False
    context, logsumexp = tiles.attention(query, key, value, allowed=allowed, tile=5)
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
    ours = tiles.attention(query, key, value, allowed=allowed, tile=5)
    expected = whole(query, key, value, allowed, 5**-0.5)
    cotangents = [torch.randn_like(x) for x in ours]
    for mine, theirs in zip(
        torch.autograd.grad(ours, (query, key, value), cotangents),
        torch.autograd.grad(expected, (query, key, value), cotangents),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, atol=1e-12, rtol=1e-11)


def test_large_scores_stay_finite_because_each_is_measured_from_the_largest() -> None:
    query, key, value = torch.randn(3, 40, 8)
    context, logsumexp = tiles.attention(1e3 * query, key, value, tile=3)
    assert logsumexp.max() > 500  # whose exponential is no float32
    expected = tiles.attention(1e3 * query.double(), key.double(), value.double(), tile=40)
    torch.testing.assert_close(context.double(), expected.context, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bits_are_summed_in_float32(dtype: torch.dtype) -> None:
    q, k, v = (torch.randn(2, 3, 300, 8, dtype=dtype) for _ in range(3))
    context, logsumexp = tiles.attention(q, k, v, tile=7)
    exact = tiles.attention(q.double(), k.double(), v.double())
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
        tiles.attention(query, key[..., a:b, :], value[..., a:b, :], allowed=allowed[..., a:b], tile=4)
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


def test_merging_by_the_mean_is_wrong() -> None:
    query, key, value = inputs()
    parts = [tiles.attention(query, key[..., part, :], value[..., part, :]) for part in (slice(0, 18), slice(18, 37))]
    exact = tiles.attention(query, key, value).context
    mean = torch.stack([part.context for part in parts]).mean(0)
    assert (mean - exact).abs().max() > 0.3
    assert (tiles.merge(parts).context - exact).abs().max() < 1e-12


def test_gradients_go_through_a_merge_also_where_a_part_or_all_of_them_are_blind() -> None:
    query, key, value = (x.requires_grad_() for x in inputs())
    allowed = masks.causal(21, 37).clone()
    allowed[2] = False
    allowed[3, 18:] = False
    parts = [
        tiles.attention(query, key[..., part, :], value[..., part, :], allowed=allowed[:, part])
        for part in (slice(0, 18), slice(18, 37))
    ]
    context = tiles.merge(parts).context
    expected, _ = whole(query, key, value, allowed | (torch.arange(21) == 2)[:, None], 5**-0.5)
    expected = expected.masked_fill((torch.arange(21) == 2)[:, None], 0.0)
    cotangent = torch.randn_like(context)
    for mine, theirs in zip(
        torch.autograd.grad(context, (query, key, value), cotangent),
        torch.autograd.grad(expected, (query, key, value), cotangent),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, atol=1e-12, rtol=1e-11)


def test_it_holds_no_matrix_of_queries_and_keys() -> None:
    class Largest(torch.utils._python_dispatch.TorchDispatchMode):
        numel = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            result = func(*args, **(kwargs or {}))
            for each in result if isinstance(result, tuple) else (result,):
                if isinstance(each, Tensor):
                    self.numel = max(self.numel, each.numel())
            return result

    query, key, value = torch.randn(3, 200, 8)
    with Largest() as seen:
        tiles.attention(query, key, value, is_causal=True, tile=16)
    assert seen.numel <= 200 * 16


@pytest.mark.usefixtures("unhooked")
def test_what_does_not_fit_is_refused() -> None:
    query, key, value = (torch.randn(2, 3, n, 4) for n in (5, 7, 7))
    with pytest.raises(ValueError, match=re.escape("tile is 0; it must be 1 or more")):
        tiles.attention(query, key, value, tile=0)
    with pytest.raises(ValueError, match="query has 4 features and key 3"):
        tiles.attention(query, key[..., :3], value)
    with pytest.raises(ValueError, match=re.escape("allowed has shape (5, 6), which does not broadcast")):
        tiles.attention(query, key, value, allowed=torch.ones(5, 6, dtype=torch.bool))
    with pytest.raises(ValueError, match=re.escape("parts is empty; give at least one pair (context, logsumexp)")):
        tiles.merge([])
    part = tiles.attention(query, key, value)
    for context, logsumexp in (
        (part.context[..., :4, :], part.logsumexp[..., :4]),
        (part.context, part.logsumexp[..., None]),
    ):
        text = (
            f"parts have shapes .*{re.escape(str(tuple(context.shape)))} with {re.escape(str(tuple(logsumexp.shape)))}"
        )
        with pytest.raises(ValueError, match=text + r".*; every part needs a context \(\.\.\., queries, value_dim\)"):
            tiles.merge([part, (context, logsumexp)])
