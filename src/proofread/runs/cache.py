"""Keeps what a run gave until something that it depends on changes.

A run depends on its steps, on Python, the machine, the variables that steer it, and this engine (together its key). It
depends on the project's files that it read, modules above all, and on the distributions that it asked for, with those
that they require; both are known only once it has run, and therefore kept with it.
"""

import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ..keep.environment import changed as change
from ..keep.environment import environment
from ..keep.files import digest, folder_of, seal, sha, unsealed, write
from ..keep.installed import installed
from ..keep.watch import MISSING, files_of, state
from ..programs import Snippet
from ..programs.trial import Trial
from .steps import Machine, Outcome, Raised, Result, Task

_KEYS = {"page", "parts", "files", "asked", "installed", "began", "seconds", "machine", "results", "snippets"}
_KEPT = 3  # runs of a page: those of the branches that a writer goes to and fro between


class CacheError(OSError):
    """Runs cannot be kept."""


@dataclass(frozen=True)
class Entry:
    """A run that is kept."""

    page: str
    file: Path
    kept: float  # when
    size: int
    seconds: float
    stale: str  # what has changed since; "" if nothing has


class Cache:
    """Runs on disk, a folder for each page and a file for each run.

    Safe against a kill at any moment and against two programs at once: files appear whole, and the second program waits
    for the first one's run of a page (`enter`, `leave`) and takes that.
    """

    def __init__(self, directory: Path):
        self.directory = directory
        self._locks: dict[str, FileLock] = {}
        self._digests: dict[str, str] = {}
        self._packages: dict[str, str] = {}

    def load(self, task: Task) -> Outcome | None:
        """Return the kept outcome of the task, if nothing that it depends on has changed."""
        for file in self._runs(self._folder(task.path)):
            kept = _read(file) if file.name.startswith(_key(task)) else None
            if kept and not self._changed(kept["files"]) and installed(kept["asked"]) == kept["installed"]:
                return _outcome(kept)
        return None

    def before(self, task: Task) -> Outcome | None:
        """Return the outcome of the last run of the same steps, whatever has changed since; None if that failed."""
        if (self._folder(task.path) / "unkept").exists():
            return None
        steps = [*parts(task)["steps"].values()]
        kept = filter(None, map(_read, self._runs(self._folder(task.path))))
        return next((_outcome(run) for run in kept if [*run["parts"]["steps"].values()] == steps), None)

    def why(self, task: Task) -> str:
        """Why the task has to run: what has changed since the latest run of its page."""
        kept, now = list(filter(None, map(_read, self._runs(self._folder(task.path))))), parts(task)
        with suppress(OSError):  # the latest run of all this was not kept, and said why
            key, _, unkept = (self._folder(task.path) / "unkept").read_text("utf-8", "replace").partition("\n")
            if key == _key(task):
                return unkept
        if not kept:
            return "it has not run before"
        # Of a page that goes to and fro, the run of this very code says more than the latest.
        steps = [*now["steps"].values()]
        alike = next((run for run in kept if [*run["parts"]["steps"].values()] == steps), kept[0])
        return self._difference(alike, now) or "it was not kept"

    def store(self, task: Task, outcome: Outcome) -> None:
        """Keep what a run gave that went to its end, or why it is not kept; a CacheError says why neither can be."""
        folder, reason = self._folder(task.path), "its last run failed"
        if outcome.stopped:
            reason = f"its last run was stopped ({outcome.stopped.partition(';')[0]}), and is tried again each time"
        elif outcome.files is not None:
            # Which version it read cannot be told of a file that was saved while the page ran.
            saved = (name for name, seen in outcome.files.items() if not seen and _age(name) >= outcome.began)
            reason = next((f"{_named(name)} was written while it ran" for name in saved), "")
        if reason:
            return self._write(folder / "unkept", f"{_key(task)}\n{reason}".encode())
        assert outcome.files is not None
        (folder / "unkept").unlink(missing_ok=True)
        self._digests.clear()
        kept = {
            "page": task.path,
            "parts": parts(task),
            "files": {name: state or self._digest(name) for name, state in outcome.files.items()},
            "asked": [*outcome.asked],
            "installed": installed(outcome.asked),
            **_plain(outcome),
        }
        # The results of the same steps with other files, or with others installed, stay beside it.
        file = folder / f"{_key(task)}-{sha(json.dumps([kept['files'], kept['installed']]))[:8]}.json"
        self._write(file, seal(json.dumps(kept).encode()))
        for old in [run for run in self._runs(folder) if run != file][_KEPT - 1 :]:
            with suppress(OSError):  # Windows removes nothing that another program reads
                old.unlink(missing_ok=True)
        return None

    def enter(self, task: Task) -> Outcome | bool:
        """Return the outcome of another program's run of the page meanwhile, or whether this one may run it now."""
        folder = self._folder(task.path)
        lock = FileLock(folder / "lock", timeout=0)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except Timeout:
            return False
        except OSError as error:
            raise self._failure(error) from error
        self._digests.clear()
        if kept := self.load(task):
            lock.release()
            return kept
        self._locks[task.path] = lock
        return True

    def leave(self, task: Task, outcome: Outcome) -> None:
        """Keep what a run gave, and let other programs go on."""
        try:
            self.store(task, outcome)
        finally:
            self._locks.pop(task.path).release()

    def close(self) -> None:
        """Let other programs run what this one has begun and will not end."""
        while self._locks:
            self._locks.popitem()[1].release()

    def trial(self, trial: Trial, snippet: Snippet, packages: Sequence[str], asked: Iterable[str]) -> str:
        """Return a digest of a trial of a page's program and all that it depends on, as its page does."""
        imported = tuple(map(self._package, packages))
        known = sorted((environment() | installed(asked)).items())
        return sha(json.dumps([asdict(trial), snippet.shows, snippet.raises, imported, known]))

    def tried(self, page: str) -> set[str]:
        """The trials of a page's programs that went well."""
        with suppress(OSError):
            return set((self._folder(page) / "tried").read_text("utf-8", "replace").split())
        return set()

    def keep_tried(self, page: str, trials: Iterable[str]) -> None:
        """Keep which trials of a page's programs went well; a CacheError says why it cannot be."""
        self._write(self._folder(page) / "tried", "\n".join(trials).encode())

    def _package(self, name: str) -> str:
        if name not in self._packages:
            kept = [f"{file} {digest(Path(file))}" for file in files_of([name]) if os.path.isfile(file)]
            self._packages[name] = sha("\n".join(kept))
        return self._packages[name]

    def entries(self) -> Iterator[Entry]:
        """All runs that are kept, by page, the latest first."""
        for folder in sorted(self.directory.glob("runs/*")):
            for file in self._runs(folder):
                if kept := _read(file):
                    state = file.stat()
                    stale = self._difference(kept, {**kept["parts"], "environment": environment()})
                    yield Entry(kept["page"], file, state.st_mtime, state.st_size, kept["seconds"], stale)

    def prune(self, entries: Iterable[Entry]) -> int:
        """Remove runs; returns how many bytes that freed."""
        freed = 0
        for entry in entries:
            entry.file.unlink(missing_ok=True)
            freed += entry.size
            if not self._runs(entry.file.parent):
                shutil.rmtree(entry.file.parent, ignore_errors=True)
        return freed

    def _folder(self, page: str) -> Path:
        return self.directory / "runs" / folder_of(page)

    def _runs(self, folder: Path) -> list[Path]:
        """The runs of a page, the latest first."""
        return sorted(folder.glob("*.json"), key=_age, reverse=True)

    def _difference(self, kept: dict[str, Any], made: Mapping[str, Any]) -> str:
        then, now = kept["parts"]["environment"], made["environment"]
        then, now = then | kept["installed"], now | installed(kept["asked"])
        for name in sorted({*then, *now}):
            if then.get(name) != now.get(name):
                return change(name, then.get(name), now.get(name))
        old, new = kept["parts"]["steps"], made["steps"]
        if [*old.values()] != [*new.values()]:
            for name, value in new.items():
                if old.get(name) != value:
                    return f"{name} changed" if name in old else f"{name} is new"
            return f"{next((name for name in old if name not in new), 'the order of cells')} is gone"
        if changed := self._changed(kept["files"]):
            came, is_gone = kept["files"][changed] == MISSING, state(changed) == MISSING
            what = "came" if came else "is gone" if is_gone else "changed"
            return f"{'what is in ' * changed.endswith(os.sep)}{_named(changed)} {what}"
        return ""

    def _changed(self, files: Mapping[str, str]) -> str:
        return next((file for file, digest in files.items() if self._digest(file) != digest), "")

    def _digest(self, file: str) -> str:
        if file not in self._digests:  # many pages read the same modules
            self._digests[file] = state(file)
        return self._digests[file]

    def _write(self, file: Path, data: bytes) -> None:
        try:
            write(file, data)
        except OSError as error:
            raise self._failure(error) from error

    def _failure(self, error: OSError) -> CacheError:
        return CacheError(
            f"runs cannot be kept in {self.directory}: {error.strerror}; make room or make it writable, keep them "
            "elsewhere with cache under [tool.proofread] in pyproject.toml, or copy the project to a folder of yours"
        )


