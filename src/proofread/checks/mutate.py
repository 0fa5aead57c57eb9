"""Swaps words of pages for their opposites, one at a time, and tells which swaps nothing would notice.

As formulas are mutated, so are sentences: *larger* becomes *smaller*, *row* becomes *column*, *True* becomes *False*. A
swap is noticed if a claim takes the word in and no longer agrees with what its expression gave. Words that the page
computes cannot be typed wrong. All others survive: nobody but their reader holds them. What is counted are the words of
`OPPOSITES`, and those that the project sets beside them, by the kind of place where they stand.
"""

import ast
import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..pages.prose import Claim, plain
from ..settings import PLACES, Settings
from .checked import Checked, Report, Text
from .claims import disagreement
from .findings import Finding

# Each word becomes the next of its row. Where a row has two, they are opposites.
_ROWS = """
larger smaller; largest smallest; bigger smaller; more fewer; most least; greater less; higher lower; highest lowest
longer shorter; longest shortest; wider narrower; faster slower; above below; left right; upper lower; first last
before after; earlier later; previous next; row column; rows columns; always never; every no; everything nothing
same different; equal unequal; may may_not; true false; MiB GiB KiB; MB GB KB; bits bytes; half third quarter
once twice thrice; positive negative; finite infinite; increases decreases; grows shrinks; minimum maximum; min max
two three; four five; six seven; eight nine; ten eleven
"""


@functools.cache
def _opposites(rows: tuple[str, ...]) -> dict[str, str]:
    """Each word of these rows with the next of its row; the first row that has a word counts."""
    parted = [row.split() for row in reversed(rows)]
    return {word: row[(place + 1) % len(row)] for row in parted for place, word in enumerate(row)}


_GENERAL = tuple(row for row in re.split(r"[;\n]", _ROWS) if row.strip())
OPPOSITES = _opposites(_GENERAL)
_WORD = re.compile(r"\w+")
_PHRASE = re.compile(r"may\s+not\b")
_LABELS = re.compile(r"(set_)?(x|y|z)?(label|title)s?|suptitle|supxlabel|supylabel|annotate|text")
_HIDING = {"remove-cell", "hide-output"}
_BOX = re.compile(r"(?:\?\?\?\+?|!!!)[ ]+(?P<kind>[\w-]+)")
_TASKS = {"question", "tip", "example", "exercise"}


@dataclass(frozen=True, order=True)
class Swap:
    """A word, its place, and what it would become."""

    path: str  # the page
    line: int  # counted from 1
    kind: str  # one of `PLACES`
    word: str  # as it stands there
    other: str  # its opposite
    held: bool  # whether the swap would be noticed

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.kind}: nothing notices {self.other} for {self.word}"


def opposite(word: str, own: tuple[str, ...] = ()) -> str | None:
    """What a word becomes, in its case; None if it is neither in the project's own rows nor in the general ones."""
    known = _opposites((*own, *_GENERAL))
    other = known.get("_".join(word.split())) or known.get("_".join(word.lower().split()))
    other = other and other.replace("_", " ")
    return other and (other.capitalize() if word[0].isupper() and word[1:].islower() else other)


def swaps(checked: Checked, own: tuple[str, ...] = ()) -> Iterator[Swap]:
    """The words of a page that can be swapped, in its order, and whether each swap would be noticed."""
    first = _first(checked)
    for text in checked.texts:
        held = {claim.span: claim for claim in text.prose.claims}
        for start, end in text.prose.words:
            phrase = _PHRASE.match(text.prose.text, start)
            word = phrase[0] if phrase else text.prose.text[start:end]
            if other := opposite(word, own):
                kind = _kind(checked, text, start, first)
                line = text.line + text.prose.line(start)
                claim = next((c for (at, to), c in held.items() if at <= start and start + len(word) <= to), None)
                noticed = claim is not None and _notices(claim, text, start - claim.span[0], word, other)
                yield Swap(checked.page.path, line, kind, word, other, noticed)
        for figure in text.prose.computed:  # what the page computes cannot be typed wrong
            given = str(text.values.get(figure, ""))
            kind = "table" if given.startswith("|") else _kind(checked, text, figure.span[0], first)
            for found in _WORD.finditer(given):
                if other := opposite(found[0], own):
                    yield Swap(checked.page.path, text.line + figure.line, kind, found[0], other, held=True)
    yield from _labels(checked, own)


