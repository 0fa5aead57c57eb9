"""The drawing of a sentence says what attention gives."""

import re
from xml.etree import ElementTree

import pytest
import torch

from unmasked import self_attention
from unmasked_lessons.embeddings import common_vectors
from unmasked_lessons.figures.sentence import BARS, COMMON, NEAREST, WIDEST, Asked, ask, script_data, side_by_side

SENTENCE = "we process and ship your order"
WEIGHTS = torch.tensor([[0.1, 0.7, 0.2], [0.0, 0.5, 0.5], [0.25, 0.25, 0.5]])
NEAR = [(["your"], ["<his>"])] * 3


def test_a_word_is_asked_for_the_weights_of_self_attention():
    (asked,) = ask("ship", SENTENCE)
    weights = self_attention(common_vectors().lookup(SENTENCE)).weights
    torch.testing.assert_close(asked.weights, weights)
    assert (asked.start, asked.neighbor) == (3, "order")
    assert asked.kept == pytest.approx(weights[3, 3].item())
    assert asked.data == {"words": SENTENCE.split(), "weights": asked.weights, "start": 3, "near": asked.near}
    assert script_data([asked], together=True) == {
        "sentences": [asked.data],
        "common": COMMON,
        "nearest": NEAREST,
        "together": True,
    }


def test_the_nearest_words_are_others_than_the_word_and_none_of_the_commonest():
    vectors, (asked,) = common_vectors(), ask("cat", "the cat sat on the mat")
    context = self_attention(vectors.lookup("the cat sat on the mat")).context[1]
    for vector, named in zip((vectors["cat"], context), asked.near[1], strict=True):
        every = [word for word in vectors.nearest(vector, 200) if word not in ("cat", *vectors.words[:COMMON])]
        assert named == every[:NEAREST]
    assert "the" in vectors.nearest(context, 5)


def test_the_neighbor_is_another_word_even_where_the_word_takes_more_from_itself():
    assert [Asked(["my", "ship", "sails"], word, WEIGHTS, NEAR).neighbor for word in ("my", "sails")] == ["ship", "my"]


def test_bars_are_as_long_as_weights_and_arcs_as_wide_and_none_leads_to_the_word_itself():
    drawing = ElementTree.fromstring(Asked(["my", "ship", "<crew>"], "my", WEIGHTS, NEAR).svg())
    texts = [each.text for each in drawing.iter("text")]
    assert texts == ["my", "10%", "ship", "70%", "<crew>", "20%", "looked up: your", "here: <his>"]
    label = "my takes: my 10%, ship 70%, <crew> 20%. Nearest words before: your; after: <his>"
    assert drawing.get("aria-label") == label
    bars = [float(each.get("width", "")) / WIDEST for each in drawing.iter("rect")]
    assert bars == pytest.approx([0.1, 0.7, 0.2], abs=1e-3)
    assert {each.get("x") for each in drawing.iter("rect")} == {str(BARS)}
    arcs = [float(each.get("stroke-width", "")) for each in drawing.iter("path")]
    assert arcs == pytest.approx([29.0, 9.0])
    amber = ["amber" in each.get("fill", "") for each in drawing.iter("rect")]
    assert amber == [True, True, False]  # the word itself, and the one from which it takes most
    assert [each.text for each in drawing.iter("text") if each.get("font-weight")] == ["my", "here: <his>"]


def test_weights_of_another_origin_have_no_nearest_words():
    asked = Asked(["my", "ship", "sails"], "my", WEIGHTS)
    drawing = ElementTree.fromstring(asked.svg())
    assert [each.text for each in drawing.iter("text")] == ["my", "10%", "ship", "70%", "sails", "20%"]
    assert drawing.get("aria-label") == "my takes: my 10%, ship 70%, sails 20%"


def test_sentences_stand_side_by_side():
    html = side_by_side(ask("ship", SENTENCE, "my ship"))
    assert re.findall(r'aria-label="(ship takes: \w+)', html) == ["ship takes: we", "ship takes: my"]


def test_a_sentence_without_the_word_is_told():
    with pytest.raises(ValueError, match=r"sentences has 'my crew', which lacks word='ship': ask a word that stands"):
        ask("ship", SENTENCE, "my crew")
