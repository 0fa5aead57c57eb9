"""Proofreads pages: reads them, runs those that changed, and compares what they say with what they gave.

``check(find_pages([Path("docs")])).findings`` prints as

    docs/tutorials/01_what_is_attention.py:12: it says 55%, but weights[6, 6] gives 54%
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from . import equations, figures, formula, math, prose
from .cache import Cache
from .config import Settings, written
from .findings import Edit, Finding, PageError
from .page import Cell, Page, read
from .prose import Claim, Computed, Prose
from .run import MEMORY_REMEDY, attempt, run, warm
from .shelf import Shelf
from .snippet import NO_SNIPPET, SNIPPET_REMEDY, Snippet, disagreement, trials
from .snippet.trial import Trial
from .steps import Limits, Machine, Outcome, Output, Result, Step, Task

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
    exact: dict[Claim | Computed, figures.Value] = field(default_factory=dict)  # before it was formatted
    bits: dict[Claim | Computed, str] = field(default_factory=dict)  # what is compared to the bit
    stated: dict[int, tuple[list[str], list[str]]] = field(default_factory=dict)  # of a formula: faults, survivors
    drew: str = ""  # the random generator that evaluating it moved

    @property
    def published(self) -> str:
        """The text as the reader sees it."""
        return self.prose.publish(self.values)

    def take(self, asked: Sequence[Claim | Computed], result: Result) -> None:
        """Take in what a step gave for some of the text's figures."""
        self.values |= zip(asked, result.values, strict=True)
        self.errors |= {asked[place]: error for place, error in result.errors.items()}
        self.exact |= {asked[place]: value for place, value in result.exact.items()}
        self.bits |= {asked[place]: compared for place, compared in result.bits.items()}
        if result.formulas:
            survivors = result.survivors or [[] for _ in result.formulas]
            self.stated = dict(enumerate(zip(result.formulas, survivors, strict=True)))
        self.drew = self.drew or result.unseeded


@dataclass
class Checked:
    """A page with what its run gave and what was found on it.

    Attributes:
        page: The page.
        texts: Its texts.
        code: What its code cells gave, by place.
        snippets: The programs of its code cells, by place.
        findings: What is wrong.
        why: Why it had to run; "" if it did not.
        began: When it last ran, in seconds since 1970; 0 if there was nothing to run.
        seconds: How long that took.
        machine: What it ran on, if it came to its end.
    """

    page: Page
    texts: list[Text] = field(default_factory=list)
    code: dict[int, Result] = field(default_factory=dict)
    snippets: dict[int, Snippet] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    why: str = ""
    began: float = 0.0
    seconds: float = 0.0
    machine: Machine | None = None

    @property
    def ran(self) -> bool:
        """Whether it had to run."""
        return bool(self.why)

    @property
    def content(self) -> list[object]:
        """All that can be made of the page, as JSON knows it."""
        gave = [(place, asdict(result)) for place, result in sorted(self.code.items())]
        programs = [(place, asdict(snippet)) for place, snippet in sorted(self.snippets.items())]
        return [asdict(self.page), [(text.cell, text.published) for text in self.texts], gave, programs]

    @property
    def subjects(self) -> dict[str, bool]:
        """The names of all that is checked on the page, in its order, and whether its run came to each."""
        named: list[tuple[int, str, bool]] = []
        for place, cell in enumerate(self.page.cells):
            if cell.is_code:
                reached = place in self.code
                named.append((cell.line, _cell_subject(place, cell), reached))
                if has_snippet(cell):
                    named.append((cell.line, _snippet_subject(place, cell), place in self.snippets))
        for text in self.texts:
            figures_of: list[Claim | Computed] = [*text.prose.claims, *text.prose.computed]
            for figure in figures_of:
                reached = figure in text.values or figure in text.errors
                named.append((text.line + figure.line, _claim_subject(text, figure), reached))
            for place, stated in enumerate(text.formulas):
                if stated.unchecked is None:
                    subject, line = _formula_subject(text, stated), text.line + stated.line
                    named += [(line, subject, place in text.stated), (line, f"{subject} mutants", place in text.stated)]
        return {subject: reached for _, subject, reached in sorted(named, key=lambda each: each[0])}

    def program(self, cell: int, importing: bool = False) -> str:
        """A code cell's program, or the one that imports the packages, with where it is from; "" if there is none."""
        snippet = self.snippets.get(cell)
        text = (snippet.importing if importing else snippet.runnable) if snippet else ""
        return text and f"# {self.page.path}, cell {cell + 1}\n{text}"

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
    between: list[Finding] = field(default_factory=list)  # of pages and packages

    @property
    def findings(self) -> list[Finding]:
        """What is wrong, by page and line."""
        return [*(finding for checked in self.pages for finding in sorted(checked.findings)), *sorted(self.between)]

    @property
    def counts(self) -> dict[str, int]:
        """How many pages, figures and formulas were checked, how many waived, how many findings there are."""
        texts = [text for checked in self.pages for text in checked.texts]
        unchecked = sum(stated.unchecked is not None for text in texts for stated in text.formulas)
        return {
            "pages": len(self.pages),
            "ran": sum(checked.ran for checked in self.pages),
            "figures": sum(len(text.prose.claims) + len(text.prose.computed) for text in texts),
            "waived": sum(len(text.prose.waivers) for text in texts),
            "formulas": sum(len(text.formulas) for text in texts) - unchecked,
            "unchecked": unchecked,
            "findings": len(self.findings),
        }

    def __str__(self) -> str:
        counts = self.counts
        return (
            f"{_count(counts['pages'], 'page')}, {counts['ran']} of them run; "
            f"{_count(counts['figures'], 'figure')} checked and {counts['waived']} waived, "
            f"{_count(counts['formulas'], 'formula')} checked and {counts['unchecked']} not; "
            f"{_count(counts['findings'], 'finding')}"
        )


