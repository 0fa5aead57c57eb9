"""Starts the processes that pages and programs run in: forks of a server that has imported what they need, or new ones.

A new one takes as long as its imports do. It is for systems without forks, and for who distrusts them.
"""

import contextlib
import logging
import multiprocessing
import os
import pickle
import re
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from types import ModuleType
from typing import Any, NamedTuple

from .. import _private
from ..processes.control import FORKS, Failure, room_for_sockets
from ..settings import Settings, written

# The modules that are imported for pages, each with the word of a page or a package that needs it; "" for all pages.
_PRELOADED = {
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
}
# One thread a child: as many children run as there are cores. A fixed hash seed keeps the order of sets.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MPLBACKEND": "module://matplotlib_inline.backend_inline", "PYTHONHASHSEED": "0"}
# How large the terminal is: a page has none, whoever starts it. And what would have Python skip the asserts of a page.
_WITHHELD = {"COLUMNS", "LINES", "PYTHONOPTIMIZE"}
OWN = frozenset({*ENVIRONMENT, *_WITHHELD})  # the variables that are not those of who starts us
START = 120.0  # seconds until a child must have begun: importing torch from a cold disk takes a while
_GRACE = 5.0  # seconds until a process has ended that says nothing more
_STEP = 0.25  # seconds between two tries to let it go on
_BABBLE = (
    "sent what cannot be read: it has changed a function of Python's own, or written into a file that it has not opened"
)
_DEAF = "closed the pipe by which it tells what it gives; close only what the page has opened"
_log = logging.getLogger("proofread")


@dataclass
class _Server:
    """The fork server of this process, of which multiprocessing has one, and what it is to begin with."""

    pid: int | None = None
    needed: Sequence[str] = tuple(_PRELOADED)  # the modules that pages and packages need
    packages: Sequence[str] = ()  # that are read ahead for all pages


_server = _Server()


class RunError(OSError):
    """Pages cannot be run here, whatever they hold."""

    def __init__(self, why: str):
        super().__init__(f"pages cannot be run: {why}")


class Ended(NamedTuple):
    """A child says nothing more: how it ended, as a finding tells it."""

    why: str


def forks(settings: Settings) -> bool:
    """Whether pages are forks."""
    return FORKS and settings.start != "spawn"


def tell_unbound(settings: Settings) -> None:
    """Say of a limit that it binds nothing on this system."""
    if settings.memory != Settings.memory and not Path("/proc/self/status").exists():
        message = f"memory ({written(settings.memory)}) binds nothing here: this system does not tell what a page holds"
        _log.warning(f"{message}; check it on Linux")


def prepare(sources: Iterable[Path] | None, packages: Iterable[str], is_forked: bool) -> None:
    """Take note of what pages need, and start the fork server, if pages are forks."""
    if sources is not None:
        texts = (path.read_text(encoding="utf-8", errors="replace") for path in sources)
        words = {word for text in texts for word in re.findall(r"\w+", text)}
        _server.needed = [name for name, word in _PRELOADED.items() if not word or word in words]
    _server.packages = [*packages]
    if is_forked:
        with _surroundings(_server.needed):
            _ensure_server()


def _ensure_server() -> None:
    from multiprocessing import forkserver

    if _private.fork_server_pid() not in (None, _server.pid):
        _private.stop_fork_server()  # pages would run with what it has imported, not with what they need
    multiprocessing.get_context("forkserver").set_forkserver_preload(["proofread.runs.preload"])
    with room_for_sockets():
        forkserver.ensure_running()
    pid = _private.fork_server_pid()
    assert pid is not None
    _server.pid = pid
    _resume(pid)


@contextlib.contextmanager
def _surroundings(preload: Iterable[str]) -> Iterator[None]:
    """Start processes with the variables and the flags that pages have."""
    from .preload import FOLDERS, NAMES

    specs = filter(None, map(find_spec, _server.packages))
    folders = [folder for spec in specs for folder in spec.submodule_search_locations or ()]
    before = dict(os.environ)
    variables = ENVIRONMENT | {FOLDERS: os.pathsep.join(folders), NAMES: " ".join(preload)}
    os.environ.update(variables)
    for name in _WITHHELD:
        os.environ.pop(name, None)
    try:
        # Without the working directory, whose pages may have the names of Python's own modules.
        with _private.interpreter_flags(lambda flags: [*(each for each in flags if each.strip("O") != "-"), "-P"]):
            yield
    finally:
        for name in variables.keys() - before.keys():
            del os.environ[name]
        os.environ.update({name: before[name] for name in (variables.keys() | _WITHHELD) & before.keys()})


