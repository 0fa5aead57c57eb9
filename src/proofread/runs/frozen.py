"""What frozen pages and cells gave, in files of the project: they are run when their author says so, and not before.

Each page has one file. It holds what is known of a run, as the cache does, and what tells the code that ran from any
other; neither libraries nor data make it stale. Of a frozen cell it also holds the names that are written as literals,
such as ``loss = 0.35``: they stand in the cell's place when the rest of the page runs.
"""

import ast
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ..keep.files import sha, write
from ..syntax import module
from .cache import outcome_of, plain, plain_result, result_of
from .steps import Outcome, Result, Task


@dataclass(frozen=True)
class Kept:
    """What a frozen cell gave."""

    began: float  # in seconds since 1970
    result: Result
    names: Mapping[str, str]  # what it defined, and the literals for it

    @property
    def code(self) -> str:
        """What stands in for the cell."""
        return "\n".join(f"{name} = {value}" for name, value in self.names.items())


class Frozen:
    """What is frozen of one page."""

    def __init__(self, root: Path, name: Path):
        self._file, self._name, self._damaged = root / name, name.as_posix(), False
        self._said: dict[str, Any] = {}
        try:
            told = json.loads(self._file.read_bytes())
            self._said, self._damaged = told, told.pop("seal") != _seal(told)
        except FileNotFoundError:
            pass
        except (OSError, ValueError, LookupError, AttributeError, TypeError):
            self._damaged = True

    def page(self, task: Task) -> Outcome | str:
        """What a frozen page gave, or why that cannot be told."""
        if self._lacks("steps"):
            return self._lacks("steps")
        then, now = self._said["steps"], _steps(task)
        if [of for _, of in then] != [of for _, of in now]:
            changed = (each[0] for each, old in zip_longest(now, then) if each and (not old or each[1] != old[1]))
            return f"{next(changed, 'what stood at its end')} has changed since"
        outcome = outcome_of({"files": {}, "asked": (), **self._said["run"]})
        return outcome or f"{self._name} is of another version of proofread"

    def cell(self, sources: Iterable[str]) -> Kept | str:
        """What a frozen cell gave, the last of the page's sources up to it, or why that cannot be told."""
        if self._lacks("cells"):
            return self._lacks("cells")
        kept = self._said["cells"].get(_of(sources))
        if kept is None:
            return "its code, or code above it, has changed since"
        return Kept(kept["began"], result_of(**kept["result"]), kept["names"])

    def _lacks(self, part: str) -> str:
        if self._damaged:
            return f"{self._name} is not what was written there"
        return "" if part in self._said else "it has no results yet"

    def keep_page(self, task: Task, outcome: Outcome) -> Path:
        """Keep what a frozen page gave, in place of what its file says."""
        return self._keep({"steps": _steps(task), "run": plain(outcome)})

    def keep_cells(self, cells: Iterable[tuple[Iterable[str], Kept]]) -> Path:
        """Keep what the frozen cells of a page gave, each with the sources up to it, in place of what its file says."""
        kept = {_of(sources): asdict(cell) | {"result": plain_result(cell.result)} for sources, cell in cells}
        return self._keep({"cells": kept})

    def _keep(self, said: dict[str, Any]) -> Path:
        said = json.loads(json.dumps(said))
        write(self._file, f"{json.dumps({**said, 'seal': _seal(said)}, indent=1)}\n".encode())
        return self._file


def _seal(said: Mapping[str, Any]) -> str:
    return sha(json.dumps(said, sort_keys=True))


def _steps(task: Task) -> list[list[str]]:
    """The steps of a task, each by its name, with what tells it from one that gives something else."""
    told = []
    for step in task.steps:
        stated = [[formula.latex, formula.where] for formula in step.formulas]
        asked = [_of([step.code or ""]), step.expressions, stated]
        told.append([step.name, sha(json.dumps(asked))[:16]])
    return told


def _of(sources: Iterable[str]) -> str:
    """What tells code from code that does something else; comments and layout do not."""
    return sha(json.dumps([_form(source) for source in sources]))[:16]


def _form(code: str) -> object:
    try:
        return _plain(module(code))
    except SyntaxError:  # IPython's own, or what is shown as a failure
        return code


def _plain(node: object) -> object:
    """A syntax tree as JSON; every version of Python gives the same."""
    if isinstance(node, list):
        return [_plain(each) for each in node]
    if isinstance(node, ast.AST):
        fields = {name: _plain(value) for name, value in ast.iter_fields(node) if value not in (None, [])}
        return {type(node).__name__: fields}
    return repr(node)
