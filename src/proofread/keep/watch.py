"""Records the files, folders and variables that a page reads, and the processes that it starts.

The reads of those processes are not seen. Each read has a name: a file's path, a folder's with a slash at its end where
it was listed, a variable's with a dollar before it. Its state differs as soon as its content does.
"""

import functools
import glob
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from multiprocessing import util
from pathlib import Path
from types import FrameType
from typing import Any

from .files import digest, sha

_ENGINE = os.path.dirname(os.path.dirname(__file__)) + os.sep
_PREFIXES = tuple(
    {os.path.join(folder(each), "") for each in (sys.prefix, sys.base_prefix, sys.exec_prefix)
     for folder in (str, os.path.realpath)}
)  # fmt: skip
# Ways to start a process. The reads of that process are hidden from the one that runs the page.
_STARTS = {"subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system"}
_STARTS |= {"os.startfile", "_winapi.CreateProcess"}  # on Windows
# The search for modules lists folders too, and its results are known as imports.
_IMPORTING = ("<frozen importlib", "<frozen zipimport", f"{os.sep}importlib{os.sep}", f"{os.sep}pkgutil.py")
# For the source of what runs, which is known already.
_LOOKING = (f"{os.sep}inspect.py", f"{os.sep}linecache.py", __file__)
MISSING = digest(Path(os.devnull, "nothing"))


def state(name: str) -> str:
    """Return a digest of the content of a file, a folder or a variable that was read."""
    if name.startswith("$"):
        value = os.environ.get(name[1:])
        return MISSING if value is None else sha(value)
    if not name.endswith(os.sep):
        return "folder" if os.path.isdir(name) else digest(Path(name))
    try:
        return sha("\0".join(sorted({*os.listdir(name)} - {"__pycache__"})))
    except OSError:
        return MISSING


