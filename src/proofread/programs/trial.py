"""Runs programs in interpreters that have nothing of the page."""

import gc
import io
import linecache
import os
import random
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from ..processes.captured_output import CapturedOutput
from ..processes.control import as_script


@dataclass(frozen=True)
class Trial:
    """A program to run, and how long it may take."""

    text: str
    seconds: float = 120.0


@dataclass(frozen=True)
class Ran:
    """The output of a program, and the exception that ended it, if one did."""

    printed: str
    raised: str = ""
    trace: str = ""


def run(trial: Trial, folder: Path) -> Ran:
    """Run a program as ``__main__``, in a folder that becomes its own, here: this process is for nothing else."""
    folder.mkdir(exist_ok=True)
    os.chdir(folder)
    linecache.clearcache()
    os.environ["MPLBACKEND"] = "agg"
    if matplotlib := sys.modules.get("matplotlib"):
        matplotlib.use("agg")
    gc.freeze()  # a program that collects garbage would look through all that was imported, and copy it
    as_script(str(folder))
    path = folder / "program.py"
    path.write_text(trial.text, encoding="utf-8")
    sys.argv, sys.path = [str(path)], [str(folder), *sys.path]
    _forget_state()
    sys.stdout, sys.stderr = printed, _ = _Printed(CapturedOutput(1)), _Printed(CapturedOutput(2))
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__file__ = str(path)
    try:
        exec(compile(trial.text, str(path), "exec"), vars(main))
    except BaseException as error:
        frames = error.__traceback__.tb_next if error.__traceback__ else None
        trace = "".join(traceback.format_exception(type(error), error, frames)).replace(str(path), "program.py")
        return Ran(printed.getvalue(), f"{type(error).__name__}: {error}", trace)
    return Ran(printed.getvalue())


class _Printed(io.StringIO):
    """Collects the text that is printed, with the text that is written to the descriptor in its place."""

    def __init__(self, written: CapturedOutput):
        super().__init__()
        self._written = written

    def write(self, text: str) -> int:
        super().write(self._written.read())
        return super().write(text)

    def getvalue(self) -> str:
        self.write("")
        return super().getvalue()


def _forget_state() -> None:
    """A fork has the state of the process that it came from; a program must not depend on it."""
    random.seed()
    if torch := sys.modules.get("torch"):
        torch.default_generator.seed()  # a fork has no other: it could not use a GPU that its parent had begun to use
    if numbers := sys.modules.get("numpy.random"):
        numbers.seed()
