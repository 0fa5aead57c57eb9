import pytest
import torch

from unmasked.functional import attend
from unmasked.positions import Rotary, alibi
from unmasked_doctor import probes
from unmasked_lessons.experiments import positions


def test_a_score_of_rotary_positions_is_that_of_the_offset_wherever_it_stands():
    torch.manual_seed(2)
    query, key = torch.randn(2, 1, 8)
    ways = {"rotary": Rotary(8), "none": lambda x, _: x, "placed": lambda x, places: x * places[:, None]}
    found = positions.scores(ways, query, key, places=[3, 53], offset=2)
    near, far = found["rotary"]
    assert abs(near - far) < 1e-4
    plain = (query @ key.T).item()
    assert found["none"] == pytest.approx([plain, plain], rel=1e-5)
    assert found["placed"] == pytest.approx([3 * 1 * plain, 53 * 51 * plain], rel=1e-5)


def test_only_the_element_by_element_product_under_autocast_stays_exact():
    found = positions.angles(torch.arange(1000, 1004), 10_000 ** (-torch.arange(0, 8, 2) / 8))
    told = [(each.dtype, len(each[:, 0].unique())) for each in found.values()]
    assert told[2] == (torch.float32, 4)
    assert {dtype for dtype, _ in told[:2] + told[3:]} == {torch.bfloat16}
    assert all(count < 4 for _, count in told[:2] + told[3:]), "positions have merged"
    assert list(found)[2] == "autocast, positions[:, None] * rates"


def test_only_added_sinusoids_notice_that_all_positions_shift():
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    relative = [positions.turned("halves"), positions.turned("interleaved"), positions.lowered]
    assert [probes.notices_a_shift(f, x) for f in relative] == [None] * 3
    assert "larger" in str(probes.notices_a_shift(positions.added, x))


def test_scores_are_lowered_as_alibi_lowers_them():
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(3))
    expected = attend(x, x, x, bias=alibi(1, 5)[0]).context
    torch.testing.assert_close(positions.lowered(x, torch.arange(5)), expected)


def test_a_feature_turns_with_its_like_in_the_other_half_or_with_its_neighbor():
    assert positions.partners(Rotary(6), 6) == [3, 4, 5, 0, 1, 2]
    assert positions.partners(Rotary(6, pairing="interleaved"), 6) == [1, 0, 3, 2, 5, 4]


def test_an_angle_is_in_degrees_whatever_the_lengths():
    assert positions.angle(torch.tensor([3.0, 0.0]), torch.tensor([2.0, 2.0])) == pytest.approx(45, abs=0.01)
