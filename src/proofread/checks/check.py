"""Proofreads pages: reads them, runs those that changed, and compares what they say with what they gave.

``check(find_pages([Path("docs")])).findings`` prints as

    docs/learn/attention.py:12: it says 55%, but weights[6, 6] gives 54%
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ..formulas import mathematics
from ..keep.shelf import Shelf
from ..pages.page import Page, PageError, find_pages, read
from ..runs.cache import Cache
from ..runs.server import run, warm
from ..runs.steps import Outcome, Task
from ..runs.watch import files_of
from ..settings import Settings, SettingsError
from . import docstrings, equations, links, mutate
from .cells import in_code, in_data, options
from .checked import Checked, Progress, Report, Told, cell_subject, unrun
from .claims import in_text
from .findings import Finding
from .plan import Owner, plan, take, try_programs


def check(
    paths: Sequence[Path],
    *,
    root: Path | None = None,
    settings: Settings | None = None,
    keep: bool = True,
    mutants: bool = False,
    programs: bool = False,
    whole: bool = False,
    at_once: Collection[Path] | None = None,
    progress: Progress = lambda told: None,
) -> Report:
    """Proofread pages.

    Args:
        paths: Percent scripts and Markdown files.
        root: The project: pages run there, and findings name files relative to it. Default: the working directory.
        settings: How they are run and kept. Default: what the project's pyproject.toml says.
        keep: Whether to keep runs and to take those that were kept, or else to run every page.
        mutants: Whether to find out, for each formula, which wrong versions of it would pass.
        programs: Whether to try the programs of code cells, too: each must print what its cell shows.
        whole: Whether these are all pages of the project, so that an equation which none of them has is nowhere; the
            others are those that the settings name.
        at_once: The pages that must be up to date. What any other gave before is taken while its own code is the same,
            and ``behind`` of the report has what is to run for it. None: all of them.
        progress: Called with what there is to tell whenever a step begins and a page is done.

    Raises:
        SettingsError: The project's settings cannot be read.
        CacheError: Runs cannot be kept.
    """
    root = (root or Path.cwd()).resolve()
    settings = settings or Settings.load(root)
    kept, shelf = (Cache(root / settings.cache), Shelf(root / settings.cache)) if keep else (None, None)
    report = Report([])
    waiting: list[tuple[Checked, list[Owner], Task]] = []
    for path in paths:
        try:
            checked = unrun(read(path.resolve(), root, shelf))
        except PageError as error:
            found = Finding(error.path, error.line, error.message, kind=error.kind)
            report.pages.append(Checked(Page(error.path, ()), findings=[found]))
            continue
        report.pages.append(checked)
        owners, steps = plan(checked, settings.timeout, mutants)
        task = Task(checked.page.path, tuple(steps), settings.packages)
        outcome = (kept.load(task) if kept else None) if steps else Outcome()
        if outcome is None and kept and at_once is not None and path not in at_once and (last := kept.before(task)):
            checked.behind = kept.why(task)
            report.behind.append(task)
            outcome = last
        if outcome is None:
            if not waiting:
                warm(sources_of(paths, settings))  # it imports what pages need while the others are read
            checked.why = kept.why(task) if kept else "nothing was to be kept"
            waiting.append((checked, owners, task))
            continue
        take(checked, owners, outcome)
        if steps:
            progress(Told(checked.page.path, 0, len(steps)))
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
        try_programs(report.pages, settings, kept, progress)
    if kept:
        mathematics.keep(kept.directory)
    mathematics.prepare([text.prose.text for checked in report.pages for text in checked.texts])
    for checked in report.pages:
        checked.findings += _findings(checked, settings, root)
    words = mutate.every(report)
    report.words, report.strict = mutate.shares(words), mutate.demanded(words, settings)
    if whole:
        report.between += mutate.faults(report)
    elsewhere = [] if whole else list(_elsewhere(paths, root, settings, shelf))
    report.between += equations.faults(report.pages, elsewhere, root, settings, whole=whole or bool(settings.pages))
    report.between += docstrings.faults(settings.packages, root, shelf)
    report.between += links.faults(report.pages, root, shelf)
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


def _elsewhere(paths: Sequence[Path], root: Path, settings: Settings, shelf: Shelf | None) -> Iterator[Checked]:
    """The pages of the project that are not checked now and number equations; nothing of them runs."""
    known = {path.resolve() for path in paths}
    for path in project_pages(settings, root):
        if path.resolve() not in known and b"\\tag{" in path.read_bytes():
            with suppress(PageError):  # which is told when that page is checked
                yield unrun(read(path.resolve(), root, shelf))


def _findings(checked: Checked, settings: Settings, root: Path) -> Iterator[Finding]:
    """What is wrong with a page once it has run."""
    path = checked.page.path
    for index, cell in enumerate(checked.page.cells):
        if cell.is_code:
            subject = cell_subject(index, cell)
            for finding in (*options(path, cell, root), *in_code(path, index, cell, checked.code.get(index), settings)):
                yield replace(finding, subject=subject)
    yield from in_data(checked, settings)
    displayed = [stated.latex for text in checked.texts for stated in text.formulas if stated.display]
    for text in checked.texts:
        yield from in_text(checked.page, text, displayed, strict=settings.is_strict(path))
