"""Standard output and error of a command, which may be closed, full, or read by who has seen enough."""

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO


class UnwritableError(OSError):
    """An answer cannot be written."""

    def __init__(self, error: OSError):
        why = "it is closed" if error.errno == errno.EBADF else error.strerror or str(error)
        super().__init__(f"the answer cannot be written to standard output: {why}; write it to a file that has room")


class _Stream:
    """A stream of this process, of which nothing is left to write once it fails."""

    def __init__(self, stream: TextIO | None, is_answer: bool):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # pages say more than some terminals can
        self._stream = open(os.devnull, "w", encoding="utf-8") if stream is None else stream  # noqa: SIM115
        self._is_answer, self._is_used = is_answer, False
        self._failed: OSError | None = None
        if stream is None:
            self._failed = OSError(errno.EBADF, "")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._is_used = True
        with self._leaving():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._leaving():
            self._stream.flush()

    @contextlib.contextmanager
    def _leaving(self) -> Iterator[None]:
        """If the stream fails, write no more of it; who has seen enough of an answer is told of no failure."""
        try:
            yield
        except OSError as error:
            self._failed = error
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
                self._stream.flush()
        if self._failed and self._is_used and self._is_answer and not isinstance(self._failed, BrokenPipeError):
            raise UnwritableError(self._failed)


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Say what there is to say on streams that fail in one way: an UnwritableError of an answer; progress is let go."""
    before = sys.stdout, sys.stderr
    for number in range(3):  # or the next file that is opened would get the number of a stream that is closed
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdout, sys.stderr = _Stream(sys.stdout, True), _Stream(sys.stderr, False)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
