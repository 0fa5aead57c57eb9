"""Downloads run as they are, where nothing is but the packages that the page takes."""

import subprocess
import sys
from pathlib import Path

import nbclient
import nbformat
import pytest

from proofread.checks.checked import Checked, unrun
from proofread.pages.page import read
from proofread.publish.installing import Installing
from proofread.publish.notebook import as_notebook, as_script, for_jupyter, notebook, relink

from .conftest import Project

PAGE = r'''
# %% [markdown]
# # Page of {{ rows }}
#
# To [another](other.py#part) with 3<!--= rows --> rows and $a_i$.

# %%
rows = 3
print("shown")
rows

# %%
#| alt: a line of 3<!--= rows -->
import matplotlib.pyplot as plt

plt.plot([1, 2, 3]);

# %%
#| raises: ValueError: kept as it
text = """
kept as it is
"""
raise ValueError(text.strip())

# %% tags=["remove-cell"]
hidden = 4

# %% tags=["hide-input"]
print("last")

# %% tags=["solution"]
hidden
'''


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Checked:
    project = Project(tmp_path_factory.mktemp("project"))
    project.write("other.py", "# %% [markdown]\n# # Another\n#\n# ## Another part {#part}\n")
    report = project.proofread(PAGE)
    assert report.findings == []
    return report.pages[0]


def absolute(target: str) -> str:
    return f"https://example.org/{target}"


@pytest.mark.filterwarnings("default")  # the kernel's own
def test_the_notebook_runs_as_it_is_and_gives_what_it_shows(checked: Checked, tmp_path: Path) -> None:
    text = as_notebook(checked, absolute, Installing(["proofread"], "git+https://example.org/project"))
    shown = nbformat.reads(text, as_version=4)
    nbformat.validate(shown)
    ran = nbclient.execute(nbformat.reads(text, as_version=4), cwd=str(tmp_path), kernel_name="python3")
    for before, after in zip(shown.cells, ran.cells, strict=True):
        for one, other in zip(before.get("outputs", []), after.get("outputs", []), strict=True):
            assert one["output_type"] == other["output_type"]
            for part in ("text", "ename", "evalue"):
                assert one.get(part) == other.get(part)
            assert one.get("data", {}).get("text/plain") == other.get("data", {}).get("text/plain")


def test_the_script_runs_as_it_is_and_tells_the_exceptions_of_the_page(checked: Checked, tmp_path: Path) -> None:
    (tmp_path / "page.py").write_text(as_script(checked, absolute))
    command = [sys.executable, "-W", "ignore", "page.py"]  # a backend that shows no figures says so
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ran.stderr == ""
    assert ran.stdout == "shown\n3\nValueError: kept as it is\nlast\n4\n"


def test_a_cell_that_is_no_python_is_a_comment_of_the_script(project: Project) -> None:
    page = project.write("page.py", "# %%\n#| raises: SyntaxError\nfor = 1\n\n# %%\nx = 1\n")
    script = as_script(unrun(read(page, project.root)))
    assert "# for = 1\n# SyntaxError: invalid syntax\n" in script
    compile(script, "page.py", "exec")


def test_the_script_is_the_page_without_what_proofread_reads(checked: Checked) -> None:
    script = as_script(checked, absolute)
    assert script.startswith("# %% [markdown]\n# # Page of 3\n")
    assert "# To [another](https://example.org/other.py#part) with 3 rows and $a_i$.\n" in script
    assert '# %% tags=["solution"]\nprint(hidden)' in script
    assert "plt.plot([1, 2, 3])\nplt.show()\n" in script or "plt.plot([1, 2, 3]);\nplt.show()\n" in script
    assert "<!--" not in script
    assert "#| alt" not in script


def test_the_notebook_has_figures_filled_in_formulas_as_tex_and_links_that_lead_somewhere(checked: Checked) -> None:
    made = nbformat.reads(as_notebook(checked, absolute), as_version=4)
    assert made.cells[0].source.startswith("# Page of 3\n")
    assert made.cells[0].source.endswith("To [another](https://example.org/other.py#part) with 3 rows and $a_i$.")
    assert "#|" not in made.cells[2].source
    assert "#|" not in made.cells[3].source
    assert made.cells[3].metadata["tags"] == ["raises-exception"]
    assert [cell.id for cell in made.cells] == [f"cell-{place}" for place in range(1, 8)]


def test_what_the_page_hides_the_notebook_folds(checked: Checked) -> None:
    cells = notebook(checked).cells
    assert cells[5].metadata.jupyter == {"source_hidden": True}
    assert cells[6].metadata.jupyter == {"source_hidden": True, "outputs_hidden": True}
    assert "jupyter" not in cells[1].metadata


