"""The overview drawing: where it stands, what it marks, and where its parts lead."""

import re
import xml.etree.ElementTree as ET
from itertools import combinations
from pathlib import Path

import pytest
from mkdocs.exceptions import PluginError

from .hooks import hook

ROOT = Path(__file__).parents[2]
overview = hook("overview")

MARK = '<p>Before.</p>\n<div class="overview" data-here="{}"></div>\n<p>After.</p>'
ADDRESSES = {"learn/attention.py": "../attention/", "learn/positions.py": "./", "pytorch/scale.py": "../../scale/"}
DRAWINGS = [overview.WIDE, overview.NARROW]


def parts(svg: ET.Element) -> dict[str, ET.Element]:
    return {each.attrib["class"].split()[1]: each for each in svg if each.get("class", "").startswith("part")}


@pytest.mark.parametrize("here", overview.PARTS)
def test_both_drawings_have_every_part_and_mark_the_one_where_the_reader_is(here: str):
    *drawings, caption = ET.fromstring(overview.drawn(here, ADDRESSES))
    assert [svg.attrib["class"] for svg in drawings] == ["wide", "narrow"]
    assert "the marked box" in str(caption.text)
    assert "dashed" in str(caption.text)
    for svg in drawings:
        assert parts(svg).keys() == overview.PARTS.keys()
        marked = {name for name, part in parts(svg).items() if "here" in part.attrib["class"].split()}
        assert marked == {here} == {name for name, part in parts(svg).items() if part.get("aria-current")}
        assert svg.attrib["aria-label"].endswith(f"You are here: {overview.PARTS[here][1]}.")
        assert svg[-1].text == f"You are here: {overview.PARTS[here][1]}"


def test_the_drawing_takes_the_place_of_its_mark_alone():
    html = overview.placed(MARK.format("positions"), "learn/positions.py", ADDRESSES)
    before, figure, after = html.split("\n")
    assert (before, after) == ("<p>Before.</p>", "<p>After.</p>")
    assert figure == overview.drawn("positions", {k: v for k, v in ADDRESSES.items() if k != "learn/positions.py"})
    assert overview.placed("<div>none</div>", "index.md", ADDRESSES) == "<div>none</div>"


def test_a_part_leads_to_its_page_where_the_navigation_has_it_and_no_page_leads_to_itself():
    html = overview.placed(MARK.format("positions"), "learn/positions.py", ADDRESSES)
    assert re.findall(r'<a class="part (\S+)[^>]*href="([^"]*)"', html) == [("attention", "../attention/")] * 2
    html = overview.placed(MARK.format("text"), "index.md", {})
    assert "<a " not in html


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        ('<div class="overview" data-here="atention"></div>', "has no part 'atention'"),
        ('<div class="overview"></div>', "lacks data-here, the part where its reader is"),
    ],
)
def test_an_unknown_part_is_an_error_that_names_the_page_and_those_that_there_are(mark: str, message: str):
    expected = f'docs/learn/heads.py: the <div class="overview"> {message}; write one of text, tokens, embeddings, '
    with pytest.raises(PluginError, match=re.escape(expected)):
        overview.placed(mark, "learn/heads.py", ADDRESSES)


def test_a_mark_that_holds_something_is_an_error():
    with pytest.raises(PluginError, match=r'docs/a\.md: the <div class="overview"> must be empty: the drawing takes'):
        overview.placed('<div class="overview" data-here="text">Mine.</div>', "a.md", ADDRESSES)


@pytest.mark.parametrize("boxes", DRAWINGS, ids=["wide", "narrow"])
def test_no_box_lies_over_another_but_in_a_frame_that_holds_it(boxes: dict[str, tuple[int, int, int, int]]):
    for (one, (x, y, width, height)), (other, (left, top, across, down)) in combinations(boxes.items(), 2):
        apart = x + width <= left or left + across <= x or y + height <= top or top + down <= y
        inside = x <= left and y <= top and left + across <= x + width and top + down <= y + height
        assert apart or (inside and height > 40), (one, other)


def test_the_pages_that_explain_parts_are_pages_of_learn():
    assert {page.split("/")[0] for _, _, page in overview.PARTS.values() if page} == {"learn"}


def test_the_box_that_its_caption_calls_dashed_is_that_of_two_texts():
    sheet = (ROOT / "docs/assets/site.css").read_text(encoding="utf-8")
    assert re.findall(r"(?m)^\.overview (\S+) rect \{\n  stroke-dasharray", sheet) == [".cross"]
