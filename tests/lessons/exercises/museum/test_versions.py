"""The wrong versions that the museum's exercises try are wrong."""

import pytest
import torch
from torch import Tensor

from unmasked_doctor import museum
from unmasked_doctor.probes import differs
from unmasked_lessons.exercises.museum.index import WRONG, right


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
