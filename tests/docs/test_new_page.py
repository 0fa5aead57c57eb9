"""A page that is written as CONTRIBUTING says can be sent: its example, word for word, meets what CI asks of a page.

It is one page more in a copy of the project. For what a reader sees of it, a site is built of it alone.
"""

import re
import shutil
import textwrap
from pathlib import Path

import pytest

from ..running import ROOT, python

COPIED = ("docs", "src", "tests", ".github", "mkdocs.yml", "pyproject.toml", "README.md", "CONTRIBUTING.md", "LICENSE",
          "CITATION.cff")  # fmt: skip
PAGE = "docs/pytorch/fresh.py"
FIRST = "          - Why divide by the square root of d?: pytorch/scale.py\n"
HOME = "# Home\n\nThis page stands where the first one does, and says in a sentence what it is.\n"


def shown() -> str:
    """The page that CONTRIBUTING shows."""
    (page,) = re.findall(r"    ```py\n(.*?)    ```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.DOTALL)
    return textwrap.dedent(page)


def edit(file: Path, pattern: str, new: str) -> None:
    """Put something else where a pattern matches once."""
    text, found = re.subn(pattern, lambda _: new, file.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    assert found == 1, f"{file.name} has {pattern} {found} times"
    file.write_text(text, encoding="utf-8")


def copy(root: Path) -> Path:
    """A copy of the project with the page, named in the navigation by its title."""
    for name in COPIED:
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, root / name)
    (root / PAGE).write_text(shown(), encoding="utf-8")
    edit(root / "mkdocs.yml", re.escape(FIRST), f"          - {title()}: pytorch/fresh.py\n{FIRST}")
    return root


def title() -> str:
    return re.findall(r"(?m)^# # (.+)$", shown())[0]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy(tmp_path_factory.mktemp("fresh"))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy whose other pages are gone, but for the glossary, with its site."""
    root = copy(tmp_path_factory.mktemp("alone"))
    for path in (root / "docs").rglob("*.*"):
        kept = path.name in ("fresh.py", "notation.md") or path.suffix not in (".py", ".md")
        if path.is_file() and not kept and path.parent.name != "hooks":
            path.unlink()
    (root / "docs/index.md").write_text(HOME, encoding="utf-8")
    (root / "docs/search.toml").write_text("")
    (root / "docs/moved.toml").write_text("[pages]\n[headings]\n")
    nav = f"nav:\n  - index.md\n  - notation.md\n  - PyTorch:\n      - {title()}: pytorch/fresh.py\n\n"
    edit(root / "mkdocs.yml", r"^nav:\n.*?^(?=# What belongs)", nav)
    edit(root / "pyproject.toml", r"^packages = \[[^\]]*\]\ncite_equations = true$", "")  # of the pages that are gone
    passes(root, "mkdocs build --strict --quiet")
    return root


def passes(root: Path, command: str, **environment: str) -> None:
    """Run a module of Python in a copy, whose packages it takes."""
    python("-m", *command.split(), cwd=root, PYTHONPATH=str(root / "src"), **environment)


@pytest.mark.parametrize("command", ["ruff check docs", "ruff format --check docs"])
def test_the_linters_take_it(project: Path, command: str) -> None:
    passes(project, command)


def test_its_figures_hold_here_and_on_another_machine(project: Path) -> None:
    passes(project, f"proofread check {PAGE} --machine far")


ASKED = " ".join(
    f"tests/docs/test_{name}.py" for name in ("measures", "names", "pages", "quoted", "references", "tables")
)
TRY = "pytest -q -n 0 -p no:cacheprovider -k fresh"


def test_as_a_source_it_meets_what_is_asked_of_each(project: Path) -> None:
    passes(project, f"{TRY} {ASKED}")


@pytest.mark.parametrize("asked", ["docs/test_budgets.py", "browser/test_site.py"])
def test_a_reader_meets_what_is_asked_of_each_page(alone: Path, asked: str) -> None:
    passes(alone, f"{TRY} tests/{asked}", SITE=str(alone / "site"))
