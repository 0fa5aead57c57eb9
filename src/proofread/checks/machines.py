"""Runs pages as other machines would, and says what then reads otherwise: what flips, or stands near an edge.

Most of what differs between machines can be had on one: which vector instructions its libraries take, how many threads,
which locale and time zone. All of it is set by variables, before the libraries are imported, so each machine has a
process of its own with a server of its own. ``python -m proofread.checks.machines far`` prints those of one, for
``env``.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

from ..keep.environment import cpuinfo
from ..pages.numbers import Number, Typed
from ..pages.prose import Claim, Computed, Question
from ..runs import server as run
from ..settings import Settings
from .check import check
from .checked import Answer, Checked, Report, Text, count, ordered
from .findings import Finding, shortened
from .progress import Progress, Told

# What a processor of each kind says that it can do, and what keeps the libraries from using more.
_PROCESSORS = {
    "sse2": {
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_CBWR": "COMPATIBLE",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "OPENBLAS_CORETYPE": "Prescott",
    },
    "asimd": {
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "ADVANCED_SIMD",
        "OPENBLAS_CORETYPE": "ARMV8",
    },
}
_THREADS = {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2", "PYTHON_CPU_COUNT": "3"}
_CLOCK = {"TZ": "NPT-5:45"}  # 5:45 before Greenwich's
# Text that is not UTF-8, and numbers with a comma where the system knows German.
_LOCALE = {"LANG": "de_DE.UTF-8", "LANGUAGE": "de", "LC_ALL": "", "LC_CTYPE": "C", "PYTHONUTF8": "0"}
_LOCALE |= {"PYTHONCOERCECLOCALE": "0"}
SAYS = {
    "plain": "a processor of its first kind: x86-64 without AVX, ARM without SVE",
    "far": "plain, with two threads for each page, and another time zone and locale, whose text is not UTF-8",
}
_MISSING = f"not here: this system does not say that its processor has {' or '.join(_PROCESSORS)}"
_NEAR = 1e-4  # of a unit in the last place that is shown
FURTHER = 4  # times as far as on the machines here may a value move on others


@dataclass(frozen=True)
class Compared:
    """The results of pages on several machines."""

    machines: Mapping[str, str]  # how those beside this one are emulated here, or why not
    report: Report  # what this machine gave
    findings: list[Finding]  # what is wrong on all of them, on some, or could be on another

    def __str__(self) -> str:
        lines = [f"{name}: {how}" for name, how in self.machines.items()]
        pages, findings = count(len(self.report.pages), "page"), count(len(self.findings), "finding")
        return "\n".join([*lines, f"{pages}; {findings}"])


def variables(name: str, paths: Iterable[Path] = ()) -> Mapping[str, str] | None:
    """Return the environment variables of a machine of `SAYS`, or None where it cannot be had.

    It keeps its locale where these paths cannot be named in another, or those from which Python starts.
    """
    words = cpuinfo().lower().split()
    processor = next((_PROCESSORS[feature] for feature in _PROCESSORS if feature in words), None)
    if name == "plain":
        return processor
    return {**(processor or {}), **_THREADS, **_CLOCK, **({} if _unnamed(paths) else _LOCALE)}


def chosen(names: Iterable[str], paths: Sequence[Path] = ()) -> dict[str, Mapping[str, str]]:
    """The variables of this machine, which has none, and of those of these names that can be had."""
    made = {name: variables(name, paths) for name in names}
    return {"this": {}} | {name: values for name, values in made.items() if values is not None}


def _unnamed(paths: Iterable[Path]) -> str:
    """The first path that a locale without UTF-8 has no name for, which Python could neither start from nor open."""
    every = (*map(str, paths), *sys.path, sys.executable, tempfile.gettempdir())
    return next((path for path in every if not path.isascii()), "")


def _says(name: str, paths: Sequence[Path]) -> str:
    if name == "far" and (path := _unnamed(paths)):
        return f"{SAYS[name]}, but for the locale, which has no name for {path}"
    return SAYS[name]


def compare(
    paths: Sequence[Path],
    *,
    root: Path,
    settings: Settings,
    names: Sequence[str] = tuple(SAYS),
    keep: bool = True,
    progress: Progress = lambda message: None,
) -> Compared:
    """Run pages on several machines, one after another, and compare what they give.

    The names are some of `SAYS`; this machine is always one of them. The runs of others are kept apart.
    """
    named = [root, *paths]
    machines = chosen(names, named)
    asked = paths, root, settings, keep
    reports = {name: _elsewhere(name, values, asked, progress) for name, values in machines.items()}
    findings = {*_flips(reports), *_shown(reports), *_edges(reports)}
    return Compared(
        {name: _says(name, named) if name in machines else _MISSING for name in names},
        reports["this"],
        ordered(map(shortened, findings)),
    )


def prune(directory: Path) -> int:
    """Remove what the runs of other machines left in a cache; returns how many bytes that freed."""
    files = [file for file in (directory / "machines").rglob("*") if file.is_file()]
    freed = sum(file.stat().st_size for file in files)
    shutil.rmtree(directory / "machines", ignore_errors=True)
    return freed


_Asked = tuple[Sequence[Path], Path, Settings, bool]  # which pages, of which project, and how they are run and kept


def _elsewhere(name: str, values: Mapping[str, str], asked: _Asked, progress: Progress) -> Report:
    """Return the report of the pages on the machine that these variables make."""
    process, receiver = run.started("spawn", _check, name, values, asked)
    try:
        while isinstance(message := receiver.recv(), Told):
            progress(replace(message, page=f"{message.page} on {name}"))
    except EOFError:
        process.join()
        raise RuntimeError(f"what checks pages as on {name} ended with exit code {process.exitcode}") from None
    finally:
        process.terminate()
        process.join()
        receiver.close()
    if isinstance(message, Exception):
        raise message
    report: Report = message
    return report


def _check(sender: Connection, name: str, values: Mapping[str, str], asked: _Asked) -> None:
    """Check pages in a process that is to be the machine, and send what they gave."""
    paths, root, settings, keep = asked
    os.environ.update(values)
    run.ENVIRONMENT.update(values)
    if values:
        settings = replace(settings, cache=settings.cache / "machines" / name)
    try:
        sender.send(check(paths, root=root, settings=settings, keep=keep, progress=sender.send))
    except Exception as error:
        sender.send(error)
    except KeyboardInterrupt:
        pass  # which the program that asked tells of


def _flips(reports: Mapping[str, Report]) -> Iterator[Finding]:
    """Yield the findings of every machine as they are, and those of some machines with the names of these."""
    by_place: dict[tuple[str, int, str, str], dict[str, Finding]] = {}
    for name, report in reports.items():
        for finding in report.findings:
            by_place.setdefault((finding.path, finding.line, finding.kind, finding.subject), {})[name] = finding
    for by_machine in by_place.values():
        finding = next(iter(by_machine.values()))
        if others := reports.keys() - by_machine.keys():
            message = f"{finding.message}: on {_names(by_machine)}, not on {_names(others)}"
            finding = replace(finding, message=message, kind="machine", edit=None)
        yield finding


def _shown(reports: Mapping[str, Report]) -> Iterator[Finding]:
    """Values that a page computes, and that read otherwise on another machine."""
    for checked, text, question, answers in _answers(reports):
        on: dict[str, list[str]] = {}
        for name, answer in answers.items():
            on.setdefault(str(answer.value), []).append(name)
        if isinstance(question, Computed) and len(on) > 1:
            read = "; ".join(f"{value} on {_names(names)}" for value, names in on.items())
            message = f"{{{{ {question.expression} }}}} reads {read}: show less of it, or what is the same everywhere"
            yield Finding(checked.page.path, text.line + question.line, message, kind="machine")


def _edges(reports: Mapping[str, Report]) -> Iterator[Finding]:
    """Numbers that another machine could round otherwise."""
    for checked, text, question, answers in _answers(reports):
        is_typed = isinstance(question, Claim)
        if not is_typed and len({str(answer.value) for answer in answers.values()}) > 1:
            continue  # it does so already, which says more
        typed = Typed.parse(question.typed if isinstance(question, Claim) else str(answers["this"].value))
        by_machine = [[*typed.numbers(answer.exact)] for answer in answers.values()]
        if len({*map(len, by_machine)}) > 1:
            continue  # something of another kind, which no number says
        for same in zip(*by_machine, strict=True):
            if value := _at_an_edge(same[0][0], [number for _, number in same], is_typed):
                message = (
                    f"{same[0][0]} stands at a rounding edge: {question.expression} gives {value:.10g}, and another "
                    "machine may give another digit; show fewer of them, or another value"
                )
                yield Finding(checked.page.path, text.line + question.line, message, kind="machine")


def _at_an_edge(typed: str, values: Sequence[float], is_typed: bool) -> float | None:
    """The first of a number's values that is at a rounding edge, or nearer to it than the number moves."""
    number, moved = Number.parse(typed), max(values) - min(values)
    for value in values if number else ():
        room = number and number.room(value, is_typed)
        if room and 0 <= room[0] <= max(_NEAR * room[1], FURTHER * moved):
            return value
    return None


