"""The way of a word through the singer: each stop is what the singer has there, and its picture says so."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest
import torch
from torch import Tensor

from unmasked_lessons.figures.strip import CELL, LEFT, ZERO, Strip, packed
from unmasked_lessons.teaching import Singer
from unmasked_lessons.teaching.song import STEPS


@pytest.fixture(scope="module")
def singer() -> Singer:
    return Singer.trained(steps=3).rounded()


def test_the_characters_are_the_numbers_of_the_singer(singer: Singer):
    given = packed(singer)
    assert (given["words"], given["heads"], given["length"]) == (singer.vocabulary, 2, 26)
    for name, numbers in singer.state_dict().items():
        size, *rows = given["parameters"][name]
        assert all(text.isascii() and text.isprintable() for text in rows)
        read = torch.tensor([[size * (ord(each) - ZERO) for each in text] for text in rows], dtype=torch.float64)
        assert read.float().view_as(numbers).equal(numbers), name
        assert float(f"{size:.4g}") == size, "a page rounds what it sends to four digits"


def test_a_singer_that_was_not_rounded_is_refused():
    with pytest.raises(ValueError, match=r"singer has numbers in word.weight that are no whole steps: pass singer"):
        packed(Singer(1))


def by_hand(singer: Singer, words: list[str], index: int) -> list[Tensor]:
    """A word's vector at each stop, step by step."""
    numbers = singer.numbers_of(" ".join(words))
    x = singer.word(numbers)
    found = [x, x := x + singer.place.weight[: len(words)]]
    for block in range(2):
        x = x + singer.out[block](
            torch.cat([each @ value for each, value in zip(*seen(singer, block, x), strict=True)], dim=-1)
        )
        found += [x, x := x + singer.mlp[block](singer.norm[2 * block + 1](x))]
    return [each[0, index] for each in found]


def seen(singer: Singer, block: int, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """The weights of both heads, and the values."""
    parts = singer.qkv[block](singer.norm[2 * block](x)).split(16, dim=-1)
    hidden = torch.ones(x.size(1), x.size(1)).triu(1).bool()
    scores = [(parts[head] @ parts[2 + head].mT / 4).masked_fill(hidden, -torch.inf) for head in (0, 1)]
    return [each.softmax(dim=-1) for each in scores], list(parts[4:])


@pytest.mark.parametrize("index", [2, -1])
def test_each_stop_has_the_vector_there_and_what_would_be_read_from_it(singer: Singer, index: int):
    words = ["la", "seven", "green", "bottles", "seven"]
    stops = Strip("block", singer=singer, words=words, follow=index).stops()
    assert [stop.name for stop in stops] == [
        "the word", "its place", "attention 1", "MLP 1", "attention 2", "MLP 2",
    ]  # fmt: skip
    for stop, vector in zip(stops, by_hand(singer, words, index), strict=True):
        torch.testing.assert_close(stop.vector, vector)
        chances = singer.read(singer.norm[-1](vector)).softmax(dim=-1)
        assert (stop.word, stop.chance) == (singer.vocabulary[chances.argmax()], pytest.approx(chances.max().item()))


def test_the_picture_has_a_cell_for_each_number_and_tells_what_would_come_next(singer: Singer):
    strip = Strip("heads", singer=singer, follow=1)
    svg = ET.fromstring(strip._repr_html_())
    stops = strip.stops()
    assert [each.text for each in svg.iter("text")][1::2] == [f"→ {stop.word} {stop.chance:.0%}" for stop in stops]
    told = ", ".join(f"{stop.name}: {stop.word} {stop.chance:.0%}" for stop in stops)
    assert svg.get("aria-label") == repr(strip) == f"green on its way, and what would come next: {told}"
    for row, stop in zip(svg.iter("g"), stops, strict=True):
        drawn = {}
        for path in row:
            for place in re.findall(r"M(\d+) 0", path.attrib["d"]):
                sign = 1 if "teal" in path.attrib["fill"] else -1
                drawn[int(place)] = sign * float(path.attrib["opacity"])
        assert drawn.keys() == {*range(32)}
        shown = torch.tensor([drawn[place] for place in range(32)])
        torch.testing.assert_close(shown, stop.vector / stop.vector.abs().max(), atol=0.051, rtol=0)
        assert f"translate({LEFT} " in row.attrib["transform"]
        assert f"scale({CELL} " in row.attrib["transform"]


def test_the_script_gets_the_text_and_the_place_of_the_word_and_where_it_stands(singer: Singer):
    data = Strip("masks", singer=singer, follow=-2, sings=True).data
    assert data["text"][data["follow"]] == "will"
    assert (len(data["text"]), data["here"], data["sings"]) == (15, "masks", True)
    assert data["singer"] == packed(singer)
    assert STEPS + ZERO < 127
