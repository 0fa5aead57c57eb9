import pytest
import torch

from unmasked.heads import (
    fused_qkv,
    merge_heads,
    project_bmm,
    project_einsum,
    project_linear,
    project_loop,
    split_heads,
)
from unmasked.layouts import convert

from ..refusals import refused


def test_a_head_takes_its_features_from_every_token() -> None:
    tagged = torch.tensor([[[100 * b + 10 * t + f for f in range(6)] for t in range(4)] for b in range(2)])
    heads = split_heads(tagged.float(), 3)
    assert heads.shape == (2, 3, 4, 2)
    for b, h, t, d in torch.cartesian_prod(*map(torch.arange, heads.shape)).tolist():
        assert heads[b, h, t, d] == 100 * b + 10 * t + 2 * h + d


@pytest.mark.parametrize("batch", [(), (2,), (2, 5)])
def test_merging_undoes_splitting_and_splitting_copies_nothing(batch: tuple[int, ...]) -> None:
    x = torch.randn(*batch, 4, 6)
    heads = split_heads(x, 3)
    assert heads.data_ptr() == x.data_ptr()
    assert torch.equal(merge_heads(heads), x)
    other = torch.randn(*batch, 3, 4, 2)
    assert torch.equal(split_heads(merge_heads(other), 3), other)


@pytest.mark.parametrize("batch", [(), (7,), (2, 7)])
@pytest.mark.parametrize("project", [project_bmm, project_einsum, project_linear])
def test_every_projection_equals_the_loop_with_its_gradients(project, batch: tuple[int, ...]) -> None:
    x = torch.randn(*batch, 5, 3, dtype=torch.float64, requires_grad=True)
    stacked = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    actual, expected = project(x, stacked), project_loop(x, stacked)
    assert expected.shape == (*batch, 2, 5, 4)
    torch.testing.assert_close(actual, expected)
    cotangent = torch.randn_like(expected)
    gradients = [torch.autograd.grad(out, (x, stacked), cotangent) for out in (actual, expected)]
    torch.testing.assert_close(*gradients)


def test_the_loop_multiplies_by_one_matrix_a_head() -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    stacked = torch.tensor([[[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]], [[10.0, 0.0, 0.0], [0.0, 0.0, 10.0]]])
    expected = [[[1, 2, 3], [3, 4, 7], [5, 6, 11]], [[10, 0, 20], [30, 0, 40], [50, 0, 60]]]
    assert project_loop(x, stacked).tolist() == expected


def test_the_fused_layer_equals_three_projections_with_its_gradients() -> None:
    heads, dim, head_dim = 2, 10, 4
    x = torch.randn(7, 5, dim, dtype=torch.float64, requires_grad=True)
    stacked = {name: torch.randn(heads, dim, head_dim, dtype=torch.float64) for name in ("query", "key", "value")}
    biases = {f"{name}_bias": torch.randn(heads, head_dim, dtype=torch.float64) for name in stacked}
    state = convert(stacked | biases, source="stacked", target="interleaved", num_heads=heads)
    projected = fused_qkv(x, state["qkv_layer.weight"], state["qkv_layer.bias"], num_heads=heads)
    for actual, name in zip(projected, stacked, strict=True):
        expected = project_loop(x, stacked[name]) + biases[f"{name}_bias"][:, None]
        torch.testing.assert_close(actual, expected)
        cotangent = torch.randn_like(expected)
        torch.testing.assert_close(*(torch.autograd.grad(y, x, cotangent, True) for y in (actual, expected)))
    packed = convert(stacked, source="stacked", target="packed", num_heads=heads)["in_proj_weight"]
    assert not torch.allclose(fused_qkv(x, packed, num_heads=heads)[0], project_loop(x, stacked["query"]))


X, WEIGHT, NO_HEADS = torch.zeros(5, 3), torch.zeros(16, 3), torch.zeros(0, 3, 4)
test_what_has_no_heads_or_too_few_axes_or_rows_is_refused = refused(
    {
        ValueError: {
            "weight has 16 rows; query, key and value of num_heads=2 need a multiple of 6": lambda: fused_qkv(
                X, WEIGHT, num_heads=2
            ),
            "num_heads is 0; it must be 1 or more": (
                lambda: fused_qkv(X, WEIGHT, num_heads=0),
                lambda: split_heads(X, 0),
                lambda: split_heads(torch.zeros(2, 0), 0),
                lambda: project_loop(X, NO_HEADS),
                lambda: project_bmm(X, NO_HEADS),
                lambda: project_einsum(X, NO_HEADS),
                lambda: project_linear(X, NO_HEADS),
            ),
            "num_heads is -1; it must be 0 or more": lambda: fused_qkv(X, WEIGHT, num_heads=-1),
            "num_heads is -1; it must be 1 or more": lambda: split_heads(X, -1),
            "x has shape (3,); it must be (..., tokens, embed_dim)": lambda: split_heads(torch.zeros(3), 3),
            "x has shape (5, 3); it must be (..., heads, tokens, head_dim)": lambda: merge_heads(X),
            "embed_dim (10) must be divisible by num_heads (3); try 2 or 5": lambda: split_heads(torch.ones(2, 10), 3),
            "embed_dim (7) must be divisible by num_heads (3); try 1 or 7": lambda: split_heads(torch.ones(2, 7), 3),
            "embed_dim (12) must be divisible by num_heads (5); try 4 or 6": lambda: split_heads(torch.ones(2, 12), 5),
        }
    }
)
