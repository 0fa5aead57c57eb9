"""A page with what its run gave and what was found on it, and the report of all pages."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..formulas import Formula, find
from ..keep.files import relative
from ..keep.shelf import Shelf
from ..pages import asserts, prose
from ..pages.numbers import Value
from ..pages.page import Cell, Page, PageError, own_mode, read
from ..pages.prose import Computed, Prose, Question
from ..programs import NO_SNIPPET, Snippet
from ..runs.steps import Machine, Output, Result, Task
from ..settings import Settings, mode
from .findings import Finding

_OTHERS = {"run": "only run", "off": "off"}
_TALLIED = {"cells": "ran", "values": "held", "claims": "held", "formulas": "held"}  # what is said of those in order
_STATES = ("ran", "held", "failed", "unproved", "waived", "not looked at")
PICTURES = ("image/svg+xml", "image/png", "image/jpeg")


@dataclass(frozen=True)
class Answer:
    """What a page's run gave for an expression of its text."""

    value: Value  # as it is published, if the page formats it
    exact: Value  # before it was formatted
    error: str = ""  # why it has no value
    bits: str = ""  # the computed numbers that it compares to the bit
    sides: str = ""  # what a condition compares that does not hold


@dataclass(frozen=True)
class Tested:
    """What a page's run gave for a formula of its text."""

    faults: Sequence[str]
    survivors: Sequence[str]  # what is told of the wrong versions that pass


@dataclass
class Text:
    """A text of a page: a Markdown cell's, the alt text or the caption of a code cell's figure, or a cell's asserts."""

    cell: int
    line: int
    prose: Prose
    formulas: list[Formula] = field(default_factory=list)
    answers: dict[Question, Answer] = field(default_factory=dict)
    tested: dict[Formula, Tested] = field(default_factory=dict)
    drew: str = ""  # what evaluating it did with a random generator
    caption: bool = False
    asserts: bool = False  # it is the code of a cell of claims
    columns: dict[int, int] = field(default_factory=dict)  # where on the file's lines those of the text begin

    @property
    def values(self) -> dict[Question, Value]:
        """What its expressions gave."""
        return {question: answer.value for question, answer in self.answers.items()}

    @property
    def published(self) -> str:
        """The text as the reader sees it."""
        return self.prose.publish(self.values)

    @property
    def questions(self) -> list[Question]:
        """What it has evaluated: what proves its typed values and its claims, and what it computes."""
        return [*self.prose.claims, *self.prose.computed]

    def at(self, place: int) -> int:
        """The line of the file on which a place of the text stands."""
        return self.line + self.prose.line(place)

    def take(self, asked: Sequence[Question], result: Result) -> None:
        """Take in what a step gave for some of the text's questions, and for its formulas if it tested them."""
        for place, (question, value) in enumerate(zip(asked, result.values, strict=True)):
            exact, error = result.exact.get(place, value), result.errors.get(place, "")
            bits, sides = result.bits.get(place, ""), result.sides.get(place, "")
            self.answers[question] = Answer(value, exact, error, bits, sides)
        if result.formulas:
            survivors = result.survivors or [[] for _ in result.formulas]
            self.tested = dict(zip(self.formulas, map(Tested, result.formulas, survivors), strict=True))
        self.drew = self.drew or result.unseeded

    def leave(self) -> None:
        """Drop the errors: the page stopped before its end, where they would have been tried once more."""
        self.answers = {question: answer for question, answer in self.answers.items() if not answer.error}


@dataclass(frozen=True)
class Subject:
    """One thing that is checked on a page."""

    kind: str  # cells, programs, values, claims, formulas or mutants
    line: int
    name: str
    is_reached: bool  # whether the page's run came to it


