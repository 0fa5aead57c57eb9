"""Runs pages, each in a child of its own forked from a server that has imported torch, matplotlib and IPython."""

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection, forkserver
from pathlib import Path
from types import ModuleType

from .kernel import Result, Step, serve

_PRELOADED = (
    "torch",
    "torch.testing",
    "matplotlib.pyplot",
    "matplotlib_inline.backend_inline",
    "matplotlib.backends.backend_svg",
    "IPython",
    "proofread.formula",
    "proofread.kernel",
)
# One thread a child: as many children run as there are cores. A fixed hash seed keeps the order of sets.
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    "PYTHONHASHSEED": "0",
}
_START = 120.0  # seconds until a child must have begun: importing torch from a cold disk takes a while


@dataclass(frozen=True)
class Task:
    """A page to run: the name its code is compiled under, and its steps."""

    path: str
    steps: tuple[Step, ...]


@dataclass
class Outcome:
    """What a run gave: the results of the steps it took, and what ended it early."""

    results: list[Result] = field(default_factory=list)
    stopped: str = ""
    files: list[str] | None = None  # known once all steps were taken
    began: float = field(default_factory=time.time)
    seconds: float = 0.0


def warm() -> None:
    """Start the fork server; the first run does so itself, and then waits for it."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(list(_PRELOADED))
    before = {name: os.environ.get(name) for name in _ENVIRONMENT}
    os.environ.update(_ENVIRONMENT)
    try:
        forkserver.ensure_running()
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def run(tasks: Sequence[Task], *, root: Path, workers: int | None = None) -> Iterator[tuple[int, Outcome]]:
    """Run pages side by side and yield each as it ends, with its place among the tasks."""
    if not tasks:
        return
    warm()
    # Python 3.13 knows how many cores this process may use; before, how many there are.
    workers = workers or getattr(os, "process_cpu_count", os.cpu_count)() or 1
    waiting = deque(enumerate(tasks))
    running: dict[connection.Connection, _Child] = {}
    with tempfile.TemporaryDirectory(prefix="proofread-") as scratch:
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    child = _Child(*waiting.popleft(), root, scratch)
                    running[child.receiver] = child
                next_deadline = min(child.deadline for child in running.values())
                for ready in connection.wait(list(running), max(0.0, next_deadline - time.monotonic())):
                    running[ready].receive()  # type: ignore[index]
                for receiver, child in list(running.items()):
                    if child.check():
                        del running[receiver]
                        yield child.place, child.outcome
        finally:
            for child in running.values():
                child.end()


class _Child:
    def __init__(self, place: int, task: Task, root: Path, scratch: str):
        self.place, self.task, self.outcome = place, task, Outcome()
        self.receiver, sender = multiprocessing.Pipe(duplex=False)
        self.process = multiprocessing.get_context("forkserver").Process(
            target=serve, args=(task.path, task.steps, sender, str(root), scratch), daemon=False
        )
        with _no_main_module():
            self.process.start()
        sender.close()
        self.deadline = time.monotonic() + _START
        self._overdue = f"did not begin within {_START:g} s; the machine may be short of memory"
        self.finished = False

    def receive(self) -> None:
        """Take one message; a pipe that closes early means that the child has died."""
        try:
            message = self.receiver.recv()
        except EOFError:
            if not self.finished:
                self.process.join()
                self.outcome.stopped = _death(self.process.exitcode or 0)
                self.finished = True
            return
        if isinstance(message, int):
            timeout = self.task.steps[message].timeout
            self.deadline = time.monotonic() + timeout
            self._overdue = f"still running after {timeout:g} s; give it longer with `#| timeout: seconds`"
        elif isinstance(message, Result):
            self.outcome.results.append(message)
        else:
            self.outcome.files = message
            self.finished = True

    def check(self) -> bool:
        """End the child if its time is up; say whether it has ended."""
        if not self.finished and time.monotonic() >= self.deadline:
            self.outcome.stopped = self._overdue
            self.finished = True
        if self.finished:
            self.outcome.seconds = time.time() - self.outcome.began
            self.end()
        return self.finished

    def end(self) -> None:
        """Kill the child with all that it started."""
        if self.process.pid is not None and self.process.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.kill()
        self.process.join()
        self.receiver.close()


def _death(code: int) -> str:
    if code < 0:
        return f"killed its process by signal {signal.Signals(-code).name}"
    return f"ended its process with exit code {code}"


@contextlib.contextmanager
def _no_main_module() -> Iterator[None]:
    # multiprocessing would import the program that called us, such as mkdocs with all its plugins, into each child.
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
