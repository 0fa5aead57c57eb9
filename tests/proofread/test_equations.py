import re
from pathlib import Path

import pytest

from proofread.checks import equations
from proofread.checks.check import check
from proofread.checks.checked import unrun
from proofread.pages import prose
from proofread.pages.equations import cited
from proofread.pages.page import read
from proofread.publish.equations import link
from proofread.settings import Settings

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


@pytest.fixture
def clean(root: Path) -> Path:
    edit(root / "mathematics/module.py", ", 1.1)", ")")
    assert faults(root) == []
    return root


def faults(root: Path, whole: bool = True, every: bool = False) -> list[str]:
    pages = [unrun(read(path, root)) for path in sorted(root.glob("*.py"))]
    settings = Settings(packages=("mathematics",), cite_equations=every)
    return [str(finding) for finding in sorted(equations.faults(pages, [], root, settings, whole=whole))]


def edit(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def test_docstrings_are_read_and_nothing_is_imported(root: Path) -> None:
    found = {(citation.name, citation.line, citation.number) for citation in cited("mathematics", root)}
    assert found == {("module", 4, "A.2"), ("double", 12, "1.1"), ("Half", 19, "A.2"), ("Half", 19, "1.1")}
    assert list(cited("nowhere_to_be_found", root)) == []


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
        "page.py:7: equation (1.1) is also at page.py:5; give one another number",
    ]


def test_prose_refers_to_equations_that_there_are(clean: Path) -> None:
    said = "By equation (1.1) and equations (1.1),\n# (A.2) and (1.3), [(1.1)](#eq-1.1)."
    with (clean / "page.py").open("a") as page:
        page.write(f"#\n# {said}\n")
    assert faults(clean) == ["page.py:10: there is no equation (1.3); there are (1.1)"]
    assert faults(clean, whole=False) == []


def test_a_reference_needs_no_other_proof_and_a_figure_does() -> None:
    text = "By equations (1.1) and (A.2), [(1.1)](#eq-1.1) and [(1.1)](a.py#eq-1.1): (9), [(8.8)](b.py)"
    assert [text[start:end] for start, end in prose.read(text).bare("")] == ["9"]


@pytest.mark.parametrize(
    ("text", "bracketed", "bare"),
    [
        ("By (1.1), (A.2, 1.3) and (B1.2a).", ["(1.1)", "(A.2, 1.3)", "(B1.2a)"], []),
        ("The paper (section 3.2) and its section (3.2), § (3.3).", [], ["3.2", "(3.2)", "(3.3)"]),
        ("Table (3.2), in version (2.13) of torch (2.13).", [], ["(3.2)", "(2.13)", "(2.13)"]),
        ("(1) first, (2) second; 3.1) and `f(3.2)`, f(3.3), [a](3.4)", [], ["1", "2", "3.1", "`f(3.2)`", "3.3"]),
        ("A mean (3.1)<!--= x --> and (3.2)<!--~ measured --> and (3.3<!--= x -->).", [], []),
    ],
)
def test_a_number_in_brackets_alone_is_an_equations(text: str, bracketed: list[str], bare: list[str]) -> None:
    read = prose.read(text)
    assert [text[start:end] for start, end in read.bracketed] == bracketed
    assert [text[start:end] for start, end in read.bare("f(3.1)")] == bare


@pytest.mark.parametrize("whole", [True, False])
def test_a_number_in_brackets_that_no_equation_has_is_found(clean: Path, whole: bool) -> None:
    with (clean / "page.py").open("a") as page:
        page.write("#\n# As (1.1) and\n# (1.4) say.\n")
    assert faults(clean, whole=whole) == [
        "page.py:10: there is no equation (1.4); there are (1.1); or write (1.4)<!--= expression -->, "
        "(1.4)<!--~ reason -->, for a figure"
    ]


