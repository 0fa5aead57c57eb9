"""The strip on the pages of learn: it shows what PyTorch computes, opens what a page explains, and obeys the reader."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from unmasked_lessons.experiments.block import without
from unmasked_lessons.figures.strip import Strip
from unmasked_lessons.teaching import Singer, verse

from .conftest import LIVE, LOOKS, PHONE, Open, keeps_out, write_figures
from .test_site import CRAMPED

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

PAGES = ["attention", "masks", "heads", "generating"]
WORDS = verse(9).split()[:15]


@pytest.fixture(scope="module")
def singer() -> Singer:
    return Singer.trained().rounded()


@pytest.fixture(scope="module")
def strips(singer: Singer) -> dict[str, Strip]:
    """The strip of some pages, of a singer of two blocks, and "one" as the pages have it."""
    made = {page: Strip(page, sings=page == "generating", singer=singer) for page in PAGES}
    return made | {"one": Strip("attention")}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, strips: dict[str, Strip]) -> Path:
    """A folder for each page; on that of heads a reader has to scroll down to the strip."""
    root = tmp_path_factory.mktemp("strip")
    for page, strip in strips.items():
        (file,) = write_figures(root / page, {"strip": strip.data}).glob("*.html")
        html = file.read_text().replace("static", strip._repr_html_()).replace("<head>", '<head><meta charset="utf-8">')
        above = '<div style="height: 3000px">above</div>' if page == "heads" else ""
        file.write_text(html.replace("</h1>", f"</h1>{above}"))
    return root


def drawn(page: Page) -> Page:
    """The page once the strip was seen."""
    page.locator("[data-live=strip]").scroll_into_view_if_needed()
    page.locator(".live-way").wait_for()
    return page


def stops(page: Page) -> list[str]:
    """What would come next at each stop."""
    return [text for text in page.locator(".live-part > summary > .live-said").all_text_contents() if "→" in text]


def part(page: Page, title: str, block: int = 2) -> Locator:
    """A part of a block."""
    return page.locator(".live-block").nth(block - 1).locator("details", has_text=title)


def press(page: Page, *names: str) -> None:
    for name in names:
        page.get_by_role("button", name=name, exact=True).click()


def song(page: Page) -> str:
    return " ".join(page.locator("[aria-label='Word to follow'] button").all_inner_texts())


def test_the_scripts_of_the_strip_are_small():
    sizes = [len(gzip.compress((LIVE / f"{name}.js").read_bytes())) for name in ("singer", "strip", "sing")]
    assert sum(sizes) < 9 * 1024


def test_each_stop_and_each_weight_is_that_of_pytorch(opened: Open, strips: dict[str, Strip], singer: Singer):
    page = drawn(opened("heads/strip.html"))
    expected = [f"→ {stop.word} {stop.chance:.0%}" for stop in strips["heads"].stops()]
    assert stops(page) == [*expected, expected[-1]]  # the last stop is where the next word is read
    assert page.locator(".live-told").inner_text() == f"be becomes eight ({expected[-1].split()[-1]})."
    weights = singer.weights(singer.numbers_of(" ".join(WORDS)))
    for block in (0, 1):
        cells = part(page, "Scores and weights", block + 1).locator("td").all_text_contents()[1:]
        shown = [text.replace("<1%", "0%") for text in cells]
        for head in (0, 1):
            assert shown[1 + 2 * head :: 4] == [f"{weight:.0%}" for weight in weights[block, head, -1].tolist()]


def test_a_page_opens_what_it_explains_and_later_parts_are_grey_and_lead_there(opened: Open):
    opens = {"attention": ["The word", "Block 2", "Scores and weights", "Average"], "masks": ["Block 2", "Scores"]}
    for name, titles in opens.items():
        page = drawn(opened(f"{name}/strip.html"))
        shown = page.locator("details[open] > summary > b:visible").all_inner_texts()
        assert len(shown) == len(titles)
        assert all(text.startswith(title) for text, title in zip(shown, titles, strict=True))
        grey = page.locator(".live-later > summary > b").all_text_contents()
        assert {"Its place", "Norm", "The next word"} <= {*grey}
        assert "Scores and weights" not in grey
        part(page, "Norm").locator("summary").click()
        link = part(page, "Norm").get_by_role("link", name="A whole transformer block")
        assert str(link.evaluate("(each) => each.pathname")).endswith("/learn/block/")
        # Before the page on heads, a reader knows of none but the first.
        assert part(page, "Scores and weights").locator("th[scope=col]").all_inner_texts() == ["score", "weight"]
    page = drawn(opened("generating/strip.html"))
    assert page.locator(".live-later").count() == 0


def test_where_no_page_has_told_of_heads_and_blocks_the_singer_of_one_block_names_neither(opened: Open):
    page = drawn(opened("one/strip.html"))
    assert page.locator(".live-block > summary").inner_text() == "The block"
    assert stops(page)[2:4] == [f"→ {stop.word} {stop.chance:.0%}" for stop in Strip("attention").stops()][2:]
    press(page, "open all parts")
    assert "head" not in page.locator(".live-way").inner_text().lower()
    assert part(page, "Average", 1).locator(".live-vector > span").first.inner_text() == "average"


def test_what_is_looked_at_and_not_added_is_told(opened: Open):
    page = drawn(opened("generating/strip.html"))
    beside = part(page, "Scores and weights").locator("summary > .live-said")
    assert "not added" not in beside.inner_text()
    press(page, "head 1 of block 2")
    assert re.search(r"head 0: \w+ \d+%, head 1: \w+ \d+%, not added$", beside.inner_text())
    press(page, "attention")
    assert beside.inner_text().count("not added") == 2


def test_the_mask_hides_later_words_of_any_word_that_is_followed_by_keys(opened: Open):
    page = drawn(opened("masks/strip.html"))
    chips = page.locator("[aria-label='Word to follow'] button")
    chips.last.focus()
    for place in range(len(WORDS) - 2, -1, -1):
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("Enter")
        assert chips.nth(place).get_attribute("aria-pressed") == "true"
        assert page.locator(".live-told b").first.inner_text() == WORDS[place]
        hidden = part(page, "Scores and weights").locator("tr:has(.live-hidden) th").all_inner_texts()
        assert hidden == WORDS[place + 1 :]


def test_the_numbers_come_once_the_strip_is_seen_and_a_still_picture_stands_there_before(opened: Open):
    page = opened("heads/strip.html")
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert asked == []
    assert page.locator("[data-live=strip] > svg").count() == 1
    drawn(page)
    assert [url.rpartition("/")[2] for url in asked] == ["strip.json"]


def test_without_javascript_the_picture_tells_every_stop(without_scripts: Open, strips: dict[str, Strip]):
    page = without_scripts("attention/strip.html")
    texts = page.locator("[data-live=strip] svg text").all_text_contents()
    expected = strips["attention"].stops()
    assert texts[::2] == [stop.name for stop in expected]
    assert texts[1::2] == [f"→ {stop.word} {stop.chance:.0%}" for stop in expected]


def test_the_song_is_sung_as_pytorch_sings_it_whole_and_without_a_part(opened: Open, singer: Singer):
    page = drawn(opened("generating/strip.html"))
    start = "seven green"
    page.get_by_label("Begin with").fill(start)
    press(page, "a verse")
    assert song(page) == singer.sing(start, 18)
    songs = {song(page)}
    for name in ("attention", "MLP", "residual", "norms", "positions"):
        press(page, name)
        with without(singer, name):
            assert song(page) == singer.sing(start, 18)
        songs.add(song(page))
    assert len(songs) == 6
    press(page, "nothing", "head 0 of block 1", "head 0 of block 2")
    assert song(page) == singer.sing(start, 18, silent=0)
    press(page, "head 0 of block 1", "head 0 of block 2", "hide the mask")
    singer.lacks = "mask"
    try:
        assert song(page) == singer.sing(start, 18)
    finally:
        singer.lacks = ""
    press(page, "hide the mask", "one word less")
    assert song(page) == singer.sing(start, 17)
    press(page, "begin again")
    assert song(page) == start


def test_all_parts_open_at_once_and_close(opened: Open):
    page = drawn(opened("generating/strip.html"))
    parts = page.locator(".live-way details")
    press(page, "open all parts")
    assert page.locator(".live-way details[open]").count() == parts.count() == 17
    parts.last.locator("summary").click()
    press(page, "open all parts", "close all parts")
    assert page.locator(".live-way details[open]").count() == 0


def test_heat_draws_other_words_and_the_same_ones_until_luck_is_new(opened: Open, singer: Singer):
    page = drawn(opened("generating/strip.html"))
    page.get_by_label("Begin with").fill("la la la")
    press(page, "a verse")
    assert len(song(page).split()) == 21  # all of which it sees
    cold = song(page)
    heat = page.get_by_role("slider", name="Temperature")
    heat.focus()
    page.keyboard.press("End")
    hot = song(page)
    assert hot != cold
    assert str(heat.get_attribute("aria-valuetext")) == "Temperature 4.00"
    chances = (singer(singer.numbers_of(hot))[0, -1] / 4).softmax(dim=-1).sort(descending=True).values[:6]
    shown = page.locator(".live-bars .live-share").all_text_contents()
    assert shown == [f"{chance:.0%}" for chance in chances.tolist()]
    assert stops(page)[-1].endswith(f" {chances[0]:.0%}")
    press(page, "one word less", "one word")
    assert song(page) == hot
    press(page, "new luck")
    assert song(page) != hot
    heat.focus()
    page.keyboard.press("Home")
    assert song(page) == cold


def test_a_word_that_is_not_in_the_song_is_named_with_those_that_are(opened: Open, singer: Singer):
    page = drawn(opened("generating/strip.html"))
    before = song(page)
    page.get_by_label("Begin with").fill("seven red bottles")
    said = page.locator(".live-sing > .live-said").inner_text()
    assert said == f"“red” is not in the song. Its words are {', '.join(singer.vocabulary)}."
    assert page.get_by_label("Begin with").get_attribute("aria-invalid") == "true"
    assert song(page) == before
    page.get_by_label("Begin with").fill("Seven GREEN")
    assert song(page) == "seven green"


def test_more_than_it_can_see_goes_on_and_what_is_out_of_sight_cannot_be_followed(opened: Open):
    page = drawn(opened("generating/strip.html"))
    page.get_by_label("Begin with").fill("ten green")
    press(page, "a verse", "a verse", "a verse")
    words = [word for number in (10, 9, 8, 7) for word in verse(number).split()][: 2 + 3 * 18]
    assert song(page).split() == words
    disabled = page.locator("[aria-label='Word to follow'] button:disabled").count()
    assert 0 < len(words) - disabled <= 26


@pytest.mark.drawn(*LOOKS)
@pytest.mark.parametrize("name", PAGES)
def test_it_keeps_nobody_out_and_fits_a_phone(opened: Open, axe: str, name: str):
    narrow = PHONE | {"viewport": {"width": 360, "height": 800}}
    page = drawn(opened(f"{name}/strip.html", **narrow))
    for summary in page.locator("details:not([open]) > summary").all():
        if summary.is_visible():
            summary.tap()
    assert page.evaluate(CRAMPED) == []
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    assert keeps_out(page, axe, "'main'") == []


def test_in_colors_of_the_reader_s_own_the_word_that_is_followed_and_bars_are_seen(opened: Open):
    page = drawn(opened("generating/strip.html", forced_colors="active"))
    ground = "(each) => getComputedStyle(each).backgroundColor"
    chips = page.locator("[aria-label='Word to follow'] button")
    assert chips.last.evaluate(ground) != chips.first.evaluate(ground)
    assert page.locator(".live-bars .live-bar").first.evaluate(ground) != page.locator("main").evaluate(ground)
    fill = page.locator(".live-vector rect").first.evaluate("(each) => getComputedStyle(each).fill")
    assert re.match(r"rgb", fill)
