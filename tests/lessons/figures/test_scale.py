import math

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from unmasked_lessons.figures import scale
from unmasked_lessons.figures.scale import of_queries

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
    found = scale.drawn([4, 64], SHARES, samples=50, keys=7)
    assert found["sizes"] == [4, 64]
    for name in ("scaled", "unscaled"):
        for weights, lengths in zip(found[name], found[f"gradient_{name}"], strict=True):
            assert weights.shape == (7,)
            assert weights.sum().item() == pytest.approx(1)
            assert (weights.diff() < 0).all()
            assert lengths.shape == SHARES.shape
            assert (lengths.diff() > 0).all()
    assert found["unscaled"][1][0] > 1.5 * found["scaled"][1][0]
    again = scale.drawn([4, 64], SHARES, samples=50, keys=7)
    assert torch.equal(again["scaled"][1], found["scaled"][1]), "the same draws each time"


def test_the_panels_show_weights_above_gradients_and_the_root_on_the_right():
    found = {
        "unscaled": [torch.tensor([0.9, 0.1])],
        "scaled": [torch.tensor([0.6, 0.4])],
        "gradient_unscaled": [torch.tensor([1e-12, 3.0])],
        "gradient_scaled": [torch.tensor([1.0, 2.0])],
    }
    _, axes = scale.panels(found)
    assert [each.get_title() for each in axes[0]] == ["without the root", "with the root"]
    assert [[bar.get_height() for bar in each.patches] for each in axes[0]] == [
        pytest.approx([0.9, 0.1]),
        pytest.approx([0.6, 0.4]),
    ]
    lengths = [each.lines[0].get_xdata().tolist() for each in axes[1]]
    assert lengths == [pytest.approx([1e-8, 3.0]), [1.0, 2.0]], "what is too short lies on the edge"


def test_the_curves_stand_under_their_titles_with_both_ways():
    measured = {"unscaled": {"a": [1, 2], "b": [3, 4]}, "scaled": {"a": [5, 6], "b": [7, 8]}}
    figure = scale.curves([4, 16], measured, {"a": "first", "b": "second"})
    assert [axes.get_title() for axes in figure.axes] == ["first", "second"]
    drawn = [{line.get_label(): line.get_ydata().tolist() for line in axes.lines} for axes in figure.axes]
    assert drawn == [{"unscaled": [1, 2], "scaled": [5, 6]}, {"unscaled": [3, 4], "scaled": [7, 8]}]
    assert [text.get_text() for text in figure.axes[1].get_xticklabels()] == ["4", "16"]


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
