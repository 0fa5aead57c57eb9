"""The museum's list: what its slugs and titles promise."""

import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor

from unmasked_doctor import museum
from unmasked_doctor.museum import ENTRIES, Entry, Exhibits, drawn, mended


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
def test_a_slug_can_stand_in_an_address_and_a_title_in_a_heading(entry: Entry):
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", entry.slug)
    assert entry.title == entry.title.strip().rstrip(".")
    assert entry.title.count("`") % 2 == 0


def test_titles_differ():
    assert len({entry.title for entry in ENTRIES.values()}) == len(ENTRIES)


ONES = torch.ones(1, 3, 2)


def double(x: Tensor) -> Tensor:
    return 2 * x


def same(x: Tensor) -> Tensor:
    return x


def test_an_exhibit_keeps_how_far_off_it_is_what_was_found_and_its_maps():
    exhibit = Exhibits(given=ONES, hides=0 * ONES, probe=lambda f, *given: "twice" if f(*given).max() > 1 else None)
    plate = exhibit("missing-scale", double, same)
    assert exhibit.off == {"missing-scale": 1.0}
    assert (plate.off, plate.size, plate.found) == (1.0, 1.0, "twice")
    assert plate.maps == ((2 * torch.eye(3)).tolist(), torch.eye(3).tolist())
    plate = exhibit("missing-scale", lambda q, x: q + x, lambda q, x: q, hides=[ONES, 0 * ONES], given=[ONES, ONES])
    assert plate.maps is None  # two tensors: a map would say too little


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"hides": ONES}, "missing-scale is off by 1 where it should hide; pass as hides what hides it"),
        ({"given": 0 * ONES}, "missing-scale is not off on what is given; pass as given what shows it"),
        ({"probe": lambda f, x: "wrong"}, "the probe says of the right version: wrong; pass one that finds only"),
        ({"probe": lambda f, x: None}, "the probe does not find the wrong version; pass one that does"),
    ],
)
def test_what_does_not_show_its_mistake_is_no_exhibit(options: dict[str, object], told: str):
    exhibit = Exhibits(given=ONES, hides=0 * ONES)
    with pytest.raises(ValueError, match=re.escape(told)):
        exhibit("missing-scale", double, same, **options)


def test_a_slug_that_is_none_is_told_with_the_nearest():
    with pytest.raises(KeyError, match=r"museum\.txt has no 'mising-scale'; the nearest is 'missing-scale'"):
        Exhibits(given=ONES)("mising-scale", double)


def two_steps(q: Tensor, k: Tensor) -> Tensor:
    weights = (q @ k.mT).softmax(-1)
    return weights @ k


def shaped(x: Tensor) -> Tensor:
    q = x.clone()
    q /= math.sqrt(q.size(-1))
    return q


def unlike_any(x: Tensor) -> Tensor:
    return x


def test_the_right_version_differs_by_the_mistakes_line_alone():
    q, k = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(1))
    right = mended(ENTRIES["missing-scale"], two_steps)
    assert torch.equal(right(q, k), (q @ k.mT / math.sqrt(4)).softmax(-1) @ k)
    assert torch.equal(mended(ENTRIES["input-overwritten"], shaped)(q), q / 2)  # a statement


def test_what_has_not_the_wrong_line_cannot_be_mended():
    told = "missing-scale: `(q @ k.mT).softmax(-1)` stands 0 times in unlike_any, expected once; write it as the museum"
    with pytest.raises(ValueError, match=re.escape(told)):
        mended(ENTRIES["missing-scale"], unlike_any)


def test_what_has_no_source_cannot_be_mended():
    typed: dict[str, Any] = {}
    exec(compile("def typed(x): return x", "<typed>", "exec"), typed)
    with pytest.raises(ValueError, match="typed has no source to mend: write it in a file or in a notebook, or pass"):
        mended(ENTRIES["missing-scale"], typed["typed"])


def test_an_exhibit_without_a_right_version_mends_the_wrong_one():
    q, k = 3 * torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(1))
    exhibit = Exhibits(given=[q, k], hides=[0 * q, k])
    plate = exhibit("missing-scale", two_steps)
    right = (q @ k.mT / 2).softmax(-1) @ k
    assert plate.off == pytest.approx((two_steps(q, k) - right).abs().max().item())


def test_a_plate_of_what_was_measured_by_hand_says_what_was_measured():
    exhibit = Exhibits(off={"gradient-cut": 0.5})
    plate = exhibit.plate("gradient-cut", torch.tensor([1.0, -3.0]), "a gradient is cut")
    assert plate.measured == "off by 0.5, where the right numbers reach 3"
    assert plate.found == "a gradient is cut"
    assert exhibit.plate("gradient-cut", 3.0).size == 3.0


def test_a_map_marks_what_is_no_number():
    html = drawn([[1.0, 0.0], [float("nan"), float("nan")]])
    assert re.findall(r'<path ([^>]*) d="([^"]*)"', html) == [
        ('opacity="1.00"', "M0 0h.9v.9h-.9z"),
        ('class="lost"', "M0.3 1.3l.4 .4m0-.4l-.4 .4M1.3 1.3l.4 .4m0-.4l-.4 .4"),
    ]
    assert 'viewBox="0 0 2 2"' in html
    assert "1 of 2 outputs are NaN" in html
    assert "NaN" not in drawn([[1.0, 0.0]])


@pytest.mark.parametrize(
    ("block", "told"),
    [
        (
            "a-slug: A title\nlos: It falls.\n- x\n+ y",
            r"gives a-slug the symptom 'los'; write one of loss, quality, batch",
        ),
        ("a-slug: A title\nloss: It falls.\n- x", r"cannot be read at 'a-slug: A title': write its slug and title"),
    ],
)
def test_an_entry_that_cannot_be_read_is_named(block: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        list(museum._entries(f"About.\n\n# museum/masks\n\n{block}"))
