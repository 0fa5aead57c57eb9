"""What a reader takes away of a page, and how they find their way: the copy, the contents, the progress, the keys."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ..conftest import pages
from .conftest import CLIPBOARD, PHONE, Open

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

LESSON, FIRST = "learn/masks/", "learn/attention/"
MARKDOWN, PLAIN = "Copied as Markdown", "Copied as plain text: the Markdown did not come"


def copied(page: Page, told: str) -> str:
    """What the clipboard holds once the page says that it has copied."""
    page.locator(".copied-page", has_text=told).wait_for()
    return str(page.evaluate("navigator.clipboard.readText()"))


def markdown(site: Path) -> str:
    return (site / LESSON / "index.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("options", [{}, PHONE], ids=["wide", "phone"])
def test_a_click_or_a_touch_copies_the_page_as_markdown_and_the_page_says_so(opened: Open, site: Path, options):
    page = opened(LESSON, permissions=CLIPBOARD, **options)
    button = page.get_by_role("button", name="Copy page")
    button.tap() if options else button.click()
    assert copied(page, MARKDOWN) == markdown(site)
    assert page.locator(".copied-page").get_attribute("role") == "status"


def test_a_key_copies_the_page_and_leaves_the_focus_where_it_was(opened: Open, site: Path):
    page = opened(LESSON, permissions=CLIPBOARD)
    page.get_by_role("button", name="Copy page").focus()
    page.keyboard.press("Enter")
    assert copied(page, MARKDOWN) == markdown(site)
    assert page.evaluate("document.activeElement.textContent") == "Copy page"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Markdown"


def test_what_was_near_once_is_copied_without_a_network_too(opened: Open, site: Path):
    page = opened(LESSON, permissions=CLIPBOARD)
    with page.expect_response("**/index.md"):
        page.get_by_role("button", name="Copy page").hover()
    page.context.set_offline(True)
    page.get_by_role("button", name="Copy page").click()
    assert copied(page, MARKDOWN) == markdown(site)


@pytest.mark.parametrize("where", ["offline", "file"])
def test_where_the_markdown_does_not_come_the_text_is_copied_with_what_is_folded(
    tab: Page, served: str, site: Path, where: str
):
    tab.context.grant_permissions(CLIPBOARD)
    tab.goto(served + LESSON if where == "offline" else (site / LESSON / "index.html").as_uri())
    tab.context.set_offline(where == "offline")
    tab.get_by_role("button", name="Copy page").click()
    text = copied(tab, PLAIN)
    assert text.startswith("Who may see whom?")
    assert "return (back >= 0) & (back < width)" in text  # of a solution
    for left in ("¶", "Copy page", "How this is checked", "You are here"):
        assert left not in text
    assert tab.locator("article details.success[open]").count() == 0
    assert tab.locator(".headerlink").first.evaluate("(each) => each.style.display") == ""


def test_a_browser_that_forbids_copying_is_told_of(browser: Browser, served: str):
    page = browser.new_page()
    page.add_init_script("navigator.clipboard.write = () => Promise.reject(Error('no'))")
    page.goto(served + LESSON)
    page.get_by_role("button", name="Copy page").click()
    page.locator(".copied-page", has_text="open the Markdown, and copy it there").wait_for()
    page.close()


def test_without_scripts_the_markdown_is_a_link_and_nothing_promises_more(opened: Open, site: Path):
    page = opened(LESSON, java_script_enabled=False, **PHONE)
    assert page.locator(".as-markdown").is_visible()
    page.locator(".page-contents summary").tap()
    assert page.locator(".page-contents a", has_text="Exercises").is_visible()
    assert not page.locator(".copy-page, .keys").locator("visible=true").count()
    assert (site / LESSON / str(page.locator(".as-markdown").get_attribute("href"))).is_file()


def test_a_phone_has_the_pages_contents_above_its_text(opened: Open):
    page = opened(LESSON, **PHONE)
    fold = page.locator(".page-contents")
    assert not fold.locator("a").first.is_visible()
    fold.locator("summary").focus()
    page.keyboard.press("Enter")
    headings = page.locator("article h2").evaluate_all(
        "(all) => all.map((each) => [each.id, each.firstChild.textContent])"
    )
    links = fold.locator("a").evaluate_all("(all) => all.map((each) => [each.hash.slice(1), each.textContent])")
    assert [name for name, _ in links] == [name for name, _ in headings]
    assert all(text.startswith(heading.strip()) for (_, text), (_, heading) in zip(links, headings, strict=True))
    fold.get_by_text("Exercises").tap()
    page.wait_for_url("**#exercises")
    assert page.locator("#exercises").evaluate("(each) => Math.abs(each.getBoundingClientRect().top) < innerHeight / 2")


def test_where_there_is_room_the_contents_stand_once(opened: Open):
    page = opened(LESSON)
    assert not page.locator(".page-contents").is_visible()
    assert page.locator(".md-sidebar--secondary a").first.is_visible()


def test_the_pages_of_learn_that_were_opened_are_marked_and_counted_in_this_browser_alone(opened: Open, site: Path):
    page = opened(LESSON)
    many = sum(where.startswith("learn/") for where in pages(site))
    asked: list[str] = []
    page.on("request", lambda request: asked.append(f"{request.method} {request.url}"))
    progress, marks = page.locator(".md-sidebar--primary .progress:visible"), page.locator(".opened:visible")
    assert progress.inner_text().strip() == f"1 of {many} opened"
    for times in (1, 2):  # a page counts once
        page.goto(page.url.replace(LESSON, FIRST))
        assert progress.inner_text().strip() == f"2 of {many} opened", times
        assert marks.count() == 2
        assert marks.first.get_attribute("aria-label") == "opened"
        page.reload()
    assert [each for each in asked if not each.startswith("GET ") or "?" in each] == []
    kept = page.evaluate("Object.entries(localStorage).filter(([name]) => name.endsWith('.learn'))")
    assert len(kept) == 1
    assert page.context.cookies() == []


def test_other_pages_count_nothing(opened: Open):
    page = opened("museum/")
    assert page.locator(".progress, .opened").count() == 0
    assert page.evaluate("Object.keys(localStorage).filter((name) => name.endsWith('.learn'))") == []


def test_the_keys_that_are_told_do_what_is_told(opened: Open):
    page = opened(LESSON)
    told = page.locator(".keys")
    assert told.is_visible()
    assert told.locator("kbd").all_inner_texts() == ["/", "s", "n", "p"]
    for key in ("/", "s"):
        page.wait_for_function("window.keyboard$ && !document.getElementById('__search').checked")  # the theme listens
        page.keyboard.press(key)
        page.locator(".md-search__input:focus").wait_for()
        page.keyboard.press("Escape")
        page.locator(".md-search__input:not(:focus)").wait_for()
    for key, name in (("n", "next"), ("p", "prev")):
        leads = page.locator(f".md-footer__link--{name}").evaluate("(each) => each.href")
        page.keyboard.press(key)
        page.wait_for_url(leads)


def test_a_phone_which_has_no_keys_is_told_of_none(browser: Browser, served: str):
    context = browser.new_context(**PHONE, is_mobile=True)
    page = context.new_page()
    page.goto(served + LESSON)
    assert not page.locator(".keys").is_visible()
    context.close()