def started(method: str, target: Callable[..., None], *arguments: Any) -> tuple[BaseProcess, Connection]:
    """A process that calls the target with a connection and what is given; and where to hear what it sends."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    context: Any = multiprocessing.get_context(method)
    process: BaseProcess = context.Process(target=target, args=(sender, *arguments), daemon=False)
    try:
        with _no_main_module():
            process.start()
    except BaseException:
        receiver.close()
        raise
    finally:
        sender.close()
    return process, receiver


class Child:
    """A process of its own for a page or for programs.

    What it says is heard in a thread: who writes half a message, or what is none, keeps nobody waiting.
    """

    def __init__(self, is_forked: bool, text: str, does: str, folder: str, *args: Any):
        words = {*re.findall(r"\w+", text)}
        every = bool(words & {*_server.packages})  # which may need all that any package does
        needed = [name for name in _server.needed if every or not (word := _PRELOADED[name]) or word in words]
        call = _in_child, does, folder, *args
        if is_forked:
            self.process, self._receiver = _forked(*call)
        else:
            with _surroundings(needed):
                self.process, self._receiver = started("spawn", *call)

    def listen(self, heard: "SimpleQueue[tuple[Child, Any]]") -> None:
        """Put what it says into a queue, and at last that it has ended."""
        Thread(target=self._listen, args=(heard,), daemon=True).start()

    def _listen(self, heard: "SimpleQueue[tuple[Child, Any]]") -> None:
        try:
            while True:
                data = self._receiver.recv_bytes()
                try:
                    message = pickle.loads(data)
                except Exception:
                    return heard.put((self, Ended(_BABBLE)))
                heard.put((self, message))
        except (EOFError, OSError):
            connection.wait([self.process.sentinel], _GRACE)
            heard.put((self, Ended("")))
        except Exception:  # no length that a message may have
            heard.put((self, Ended(_BABBLE)))

    def why(self, ended: Ended) -> str:
        """How it ended."""
        self.process.join(0.1)  # at most until it can be told how
        code = self.process.exitcode
        return ended.why or (_DEAF if code is None else death(code))

    def end(self) -> None:
        """End it with all that it started."""
        if FORKS and self.process.pid:
            self.process.terminate()  # who stays behind for it ends all
            deadline = time.monotonic() + START
            while self.process.is_alive() and time.monotonic() < deadline:
                for each in (self.process.pid, _server.pid or self.process.pid):
                    _resume(each)
                self.process.join(_STEP)
        self.process.kill()
        self.process.join(START)


def _resume(pid: int) -> None:
    """Let a process go on, which a page may have stopped."""
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGCONT)


def _forked(*call: Any) -> tuple[BaseProcess, Connection]:
    """A process that the server forks; the server is started anew if it has ended."""
    code = 0
    for _ in range(2):
        with _surroundings(_server.needed):
            _ensure_server()
            with contextlib.suppress(EOFError, ConnectionError):
                return started("forkserver", *call)
        assert _server.pid is not None  # which has just been looked at
        with contextlib.suppress(ChildProcessError):
            code = os.waitstatus_to_exitcode(os.waitpid(_server.pid, 0)[1])
        _private.forget_fork_server()
    tops = ", ".join(dict.fromkeys(name.partition(".")[0] for name in _server.needed))
    raise RunError(f"what imports {tops} for them {death(code)}; try each with python -c, and mend what is installed")


def _in_child(sender: Connection, does: str, folder: str, *args: Any) -> None:
    """Do something for who has started this process, and say what keeps it from beginning."""
    from ..processes.control import guard

    try:
        guard(sender.close, folder)  # before anything is imported that no fork survives
        from . import preload

        with warnings.catch_warnings():  # they are no page's, even where pages take warnings for errors
            warnings.simplefilter("ignore")
            from . import kernel
        if preload.failed:
            return sender.send(Failure(preload.failed))
        getattr(kernel, does)(sender, folder, *args)
    except BaseException as error:
        with contextlib.suppress(Exception):
            sender.send(Failure.of(error))


def death(code: int) -> str:
    """How a process ended, by its exit code."""
    name = signal.Signals(-code).name if -code in {*map(int, signal.Signals)} else str(-code)
    if name == "SIGKILL":
        return "was killed (SIGKILL), by its own code or by the system, which does it when memory runs out"
    if code < 0:
        return f"killed its process by signal {name}"
    return f"ended its process with exit code {code}" + f" ({code:#x})" * (code > 255)


@contextlib.contextmanager
def _no_main_module() -> Iterator[None]:
    """Keep multiprocessing from importing the program that called us, such as mkdocs with all its plugins."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
