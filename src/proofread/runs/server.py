"""Runs pages, each in a child of its own forked from a server that has imported torch, matplotlib and IPython."""

import atexit
import contextlib
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing import connection, forkserver
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..keep.processes import family
from ..programs.trial import Ran, Trial
from ..settings import Settings, written
from .ahead import FOLDERS
from .steps import Machine, Outcome, Result, Task

if TYPE_CHECKING:  # children, which import this, have no need of it
    from .cache import Cache

# What a server imports, and the word of a page or a package by which it is needed; "" if it always is.
_PRELOADED = {
    "proofread.runs.asked": "",
    "torch": "torch",
    "torch.testing": "torch",
    "torch.distributed.tensor": "assert_close",  # which imports it when it is first called
    "torch._dynamo": "optim",  # optimizers import it
    "numpy.random": "numpy",
    "matplotlib.pyplot": "matplotlib",
    "matplotlib_inline.backend_inline": "matplotlib",
    "matplotlib.backends.backend_svg": "matplotlib",
    "IPython": "",
    "proofread.formulas.agreement": "",
    "proofread.runs.kernel": "",
    "proofread.runs.ahead": "",
}
# One thread a child: as many children run as there are cores. A fixed hash seed keeps the order of sets.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MPLBACKEND": "module://matplotlib_inline.backend_inline", "PYTHONHASHSEED": "0"}
_TERMINAL = {"COLUMNS", "LINES"}  # how large it is: a page has none, whoever starts it
_PATIENCE = 0.25  # seconds between two looks at deadlines, memory, and what other programs run
_PRELOADED_MEMORY = 2**30  # what torch and its companions hold at the very most before a page begins
MEMORY_REMEDY = 'let it take less, or set memory = "8 GiB" under [tool.proofread] in pyproject.toml'
_START = 120.0  # seconds until a child must have begun: importing torch from a cold disk takes a while


@dataclass(frozen=True)
class Event:
    """What a run has come to: a step of a page begins, or the page has ended."""

    place: int  # of the page among the tasks
    step: int  # that begins, counted from 1; 0 when the page has ended
    outcome: Outcome  # what the run has given so far


_own: dict[str, int] = {}  # the process that is our fork server


def warm(sources: Iterable[Path] | None = None, packages: Iterable[str] = ()) -> None:
    """Start the fork server; the first run does so itself, and then waits for it.

    Args:
        sources: The files of the pages and packages that will run: only what they name is imported. None: all there is.
        packages: Those that are read ahead for all pages.
    """
    with contextlib.suppress(ValueError):  # not in the main thread
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # or nothing would be cleared away
            signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
            atexit.register(signal.signal, signal.SIGTERM, signal.SIG_IGN)  # who is clearing away is not interrupted
    texts = None if sources is None else (path.read_text(errors="replace") for path in sources)
    words = None if texts is None else {word for text in texts for word in re.findall(r"\w+", text)}
    needed = [name for name, word in _PRELOADED.items() if not word or words is None or word in words]
    multiprocessing.get_context("forkserver").set_forkserver_preload(needed)
    found = filter(None, map(find_spec, packages))
    folders = [folder for spec in found for folder in spec.submodule_search_locations or ()]
    before, given = dict(os.environ), ENVIRONMENT | {FOLDERS: os.pathsep.join(folders)}
    os.environ.update(given)
    for name in _TERMINAL:
        os.environ.pop(name, None)
    server: Any = forkserver._forkserver
    try:
        if server._forkserver_pid not in (None, _own.get("pid")):
            server._stop()  # another's, who is in this process: pages would run with what it has, not with what we give
        forkserver.ensure_running()
        _own["pid"] = server._forkserver_pid
    finally:
        for name in given.keys() - before.keys():
            del os.environ[name]
        os.environ.update({name: before[name] for name in (given.keys() | _TERMINAL) & before.keys()})


def run(
    tasks: Sequence[Task],
    *,
    root: Path,
    settings: Settings = Settings(),  # noqa: B008  # it is frozen
    cache: "Cache | None" = None,
) -> Iterator[Event]:
    """Run pages side by side, in the folder root, and yield what happens; the last event of each page has step 0.

    The cache keeps what they give, and two programs from running one page at once.
    """
    if not tasks:
        return
    warm(packages=settings.packages)
    workers = settings.workers or cores()
    # The longest first, so that no core waits for one that began late. How long they take is told, roughly, by the time
    # that they ask for, and by the number of their steps.
    length = [(max(step.timeout for step in task.steps), len(task.steps)) for task in tasks]
    waiting = deque(sorted(enumerate(tasks), key=lambda each: length[each[0]], reverse=True))
    running: dict[Connection, _Child] = {}
    with tempfile.TemporaryDirectory(prefix="proofread-") as scratch:
        try:
            while waiting or running:
                for _ in range(len(waiting) if len(running) < workers else 0):
                    place, task = waiting.popleft()
                    entered = cache.enter(task) if cache else True
                    if isinstance(entered, Outcome):
                        yield Event(place, 0, entered)
                    elif not entered:
                        waiting.append((place, task))  # another program runs it
                    else:
                        child = _Child(place, task, root, scratch, settings)
                        running[child.receiver] = child
                        if len(running) >= workers:
                            break
                for ready in connection.wait(list(running), _PATIENCE):
                    child = running[ready]  # type: ignore[index]
                    if child.receive() and not child.finished:
                        yield Event(child.place, child.step, child.outcome)
                for receiver, child in list(running.items()):
                    if child.check():
                        del running[receiver]
                        if cache:
                            cache.leave(child.task, child.outcome)
                        yield Event(child.place, 0, child.outcome)
        finally:
            for child in running.values():
                child.end()


