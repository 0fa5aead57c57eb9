"""Pages proofread clean, their formulas would not survive being wrong, and docstrings state the same equations."""

from __future__ import annotations

import doctest
import inspect
import re
from pathlib import Path

import pytest
import torch

import unmasked
from proofread import formula, page
from proofread.check import check, find_pages
from unmasked import self_attention

ROOT = Path(__file__).parents[2]
PAGES = find_pages([ROOT / "docs"])
SCRIPTS = [path for path in PAGES if path.suffix == ".py"]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_the_page_proofreads_clean(path: Path):
    report = check([path], root=ROOT, keep=False)
    assert [str(finding) for finding in report.findings] == []


def numbered() -> list[formula.Formula]:
    """The formulas of all pages that have a number."""
    cells = (cell for path in SCRIPTS for cell in page.read(path, ROOT).cells if not cell.is_code)
    return [each for cell in cells for each in formula.find(cell.source) if each.tag]


def stated(path: Path) -> list[tuple[formula.Formula, dict[str, object]]]:
    """The page's formulas, each with the namespace at its point of the page."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    found = []
    for cell in page.read(path, ROOT).cells:
        if not cell.is_code:
            found += [(each, dict(namespace)) for each in formula.find(cell.source)]
        elif "raises-exception" not in cell.tags:
            exec(compile(cell.source, str(path), "exec"), namespace)
    return found


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_no_formula_of_the_page_would_survive_being_wrong(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    formulas = [(each, namespace) for each, namespace in stated(path) if each.unchecked is None]
    assert formulas
    survivors = {each.latex: [m.latex for m in formula.survivors(each, namespace)] for each, namespace in formulas}
    assert {latex: mutants for latex, mutants in survivors.items() if mutants} == {}


def cited() -> list[tuple[str, str, str]]:
    """The equations that docstrings cite: the object's name, the equation's number, and its LaTeX where it is given."""
    modules = [m for _, m in inspect.getmembers(unmasked, inspect.ismodule) if m.__name__.startswith("unmasked.")]
    found = []
    for module in modules:
        for name in module.__all__:
            docstring = inspect.getdoc(getattr(module, name)) or ""
            for latex, numbers in re.findall(r"^Equation:\s+(?:\$(.+?)\$\s+)?\(([\d., ]+)\)", docstring, re.M | re.S):
                found += [(name, number, latex) for number in numbers.split(", ")]
    return found


def plain(latex: str) -> str:
    return re.sub(r"\\tag\{[^}]*\}|\s+", "", latex)


def test_docstrings_cite_every_equation_that_the_pages_number_and_state_it_alike():
    on_pages = [(each.tag, plain(each.latex)) for each in numbered()]
    assert len(dict(on_pages)) == len(on_pages), "two equations have one number"
    assert {number for _, number, _ in cited()} == set(dict(on_pages))
    for name, number, latex in cited():
        assert not latex or plain(latex) == dict(on_pages)[number], f"{name} states equation ({number}) otherwise"


def test_the_page_the_docstring_and_the_doctest_of_self_attention_agree():
    (latex,) = (latex for name, _, latex in cited() if name == "self_attention")
    (on_page,) = (each for each in numbered() if each.tag == "3.1")
    assert plain(on_page.latex) == plain(latex)

    (example,) = doctest.DocTestFinder(recurse=False).find(self_attention, globs={"torch": torch} | vars(unmasked))
    failed, attempted = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(example, clear_globs=False)
    assert (failed, attempted) == (0, 4)

    bindings = "X = x; d = x.size(-1); SelfAttention = lambda X: self_attention(X).context"
    (equation,) = formula.find(f"$${latex}$$\n<!-- where: {bindings} -->")
    assert formula.check(equation, example.globs) == []
