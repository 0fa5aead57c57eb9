"""A browser of another engine than Chromium's: what its tests ask of it, whatever it is driven by."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

SECONDS = 60  # until an answer comes, on a machine that does other work as well
# All is drawn that is drawn once its data are there; and two frames later, what that asks for has been asked for.
SETTLED = """
new Promise((done) => {
  const frame = (then) => requestAnimationFrame(() => requestAnimationFrame(then))
  const look = () => document.querySelector("[data-live]:not([data-drawn])") ? frame(look) : frame(done)
  document.fonts.ready.then(look)
})
"""
COMMAND = "\ue009"  # the key that is held for what a browser does itself, as WebDriver writes it


class Engine:
    """A browser with one tab.

    Attributes:
        faults: What went wrong on the page that is open: errors, and what its policy forbids.
        pointer: What points on a phone.
    """

    faults: list[str]
    pointer: str

    def set_width(self, width: int) -> None:
        """Make the window so wide that the page has this width."""
        raise NotImplementedError

    def load(self, address: str) -> None:
        """Go to a page, and wait until it is loaded."""
        raise NotImplementedError

    def evaluate(self, script: str) -> Any:
        """What an expression, or a promise, gives on the page, as JSON says it."""
        raise NotImplementedError

    def act(self, **source: Any) -> None:
        """Do what WebDriver's source of input says."""
        raise NotImplementedError

    def resize(self, width: int) -> None:
        """Give the page this width, and wait until it has it."""
        self.set_width(width)
        self.until(f"innerWidth === {width} && {SETTLED}")

    def open(self, address: str, width: int = 1280) -> None:
        """Open a page, and wait until all of it is there."""
        self.resize(width)
        self.load(address)
        self.evaluate(SETTLED)

    def draw(self, points: Sequence[tuple[float, float]]) -> None:
        """Draw over the screen what points on a phone, from the first point to the last."""
        moves = [{"type": "pointerMove", "x": round(x), "y": round(y)} for x, y in points]
        steps = [moves[0], {"type": "pointerDown", "button": 0}, *moves[1:], {"type": "pointerUp", "button": 0}]
        self.act(type="pointer", id=self.pointer, parameters={"pointerType": self.pointer}, actions=steps)

    def press(self, what: str) -> None:
        """Press the middle of the first element that a selector finds."""
        found = f"document.querySelector({json.dumps(what)})"
        self.evaluate(f"{found}.scrollIntoView({{ block: 'center', behavior: 'instant' }})")
        box = self.evaluate(f"{found}.getBoundingClientRect().toJSON()")
        self.draw([(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)])

    def type(self, keys: str, held: str = "") -> None:
        """Type keys, one after the other, while another is held."""
        down, up = ([{"type": way, "value": key} for key in held] for way in ("keyDown", "keyUp"))
        typed = [{"type": way, "value": key} for key in keys for way in ("keyDown", "keyUp")]
        self.act(type="key", id="keys", actions=[*down, *typed, *up])

    def press_focused(self) -> None:
        """Press the button that has the focus."""
        self.type(" ")

    def until(self, script: str) -> Any:
        """What an expression gives once that is true."""
        return self.evaluate(
            "new Promise((done) => { const look = () => { "
            f"const gave = ({script}); gave ? done(gave) : requestAnimationFrame(look) }}; look() }})"
        )


@contextmanager
def started(command: Sequence[str], folder: Path, **streams: Any) -> Iterator[subprocess.Popen[str]]:
    """A program whose home and all else that it writes are in a folder; in the end it and its children are killed."""
    own = os.environ | {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder / ".config"), "TMPDIR": str(folder)}
    own |= streams.pop("env", {})
    with subprocess.Popen(command, env=own, text=True, start_new_session=True, **streams) as program:
        try:
            yield program
        finally:
            with suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)