def test_the_notebook_installs_the_packages_only_where_they_are_missing_and_it_is_known_from_where(
    checked: Checked,
) -> None:
    known = Installing(["a", "b"], '"ab[plot] @ https://x.org/ab.whl"')
    made = nbformat.reads(as_notebook(checked, installing=known), as_version=4)
    assert made.cells[1].source == (
        "import importlib.util\n\n"
        'if importlib.util.find_spec("a") is None or importlib.util.find_spec("b") is None:\n'
        '    %pip install --quiet "ab[plot] @ https://x.org/ab.whl"'
    )
    for unknown in (Installing(["a"]), Installing(arguments="git+https://x.org/y"), Installing()):
        assert "find_spec" not in as_notebook(checked, installing=unknown)


@pytest.mark.parametrize("name", ["nowhere_at_all", "json"])
def test_a_notebook_whose_packages_a_clone_alone_can_install_says_so_where_they_are_missing(name: str) -> None:
    cell = Installing([name], '-e ".[plot]"').cell()
    if name == "json":
        exec(cell)
    else:
        told = f'^install {name}: in a clone of the sources, pip install -e "\\.\\[plot\\]"$'
        with pytest.raises(ModuleNotFoundError, match=told):
            exec(cell)


@pytest.mark.parametrize(
    ("code", "headed"),
    [
        ("import ab", True),
        ("from ab.c import d", True),
        ("def f():\n    import ab", True),
        ("import abc", False),
        ("from torch import ab", False),
        ("x = 'import'  # ab", False),
    ],
)
def test_a_program_says_how_to_install_the_packages_if_it_imports_them(code: str, headed: bool) -> None:
    program = f"# page.py, cell 1\n{code}\n"
    said = Installing(["ab", "c"], '"ab @ https://x.org/ab.whl"').headed(program)
    told = '# pip install "ab @ https://x.org/ab.whl"\n' * headed
    assert said == f"# page.py, cell 1\n{told}{code}\n"
    assert Installing(["ab", "c"]).headed(program) == program


@pytest.mark.parametrize(
    ("markdown", "expected"),
    [
        ('!!! note "*So*"\n\n    Inside.\n\n    More.\n\nAfter.', "> ***So***\n>\n> Inside.\n>\n> More.\n\nAfter."),
        ("??? tip\n    Inside.", "> **Tip**\n>\n> Inside.\n"),
        ('!!! note ""\n\n    Bare.', "> Bare.\n"),
        ('!!! note "Out"\n\n    !!! tip "In"\n\n        Deep.', "> **Out**\n>\n> > **In**\n> >\n> > Deep.\n"),
        ('=== "One"\n\n    First.\n\n=== "Two"\n\n    Second.', "**One**\n\nFirst.\n\n**Two**\n\nSecond.\n"),
        ('```\n!!! note "x"\n\n    y\n```', '```\n!!! note "x"\n\n    y\n```'),
        ("```\ny\n````\n\n??? tip\n    z", "```\ny\n````\n\n> **Tip**\n>\n> z\n"),
        ("````\n```\n??? tip\n````", "````\n```\n??? tip\n````"),
        ("# Title { #id .big }", "# Title"),
        ("[a](b.md){ .button } and `{ .kept }`", "[a](b.md) and `{ .kept }`"),
        ("$\\hspace{.5em} x_{.y}$", "$\\hspace{.5em} x_{.y}$"),
    ],
)
def test_jupyter_reads_what_the_site_is_written_in(markdown: str, expected: str) -> None:
    assert for_jupyter(markdown) == expected


@pytest.mark.parametrize(
    ("markdown", "expected"),
    [
        ("[a](b.md#c) ![i](i.png)", "[a](B.MD#C) ![i](I.PNG)"),
        ('[a](b.md "t")', '[a](B.MD "t")'),
        ("[a][r]\n\n[r]: b.md", "[a][r]\n\n[r]: B.MD"),
        ("note[^1]\n\n[^1]: text.md", "note[^1]\n\n[^1]: text.md"),
        ("`[a](b)` ``[`](c)``", "`[a](b)` ``[`](c)``"),
        ("~~~\n[a](b)\n~~~\n[c](d)", "~~~\n[a](b)\n~~~\n[c](D)"),
    ],
)
def test_links_change_and_nothing_else(markdown: str, expected: str) -> None:
    assert relink(markdown, str.upper) == expected