@dataclass(frozen=True)
class Told:
    """What there is to tell of a page while it is checked.

    Attributes:
        page: The page.
        step: The step that begins, counted from 1; 0 when the page is done.
        steps: How many there are.
        name: What the step is.
        why: Why the page has to run; "" if it has not.
        seconds: How long it ran, once it is done.
    """

    page: str
    step: int
    steps: int
    name: str = ""
    why: str = ""
    seconds: float = 0.0


# Whose a step is: a cell's own, or that of a text in it, and then for which of its figures.
_Owner = tuple[int, Text | None, Sequence[Claim | Computed]]


def find_pages(paths: Iterable[Path]) -> list[Path]:
    """The pages among files and folders, each once: Markdown files, and Python files that hold a ``# %%`` cell."""
    found: dict[Path, Path] = {}
    for path in paths:
        for file in sorted(_inside(path)) if path.is_dir() else [path]:
            found.setdefault(file.resolve(), file)
    return [file for file in found.values() if is_page(file)]


def _inside(folder: Path) -> Iterator[Path]:
    """All files of a folder but hidden ones, which are tools' own."""
    for place, folders, files in os.walk(folder):
        folders[:] = (name for name in folders if not name.startswith("."))
        yield from (Path(place, name) for name in files if not name.startswith("."))


def is_page(path: Path) -> bool:
    """Whether a file is a page."""
    if path.suffix != ".py" or not path.is_file():
        return path.suffix == ".md" and path.is_file()
    return re.search(rb"^[ \t]*#[ \t]*%%", path.read_bytes(), re.MULTILINE) is not None


