r"""The registry of numbered equations: pages number them with ``\tag{3.1}``, docstrings cite and restate them.

A docstring's section says which equation its object computes, with or without its LaTeX:

.. code-block:: text

    Equation:
        $S = Q K^\top$ (3.1)

    Equation: (3.1, 7.2)

Prose, in pages and docstrings, refers to "equation (3.1)", to "equations (3.1) and (7.2)", and from a page with a link
``[(3.1)](03_page.py#eq-3.1)``. Such numbers need no other proof: an equation must have them.
"""

import ast
import importlib.util
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .findings import Finding, relative

if TYPE_CHECKING:
    from .check import Checked

_NUMBER = r"(?:[A-Z]\.?)?\d+(?:\.\d+)*[a-z]?"
_LISTED = rf"\({_NUMBER}(?:,[ ]{_NUMBER})*\)"
# How prose refers to equations; fit to stand in a verbose pattern.
_SEVERAL = rf"{_LISTED}(?:(?:,|,?\s+(?:and|or|to))\s+{_LISTED})*"
REFERENCE = rf"\b[Ee]quations?:?\s+{_SEVERAL}|\[\({_NUMBER}\)\]\([^()\s]*\#eq-[^()\s]+\)"
_SECTION = re.compile(
    r"^[ \t]*Equation:(?=\s)(?:\s+\$(?P<latex>[^$]+)\$)?(?:\s*\((?P<numbers>[\w., ]+)\))?", re.MULTILINE
)
_MENTIONED = re.compile(r"[Ee]quation|#eq-")
_LINK = re.compile(rf"\[\((?P<said>{_NUMBER})\)\]\((?P<page>[^()\s]*)#eq-(?P<target>[^()\s]+)\)")
# HTML after which a list of numbers is one of equations; what is inside links, code and formulas is left alone.
_IN_HTML = re.compile(
    rf"<(?P<element>a|code|pre|math|script|style|h\d)\b.*?</(?P=element)>(?P<after>\s*{_LISTED})?"
    rf"|(?P<prose>\b[Ee]quations?(?:</summary>|</strong>|</p>|:|\s|<p>)*{_SEVERAL})",
    re.DOTALL,
)


@dataclass(frozen=True)
class Citation:
    """What a docstring says of an equation: whose docstring, the equation's number, and its LaTeX.

    Attributes:
        path: The source file.
        line: The line of the number.
        name: The object's.
        number: The equation's; "" where a section of that name gives none.
        latex: What it states; "" if it states nothing.
    """

    path: Path
    line: int
    name: str
    number: str
    latex: str = ""


def docstrings(path: Path, source: str) -> Iterator[tuple[int, str, str]]:
    """The docstrings of a module, each with its line and its object's name; nothing is imported.

    Raises:
        SyntaxError: The source is not Python.
    """
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(source, str(path))):
        if isinstance(node, documented) and (text := ast.get_docstring(node, clean=False)):
            yield node.body[0].lineno, path.stem if isinstance(node, ast.Module) else node.name, text


def cited(package: str, root: Path) -> Iterator[Citation]:
    """The equations that the docstrings of a package cite, in sections and in prose.

    Raises:
        SyntaxError: A source of the package is not Python.
    """
    for path in _sources(package, root):
        source = path.read_text(encoding="utf-8")
        if not _MENTIONED.search(source):  # as in most; parsing all of them at each save would be felt
            continue
        for first, name, text in docstrings(path, source):
            for match in _SECTION.finditer(text):
                line = first + text.count("\n", 0, match.end())
                for number in (match["numbers"] or "").split(","):
                    yield Citation(path, line, name, number.strip(), match["latex"] or "")
            for line, number in _references(_SECTION.sub(lambda match: "\n" * match[0].count("\n"), text)):
                yield Citation(path, first + line, name, number)


