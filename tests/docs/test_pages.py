"""A page, a docstring and its doctest say the same. All else that pages say is a test of its own, in docs."""

import doctest
import re
import tomllib
from collections.abc import Callable, Iterator
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import pytest
import torch
from mkdocs.config import load_config
from packaging.requirements import Requirement

import unmasked
from proofread import formulas as formula
from proofread.checks.check import check
from proofread.keep.installed import distributions, installed, normal
from proofread.pages import page
from proofread.pages.equations import cited
from proofread.pages.page import find_pages
from unmasked import self_attention

ROOT = Path(__file__).parents[2]


def named(entries: list[Any]) -> Iterator[tuple[str, str]]:
    """The pages of a part of the navigation and how it calls them; not those that it leaves to the page."""
    for entry in entries:
        for title, inside in entry.items() if isinstance(entry, dict) else ():
            yield from [(inside, title)] if isinstance(inside, str) else named(inside)


# The tabs above every page have room for a word each.
NAMED = [each for part in load_config(str(ROOT / "mkdocs.yml")).nav or [] for each in named(next(iter(part.values())))]


@pytest.mark.parametrize(("name", "title"), NAMED)
def test_a_page_has_one_title(name: str, title: str):
    first = page.read(ROOT / "docs" / name, ROOT).cells[0].source if name.endswith(".py") else ""
    first = first or (ROOT / "docs" / name).read_text(encoding="utf-8")
    documented = re.match(r"::: (\S+)", first)
    heading = re.search(r"^# (.+)$", first, re.MULTILINE)
    assert documented or heading
    assert title == (documented[1] if documented else re.sub("[*`]", "", heading[1]) if heading else "")


# Of every fifth page, for each takes seconds: what differs between interpreters and forks is no page's own.
@pytest.mark.parametrize("path", find_pages([ROOT / "docs"])[::5], ids=lambda path: path.stem)
def test_the_last_program_of_the_page_runs_in_a_new_interpreter(path: Path, verify: Callable[..., str | None]):
    """All others ran, as the page did, in forks of one interpreter: it must make no difference."""
    (checked,) = check([path], root=ROOT).pages
    offered = [snippet for _, snippet in sorted(checked.snippets.items()) if snippet.text]
    for snippet in offered[-1:]:
        assert verify(snippet) is None


def needed() -> set[str]:
    """The distributions that are there where the pages are, whatever else is."""
    of = {"attention-unmasked": ROOT, "proofread-docs": ROOT / "src/proofread"}
    projects = {name: tomllib.loads((at / "pyproject.toml").read_text())["project"] for name, at in of.items()}
    waiting = [(name, extra) for name in of for extra in ("", "docs", "mkdocs")]
    found: set[tuple[str, str]] = set()
    while waiting:
        name, extra = each = waiting.pop()
        if each in found or normal(name) not in distributions():
            continue
        found.add(each)
        if name in projects:
            parts = projects[name]["optional-dependencies"] | {"": projects[name]["dependencies"]}
            told = parts.get(extra, [])
        else:
            told = requires(name) or []
        for requirement in map(Requirement, told):
            if not requirement.marker or requirement.marker.evaluate({"extra": extra}):
                waiting += [(requirement.name, part) for part in ("", *requirement.extras)]
    return {normal(name) for name, _ in found}


def test_what_the_tests_install_makes_no_page_run_again(tmp_path: Path):
    """A build's runs are those of the tests: what a page asks for is there for both, or for none."""
    (tmp_path / "page.py").write_text("# %%\nimport torch\nimport unmasked\n")
    (checked,) = check([tmp_path / "page.py"], root=tmp_path, keep=False).pages
    asked = installed(checked.asked)
    assert "torch" in asked
    assert asked.keys() - needed() == set()


def numbered() -> dict[str, str]:
    """The LaTeX of all equations on pages, by number."""
    pages = [page.read(path, ROOT) for path in find_pages([ROOT / "docs"])]
    texts = [cell.source for each in pages for cell in each.cells if not cell.is_code]
    return {each.tag: each.latex for text in texts for each in formula.find(text) if each.tag}


def test_the_page_the_docstring_and_the_doctest_of_self_attention_agree():
    (latex,) = (citation.latex for citation in cited("unmasked", ROOT) if citation.name == "self_attention")
    assert numbered()["3.1"].split() == latex.split()

    (example,) = doctest.DocTestFinder(recurse=False).find(self_attention, globs={"torch": torch} | vars(unmasked))
    failed, attempted = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(example, clear_globs=False)
    assert (failed, attempted) == (0, 4)

    bindings = "X = x; d = x.size(-1); SelfAttention = lambda X: self_attention(X).context"
    (equation,) = formula.find(f"$${latex}$$\n<!-- where: {bindings} -->")
    assert formula.check(equation, example.globs) == []
