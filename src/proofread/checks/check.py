"""Proofreads pages: reads them, runs those that changed, and compares what they say with what they gave.

``check(find_pages([Path("docs")])).findings`` prints as

    docs/learn/attention.py:12: it says 55%, but weights[6, 6] gives 54%
"""

import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ..formulas import find
from ..keep.files import relative
from ..keep.shelf import Shelf
from ..keep.watch import files_of
from ..pages.page import Page, PageError, find_pages, inside, is_page, read
from ..pages.prose import Prose
from ..runs.cache import Cache
from ..runs.server import run, warm
from ..runs.steps import Outcome, Task
from ..settings import Settings, SettingsError, matches
from . import docstrings, equations
from .cells import in_code, in_data, options
from .checked import Checked, Report, Text, cell_subject, opened
from .claims import in_text, quotations
from .findings import Finding, shortened
from .plan import Owner, plan, take, try_programs
from .progress import Progress, Told


def check(
    paths: Sequence[Path],
    *,
    root: Path | None = None,
    settings: Settings | None = None,
    keep: bool = True,
    programs: bool | Collection[tuple[str, str]] = False,
    whole: bool = False,
    at_once: Collection[Path] | None = None,
    progress: Progress = lambda message: None,
) -> Report:
    """Proofread pages.

    Args:
        paths: Percent scripts and Markdown files.
        root: The project: pages run there, and findings name files relative to it. Default: the working directory.
        settings: How they are run and kept. Default: what the project's pyproject.toml says.
        keep: Whether to keep runs and to take those that were kept, or else to run every page.
        programs: Whether to try the programs of code cells, too: each must print what its cell shows. Or those to try,
            by the names of a page and of what is checked on it.
        whole: Whether these are all pages of the project: an equation that none of them has does not exist then. The
            other pages are those that the settings name.
        at_once: The pages that must be up to date. What any other gave before is taken while its own code is the same,
            and ``behind`` of the report has what is to run for it. None: all of them.
        progress: Called with what there is to tell whenever a step begins and a page is done.

    Raises:
        SettingsError: The project's settings cannot be read.
        CacheError: Runs cannot be kept.
    """
    root = (root or Path.cwd()).resolve()
    settings = settings or Settings.load(root)
    _import_from(settings, root)
    kept, shelf = (Cache(root / settings.cache), Shelf(root / settings.cache)) if keep else (None, None)
    _unmatched(settings, root)
    report = Report([])
    waiting: list[tuple[Checked, list[Owner], Task]] = []
    for path in paths:
        try:
            checked = opened(path.resolve(), root, settings, shelf)
        except PageError as error:
            finding = Finding(error.path, error.line, error.message, kind=error.kind)
            report.pages.append(Checked(Page(error.path, ()), findings=[finding]))
            continue
        except FileNotFoundError:  # which is told at the end
            report.pages.append(Checked(Page(relative(path.resolve(), root), ())))
            continue
        owners, steps = plan(checked, settings.timeout)
        task = Task(checked.page.path, tuple(steps), settings.packages)
        outcome = (kept.load(task) if kept else None) if steps else Outcome()
        report.pages.append(checked)
        if outcome is None and kept and at_once is not None and path not in at_once and (last := kept.before(task)):
            checked.behind = kept.why(task)
            report.behind.append(task)
            outcome = last
        if outcome is None:
            if not waiting:
                # It imports what pages need while the others are read.
                warm(sources_of(paths, settings), settings.packages, settings)
            checked.why = kept.why(task) if kept else "nothing was to be kept"
            waiting.append((checked, owners, task))
            continue
        take(checked, owners, outcome)
        if steps:
            progress(Told(checked.page.path, 0, len(steps)))
    # What rests on no run is done while the pages run.
    beside, documented = ThreadPoolExecutor(1), None
    if settings.docstrings == "check":
        documented = beside.submit(list, docstrings.faults(settings.packages, root, shelf))
    beside.shutdown(wait=False)
    try:
        tasks = [task for _, _, task in waiting]
        for event in run(tasks, root=root, settings=settings, cache=kept):
            checked, owners, task = waiting[event.place]
            if event.step:
                name = task.steps[event.step - 1].name
                progress(Told(task.path, event.step, len(task.steps), name, checked.why))
                continue
            take(checked, owners, event.outcome)
            progress(Told(task.path, 0, len(task.steps), why=checked.why, seconds=checked.seconds))
    finally:
        if kept:
            kept.close()
    if programs:
        try_programs(report.pages, settings, kept, progress, None if programs is True else programs)
    for checked in report.pages:
        checked.findings += _held(checked, settings, root, shelf)
    known = {checked.page.path: checked for checked in report.pages if checked.mode != "off"}
    others = [*paths, *([] if whole else project_pages(settings, root))]
    elsewhere = [checked for checked in known.values() if checked.mode == "run"]
    elsewhere += _elsewhere([path for path in others if relative(path.resolve(), root) not in known], root, shelf)
    report.between += equations.faults(report.held, elsewhere, root, settings, whole=whole or bool(settings.pages))
    report.between += documented.result() if documented else ()
    for path in paths:
        if not path.exists():
            message = "the page was removed while this ran; name pages that stay, or put it back"
            report.between.append(Finding(relative(path.resolve(), root), 1, message, kind="removed"))
    for every in (report.between, *(checked.findings for checked in report.pages)):
        every[:] = map(shortened, every)
    return report


