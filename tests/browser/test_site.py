"""What a reader of the site meets in a browser: on every page, in dark and light, on a wide screen and on a phone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from proofread.pages.page import find_pages

from .conftest import CLIPBOARD, DRAWN, LOOKS, settled, watched

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

DOCS = Path(__file__).parents[2] / "docs"
SOURCES = find_pages([DOCS])
OPEN = """
async () => {
  // Solutions and hints are read, too; the sources of docstrings are code like any other, and there is much of it.
  document.querySelectorAll("details:not(.mkdocstrings-source)").forEach((each) => (each.open = true))
  for (const image of document.images) image.loading = "eager"
  // What cannot be loaded is told of by the browser.
  await Promise.all([...document.images].filter((i) => i.checkVisibility()).map((i) => i.decode().catch(() => {})))
}
"""
WIDE = """
() => {
  if (document.documentElement.scrollWidth <= innerWidth) return []
  const inside = (each) => {
    for (let p = each.parentElement; p && p !== document.body; p = p.parentElement)
      if (getComputedStyle(p).overflowX !== "visible") return false
    return true
  }
  return [...document.querySelectorAll("body *")]
    .filter((each) => each.getBoundingClientRect().right > innerWidth + 1 && inside(each))
    .slice(0, 3).map((each) => each.outerHTML.slice(0, 120))
}
"""
# What hands and eyes do not reach: what is to be pressed and is smaller than a finger tip; text that is too small in a
# figure that lives, or goes over its side; code under a button; and what goes on at the side, unseen or past all keys.
CRAMPED = """
() => {
  const onPhone = innerWidth < 400
  const shown = (what) => [...document.querySelectorAll(what)]
    .filter((each) => each.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true }))
  const size = (each) => parseFloat(getComputedStyle(each).fontSize) * (each.getScreenCTM?.().a ?? 1)
  const isSmall = (each) => {
    const { width, height } = each.getBoundingClientRect()
    return width && (width < 23.9 || height < 23.9)
  }
  // Links in a line of text, which are as high as the line, are left out by WCAG 2.5.8 as well.
  const inLine = (each) => getComputedStyle(each).display === "inline" && each.closest(
    "p, li, td, th, dd, figcaption, h2, pre")
  const goesOver = (each) => {
    const [inner, outer] = [each, each.closest("[data-live]")].map((part) => part.getBoundingClientRect())
    return inner.width && (inner.left < outer.left - 1 || inner.right > outer.right + 1)
  }
  const covers = (button) => {
    const cell = button.closest(".proofread-copy")?.parentElement ?? button.closest("pre")
    const code = cell.querySelector("pre > code") ?? cell.querySelector("code")
    const [one, text] = [button.getBoundingClientRect(), document.createRange()]
    const lines = document.createTreeWalker(code, NodeFilter.SHOW_TEXT)
    while (lines.nextNode()) {
      text.selectNode(lines.currentNode)
      for (const { left, right, top, bottom, width } of text.getClientRects()) {
        if (top > one.bottom) return false
        if (width && right > one.left && left < one.right && bottom > one.top) return true
      }
    }
    return false
  }
  const isWide = (each) => /auto|scroll/.test(getComputedStyle(each).overflowX) && each.scrollWidth > each.clientWidth
  const goesOnUnseen = (each) => {
    const fades = getComputedStyle(each).backgroundAttachment.startsWith("local, local, scroll")
    const table = each.querySelector(":scope > table")
    const hides = table && getComputedStyle(table).backgroundColor !== "rgba(0, 0, 0, 0)"
    return each.tabIndex !== 0 || hides || !fades
  }
  const found = {
    "small text": shown("[data-live] *").filter((each) => size(each) < 9 &&
      [...each.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.textContent.trim())),
    "over the side of its figure": shown("[data-live] :is(button, input, table, svg, svg text)").filter(goesOver),
    "small for a finger": shown("a[href], button, summary, label[for], input, [tabindex='0'], [role=slider]")
      .filter((each) => !each.closest("[inert]") && each.type !== "checkbox" && each.type !== "radio")
      .filter((each) => each.closest("[data-live]") || (onPhone && !each.closest("svg")))
      .filter((each) => !inLine(each) && isSmall(each)),
    "covers code": shown(".proofread-copy > summary, .md-code__button").filter((each) => onPhone && covers(each)),
    "goes on unseen": shown("article *").filter((each) => isWide(each) && goesOnUnseen(each)),
  }
  return Object.entries(found).flatMap(([what, all]) => all.map((each) => `${what}: ${each.outerHTML.slice(0, 120)}`))
}
"""
# Gives the scheme that the page has been in, if it has two; the day comes as by the page's own switch.
TURN = """
async (scheme) => {
  const shown = document.body.dataset, has = shown.mdColorScheme
  if (has && scheme === "light") shown.mdColorScheme = "default"
  await Promise.all(document.getAnimations().map((each) => each.finished.catch(() => {})))
  return scheme === "dark" && has && has !== "slate" ? "light" : scheme
}
"""
# Marks one text of each look that was not seen before, and returns these. A look is a text's color, size and weight,
# whether it is a link, and all that lies below it.
LOOKS_ALIKE = """
([left, before]) => {
  const grounds = new Map([[null, ""]]), seen = new Set(before)
  const ground = (each) => {
    if (!grounds.has(each)) {
      const { backgroundColor, backgroundImage, opacity, position } = getComputedStyle(each)
      const moved = position === "absolute" || position === "fixed" ? each.className : "" // it may lie on anything
      const own = [backgroundColor, backgroundImage, opacity, moved].join()
      grounds.set(each, ground(each.parentElement) + (own === "rgba(0, 0, 0, 0),none,1," ? "" : `/${own}`))
    }
    return grounds.get(each)
  }
  for (const each of document.querySelectorAll("body *")) {
    each.removeAttribute("data-look")
    const told = [...each.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.textContent.trim())
    const box = each.getBoundingClientRect()
    if (!told || (left && each.closest(left)) || !each.checkVisibility() || box.width < 2 || box.height < 2) continue
    const { color, fontSize, fontWeight, fontStyle, textDecorationLine } = getComputedStyle(each)
    const link = each.closest("a, button"), around = link ? getComputedStyle(link.parentElement).color : ""
    const look = [color, fontSize, fontWeight, fontStyle, textDecorationLine, !!link, around, ground(each)].join()
    each.toggleAttribute("data-look", !seen.has(look))
    seen.add(look)
  }
  return [...seen].slice(before.length)
}
"""
AXE = """
async ([context, rules]) => (
  "include" in context && !document.querySelector(context.include) ? {violations: []} :
    await axe.run(context, {resultTypes: ["violations"], ...rules})
).violations.flatMap((each) =>
  each.nodes.map((node) => `${each.id} (${each.impact}): ${node.target} ${node.html.slice(0, 160)} ` +
    [...node.any, ...node.all, ...node.none].map((check) => check.message).join(" ")))
