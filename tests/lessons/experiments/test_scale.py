import math

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from unmasked_lessons.experiments import scale
from unmasked_lessons.experiments.scale import of_queries

SHARES = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)


def test_the_gradient_of_queries_is_that_of_pytorchs_function():
    torch.manual_seed(0)
    q, upstream = torch.randn(2, 3, 4, 5).double()
    k, v = torch.randn(2, 3, 6, 5).double()
    weights, gradient = of_queries(q, k, v, upstream, scale=0.7)
    asked = q.clone().requires_grad_()
    context = scaled_dot_product_attention(asked, k, v, scale=0.7)
    torch.testing.assert_close(weights @ v, context)
    torch.testing.assert_close(gradient, torch.autograd.grad(context, asked, upstream)[0])
    assert not q.requires_grad


def test_what_is_drawn_are_mean_weights_in_falling_order_and_quantiles():
    found = scale.weights_and_gradients([4, 64], SHARES, samples=50, keys=7)
    assert found["sizes"] == [4, 64]
    for name in ("scaled", "unscaled"):
        for weights, lengths in zip(found[name], found[f"gradient_{name}"], strict=True):
            assert weights.shape == (7,)
            assert weights.sum().item() == pytest.approx(1)
            assert (weights.diff() < 0).all()
            assert lengths.shape == SHARES.shape
            assert (lengths.diff() > 0).all()
    assert found["unscaled"][1][0] > 1.5 * found["scaled"][1][0]
    again = scale.weights_and_gradients([4, 64], SHARES, samples=50, keys=7)
    assert torch.equal(again["scaled"][1], found["scaled"][1]), "the same draws each time"


def test_the_norms_are_ordered_and_the_tenth_is_a_share_of_their_squares():
    largest, lengths, together, tenth, ranked = scale.norms(16, samples=40, keys=5)
    for name in ("unscaled", "scaled"):
        norms = lengths[name]
        assert (norms.diff() <= 0).all()
        assert tenth[name] == pytest.approx((norms[:4].square().sum() / norms.square().sum()).item())
        assert together[name] == pytest.approx(math.sqrt(norms.square().sum()))
        assert largest[name] == pytest.approx(ranked[name].mean().item())
    assert largest["unscaled"] > largest["scaled"]


def test_half_precision_fails_where_the_product_is_too_large():
    found = scale.half_precision([1, 40, 400])  # 64 * 40**2 is above 65,504, the largest number of float16
    assert found == {
        "product, then divided": ["finite", "NaN", "NaN"],
        "query divided, then product": ["finite", "finite", "NaN"],
        "F.scaled_dot_product_attention": ["finite", "finite", "finite"],
        "the package": ["finite", "finite", "finite"],
    }


def test_fresh_matrices_have_the_bounds_of_their_layers():
    torch.manual_seed(1)
    found = scale.fresh_matrices(64, num_heads=4)
    bounds = {
        "nn.Linear": 1 / 8,
        "nn.MultiheadAttention": math.sqrt(6 / (4 * 64)),
        "Xavier, square": math.sqrt(6 / (2 * 64)),
    }
    assert {name: bound for name, (bound, *_) in found.items()} == pytest.approx(bounds, rel=0.01)
    for bound, derived, query, score in found.values():
        assert derived == pytest.approx(64 * bound**2 / 3)
        assert query == pytest.approx(derived, rel=0.1)
        assert score == pytest.approx(derived**2, rel=0.2)


def test_only_the_wrong_scales_give_tokens_of_ones_another_score_than_the_root():
    ones = torch.ones(1, 3, 5, 16)  # batch heads tokens head_dim
    scores = {name: wrong(ones, ones).mean().item() for name, wrong in scale.WRONG_SCALES.items()}
    assert scores == pytest.approx(
        {
            "no root": 16,
            "divided by d": 1,
            "the number of keys": 16 / math.sqrt(5),
            "the width of all heads": 16 / math.sqrt(48),
        }
    )
