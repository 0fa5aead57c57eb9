import math

import pytest
import torch

from unmasked_lessons.experiments.long import leaks


def test_a_hidden_key_keeps_the_exponential_of_minus_the_cap():
    scores = torch.zeros(2, 3, 3, dtype=torch.float64)
    scores[1] = 100.0  # its first query gives more to itself
    hidden = 2 * math.exp(-2.0)
    assert leaks(scores, [2.0]) == {2.0: pytest.approx(hidden / (1 + hidden))}
    found = leaks(scores, [20.0, 5.0])
    assert found[20.0] < 1e-8 < found[5.0]
