r"""References to numbered equations: pages number them with ``\tag{3.1}``, docstrings cite and restate them.

A docstring's section says which equation its object computes, with or without its LaTeX:

.. code-block:: text

    Equation:
        $S = Q K^\top$ (3.1)

    Equation: (3.1, 7.2)

Prose, in pages and docstrings, refers to "equation (3.1)", to "equations (3.1) and (7.2)", and from a page with a link
``[(3.1)](03_page.py#eq-3.1)``. Such numbers need no other proof: an equation must have them. So it is with a number
that has a point and stands in brackets alone, (3.1): where no equation has it, nor any directive speaks for it, it is
an error.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..syntax import module, source
from .package import documented, sources

NUMBER = r"(?:[A-Z]\.?)?\d+(?:\.\d+)*[a-z]?"
LISTED = rf"\({NUMBER}(?:,[ ]{NUMBER})*\)"
# How prose refers to equations; fit to stand in a verbose pattern.
SEVERAL = rf"{LISTED}(?:(?:,|,?\s+(?:and|or|to))\s+{LISTED})*"
REFERENCE = rf"\b[Ee]quations?:?\s+{SEVERAL}|\[\({NUMBER}\)\]\([^()\s]*\#eq-[^()\s]+\)"
# A number in brackets alone: what is called, and what is counted by another word than equation, is something else.
_POINTED = r"(?:[A-Z]\.\d+|[A-Z]?\d+\.\d+)(?:\.\d+)*[a-z]?"
BRACKETED = rf"(?<![\w)\]`*])\({_POINTED}(?:,[ ]{_POINTED})*\)"
_COUNTED = re.compile(
    r"(?:\b(?:(?:sub)?sections?|chapters?|parts?|pages?|figures?|tables?|algorithms?|listings?|theorems?|lemmas?|steps?|"
    r"items?|footnotes?|appendix|versions?|release|python|(?:py)?torch)|§),?\s*\Z",
    re.IGNORECASE,
)
SECTION = re.compile(r"(?m)^[ \t]*Equation:(?=\s)(?:\s+\$(?P<latex>[^$]+)\$)?(?:\s*\((?P<numbers>[\w., ]+)\))?")
_MENTIONED = re.compile(r"[Ee]quation|#eq-")


@dataclass(frozen=True)
class Citation:
    """A docstring's citation of an equation."""

    path: Path  # the source file
    line: int  # of the number
    name: str  # the object's
    number: str  # the equation's; "" where a section of that name gives none
    latex: str = ""  # what it states, if it states anything


def cited(package: str, root: Path) -> Iterator[Citation | SyntaxError]:
    """The equations that the docstrings of a package cite, and what is wrong with a source that is not Python."""
    for path in sources(package, root):
        try:
            code = source(path)
            if not _MENTIONED.search(code):  # as in most; parsing all of them at each save would be felt
                continue
            tree = module(code, str(path))
        except SyntaxError as error:
            yield error
            continue
        for node, text in documented(tree):
            first, name = node.body[0].lineno, path.stem if isinstance(node, ast.Module) else node.name
            for match in SECTION.finditer(text):
                line = first + text.count("\n", 0, match.end())
                for number in (match["numbers"] or "").split(","):
                    yield Citation(path, line, name, number.strip(), match["latex"] or "")
            for line, number in references(SECTION.sub(lambda match: "\n" * match[0].count("\n"), text)):
                yield Citation(path, first + line, name, number)


def is_reference(text: str, place: int) -> bool:
    """Tell whether a number in brackets can be an equation's, by the words before it."""
    return not _COUNTED.search(text, max(0, place - 40), place)


def references(text: str) -> Iterator[tuple[int, str]]:
    """The numbers of equations that prose refers to, each with its line in the text."""
    for reference in re.finditer(REFERENCE, text):
        shown = reference[0].partition("](")[0]
        for number in re.finditer(NUMBER, shown):
            yield text.count("\n", 0, reference.start() + number.start()), number[0]