def sources_of(paths: Iterable[Path], settings: Settings) -> list[Path]:
    """The files of which pages and packages are made."""
    packages = (Path(file) for file in files_of(settings.packages))
    return [path for path in [*paths, *packages] if path.suffix in (".md", ".py") and path.is_file()]


def project_pages(settings: Settings, root: Path) -> list[Path]:
    """All pages of a project, as its settings name them; a SettingsError says which there is not."""
    for name in settings.pages:
        if not (root / name).exists():
            raise SettingsError(f"{root / 'pyproject.toml'}: [tool.proofread] pages names {name}, which does not exist")
    return find_pages(root / name for name in settings.pages)


def _elsewhere(paths: Iterable[Path], root: Path, shelf: Shelf | None) -> Iterator[Checked]:
    """Those of some pages that number equations; nothing of them runs."""
    for path in paths:
        with suppress(PageError, FileNotFoundError):  # which is told when that page is checked
            if b"\\tag{" in path.read_bytes():
                page = read(path.resolve(), root, shelf)
                prose = ((place, cell) for place, cell in enumerate(page.cells) if not cell.is_code)
                yield Checked(page, texts=[Text(n, cell.line, Prose(""), find(cell.source)) for n, cell in prose])


def _import_from(settings: Settings, root: Path) -> None:
    """Let pages import from the folders that the settings name; the processes that run them take over where from."""
    for name in settings.imports:
        if not (root / name).is_dir():
            message = f"{root / 'pyproject.toml'}: [tool.proofread] imports names {name}, which is no folder"
            raise SettingsError(f"{message}; name folders as they are seen from there, or take it out")
    folders = [str(root / name) for name in settings.imports]
    sys.path[:0] = [folder for folder in folders if folder not in sys.path]


def _unmatched(settings: Settings, root: Path) -> None:
    """Refuse a pattern that names no page, which would be forgotten."""
    for pattern in settings.modes:
        folder = root / re.split(r"[*?[]", pattern)[0].rpartition("/")[0]
        if not any(matches(relative(file, root), pattern) and is_page(file) for file in inside(folder)):
            message = f"{root / 'pyproject.toml'}: [tool.proofread] modes names {pattern}, which matches no page"
            raise SettingsError(f"{message}; name pages or folders as they are seen from there, or take it out")


def _held(checked: Checked, settings: Settings, root: Path, shelf: Shelf | None) -> list[Finding]:
    """Return the findings on a page that has run; that there are none is kept for the same page and run."""
    page, folder, findings = checked.page, (root / checked.page.path).parent, list[Finding]()

    def sentences() -> Sequence[int]:
        findings[:] = _findings(checked, settings, root)
        return () if findings else (*checked.sentences, *checked.pictured)

    scripts = [(folder / name).is_file() for cell in page.cells if (name := cell.option("script"))]
    of = [page.path, page.lines, checked.mode, checked.began, scripts, repr(settings)]
    if counted := shelf.made(f"{page.path} held", of, sentences) if shelf else ():
        checked.sentences, checked.pictured = (counted[0], counted[1]), (counted[2], counted[3])
    elif not findings:
        sentences()
    return findings


def _findings(checked: Checked, settings: Settings, root: Path) -> Iterator[Finding]:
    """Yield the findings on a page that has run."""
    path = checked.page.path
    for index, cell in enumerate(checked.page.cells):
        if cell.is_code:
            subject, result = cell_subject(index, cell), checked.code.get(index)
            findings = in_code(path, index, cell, result, settings)
            if checked.mode == "run":
                raised = result and result.raised
                findings = findings if raised and (raised.fatal or not cell.fails) else iter(())
            for finding in (*(options(path, cell, root) if checked.mode == "check" else ()), *findings):
                yield replace(finding, subject=subject)
    if checked.mode != "check":
        return
    yield from in_data(checked, settings)
    displayed = [stated.latex for text in checked.texts for stated in text.formulas if stated.display]
    quoted, misquoted = quotations(checked)
    yield from misquoted
    for number, text in enumerate(checked.texts):
        yield from in_text(checked.page, text, displayed, quoted.get(number, ()))
