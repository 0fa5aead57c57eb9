"""The system's own Firefox without a window, driven by what it speaks itself: WebDriver BiDi.

Playwright drives no Firefox but one of its own, which it would download.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

SECONDS = 60  # until an answer comes, on a machine that does other work as well
PREFERENCES = {
    "dom.w3c_touch_events.enabled": 1,  # it has a screen that is touched
    "ui.prefersReducedMotion": 1,
    "dom.ipc.processPrelaunch.enabled": False,
    "browser.cache.disk.enable": False,
}
# All is drawn that is drawn once its data are there; and two frames later, what that asks for has been asked for.
SETTLED = """
new Promise((done) => {
  const frame = (then) => requestAnimationFrame(() => requestAnimationFrame(then))
  const look = () => document.querySelector("[data-live]:not([data-drawn])") ? frame(look) : frame(done)
  document.fonts.ready.then(look)
})
"""


class Firefox:
    """A Firefox with one tab.

    Attributes:
        faults: What went wrong on the page that is open: errors, and what its policy forbids.
    """

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

    def open(self, address: str, width: int = 1280) -> None:
        """Open a page, and wait until all of it is there."""
        self.call("browsingContext.setViewport", context=self._tab, viewport={"width": width, "height": 900})
        for where in ("about:blank", address):  # what leaving a page interrupts is no fault of the next one
            self.faults.clear()
            self.call("browsingContext.navigate", context=self._tab, url=where, wait="complete")
        self.evaluate(SETTLED)

    def evaluate(self, script: str) -> Any:
        """What an expression gives on the page, as JSON says it."""
        program = f"(async () => JSON.stringify((await ({script})) ?? null))()"
        gave = self.call("script.evaluate", expression=program, target={"context": self._tab}, awaitPromise=True)
        assert gave["type"] == "success", gave
        return json.loads(gave["result"]["value"])

    def draw_finger(self, points: Sequence[tuple[float, float]]) -> None:
        """Draw a finger over the screen, from the first point to the last."""
        moves = [{"type": "pointerMove", "x": round(x), "y": round(y)} for x, y in points]
        steps = [moves[0], {"type": "pointerDown", "button": 0}, *moves[1:], {"type": "pointerUp", "button": 0}]
        finger = {"type": "pointer", "id": "finger", "parameters": {"pointerType": "touch"}, "actions": steps}
        self.call("input.performActions", context=self._tab, actions=[finger])


@contextmanager
def running(program: str, folder: Path) -> Iterator[Firefox]:
    """A Firefox whose profile, home and all else that it writes are in a folder."""
    from websockets.sync.client import connect

    (folder / "user.js").write_text(
        "".join(f"user_pref({json.dumps(name)}, {json.dumps(value)});\n" for name, value in PREFERENCES.items())
    )
    command = [program, "--headless", "--no-remote", "--profile", str(folder), "--remote-debugging-port=0"]
    own = os.environ | {"HOME": str(folder), "TMPDIR": str(folder)}
    browser = subprocess.Popen(
        command, env=own, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert browser.stderr
    try:
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
    finally:
        with suppress(ProcessLookupError):
            os.killpg(browser.pid, signal.SIGKILL)
        browser.wait()
        browser.stderr.close()