"""
# What axe-core says of colors hangs on no width. It is two thirds of what it takes, and what looks alike reads alike.
CONTRAST = ["color-contrast", "link-in-text-block"]
OF_COLORS: dict[str, Any] = {"runOnly": CONTRAST}
OF_ALL_ELSE: dict[str, Any] = {"rules": {name: {"enabled": False} for name in CONTRAST}}
# By night or day, how wide, and which of axe-core's rules.
VIEWS: list[tuple[str, int, list[dict[str, Any]]]] = [
    ("dark", 1280, [OF_COLORS]),
    ("light", 320, [OF_COLORS, OF_ALL_ELSE]),
    ("light", 1280, []),
]


# Code and formulas are most of what there is to look at, and look alike on all pages, as what stands around a page
# does: on one page they are read with it.
ALIKE = ["pre", "math", ".md-header", ".md-sidebar--primary", ".md-footer"]


def place(source: Path) -> str:
    """Where a page of docs is in the site."""
    path = source.relative_to(DOCS).with_suffix("")
    name = str(path.parent if path.name == "index" else path)
    return "" if name == "." else f"{name}/"


SCRIPTS = [place(source) for source in SOURCES if source.suffix == ".py"]
WHOLE = SCRIPTS[-1]  # the page that is read with what stands around it


def case(source: Path) -> Any:
    """Where a page is; a run tries some of them, and those that have changed."""
    where = place(source)
    marks = () if where == WHOLE else pytest.mark.drawn(source.relative_to(DOCS.parent).as_posix(), *LOOKS)
    return pytest.param(where, marks=marks, id=where.strip("/") or "home")


PAGES = [case(source) for source in SOURCES]


def faults_of(
    browser: Browser,
    axe: str,
    address: str,
    where: str,
    seen: set[str],
    whole: bool = False,
    used: Callable[[Page], Iterable[str]] = lambda page: (),
) -> list[str]:
    """What is wrong with a page by night, as it is opened here, and by day, on a wide screen and on a phone.

    Or where it is used, which begins where it is wide. The whole page is looked at with what stands around the text.
    """
    wide = {"width": 1280, "height": 900}
    context = browser.new_context(color_scheme="dark", reduced_motion="reduce", viewport=wide, permissions=CLIPBOARD)
    page, faults = watched(context, address)
    page.goto(address + where)
    page.evaluate(OPEN)
    settled(page)
    page.evaluate(axe)
    found = []
    for scheme, width, rules in VIEWS:
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        if page.evaluate(TURN, scheme) != scheme:
            faults.append("it opens in the colors of the day")
        page.set_viewport_size({"width": width, "height": 900})
        page.evaluate(DRAWN)  # what is observed for its size has been told
        left = [] if whole else ALIKE
        for each in rules or [OF_ALL_ELSE] * whole:
            of: dict[str, Any] = {"exclude": [[name] for name in left]}
            if each is OF_COLORS:
                seen.update(page.evaluate(LOOKS_ALIKE, [", ".join(left), [*seen]]))
                of = {"include": "[data-look], input, select, textarea"}
            faults += [f"at {width} pixels, axe: {said}" for said in page.evaluate(AXE, [of, each])]
        faults += [f"at {width} pixels, goes over the side: {each}" for each in page.evaluate(WIDE)]
        faults += [f"at {width} pixels, {said}" for said in page.evaluate(CRAMPED)]
        found += [f"{scheme}: {fault}" for fault in faults]
        faults.clear()
    found += used(page)
    context.close()
    return [*found, *faults]


@pytest.fixture(scope="module")
def seen() -> set[str]:
    """How texts look that were read on the pages before: what looks alike reads alike."""
    return set()


@pytest.mark.parametrize("where", PAGES)
def test_a_page_opens_without_errors_or_strangers_fits_a_phone_is_open_to_all_and_copies_its_cells(
    browser: Browser, axe: str, address: str, site: Path, seen: set[str], where: str
):
    is_whole = where == WHOLE
    used = partial(miscopied, site, where, tried=is_whole) if where in SCRIPTS else lambda page: ()
    assert faults_of(browser, axe, address, where, seen, is_whole, used) == []


def test_each_of_these_faults_is_noticed(browser: Browser, axe: str, faulty: tuple[Path, str]):
    folder, address = faulty
    (folder / "index.html").write_text(
        '<html lang="en"><title>Faults</title><body data-md-color-scheme="default"><main><h1>Faults</h1>'
        '<img src="missing.png">'
        '<div style="width: 900px; color: #777; background: #888">wide</div>'
        '<button style="width: 20px">x</button>'
        '<pre><button class="md-code__button" style="width: 99px; height: 99px; position: absolute"></button>'
        '<code>one</code></pre><div data-live="x" data-drawn style="width: 99px"><p style="font-size: 8px">tiny</p>'
        '<table><td><div style="width: 200px">wide</div></table></div>'
        '<article><div style="width: 99px; overflow: auto"><p style="width: 200px">on</p></div></article>'
        '<p style="color: #595959">read</p><p style="color: #595959; background: #999" id="ground">not read</p>'
        '<script src="http://localhost:9/stranger.js"></script><script>throw Error("planted")</script></main></html>'
    )
    found = "\n".join(faults_of(browser, axe, address, "", set()))
    for fault in (
        "light: at 320 pixels, goes over the side: <div",
        "light: at 320 pixels, small for a finger: <button style",
        "light: at 320 pixels, covers code: <button class",
        "light: at 320 pixels, small text: <p style",
        "light: at 320 pixels, over the side of its figure: <table>",
        "light: at 320 pixels, goes on unseen: <div style",
        "light: at 320 pixels, axe: image-alt (critical)",
        "dark: at 1280 pixels, axe: color-contrast (serious): div",
        "dark: at 1280 pixels, axe: color-contrast (serious): #ground",
        "another origin: http://localhost:9/stranger.js",
        "dark: it opens in the colors of the day",
        "error: planted",
        "console: Failed to load resource",
    ):
        assert fault in found
    assert "at 1280 pixels, goes over the side" not in found


def miscopied(site: Path, where: str, page: Page, *, tried: bool) -> Iterator[str]:
    """Which cells of a page have no program, or none that is there; and where the menus of two cells are tried, too.

    The first and the last cell and their programs are copied as they are: one script does it on all pages.
    """
    folders = [site / where, site / where / "index"]
    cells = page.locator(".jp-Cell:has(.proofread-copy)")
    programs = {path.name for folder in folders for path in folder.glob("cell-*.py")}
    named = page.locator(".proofread-copy > a").evaluate_all("(each) => each.map((a) => a.getAttribute('href'))")
    if not {Path(name).name for name in named} <= programs or bool(named) is not bool(programs):
        yield f"the menus of {cells.count()} cells name {named}, and there are {programs}"
    page.evaluate("document.querySelectorAll('.proofread-copy').forEach((each) => (each.open = false))")
    for cell in (cells.first, cells.last) if tried else ():
        choices = cell.locator(".proofread-copy > :is(a, button)")
        for number in range(choices.count()):
            page.evaluate("navigator.clipboard.writeText('')")
            cell.locator(".proofread-copy > summary").click()
            address = choices.nth(number).get_attribute("href")
            choices.nth(number).click()
            code = (site / where / address).read_text() if address else cell.locator(":scope > .highlight").inner_text()
            if (given := copied(page)).strip() != code.strip():
                yield f"copied {given!r}, not {code!r}"


def copied(page: Page) -> str:
    """What the clipboard holds once it holds something: a program is fetched before it is copied."""
    deadline = time.monotonic() + 20
    while not (text := str(page.evaluate("navigator.clipboard.readText()"))):
        assert time.monotonic() < deadline, "nothing is copied"
        page.wait_for_timeout(20)
    return text
