"""The system's own WebKit, driven over HTTP by WebDriver, in a screen that nobody sees.

Its driver tells of no error. So whoever serves the pages puts a script before all else in them that notes what goes
wrong, and each answer brings that along.
"""

from __future__ import annotations

import json
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from io import BytesIO
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from ..conftest import Silent
from .engine import SECONDS, Engine, started

# A window as narrow as a phone has no room for the buttons that GTK puts above the page, and needs none.
STYLE = "headerbar, headerbar button, toolbar, entry, button, notebook, box { min-width: 0; margin: 0; padding: 0 }"
SETTINGS = "[Settings]\ngtk-enable-animations=false\n"  # reduced motion
NOTES = """<script>
window.faults = []
{
  const note = (...said) => window.faults.push(said.join(" "))
  const later = "ResizeObserver loop" // no fault: who watches a size is told of it one frame later
  addEventListener("error", ({ message, target }) =>
    message?.startsWith(later) || note(message ?? `not loaded: ${target.outerHTML}`), true)
  addEventListener("unhandledrejection", ({ reason }) => note(reason))
  addEventListener("securitypolicyviolation", (event) => note(event.violatedDirective, event.blockedURI))
  const { error } = console
  console.error = (...said) => { note(...said); error.apply(console, said) }
}
</script>"""


class Listening(Silent):
    """Serves a folder, with a script in each page that notes what goes wrong there."""

    def send_head(self) -> BytesIO | IO[bytes] | None:  # type: ignore[override]
        path = Path(self.translate_path(self.path))
        path = path / "index.html" if path.is_dir() and urlsplit(self.path).path.endswith("/") else path
        if path.suffix != ".html" or not path.is_file():
            return super().send_head()
        html = path.read_text(encoding="utf-8")
        before, head, after = html.partition("<head>")
        page = "".join([before, head, NOTES, after] if head else [NOTES, html]).encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        return BytesIO(page)


class WebKit(Engine):
    """A WebKit with one tab, on pages that `Listening` serves."""

    pointer = "mouse"  # its driver knows no finger

    def __init__(self, driver: str) -> None:
        self.faults: list[str] = []
        self._session = driver
        self._session += f"/{self.call('', capabilities={})['sessionId']}"
        self.call("/timeouts", script=1000 * SECONDS)

    def call(self, what: str, **given: Any) -> Any:
        """What a command gives."""
        asked = urllib.request.Request(self._session + what, json.dumps(given).encode())
        try:
            with urllib.request.urlopen(asked, timeout=2 * SECONDS) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{what}: {error.read().decode()}; the page says {self.faults}") from None

    def set_width(self, width: int) -> None:
        self.call("/window/rect", x=0, y=0, width=width, height=900)

    def load(self, address: str) -> None:
        self.call("/url", url=address)

    def evaluate(self, script: str) -> Any:
        program = f"""
        const done = arguments[0];
        (async () => JSON.stringify([(await ({script})) ?? null, window.faults]))().then(done, (e) => done(`${{e}}`))
        """
        gave = self.call("/execute/async", script=program, args=[])
        assert gave.startswith("["), gave
        value, self.faults = json.loads(gave)
        return value

    def act(self, **source: Any) -> None:
        self.call("/actions", actions=[source])


@contextmanager
def running(driver: str, screen: str, folder: Path) -> Iterator[WebKit]:
    """A WebKit that a driver starts, with its settings in a folder, on a screen of its own."""
    settings = folder / ".config/gtk-3.0"
    settings.mkdir(parents=True)
    (settings / "gtk.css").write_text(STYLE)
    (settings / "settings.ini").write_text(SETTINGS)
    command = [screen, "-displayfd", "1", "-screen", "0", "1400x1000x24", "-nolisten", "tcp"]
    with started(command, folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as seen:
        assert seen.stdout
        display = {"DISPLAY": f":{seen.stdout.readline().strip()}", "GDK_BACKEND": "x11"}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        with started([driver, f"--port={port}"], folder, env=display, stdout=subprocess.DEVNULL) as program:
            while not _listens(port):
                with suppress(subprocess.TimeoutExpired):
                    raise AssertionError(f"{driver} has ended with {program.wait(0.05)}")
            yield WebKit(f"http://127.0.0.1:{port}/session")


def _listens(port: int) -> bool:
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0
