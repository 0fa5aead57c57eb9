"""The site in a real browser: built once, for all tests, it is served from this machine, and opened in Chromium."""

from __future__ import annotations

import functools
import http.server
import importlib.util
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

# The system's own browser: what a driver would download is another one. The first has no window, and takes half of the
# processor's time.
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")

# It asks nobody for anything by itself.
QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


class _Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def _serve(folder: Path) -> Iterator[str]:
    """Serve a folder at an address of this machine until the generator is closed."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Silent, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="session")
def address(site: Path) -> Iterator[str]:
    yield from _serve(site)


# Two frames: what was changed is laid out by then, and who observes its size has been told.
DRAWN = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


def settled(page: Page) -> None:
    """Wait until all has come that comes after a page is loaded, and moves what stands below it.

    A figure that lives is drawn once its data are there, and a text has its own font once that is there. The pages'
    policy forbids Playwright's `wait_for_function`, which makes a function of a text.
    """
    page.locator("[data-live]:not([data-drawn])").first.wait_for(state="detached")
    page.evaluate("document.fonts.ready.then(() => true)")


@pytest.fixture
def faulty(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """An empty folder, and the address where it is served."""
    for address in _serve(tmp_path):
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
def opened(browser: Browser, served: str) -> Iterator[Callable[..., Page]]:
    """Opens a page of what the module serves, and waits until all of it is there; in the end nothing has gone wrong."""
    contexts, faults = [], []

    def open_page(where: str, **options: Any) -> Page:
        usual = {"reduced_motion": "reduce", "viewport": {"width": 1280, "height": 900}}
        context = browser.new_context(**usual | options)
        page, wrong = watched(context, served)
        contexts.append(context)
        faults.append(wrong)
        page.goto(served + where)
        settled(page)
        return page

    yield open_page
    assert [fault for wrong in faults for fault in wrong] == []
    for context in contexts:
        context.close()
