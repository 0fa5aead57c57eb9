r"""The registry of numbered equations: pages number them with ``\tag{3.1}``, docstrings cite and restate them.

A docstring's section says which equation its object computes, with or without its LaTeX:

.. code-block:: text

    Equation:
        $S = Q K^\top$ (3.1)

    Equation: (3.1, 7.2)
"""

import ast
import importlib.util
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .findings import Finding, relative

if TYPE_CHECKING:
    from .check import Checked

_CITED = re.compile(r"^[ \t]*Equation:\s+(?:\$(?P<latex>.+?)\$\s+)?\((?P<numbers>[^()]*)\)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Citation:
    """What a docstring says of an equation: whose docstring, the equation's number, and its LaTeX ("" if not given)."""

    path: Path
    line: int
    name: str
    number: str
    latex: str


def cited(package: str) -> Iterator[Citation]:
    """The equations that the docstrings of a package cite; its sources are read, and nothing is imported."""
    found = importlib.util.find_spec(package)
    for folder in (found.submodule_search_locations or ()) if found else ():
        for path in sorted(Path(folder).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for node in ast.walk(tree):
                if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                    yield from _in_docstring(path, node)


def _in_docstring(
    path: Path, node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
) -> Iterator[Citation]:
    text = ast.get_docstring(node, clean=False)
    if not text:
        return
    name = path.stem if isinstance(node, ast.Module) else node.name
    for match in _CITED.finditer(text):
        line = node.body[0].lineno + text.count("\n", 0, match.start("numbers"))
        for number in match["numbers"].split(","):
            yield Citation(path, line, name, number.strip(), match["latex"] or "")


def faults(pages: "Sequence[Checked]", root: Path, packages: Iterable[str], *, whole: bool) -> Iterator[Finding]:
    """What does not fit together.

    Args:
        pages: The pages.
        root: The project; findings name files relative to it.
        packages: The packages whose docstrings are read.
        whole: Whether these are all pages there are, so that an equation which none of them has is nowhere.
    """
    numbered: dict[str, tuple[str, int, str]] = {}
    for checked in pages:
        for text in checked.texts:
            for stated in text.formulas:
                if stated.tag is None:
                    continue
                path, line = checked.page.path, text.line + stated.line
                if stated.tag in numbered:
                    first = "{}:{}".format(*numbered[stated.tag][:2])
                    message = f"equation ({stated.tag}) is also at {first}; give one of them another number"
                    yield Finding(path, line, message, kind="equation")
                else:
                    numbered[stated.tag] = path, line, stated.latex
    for citation in (citation for package in packages for citation in cited(package)):
        path = relative(citation.path, root)
        if citation.number not in numbered:
            if whole:
                message = f"{citation.name} cites equation ({citation.number}), which no page has"
                yield Finding(path, citation.line, message, kind="equation")
            continue
        page, line, latex = numbered[citation.number]
        if citation.latex and _plain(citation.latex) != _plain(latex):
            message = f"{citation.name} states equation ({citation.number}) otherwise than {page}:{line}, ${latex}$"
            yield Finding(path, citation.line, message, kind="equation")


def _plain(latex: str) -> str:
    return re.sub(r"\s+", "", latex)
