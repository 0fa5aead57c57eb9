"""What keeps readers from reading: on paper, by keys alone, by touch, on a narrow screen."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ..running import python
from .conftest import DRAWN, PHONE, Open, box_of, settled

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

BENCHMARK = Path(__file__).parents[1] / "benchmarks/reading.py"
LESSON = "learn/attention/"
CONTRAST = """
() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true })
  const light = (color) => {
    canvas.clearRect(0, 0, 1, 1)
    canvas.fillStyle = color
    canvas.fillRect(0, 0, 1, 1)
    const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3)
      .map((c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b
  }
  // Paper is white: browsers print no backgrounds unless they are told to.
  return ["p", "h1", "h2", "pre code span", "li", "p a"].map((what) => {
    const found = document.querySelector(`.md-typeset ${what}`)
    return [what, found ? 1.05 / (light(getComputedStyle(found).color) + 0.05) : 21]
  })
}
"""


@pytest.fixture
def phone(on_phone: Open) -> Page:
    """The first lesson on a phone."""
    return on_phone(LESSON)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_can_be_read_on_paper_whatever_the_screen_shows(opened: Open, scheme: str):
    page = opened(LESSON, color_scheme=scheme)
    on_screen = page.evaluate("getComputedStyle(document.body).getPropertyValue('--md-default-bg-color')")
    assert (on_screen == "#141b1d") is (scheme == "dark")
    page.emulate_media(media="print")
    assert {what: ratio for what, ratio in page.evaluate(CONTRAST) if ratio < 4.5} == {}


def test_the_closed_drawer_takes_no_key_and_its_button_opens_it(phone: Page):
    inside = "!!document.activeElement.closest('.md-sidebar--primary')"
    reached = []
    for _ in range(12):
        phone.keyboard.press("Tab")
        assert not phone.evaluate(inside)
        reached.append(phone.evaluate("document.activeElement.getAttribute('aria-label')"))
        if reached[-1] == "Navigation":
            break
    assert "Navigation" in reached
    button = phone.locator("button[aria-label=Navigation]")
    assert button.get_attribute("aria-expanded") == "false"
    phone.keyboard.press("Enter")
    assert button.get_attribute("aria-expanded") == "true"
    assert phone.evaluate(inside)
    phone.keyboard.press("Escape")
    assert button.get_attribute("aria-expanded") == "false"
    assert phone.evaluate("document.activeElement.getAttribute('aria-label')") == "Navigation"


def test_in_a_wide_window_the_navigation_is_reached(opened: Open):
    page = opened(LESSON, viewport={"width": 1400, "height": 800})
    assert not page.evaluate("document.querySelector('.md-sidebar--primary').inert")


def test_a_word_of_the_glossary_is_explained_readably_until_escape(opened: Open):
    page = opened(LESSON)
    page.locator("a.term").first.focus()
    tip = page.locator(".md-tooltip2--active")
    tip.wait_for()
    size = tip.locator(".md-tooltip2__inner").evaluate("each => parseFloat(getComputedStyle(each).fontSize)")
    assert size >= 12
    page.keyboard.press("Escape")
    tip.wait_for(state="detached")


def test_a_touch_explains_a_word_and_a_second_one_follows_it(phone: Page):
    term = phone.locator("a.term").first
    here = phone.url
    term.scroll_into_view_if_needed()
    term.tap()
    phone.locator(".md-tooltip2--active").wait_for()
    assert phone.url.partition("#")[0] == here  # whatever heading the scrolling came by
    term.tap()
    phone.wait_for_url("**/notation/#*")


SHIFTS = """
window.shifts = 0
new PerformanceObserver((list) => list.getEntries().forEach((each) => (window.shifts += each.value)))
  .observe({ type: "layout-shift", buffered: true })
