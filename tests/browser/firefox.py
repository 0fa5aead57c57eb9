"""The system's own Firefox without a window, driven by what it speaks itself: WebDriver BiDi.

Playwright drives no Firefox but one of its own, which it would download.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .engine import SECONDS, Engine, started

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

PREFERENCES = {
    "dom.w3c_touch_events.enabled": 1,  # it has a screen that is touched
    "ui.prefersReducedMotion": 1,
    "dom.ipc.processPrelaunch.enabled": False,
    "browser.cache.disk.enable": False,
}


class Firefox(Engine):
    """A Firefox with one tab."""

    pointer = "touch"

    def __init__(self, connection: ClientConnection) -> None:
        self.faults: list[str] = []
        self._connection, self._sent = connection, 0
        self.call("session.new", capabilities={})
        self.call("session.subscribe", events=["log.entryAdded"])
        self._tab = self.call("browsingContext.getTree")["contexts"][0]["context"]

    def call(self, method: str, **given: Any) -> Any:
        """What a command gives; what is told meanwhile is noted."""
        self._sent += 1
        self._connection.send(json.dumps({"id": self._sent, "method": method, "params": given}))
        while (told := self._heard(method)).get("id") != self._sent:
            if told["type"] == "event":
                self._note(told["params"])
        assert told["type"] == "success", told
        return told["result"]

    def _heard(self, method: str) -> dict[str, Any]:
        try:
            return dict(json.loads(self._connection.recv(timeout=SECONDS)))
        except TimeoutError:
            raise AssertionError(f"{method} has had no answer for {SECONDS} s; the page says {self.faults}") from None

    def _note(self, said: dict[str, Any]) -> None:
        if said["level"] == "error" or said["text"].startswith("Content-Security-Policy"):
            self.faults.append(said["text"])

    def set_width(self, width: int) -> None:
        self.call("browsingContext.setViewport", context=self._tab, viewport={"width": width, "height": 900})

    def load(self, address: str) -> None:
        for where in ("about:blank", address):  # what leaving a page interrupts is no fault of the next one
            self.faults.clear()
            self.call("browsingContext.navigate", context=self._tab, url=where, wait="complete")

    def evaluate(self, script: str) -> Any:
        program = f"(async () => JSON.stringify((await ({script})) ?? null))()"
        gave = self.call("script.evaluate", expression=program, target={"context": self._tab}, awaitPromise=True)
        assert gave["type"] == "success", gave
        return json.loads(gave["result"]["value"])

    def press_focused(self) -> None:
        self.evaluate("document.activeElement.click()")  # a key presses no button in a window that is not in use

    def act(self, **source: Any) -> None:
        self.call("input.performActions", context=self._tab, actions=[source])


@contextmanager
def running(program: str, folder: Path) -> Iterator[Firefox]:
    """A Firefox whose profile is in a folder."""
    from websockets.sync.client import connect

    (folder / "user.js").write_text(
        "".join(f"user_pref({json.dumps(name)}, {json.dumps(value)});\n" for name, value in PREFERENCES.items())
    )
    command = [program, "--headless", "--no-remote", "--profile", str(folder), "--remote-debugging-port=0"]
    with started(command, folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as browser:
        assert browser.stderr
        said = []
        for line in browser.stderr:
            said.append(line)
            if found := re.search(r"BiDi listening on (\S+)", line):
                break
        else:
            raise AssertionError(f"{program} did not begin:\n{''.join(said)}")
        with connect(f"{found[1]}/session", max_size=None) as connection:
            firefox = Firefox(connection)
            yield firefox
            firefox.call("browser.close")
        browser.wait(SECONDS)
