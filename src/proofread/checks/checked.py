"""A page with what its run gave and what was found on it, and the report of all pages."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ..formulas import Formula, find
from ..pages import numbers, prose
from ..pages.page import Cell, Page
from ..pages.prose import Claim, Computed, Figure, Prose
from ..programs import NO_SNIPPET, Snippet
from ..runs.steps import Machine, Output, Result, Task
from ..settings import PLACES
from .findings import Finding

PICTURES = ("image/svg+xml", "image/png", "image/jpeg")


@dataclass
class Text:
    """A Markdown text of a page: a Markdown cell's, or the alt text or the caption of a figure of a code cell."""

    cell: int
    line: int
    prose: Prose
    formulas: list[Formula]
    values: dict[Figure, numbers.Value] = field(default_factory=dict)
    errors: dict[Figure, str] = field(default_factory=dict)
    exact: dict[Figure, numbers.Value] = field(default_factory=dict)  # before it was formatted
    bits: dict[Figure, str] = field(default_factory=dict)  # what is compared to the bit
    stated: dict[int, tuple[list[str], list[str]]] = field(default_factory=dict)  # of a formula: faults, survivors
    drew: str = ""  # what evaluating it did with a random generator
    caption: bool = False

    @property
    def published(self) -> str:
        """The text as the reader sees it."""
        return self.prose.publish(self.values)

    @property
    def asked(self) -> list[Figure]:
        """Its figures: those that are typed, and those that are computed."""
        return [*self.prose.claims, *self.prose.computed]

    def at(self, place: int) -> int:
        """The line of the file on which a place of the text stands."""
        return self.line + self.prose.line(place)

    def take(self, asked: Sequence[Figure], result: Result) -> None:
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
    """A page with what its run gave and what was found on it; by place what its code cells have."""

    page: Page
    texts: list[Text] = field(default_factory=list)
    code: dict[int, Result] = field(default_factory=dict)  # what the cells gave
    snippets: dict[int, Snippet] = field(default_factory=dict)  # their programs
    data: dict[int, Text] = field(default_factory=dict)  # the text that is the data of a cell's script
    asked: Sequence[str] = ()  # what its run asked for of what is installed
    findings: list[Finding] = field(default_factory=list)
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
        return [asdict(self.page), texts, gave, programs]

    @property
    def subjects(self) -> dict[str, bool]:
        """The names of all that is checked on the page, in its order, and whether its run came to each."""
        named: list[tuple[int, str, bool]] = []
        for place, cell in enumerate(self.page.cells):
            if cell.is_code:
                named.append((cell.line, cell_subject(place, cell), place in self.code))
            if has_snippet(cell):
                named.append((cell.line, cell_subject(place, cell, "snippet"), place in self.snippets))
        for text in self.texts:
            for figure in text.asked:
                reached = figure in text.values or figure in text.errors
                named.append((text.line + figure.line, claim_subject(text, figure), reached))
            for place, stated in enumerate(text.formulas):
                if stated.unchecked is None:
                    subject, line = formula_subject(text, stated), text.line + stated.line
                    named += [(line, subject, place in text.stated), (line, f"{subject} mutants", place in text.stated)]
        return {subject: reached for _, subject, reached in sorted(named, key=lambda each: each[0])}

    def program(self, cell: int, importing: bool = False) -> str:
        """A code cell's program, or the one that imports the packages, with where it is from; "" if there is none."""
        snippet = self.snippets.get(cell)
        text = (snippet.importing if importing else snippet.runnable) if snippet else ""
        return text and f"# {self.page.path}, cell {cell + 1}\n{text}"

    def of_cell(self, cell: int, captions: bool = False) -> list[str]:
        """A Markdown cell's text, or a code cell's alt texts or captions, as the reader sees them."""
        return [text.published for text in self.texts if text.cell == cell and text.caption == captions]

    @property
    def captions(self) -> dict[tuple[int, int], tuple[int, str]]:
        """The numbers and captions of the page's figures, by the places of their cell and output."""
        found: dict[tuple[int, int], tuple[int, str]] = {}
        for index, cell in enumerate(self.page.cells):
            if cell.is_code and not {"remove-cell", "hide-output"} & set(cell.tags):
                for place, caption in zip(figures(self.outputs(index)), self.of_cell(index, True), strict=False):
                    found[index, place] = len(found) + 1, caption
        return found

    def digits(self, cell: int) -> int:
        """How many digits the numbers have in the data of a cell's script."""
        said = self.page.cells[cell].option("digits") or ""
        return int(said) if said.isdecimal() else 4

    def sent(self, cell: int) -> str:
        """The data of a cell's script, as JSON; "" if there is none."""
        given = self.data[cell].published if cell in self.data and not self.data[cell].errors else ""
        rounded = _rounded(json.loads(given), self.digits(cell)) if given else None
        return json.dumps(rounded, ensure_ascii=False, separators=(",", ":")) if given else ""

    def outputs(self, cell: int) -> list[Output]:
        """What a code cell shows."""
        return self.code[cell].outputs if cell in self.code else []