def faults(
    pages: "Sequence[Checked]", root: Path, packages: Iterable[str], *, whole: bool, every: bool = False
) -> Iterator[Finding]:
    """What does not fit together.

    Args:
        pages: The pages.
        root: The project; findings name files relative to it.
        packages: The packages whose docstrings are read.
        whole: Whether these are all pages there are, so that an equation which none of them has is nowhere.
        every: Whether a docstring must cite every equation.
    """

    def found(path: str, line: int, message: str) -> Finding:
        return Finding(path, line, message, kind="equation")

    numbered: dict[str, tuple[str, int, str]] = {}
    for checked in pages:
        for text in checked.texts:
            for stated in (stated for stated in text.formulas if stated.tag):
                path, line = checked.page.path, text.line + stated.line
                first = numbered.setdefault(stated.tag or "", (path, line, stated.latex))
                if first[:2] != (path, line):
                    message = f"equation ({stated.tag}) is also at {first[0]}:{first[1]}; give one another number"
                    yield found(path, line, message)
    citations: list[Citation] = []
    for package in packages:
        try:
            citations += cited(package, root)
        except SyntaxError as error:
            path = relative(Path(error.filename or ""), root)
            yield found(path, error.lineno or 1, f"its docstrings cannot be read: {error.msg}")
    for citation in citations:
        path = relative(citation.path, root)
        if not citation.number:
            message = f"{citation.name} names no equation; end the section with its number, as in (3.1)"
            yield found(path, citation.line, message)
        elif citation.number not in numbered:
            if whole:
                message = f"{citation.name} cites equation ({citation.number}), which no page has"
                yield found(path, citation.line, message)
        elif citation.latex and _plain(citation.latex) != _plain(numbered[citation.number][2]):
            page, line, latex = numbered[citation.number]
            message = f"{citation.name} states equation ({citation.number}) otherwise than {page}:{line}, ${latex}$"
            yield found(path, citation.line, message)
    for checked in pages:
        for text in checked.texts:
            for line, number in _references(text.prose.text):
                if number not in numbered and whole:
                    message = f"there is no equation ({number}); {_nearest(number, numbered)}"
                    yield found(checked.page.path, text.line + line, message)
            for link in _LINK.finditer(text.prose.text):
                if link["said"] != link["target"]:
                    line = text.line + text.prose.text.count("\n", 0, link.start())
                    yield found(checked.page.path, line, f"({link['said']}) is linked to equation ({link['target']})")
    if every:
        for number in numbered.keys() - {citation.number for citation in citations}:
            path, line, _ = numbered[number]
            message = f"no docstring of {', '.join(packages)} cites equation ({number}); cite it, or drop its number"
            yield found(path, line, message)


def link(html: str, address: Callable[[str], str | None]) -> str:
    """Make links of the numbers of equations in the HTML of a page.

    Args:
        html: The page's content; numbers stand after the word equation, or after a formula.
        address: Where an equation stands, by its number; None if there is no such equation.
    """

    def linked(number: re.Match[str]) -> str:
        target = address(number[0])
        return f'<a href="{target}">{number[0]}</a>' if target else number[0]

    def replaced(match: re.Match[str]) -> str:
        begin = match.start("after") if match["after"] else match.end() if match["element"] else match.start()
        listed = re.sub(_LISTED, lambda group: re.sub(_NUMBER, linked, group[0]), html[begin : match.end()])
        return html[match.start() : begin] + listed

    return _IN_HTML.sub(replaced, html)


def _sources(package: str, root: Path) -> Iterable[Path]:
    """The source files of a package: the project's own, or else the installed one's."""
    for folder in (root / package, root / "src" / package):
        if folder.is_dir():
            return sorted(folder.rglob("*.py"))
    spec = importlib.util.find_spec(package)
    if spec is None:
        return []
    folders = spec.submodule_search_locations
    if folders is None:
        return [Path(spec.origin)] if spec.origin else []
    return sorted(path for folder in folders for path in Path(folder).rglob("*.py"))


def _references(text: str) -> Iterator[tuple[int, str]]:
    """The numbers of equations that prose refers to, each with its line in the text."""
    for reference in re.finditer(REFERENCE, text):
        said = reference[0].partition("](")[0]
        for number in re.finditer(_NUMBER, said):
            yield text.count("\n", 0, reference.start() + number.start()), number[0]


def _nearest(number: str, numbered: Iterable[str]) -> str:
    chapter = number.rpartition(".")[0]
    alike = sorted(other for other in numbered if other.rpartition(".")[0] == chapter)
    if not alike:
        return rf"number one with \tag{{{number}}}, or name the book whose equation it is after its number"
    return f"there are {', '.join(f'({other})' for other in alike)}"


def _plain(latex: str) -> str:
    return re.sub(r"\s+", "", latex)