def _notices(claim: Claim, text: Text, place: int, word: str, other: str) -> bool:
    if claim not in text.values:
        return False
    said = text.prose.text[slice(*claim.span)]
    typed = said[:place] + other + said[place + len(word) :]
    swapped = replace(claim, typed=typed if said == claim.typed else plain(typed))

    def is_wrong(said: Claim) -> bool:
        return any(disagreement(text, said, text.values[claim], strict=True))

    return is_wrong(swapped) and not is_wrong(claim)


def _first(checked: Checked) -> tuple[Text, int, int] | None:
    """Where the bold sentence stands that answers the page's title."""
    for text in checked.texts:
        if not checked.page.cells[text.cell].is_code and (
            bold := re.search(r"^\*\*(?!\s)(.+?)\*\*", text.prose.text, re.DOTALL | re.MULTILINE)
        ):
            return text, *bold.span(1)
    return None


def _kind(checked: Checked, text: Text, place: int, first: tuple[Text, int, int] | None) -> str:
    cell, said = checked.page.cells[text.cell], text.prose.text
    if cell.is_code:
        return "alt"
    if first and first[0] is text and first[1] <= place < first[2]:
        return "first"
    begin = said.rfind("\n", 0, place) + 1
    line = said[begin : said.find("\n", place) % (len(said) + 1)].strip(" >")
    above = said[:begin].rstrip("\n").rpartition("\n")[2].strip(" >")
    if line.startswith("#"):
        return "heading"
    if line.startswith("|") or (above.startswith("|") and not above.endswith("|")):  # a comment may break a row
        return "table"
    boxes = [box["kind"] for box in _BOX.finditer(said, 0, place)]
    inside = _BOX.match(line) or said[begin : begin + 4].isspace()
    if "solution" in cell.tags or (boxes and boxes[-1] in _TASKS and inside):
        return "task"
    return "prose"


def _labels(checked: Checked, own: tuple[str, ...]) -> Iterator[Swap]:
    """The words that cells give to axes and titles. A claim whose value is such a text holds it."""
    told = {str(value) for text in checked.texts for value in text.values.values() if isinstance(value, str)}
    for index, cell in enumerate(checked.page.cells):
        if not cell.is_code or _HIDING & set(cell.tags) or not any(t.cell == index for t in checked.texts):
            continue
        for line, label in _literals(cell.tree):
            for found in _WORD.finditer(label):
                if other := opposite(found[0], own):
                    yield Swap(checked.page.path, cell.line + line - 1, "label", found[0], other, label in told)


def _literals(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        given = [*call.args] if _LABELS.fullmatch(called) else []
        given += [each.value for each in call.keywords if each.arg and _LABELS.fullmatch(each.arg)]
        for value in given:
            for node in ast.walk(value):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.lineno, node.value


def shares(found: Sequence[Swap]) -> dict[str, tuple[int, int]]:
    """How many of the words of each kind are held, and of how many."""
    held = {kind: [swap.held for swap in found if swap.kind == kind] for kind in PLACES}
    return {kind: (sum(those), len(those)) for kind, those in held.items() if those}


def every(report: Report) -> list[Swap]:
    """The words of all pages of a report, but those that are not checked, that can be swapped."""
    return [swap for checked in report.held for swap in swaps(checked, report.opposites)]


def demanded(found: Sequence[Swap], settings: Settings) -> dict[str, tuple[int, int, float]]:
    """How many words of strict pages are held, of how many, and what share must be."""
    strict = shares([swap for swap in found if settings.is_strict(swap.path)])
    return {kind: (*strict[kind], share) for kind, share in settings.words.items() if kind in strict}


def faults(report: Report) -> Iterator[Finding]:
    """Where claims hold fewer of the words of strict pages than the project demands."""
    for kind, (held, words, share) in report.strict.items():
        if held < share * words:
            message = f"claims hold {held} of {words} words in {PLACES[kind]} of strict pages, fewer than {share:.0%}"
            message += f"; `proofread mutate --kind {kind}` lists the others"
            yield Finding("pyproject.toml", 1, message, kind="words")
