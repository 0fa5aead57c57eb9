"""Runs pages as other machines would, and says what then reads otherwise: what flips, moves, or stands near an edge.

Most of what differs between machines can be had on one: which vector instructions its libraries take, how many threads,
which locale and time zone. All of it is set by variables, before the libraries are imported, so each machine has a
process of its own with a server of its own. ``python -m proofread.checks.machines far`` prints those of one, for
``env``.
"""

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path

from ..keep.environment import cpuinfo
from ..pages import numbers as figures
from ..pages.prose import Claim, Computed, Figure
from ..runs import server as run
from ..runs.steps import Step, Task
from ..settings import Settings
from .check import check, sources_of
from .checked import Checked, Progress, Report, Text, Told, count, ordered
from .findings import Finding, located

_X86 = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41"}
_X86 |= {"OPENBLAS_CORETYPE": "Prescott"}
_AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
_AVX2 |= {"OPENBLAS_CORETYPE": "Haswell"}
_ARM = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "ADVANCED_SIMD", "OPENBLAS_CORETYPE": "ARMV8"}
_THREADS = {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2", "PYTHON_CPU_COUNT": "3"}
# Text that is not UTF-8, numbers with a comma where the system knows German, and clocks 5:45 before Greenwich's.
_ABROAD = {"LANG": "de_DE.UTF-8", "LANGUAGE": "de", "LC_ALL": "", "LC_CTYPE": "C", "PYTHONUTF8": "0"}
_ABROAD |= {"PYTHONCOERCECLOCALE": "0", "TZ": "NPT-5:45"}
_NEAR = 1e-4  # of a unit in the last place that is shown
FURTHER = 4  # times as far as on the machines here may a figure move on others
# Told apart by what such operations give: a product, functions of one variable, and a sum.
_PROBE = """\
import hashlib, platform, numpy
x = numpy.linspace(-3, 3, 60_000, dtype="float32").reshape(200, 300)
bits, capability = [x @ x.T, x.astype(float) @ x.T.astype(float), numpy.exp(x), x.sum()], platform.machine()
try:
    import torch
except ImportError:
    pass
else:
    x, capability = torch.tensor(x), torch.backends.cpu.get_cpu_capability()
    bits += [each.numpy() for each in (x @ x.T, x.double() @ x.T.double(), x.exp(), x.softmax(-1), x.sum())]
bits = hashlib.sha256(b"".join(each.tobytes() for each in bits)).hexdigest()
"""
_ASKED = ("bits", "capability")


@dataclass(frozen=True)
class Emulated:
    """One that is emulated here: the variables that make it, and what this processor must have for that."""

    name: str
    variables: Mapping[str, str] = field(default_factory=dict)
    needs: str = ""


SAYS = {
    "this": "this machine, as its pages always run",
    "plain": "a processor of its first kind: x86-64 without AVX, ARM without SVE",
    "avx2": "an x86-64 processor with AVX2 and nothing newer",
    "threads": "two threads for each page",
    "abroad": "another locale, whose text is not UTF-8, and another time zone",
    "far": "plain, threads and abroad at once, which costs a single run",
}
MACHINES = (
    Emulated("this"),
    Emulated("plain", _X86, "sse2"),
    Emulated("plain", _ARM, "asimd"),
    Emulated("avx2", _AVX2, "avx2"),
    Emulated("threads", _THREADS),
    Emulated("abroad", _ABROAD),
    Emulated("far", _X86 | _THREADS | _ABROAD, "sse2"),
    Emulated("far", _ARM | _THREADS | _ABROAD, "asimd"),
    Emulated("far", _THREADS | _ABROAD),
)
# What --machines takes: one that differs in a single way says which way it is.
USUAL = tuple(name for name in SAYS if name != "far")


@dataclass(frozen=True)
class Move:
    """A number that is not the same on every machine: where it stands, its expression, and what each gives."""

    path: str
    line: int
    expression: str
    values: Mapping[str, float]

    @property
    def by(self) -> float:
        """How far it moves, as a part of its size."""
        low, high = min(self.values.values()), max(self.values.values())
        return (high - low) / (max(abs(low), abs(high)) or 1.0)


@dataclass
class Compared:
    """What pages give on several machines."""

    machines: Mapping[str, str]  # how each was emulated: its processor as PyTorch sees it, and whether bits change
    report: Report  # what this machine gave
    findings: list[Finding]  # what is wrong on all of them, on some, or could be on another
    numbers: int  # how many were compared
    moves: list[Move]  # those that are not the same everywhere, the furthest first
    prints: list[str]  # the cells that print something else on some machine, by path and line; their readers see theirs

    def __str__(self) -> str:
        told = [f"{name}: {how}" for name, how in self.machines.items()]
        moved = f"{len(self.moves)} of {self.numbers} numbers move"
        if self.moves:
            most = self.moves[0]
            moved += f", at most by {most.by:.1e} of their size: {most.path}:{most.line}, {most.expression}"
        if self.prints:
            moved += f"\ncells that print otherwise, in a last digit or more: {', '.join(self.prints)}"
        pages, found = len(self.report.pages), count(len(self.findings), "finding")
        return "\n".join([*told, moved, f"{pages} pages on {len(self.machines)} machines; {found}"])


def chosen(names: Iterable[str]) -> tuple[list[Emulated], dict[str, str]]:
    """The machines of these names, this one first, and why the others cannot be had here."""
    words = set(cpuinfo().lower().split())
    taken, missing = [MACHINES[0]], dict[str, str]()
    for name in dict.fromkeys(names):
        fit = [machine for machine in MACHINES if machine.name == name and {machine.needs} <= words | {""}]
        if not fit:
            needs = " or ".join(machine.needs for machine in MACHINES if machine.name == name)
            missing[name] = f"not here: this system does not say that its processor has {needs}"
        taken += [machine for machine in fit[:1] if machine.name != "this"]
    return taken, missing


def compare(
    paths: Sequence[Path],
    *,
    root: Path,
    settings: Settings,
    names: Sequence[str] = USUAL,
    keep: bool = True,
    progress: Progress = lambda told: None,
) -> Compared:
    """Run pages on several machines, one after another, and compare what they give.

    The names are some of `SAYS`; this machine is always one of them. The runs of others are kept apart.
    """
    machines, how = chosen(names)
    reports: dict[str, Report] = {}
    bits: dict[str, str] = {}
    asked = paths, root, settings, keep
    for machine in machines:
        reports[machine.name], (bits[machine.name], capability) = _elsewhere(machine, asked, progress)
        same = next(other for other in bits if bits[other] == bits[machine.name])
        computes = "" if same == machine.name else f", computes as {same} does"
        how[machine.name] = f"{SAYS[machine.name]} ({capability}{computes})"
    how = {name: how[name] for name in dict.fromkeys([*reports, *how])}
    compared = list(_numbers(reports))
    moves = [move for move, _ in compared if len({*move.values.values()}) > 1]
    moves.sort(key=lambda move: move.by, reverse=True)
    pages = {checked.page.path: checked.page for checked in reports["this"].pages}
    findings = {*_flips(reports), *_shown(reports), *(near for _, near in compared if near)}
    return Compared(
        how,
        reports["this"],
        ordered(located(found, pages.get(found.path)) for found in findings),
        len(compared),
        moves,
        [*_prints(reports)],
    )


def prune(directory: Path) -> int:
    """Remove what the runs of other machines left in a cache; returns how many bytes that freed."""
    files = [file for file in (directory / "machines").rglob("*") if file.is_file()]
    freed = sum(file.stat().st_size for file in files)
    shutil.rmtree(directory / "machines", ignore_errors=True)
    return freed


_Asked = tuple[Sequence[Path], Path, Settings, bool]  # which pages, of which project, and how they are run and kept


def _elsewhere(machine: Emulated, asked: _Asked, progress: Progress) -> tuple[Report, list[str]]:
    """What the pages give on a machine, and how that computes."""
    process, receiver = run.started("spawn", _check, machine, asked)
    try:
        while isinstance(told := receiver.recv(), Told):
            progress(replace(told, page=f"{told.page} on {machine.name}"))
    except EOFError:
        process.join()
        raise RuntimeError(f"what checks pages as on {machine.name} ended with exit code {process.exitcode}") from None
    finally:
        process.terminate()
        process.join()
        receiver.close()
    if isinstance(told, Exception):
        raise told
    given: tuple[Report, list[str]] = told
    return given


def _check(sender: Connection, machine: Emulated, asked: _Asked) -> None:
    """Check pages in a process that is to be the machine, and send what they gave."""
    paths, root, settings, keep = asked
    os.environ.update(machine.variables)
    run.ENVIRONMENT.update(machine.variables)
    if machine.variables:
        settings = replace(settings, cache=settings.cache / "machines" / machine.name)
    try:
        # What the pages name and what the probe does: else the server would import all that any page might.
        run.warm([*sources_of(paths, settings), Path(__file__)], settings.packages)
        steps = Step(1, _PROBE), Step(1, expressions=tuple((each, None) for each in _ASKED))
        (probed,) = (event.outcome for event in run.run([Task("probe", steps)], root=root) if not event.step)
        report = check(paths, root=root, settings=settings, keep=keep, progress=sender.send)
        sender.send((report, [str(value) for value in probed.results[-1].values]))
    except Exception as error:
        sender.send(error)
    except KeyboardInterrupt:
        pass  # which the program that asked tells of


def _flips(reports: Mapping[str, Report]) -> Iterator[Finding]:
    """What is found on every machine, as it is; and what is found on some alone."""
    found: dict[tuple[str, int, str, str], dict[str, Finding]] = {}
    for name, report in reports.items():
        for finding in report.findings:
            found.setdefault((finding.path, finding.line, finding.kind, finding.subject), {})[name] = finding
    for by_machine in found.values():
        finding = next(iter(by_machine.values()))
        if others := reports.keys() - by_machine.keys():
            message = f"{finding.message}: on {_names(by_machine)}, not on {_names(others)}"
            finding = replace(finding, message=message, kind="machine", edit=None)
        yield finding


def _shown(reports: Mapping[str, Report]) -> Iterator[Finding]:
    """Figures that a page computes, and that read otherwise on another machine."""
    for checked, text, figure, values in _figures(reports):
        if isinstance(figure, Computed) and len({str(value) for value in values.values()}) > 1:
            on = {str(value): [name for name in values if values[name] == value] for value in values.values()}
            read = "; ".join(f"{value} on {_names(names)}" for value, names in on.items())
            message = f"{{{{ {figure.expression} }}}} reads {read}: show less of it, or what is the same everywhere"
            yield Finding(checked.page.path, text.line + figure.line, message, kind="machine")


def _numbers(reports: Mapping[str, Report]) -> Iterator[tuple[Move, Finding | None]]:
    """The numbers of the pages' figures, with what each machine gives, and whether they stand near an edge."""
    for checked, text, figure, values in _figures(reports):
        is_typed = isinstance(figure, Claim)
        typed = figure.typed if isinstance(figure, Claim) else str(values["this"])
        exact = {name: _of(report, checked, text).exact.get(figure, values[name]) for name, report in reports.items()}
        found = [[*figures.numbers(typed, value)] for value in exact.values()]
        if len({*map(len, found)}) > 1:
            continue  # something of another kind, which no figure says
        for same in zip(*found, strict=True):
            given = dict(zip(exact, (number for _, number in same), strict=True))
            move = Move(checked.page.path, text.line + figure.line, figure.expression, given)
            flips = not is_typed and len({*map(str, values.values())}) > 1  # which says more
            yield move, None if flips else _near(move, same[0][0], is_typed)


def _near(move: Move, typed: str, is_typed: bool) -> Finding | None:
    """Whether another machine could round a number to another figure: at an edge, or nearer to it than it moves."""
    moved = max(move.values.values()) - min(move.values.values())
    for value in move.values.values():
        room = figures.room(typed, value, is_typed)
        if room and 0 <= room[0] <= max(_NEAR * room[1], FURTHER * moved):
            message = (
                f"{typed} stands at a rounding edge: {move.expression} gives {value:.10g}, and another machine may "
                "give another digit; show fewer of them, or another figure"
            )
            return Finding(move.path, move.line, message, kind="machine")
    return None


def _prints(reports: Mapping[str, Report]) -> Iterator[str]:
    """The cells whose text is not the same on every machine that came to them."""
    for pages in zip(*(report.pages for report in reports.values()), strict=True):
        for place, cell in enumerate(pages[0].page.cells):
            given = [page.outputs(place) for page in pages if place in page.code]
            printed = [[(o.get("text"), o.get("data", {}).get("text/plain")) for o in outputs] for outputs in given]
            if any(each != printed[0] for each in printed):
                yield pages[0].page.at(cell.line)


def _figures(reports: Mapping[str, Report]) -> Iterator[tuple[Checked, Text, Figure, dict[str, figures.Value]]]:
    """The figures to which every machine came, with what each gives."""
    for checked in reports["this"].pages:
        for text in checked.texts:
            for figure in text.values:
                values = {name: _of(report, checked, text).values.get(figure) for name, report in reports.items()}
                if None not in values.values():
                    yield checked, text, figure, values


def _of(report: Report, checked: Checked, text: Text) -> Text:
    """The same text in another report of the same pages."""
    (other,) = (each for each in report.pages if each.page.path == checked.page.path)
    return other.texts[checked.texts.index(text)] if other.page == checked.page else Text(0, 0, text.prose, [])


def _names(names: Iterable[str]) -> str:
    named = set(names)
    return ", ".join(name for name in SAYS if name in named)


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in SAYS:
        sys.exit(f"python -m proofread.checks.machines NAME prints the variables of one of {', '.join(SAYS)}")
    asked, unavailable = chosen(sys.argv[1:])
    if unavailable:
        sys.exit(f"{sys.argv[1]} is {unavailable[sys.argv[1]]}")
    print(*(f"{name}={value}" for name, value in asked[-1].variables.items()), sep="\n")
