"""Proofreads pages: reads them, runs those that changed, and compares what they say with what they gave.

``check(find_pages([Path("docs")])).findings`` prints as

    docs/tutorials/01_what_is_attention.py:12: it says 55%, but weights[6, 6] gives 54%
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from . import figures, formula, math, prose
from .cache import Cache
from .kernel import Output, Result, Step
from .page import Cell, Finding, Page, PageError, read
from .prose import Claim, Computed, Prose
from .run import Outcome, Task, run

CACHE = Path(".cache/proofread")
TIMEOUT = 120.0
PICTURES = ("image/svg+xml", "image/png", "image/jpeg")


_SECONDS = re.compile(r"\d+(\.\d+)?")


@dataclass
class Text:
    """A Markdown text of a page: a Markdown cell's, or the alt text of a figure that a code cell draws."""

    cell: int
    line: int
    prose: Prose
    formulas: list[formula.Formula]
    values: dict[Claim | Computed, figures.Value] = field(default_factory=dict)
    errors: dict[Claim | Computed, str] = field(default_factory=dict)
    messages: list[tuple[int, str]] = field(default_factory=list)  # about its formulas and what evaluating it did

    @property
    def published(self) -> str:
        """The text as the reader sees it."""
        return self.prose.publish(self.values)

    def take(self, asked: Sequence[Claim | Computed], result: Result) -> None:
        """Take in what a step gave for some of the text's figures."""
        self.values |= zip(asked, result.values, strict=True)
        self.errors |= {asked[place]: error for place, error in result.errors.items()}
        for stated, messages in zip(self.formulas, result.formulas, strict=False):
            self.messages += [(stated.line, message) for message in messages]
        if result.unseeded:
            message = "an expression or formula here draws from torch's global random generator; draw in a code cell"
            self.messages.append((0, message))


@dataclass
class Checked:
    """A page with what its run gave and what was found on it."""

    page: Page
    texts: list[Text] = field(default_factory=list)
    code: dict[int, Result] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    ran: bool = False

    def of_cell(self, cell: int) -> list[str]:
        """A Markdown cell's text, or a code cell's alt texts, as the reader sees them."""
        return [text.published for text in self.texts if text.cell == cell]

    def outputs(self, cell: int) -> list[Output]:
        """What a code cell shows."""
        return self.code[cell].outputs if cell in self.code else []


@dataclass
class Report:
    """All pages, in the order they were given."""

    pages: list[Checked]

    @property
    def findings(self) -> list[Finding]:
        """What is wrong, by page and line."""
        return [finding for checked in self.pages for finding in sorted(checked.findings)]

    def __str__(self) -> str:
        texts = [text for checked in self.pages for text in checked.texts]
        proven = sum(len(text.prose.claims) + len(text.prose.computed) for text in texts)
        waived = sum(len(text.prose.waivers) for text in texts)
        unchecked = sum(stated.unchecked is not None for text in texts for stated in text.formulas)
        formulas = sum(len(text.formulas) for text in texts) - unchecked
        return (
            f"{_count(len(self.pages), 'page')}, {sum(checked.ran for checked in self.pages)} of them run; "
            f"{_count(proven, 'figure')} checked and {waived} waived, "
            f"{_count(formulas, 'formula')} checked and {unchecked} not; {_count(len(self.findings), 'finding')}"
        )


# Whose a step is: a cell's own, or that of a text in it, and then for which of its figures.
_Owner = tuple[int, Text | None, Sequence[Claim | Computed]]


def find_pages(paths: Iterable[Path]) -> list[Path]:
    """The pages among files and folders: Markdown files, and Python files that hold a ``# %%`` cell."""
    found: list[Path] = []
    for path in paths:
        inside = sorted(path.rglob("*")) if path.is_dir() else [path]
        found += [file for file in inside if file.suffix == ".md" or (file.suffix == ".py" and _is_script(file))]
    return found


