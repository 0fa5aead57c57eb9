import re
from pathlib import Path

from .hooks import hook

DOCS = Path(__file__).parents[2] / "docs"
glossary = hook("glossary")

TWO = (
    "**Score**{ #score }\n:   How *well* a query\n    fits, 2<!--= two --> or `more`.\n\n"
    "**Query, key**{ #query }\n:   Roles.\n"
)


def test_a_definition_is_read_without_its_marks_for_each_of_its_names():
    assert glossary.terms(TWO) == {
        "score": ("score", "How well a query fits, 2 or more."),
        "query": ("query", "Roles."),
        "key": ("query", "Roles."),
    }


def test_every_entry_of_the_glossary_is_read():
    text = (DOCS / glossary.GLOSSARY).read_text()
    listed = re.findall(r"^\*\*(.+?)\*\*.*\n:", text, re.MULTILINE)
    assert len(listed) > 30
    assert [names.casefold() for names in listed] == sorted(names.casefold() for names in listed)
    found = glossary.terms(text)
    assert found.keys() == {name.lower() for names in listed for name in names.split(", ")}
    assert found.keys() >= glossary.PLAIN
    assert not any(set("<>*$`") & set(meaning) for _, meaning in found.values())


def test_the_first_use_of_a_word_leads_to_the_glossary_with_its_meaning():
    linked = '<a class="term" href="../notation/#score" title="How well a query fits, 2 or more.">{}</a>'
    html = "<p>The Scores <b>of</b> a score.</p>"
    expected = "<p>The " + linked.format("Scores") + " <b>of</b> a score.</p>"
    assert glossary.link(html, glossary.terms(TWO), "../notation/") == expected


def test_links_headings_code_formulas_and_outputs_are_left_alone_and_so_are_parts_of_words():
    for html in (
        "<a href='x'>score</a>",
        "<autoref identifier='x'>score</autoref>",
        "<h2>score</h2>",
        "<p><code>score</code> <math><mi>score</mi></math></p>",
        "<section><p>score</p></section>",
        "<p>scored self-score score-card</p>",
        "<p title='score'>the key</p>",
    ):
        assert glossary.link(html, glossary.terms(TWO), "") == html


def test_quotes_in_a_meaning_stay_in_the_title():
    linked = glossary.link("<p>score</p>", {"score": ("score", 'a "<b>"')}, "")
    assert 'title="a &quot;&lt;b&gt;&quot;"' in linked
