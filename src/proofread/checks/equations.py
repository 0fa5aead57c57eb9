"""The registry of numbered equations: whether pages and docstrings mean the same by a number."""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ..keep.files import relative
from ..pages.equations import NUMBER, Citation, cited, references
from ..settings import Settings
from .checked import Checked
from .findings import Finding

_LINK = re.compile(rf"\[\((?P<said>{NUMBER})\)\]\((?P<page>[^()\s]*)#eq-(?P<target>[^()\s]+)\)")


def faults(
    pages: Sequence[Checked], elsewhere: Sequence[Checked], root: Path, settings: Settings, *, whole: bool
) -> Iterator[Finding]:
    """Yield the findings on the equations of some pages, which may refer to those of pages elsewhere in the project.

    An equation that none of the pages has is nowhere if these are the whole.
    """

    def finding(path: str, line: int, message: str) -> Finding:
        return Finding(path, line, message, kind="equation")

    numbered: dict[str, tuple[str, int, str]] = {}
    for checked in (*elsewhere, *pages):
        for text in checked.texts:
            for stated in (stated for stated in text.formulas if stated.tag):
                here = checked.page.path, text.line + stated.line
                first = numbered.setdefault(stated.tag or "", (*here, stated.latex))
                if first[:2] != here and checked in pages:
                    message = f"equation ({stated.tag}) is also at {first[0]}:{first[1]}; give one another number"
                    yield finding(*here, message)
    citations: list[Citation] = []
    for package in settings.packages if settings.docstrings != "off" else ():
        for each in cited(package, root):
            if isinstance(each, Citation):
                citations.append(each)
            elif settings.docstrings == "equations":  # or it is told already
                path = relative(Path(each.filename or ""), root)
                yield finding(path, each.lineno or 1, f"its docstrings cannot be read: {each.msg}")
    for citation in citations:
        path, message = relative(citation.path, root), ""
        page, line, latex = numbered.get(citation.number, ("", 0, ""))
        if not citation.number:
            message = f"{citation.name} names no equation; end the section with its number, as in (3.1)"
        elif not page and whole:
            message = f"{citation.name} cites equation ({citation.number}), which no page has"
        elif page and citation.latex and _plain(citation.latex) != _plain(latex):
            message = f"{citation.name} states equation ({citation.number}) otherwise than {page}:{line}, ${latex}$"
        if message:
            yield finding(path, citation.line, message)
    for checked in pages:
        for text in checked.texts:
            for line, number in references(text.prose.text):
                if number not in numbered and whole:
                    message = f"there is no equation ({number}); {_nearest(number, numbered)}"
                    yield finding(checked.page.path, text.line + line, message)
            for start, end in text.prose.bracketed:
                for number in re.findall(NUMBER, bracketed := text.prose.text[start:end]):
                    if number not in numbered:
                        remedy = f"{bracketed}<!--= expression -->, {bracketed}<!--~ reason -->, for a value"
                        message = f"there is no equation ({number}); {_nearest(number, numbered)}; or write {remedy}"
                        yield finding(checked.page.path, text.at(start), message)
            for link in _LINK.finditer(text.prose.text):
                if link["said"] != link["target"]:
                    line = text.at(link.start())
                    yield finding(checked.page.path, line, f"({link['said']}) is linked to equation ({link['target']})")
    if settings.cite_equations:
        own = {stated.tag or "" for checked in pages for text in checked.texts for stated in text.formulas} - {""}
        for number in own - {citation.number for citation in citations}:
            path, line, _ = numbered[number]
            named = ", ".join(settings.packages)
            message = f"no docstring of {named} cites equation ({number}); cite it, or drop its number"
            yield finding(path, line, message)


def _nearest(number: str, numbered: Iterable[str]) -> str:
    chapter = number.rpartition(".")[0]
    alike = sorted(other for other in numbered if other.rpartition(".")[0] == chapter)
    if not alike:
        return rf"number one with \tag{{{number}}}, or name the book whose equation it is after its number"
    return f"there are {', '.join(f'({other})' for other in alike)}"


def _plain(latex: str) -> str:
    return re.sub(r"\s+", "", latex)
