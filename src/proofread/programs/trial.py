"""Runs programs in interpreters that have nothing of the page."""

import contextlib
import gc
import importlib
import io
import linecache
import os
import pickle
import random
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from types import ModuleType
from typing import cast

from ..keep.processes import LINEAGE, Failure, adopt, as_script, end_family
from ..keep.written import Written


@dataclass(frozen=True)
class Trial:
    """A program to run, and how long it may take."""

    text: str
    seconds: float = 120.0


@dataclass(frozen=True)
class Ran:
    """What a program printed, and the exception that ended it, if one did."""

    printed: str
    raised: str = ""
    trace: str = ""


def ready(packages: Sequence[str]) -> None:
    """Do once what every program that is forked from here would have to do, such as to import packages."""
    linecache.clearcache()
    os.environ["MPLBACKEND"] = "agg"
    if matplotlib := sys.modules.get("matplotlib"):
        matplotlib.use("agg")
    for package in packages:
        with contextlib.suppress(Exception):  # the program that needs it will tell
            importlib.import_module(package)
    gc.freeze()  # a program that collects garbage would look through all of it, and copy it


class _Program:
    """A program that runs in a fork, and what it has sent so far: as many bytes as its first eight say."""

    def __init__(self, trial: Trial, folder: Path, close: Callable[[], None]):
        self.receiver, sender = os.pipe()
        self.deadline, self._data = time.monotonic() + trial.seconds, b""
        self.pid = os.fork()
        if self.pid:
            os.close(sender)
            return
        try:  # the child, which shall have no other pipe to write into
            close()
            if LINEAGE:  # elsewhere, what it starts ends with all of our group
                os.setpgid(0, 0)
            adopt()
            try:
                ran: Ran | Failure = run(trial, folder)
            except OSError as error:
                ran = Failure.of(error)
            told = pickle.dumps(ran)
            with open(sender, "wb") as file:
                file.write(len(told).to_bytes(8, "big") + told)
        finally:
            os._exit(0)

    def hear(self) -> Ran | Failure | None:
        """What it gave, if it has ended; what is ready of that is read, and nobody waits for the rest."""
        part = os.read(self.receiver, 2**20)
        self._data += part
        whole = len(self._data) >= 8 and len(self._data) - 8 >= int.from_bytes(self._data[:8], "big")
        if part and not whole:
            return None
        try:
            return cast(Ran | Failure, pickle.loads(self._data[8:]))
        except Exception:
            return Ran("", "SystemError: it ended its process")

    def end(self) -> None:
        """End it, with all in its group."""
        for end in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                end(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.receiver)


def run_all(
    trials: Sequence[Trial], workers: int, folder: str, close: Callable[[], None]
) -> Iterator[tuple[int, Ran | Failure]]:
    """Run programs, each in a fork and an empty folder in this one; yield the place and result of each as it ends.

    Args:
        trials: The programs.
        workers: How many run at once.
        folder: Where their folders are made.
        close: Closes what no program shall hold.
    """
    running: dict[int, tuple[int, _Program]] = {}
    waiting = deque(enumerate(trials))
    adopt()
    while waiting or running:
        while waiting and len(running) < workers:
            place, trial = waiting.popleft()
            program = _Program(trial, Path(folder, str(place)), close)
            running[program.receiver] = place, program
        nearest = min(program.deadline for _, program in running.values())
        ready = connection.wait([*running], max(0.0, nearest - time.monotonic()))
        for receiver, (place, program) in [*running.items()]:
            ran = program.hear() if receiver in ready else None
            if ran is None and program.deadline <= time.monotonic():
                ran = Ran("", "TimeoutError: it ran for too long")
            if ran is not None:
                del running[receiver]
                program.end()
                end_family(os.getpid(), but=[other.pid for _, other in running.values()])  # what it has left behind
                yield place, ran


def run(trial: Trial, folder: Path) -> Ran:
    """Run a program as ``__main__``, in a folder that becomes its own, here: this process is for nothing else."""
    folder.mkdir(exist_ok=True)
    os.chdir(folder)
    as_script(str(folder))
    path = folder / "program.py"
    path.write_text(trial.text, encoding="utf-8")
    sys.argv, sys.path = [str(path)], [str(folder), *sys.path]
    _forget_state()
    sys.stdout, sys.stderr = printed, _ = _Printed(Written(1)), _Printed(Written(2))
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
    """What is printed, with what is written to the descriptor in its place among it."""

    def __init__(self, written: Written):
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
