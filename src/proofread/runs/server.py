"""Runs pages side by side, each in a process of its own, and tries programs."""

import atexit
import contextlib
import os
import re
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from ..processes.control import Failure, family
from ..programs.trial import Ran, Trial
from ..settings import Settings, written
from .start import ENVIRONMENT as ENVIRONMENT
from .start import OWN, START, Child, Ended, RunError, forks, prepare, tell_unbound
from .start import started as started
from .steps import Machine, Outcome, Result, Task

if TYPE_CHECKING:  # children, which import this, have no need of it
    from .cache import Cache

_PATIENCE = 0.25  # seconds between two looks at deadlines, memory, and what other programs run
_PRELOADED_MEMORY = 2**30  # what torch and its companions hold at the very most before a page begins
MEMORY_REMEDY = 'let it take less, or set memory = "8 GiB" under [tool.proofread] in pyproject.toml'


@dataclass(frozen=True)
class Event:
    """A point of a run: a step of a page begins, or the page has ended."""

    place: int  # of the page among the tasks
    step: int  # that begins, counted from 1; 0 when the page has ended
    outcome: Outcome  # what the run has given so far


def warm(
    sources: Iterable[Path] | None = None,
    packages: Iterable[str] = (),
    settings: Settings = Settings(),  # noqa: B008  # it is frozen
) -> None:
    """Start the fork server, if pages are forks; the first run does so itself, and then waits for it.

    Args:
        sources: The files of the pages and packages that will run: only what they name is imported. None: all there is.
        packages: Those that are read ahead for all pages.
        settings: How pages are run.
    """
    with contextlib.suppress(ValueError):  # not in the main thread
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # or nothing would be cleared away
            signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
            atexit.register(signal.signal, signal.SIGTERM, signal.SIG_IGN)  # who is clearing away is not interrupted
    prepare(sources, packages, forks(settings))


def run(
    tasks: Sequence[Task],
    *,
    root: Path,
    settings: Settings = Settings(),  # noqa: B008  # it is frozen
    cache: "Cache | None" = None,
) -> Iterator[Event]:
    """Run pages side by side, in the folder root, and yield what happens; the last event of each page has step 0.

    The cache keeps what they give, and two programs from running one page at once.

    Raises:
        RunError: No page can be run here.
    """
    if not tasks:
        return
    tell_unbound(settings)
    warm(packages=settings.packages, settings=settings)
    workers = settings.workers or cores()
    # The longest first, so that no core waits for one that began late. How long they take is told, roughly, by the time
    # that they ask for, and by the number of their steps.
    length = [(max(step.timeout for step in task.steps), len(task.steps)) for task in tasks]
    waiting = deque(sorted(enumerate(tasks), key=lambda each: length[each[0]], reverse=True))
    running: dict[Child, _Page] = {}
    heard: SimpleQueue[tuple[Child, Any]] = SimpleQueue()
    with _scratch("proofread-") as scratch:
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
                        page = _Page(place, task, root, scratch, settings)
                        running[page.child] = page
                        page.child.listen(heard)
                        if len(running) >= workers:
                            break
                for child, message in _heard(heard):
                    if child in running and running[child].hear(message):
                        page = running[child]
                        yield Event(page.place, page.step, page.outcome)
                for child, page in list(running.items()):
                    if page.check():
                        del running[child]
                        if cache:
                            cache.leave(page.task, page.outcome)
                        yield Event(page.place, 0, page.outcome)
        finally:
            for child in running:
                child.end()


def _heard(heard: "SimpleQueue[tuple[Child, Any]]") -> Iterator[tuple[Child, Any]]:
    """Yield the messages of children, once there is one, or end after a while."""
    with contextlib.suppress(Empty):
        yield heard.get(timeout=_PATIENCE)
        while True:
            yield heard.get_nowait()


@contextlib.contextmanager
def _scratch(prefix: str) -> Iterator[str]:
    """A folder for what processes need; what one that cannot be ended still has open there stays."""
    try:
        folder = tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)
    except OSError as error:
        raise RunError(f"{error}; make room, or set TMPDIR to a folder that has some") from None
    with folder as made:
        yield made


