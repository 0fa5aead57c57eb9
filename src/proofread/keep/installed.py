"""Finds the installed distributions that a run depends on: those that it asked for, and all that these require."""

import functools
import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .files import digest

EVERYTHING = "everything"  # the question of who lists all that is installed


@dataclass(frozen=True)
class _Distribution:
    state: str  # its version, and what tells it from another build of that
    modules: frozenset[str]  # what can be imported from it, at the top
    requires: frozenset[str]  # the distributions that it needs, whatever else is asked of it
    groups: frozenset[str]  # of its entry points


def installed(questions: Iterable[str]) -> dict[str, str]:
    """The distributions that answer questions, and those that they require; nothing for what there is not.

    Args:
        questions: "import name", "distribution name", "entry points group", or "everything".

    Returns:
        What tells one version of each distribution from another, by its name.
    """
    every, states = distributions(), {}
    waiting = [name for question in questions for name in _answer(question)]
    while waiting:
        if (name := waiting.pop()) in every and name not in states:
            states[name] = every[name].state
            waiting += every[name].requires
    return states


@functools.cache
def distributions() -> dict[str, _Distribution]:
    """All that is installed; it stays as it is while this process lives.

    What setuptools carries with it is none: it is on the path of who has imported setuptools.
    """
    every: dict[str, _Distribution] = {}
    for folder in (each for each in sys.path if os.path.isdir(each) and os.path.basename(each) != "_vendor"):
        for entry in os.scandir(folder):
            if entry.name.endswith((".dist-info", ".egg-info")):
                name, _, version = entry.name.rpartition(".")[0].partition("-")
                # A folder that setuptools leaves in a project has no version in its name, and is seen only by who has
                # this folder on the path, as pytest has and a command has not.
                if version:
                    every.setdefault(normal(name), _read(Path(entry.path), version))
    return every


@functools.cache
def _answer(question: str) -> tuple[str, ...]:
    kind, _, asked = question.rpartition(" ")
    if kind == "distribution":
        return (normal(asked),)
    everything = asked in (EVERYTHING, "pkg_resources")  # which looks at all that there is by itself
    return tuple(
        name
        for name, each in distributions().items()
        if everything or asked in (each.modules if kind == "import" else each.groups)
    )


def _read(folder: Path, version: str) -> _Distribution:
    # The list of its files, with their digests, tells a distribution from another build of that version.
    record = folder / "RECORD"
    files = _text(record) or _text(folder / "top_level.txt")
    tops = {*re.findall(r"^\"?([^/,.\"\n]*)", files, re.MULTILINE)}
    required = re.findall(r"^Requires-Dist: ([\w.-]+)(?!.*;.*\bextra\b)", _text(folder / "METADATA"), re.MULTILINE)
    groups = re.findall(r"^\[(.+)\]$", _text(folder / "entry_points.txt"), re.MULTILINE)
    state = f"{version} {digest(record)[:16]}"
    return _Distribution(state, frozenset(tops - {""}), frozenset(map(normal, required)), frozenset(groups))


def normal(name: str) -> str:
    """A distribution's name as all of its spellings are."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