"""


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize(
    "where", ["", LESSON, "learn/generating/", "pytorch/scale/", "pytorch/tiles/", "pytorch/heads/", "museum/"]
)
def test_nothing_jumps_while_a_page_loads_slowly(tab: Page, address: str, where: str, width: int):
    tab.set_viewport_size({"width": width, "height": 900})
    tab.add_init_script(SHIFTS)
    late: list[Route] = []  # what draws a live figure comes once the page is there
    tab.route("**/live/*.js", lambda route: late.append(route))
    tab.goto(address + where, wait_until="commit")
    tab.locator("footer").wait_for()
    tab.evaluate(DRAWN)
    tab.route("**/live/*.js", lambda route: route.continue_())
    for each in late:
        each.continue_()
    tab.locator("[data-live]:not([data-drawn])").first.wait_for(state="detached")
    tab.wait_for_load_state("networkidle")
    tab.evaluate(DRAWN)
    assert tab.evaluate("window.shifts") < 0.05


HELD = "window.frames = []; window.requestAnimationFrame = (draw) => window.frames.push(draw)"
SHOWN = "(all) => all.map((each) => each.getClientRects().length > 0)"


def test_what_is_far_below_waits_for_the_first_frame_unless_a_link_leads_to_it(browser: Browser, address: str):
    page = browser.new_page(**PHONE)
    page.add_init_script(HELD)
    page.route("**/site.js", lambda _: None)  # it never comes, and so nothing is loaded
    blocks = page.locator("article > :not(script, style)")
    for place in ("", "#references"):
        page.goto("about:blank")
        page.goto(address + "pytorch/heads/" + place, wait_until="commit")
        page.locator("footer").wait_for(state="attached")
        shown = blocks.evaluate_all(SHOWN)
        assert (all(shown[:29]), any(shown[29:]), all(shown)) == (True, bool(place), bool(place))
    page.goto(address + "pytorch/heads/", wait_until="commit")
    page.locator("footer").wait_for(state="attached")
    page.evaluate("window.frames.forEach((draw) => draw())")
    page.evaluate("new Promise((done) => setTimeout(done))")
    assert all(blocks.evaluate_all(SHOWN)), "the first frame is there"
    page.unroute("**/site.js")
    page.reload()
    assert all(blocks.evaluate_all(SHOWN)), "all is loaded, and no frame was drawn: the page is in the background"
    page.close()


def test_the_benchmark_of_long_tasks_tells_of_each_page_how_long_they_are(site: Path):
    ran = python(BENCHMARK, site, "learn/cross/", "404.html", "--loads", 1)
    rows = re.findall(r"^ +(\d+) ms  \(\1 to \1\)  (?:NOT )?reached +(\S+)$", ran.stdout, re.MULTILINE)
    assert [page for _, page in rows] == ["learn/cross/", "404.html"]
    assert int(rows[0][0]) > int(rows[1][0]) > 0


def test_who_reloads_a_page_stays_where_he_was(on_phone: Open):
    """Above that place a live figure is drawn anew, which is higher than what stands there without it."""
    page = on_phone("pytorch/heads/")
    settled(page)
    page.evaluate("scrollTo(0, 9000)")
    page.evaluate(DRAWN)
    page.reload()
    settled(page)
    page.evaluate(DRAWN)
    assert page.evaluate("scrollY") == 9000


@pytest.mark.parametrize("width", [390, 360])
def test_what_explains_a_word_stays_on_a_phone(opened: Open, width: int):
    page = opened("pytorch/masks/", viewport={"width": width, "height": 800})
    for term in page.locator("a.term:visible").all()[:8]:
        term.focus()
        tip = page.locator(".md-tooltip2--active .md-tooltip2__inner")
        tip.wait_for()
        box = box_of(tip)
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
        page.keyboard.press("Escape")
        tip.wait_for(state="detached")


def test_paper_shows_no_solutions_and_nothing_to_press(opened: Open):
    page = opened("learn/masks/")
    page.wait_for_load_state("networkidle")
    assert page.locator("details.success").count() > 0
    page.emulate_media(media="print")
    page.evaluate("document.querySelectorAll('details').forEach((each) => (each.open = true))")  # as the theme does
    pressed = "details.success, details.question, .md-code__nav, .proofread-copy, .live-choices, .enlarge"
    assert page.locator(f"article :is({pressed}):visible").count() == 0
    assert page.locator(".live-mask td:visible").count() > 0, "what the figure shows is printed"


def test_boxes_of_every_kind_take_the_colors_of_the_site(opened: Open):
    colors = opened(LESSON).evaluate(
        """() => "question success example tip warning".split(" ").flatMap((kind) => ["div", "details"].map((tag) => {
          const box = document.createElement(tag)
          box.className = tag === "div" ? `admonition ${kind}` : kind
          box.innerHTML = tag === "div" ? '<p class="admonition-title"></p>' : "<summary></summary>"
          box.innerHTML += `<i style="color: var(--unmasked-${kind === "warning" ? "amber" : "teal"})"></i>`
          document.querySelector(".md-typeset h1").after(box)
          const [head, own] = box.children
          return [getComputedStyle(box).borderLeftColor, getComputedStyle(head, "::before").backgroundColor,
            getComputedStyle(own).color]
        }))"""
    )
    assert len(colors) == 10
    assert [each for each in colors if len({*each}) > 1] == []


def test_each_page_forbids_what_is_not_its_own(site: Path):
    for file in site.rglob("*.html"):
        html = file.read_text(encoding="utf-8")
        (policy,) = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', html)
        assert "default-src 'none'" in policy
        scripts = re.search(r"script-src ([^;]*)", policy)
        assert scripts
        assert "unsafe" not in scripts[1]
        assert html.index(policy) < html.index("<script")


def test_a_script_that_is_put_into_a_page_does_not_run(tab: Page, address: str):
    told: list[str] = []
    tab.on("console", lambda said: told.append(said.text))
    tab.goto(address)
    tab.evaluate(
        """() => {
          const planted = document.createElement("script")
          planted.textContent = "window.planted = 1"
          document.body.append(planted)
        }"""
    )
    assert tab.evaluate("window.planted") is None
    assert any("Content Security Policy" in each for each in told)
