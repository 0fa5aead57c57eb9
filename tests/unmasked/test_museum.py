"""The museum's list: what its slugs, titles and symptoms promise."""

import re

import pytest
import torch
from torch import Tensor

from unmasked.museum import ENTRIES, SYMPTOMS, Entry, Exhibits, drawn


def test_a_mistake_is_found_under_its_own_slug():
    assert {slug: entry.slug for slug, entry in ENTRIES.items()} == {slug: slug for slug in ENTRIES}


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
def test_a_slug_can_stand_in_an_address_and_a_title_in_a_heading(entry: Entry):
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", entry.slug)
    assert entry.title == entry.title.strip().rstrip(".")
    assert entry.title.count("`") % 2 == 0


def test_titles_differ():
    assert len({entry.title for entry in ENTRIES.values()}) == len(ENTRIES)


def test_a_link_is_an_address_from_the_sites_root():
    assert ENTRIES["swapped-view"].link == "museum/heads/#swapped-view"


def test_every_mistake_stands_under_one_symptom():
    told = [slug for slugs in SYMPTOMS.values() for slug in slugs]
    assert sorted(told) == sorted(ENTRIES)


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


def test_a_map_marks_what_is_no_number():
    html = drawn([[1.0, 0.0], [float("nan"), float("nan")]])
    assert html.count('<i class="lost">') == 2
    assert "1 of 2 outputs are NaN" in html
    assert "NaN" not in drawn([[1.0, 0.0]])