def check(
    paths: Sequence[Path],
    *,
    root: Path | None = None,
    settings: Settings | None = None,
    keep: bool = True,
    mutants: bool = False,
    programs: bool = False,
    whole: bool = False,
    progress: Callable[[Told], None] = lambda told: None,
) -> Report:
    """Proofread pages.

    Args:
        paths: Percent scripts and Markdown files.
        root: The project: pages run there, and findings name files relative to it. Default: the working directory.
        settings: How they are run and kept. Default: what the project's pyproject.toml says.
        keep: Whether to keep runs and to take those that were kept, or else to run every page.
        mutants: Whether to find out, for each formula, which wrong versions of it would pass.
        programs: Whether to try the programs of code cells, too: each must print what its cell shows.
        whole: Whether these are all pages of the project, so that an equation which none of them has is nowhere.
        progress: Called with what there is to tell whenever a step begins and a page is done.

    Raises:
        SettingsError: The project's settings cannot be read.
        CacheError: Runs cannot be kept.
    """
    root = (root or Path.cwd()).resolve()
    settings = settings or Settings.load(root)
    kept, shelf = (Cache(root / settings.cache), Shelf(root / settings.cache)) if keep else (None, None)
    report = Report([])
    waiting: list[tuple[Checked, list[_Owner], Task]] = []
    for path in paths:
        try:
            checked = unrun(read(path.resolve(), root, shelf))
        except PageError as error:
            report.pages.append(Checked(Page(error.finding.path, ()), findings=[error.finding]))
            continue
        report.pages.append(checked)
        owners, steps = _steps(checked, settings.timeout, mutants)
        task = Task(checked.page.path, tuple(steps), settings.packages)
        outcome = (kept.load(task) if kept else None) if steps else Outcome()
        if outcome is None:
            warm()  # it imports what pages need while the others are read
            checked.why = kept.why(task) if kept else "nothing was to be kept"
            waiting.append((checked, owners, task))
            continue
        _take(checked, owners, outcome)
        if steps:
            progress(Told(checked.page.path, 0, len(steps)))
    limits = Limits(settings.memory, settings.output)
    try:
        tasks = [task for _, _, task in waiting]
        for event in run(tasks, root=root, workers=settings.workers, limits=limits, gate=kept):
            checked, owners, task = waiting[event.place]
            if event.step:
                name = task.steps[event.step - 1].name
                progress(Told(task.path, event.step, len(task.steps), name, checked.why))
                continue
            _take(checked, owners, event.outcome)
            progress(Told(task.path, 0, len(task.steps), why=checked.why, seconds=checked.seconds))
    finally:
        if kept:
            kept.close()
    if programs:
        _try(report.pages, settings, kept, progress)
    if kept:
        math.keep(kept.directory)
    math.prepare([text.prose.text for checked in report.pages for text in checked.texts])
    for checked in report.pages:
        checked.findings += _findings(checked, settings)
    report.between += equations.faults(
        report.pages, root, settings.packages, whole=whole, every=settings.cite_equations
    )
    return report


def unrun(page: Page) -> Checked:
    """A page with its texts, of which nothing has run yet."""
    checked = Checked(page)
    for index, cell in enumerate(page.cells):
        if cell.is_code:
            alts = [option for option in cell.options if option.key == "alt"]
            checked.texts += [Text(index, alt.line, prose.read(alt.value), []) for alt in alts]
        else:
            said = prose.read(cell.source, opens=index == 0)
            checked.texts.append(Text(index, cell.line, said, formula.find(cell.source)))
    return checked


def _steps(checked: Checked, timeout: float, mutants: bool) -> tuple[list[_Owner], list[Step]]:
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
            name = f"what cell {text.cell + 1} asserts" + " at the end" * late
            searched = mutants and bool(stated)
            # Each formula has some twenty mutants, and each of them is checked.
            patience = timeout * (1 + searched * len(stated))
            steps.append(Step(text.line, None, name, False, patience, expressions, stated, searched))

    for index, cell in enumerate(checked.page.cells):
        if cell.is_code:
            owners.append((index, None, []))
            raises = "raises-exception" in cell.tags
            name, seconds = f"code cell {index + 1}", _timeout(cell, timeout)
            steps.append(Step(cell.line, cell.source, name, raises, seconds, snippet=has_snippet(cell)))
        for text in checked.texts:
            if text.cell == index:
                evaluate(text, late=False)
    for text in checked.texts:
        evaluate(text, late=True)
    return owners, steps


