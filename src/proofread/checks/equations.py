"""The numbered equations of a project: whether pages and docstrings mean the same by a number."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ..keep.files import relative
from ..pages.equations import NUMBER, Citation, cited, references
from ..settings import Settings
from .checked import Checked, Text
from .findings import Finding

_LINK = re.compile(rf"\[\((?P<said>{NUMBER})\)\]\((?P<page>[^()\s]*)#eq-(?P<target>[^()\s]+)\)")


class _Equation(NamedTuple):
    """A numbered equation of a page."""

    number: str
    latex: str
    path: str
    line: int


def faults(
    pages: Sequence[Checked], elsewhere: Sequence[Checked], root: Path, settings: Settings, *, whole: bool
) -> Iterator[Finding]:
    """Yield the findings on the numbered equations of pages, and on those that docstrings of the project cite.

    Pages and docstrings may refer to equations of the pages elsewhere, which get no findings. Unless all these are the
    whole project, an equation that none of them has may be on another page: it is no finding that a sentence or a
    docstring refers to it. A number in brackets alone is one all the same.
    """
    numbered: dict[str, _Equation] = {}
    for equation in (*_equations(elsewhere), *_equations(pages)):
        numbered.setdefault(equation.number, equation)
    for equation in _equations(pages):
        first = numbered[equation.number]
        if (first.path, first.line) != (equation.path, equation.line):
            message = f"equation ({equation.number}) is also at {first.path}:{first.line}; give one another number"
            yield _finding(equation.path, equation.line, message)
    citations: list[Citation] = []
    for package in settings.packages if settings.docstrings != "off" else ():
        for each in cited(package, root):
            if isinstance(each, Citation):
                citations.append(each)
            elif settings.docstrings == "equations":  # where docstrings are checked, that check reports the file
                path = relative(Path(each.filename or ""), root)
                yield _finding(path, each.lineno or 1, f"its docstrings cannot be read: {each.msg}")
    for citation in citations:
        if message := _wrong_citation(citation, numbered, whole=whole):
            yield _finding(relative(citation.path, root), citation.line, message)
    for checked in pages:
        for text in checked.texts:
            for line, message in _wrong_references(text, numbered, whole=whole):
                yield _finding(checked.page.path, line, message)
    if settings.cite_equations:
        own = dict.fromkeys(equation.number for equation in _equations(pages))
        packages = ", ".join(settings.packages)
        for number in own.keys() - {citation.number for citation in citations}:
            message = f"no docstring of {packages} cites equation ({number}); cite it, or drop its number"
            yield _finding(numbered[number].path, numbered[number].line, message)


def _finding(path: str, line: int, message: str) -> Finding:
    return Finding(path, line, message, kind="equation")


def _equations(pages: Iterable[Checked]) -> Iterator[_Equation]:
    for checked in pages:
        for text in checked.texts:
            for formula in text.formulas:
                if formula.tag:
                    yield _Equation(formula.tag, formula.latex, checked.page.path, text.line + formula.line)


def _wrong_citation(citation: Citation, numbered: Mapping[str, _Equation], *, whole: bool) -> str:
    """Return what is wrong with a docstring's citation, or "" if nothing is."""
    if not citation.number:
        return f"{citation.name} names no equation; end the section with its number, as in (3.1)"
    equation = numbered.get(citation.number)
    if equation is None:
        return f"{citation.name} cites equation ({citation.number}), which no page has" if whole else ""
    if citation.latex and _without_spaces(citation.latex) != _without_spaces(equation.latex):
        place = f"{equation.path}:{equation.line}"
        return f"{citation.name} states equation ({citation.number}) otherwise than {place}, ${equation.latex}$"
    return ""


def _wrong_references(text: Text, numbered: Mapping[str, _Equation], *, whole: bool) -> Iterator[tuple[int, str]]:
    """Yield the line of each wrong reference of a page's text, and what is wrong with it."""
    for line, number in references(text.prose.text):
        if number not in numbered and whole:
            yield text.line + line, f"there is no equation ({number}); {_remedy(number, numbered)}"
    for start, end in text.prose.bracketed:
        for number in re.findall(NUMBER, bracketed := text.prose.text[start:end]):
            if number not in numbered:
                as_value = f"{bracketed}<!--= expression -->, {bracketed}<!--~ reason -->, for a value"
                message = f"there is no equation ({number}); {_remedy(number, numbered)}; or write {as_value}"
                yield text.at(start), message
    for link in _LINK.finditer(text.prose.text):
        if link["said"] != link["target"]:
            yield text.at(link.start()), f"({link['said']}) is linked to equation ({link['target']})"


def _remedy(number: str, numbered: Iterable[str]) -> str:
    """Name the equations of the same chapter, one of which may be meant; or else say how to number one."""
    chapter = number.rpartition(".")[0]
    alike = sorted(other for other in numbered if other.rpartition(".")[0] == chapter)
    if not alike:
        return rf"number one with \tag{{{number}}}, or name the book whose equation it is after its number"
    return f"there are {', '.join(f'({other})' for other in alike)}"


def _without_spaces(latex: str) -> str:
    return re.sub(r"\s+", "", latex)
