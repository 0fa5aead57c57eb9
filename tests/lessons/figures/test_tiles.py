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


def test_the_whole_table_takes_four_times_the_memory_for_twice_the_tokens_and_tiles_about_twice():
    torch.manual_seed(1)
    found = tiles.memory(*torch.randn(3, 1, 2, 512, 16), sizes=[256, 512])
    assert {name: len(each) for name, each in found.items()} == {"whole table": 2, "tiles of 64": 2, "fused kernel": 2}
    whole = found["whole table"]
    assert 3.4 < whole[1] / whole[0] < 4.4
    of_table = 2 * 512**2 * 4 / 2**20  # of float32, for each of two heads, in MiB
    assert of_table <= whole[1] < 5 * of_table
    assert found["tiles of 64"][1] / found["tiles of 64"][0] < 2.4