def _timeout(cell: Cell, default: float) -> float:
    own = cell.option("timeout")
    return float(own) if own and _SECONDS.fullmatch(own) else default


def _take(checked: Checked, owners: Sequence[_Owner], outcome: Outcome) -> None:
    """Take in what a run gave."""
    if owners:
        checked.began, checked.seconds, checked.machine = outcome.began, outcome.seconds, outcome.machine
    for (index, text, asked), result in zip(owners, outcome.results, strict=False):
        if text is None:
            checked.code[index] = result
        else:
            text.take(asked, result)
    for place, snippet in outcome.snippets.items():
        index = owners[place][0]
        checked.snippets[index] = snippet
    if outcome.stopped:
        index, text, _ = owners[min(len(outcome.results), len(owners) - 1)]
        cell = checked.page.cells[index]
        line = text.line if text else cell.line
        message = f"cell {index + 1} {outcome.stopped}"
        subject = _cell_subject(index, cell) if cell.is_code else ""
        checked.findings.append(Finding(checked.page.path, line, message, kind="stopped", subject=subject))


def _try(pages: Sequence[Checked], settings: Settings, kept: Cache | None, progress: Callable[[Told], None]) -> None:
    """Try the programs that have not done yet, as they are, what their pages show."""
    asked: list[tuple[Checked, int, str, Trial]] = []
    done: dict[str, list[str]] = {}
    for checked in pages:
        agreed = kept.tried(checked.page.path) if kept else set()
        done[checked.page.path] = []
        for index, snippet in checked.snippets.items():
            # What draws without a seed differs from run to run, and is told of already.
            if any(result.unseeded for place, result in checked.code.items() if place <= index):
                continue
            patience = _timeout(checked.page.cells[index], settings.timeout)
            for form, trial in trials(snippet, settings.packages, patience).items():
                key = kept.trial(trial, snippet, settings.packages) if kept else ""
                if key in agreed:
                    done[checked.page.path].append(key)
                else:
                    asked.append((checked, index, form, trial))
    every = [trial for *_, trial in asked]
    limits = Limits(settings.memory, settings.output)
    for number, (place, ran) in enumerate(attempt(every, settings.packages, workers=settings.workers, limits=limits)):
        checked, index, form, trial = asked[place]
        snippet, cell = checked.snippets[index], checked.page.cells[index]
        progress(Told("programs", number + 1, len(every), f"{checked.page.path}, cell {index + 1}"))
        if wrong := disagreement(snippet, ran, settings.packages):
            message = f"cell {index + 1}: {form}, its program {wrong[0]}; {SNIPPET_REMEDY}"
            subject = _snippet_subject(index, cell)
            checked.findings.append(Finding(checked.page.path, cell.line, message, wrong[1], "snippet", subject))
        elif kept:
            done[checked.page.path].append(kept.trial(trial, snippet, settings.packages))
    if kept and asked:
        for page, keys in done.items():
            kept.keep_tried(page, keys)


def has_snippet(cell: Cell) -> bool:
    """Whether a reader is offered the cell's program."""
    return cell.is_code and not {"remove-cell", NO_SNIPPET} & set(cell.tags)


def _snippet_subject(place: int, cell: Cell) -> str:
    return f"{cell.line} snippet {place + 1}"


def _cell_subject(place: int, cell: Cell) -> str:
    return f"{cell.line} cell {place + 1}"


def _claim_subject(text: Text, figure: Claim | Computed) -> str:
    said = f"{figure.typed} = {figure.expression}" if isinstance(figure, Claim) else f"{{{{ {figure.expression} }}}}"
    return " ".join(f"{text.line + figure.line} figure {said}".split())


def _formula_subject(text: Text, stated: formula.Formula) -> str:
    said = f"({stated.tag})" if stated.tag else stated.latex
    return " ".join(f"{text.line + stated.line} formula {said}".split())


