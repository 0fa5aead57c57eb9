"""The site in a real browser: built once, for all tests, it is served from this machine, and opened in Chromium."""

from __future__ import annotations

import functools
import importlib.util
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ..conftest import serve
from ..running import build

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, FloatRect, Locator, Page

# The system's own browser: what a driver would download is another one. The first has no window, and takes half of the
# processor's time.
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")

PHONE = {"viewport": {"width": 390, "height": 800}, "has_touch": True}
CLIPBOARD = ["clipboard-read", "clipboard-write"]
Open = Callable[..., "Page"]

# It asks nobody for anything by itself.
QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def built(site: Path) -> Path:
    """What the tests of a module open: the site, where the module has nothing else."""
    return site


@pytest.fixture(scope="module")
def served(built: Path) -> Iterator[str]:
    """Where it is."""
    yield from serve(built)


# Two frames: what was changed is laid out by then, and who observes its size has been told.
DRAWN = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


def box_of(part: Locator) -> FloatRect:
    """Where a part of a page is drawn."""
    box = part.bounding_box()
    assert box is not None, f"{part} is not drawn"
    return box


def draw_finger(page: Page, *points: tuple[float, float]) -> None:
    """Draw a finger over the screen, from the first point to the last."""
    touch = page.context.new_cdp_session(page)
    for x, y in points:
        kind = "touchStart" if (x, y) == points[0] else "touchMove"
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [{"x": x, "y": y}]})
    touch.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})


def settled(page: Page) -> None:
    """Wait until all has come that comes after a page is loaded, and moves what stands below it.

    A figure that lives is drawn once its data are there, and a text has its own font once that is there. The pages'
    policy forbids Playwright's `wait_for_function`, which makes a function of a text.
    """
    page.locator("[data-live]:not([data-drawn])").first.wait_for(state="detached")
    page.evaluate("document.fonts.ready.then(() => true)")


DOCS = Path(__file__).parents[2] / "docs"
LIVE = DOCS.parent / "src/unmasked_lessons/figures"
# How all pages look, and what figures that live do: once that changes, no case of those that are alike is left out.
LOOKS = ("docs/assets", "docs/theme", "src/unmasked_lessons/figures")


def copy_scripts(folder: Path) -> None:
    """The site's own scripts of figures that live, without the Python beside them."""
    shutil.copytree(LIVE, folder, ignore=shutil.ignore_patterns("*.py*", "__pycache__"))


def build_project(folder: Path, root: Path) -> Path:
    """Copy a small project and build its site, with its own modules."""
    shutil.copytree(folder, root, dirs_exist_ok=True)
    build(root, root / "site", PYTHONPATH=str(root))
    return root / "site"


def write_figures(root: Path, data: dict[str, Any]) -> Path:
    """A page for each figure that lives, by its name, with its data and the site's own styles."""
    copy_scripts(root / "live")
    (root / "live/live.css").touch()
    theme = importlib.util.find_spec("material")
    assert theme is not None
    assert theme.origin is not None
    themes = sorted((Path(theme.origin).parent / "templates/assets/stylesheets").glob("*.css"))
    sheets = [*themes, DOCS / "assets/site.css", DOCS.parent / "src/proofread/publish/assets/proofread.css"]
    for sheet in sheets:
        shutil.copy(sheet, root)
    links = "".join(f'<link rel="stylesheet" href="{sheet.name}">' for sheet in sheets)
    for name, given in data.items():
        (root / f"{name}.json").write_text(json.dumps(given))
        (root / f"{name}.html").write_text(
            f'<!doctype html><html lang="en"><head><title>{name}</title><link rel="icon" href="data:,">'
            f'<meta name="viewport" content="width=device-width">{links}</head><body data-md-color-scheme="default">'
            f'<main class="md-typeset" style="margin: 16px; max-width: 688px"><h1>{name}</h1>'
            f'<div class="jp-OutputArea-output"><figure><div data-live="{name}" data-json="{name}.json">static</div>'
            f'</figure></div></main><script type="module" src="live/{name}.js"></script></body></html>'
        )
    return root


def keeps_out(page: Page, axe: str, what: str) -> list[str]:
    """What of a part of a page keeps readers out, by day and by night, by axe-core."""
    page.evaluate(axe)
    found = []
    for scheme in ("default", "slate"):
        page.evaluate("(scheme) => (document.body.dataset.mdColorScheme = scheme)", scheme)
        violations = page.evaluate(f"async () => (await axe.run({what})).violations")
        found += [f"{scheme}: {each['id']}: {node['html']}" for each in violations for node in each["nodes"]]
    return found


@pytest.fixture
def faulty(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """An empty folder, and the address where it is served."""
    for address in serve(tmp_path):
        yield tmp_path, address


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip("needs Chromium: apt-get install chromium-headless-shell")
    if importlib.util.find_spec("playwright") is None:
        pytest.skip('needs playwright: pip install -e ".[test]"')
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=QUIET)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def axe() -> str:
    """The program that finds what keeps readers out."""
    found = importlib.util.find_spec("axe_playwright_python")
    if found is None or not found.origin:
        pytest.skip('needs axe-core: pip install -e ".[test]"')
    return Path(found.origin).with_name("axe.min.js").read_text(encoding="utf-8")


def watched(context: BrowserContext, address: str) -> tuple[Page, list[str]]:
    """A tab, and what goes wrong in it."""
    page, faults = context.new_page(), []
    page.on("console", lambda said: faults.append(f"console: {said.text}") if said.type == "error" else None)
    page.on("pageerror", lambda error: faults.append(f"error: {error}"))

    def asked(url: str) -> None:
        if not url.startswith((address, "data:", "blob:")):
            faults.append(f"another origin: {url}")

    page.on("request", lambda request: asked(request.url))
    return page, faults


@pytest.fixture
def tab(browser: Browser) -> Iterator[Page]:
    """An empty page in which something may go wrong: what a test breaks is no fault there."""
    page = browser.new_page()
    yield page
    page.close()


@pytest.fixture
def opened(browser: Browser, served: str) -> Iterator[Open]:
    """Opens a page of what the module serves, and waits until all of it is there; in the end nothing has gone wrong."""
    contexts, faults = [], []

    def open_page(where: str = "", at: str = served, **options: Any) -> Page:
        usual = {"reduced_motion": "reduce", "viewport": {"width": 1280, "height": 900}}
        context = browser.new_context(**usual | options)
        page, wrong = watched(context, at)
        contexts.append(context)
        faults.append(wrong)
        page.goto(at + where)
        if options.get("java_script_enabled", True):
            settled(page)
        return page

    yield open_page
    assert [fault for wrong in faults for fault in wrong] == []
    for context in contexts:
        context.close()


@pytest.fixture
def on_phone(opened: Open) -> Open:
    """Opens a page as a phone does."""
    return functools.partial(opened, **PHONE)


@pytest.fixture
def without_scripts(opened: Open) -> Open:
    """Opens a page in a browser that runs no script."""
    return functools.partial(opened, java_script_enabled=False)
