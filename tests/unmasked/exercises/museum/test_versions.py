"""The wrong versions that the museum's exercises try are wrong, and the right one is PyTorch's."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from unmasked import museum
from unmasked.exercises.museum.index import WRONG, right
from unmasked.heads import merge_heads, split_heads
from unmasked.probes import differs


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("slug", WRONG)
def test_a_wrong_version_hangs_in_the_museum_and_gives_the_right_shape_and_other_numbers(slug: str):
    x = draw(2, 5, 12)
    given = WRONG[slug](x, 3)
    assert slug in museum.ENTRIES
    assert given.shape == x.shape
    assert given.isfinite().all()
    assert differs(given, right(x, 3)) > 0.01


def test_the_right_version_is_pytorchs():
    x = draw(2, 5, 12)
    heads = split_heads(x, 3)
    torch.testing.assert_close(
        right(x, 3), merge_heads(F.scaled_dot_product_attention(heads, heads, heads, is_causal=True))
    )