def _findings(checked: Checked, settings: Settings) -> Iterator[Finding]:
    """What is wrong with a page once it has run."""
    path = checked.page.path
    for index, cell in enumerate(checked.page.cells):
        if cell.is_code:
            subject = _cell_subject(index, cell)
            for finding in (*_options(path, cell), *_in_code(path, index, cell, checked.code.get(index), settings)):
                yield replace(finding, subject=subject)
    for text in checked.texts:
        yield from _in_text(checked.page, text)


def _options(path: str, cell: Cell) -> Iterator[Finding]:
    for option in cell.options:
        if option.key not in ("alt", "timeout"):
            message = f"`#| {option.key}:` is no option; there are alt and timeout"
            yield Finding(path, option.line, message, kind="option")
        elif option.key == "timeout" and not _SECONDS.fullmatch(option.value):
            message = f"timeout ({option.value}) must be a number of seconds, such as 300"
            yield Finding(path, option.line, message, kind="option")


def _in_code(path: str, index: int, cell: Cell, result: Result | None, settings: Settings) -> Iterator[Finding]:
    name, raises = f"cell {index + 1}", "raises-exception" in cell.tags
    if result is None:
        return
    raised = result.raised
    if raised and raised.fatal and "characters" in raised.summary:
        message = f"{name} shows more than {written(settings.output)} of text, which nobody reads; show less, or set"
        yield Finding(path, raised.line, f'{message} output = "1 MB" under [tool.proofread]', kind="output")
    elif raised and raised.fatal:
        message = f"{name} ran out of the {written(settings.memory)} that a page may take ({raised.summary})"
        yield Finding(path, raised.line, f"{message}; {MEMORY_REMEDY}", kind="memory")
    elif raised and not raises:
        yield Finding(path, raised.line, f"{name} failed with {raised.summary}", raised.trace, kind="cell")
    if raised and (raised.fatal or not raises):
        return
    if not raised and raises:
        message = f"{name} is tagged raises-exception but raises nothing; drop the tag or let it fail"
        yield Finding(path, cell.line, message, kind="cell")
    if result.unseeded:
        message = f"{name} draws from {result.unseeded} global random generator without seeding it"
        yield Finding(path, cell.line, f"{message}; {_seeding(result.unseeded)}", kind="seed")
    if cell.fence:
        return  # a Markdown page shows the code alone
    alts = sum(option.key == "alt" for option in cell.options)
    drawn = sum(any(kind in output.get("data", {}) for kind in PICTURES) for output in result.outputs)
    if drawn != alts and "hide-output" not in cell.tags:
        remedy = "say what each shows in a comment at the top of the cell: `#| alt: ...`"
        message = f"{name} draws {_count(drawn, 'figure')} but has {_count(alts, 'alt text')}; {remedy}"
        yield Finding(path, cell.line, message, kind="alt")


def _seeding(generator: str) -> str:
    if generator.startswith("torch"):
        return "begin it with torch.manual_seed(...) or give it a torch.Generator of its own"
    if generator.startswith("NumPy"):
        return "take a generator of its own, numpy.random.default_rng(seed)"
    return "begin it with random.seed(...) or take a generator of its own, random.Random(seed)"


