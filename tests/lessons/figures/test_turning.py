"""Each clock shows its key and its query, and all clocks are of one size."""

import pytest
import torch
from matplotlib.text import Annotation

from unmasked_lessons.figures._drawing import AMBER, TEAL
from unmasked_lessons.figures.turning import clocks


def test_each_clock_has_a_hand_for_the_key_and_one_for_the_query():
    one, other = torch.tensor([1.0, 0.5]), torch.tensor([0.0, 2.0])
    drawn = clocks({"early": (one, other), "late": (other, -one)})
    assert [each.get_title() for each in drawn.axes] == ["early", "late"]
    for plane, hands in zip(drawn.axes, ((one, other), (other, -one)), strict=True):
        shafts = [each for each in plane.texts if isinstance(each, Annotation)]
        assert [(list(each.xy), each.arrowprops["color"]) for each in shafts] == [
            (hands[0].tolist(), TEAL),
            (hands[1].tolist(), AMBER),
        ]
        names = {each.get_text(): each.get_position() for each in plane.texts if each.get_text()}
        assert [*names] == ["key", "query"]
        assert names["query"] == pytest.approx((0.72 * hands[1]).tolist())
        (face,) = plane.patches
        assert face.get_radius() == pytest.approx(1.15 * 2)  # the longest hand stays inside, on every clock