def _is_script(path: Path) -> bool:
    return re.search(rb"^# %%", path.read_bytes(), re.MULTILINE) is not None


def check(
    paths: Sequence[Path],
    *,
    root: Path | None = None,
    cache: Path | None = CACHE,
    timeout: float = TIMEOUT,
    workers: int | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> Report:
    """Proofread pages.

    Args:
        paths: Percent scripts and Markdown files.
        root: The project: pages run there, and findings name files relative to it. Default: the working directory.
        cache: Where runs are kept, relative to root, or None to run every page.
        timeout: Seconds that a cell may take unless it says otherwise (``#| timeout: 300``).
        workers: Pages that run side by side. Default: the number of cores.
        progress: Called with a line whenever a page is done.
    """
    root = (root or Path.cwd()).resolve()
    kept = Cache(root / cache) if cache else None
    report = Report([])
    waiting: list[tuple[Checked, list[_Owner], Task]] = []
    for path in paths:
        try:
            checked = _read(read(path.resolve(), root))
        except PageError as error:
            report.pages.append(Checked(Page(error.finding.path, ()), findings=[error.finding]))
            continue
        report.pages.append(checked)
        owners, steps = _steps(checked, timeout)
        task = Task(checked.page.path, tuple(steps))
        outcome = (kept.load(task) if kept else None) if steps else Outcome()
        if outcome is None:
            waiting.append((checked, owners, task))
            continue
        checked.findings += _take(checked, owners, outcome)
        if steps:
            progress(f"{checked.page.path}: unchanged")
    for place, outcome in run([task for _, _, task in waiting], root=root, workers=workers):
        checked, owners, task = waiting[place]
        checked.ran = True
        if kept and outcome.files is not None:
            kept.store(task, outcome)
        checked.findings += _take(checked, owners, outcome)
        progress(f"{checked.page.path}: ran in {outcome.seconds:.1f} s")
    for checked in report.pages:
        checked.findings += _findings(checked)
    return report


def _read(page: Page) -> Checked:
    checked = Checked(page)
    for index, cell in enumerate(page.cells):
        if cell.is_code:
            alts = [option for option in cell.options if option.key == "alt"]
            checked.texts += [Text(index, alt.line, prose.read(alt.value), []) for alt in alts]
        else:
            checked.texts.append(Text(index, cell.line, prose.read(cell.source), formula.find(cell.source)))
    return checked


def _steps(checked: Checked, timeout: float) -> tuple[list[_Owner], list[Step]]:
    """What to run and for whom. Texts are evaluated where they stand, after the code above them, or at the end."""
    owners: list[_Owner] = []
    steps: list[Step] = []

    def evaluate(text: Text, late: bool) -> None:
        every: list[Claim | Computed] = [*text.prose.claims, *text.prose.computed]
        asked = [figure for figure in every if figure.late is late]
        stated = () if late else tuple(text.formulas)
        if asked or stated:
            owners.append((text.cell, text, asked))
            expressions = tuple((a.expression, a.spec if isinstance(a, Computed) else None) for a in asked)
            steps.append(Step(text.line, timeout=timeout, expressions=expressions, formulas=stated))

    for index, cell in enumerate(checked.page.cells):
        if cell.is_code:
            owners.append((index, None, []))
            steps.append(Step(cell.line, cell.source, "raises-exception" in cell.tags, _timeout(cell, timeout)))
        for text in checked.texts:
            if text.cell == index:
                evaluate(text, late=False)
    for text in checked.texts:
        evaluate(text, late=True)
    return owners, steps


def _timeout(cell: Cell, default: float) -> float:
    own = cell.option("timeout")
    return float(own) if own and _SECONDS.fullmatch(own) else default


def _take(checked: Checked, owners: Sequence[_Owner], outcome: Outcome) -> Iterator[Finding]:
    for (index, text, asked), result in zip(owners, outcome.results, strict=False):
        if text is None:
            checked.code[index] = result
        else:
            text.take(asked, result)
    if outcome.stopped:
        place = len(outcome.results)
        index, text, _ = owners[min(place, len(owners) - 1)]
        line = text.line if text else checked.page.cells[index].line
        yield Finding(checked.page.path, line, f"cell {index + 1} {outcome.stopped}")


def _findings(checked: Checked) -> Iterator[Finding]:
    path = checked.page.path
    for index, cell in enumerate(checked.page.cells):
        for option in cell.options:
            if option.key not in ("alt", "timeout"):
                yield Finding(path, option.line, f"`#| {option.key}:` is no option; there are alt and timeout")
            elif option.key == "timeout" and not _SECONDS.fullmatch(option.value):
                yield Finding(path, option.line, f"timeout ({option.value}) must be a number of seconds, such as 300")
        if cell.is_code and index in checked.code:
            alts = [option for option in cell.options if option.key == "alt"]
            for line, message, detail in _in_code(f"cell {index + 1}", cell, checked.code[index], len(alts)):
                yield Finding(path, line, message, detail)
    for text in checked.texts:
        for line, message in _in_text(text, checked.page.code):
            yield Finding(path, text.line + line, message)


def _in_code(name: str, cell: Cell, result: Result, alts: int) -> Iterator[tuple[int, str, str]]:
    raised = result.raised
    if raised and "raises-exception" not in cell.tags:
        yield raised.line, f"{name} failed with {raised.summary}", raised.trace
        return
    if not raised and "raises-exception" in cell.tags:
        yield cell.line, f"{name} is tagged raises-exception but raises nothing; drop the tag or let it fail", ""
    if result.unseeded:
        remedy = "begin it with torch.manual_seed(...) or give it a torch.Generator of its own"
        yield cell.line, f"{name} draws from torch's global random generator without seeding it; {remedy}", ""
    if cell.fence:
        return  # a Markdown page shows the code alone
    drawn = sum(any(kind in output.get("data", {}) for kind in PICTURES) for output in result.outputs)
    if drawn != alts and "hide-output" not in cell.tags:
        remedy = "say what each shows in a comment at the top of the cell: `#| alt: ...`"
        yield cell.line, f"{name} draws {_count(drawn, 'figure')} but has {_count(alts, 'alt text')}; {remedy}", ""


def _in_text(text: Text, code: str) -> Iterator[tuple[int, str]]:
    yield from text.prose.problems
    yield from text.messages
    for claim in text.prose.claims:
        if claim in text.errors:
            yield claim.line, f"{claim.typed} cannot be checked: {claim.expression} fails with {text.errors[claim]}"
        elif claim in text.values:
            yield from ((claim.line, message) for message in _disagreement(claim, text.values[claim]))
    for figure in text.prose.computed:
        if figure in text.errors:
            yield figure.line, f"{{{{ {figure.expression} }}}} fails with {text.errors[figure]}"
    for line, typed in text.prose.bare(code):
        remedy = f"assert it, {typed}<!--= expression -->, or waive it, {typed}<!--~ reason -->"
        yield line, f"nothing proves the figure {typed}: {remedy}"
    try:
        math.render(text.prose.text)
    except math.MathError as error:
        yield error.line or 0, re.sub(r"^line \d+: ", "", str(error))


def _disagreement(claim: Claim, value: figures.Value) -> Iterator[str]:
    correction = figures.correction(claim.typed, value)
    if correction is not None and isinstance(value, bool) and claim.typed.lower() not in ("true", "yes"):
        yield f"it says {claim.typed}, but {claim.expression} does not hold"
    elif correction is not None:
        yield f"it says {claim.typed}, but {claim.expression} gives {correction}"
    elif isinstance(value, bool) and not claim.compares():
        yield f"it says {claim.typed}, but {claim.expression} holds for any figure: compare with {claim.typed} in it"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + "s" * (number != 1)
