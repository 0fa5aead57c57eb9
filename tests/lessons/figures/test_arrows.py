"""Arrows point where vectors do, and rings lie where attention moves them."""

import math

import pytest
import torch
from matplotlib.text import Annotation

from unmasked_lessons.figures import arrows

VECTORS = torch.tensor([[-1.0, -1.0], [1.0, 1.0], [1.0, 0.0]])
NAMES = ["my", "ship", "crew"]


def test_each_word_has_its_arrow_and_a_ring_where_attention_moves_it():
    (plane,) = arrows.plane(VECTORS, NAMES, ("sea", "trade")).axes
    named = [text for text in plane.texts if text.get_text()]
    assert [text.get_text() for text in named] == NAMES
    tips = [text.xy for text in plane.texts if isinstance(text, Annotation)]
    assert [list(tip) for tip in tips] == VECTORS.tolist()
    context = (VECTORS @ VECTORS.T / math.sqrt(2)).softmax(dim=-1) @ VECTORS
    rings = [line.get_xydata()[0].tolist() for line in plane.lines if line.get_marker() == "o"]
    torch.testing.assert_close(torch.tensor(rings), context)
    ways = [line.get_xydata().tolist() for line in plane.lines if line.get_linestyle() == ":"]
    torch.testing.assert_close(torch.tensor(ways), torch.stack([VECTORS, context], dim=1))
    assert (plane.get_xlabel(), plane.get_ylabel()) == ("sea", "trade")


def test_arrows_that_lie_in_no_plane_are_refused():
    with pytest.raises(ValueError, match=r"arrows has shape \(3, 4\), expected \(3, 2\): two numbers a name"):
        arrows.plane(torch.ones(3, 4), NAMES, ("sea", "trade"))
