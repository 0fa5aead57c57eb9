"""The gallery has a card for each mistake, and its maps are of the lines that the museum shows."""

import re

from unmasked_doctor.museum import ENTRIES, SYMPTOMS
from unmasked_lessons.figures.gallery import Gallery, Rooms


def test_every_mistake_has_one_card_under_its_symptom():
    page = Gallery({})._repr_html_()
    cards = re.findall(r'data-symptom="(\d+)" href="\.\./[^"#]+#([^"]+)"', page)
    expected = [(str(n), slug) for n, slugs in enumerate(SYMPTOMS.values(), 1) for slug in slugs]
    assert cards == expected
    assert sorted(slug for _, slug in cards) == sorted(ENTRIES)
    assert re.findall(r'id="symptom-(\d+)" checked', page) == ["0"]
    hides = re.findall(r'#symptom-(\d+):checked\) \.card:not\(\[data-symptom="(\d+)"\]\)', page)
    assert hides == [(str(n), str(n)) for n in range(1, len(SYMPTOMS) + 1)], "each choice hides the other cards"


def test_a_card_shows_maps_where_there_are_some_and_else_the_wrong_line():
    page = Gallery({"no-causal-mask": {"wrong": [[1.0, 1.0]], "right": [[1.0, 0.0]]}})._repr_html_()
    cards = dict(re.findall(r'href="[^"]*#([^"]+)">(.*?)</a>', page))
    assert cards["no-causal-mask"].count('class="reach"') == 2
    assert "<code>q /= math.sqrt(q.size(-1))</code>" in cards["input-overwritten"]
    assert "class=" not in cards["input-overwritten"].replace('class="card-sides"', "")


def test_a_choice_says_how_many_cards_it_leaves():
    page = Gallery({})._repr_html_()
    counts = [int(count) for count in re.findall(r"<small>(\d+)</small></label>", page)]
    assert counts == [len(ENTRIES), *map(len, SYMPTOMS.values())]


def test_rooms_count_every_mistake_once_and_lead_to_their_pages():
    rooms = Rooms()
    found = dict(re.findall(r'<a href="\.\./([^"]+)/">[^<]+</a></th><td>(\d+)</td>', rooms._repr_html_()))
    assert found == {page: str(count) for page, count in rooms.counts.items()}
    assert sum(rooms.counts.values()) == len(ENTRIES)
    assert found.keys() == {entry.page for entry in ENTRIES.values()}
    assert repr(rooms).count("\n") == len(found)
