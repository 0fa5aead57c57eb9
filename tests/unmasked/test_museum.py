"""The museum's list: what its slugs, titles and symptoms promise."""

import re

import pytest

from unmasked.museum import ENTRIES, SYMPTOMS, Entry


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
