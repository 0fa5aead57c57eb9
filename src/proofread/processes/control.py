"""Processes that end with all that they have started, in whatever session, and whatever became of its parent."""

import contextlib
import ctypes
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import process, spawn, util
from multiprocessing.connection import wait
from typing import Any, NamedTuple

from .. import _private

# Whether this system has what it takes to fork, and to end what a fork has started. Windows has not.
FORKS = all(hasattr(os, name) for name in ("fork", "setpgid", "killpg"))
FORKS = FORKS and "forkserver" in multiprocessing.get_all_start_methods()
LINEAGE = os.path.exists("/proc/self/stat")  # whether this system tells who has started what: Linux does
_SOCKET = 103 - len("/listener-12345678")  # characters that the name of a socket's folder may have, on macOS
_END_WITH_PARENT, _ADOPT = 1, 36  # PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER


class Failure(NamedTuple):
    """The reason why a process could not begin, which is no fault of the page or program that it was to run."""

    why: str

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        """Return an error's text as a reason; of an error with a file, with the remedy."""
        remedy = "; make room, or set TMPDIR to a folder that has some" if isinstance(error, OSError) else ""
        return cls(f"{type(error).__name__}: {error}{remedy}")


def adopt() -> None:
    """Let processes that lose their parent, of those that this one has started, become its own children: on Linux."""
    _prctl(_ADOPT, 1)


def as_script(folder: str, page: str = "") -> None:
    """Let multiprocessing do here what it does in a script that was just started.

    Args:
        folder: Where what it needs, and what is temporary, is cleared away with us, who may end by a kill.
        page: The main module's file, if it is no script that its processes can import; what it defines goes to them by
            value.
    """
    multiprocessing.set_start_method(None, force=True)
    if FORKS:
        _private.forget_fork_server()
    _private.forget_resource_tracker()
    tempfile.tempdir = folder
    _private.become_main_process(folder if _is_short(folder) else _short_folder())
    prepare = spawn.get_preparation_data

    def prepared(name: str) -> dict[str, Any]:
        from . import by_value  # only where a process is started that is no fork

        data = {key: value for key, value in prepare(name).items() if not key.startswith("init_main")}
        return data | {"init_main_from_name": by_value.__name__}

    if page:
        spawn.get_preparation_data = prepared


def _is_short(folder: str) -> bool:
    return len(os.fsencode(folder)) <= _SOCKET


def _short_folder() -> str:
    for folder in ("/tmp", "/var/tmp"):
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
    raise OSError(
        f"the temporary folder ({tempfile.gettempdir()}) has too long a name for sockets; set TMPDIR to another"
    )


@contextlib.contextmanager
def room_for_sockets() -> Iterator[None]:
    """Let multiprocessing begin where the name of the temporary folder is too long for sockets."""
    folder = tempfile.gettempdir()
    if not FORKS or _private.has_temporary_folder():
        yield
        return
    try:
        if not _is_short(os.path.join(folder, "pymp-12345678")):
            tempfile.tempdir = _short_folder()
            util.get_temp_dir()
    finally:
        tempfile.tempdir = folder
    yield


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def family(pid: int) -> list[int]:
    """Return the ids of all processes that live and that a process has started, by any number of steps."""
    children: dict[int, list[int]] = {}
    for name in filter(str.isdecimal, os.listdir("/proc") if LINEAGE else ()):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as stat:
            state, parent = stat.read().rpartition(")")[2].split()[:2]
            if state not in "ZX":
                children.setdefault(int(parent), []).append(int(name))
    family_ids = [pid]
    for each in family_ids:
        family_ids += children.get(each, ())
    return family_ids[1:]


def end_family(pid: int) -> None:
    """Kill all that a process has started, and what that starts meanwhile."""
    for _ in range(1000):  # what belongs to another user stays
        if not (living := family(pid)):
            return
        for each in living:
            with contextlib.suppress(OSError):
                os.kill(each, signal.SIGKILL)
        time.sleep(0.002)


def guard(close: Callable[[], None], folder: str) -> None:
    """Go on in a child. This process stays behind, and at the end of the child ends all that it started, then itself.

    So it does when it is asked to end by SIGTERM, and when who started it is gone. A system that does not fork has no
    such process: there, this one ends with who started it, and nobody ends what it has started.

    Args:
        close: Closes what the child alone shall hold.
        folder: A folder that the parent clears away, or this process if the parent is gone.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    if not FORKS:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is not for us
        threading.Thread(target=_end_with, args=(parent, folder), daemon=True).start()
        return
    os.setpgid(0, 0)  # nor here
    receiver, sender = os.pipe()
    os.set_blocking(sender, False)
    signal.set_wakeup_fd(sender)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    adopt()
    child = os.fork()
    if not child:
        _prctl(_END_WITH_PARENT, signal.SIGKILL)
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        os.close(receiver)
        os.close(sender)
        return
    close()
    status = None
    while status is None and parent.sentinel not in wait([parent.sentinel, receiver]):
        if signal.SIGTERM in os.read(receiver, 4096):
            break
        with contextlib.suppress(ChildProcessError):
            while status is None and (changed := os.waitpid(-1, os.WNOHANG | os.WUNTRACED))[0]:
                if os.WIFSTOPPED(changed[1]):  # what it runs may stop it
                    os.kill(changed[0], signal.SIGCONT)
                elif changed[0] == child:
                    status = changed[1]
    with contextlib.suppress(OSError):
        os.killpg(child, signal.SIGKILL)  # where no system tells who started what
    end_family(os.getpid())
    if parent.sentinel in wait([parent.sentinel], 0):
        shutil.rmtree(folder, ignore_errors=True)
    code = signal.SIGTERM if status is None else os.waitstatus_to_exitcode(status)
    if code < 0:
        import resource  # there is none on Windows

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _end_with(parent: process.BaseProcess, folder: str) -> None:
    parent.join()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)
