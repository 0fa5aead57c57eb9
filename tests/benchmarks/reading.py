"""How long does a page keep a phone busy at a stretch?

Run by hand: ``python tests/benchmarks/reading.py SITE [pages]``. SITE is a folder that ``mkdocs build`` has made;
without pages, all of it is measured. Of a page's longest task, the processor's time is taken, not the clock's, which
other programs on the machine would change, and four times that is what a phone needs. Chromium's own slowing leaves
out the first layout, which is the longest task of most pages. The figure of a page is the median over five loads, and
what is aimed at is 200 ms.
"""

from __future__ import annotations

import argparse
import functools
import json
import shutil
import statistics
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

SLOWED, AIM = 4, 200
PHONE = {"width": 390, "height": 844}


class Silent(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def longest(browser: Browser, url: str) -> float:
    """Milliseconds of processor time, slowed, of the longest task while a page loads."""
    page = browser.new_page(viewport=PHONE)
    browser.start_tracing(page=page, categories=["toplevel", "__metadata"])
    page.goto(url, wait_until="networkidle")
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestIdleCallback(done)))")
    events = json.loads(browser.stop_tracing())["traceEvents"]
    page.close()
    mains = {(e["pid"], e["tid"]) for e in events if e["args"].get("name") == "CrRendererMain"}
    tasks = [e for e in events if (e["pid"], e["tid"]) in mains and e["name"].endswith("RunTask")]
    return max(e.get("tdur", 0) for e in tasks) / 1000 * SLOWED


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site", type=Path)
    parser.add_argument("pages", nargs="*")
    parser.add_argument("--loads", type=int, default=5)
    options = parser.parse_args()
    pages = options.pages or sorted(
        f"{file.parent.relative_to(options.site)}/" for file in options.site.rglob("index.html")
    )
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Silent, directory=str(options.site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with sync_playwright() as playwright:
        program = shutil.which("chromium-headless-shell") or shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        for page in pages:
            url = f"http://127.0.0.1:{server.server_port}/{page}"
            times = sorted(longest(browser, url) for _ in range(options.loads))
            median = statistics.median(times)
            reached = "reached" if median <= AIM else "NOT reached"
            print(f"{median:6.0f} ms  ({times[0]:.0f} to {times[-1]:.0f})  {reached:12s}{page}", flush=True)
        browser.close()


if __name__ == "__main__":
    main()