def _key(task: Task) -> str:
    """Return a digest of all that is known of a run before it."""
    made = parts(task)
    # Names change with every cell of prose that comes or goes; what runs does not.
    key = [made["page"], [*made["steps"].values()], made["packages"], sorted(made["environment"].items())]
    return sha(json.dumps(key))[:32]


def parts(task: Task) -> dict[str, Any]:
    """Return all that a run of the task depends on and that is known before it; steps by the names of its author."""
    steps: dict[str, str] = {}
    for step in task.steps:
        formulas = [asdict(formula) | {"line": 0} for formula in step.formulas]
        fields: dict[str, Any] = {"code": step.code, "raises": step.raises, "expressions": step.expressions}
        fields |= {"formulas": formulas, "snippet": step.snippet}
        name = step.name
        while name in steps:
            name += "'"
        steps[name] = sha(json.dumps(fields))
    return {"page": task.path, "packages": task.packages, "steps": steps, "environment": environment()}


def _plain(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome as JSON."""
    return {
        "began": outcome.began,
        "seconds": outcome.seconds,
        "machine": outcome.machine and asdict(outcome.machine),
        "results": [{name: value for name, value in asdict(result).items() if value} for result in outcome.results],
        "snippets": {place: asdict(snippet) for place, snippet in outcome.snippets.items()},
    }


def _read(file: Path) -> dict[str, Any] | None:
    with suppress(OSError, ValueError, AttributeError, RecursionError):
        kept = json.loads(unsealed(file))
        return kept if kept.keys() >= _KEYS else None
    return None


def _outcome(kept: dict[str, Any]) -> Outcome | None:
    """Return the outcome that `_plain` wrote, with its files and requests; None if it cannot be read."""
    try:
        results = [_result(**result) for result in kept["results"]]
        snippets = {int(place): Snippet(**each) for place, each in kept["snippets"].items()}
        machine = Machine(**kept["machine"]) if kept["machine"] else None
        began, seconds, files, asked = kept["began"], kept["seconds"], kept["files"], kept["asked"]
        return Outcome(results, "", snippets, files, asked, began=began, seconds=seconds, machine=machine)
    except (KeyError, TypeError, ValueError):
        return None


def _named(read: str) -> str:
    return os.path.relpath(read) if Path(read).is_relative_to(Path.cwd()) else read


def _age(file: Path | str) -> float:
    try:
        return 0.0 if os.path.isdir(file) else os.path.getmtime(file)
    except OSError:
        return time.time()


def _result(raised: dict[str, Any] | None = None, **fields: Any) -> Result:
    """Return a result from its fields as JSON has them."""
    for name in {"errors", "exact", "bits", "sides"} & fields.keys():
        fields[name] = {int(place): value for place, value in fields[name].items()}
    return Result(raised=Raised(**raised) if raised else None, **fields)
