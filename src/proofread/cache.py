"""Keeps what a run gave until something that it depends on changes.

A run depends on its steps, on Python, the installed distributions and this engine (together its key), and on the
project's files that it read, modules above all (known only once it has run, and therefore kept with it).
"""

import functools
import hashlib
import json
import os
import platform
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .kernel import Raised, Result
from .run import Outcome, Task


class Cache:
    """Runs on disk, one file each; safe against a kill at any moment and against two builds at once."""

    def __init__(self, directory: Path):
        self.directory = directory

    def load(self, task: Task) -> Outcome | None:
        """What the task gave when all was as it is now."""
        try:
            kept = json.loads(self._file(task).read_bytes())
            if any(_digest(Path(file)) != digest for file, digest in kept["files"].items()):
                return None
            results = [_result(**result) for result in kept["results"]]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return Outcome(results=results, files=list(kept["files"]))

    def store(self, task: Task, outcome: Outcome) -> None:
        """Keep what a run gave that went to its end."""
        if outcome.files is None:
            return
        if any(os.path.getmtime(file) >= outcome.began for file in outcome.files):
            return  # saved while the page ran: which version it read cannot be told
        kept = {
            "files": {file: _digest(Path(file)) for file in outcome.files},
            "results": [asdict(result) for result in outcome.results],
        }
        write(self._file(task), json.dumps(kept).encode())

    def _file(self, task: Task) -> Path:
        steps = [
            (step.code, step.raises, step.expressions, [asdict(f) | {"line": 0} for f in step.formulas])
            for step in task.steps
        ]
        key = json.dumps([task.path, steps, environment()])
        return self.directory / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def write(file: Path, data: bytes) -> None:
    """Write a file in one step: a reader sees the old one or the new one, never a part of it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=file.parent, suffix=".part", delete=False) as part:
        part.write(data)
    os.replace(part.name, file)


def _result(raised: dict[str, Any] | None, errors: dict[str, str], **plain: Any) -> Result:
    by_place = {int(place): error for place, error in errors.items()}
    return Result(raised=Raised(**raised) if raised else None, errors=by_place, **plain)


@functools.cache
def environment() -> tuple[str, ...]:
    """All of the environment that a run may depend on: Python, machine, installed distributions, this engine."""
    installed = {entry.name for folder in sys.path if os.path.isdir(folder) for entry in os.scandir(folder)}
    distributions = sorted(name for name in installed if name.endswith((".dist-info", ".egg-info")))
    engine = sorted(f"{path.name} {_digest(path)}" for path in Path(__file__).parent.rglob("*.py"))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return (sys.version, platform.platform(), visible, *distributions, *engine)


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return "missing"