@dataclass
class Checked:
    """A page with what its run gave and what was found on it; by place what its code cells have."""

    page: Page
    mode: str = "check"  # one of `MODES`; a page that is off has no cells here
    texts: list[Text] = field(default_factory=list)
    code: dict[int, Result] = field(default_factory=dict)  # what the cells gave
    snippets: dict[int, Snippet] = field(default_factory=dict)  # their programs
    data: dict[int, Text] = field(default_factory=dict)  # the text that is the data of a cell's script
    asked: Sequence[str] = ()  # what its run asked for of what is installed
    findings: list[Finding] = field(default_factory=list)
    sentences: tuple[int, int] = (0, 0)  # how many have no value, no formula and no words that are quoted; all
    pictured: tuple[int, int] = (0, 0)  # how many captions and alternative texts no claim quotes; all
    why: str = ""  # it had to run; "" if it did not
    behind: str = ""  # why it has to run still: what it shows is of its last run
    began: float = 0.0  # when it last ran, in seconds since 1970; 0 if there was nothing to run
    seconds: float = 0.0  # how long that took
    machine: Machine | None = None  # what it ran on, if it came to its end

    @property
    def ran(self) -> bool:
        """Whether it had to run."""
        return bool(self.why)

    @property
    def content(self) -> list[object]:
        """All that can be made of the page, as JSON knows it."""
        gave = [(place, asdict(result)) for place, result in sorted(self.code.items())]
        programs = [(place, asdict(snippet)) for place, snippet in sorted(self.snippets.items())]
        texts = [(text.cell, text.published) for text in [*self.texts, *self.data.values()]]
        return [self.page.path, self.page.lines, texts, gave, programs, self.mode]

    @property
    def subjects(self) -> list[Subject]:
        """All that is checked on the page, in its order."""
        subjects: list[Subject] = []
        for place, cell in enumerate(self.page.cells):
            if cell.is_code and not cell.holds_claims:
                subjects.append(Subject("cells", cell.line, cell_subject(place, cell), place in self.code))
            if self.offers(place):
                name = cell_subject(place, cell, "snippet")
                subjects.append(Subject("programs", cell.line, name, place in self.snippets))
        for text in self.texts if self.mode == "check" else ():
            kind = "claims" if text.asserts else "values"
            for question in text.questions:
                name, is_reached = claim_subject(text, question), question in text.answers
                subjects.append(Subject(kind, text.line + question.line, name, is_reached))
            for formula in (each for each in text.formulas if each.unchecked is None):
                name, line = formula_subject(text, formula), text.line + formula.line
                is_reached = formula in text.tested
                subjects.append(Subject("formulas", line, name, is_reached))
                subjects.append(Subject("mutants", line, f"{name} mutants", is_reached))
        return sorted(subjects, key=lambda subject: subject.line)

    def offers(self, cell: int) -> bool:
        """Tell whether a reader is offered the cell's program, which is tried, too."""
        asked = self.page.cells[cell]
        has_none = not asked.shown or {"remove-cell", "hide-input", "claims", NO_SNIPPET} & {*asked.tags}
        return asked.is_code and self.mode == "check" and not has_none

    @property
    def tally(self) -> dict[str, Counter[str]]:
        """How many of its cells, values, claims and formulas held, and what became of the others."""
        tally = {kind: Counter[str]() for kind in _TALLIED}
        wrong = {finding.subject for finding in self.findings}
        for subject in self.subjects:
            if subject.kind in tally:
                is_wrong = not wrong.isdisjoint({subject.name, f"{subject.name} mutants"})
                state = "failed" if is_wrong else _TALLIED[subject.kind] if subject.is_reached else "not looked at"
                tally[subject.kind][state] += 1
        for text in self.texts:
            if self.mode == "check":
                tally["values"]["waived"] += len(text.prose.waivers)
                tally["formulas"]["waived"] += sum(formula.unchecked is not None for formula in text.formulas)
            else:
                typed = len(text.prose.claims) + sum(1 for _ in text.prose.bare(self.page.code))
                tally["claims" if text.asserts else "values"]["not looked at"] += typed
                tally["formulas"]["not looked at"] += len(text.formulas)
        bare = Counter(finding.kind for finding in self.findings if not finding.subject)
        tally["values"]["unproved"], tally["formulas"]["unproved"] = bare["bare"], bare["formula"]
        return tally

    def program(self, cell: int) -> str:
        """A code cell's program, with where it is from; "" if there is none."""
        snippet = self.snippets.get(cell)
        return f"# {self.page.path}, cell {cell + 1}\n{snippet.text}" if snippet and snippet.text else ""

    def of_cell(self, cell: int, captions: bool = False) -> list[str]:
        """A Markdown cell's text, or a code cell's alt texts or captions, as the reader sees them."""
        return [text.published for text in self.texts if text.cell == cell and text.caption == captions]

    @property
    def captions(self) -> dict[tuple[int, int], tuple[int, str]]:
        """The numbers and captions of the page's figures, by the places of their cell and output."""
        numbered: dict[tuple[int, int], tuple[int, str]] = {}
        for index, cell in enumerate(self.page.cells):
            if cell.is_code and not {"remove-cell", "hide-output"} & set(cell.tags):
                for place, caption in zip(figures(self.outputs(index)), self.of_cell(index, True), strict=False):
                    numbered[index, place] = len(numbered) + 1, caption
        return numbered

    def digits(self, cell: int) -> int:
        """How many digits the numbers have in the data of a cell's script."""
        option = self.page.cells[cell].option("digits") or ""
        return int(option) if option.isdecimal() else 4

    def sent(self, cell: int) -> str:
        """The data of a cell's script, as JSON; "" if there is none."""
        text = self.data.get(cell)
        if text is None or not text.published or any(answer.error for answer in text.answers.values()):
            return ""
        rounded = _rounded(json.loads(text.published), self.digits(cell))
        return json.dumps(rounded, ensure_ascii=False, separators=(",", ":"))

    def outputs(self, cell: int) -> list[Output]:
        """Return the outputs of a code cell."""
        return self.code[cell].outputs if cell in self.code else []