def attempt(trials: Sequence[Trial], settings: Settings) -> Iterator[tuple[int, Ran]]:
    """Run programs side by side, each in a process of its own; yield the place and the result of each.

    Raises:
        RunError: No program can be run here.
    """
    if not trials:
        return
    warm(packages=settings.packages, settings=settings)
    waiting, workers = deque(enumerate(trials)), settings.workers or cores()
    running: dict[Child, tuple[int, float]] = {}
    heard: SimpleQueue[tuple[Child, Any]] = SimpleQueue()
    with _scratch("programs-") as folder:
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    place, trial = waiting.popleft()
                    own = str(Path(folder, str(place)))
                    child = Child(forks(settings), trial.text, "attempt", folder, trial, own, settings)
                    running[child] = place, time.monotonic() + START
                    child.listen(heard)
                ended: dict[Child, Ran] = {}
                for child, message in _heard(heard):
                    if child not in running:
                        continue
                    if (message := _began(message)) is True:
                        place, _ = running[child]
                        running[child] = place, time.monotonic() + trials[place].seconds
                    else:
                        died = isinstance(message, Ended)
                        ended.setdefault(child, Ran("", f"SystemError: it {child.why(message)}") if died else message)
                late = Ran("", "TimeoutError: it ran for too long")
                overdue = (child for child, (_, deadline) in running.items() if deadline <= time.monotonic())
                for child, ran in (dict.fromkeys(overdue, late) | ended).items():
                    place, _ = running.pop(child)
                    child.end()
                    yield place, ran
        finally:
            for child in running:
                child.end()


def _began(message: Any) -> Any:
    """Return a child's message; raise a RunError if it says that the child could not begin."""
    if isinstance(message, Failure):
        raise RunError(message.why)
    return message


class _Page:
    def __init__(self, place: int, task: Task, root: Path, scratch: str, settings: Settings):
        self.place, self.task, self.outcome, self._memory = place, task, Outcome(), settings.memory
        self.step = 0
        code = " ".join(step.code or " ".join(asked for asked, _ in step.expressions) for step in task.steps)
        args = task, str(root), settings, dict(os.environ), OWN
        self.child = Child(forks(settings), code, "serve", scratch, *args)
        self.deadline, self._look = time.monotonic() + START, 0.0
        self._overdue = f"did not begin within {START:g} s; the machine may be short of memory"
        self.finished = False

    def hear(self, message: Any) -> bool:
        """Take one message. Says whether a step begins."""
        if self.finished:
            return False
        message = _began(message)
        if isinstance(message, Ended):
            self.outcome.stopped, self.finished = self.child.why(message), True
        elif isinstance(message, int):
            self.step = message + 1
            step = self.task.steps[message]
            self.deadline = time.monotonic() + step.timeout
            self._overdue = f"still running after {step.timeout:g} s; give it longer with `#| timeout: seconds`"
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
            if _holds_more(self.child.process.pid or 0, self._memory + _PRELOADED_MEMORY):
                self.outcome.stopped = f"holds more than {written(self._memory)} of memory; {MEMORY_REMEDY}"
                self.finished = True
        if self.finished:
            self.outcome.seconds = time.time() - self.outcome.began
            self.child.end()
        return self.finished


def cores() -> int:
    """How many pages run side by side unless told otherwise."""
    # Python 3.13 knows how many cores this process may use; before, how many there are.
    return getattr(os, "process_cpu_count", os.cpu_count)() or 1


def _holds_more(pid: int, allowed: int) -> bool:
    """Whether a process, with all that it has started, holds more memory than it may, where the system tells."""
    every = [pid, *family(pid)]

    def held(file: str, words: str) -> int:  # in kB
        total = 0
        for each in every:
            with contextlib.suppress(OSError):
                total += sum(map(int, re.findall(words, Path(f"/proc/{each}/{file}").read_text())))
        return total * 1024

    # The first counts shared memory for each of them; the second does not, and takes longer.
    at_most = held("status", r"Rss(?:Anon|Shmem):\s+(\d+)")
    return at_most > allowed and held("smaps_rollup", r"Pss_(?:Anon|Shmem):\s+(\d+)") > allowed
