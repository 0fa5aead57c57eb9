"""What a reader does with the pages of a small project: copies a cell, asks a figure, opens a check, sees one live."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ..contrast import contrast
from .conftest import CLIPBOARD, Open, box_of, build_project
from .test_site import faults_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PROJECT = Path(__file__).parent / "teaching"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_project(PROJECT, tmp_path_factory.mktemp("teaching"))


@pytest.fixture
def page(opened: Open) -> Page:
    return opened("lessons/page/", permissions=CLIPBOARD)


def copied(page: Page) -> str:
    return str(page.evaluate("navigator.clipboard.readText()"))


@pytest.mark.parametrize("where", ["", "lessons/page/"])
def test_the_pages_are_open_to_all(browser: Browser, axe: str, served: str, where: str):
    # What the theme itself leaves undone is mended by the site that takes it.
    left = "aria-dialog-name|link-in-text-block|md-code__nav|empty-table-header|md-copyright"
    left += "|small for a finger|covers code|goes on unseen"
    found = faults_of(browser, axe, served, where, set(), whole=True)
    assert [fault for fault in found if not re.search(left, fault)] == []


def test_the_menu_of_a_cell_copies_what_it_says(page: Page, built: Path):
    cell = page.locator("#cell-2")
    button = cell.get_by_text("Copy", exact=True)
    choices = ["Copy with imports (8 lines)", "Copy this cell"]
    for choice in choices:
        button.click()
        assert cell.locator(".proofread-copy > :is(a, button)").all_inner_texts() == choices
        cell.get_by_text(choice).click()
        page.wait_for_function(f"document.querySelector('[role=status]').textContent === '{choice[:3]}ied{choice[4:]}'")
        assert not cell.get_by_text(choice).is_visible()
        if choice != choices[-1]:
            link = cell.get_by_text(choice).get_attribute("href")
            assert copied(page) == (built / "lessons/page" / str(link)).read_text()
            assert len(copied(page).splitlines()) == int("".join(filter(str.isdigit, choice)))
    assert copied(page) == "weights = weigh(torch.tensor([2.0, 1.0, 0.0]))\nweights\n"


def test_the_menu_works_by_keyboard_and_closes(page: Page):
    button = page.locator("#cell-2").get_by_text("Copy", exact=True)
    is_open = "document.querySelector('#cell-2 .proofread-copy').open"
    button.focus()
    page.keyboard.press("Enter")
    assert page.evaluate(is_open)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Copy with imports (8 lines)"
    page.keyboard.press("Escape")
    assert not page.evaluate(is_open)
    assert page.evaluate("document.activeElement.textContent") == "Copy"
    page.keyboard.press("Enter")
    page.locator("h1").click()
    assert not page.evaluate(is_open)


def test_each_cell_has_one_button_that_is_named_and_large_enough(page: Page):
    for place in (2, 4, 5, 6, 8):
        cell = page.locator(f"#cell-{place}")
        cell.evaluate("each => { if (each.closest('details')) each.closest('details').open = true }")
        found = cell.locator(".proofread-copy > summary:visible, .md-code__button:visible")
        assert found.count() == 1, place
        box = box_of(found)
        assert min(box["width"], box["height"]) >= 24, (place, box)
        name = found.evaluate("each => each.ariaLabel ?? (each.title || each.textContent)")
        assert name.startswith("Copy"), place


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_button_can_be_seen_at_rest(opened: Open, scheme: str):
    page = opened("lessons/page/", color_scheme=scheme)
    page.evaluate(f"document.body.dataset.mdColorScheme = '{'slate' if scheme == 'dark' else 'default'}'")
    for chosen, ground in (("#cell-2 summary >> nth=1", "#cell-2 code >> nth=1"), ("#cell-6 button", "#cell-6 code")):
        colors = [
            page.locator(one).first.evaluate(
                """(each, side) => {
                  const pixel = document.createElement("canvas").getContext("2d")
                  for (const under of [getComputedStyle(document.body).backgroundColor, getComputedStyle(each)[side]]) {
                    pixel.fillStyle = under
                    pixel.fillRect(0, 0, 1, 1)
                  }
                  return [...pixel.getImageData(0, 0, 1, 1).data].slice(0, 3).map((part) => part / 255)
                }""",
                side,
            )
            for one, side in ((chosen, "color"), (ground, "backgroundColor"))
        ]
        assert contrast(*colors) >= 3, (chosen, colors)


FIGURES = [
    ("67%", "weights[0] gives 0.665241"),
    ("67%", "weights[0] gives 0.665241"),
    ("0.24", "weights[1] gives 0.244728"),
]
PLACES = "[...document.querySelectorAll('article *')].map(e => [e.getBoundingClientRect().top, e.clientWidth].join())"


def test_a_figure_tells_what_gave_it_on_hover_focus_and_touch_and_moves_nothing(page: Page):
    figures = page.locator("p-f")
    tip = page.locator("[role=tooltip]")
    assert figures.all_inner_texts() == [shown for shown, _ in FIGURES]
    before = page.evaluate(PLACES)
    for place, (_, told) in enumerate(FIGURES):
        figure = figures.nth(place)
        figure.hover()
        tip.wait_for()
        page.wait_for_function(f"document.querySelector('[role=tooltip]')?.textContent === '{told}'")
        assert figure.get_attribute("aria-describedby") == tip.get_attribute("id")
        tip.hover()
        assert tip.is_visible()  # what it says can be pointed at, and copied
        page.keyboard.press("Escape")
        assert tip.count() == 0
        assert figure.get_attribute("aria-describedby") is None
        figure.focus()
        tip.wait_for()
        assert tip.inner_text() == told
        figure.blur()
        assert tip.count() == 0
    figures.last.hover()
    tip.wait_for()
    page.locator("h1").hover()
    assert tip.count() == 0
    page.evaluate("scrollTo(0, 0)")
    assert page.evaluate(PLACES) == before


def test_a_touch_is_enough_on_a_phone_and_what_it_tells_fits(on_phone: Open):
    page = on_phone("lessons/page/", viewport={"width": 320, "height": 700})
    tip = page.locator("[role=tooltip]")
    for figure in page.locator("p-f").all():
        figure.tap()
        tip.wait_for()
        box = box_of(tip)
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 320
        assert page.evaluate("document.documentElement.scrollWidth") <= 320
    page.locator("h1").tap()
    assert tip.count() == 0


def test_without_javascript_the_page_reads_as_before(without_scripts: Open):
    page = without_scripts("lessons/page/")
    figure = page.locator("p-f").first
    assert figure.inner_text() == "67%"
    assert figure.get_attribute("tabindex") is None
    assert page.locator("[data-live] p").inner_text() == "0.67, 0.24, 0.09"
    page.locator("#cell-2 .proofread-copy > summary").click()
    page.locator("#cell-2").get_by_text("Copy with imports (8 lines)").click()
    page.wait_for_url("**/cell-2.py")


def test_what_gave_the_figures_costs_a_page_few_bytes(built: Path):
    text = (built / "lessons/page/index.html").read_text()
    added = text.count("<p-f>") * len("<p-f></p-f>") + len(' data-figures="figures.json"')
    assert "weights[0]" not in re.sub(r"<pre>.*?</pre>", "", text, flags=re.DOTALL)
    assert added == 11 * 3 + 28
    given = json.loads((built / "lessons/page/figures.json").read_text())
    assert [f"{expression} gives {value}" for expression, value in given] == [told for _, told in FIGURES]


def test_a_module_draws_what_the_run_gave_in_the_place_of_its_figure_and_only_there(page: Page, built: Path):
    page.wait_for_selector("meter")
    names = page.locator("[data-live=bars] meter").evaluate_all("all => all.map(e => e.ariaLabel)")
    assert names == ["first: 0.67", "second: 0.24", "third: 0.09"]
    assert page.locator("figure:has(meter) figcaption").inner_text() == "Figure 2. The three weights."
    container = page.locator("[data-live=bars]")
    data = built / "lessons/page" / str(container.get_attribute("data-json"))
    assert container.get_attribute("data-bytes") == str(data.stat().st_size)
    assert "bars.js" not in (built / "index.html").read_text()
    scripts = re.findall(r"<script[^>]*>", (built / "lessons/page/index.html").read_text())
    assert [script for script in scripts if "bars" in script] == ['<script type="module" src="../../live/bars.js">']


def test_checks_are_folded_with_all_they_show_and_the_search_does_not_look_there(page: Page, built: Path):
    fold = page.locator("details.proofread-check")
    assert fold.count() == 1
    assert not fold.get_by_text("checked wordily").first.is_visible()
    fold.locator(":scope > summary").click()
    assert fold.locator("pre").get_by_text("checked wordily").last.is_visible()
    assert fold.evaluate("each => each.nextElementSibling.textContent").startswith("Live")
    index = json.loads((built / "search/search_index.json").read_text())["docs"]
    text = " ".join(entry["text"] for entry in index)
    assert "The end." in text
    assert "weigh" in text
    for folded in ("isclose", "wordily", "Copy", "One square", "Checked on"):
        assert folded not in text, folded


def test_a_link_leads_to_a_figure(page: Page):
    page.get_by_role("link", name="Figure 1").click()
    page.wait_for_url("**#figure-1")
    box = box_of(page.locator("figure").first)
    assert 0 <= box["y"] < 700
