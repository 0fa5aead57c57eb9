import pytest

from unmasked.figures.backward import of_retrieval


def test_without_the_root_gradients_are_few_large_and_noisy():
    with_root, without = (of_retrieval(64, keys=8, width=128, root=root) for root in (True, False))
    assert without.quiet > with_root.quiet
    assert without.median < with_root.median
    assert without.norm > 3 * with_root.norm
    assert without.agreement < with_root.agreement <= 1


def test_one_key_has_nothing_to_learn():
    assert of_retrieval(4, keys=1, width=8, root=True).norm == pytest.approx(0, abs=1e-12)
