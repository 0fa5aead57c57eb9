"""What readers have set is kept to: day or night, colors and spacing of their own, keys, and windows of every width."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image

from .conftest import DRAWN, LOOKS, Open, keeps_out
from .test_site import CRAMPED, WIDE

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

SCHEME = "document.body.dataset.mdColorScheme"


def turn(page: Page, system: Any) -> None:
    """The system turns to day or night, and the page has been told."""
    page.emulate_media(color_scheme=system)
    page.evaluate(DRAWN)


def test_the_site_follows_the_system_by_day_and_night_until_a_reader_chooses(opened: Open, served: str):
    page = opened("learn/masks/", color_scheme="dark")
    for where in ("learn/masks/", "notation/", "404.html"):
        page.goto(served + where)
        for system, scheme in (("light", "default"), ("dark", "slate")):
            turn(page, system)
            assert page.evaluate(SCHEME) == scheme, "at once"
            page.reload()
            assert page.evaluate(SCHEME) == scheme, "and on a later visit"
    page.locator("#__palette label:visible").click()
    for system in ("light", "dark"):
        turn(page, system)
        page.reload()
        assert page.evaluate(SCHEME) == "default", "what the reader chose stays"


def colors(part: Locator) -> list[tuple[int, Any]]:
    """The colors of a part of a page, as they are painted, each after the number of its pixels."""
    with Image.open(io.BytesIO(part.screenshot())) as picture:
        return sorted(picture.convert("RGB").getcolors(picture.width * picture.height), reverse=True)


def ground(part: Locator) -> Any:
    """The color of most of a part of a page."""
    return colors(part)[0][1]


# What is told by color, on which page: a part that is on, or has more of it, and one that is not, or has less.
TOLD = {
    "the word that is chosen": ("learn/attention/", ".live-words [aria-pressed=true] .live-bar", ".live-stage"),
    "the sentence": ("learn/attention/", ".live-choices > [aria-pressed=true]", ".live-choices > [aria-pressed=false]"),
    "who sees whom": ("pytorch/masks/", ".live-mask .live-sees", ".live-mask td button:not(.live-sees)"),
    "who sees whom in a window": ("pytorch/long/", ".live-reach .live-sees", ".live-reach .live-blocked"),
    "the mask": ("pytorch/masks/", ".live-choices > [aria-pressed=true]", ".live-choices > [aria-pressed=false]"),
    "the symptom": ("museum/", ".gallery input:checked + label", ".gallery input:not(:checked) + label"),
}


@pytest.mark.drawn(*LOOKS)
@pytest.mark.parametrize("night", [False, True], ids=["day", "night"])
@pytest.mark.parametrize("told", TOLD)
def test_in_colors_of_the_reader_s_own_what_color_tells_is_told(opened: Open, told: str, night: bool):
    where, one, other = TOLD[told]
    page = opened(where, forced_colors="active", color_scheme="dark" if night else "light")
    assert ground(page.locator(one).first) != ground(page.locator(other).first)


ICONS = {"pytorch/masks/": ".proofread-copy > summary", "reference/causal/": ".md-code__button"}


@pytest.mark.parametrize("where", ICONS)
def test_in_colors_of_the_reader_s_own_icons_are_seen(opened: Open, where: str):
    page = opened(where, forced_colors="active")
    assert len(colors(page.locator(ICONS[where]).first)) > 1


def test_in_colors_of_the_reader_s_own_what_goes_on_at_the_side_has_an_edge_there(on_phone: Open):
    page = on_phone("pytorch/watching/", forced_colors="active")
    edge = "(all) => all.map((each) => [each.scrollWidth > each.clientWidth, getComputedStyle(each).borderRightStyle])"
    edges = page.locator(":is(.highlight pre > code, .md-typeset__scrollwrap):visible").evaluate_all(edge)
    assert [True, "dashed"] in edges
    assert [False, "none"] in edges
    assert [True, "none"] not in edges
    assert [False, "dashed"] not in edges


def test_keys_lead_to_the_next_page_and_back_and_into_the_search_but_not_out_of_a_text(opened: Open):
    page = opened("pytorch/masks/")
    here, footer = page.url, page.locator(".md-footer__link--next")
    following = str(footer.evaluate("(link) => link.href"))
    for there, back in (("n", "p"), (".", ",")):
        page.keyboard.press(there)
        page.wait_for_url(following)
        page.keyboard.press(back)
        page.wait_for_url(here)
    page.wait_for_load_state("networkidle")  # the theme has begun to listen
    for key in ("Control+n", "Alt+n"):
        page.keyboard.press(key)
    for key in ("s", "f", "/"):
        page.keyboard.press(key)
        field = page.locator(".md-search__input:focus")
        field.wait_for()
        page.keyboard.type("np")
        assert field.input_value() == "np"
        field.fill("")
        page.keyboard.press("Escape")
        page.locator(".md-logo:focus").first.wait_for()
    page.evaluate(DRAWN)
    assert page.url == here


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_of_what_is_missing_is_open_to_all(opened: Open, axe: str, width: int):
    page = opened("404.html", viewport={"width": width, "height": 800})
    assert keeps_out(page, axe, "document") == []
    assert page.locator(".md-search[role=dialog]").get_attribute("aria-label") == "Search"


SEEN = """
async () => {
  for (const code of document.querySelectorAll("article pre")) {
    code.scrollIntoView({ behavior: "instant" })
    await new Promise((done) => requestAnimationFrame(done))
  }
  return document.querySelectorAll("article pre").length
}
"""


@pytest.mark.drawn(*LOOKS)
@pytest.mark.parametrize("where", ["pytorch/masks/", "reference/causal/", "proofread/commands/"])
def test_on_a_phone_code_that_goes_on_is_reached_by_keys_even_once_it_was_seen(on_phone: Open, axe: str, where: str):
    page = on_phone(where)
    assert page.evaluate(SEEN) > 0
    page.evaluate(DRAWN)
    page.evaluate(axe)
    rule = '{ runOnly: ["scrollable-region-focusable"] }'
    assert (
        page.evaluate(f"async () => (await axe.run(document, {rule})).violations.flatMap((each) => each.nodes)") == []
    )


# What WCAG 1.4.12 lets readers set.
SPACED = """
() => {
  const sheet = new CSSStyleSheet()
  sheet.replaceSync(`p { margin-bottom: 2em !important }
    * { line-height: 1.5 !important; letter-spacing: 0.12em !important; word-spacing: 0.16em !important }`)
  document.adoptedStyleSheets = [sheet]
}
"""
CUT = """
() => [...document.querySelectorAll("article *, .md-footer *")]
  .filter((each) => each.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true }) && each.textContent.trim())
  .filter((each) => {
    const { overflowX, overflowY } = getComputedStyle(each), hides = /hidden|clip/
    return each.clientWidth > 1 && ((hides.test(overflowX) && each.scrollWidth > each.clientWidth + 1) ||
      (hides.test(overflowY) && each.scrollHeight > each.clientHeight + 1))
  })
  .map((each) => `is cut: ${each.outerHTML.slice(0, 120)}`)
"""


def faults(page: Page) -> list[str]:
    """What goes over the side or is too small to hit or is cut."""
    page.evaluate(DRAWN)
    return [each for what in (WIDE, CRAMPED, CUT) for each in page.evaluate(what)]


@pytest.mark.parametrize("where", ["", "learn/attention/"])
def test_with_more_space_between_lines_words_and_letters_nothing_is_cut(opened: Open, where: str):
    page = opened(where)
    page.evaluate(SPACED)
    for width in (1280, 600, 320):
        page.set_viewport_size({"width": width, "height": 900})
        assert faults(page) == [], width


@pytest.mark.drawn(*LOOKS)
@pytest.mark.parametrize("where", ["learn/block/", "pytorch/tiles/", "learn/queries_keys_values/", "museum/"])
def test_a_window_between_a_phone_and_a_screen_is_wide_enough(opened: Open, where: str):
    page = opened(where)
    for width in (540, 600, 680, 719, 720, 760, 820):
        page.set_viewport_size({"width": width, "height": 900})
        assert faults(page) == [], width
