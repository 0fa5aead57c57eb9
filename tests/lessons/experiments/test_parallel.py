import torch

from unmasked_lessons.experiments import parallel


def test_all_pairs_of_a_causal_sequence_are_computed_and_none_twice():
    found = parallel.pairs(16, 4)
    assert list(found) == ["contiguous", "zigzag", "striped"]
    assert {int(each.sum()) for each in found.values()} == {16 * 17 // 2}
    assert found["contiguous"].tolist() == [[10, 0, 0, 0], [10, 16, 0, 0], [10, 16, 16, 0], [10, 16, 16, 16]]
    assert torch.equal(found["zigzag"].amin(0), found["zigzag"].amax(0)), "all have the same work"


def test_a_rank_sends_its_keys_and_values_to_all_others_or_hands_over_the_output():
    found = parallel.sent([1024, 2048], kv_heads=2, head_dim=64, width=512, ranks=4)
    ring = 3 * 2 * 2 * (1024 // 4) * 64 * 2 / 2**20  # others, key and value, heads, tokens, features, bytes
    assert found == {"1,024": [ring, 1.0], "2,048": [2 * ring, 2.0]}
