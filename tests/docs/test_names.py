"""What pages name in code exists: names of packages, and on the pages about proofread all that is its own."""

import importlib
import re
import sys
from pathlib import Path

import pytest
import torch

import unmasked
import unmasked_doctor
import unmasked_lessons
from proofread.checks.check import project_pages
from proofread.pages.page import read
from proofread.settings import Settings
from unmasked_doctor import museum, probes

ROOT = Path(__file__).parents[2]
PAGES = [path.relative_to(ROOT).as_posix() for path in project_pages(Settings.load(ROOT), ROOT)]
WORD = re.compile(r"[A-Za-z_]\w*(?:-[A-Za-z]\w*)*")
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
SHORT = {"nn": torch.nn, "F": torch.nn.functional, "torch": torch, "unmasked": unmasked}
SHORT |= {name: getattr(unmasked, name) for name in ("masks", "heads", "layouts", "plot")}
SHORT |= {"museum": museum, "probes": probes, "unmasked_doctor": unmasked_doctor, "unmasked_lessons": unmasked_lessons}


def prose(name: str) -> str:
    """What a page says, without its code, what readers do not see, and the old names that the changes list."""
    page = read(ROOT / name, ROOT)
    said = "\n\n".join(cell.source for cell in page.cells if not cell.is_code)
    was = r"^\| [^|]*\|" if name == "docs/changelog.md" else r"(?!)"
    hidden = rf"<!--.*?-->|^[ ]*(`{{3,}}).*?^[ ]*\1|\$\$.*?\$\$|{was}"
    return re.sub(hidden, "", said, flags=re.DOTALL | re.MULTILINE)


def missing(dotted: str) -> bool:
    """Whether a dotted name that begins as those of a package is none of it."""
    first, *rest = dotted.split(".")
    thing, path = SHORT[first], SHORT[first].__name__
    for part in rest:
        path = f"{path}.{part}"
        if not hasattr(thing, part):
            try:
                thing = importlib.import_module(path)
            except ImportError:
                return part not in getattr(thing, "__annotations__", {}) and not hasattr(type(thing), part)
        else:
            thing = getattr(thing, part)
    return False


@pytest.mark.parametrize("name", PAGES)
def test_names_of_packages_are_there(name: str):
    dotted = re.compile(rf"(?<![\w./])((?:{'|'.join(SHORT)})(?:\.\w+)+)(?![\w/-]*\.py|/)")
    named = {found for span in SPAN.findall(prose(name)) for found in dotted.findall(span)}
    assert {found for found in named if missing(found)} == set()


@pytest.mark.parametrize(
    "name", ["torch.no_gradient", "museum.riddles", "nn.MultiHeadAttention", "unmasked.causal.mask"]
)
def test_a_name_that_is_not_there_is_missed(name: str):
    assert missing(name)


@pytest.mark.parametrize("name", [name for name in PAGES if name.startswith("docs/proofread/")])
def test_what_the_pages_about_proofread_name_is_its_own(name: str):
    sources = [*(ROOT / "src/proofread").rglob("*.py"), *(ROOT / "tests/proofread/foreign").rglob("*.*")]
    sources += [ROOT / "mkdocs.yml", ROOT / "pyproject.toml", ROOT / ".gitignore"]
    page = read(ROOT / name, ROOT)
    known = " ".join(path.read_text(encoding="utf-8") for path in sources if path.is_file())
    known += " ".join(cell.source for cell in page.cells if cell.is_code)
    words = {*re.findall(WORD, known), *sys.stdlib_module_names}
    named = {word for span in SPAN.findall(prose(name)) for word in re.findall(WORD, span)}
    assert named - words == set()