class Watch:
    """Takes note from now on, of this process and of those that are forked from it."""

    def __init__(self, root: str, page: str, variables: Iterable[str] = ()):
        self.read: dict[str, str] = {}  # what was read, with its state where that may be another by now
        self.started: set[str] = set()  # by which ways processes were started
        self.root, self.page, self._pid = os.path.join(root, ""), page, os.getpid()
        self._file = os.path.realpath(page)  # a page is the name that its code is compiled under, too
        self._made: set[str] = set()  # by the page itself: no change of these is a change of what it read
        self._set = {*variables}  # by us, or by the page itself
        self._told = tempfile.TemporaryFile()  # noqa: SIM115  # by the processes that are forked from here
        self._watch_stat()
        self._watch_variables()
        spawned = util.spawnv_passfds

        def spawn(*args: Any) -> int:
            self.started.add("multiprocessing")  # which starts by no way that tells
            return spawned(*args)

        util.spawnv_passfds = spawn  # type: ignore[assignment]  # of the same form
        sys.addaudithook(self._audit)

    def files(self, packages: Iterable[str]) -> dict[str, str]:
        """Return the files that a run depends on: modules that are not installed, and its reads in the project."""
        with suppress(OSError, ValueError):  # a page may close all that it knows nothing of
            self._told.seek(0)
            parts = os.fsdecode(self._told.read()).split("\0")  # by processes that were forked from this one
            for name, seen in zip(parts[::2], parts[1::2], strict=False):
                self.read.setdefault(name, seen)
        modules = {str(getattr(module, "__file__", None) or "") for module in list(sys.modules.values())}
        modules |= {*files_of(packages)} if self.started else set()
        files = dict.fromkeys(filter(os.path.isfile, map(os.path.realpath, filter(self._counts, modules))), "")
        for name, seen in [*self.read.items()]:
            if name.startswith("$"):
                files[name] = seen
            elif name.startswith(self.root):
                files.setdefault(name if seen else os.path.realpath(name), seen)
        return {name: seen for name, seen in files.items() if name != self._file and self._counts(name)}

    def names(self, words: Iterable[Any], folder: str = "") -> None:
        """Take note of what a command names that there is."""
        for word in (os.fsdecode(word) for word in words if isinstance(word, (str, bytes, os.PathLike))):
            for part in {word, *re.split(r"[\s;|&<>()='\"]+", word)} - {""}:
                for path in glob.glob(os.path.join(folder, part)) if "\0" not in part else ():
                    self._note(path, os.path.isdir(path))

    def _counts(self, path: str) -> bool:
        return bool(path) and not path.startswith(_PREFIXES) and "__pycache__" not in path

    def _note(self, path: Any, listed: bool = False) -> None:
        if not isinstance(path, (str, bytes, os.PathLike)):
            return  # a descriptor of what was opened before
        name = os.path.abspath(os.fsdecode(path))
        if name in self._made or "<" in name:  # such as <string>
            return
        inside = name.startswith(self.root)
        name += os.sep * listed
        if name not in self.read and (inside or not listed):
            seen = state(name) if listed else "" if os.access(name, os.F_OK) else MISSING
            self.read[name] = seen
            self._tell(name, seen)

    def _make(self, path: Any) -> None:
        if isinstance(path, (str, bytes, os.PathLike)):
            self._made.add(os.path.abspath(os.fsdecode(path)))

    def _tell(self, name: str, seen: str) -> None:
        if os.getpid() != self._pid:
            with suppress(OSError, ValueError):
                os.write(self._told.fileno(), os.fsencode(f"{name}\0{seen}\0"))

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, flags = arguments[0], arguments[2] or 0
            if not isinstance(path, int) and flags & (os.O_WRONLY | os.O_RDWR):
                if flags & os.O_TRUNC or (flags & os.O_CREAT and not os.access(path, os.F_OK)):
                    return self._make(path)
                if flags & os.O_WRONLY:
                    return None
            # The event of os.open lacks dir_fd, so that a relative name may be of another folder.
            if arguments[1] is not None or isinstance(path, int) or os.access(path, os.F_OK):
                self._note(path)
        elif event in ("os.listdir", "os.scandir"):
            who = sys._getframe(1).f_code.co_filename
            if who != __file__ and not any(part in who for part in _IMPORTING):
                self._note("." if arguments[0] is None else arguments[0], True)
        elif event == "os.rename":
            self._make(arguments[1])
        elif event in _STARTS:
            self.started.add(event)
            named, folder = (arguments[1:2], arguments[2]) if event == "subprocess.Popen" else (arguments, "")
            for each in named:
                self.names(each if isinstance(each, (list, tuple)) else (each,), os.fspath(folder or ""))
        return None

    def _watch_stat(self) -> None:
        """Take note of who asks whether a file is there, of which no audit tells."""
        stat: Any = os.stat

        @functools.wraps(stat)
        def noted(path: Any, *arguments: Any, **keywords: Any) -> Any:
            who = (sys._getframe(1).f_code.co_filename, sys._getframe(2).f_code.co_filename)
            if not keywords.get("dir_fd") and not any(file.endswith(_LOOKING) for file in who):
                self._note(path)
            return stat(path, *arguments, **keywords)

        os.stat = noted
        for able in (os.supports_fd, os.supports_dir_fd, os.supports_follow_symlinks):
            able |= {noted} if stat in able else set()

    def _watch_variables(self) -> None:
        """Take note of the variables that the page asks for by name, or a package of the project."""
        listed: set[str] = set()
        through = ("<frozen os>", f"{os.sep}os.py", "<frozen _collections_abc>", f"{os.sep}_collections_abc.py")

        def note(name: str, value: str | None) -> None:
            if name in listed:  # a copy is made of all of them
                listed.discard(name)
            elif f"${name}" not in self.read and name not in self._set and asks(sys._getframe(2), self, *through):
                self.read[f"${name}"] = MISSING if value is None else sha(value)
                self._tell(f"${name}", self.read[f"${name}"])

        class Noted(type(os.environ)):  # type: ignore[misc]  # a class that is known when this runs
            def __getitem__(noted, name: str) -> str:  # self is who takes note
                try:
                    value: str = super().__getitem__(name)
                except KeyError:
                    note(name, None)
                    raise
                note(name, value)
                return value

            def __setitem__(noted, name: str, value: str) -> None:
                self._set.add(name)
                super().__setitem__(name, value)

            def __delitem__(noted, name: str) -> None:
                self._set.add(name)
                super().__delitem__(name)

            def __iter__(noted) -> Iterator[str]:
                for name in super().__iter__():
                    listed.add(name)
                    yield name

        os.environ.__class__ = Noted


def asks(frame: FrameType | None, of: Watch, *through: str) -> bool:
    """Whether it is the page that asks, or a package of the project, be it through some modules."""
    while frame and any(part in frame.f_code.co_filename for part in through):
        frame = frame.f_back
    file = frame.f_code.co_filename if frame else ""
    return file == of.page or (file.startswith(of.root) and not file.startswith((_ENGINE, *_PREFIXES)))


def files_of(packages: Iterable[str]) -> Iterator[str]:
    """The files of packages, any of which a process may read that a page starts."""
    for spec in filter(None, map(find_spec, packages)):
        for folder in spec.submodule_search_locations or ():
            yield from (str(file) for file in sorted(Path(folder).rglob("*")) if file.suffix != ".pyc")
        if spec.origin:  # it may be a module
            yield spec.origin
