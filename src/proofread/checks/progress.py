"""Shows how the check of some pages goes: a bar on a terminal, plain lines elsewhere."""

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

_PATIENCE = 15.0  # seconds after which a page that still runs is spoken of again


@dataclass(frozen=True)
class Told:
    """A message about a page that is being checked: that a step begins, or that the page is done."""

    page: str
    step: int  # counted from 1; 0 when the page is done
    steps: int  # how many there are
    name: str = ""  # what the step is
    why: str = ""  # the page has to run; "" if it has not
    seconds: float = 0.0  # how long it ran, once it is done


Progress = Callable[[Told], None]


def shown(stream: TextIO, pages: int) -> "Bar | Lines":
    """Return the progress that suits a stream: a bar where someone watches, lines in a log."""
    return Bar(stream, pages) if stream.isatty() else Lines(lambda line: print(line, file=stream, flush=True))


class Lines:
    """A line for each page that is done, and from time to time for one that takes long."""

    def __init__(self, write: Callable[[str], object]):
        self._write = write
        self._spoke: dict[str, float] = {}

    def __call__(self, message: Told) -> None:
        """Tell."""
        now = time.monotonic()
        if message.step == 0:
            self._write(_done(message))
        elif now - self._spoke.setdefault(message.page, now) > _PATIENCE:
            self._spoke[message.page] = now
            self._write(f"{message.page}: step {message.step} of {message.steps}, {message.name}")

    def close(self) -> None:
        """There is nothing to clear away."""


class Bar:
    """One line that is written over: how many pages are done, and where those that run have come to."""

    def __init__(self, stream: TextIO, pages: int):
        self._stream, self._pages, self._done = stream, pages, 0
        self._running: dict[str, Told] = {}
        self._began = time.monotonic()

    def __call__(self, message: Told) -> None:
        """Tell."""
        if message.step:
            self._running[message.page] = message
        else:
            self._running.pop(message.page, None)
            self._done += 1
            if message.why:
                self.close()
                print(_done(message), file=self._stream)
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


def _done(message: Told) -> str:
    result = f"ran in {message.seconds:.1f} s, for {message.why}" if message.why else "unchanged"
    return f"{message.page}: {result}"
