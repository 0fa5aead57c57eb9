"""The figure of temperatures shows the chances that a softmax gives."""

import pytest
import torch

from unmasked_lessons.figures import temperature


def test_the_bars_are_the_chances_of_the_likeliest_words_at_each_temperature():
    words, scores = ["never", "rarely", "often", "mostly"], torch.tensor([-9.0, 0.0, 2.0, 3.0])
    panels = temperature.bars(words, scores, [0.5, 2.0], shown=3).axes
    assert [axes.get_title() for axes in panels] == ["temperature 0.5", "temperature 2"]
    assert [label.get_text() for label in panels[0].get_yticklabels()] == ["mostly", "often", "rarely"]
    for axes, divided in zip(panels, (0.5, 2.0), strict=True):
        powers = torch.tensor([3.0, 2.0, 0.0, -9.0]).div(divided).exp()
        expected = (powers / powers.sum())[:3].tolist()
        assert [bar.get_width() for bar in axes.patches] == pytest.approx(expected)
        assert [text.get_text() for text in axes.texts] == [f"{chance:.0%}" for chance in expected]
    assert panels[0].yaxis_inverted()
