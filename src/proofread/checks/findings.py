"""Findings: the place of each on its page, its kind, and the edit that mends it."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby

KINDS = {
    "encoding": "the file is not UTF-8",
    "removed": "a page no longer exists once the pages have run",
    "option": "a `#|` comment or a tag of a cell is unknown, or has an invalid value",
    "cell": "a cell fails, fails otherwise than it says, or would not tell if it did not fail",
    "stopped": "the run of a page ended early: time, memory, a signal",
    "output": "a cell shows more than it may",
    "memory": "a page takes more memory than it may",
    "seed": "a cell draws random numbers that it has not seeded, or makes a generator without a seed",
    "alt": "a figure has no alt text, or an alt text no figure",
    "value": "a typed value is not what its expression gives",
    "claim": "a claim does not hold, or would hold for any value",
    "expression": "an expression cannot be evaluated or proves nothing",
    "bits": "a claim compares computed numbers to the last bit, and gives no reason why no machine can differ",
    "machine": "what a page gives depends on the machine, or could",
    "bare": "nothing proves a value",
    "waiver": "a waiver waives nothing or gives no reason",
    "formula": "a formula does not hold, cannot be read, or says nothing",
    "mutant": "a formula would pass if it were wrong",
    "equation": "pages and docstrings do not mean the same equation by a number",
    "docstring": "a docstring says other parameters, defaults or exceptions than its source",
    "math": "TeX cannot be typeset; only a build and an export find it",
    "snippet": "a cell's program, run alone, does not give what the cell gives on its page",
}

_FEW = 3  # how many findings of one kind on one line are shown
_MOST = 1_000  # how many characters of a message are shown, half of them from each end

# The kinds of findings that say that the code of a page did not run as it should.
BROKEN = frozenset({"encoding", "removed", "cell", "stopped", "output", "memory"})


@dataclass(frozen=True)
class Edit:
    """A change of a file: what stands between two places, (line from 1, column from 0), and what replaces it."""

    start: tuple[int, int]
    end: tuple[int, int]
    old: str
    new: str


@dataclass(frozen=True, order=True)
class Finding:
    """One thing that is wrong with a page, or with a docstring."""

    path: str  # the file, relative to the project
    line: int  # counted from 1
    message: str  # what is wrong, and the remedy
    detail: str = ""  # more of it, such as a traceback
    kind: str = field(default="", compare=False)  # one of `KINDS`
    # What it is about, as pytest names its test: ``45 value 55% = weights[6, 6]``; "" for the page as a whole.
    subject: str = field(default="", compare=False)
    edit: Edit | None = field(default=None, compare=False)  # what would mend it, if that is known
    column: int | None = field(default=None, compare=False)  # in characters from 0; None where all of the line is meant

    @property
    def place(self) -> str:
        """Where it is."""
        return f"{self.path}:{self.line}"

    def __str__(self) -> str:
        return f"{self.place}: {self.message}" + (f"\n{self.detail.rstrip()}" if self.detail else "")


def shortened(finding: Finding) -> Finding:
    """Return a finding whose message, if it is very long, keeps its two ends."""
    if len(finding.message) <= _MOST:
        return finding
    return replace(finding, message=f"{finding.message[: _MOST // 2]} ... {finding.message[-_MOST // 2 :]}")


def listed(findings: Iterable[Finding]) -> Iterator[str]:
    """Yield findings for a person to read: of many of a kind on a line the first few, and the number of the others."""
    for place, same in groupby(findings, key=lambda each: each.place):
        shown = Counter[str]()
        for finding in same:
            shown[finding.kind] += 1
            if shown[finding.kind] <= _FEW:
                yield str(finding)
        for kind, number in shown.items():
            if number > _FEW:
                yield f"{place}: and {number - _FEW} more of the kind {kind}"