def _answers(reports: Mapping[str, Report]) -> Iterator[tuple[Checked, Text, Question, dict[str, Answer]]]:
    """The questions that every machine has answered, with the answer of each."""
    for checked in reports["this"].pages:
        for text in checked.texts:
            others = {name: _of(report, checked, text).answers for name, report in reports.items()}
            for question in text.answers:
                answers = {name: given[question] for name, given in others.items() if question in given}
                if len(answers) == len(reports) and all(answer.value is not None for answer in answers.values()):
                    yield checked, text, question, answers


def _of(report: Report, checked: Checked, text: Text) -> Text:
    """The same text in another report of the same pages."""
    (other,) = (each for each in report.pages if each.page.path == checked.page.path)
    return other.texts[checked.texts.index(text)] if other.page == checked.page else Text(0, 0, text.prose)


def _names(names: Iterable[str]) -> str:
    named = set(names)
    return ", ".join(name for name in ("this", *SAYS) if name in named)


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in SAYS:
        sys.exit(f"python -m proofread.checks.machines NAME prints the variables of one of {', '.join(SAYS)}")
    asked = variables(sys.argv[1])
    if asked is None:
        sys.exit(f"{sys.argv[1]} is {_MISSING}")
    print(*(f"{name}={value}" for name, value in asked.items()), sep="\n")
