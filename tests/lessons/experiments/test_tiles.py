import torch

from unmasked_lessons.experiments import tiles


def test_the_whole_table_takes_four_times_the_memory_for_twice_the_tokens_and_tiles_about_twice():
    torch.manual_seed(1)
    found = tiles.memory(*torch.randn(3, 1, 2, 512, 16), sizes=[256, 512])
    assert {name: len(each) for name, each in found.items()} == {"whole table": 2, "tiles of 64": 2, "fused kernel": 2}
    whole = found["whole table"]
    assert 3.4 < whole[1] / whole[0] < 4.4
    of_table = 2 * 512**2 * 4 / 2**20  # of float32, for each of two heads, in MiB
    assert of_table <= whole[1] < 5 * of_table
    assert found["tiles of 64"][1] / found["tiles of 64"][0] < 2.4
