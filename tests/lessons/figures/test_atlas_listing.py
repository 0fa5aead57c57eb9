"""The atlas counts what its record says, of those of which it was asked, and says of whom it was not."""

import pytest

from unmasked_lessons.figures.atlas import TRAITS, Atlas, Counts, Listing

ATLAS = Atlas()


@pytest.mark.parametrize("trait", TRAITS)
def test_who_has_a_trait_was_asked_for_it(trait: str) -> None:
    having, asked = ATLAS.having(trait), ATLAS.asked(trait)
    assert {model.name for model in having} <= {model.name for model in asked}
    assert ATLAS.count(trait) == len(having)
    assert asked, "a trait of which no model was asked says nothing"
    assert ATLAS.share(trait) == len(having) / len(asked)


def test_counts_are_sorted_and_print_as_they_are_shown() -> None:
    for traps in (False, True):
        counts = Counts(ATLAS, traps=traps)
        shares = [has / of for _, has, of in counts.rows]
        assert shares == sorted(shares, reverse=True)
        assert len(counts.rows) == sum(trait.trap == traps for trait in TRAITS.values())
        assert repr(counts).splitlines()[0].split(": ")[1] in counts._repr_html_()


def test_a_listing_prints_each_model_with_what_it_has() -> None:
    lines = dict(line.split(": ", 1) for line in repr(Listing(ATLAS)).splitlines())
    assert lines.keys() == {model.name for model in ATLAS.models}
    assert "a sink" in lines["gpt_oss"]
    assert "a sink" not in lines["llama"]
