import pytest
import torch

from unmasked_lessons.experiments.backward import left_out, of_retrieval, products


def test_without_the_root_gradients_are_few_large_and_noisy():
    with_root, without = (of_retrieval(64, keys=8, width=128, root=root) for root in (True, False))
    assert without.quiet > with_root.quiet
    assert without.median < with_root.median
    assert without.norm > 3 * with_root.norm
    assert without.agreement < with_root.agreement <= 1


def test_one_key_has_nothing_to_learn():
    assert of_retrieval(4, keys=1, width=8, root=True).norm == pytest.approx(0, abs=1e-12)


def test_what_is_left_out_is_missed_where_it_belongs_and_nowhere_else():
    torch.manual_seed(0)
    q, k, v, of_context = (
        torch.randn(2, 3, n, d, dtype=torch.float64, requires_grad=True) for n, d in ((6, 5), (7, 5), (7, 4), (6, 4))
    )
    found = left_out(of_context.detach(), q, k, v)
    off = {name: [each > 1e-12 for each in shares] for name, shares in found.items()}
    assert off == {
        "nothing": [False, False, False],
        "the row sum": [True, True, False],
        "the scale in the key's": [False, True, False],
        "the scale": [True, True, False],
    }
    # Without the scale a gradient is larger by the root of 5.
    assert found["the scale"][:2] == pytest.approx([5**0.5 - 1] * 2)


def test_products_are_counted_with_batch_axes_and_without():
    one, many = torch.ones(3, 3), torch.ones(2, 4, 3, 3)
    assert products(lambda x: x @ one + one, one) == 1
    assert products(lambda x, *, y: (x @ y).exp() @ y, many, y=many) == 2