@dataclass
class Report:
    """All pages, in the order they were given."""

    pages: list[Checked]
    between: list[Finding] = field(default_factory=list)  # of pages and packages
    behind: list[Task] = field(default_factory=list)  # what has to run still, of pages that show their last run

    @property
    def findings(self) -> list[Finding]:
        """All findings, by page and line."""
        return [*(finding for checked in self.pages for finding in ordered(checked.findings)), *ordered(self.between)]

    @property
    def held(self) -> list[Checked]:
        """The pages whose words are held against what they gave."""
        return [checked for checked in self.pages if checked.mode == "check"]

    def __str__(self) -> str:
        modes = Counter(checked.mode for checked in self.pages)
        others = "".join(f", {modes[mode]} {label}" for mode, label in _OTHERS.items() if modes[mode])
        parts = [
            f"{count(modes['check'], 'page')} checked{others}",
            f"{sum(checked.ran for checked in self.pages)} of them run now",
        ]
        tallies = [checked.tally for checked in self.pages]
        for kind in tallies[0] if tallies else ():
            states = sum((tally[kind] for tally in tallies), Counter[str]())
            if listed := ", ".join(f"{states[state]} {state}" for state in _STATES if states[state]):
                parts.append(f"{kind}: {listed}")
        silent, every = (sum(checked.sentences[place] for checked in self.held) for place in (0, 1))
        parts += [f"{silent} of {count(every, 'sentence')} with none of these"] * (every > 0)
        free, every = (sum(checked.pictured[place] for checked in self.held) for place in (0, 1))
        parts += [f"{free} of {every} captions and alt texts quoted by no claim"] * (every > 0)
        return "; ".join([*parts, count(len(self.findings), "finding")])


def opened(path: Path, root: Path, settings: Settings, shelf: Shelf | None = None) -> Checked:
    """A page as it is to be treated, of which nothing has run yet.

    Raises:
        PageError: It cannot be read, or calls itself what there is not.
    """
    name = relative(path, root)
    own = own_mode(path)
    try:
        how = mode(own or settings.mode(name))
    except ValueError as error:
        line = path.read_bytes().partition(b"proofread:")[0].count(b"\n") + 1
        raise PageError(name, line, f"the page calls itself {error}", "option") from None
    page = Page(name, ()) if how == "off" else read(path, root, shelf)
    return replace(unrun(page), mode=how)


def unrun(page: Page) -> Checked:
    """A page with its texts, of which nothing has run yet."""
    checked = Checked(page)
    for index, cell in enumerate(page.cells):
        if cell.holds_claims:
            checked.texts.append(Text(index, cell.line, asserts.read(cell.source), asserts=True))
        elif cell.is_code:
            for each in (option for option in cell.options if option.key in ("alt", "caption")):
                parsed, is_caption = prose.read(each.value), each.key == "caption"
                checked.texts.append(Text(index, each.line, parsed, caption=is_caption))
            for each in (option for option in cell.options if option.key == "data"):
                value = f'__import__("json").dumps(({each.value}), default=lambda _: _.tolist(), allow_nan=False)'
                asked = Computed(value, "", (0, len(each.value)), 0)
                checked.data[index] = Text(index, each.line, Prose(each.value, computed=[asked]))
        else:
            checked.texts.append(Text(index, cell.line, prose.read(cell.source, opens=index == 0), find(cell.source)))
    return checked


def figures(outputs: Sequence[Output]) -> list[int]:
    """The places of a cell's figures: of its pictures or, if it has none, of what it shows as HTML."""
    for kinds in (PICTURES, ("text/html",)):
        if places := [n for n, each in enumerate(outputs) if any(kind in each.get("data", {}) for kind in kinds)]:
            return places
    return []


def _rounded(value: Any, digits: int) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(each, digits) for key, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each, digits) for each in value]
    number = float(f"{value:.{digits}g}") if isinstance(value, float) else value
    return int(number) if isinstance(number, float) and number.is_integer() and abs(number) < 1e15 else number


def cell_subject(place: int, cell: Cell, kind: str = "cell") -> str:
    """The name of the test of a cell, or of its program, which is called snippet."""
    return f"{cell.line} {kind} {place + 1}"


def claim_subject(text: Text, question: Question) -> str:
    """The name of the test of a claim, or of a value that is typed or computed."""
    if isinstance(question, Computed):
        said = f"value {{{{ {question.expression} }}}}"
    elif text.asserts:
        said = f"claim {question.typed}"
    else:
        said = f"value {question.typed} = {question.expression}"
    return " ".join(f"{text.line + question.line} {said}".split())


def formula_subject(text: Text, stated: Formula) -> str:
    """The name of a formula's test."""
    name = f"({stated.tag})" if stated.tag else stated.latex
    return " ".join(f"{text.line + stated.line} formula {name}".split())


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """Findings as they stand in their files."""
    return sorted(findings, key=lambda each: (each.path, each))


def day(seconds: float) -> str:
    """The day of a moment, told in seconds since 1970."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d}"


def count(number: int, noun: str) -> str:
    """A number of things, in words."""
    return f"{number} {noun}" + "s" * (number != 1)
