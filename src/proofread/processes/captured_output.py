"""Captures the output that libraries and started processes write to a descriptor itself."""

import codecs
import contextlib
import os
import sys
import tempfile


class CapturedOutput:
    """Takes from now on what is written to standard output (1) or standard error (2), which no reader would see."""

    def __init__(self, number: int):
        place, name = tempfile.mkstemp()
        os.dup2(place, number)
        os.close(place)
        self._file = open(name, "rb", buffering=0)  # noqa: SIM115  # as long as this process lives
        with contextlib.suppress(OSError):  # Windows removes no file that is open
            os.unlink(name)
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._stream = sys.__stdout__ if number == 1 else sys.__stderr__

    def read(self) -> str:
        """Return the text that has been written since the last call."""
        with contextlib.suppress(OSError, ValueError):  # who runs here may have closed them
            if self._stream is not None:
                self._stream.flush()
            return self._decode(self._file.read())
        return ""
