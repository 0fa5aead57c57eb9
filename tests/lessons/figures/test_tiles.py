import torch

from unmasked_lessons.figures import tiles


def test_hidden_keys_have_no_bar_and_edges_stand_between_tiles():
    scores = torch.tensor([-torch.inf, 1.0, 3.0, -2.0, 0.5])
    axes = tiles.stairs(scores, scores.cummax(0).values, tile=2).axes[0]
    bars = {round(bar.get_x() + bar.get_width() / 2): bar.get_height() for bar in axes.patches}
    assert bars == {1: 1.0, 2: 3.0, 3: -2.0, 4: 0.5}
    stairs, *edges = axes.lines
    assert stairs.get_ydata().tolist() == [1.0, 3.0, 3.0, 3.0]
    assert [edge.get_xdata()[0] for edge in edges] == [1.5, 3.5]