@dataclass
class Report:
    """All pages, in the order they were given."""

    pages: list[Checked]
    between: list[Finding] = field(default_factory=list)  # of pages and packages
    behind: list[Task] = field(default_factory=list)  # what has to run still, of pages that show their last run
    words: dict[str, tuple[int, int]] = field(default_factory=dict)  # held, of how many, by `PLACES`
    strict: dict[str, tuple[int, int, float]] = field(default_factory=dict)  # the same of strict pages, and the demand

    @property
    def findings(self) -> list[Finding]:
        """What is wrong, by page and line."""
        return [*(finding for checked in self.pages for finding in sorted(checked.findings)), *sorted(self.between)]

    def __str__(self) -> str:
        texts = [text for checked in self.pages for text in checked.texts]
        figures = sum(len(text.asked) for text in texts)
        waived = sum(len(text.prose.waivers) for text in texts)
        formulas = [stated.unchecked is None for text in texts for stated in text.formulas]
        return (
            f"{count(len(self.pages), 'page')}, {sum(checked.ran for checked in self.pages)} of them run; "
            f"{count(figures, 'figure')} checked and {waived} waived, "
            f"{count(sum(formulas), 'formula')} checked and {len(formulas) - sum(formulas)} not; "
            f"{count(len(self.findings), 'finding')}" + self._words()
        )

    def _words(self) -> str:
        parts = ", ".join(f"{held} of {words} in {PLACES[kind]}" for kind, (held, words) in self.words.items())
        strict = ((kind, *demand) for kind, demand in self.strict.items())
        demanded = ", ".join(
            f"{held} of {words} in {PLACES[kind]} ({share:.0%})" for kind, held, words, share in strict
        )
        demanded = demanded and f"; on strict pages, with the share that is demanded: {demanded}"
        return f"\nwords that no swap could turn round unnoticed: {parts}{demanded}" if parts else ""


@dataclass(frozen=True)
class Told:
    """What there is to tell of a page while it is checked: of a step that begins, or that the page is done."""

    page: str
    step: int  # counted from 1; 0 when the page is done
    steps: int  # how many there are
    name: str = ""  # what the step is
    why: str = ""  # the page has to run; "" if it has not
    seconds: float = 0.0  # how long it ran, once it is done


Progress = Callable[[Told], None]


def unrun(page: Page) -> Checked:
    """A page with its texts, of which nothing has run yet."""
    checked = Checked(page)
    for index, cell in enumerate(page.cells):
        if cell.is_code:
            for each in (option for option in cell.options if option.key in ("alt", "caption")):
                said, is_caption = prose.read(each.value), each.key == "caption"
                checked.texts.append(Text(index, each.line, said, [], caption=is_caption))
            for each in (option for option in cell.options if option.key == "data"):
                value = f'__import__("json").dumps(({each.value}), default=lambda _: _.tolist(), allow_nan=False)'
                asked = Computed(value, "", (0, len(each.value)), 0, late=False)
                checked.data[index] = Text(index, each.line, Prose(each.value, computed=[asked]), [])
        else:
            checked.texts.append(Text(index, cell.line, prose.read(cell.source, opens=index == 0), find(cell.source)))
    return checked


def figures(outputs: Sequence[Output]) -> list[int]:
    """The places of a cell's figures: of its pictures or, if it has none, of what it shows as HTML."""
    for kinds in (PICTURES, ("text/html",)):
        if found := [n for n, each in enumerate(outputs) if any(kind in each.get("data", {}) for kind in kinds)]:
            return found
    return []


def _rounded(value: Any, digits: int) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(each, digits) for key, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each, digits) for each in value]
    number = float(f"{value:.{digits}g}") if isinstance(value, float) else value
    return int(number) if isinstance(number, float) and number.is_integer() and abs(number) < 1e15 else number


def has_snippet(cell: Cell) -> bool:
    """Whether a reader is offered the cell's program."""
    return cell.is_code and not {"remove-cell", NO_SNIPPET} & set(cell.tags)


def cell_subject(place: int, cell: Cell, what: str = "cell") -> str:
    """The name of the test of a cell, or of its program, which is called snippet."""
    return f"{cell.line} {what} {place + 1}"


def claim_subject(text: Text, figure: Figure) -> str:
    """The name of a figure's test."""
    said = f"{figure.typed} = {figure.expression}" if isinstance(figure, Claim) else f"{{{{ {figure.expression} }}}}"
    return " ".join(f"{text.line + figure.line} figure {said}".split())


def formula_subject(text: Text, stated: Formula) -> str:
    """The name of a formula's test."""
    said = f"({stated.tag})" if stated.tag else stated.latex
    return " ".join(f"{text.line + stated.line} formula {said}".split())


def count(number: int, noun: str) -> str:
    """A number of things, in words."""
    return f"{number} {noun}" + "s" * (number != 1)
