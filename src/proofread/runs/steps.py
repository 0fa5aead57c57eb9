"""The steps that a page is run as, and their results: plain data that can be sent to a child and kept.

Nothing here knows what a page looks like: a step is code to run, or what to evaluate once the page has come that far.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..formulas import Formula
from ..pages.numbers import Value
from ..programs import Snippet

Output = dict[str, Any]


@dataclass(frozen=True)
class Step:
    """Code to run, or else what to evaluate after it. The line is that of the code in the page's file."""

    line: int
    code: str | None = None
    name: str = ""  # by which a reader knows it
    raises: bool = False
    timeout: float = 120.0
    expressions: tuple[tuple[str, str | None], ...] = ()  # each with a format if the page shows the result
    formulas: tuple[Formula, ...] = ()
    again: int = -1  # the step of whose expressions those are evaluated anew that failed
    snippet: bool = False  # whether to make the program of its code


@dataclass
class Raised:
    """An exception that left a step's code: its line in the page's file, and its trace from there on."""

    summary: str
    line: int
    trace: str
    fatal: bool = False  # no failure that a page can want to show
    kind: str = ""  # the exception's class, with its module


@dataclass
class Result:
    """The result of a step, as plain data that can be sent and kept."""

    outputs: list[Output] = field(default_factory=list)
    raised: Raised | None = None
    unseeded: str = ""  # what the step did with a random generator that it had not seeded
    backend: str = ""  # that matplotlib draws with, if it is not the one that shows figures
    values: list[Value] = field(default_factory=list)
    errors: dict[int, str] = field(default_factory=dict)  # why the expression at that place has no value
    exact: dict[int, Value] = field(default_factory=dict)  # what a format was given, where it was a number
    bits: dict[int, str] = field(default_factory=dict)  # where computed numbers are compared to the bit, and how
    sides: dict[int, str] = field(default_factory=dict)  # what a condition compares that does not hold
    formulas: list[list[str]] = field(default_factory=list)  # for each what is wrong with it
    survivors: list[list[str]] = field(default_factory=list)  # for each what is told of the wrong versions that pass


@dataclass(frozen=True)
class Task:
    """A page to run: the name its code is compiled under, and its steps."""

    path: str
    steps: tuple[Step, ...]
    packages: tuple[str, ...] = ()  # any file of which a process may read that the page starts


@dataclass(frozen=True)
class Machine:
    """The software and the device that a page ran on: torch, numpy or Python, and the processor or the GPU."""

    software: str  # the first of the three that it uses, with its version
    device: str


@dataclass
class Outcome:
    """The outcome of a run: the results of the steps it took, and the reason why it ended early."""

    results: list[Result] = field(default_factory=list)
    stopped: str = ""
    snippets: dict[int, Snippet] = field(default_factory=dict)  # by the place of their step
    files: dict[str, str] | None = None  # what it read, with its state if that is known; once all steps were taken
    asked: Sequence[str] = ()  # what it asked for by name of what is installed, or might be; known like files
    began: float = field(default_factory=time.time)
    seconds: float = 0.0
    machine: Machine | None = None  # known once all steps were taken
