from pathlib import Path

import pytest

from proofread.check import check
from proofread.config import Settings
from proofread.equations import cited

PAGE = r"""
# %%
s, q = 6.0, 3.0

# %% [markdown]
# $$s = 2 q \tag{1.1}$$ <!-- where: -->
#
# $$q = \frac{s}{2} \tag{A.2}$$ <!-- where: -->
"""
MODULE = r'''
"""A module.

Equation: (A.2)
"""

def double(q):
    r"""Double it.

    Equation:
        $s = 2
        q$ (1.1)
    """

class Half:
    r"""Halve it.

    Equation:
        $q = \frac{s}{2}$ (A.2, 1.1)
    """
'''


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mathematics").mkdir()
    (tmp_path / "mathematics/__init__.py").write_text("raise ImportError('it is never imported')")
    (tmp_path / "mathematics/module.py").write_text(MODULE)
    (tmp_path / "page.py").write_text(PAGE.lstrip())
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def faults(root: Path, whole: bool = True) -> list[str]:
    pages = sorted(root.glob("*.py"))
    settings = Settings(packages=("mathematics",))
    return [str(finding) for finding in check(pages, root=root, settings=settings, keep=False, whole=whole).findings]


def edit(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def test_docstrings_are_read_and_nothing_is_imported(root: Path) -> None:
    found = {(citation.name, citation.line, citation.number) for citation in cited("mathematics")}
    assert found == {("module", 4, "A.2"), ("double", 12, "1.1"), ("Half", 19, "A.2"), ("Half", 19, "1.1")}
    assert list(cited("nowhere_to_be_found")) == []


def test_an_equation_is_stated_alike_wherever_its_number_stands(root: Path) -> None:
    assert faults(root) == [
        r"mathematics/module.py:19: Half states equation (1.1) otherwise than page.py:5, $s = 2 q$",
    ]
    edit(root / "mathematics/module.py", ", 1.1)", ")")
    assert faults(root) == []


def test_a_citation_of_no_equation_is_found_where_all_pages_are_known(root: Path) -> None:
    edit(root / "mathematics/module.py", ", 1.1)", ", 1.7)")
    assert faults(root) == ["mathematics/module.py:19: Half cites equation (1.7), which no page has"]
    assert faults(root, whole=False) == []


def test_two_equations_have_two_numbers(root: Path) -> None:
    edit(root / "mathematics/module.py", ", 1.1)", ")")
    edit(root / "page.py", r"\tag{A.2}", r"\tag{1.1}")
    assert faults(root) == [
        "mathematics/module.py:4: module cites equation (A.2), which no page has",
        "mathematics/module.py:19: Half cites equation (A.2), which no page has",
        "page.py:7: equation (1.1) is also at page.py:5; give one of them another number",
    ]
