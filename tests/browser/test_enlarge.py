"""A picture opens larger, by hand and by key, with its caption, and the reader comes back to where they were."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .conftest import Open, box_of, keeps_out

if TYPE_CHECKING:
    from playwright.sync_api import Page

ASSETS = Path(__file__).parents[2] / "docs/assets"
PICTURE = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 20 10" width="20" height="10"><path d="M0 0h20v10H0z"/></svg>'
)
FIGURE = """<div class="jp-OutputArea-output"><figure><img class="figure" src="picture.svg" alt="A bar." width="200">
<figcaption><b>Figure 3.</b> A bar.</figcaption></figure></div>"""
BARE = '<div class="jp-OutputArea-output"><img class="figure" src="picture.svg" alt="Another." width="200"></div>'


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("enlarge")
    for name in ("site.css", "site.js"):
        shutil.copy(ASSETS / name, root)
    (root / "picture.svg").write_text(PICTURE)
    (root / "index.html").write_text(
        '<!doctype html><html lang="en"><head><title>Figures</title><link rel="icon" href="data:,">'
        '<meta name="viewport" content="width=device-width"><link rel="stylesheet" href="site.css">'
        '<script src="site.js"></script></head>'
        '<body data-md-color-scheme="default" '
        'style="background: var(--md-default-bg-color); color: var(--md-typeset-color)">'
        '<main class="md-typeset">'
        f"<h1>Figures</h1>{FIGURE}{BARE}</main></body></html>"
    )
    return root


@pytest.fixture(params=[1280, 390])
def page(request: pytest.FixtureRequest, opened: Open) -> Page:
    return opened(viewport={"width": request.param, "height": 800})


def width(page: Page, selector: str) -> float:
    return box_of(page.locator(selector))["width"]


def test_a_click_on_the_picture_opens_it_larger_with_its_caption(page: Page):
    page.locator("figure img").click()
    dialog = page.get_by_role("dialog", name="Figure 3.")
    assert dialog.locator("figcaption").inner_text() == "Figure 3. A bar."
    assert dialog.locator("img").get_attribute("alt") == "A bar."
    assert width(page, "dialog img") >= 1.5 * width(page, "main figure img")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("end", ["Escape", "button", "outside"])
def test_it_opens_by_key_closes_and_gives_the_focus_back(page: Page, end: str):
    page.get_by_role("button", name="Enlarge Figure 3").focus()
    page.keyboard.press("Enter")
    page.get_by_role("dialog").wait_for()
    assert page.evaluate("document.querySelector('dialog').contains(document.activeElement)")
    if end == "Escape":
        page.keyboard.press("Escape")
    elif end == "button":
        page.get_by_role("button", name="Close").press("Enter")
    else:
        page.mouse.click(2, 2)
    page.get_by_role("dialog").wait_for(state="hidden")
    page.wait_for_function("document.activeElement.getAttribute('aria-label') === 'Enlarge Figure 3'")


def test_a_picture_without_a_caption_opens_too_and_shows_itself(page: Page):
    page.get_by_role("button", name="Enlarge the picture").click()
    dialog = page.get_by_role("dialog", name="Figure")
    assert dialog.locator("img").get_attribute("alt") == "Another."
    assert dialog.locator("figcaption").count() == 0


def test_it_is_open_to_all(page: Page, axe: str):
    assert keeps_out(page, axe, "document") == []
    page.locator("figure img").click()
    assert keeps_out(page, axe, "'dialog'") == []


def test_without_javascript_there_is_no_button_that_does_nothing(without_scripts: Open):
    assert without_scripts().locator("button").count() == 0
