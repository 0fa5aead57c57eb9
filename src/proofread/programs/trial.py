"""Runs programs in forked interpreters that have nothing of the page."""

import contextlib
import gc
import importlib
import io
import linecache
import os
import random
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe, connection
from pathlib import Path
from types import ModuleType

from ..keep.processes import adopt, as_script, end_family


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


def run_all(trials: Sequence[Trial], packages: Sequence[str], workers: int, folder: str) -> Iterator[tuple[int, Ran]]:
    """Run programs, each in a fork and an empty folder in this one; yield the place and result of each as it ends.

    The packages are imported here, so that no program has to.
    """
    # What every program that is forked from here would have to do is done once.
    linecache.clearcache()
    os.environ["MPLBACKEND"] = "agg"
    if matplotlib := sys.modules.get("matplotlib"):
        matplotlib.use("agg")
    for package in packages:
        with contextlib.suppress(Exception):  # the program that needs it will tell
            importlib.import_module(package)
    gc.freeze()  # a program that collects garbage would look through all of it, and copy it
    running: dict[connection.Connection, tuple[int, int, float]] = {}
    waiting = deque(enumerate(trials))
    adopt()
    while waiting or running:
        while waiting and len(running) < workers:
            place, trial = waiting.popleft()
            receiver, pid = _start(trial, Path(folder) / str(place))
            running[receiver] = (place, pid, time.monotonic() + trial.seconds)
        nearest = min(overdue for _, _, overdue in running.values())
        ready = connection.wait([*running], max(0.0, nearest - time.monotonic()))
        for receiver in [r for r in running if r in ready or running[r][2] <= time.monotonic()]:
            place, pid, _ = running.pop(receiver)
            ran = _end(receiver, pid, receiver in ready)
            end_family(os.getpid(), but=[other for _, other, _ in running.values()])  # what it has left behind
            yield place, ran


def _start(trial: Trial, folder: Path) -> tuple[connection.Connection, int]:
    receiver, sender = Pipe(duplex=False)
    pid = os.fork()
    if pid:
        sender.close()
        return receiver, pid
    try:  # the child
        adopt()
        sender.send(run(trial, folder))
    finally:
        os._exit(0)


def _end(receiver: connection.Connection, pid: int, is_ready: bool) -> Ran:
    try:
        ran = receiver.recv() if is_ready else Ran("", "TimeoutError: it ran for too long")
    except EOFError:
        ran = Ran("", "SystemError: it ended its process")
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    receiver.close()
    return ran


def run(trial: Trial, folder: Path) -> Ran:
    """Run a program as ``__main__``, in a folder that becomes its own, here: this process is for nothing else."""
    folder.mkdir(exist_ok=True)
    os.chdir(folder)
    as_script(str(folder))
    path = folder / "program.py"
    path.write_text(trial.text, encoding="utf-8")
    sys.argv, sys.path = [str(path)], [str(folder), *sys.path]
    _forget_state()
    sys.stdout, sys.stderr = printed, _ = io.StringIO(), io.StringIO()
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__file__ = str(path)
    try:
        exec(compile(trial.text, str(path), "exec"), vars(main))
    except BaseException as error:
        frames = error.__traceback__.tb_next if error.__traceback__ else None
        trace = "".join(traceback.format_exception(type(error), error, frames)).replace(str(path), "program.py")
        return Ran(printed.getvalue(), f"{type(error).__name__}: {error}", trace)
    return Ran(printed.getvalue())


def _forget_state() -> None:
    """A fork has the state of the process that it came from; a program must not depend on it."""
    random.seed()
    if torch := sys.modules.get("torch"):
        torch.default_generator.seed()  # a fork has no other: it could not use a GPU that its parent had begun to use
    if numbers := sys.modules.get("numpy.random"):
        numbers.seed()