def attempt(trials: Sequence[Trial], settings: Settings) -> Iterator[tuple[int, Ran]]:
    """Run programs side by side in forks of a child that has nothing of a page; yield the place and result of each."""
    if not trials:
        return
    warm(packages=settings.packages)
    with tempfile.TemporaryDirectory(prefix="programs-") as folder:
        workers = settings.workers or cores()
        process, receiver = started("forkserver", _in_kernel, "attempt", trials, workers, folder, settings)
        try:
            while (tried := receiver.recv()) is not None:
                yield tried
        except EOFError:
            process.join()
            raise RuntimeError(f"what tries programs {_death(process.exitcode or 0)}") from None
        finally:
            _end(process)
            receiver.close()


def started(method: str, target: Callable[..., None], *given: Any) -> tuple[BaseProcess, Connection]:
    """A process that calls the target with a connection and what is given; and where to hear what it sends."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    context: Any = multiprocessing.get_context(method)
    process: BaseProcess = context.Process(target=target, args=(sender, *given), daemon=False)
    with _no_main_module():
        process.start()
    sender.close()
    return process, receiver


def _in_kernel(connection: Connection, task: str, *given: Any) -> None:
    from . import kernel  # takes IPython, which the fork server has and the caller need not have

    does: dict[str, Callable[..., None]] = {"serve": kernel.serve, "attempt": kernel.attempt}
    does[task](connection, *given)


class _Child:
    def __init__(self, place: int, task: Task, root: Path, scratch: str, settings: Settings):
        self.place, self.task, self.outcome, self._memory = place, task, Outcome(), settings.memory
        self.step = 0
        given = task, str(root), scratch, settings, dict(os.environ), {*ENVIRONMENT, *_TERMINAL}
        self.process, self.receiver = started("forkserver", _in_kernel, "serve", *given)
        self.deadline, self._look = time.monotonic() + _START, 0.0
        self._overdue = f"did not begin within {_START:g} s; the machine may be short of memory"
        self.finished = False

    def receive(self) -> bool:
        """Take one message; a pipe that closes early means that the child has died. Says whether a step begins."""
        try:
            message = self.receiver.recv()
        except EOFError:
            if not self.finished:
                self.process.join()
                self.outcome.stopped, self.finished = _death(self.process.exitcode or 0), True
            return False
        if isinstance(message, int):
            self.step = message + 1
            timeout = self.task.steps[message].timeout
            self.deadline = time.monotonic() + timeout
            self._overdue = f"still running after {timeout:g} s; give it longer with `#| timeout: seconds`"
        elif isinstance(message, Result):
            self.outcome.results.append(message)
        elif isinstance(message, Machine):
            self.outcome.machine = message
        elif isinstance(message, dict):
            self.outcome.snippets = message
        else:
            self.outcome.stopped = message if isinstance(message, str) else ""
            if isinstance(message, tuple):
                self.outcome.files, self.outcome.asked = message
            self.finished = True
        return isinstance(message, int)

    def check(self) -> bool:
        """End the child if its time is up; say whether it has ended."""
        now = time.monotonic()
        if not self.finished and now >= self.deadline:
            self.outcome.stopped, self.finished = self._overdue, True
        if not self.finished and now >= self._look:  # at all processes there are: with each message it would cost more
            self._look = now + _PATIENCE
            if _holds_more(self.process.pid or 0, self._memory + _PRELOADED_MEMORY):
                self.outcome.stopped = f"holds more than {written(self._memory)} of memory; {MEMORY_REMEDY}"
                self.finished = True
        if self.finished:
            self.outcome.seconds = time.time() - self.outcome.began
            self.end()
        return self.finished

    def end(self) -> None:
        """End it with all that it started."""
        _end(self.process)
        self.receiver.close()


def _end(process: BaseProcess) -> None:
    """End a child, which ends all that it started."""
    process.terminate()
    process.join(_START)
    process.kill()
    process.join()


def cores() -> int:
    """How many pages run side by side unless told otherwise."""
    # Python 3.13 knows how many cores this process may use; before, how many there are.
    return getattr(os, "process_cpu_count", os.cpu_count)() or 1


def _holds_more(pid: int, allowed: int) -> bool:
    """Whether a process, with all that it has started, holds more memory than it may, where the system tells."""
    every = [pid, *family(pid)]

    def held(file: str, words: str) -> int:  # in kB
        found = 0
        for each in every:
            with contextlib.suppress(OSError):
                found += sum(map(int, re.findall(words, Path(f"/proc/{each}/{file}").read_text())))
        return found * 1024

    # What they share, the first counts for each of them; the second does not, and takes longer to tell.
    at_most = held("status", r"Rss(?:Anon|Shmem):\s+(\d+)")
    return at_most > allowed and held("smaps_rollup", r"Pss_(?:Anon|Shmem):\s+(\d+)") > allowed


def _death(code: int) -> str:
    if code == -signal.SIGKILL:
        return "was killed by the system (SIGKILL), which it does when memory runs out"
    if code < 0:
        return f"killed its process by signal {signal.Signals(-code).name}"
    return f"ended its process with exit code {code}"


@contextlib.contextmanager
def _no_main_module() -> Iterator[None]:
    """Keep multiprocessing from importing the program that called us, such as mkdocs with all its plugins."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
