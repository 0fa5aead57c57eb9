"""Shows how the check of some pages goes: a bar on a terminal, plain lines elsewhere."""

import shutil
import time
from collections.abc import Callable
from typing import TextIO

from .checked import Told

_PATIENCE = 15.0  # seconds after which a page that still runs is spoken of again


def shown(stream: TextIO, pages: int) -> "Bar | Lines":
    """What suits a stream: a bar where someone watches, lines in a log."""
    return Bar(stream, pages) if stream.isatty() else Lines(lambda line: print(line, file=stream, flush=True))


class Lines:
    """A line for each page that is done, and from time to time for one that takes long."""

    def __init__(self, write: Callable[[str], object]):
        self._write = write
        self._spoke: dict[str, float] = {}

    def __call__(self, told: Told) -> None:
        """Tell."""
        now = time.monotonic()
        if told.step == 0:
            self._write(_done(told))
        elif now - self._spoke.setdefault(told.page, now) > _PATIENCE:
            self._spoke[told.page] = now
            self._write(f"{told.page}: step {told.step} of {told.steps}, {told.name}")

    def close(self) -> None:
        """There is nothing to clear away."""


class Bar:
    """One line that is written over: how many pages are done, and where those that run have come to."""

    def __init__(self, stream: TextIO, pages: int):
        self._stream, self._pages, self._done = stream, pages, 0
        self._running: dict[str, Told] = {}
        self._began = time.monotonic()

    def __call__(self, told: Told) -> None:
        """Tell."""
        if told.step:
            self._running[told.page] = told
        else:
            self._running.pop(told.page, None)
            self._done += 1
            if told.why:
                self.close()
                print(_done(told), file=self._stream)
        at = ", ".join(f"{t.page.rpartition('/')[2]} {t.step}/{t.steps}" for t in self._running.values())
        filled = "=" * round(20 * self._done / max(1, self._pages))
        line = f"[{filled:<20}] {self._done}/{self._pages} pages"
        line += f", {time.monotonic() - self._began:.0f} s" + (f": {at}" if at else "")
        self._stream.write("\r\x1b[K" + line[: shutil.get_terminal_size().columns - 1])
        self._stream.flush()

    def close(self) -> None:
        """Clear the line."""
        self._stream.write("\r\x1b[K")
        self._stream.flush()


def _done(told: Told) -> str:
    return f"{told.page}: ran in {told.seconds:.1f} s, for {told.why}" if told.why else f"{told.page}: unchanged"