def _in_text(page: Page, text: Text) -> Iterator[Finding]:
    def found(line: int, message: str, kind: str, subject: str = "") -> Finding:
        return Finding(page.path, text.line + line, message, kind=kind, subject=subject)

    def at(place: int, message: str, kind: str, subject: str = "") -> Finding:
        line, column = _in_file(page, text, place) or (text.line + text.prose.line(place), None)
        return Finding(page.path, line, " ".join(message.split()), kind=kind, subject=subject, column=column)

    for line, message in text.prose.problems:
        yield found(line, message, "waiver" if "waiver" in message or "reason" in message else "expression")
    for place, stated in enumerate(text.formulas):
        subject = _formula_subject(text, stated)
        faults, survivors = text.stated.get(place, ([], []))
        yield from (found(stated.line, message, "formula", subject) for message in faults)
        for mutant in survivors:
            message = f"`{stated.latex}` would pass as `{mutant}` too: bind its symbols to values that tell them apart"
            yield found(stated.line, message, "mutant", f"{subject} mutants")
    if text.drew:
        message = f"an expression or formula here draws from {text.drew} global random generator; draw in a code cell"
        yield found(0, message, "seed")
    for claim in text.prose.claims:
        subject = _claim_subject(text, claim)
        if claim in text.errors:
            message = f"{claim.typed} cannot be checked: {claim.expression} fails with {text.errors[claim]}"
            yield at(claim.span[0], message, "expression", subject)
        elif claim in text.values:
            for kind, message in _disagreement(claim, text.values[claim]):
                finding = at(claim.span[0], message, kind, subject)
                yield replace(finding, edit=_edit(page, text, claim)) if kind == "figure" else finding
            if message := _exactness(claim, text.bits.get(claim, "")):
                yield at(claim.span[0], message, "bits", subject)
    for figure in text.prose.computed:
        if figure in text.errors:
            message = f"{{{{ {figure.expression} }}}} fails with {text.errors[figure]}"
            yield at(figure.span[0], message, "expression", _claim_subject(text, figure))
    for span in text.prose.bare(page.code):
        typed = text.prose.text[slice(*span)]
        remedy = f"assert it, {typed}<!--= expression -->, or waive it, {typed}<!--~ reason -->"
        yield at(span[0], f"nothing proves the figure {typed}: {remedy}", "bare")
    try:
        math.render(text.prose.text)
    except math.MathError as error:
        yield found(error.line or 0, re.sub(r"^line \d+: ", "", str(error)), "math")


def _disagreement(claim: Claim, value: figures.Value) -> Iterator[tuple[str, str]]:
    """What is wrong with a claim: its kind and the message."""
    correction = figures.correction(claim.typed, value)
    if correction is not None and value is False and claim.typed.lower() not in ("true", "yes"):
        yield "claim", f"it says {claim.typed}, but {claim.expression} does not hold"
    elif correction is not None:
        yield "figure", f"it says {claim.typed}, but {claim.expression} gives {correction}"
    elif isinstance(value, bool) and not claim.compares():
        yield (
            "claim",
            f"it says {claim.typed}, but {claim.expression} holds for any figure: compare with {claim.typed} in it",
        )


def _exactness(claim: Claim, compared: str) -> str:
    """What is wrong with how a claim compares computed numbers: without a reason, or with one for nothing."""
    reason = claim.exactly
    if compared and not reason:
        return (
            f"{compared} compares computed numbers to the last bit, which another processor may round otherwise: allow "
            "a tolerance, as torch.allclose does, or end the expression with why no bit can differ, "
            "# to the bit: reason"
        )
    if reason and not compared:
        return f"nothing computed is compared to the bit in {claim.expression}; remove the reason"
    return ""


def _edit(page: Page, text: Text, claim: Claim) -> Edit | None:
    """What would mend a figure, if its form can say the value: once it is written, it is read and agrees."""
    value = text.values[claim]
    new = figures.mended(claim.typed, value)
    if new is None:
        return None
    (start, end), said = claim.span, text.prose.text
    place = text.prose.claims.index(claim)
    again = prose.read(said[:start] + new + said[end:], opens=text.cell == 0).claims
    if len(again) != len(text.prose.claims) or again[place].typed != new:
        return None
    first, last = _in_file(page, text, start), _in_file(page, text, end)
    if first is None or last is None:
        return None
    lines = list(page.lines[first[0] - 1 : last[0]])
    lines[-1] = lines[-1][: last[1]]
    lines[0] = lines[0][first[1] :]
    return Edit(first, last, "\n".join(lines), new)


def _in_file(page: Page, text: Text, place: int) -> tuple[int, int] | None:
    """Where a place of a text stands in the file: whose lines have marks, indents, quotes around it."""
    line = text.prose.line(place)
    number, said = text.line + line, text.prose.text.split("\n")[line]
    before = page.lines[number - 1].rfind(said) if number <= len(page.lines) else -1
    return (number, before + place - (text.prose.text.rfind("\n", 0, place) + 1)) if before >= 0 else None


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + "s" * (number != 1)
