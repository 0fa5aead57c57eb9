"""Notebooks are pages: their cells run, their prose is held, and what is wrong is told by cell and line."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

from proofread.publish.export import export

from .conftest import Command, Project, Proofreader

Cell = dict[str, Any]


def code(source: str, *tags: str, **more: Any) -> Cell:
    stored = {"output_type": "stream", "name": "stdout", "text": ["stored once\n"]}
    lines = source.splitlines(keepends=True)
    metadata = {"tags": [*tags]} if tags else {}
    return {
        "cell_type": "code",
        "metadata": metadata,
        "source": lines,
        "outputs": [stored],
        "execution_count": 9,
    } | more


def prose(source: str, kind: str = "markdown", **more: Any) -> Cell:
    return {"cell_type": kind, "metadata": {}, "source": source} | more


def notebook(*cells: Cell, **metadata: Any) -> str:
    return json.dumps({"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 4}, indent=1)


BOOK = (
    prose("---\ntitle: A book\n---", "raw"),
    prose("# Rows\n\nThere are 3<!--= rows --> rows."),
    code("\n\nrows = 3\nprint(rows)\n"),
    prose("a raw cell is for others: 99", "raw"),
    prose("Of them\n2<!--= rows - 1 --> are left."),
    code("def left():\n    return rows - 1\n\n\nleft()"),
)


def test_it_runs_and_its_own_outputs_are_shown_not_those_that_it_stores(proofread: Proofreader) -> None:
    report = proofread(notebook(*BOOK), "book.ipynb")
    assert report.findings == []
    (checked,) = report.pages
    assert [checked.outputs(place) for place in (2, 4)] == [
        [{"output_type": "stream", "name": "stdout", "text": "3\n"}],
        [{"output_type": "execute_result", "execution_count": None, "data": {"text/plain": "2"}, "metadata": {}}],
    ]
    assert checked.of_cell(1) == ["# Rows\n\nThere are 3 rows."]
    assert checked.snippets[4].shows == "2\n"
    assert "figures: 2 held" in str(report)


def test_what_is_wrong_is_told_by_cell_and_line(proofread: Proofreader) -> None:
    said = prose("# Rows\n\nThere are 4<!--= rows --> rows, and 5 more.")
    fails = code("\nrows = 3\n\ndef fails():\n    return rows / 0\n\nfails()")
    report = proofread(notebook(said, fails), "book.ipynb")
    (failed,) = (finding for finding in report.findings if finding.kind == "cell")
    (bare,) = (finding for finding in report.findings if finding.kind == "bare")
    assert str(failed).splitlines()[0] == (
        "book.ipynb:cell 2:5: cell 2 failed with ZeroDivisionError: division by zero"
    )
    assert 'File "book.ipynb", cell 2, line 7, in <module>\n    fails()' in failed.detail
    assert 'File "book.ipynb", cell 2, line 5, in fails\n    return rows / 0' in failed.detail
    assert str(bare).startswith("book.ipynb:cell 1:3: nothing proves the figure 5")


def test_findings_stand_in_the_order_of_the_cells(proofread: Proofreader) -> None:
    report = proofread(notebook(prose("# Two\n\n\n\nThere are 7 of them."), prose("And 8.")), "book.ipynb")
    assert [(finding.cell, finding.line) for finding in report.findings] == [(1, 5), (2, 1)]


def test_a_cell_quotes_its_own_source_and_takes_tags_and_options(proofread: Proofreader) -> None:
    cells = (
        code("x = 1"),
        code("import inspect\n\ndef f():\n    return 7\n\nprint(inspect.getsource(f))", "no-snippet"),
        code("#| raises: ValueError: no\nraise ValueError('no')"),
        code("%%time\nx = 2", "no-snippet", "hide-output"),
    )
    report = proofread(notebook(*cells), "book.ipynb")
    assert report.findings == []
    assert report.pages[0].outputs(1)[0]["text"] == "def f():\n    return 7\n\n"


def test_the_command_shows_its_cells_and_their_programs(
    project: Project, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project.root)
    book = notebook(*BOOK, prose("It is 5<!--~ chosen -->, not 4<!--= rows -->."))
    project.write("book.ipynb", book)
    code, out, _ = command("check", "book.ipynb", "--waivers", "--json")
    (finding,) = json.loads(out)["findings"]
    assert (finding["path"], finding["cell"], finding["line"], finding["edit"]) == ("book.ipynb", 6, 1, None)
    assert code == 1
    assert "book.ipynb:cell 6:1: waived: chosen\n" in command("check", "book.ipynb", "--waivers")[1]
    shown = command("run", "book.ipynb", "--cell", "5")[1]
    assert shown.startswith("── book.ipynb:cell 5:1 cell 5\ndef left():")
    assert command("snippet", "book.ipynb:5")[1].endswith("print(left())\n")
    assert command("snippet", "book.ipynb:9")[0] == 2
    assert command("fix", "book.ipynb")[0] == 1
    assert project.read("book.ipynb") == book


def test_it_can_say_how_it_is_treated(proofread: Proofreader) -> None:
    for kind in ("raw", "markdown"):
        front = prose("---\nproofread: run\n---\n# Rows", kind)
        report = proofread(notebook(front, code("1 + 1"), prose("It is 12.")), "book.ipynb")
        assert (report.findings, report.pages[0].mode) == ([], "run")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it is no notebook of version 4 (JSONDecodeError("),
        ("[]", "it is no notebook of version 4 (TypeError("),
        (
            '{"worksheets": [], "metadata": {}}',
            "it is no notebook of version 4 (KeyError('cells')); open it in Jupyter",
        ),
        ('{"cells": [{"cell_type": "code"}], "metadata": {}}', "it is no notebook of version 4 (KeyError('source'))"),
        (notebook(prose("\ud800")), "it is no notebook of version 4 (UnicodeEncodeError("),
        (notebook(language_info={"name": "R"}), "it is written in R, and Python alone is run; set it to off under"),
        (notebook(kernelspec={"name": "ir", "language": "R"}), "it is written in R, and Python alone is run"),
    ],
)
def test_what_is_no_notebook_of_python_is_told(proofread: Proofreader, text: str, message: str) -> None:
    (finding,) = proofread(text, "book.ipynb").findings
    assert str(finding).startswith(f"book.ipynb:1: {message}")


def test_line_ends_marks_and_languages_are_those_of_other_tools(proofread: Proofreader) -> None:
    text = notebook(prose("# Rows\r\n\r\nIt is 3<!--= x -->."), code("x = 3\r\nprint(x)"), kernelspec={"name": "mine"})
    report = proofread("\ufeff" + text.replace("\n", "\r\n"), "book.ipynb")
    assert report.findings == []
    assert report.pages[0].outputs(1)[0]["text"] == "3\n"


def test_an_empty_one_is_a_page_too(proofread: Proofreader) -> None:
    for cells in ((), (code(""), prose(""))):
        assert proofread(notebook(*cells), "book.ipynb").findings == []


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    project = Project(root := tmp_path_factory.mktemp("site"))
    picture = {"dot.png": {"image/png": "iVBORw0KGgo="}}
    linking = prose("![dot](attachment:dot.png), $a_i$, [the former](former.ipynb)", attachments=picture)
    project.write("docs/book.ipynb", notebook(*BOOK, linking, code("")))
    project.write("docs/former.ipynb", notebook(prose("# Former"), code("1 / 0")))
    project.write("docs/empty.ipynb", notebook())
    project.write("pyproject.toml", '[tool.proofread.modes]\n"docs/former.ipynb" = "off"\n')
    settings = """
        site_name: Site
        strict: true
        nav: [{A book: book.ipynb}, {Former: former.ipynb}, {Empty: empty.ipynb}]
        theme: readthedocs
        plugins: [proofread, {mkdocs-jupyter: {execute: false, cache: false}}]
    """
    project.write("mkdocs.yml", settings)
    build(load_config(str(root / "mkdocs.yml")))
    return root / "site"


def test_a_site_shows_what_its_run_gave(site: Path) -> None:
    html = (site / "book/index.html").read_text()
    assert "stored once" not in html
    assert "There are 3 rows." in re.sub("</?p-f>", "", html)
    assert "<title>A book" in html
    assert "99" not in html
    assert 'src="data:image/png;base64,iVBORw0KGgo="' in html
    assert "<msub>" in html
    assert html.count('class="jp-Cell"') == 2
    assert (site / "book/book.ipynb").exists()
    assert "stored once" not in (site / "book/book.ipynb").read_text()


def test_a_site_shows_one_that_is_off_as_it_is(site: Path) -> None:
    assert "stored once" in (site / "former/index.html").read_text()
    assert (site / "empty/index.html").exists()


def test_an_export_has_it_as_markdown(site: Path) -> None:
    root = site.parent
    assert export(root / "docs", root / "plain", root=root).findings == []
    text = (root / "plain/book.md").read_text()
    assert "```text\n3\n```" in text
    assert "[the former](former.ipynb)" in text
    assert (root / "plain/former.ipynb").exists()
