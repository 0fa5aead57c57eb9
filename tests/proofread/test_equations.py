import re

import pytest

from proofread.checks import equations
from proofread.checks.checked import unrun
from proofread.pages import prose
from proofread.pages.equations import cited
from proofread.pages.page import read
from proofread.publish.equations import link
from proofread.settings import Settings

from .conftest import Project

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
def project(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    project.write("mathematics/__init__.py", "raise ImportError('it is never imported')")
    project.write("mathematics/module.py", MODULE)
    project.write("page.py", PAGE)
    monkeypatch.syspath_prepend(str(project.root))
    return project


@pytest.fixture
def clean(project: Project) -> Project:
    project.edit("mathematics/module.py", ", 1.1)", ")")
    assert faults(project) == []
    return project


def faults(project: Project, whole: bool = True, every: bool = False, docstrings: str = "check") -> list[str]:
    pages = [unrun(read(path, project.root)) for path in sorted(project.root.glob("*.py"))]
    settings = Settings(packages=("mathematics",), cite_equations=every, docstrings=docstrings)
    return [str(finding) for finding in sorted(equations.faults(pages, [], project.root, settings, whole=whole))]


def test_docstrings_are_read_and_nothing_is_imported(project: Project) -> None:
    found = {(citation.name, citation.line, citation.number) for citation in cited("mathematics", project.root)}
    assert found == {("module", 3, "A.2"), ("double", 11, "1.1"), ("Half", 18, "A.2"), ("Half", 18, "1.1")}
    assert list(cited("nowhere_to_be_found", project.root)) == []


def test_an_equation_is_stated_alike_wherever_its_number_stands(project: Project) -> None:
    assert faults(project) == [
        r"mathematics/module.py:18: Half states equation (1.1) otherwise than page.py:5, $s = 2 q$",
    ]
    project.edit("mathematics/module.py", ", 1.1)", ")")
    assert faults(project) == []


def test_a_citation_of_no_equation_is_found_where_all_pages_are_known(project: Project) -> None:
    project.edit("mathematics/module.py", ", 1.1)", ", 1.7)")
    assert faults(project) == ["mathematics/module.py:18: Half cites equation (1.7), which no page has"]
    assert faults(project, whole=False) == []


def test_two_equations_have_two_numbers(project: Project) -> None:
    project.edit("mathematics/module.py", ", 1.1)", ")")
    project.edit("page.py", r"\tag{A.2}", r"\tag{1.1}")
    assert faults(project) == [
        "mathematics/module.py:3: module cites equation (A.2), which no page has",
        "mathematics/module.py:18: Half cites equation (A.2), which no page has",
        "page.py:7: equation (1.1) is also at page.py:5; give one another number",
    ]


def test_prose_refers_to_equations_that_there_are(clean: Project) -> None:
    said = "By equation (1.1) and equations (1.1),\n# (A.2) and (1.3), [(1.1)](#eq-1.1)."
    clean.write("page.py", clean.read("page.py") + f"#\n# {said}\n")
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
def test_a_number_in_brackets_that_no_equation_has_is_found(clean: Project, whole: bool) -> None:
    clean.write("page.py", clean.read("page.py") + "#\n# As (1.1) and\n# (1.4) say.\n")
    assert faults(clean, whole=whole) == [
        "page.py:10: there is no equation (1.4); there are (1.1); or write (1.4)<!--= expression -->, "
        "(1.4)<!--~ reason -->, for a value"
    ]


def test_one_page_is_held_to_the_equations_of_all_pages_that_the_settings_name(clean: Project) -> None:
    clean.write("docs/page.py", clean.read("page.py"))
    (clean.root / "docs/broken.md").write_bytes(b"\\tag{1.9} \xff")
    other = "By equation (1.1); (A.2)\nand equation (1.7); see (1.8).\n\n$$s = 2 q \\tag{1.1}$$ <!-- where: -->\n"

    def found(**settings: object) -> list[str]:
        held = Settings(packages=("mathematics",), **settings)  # type: ignore[arg-type]
        report = clean.proofread(other, "docs/other.md", settings=held)
        return [str(finding).split(";")[0] for finding in report.findings if finding.kind == "equation"]

    assert found(pages=("docs",), cite_equations=True) == [
        "docs/other.md:2: there is no equation (1.7)",
        "docs/other.md:2: there is no equation (1.8)",
        "docs/other.md:4: equation (1.1) is also at docs/page.py:5",
    ]
    clean.edit("mathematics/module.py", "(1.1)", "(1.6)")
    assert "mathematics/module.py:11: double cites equation (1.6), which no page has" in found(pages=("docs",))
    assert found() == ["docs/other.md:1: there is no equation (A.2)", "docs/other.md:2: there is no equation (1.8)"]


def test_a_reference_is_linked_to_the_equation_that_it_names(clean: Project) -> None:
    clean.write("page.py", clean.read("page.py") + "#\n# [(1.1)](other.py#eq-1.2)\n")
    assert faults(clean) == ["page.py:9: (1.1) is linked to equation (1.2)"]


def test_docstrings_refer_to_equations_that_there_are(clean: Project) -> None:
    clean.edit("mathematics/module.py", "Double it.", "Double it, the inverse of\n    equation (A.3).")
    assert faults(clean) == ["mathematics/module.py:8: double cites equation (A.3), which no page has"]


def test_a_section_without_a_number_cites_nothing(clean: Project) -> None:
    clean.edit("mathematics/module.py", "q$ (1.1)", "q$")
    assert faults(clean) == [
        "mathematics/module.py:11: double names no equation; end the section with its number, as in (3.1)"
    ]


def test_an_equation_that_no_docstring_cites_is_found_where_each_must_be(clean: Project) -> None:
    assert faults(clean, every=True) == []
    clean.edit("mathematics/module.py", "(1.1)", "(A.2)")
    clean.edit("mathematics/module.py", "$s = 2\n        q$ ", "")
    assert faults(clean) == []
    assert faults(clean, every=True) == [
        "page.py:5: no docstring of mathematics cites equation (1.1); cite it, or drop its number"
    ]


def test_sources_that_are_not_python_are_named(clean: Project) -> None:
    clean.write("mathematics/other.py", "# Equation (3.1)\nclass\n")
    told = "mathematics/other.py:2: its docstrings cannot be read: invalid syntax"
    assert faults(clean, docstrings="equations") == [told]
    assert faults(clean, every=True) == []  # it is told with what docstrings say, and the other sources are read


def test_the_package_of_the_project_comes_before_an_installed_one(clean: Project) -> None:
    module = clean.write("src/json/module.py", MODULE)
    assert {citation.path for citation in cited("json", clean.root)} == {module}


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