def test_one_page_is_held_to_the_equations_of_all_pages_that_the_settings_name(clean: Path) -> None:
    (clean / "docs").mkdir()
    (clean / "page.py").rename(clean / "docs/page.py")
    (clean / "docs/broken.md").write_bytes(b"\\tag{1.9} \xff")
    other = clean / "docs/other.md"
    other.write_text(
        "By equation (1.1); (A.2)\nand equation (1.7); see (1.8).\n\n$$s = 2 q \\tag{1.1}$$ <!-- where: -->\n"
    )

    def found(**settings: object) -> list[str]:
        report = check(
            [other],
            root=clean,
            settings=Settings(packages=("mathematics",), **settings),
            keep=False,  # type: ignore[arg-type]
        )
        return [str(finding).split(";")[0] for finding in report.findings if finding.kind == "equation"]

    assert found(pages=("docs",), cite_equations=True) == [
        "docs/other.md:2: there is no equation (1.7)",
        "docs/other.md:2: there is no equation (1.8)",
        "docs/other.md:4: equation (1.1) is also at docs/page.py:5",
    ]
    edit(clean / "mathematics/module.py", "(1.1)", "(1.6)")
    assert "mathematics/module.py:12: double cites equation (1.6), which no page has" in found(pages=("docs",))
    assert found() == ["docs/other.md:1: there is no equation (A.2)", "docs/other.md:2: there is no equation (1.8)"]


def test_a_reference_is_linked_to_the_equation_that_it_names(clean: Path) -> None:
    with (clean / "page.py").open("a") as page:
        page.write("#\n# [(1.1)](other.py#eq-1.2)\n")
    assert faults(clean) == ["page.py:9: (1.1) is linked to equation (1.2)"]


def test_docstrings_refer_to_equations_that_there_are(clean: Path) -> None:
    edit(clean / "mathematics/module.py", "Double it.", "Double it, the inverse of\n    equation (A.3).")
    assert faults(clean) == ["mathematics/module.py:9: double cites equation (A.3), which no page has"]


def test_a_section_without_a_number_cites_nothing(clean: Path) -> None:
    edit(clean / "mathematics/module.py", "q$ (1.1)", "q$")
    assert faults(clean) == [
        "mathematics/module.py:12: double names no equation; end the section with its number, as in (3.1)"
    ]


def test_an_equation_that_no_docstring_cites_is_found_where_each_must_be(clean: Path) -> None:
    assert faults(clean, every=True) == []
    edit(clean / "mathematics/module.py", "(1.1)", "(A.2)")
    edit(clean / "mathematics/module.py", "$s = 2\n        q$ ", "")
    assert faults(clean) == []
    assert faults(clean, every=True) == [
        "page.py:5: no docstring of mathematics cites equation (1.1); cite it, or drop its number"
    ]


def test_sources_that_are_not_python_are_named(clean: Path) -> None:
    (clean / "mathematics/other.py").write_text("# Equation (3.1)\nclass\n")
    assert faults(clean) == ["mathematics/other.py:2: its docstrings cannot be read: invalid syntax"]


def test_the_package_of_the_project_comes_before_an_installed_one(clean: Path) -> None:
    (clean / "src").mkdir()
    (clean / "mathematics").rename(clean / "src/json")
    assert {citation.path for citation in cited("json", clean)} == {clean / "src/json/module.py"}


@pytest.mark.parametrize(
    ("html", "linked"),
    [
        ("By equation (1.1), not (1.3).", "By equation ({1.1}), not (1.3)."),
        ("By (1.1), section (A.2)<b>(A.2)</b>", "By ({1.1}), section (A.2)<b>(A.2)</b>"),
        ('<span class="math-tag">(1.1)</span>', '<span class="math-tag">(1.1)</span>'),
        ("<h2>(1.1)</h2><code>(1.1)</code>", "<h2>(1.1)</h2><code>(1.1)</code>"),
        ("Equations (1.1) and (A.2)", "Equations ({1.1}) and ({A.2})"),
        ("<p><math>x</math>\n(1.1, A.2)</p>", "<p><math>x</math>\n({1.1}, {A.2})</p>"),
        ("<summary>Equation</summary><p>(1.1)</p>", "<summary>Equation</summary><p>({1.1})</p>"),
        ("<p>Equation: (1.1)</p>", "<p>Equation: ({1.1})</p>"),
        ("equation (7.7)", "equation (7.7)"),
        ("<code>equation (1.1)</code>", "<code>equation (1.1)</code>"),
        ('<a href="#">equation (1.1)</a>', '<a href="#">equation (1.1)</a>'),
    ],
)
def test_numbers_of_equations_in_html_become_links(html: str, linked: str) -> None:
    expected = re.sub(r"\{(.*?)\}", r'<a href="page/#eq-\1">\1</a>', linked)
    assert link(html, lambda number: f"page/#eq-{number}" if number in ("1.1", "A.2") else None, {"(1.1)"}) == expected
