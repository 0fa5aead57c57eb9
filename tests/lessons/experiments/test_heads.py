import torch

from unmasked_lessons.experiments.heads import costs, splits


def test_only_the_right_split_gives_a_head_its_own_features_of_every_token():
    few, into_heads, viewed, swapped, merged = splits(4, 2, 3)
    for head in range(2):
        assert torch.equal(into_heads[head], few[:, 3 * head : 3 * head + 3])
        assert not torch.equal(viewed[head], into_heads[head])
        assert not torch.equal(swapped[head], into_heads[head])
    assert few[3].tolist() == [30, 31, 32, 33, 34, 35], "tens are tokens, ones are features"
    assert viewed[0].tolist() == [[0, 1, 2], [3, 4, 5], [10, 11, 12], [13, 14, 15]]
    assert swapped[1, 0].tolist() == [1, 3, 5]
    assert merged[0].tolist() == [0, 1, 2, 10, 11, 12]


def test_more_heads_have_thinner_slices_and_more_weights_and_cost_the_same():
    width, tokens = 32, 10
    parameters = 4 * width * (width + 1)
    multiplications = 4 * tokens * width**2 + 2 * tokens**2 * width
    found = costs(width, tokens, (1, 8))
    assert found == {n: (width // n, parameters, multiplications, n * tokens**2) for n in (1, 8)}
