"""Arrows point where vectors do, and rings lie where attention moves them."""

from __future__ import annotations

import math

import pytest
import torch
from matplotlib.text import Annotation

from unmasked.figures import arrows
from unmasked.figures._drawing import AMBER, TEAL

VECTORS = torch.tensor([[-1.0, -1.0], [1.0, 1.0], [1.0, 0.0]])
NAMES = ["my", "ship", "crew"]


def test_each_word_has_its_arrow_and_a_ring_where_attention_moves_it():
    (plane,) = arrows.moved(VECTORS, NAMES, ("sea", "trade")).axes
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
        arrows.moved(torch.ones(3, 4), NAMES, ("sea", "trade"))


def test_each_pair_has_its_picture_and_each_arrow_its_name_beyond_the_tip():
    right, up, left = torch.tensor([1.0, 0.5]), torch.tensor([0.0, 1.0]), torch.tensor([-1.0, 0.5])
    drawn = arrows.turned([{"query at 4": right, "key at 1": up}, {"query at 9": left, "key at 6": right}])
    for plane, pair in zip(drawn.axes, ({"query at 4": right, "key at 1": up}, {"query at 9": left}), strict=True):
        for name, arrow in pair.items():
            (text,) = [each for each in plane.texts if each.get_text() == name]
            assert text.get_position() == pytest.approx((1.12 * arrow).tolist())
            assert text.get_ha() == {1.0: "left", 0.0: "center", -1.0: "right"}[arrow[0].item()]
        shafts = [each for each in plane.texts if isinstance(each, Annotation)]
        assert [each.arrowprops["color"] for each in shafts] == [AMBER, TEAL]
    assert [list(each.xy) for each in drawn.axes[1].texts if isinstance(each, Annotation)] == [
        left.tolist(),
        right.tolist(),
    ]


def test_an_angle_is_in_degrees_whatever_the_lengths():
    assert arrows.angle(torch.tensor([3.0, 0.0]), torch.tensor([2.0, 2.0])) == pytest.approx(45, abs=0.01)
