import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from proofread.checks.findings import KINDS
from proofread.cli import main

PAGE = "# %%\nx = 3\nx\n\n# %% [markdown]\n# It is 3<!--= x -->, in 1999<!--~ a year -->.\n"


@pytest.fixture
def docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/page.py").write_text(PAGE)
    return tmp_path / "docs"


def plant(docs: Path, old: str, new: str) -> None:
    assert old in PAGE
    (docs / "page.py").write_text(PAGE.replace(old, new))


def test_findings_go_to_stdout_progress_to_stderr_and_the_exit_code_tells(
    docs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(docs, "is 3", "is 4")
    assert main(["check", "docs"]) == 1
    told = capsys.readouterr()
    assert told.out == "docs/page.py:6: it says 4, but x gives 3\n"
    assert told.err.startswith("docs/page.py: ran in ")
    assert told.err.splitlines()[0].endswith(" s, for it has not run before")

    plant(docs, "is 3", "is 3")
    assert main(["check", "docs", "--waivers"]) == 0
    told = capsys.readouterr()
    assert told.out == "docs/page.py:6: waived: a year\n"
    assert told.err == (
        "docs/page.py: unchanged\n"
        "1 page checked; 0 of them run now; cells: 1 ran; figures: 1 held, 1 waived; "
        "0 of 1 sentence with none of these; 0 findings\n"
    )


def test_an_editor_gets_all_of_it_as_one_object(docs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plant(docs, "is 3", "is 4")
    assert main(["check", "docs", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    seconds = told["pages"][0].pop("seconds")
    assert seconds > 0
    assert told == {
        "pages": [
            {
                "path": "docs/page.py",
                "mode": "check",
                "why": "it has not run before",
                "figures": 1,
                "formulas": 0,
                "waived": [{"line": 6, "reason": "a year"}],
            }
        ],
        "findings": [
            {
                "path": "docs/page.py",
                "line": 6,
                "kind": "figure",
                "message": "it says 4, but x gives 3",
                "detail": "",
                "subject": "6 figure 4 = x",
                "edit": {"start": [6, 8], "end": [6, 9], "old": "4", "new": "3"},
                "column": 8,
                "cell": 0,
            }
        ],
    }


def test_run_shows_each_cell_with_what_it_gives(docs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "docs"]) == 0
    assert capsys.readouterr().out == "── docs/page.py:2 cell 1\nx = 3\nx\n→ 3\n"
    assert main(["run", "docs", "--cell", "2"]) == 2
    assert "--cell (2) is no code cell; there are docs/page.py: 1\n" in capsys.readouterr().err
    plant(docs, "x = 3", "print('a\\nb')\n1 / 0")
    assert main(["run", "docs", "--cell", "1"]) == 1
    told = capsys.readouterr()
    assert "→ a\n  b\n→ ZeroDivisionError: division by zero\n" in told.out
    assert "docs/page.py:3: cell 1 failed with ZeroDivisionError" in told.err


def test_fix_says_what_it_changed_and_what_it_left(docs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plant(docs, "is 3<!--= x -->", "is 4<!--= x -->, yes<!--= x > 5 -->")
    wrong = (docs / "page.py").read_text()
    assert main(["fix", "docs", "--dry-run"]) == 1
    assert "-# It is 4<" in capsys.readouterr().out
    assert (docs / "page.py").read_text() == wrong
    assert main(["fix", "docs"]) == 1
    told = capsys.readouterr()
    assert told.out == "docs/page.py:6: 4 -> 3\n"
    assert "docs/page.py:6: it says yes, but x > 5 gives False" in told.err
    assert (docs / "page.py").read_text() == wrong.replace("is 4", "is 3")
    plant(docs, "is 3", "is 4")
    assert main(["fix", "docs"]) == 0
    assert (docs / "page.py").read_text() == PAGE


def test_a_project_is_the_same_from_its_folders(
    docs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(docs, "is 3", "is 4")
    Path("pyproject.toml").write_text('[tool.proofread]\ncache = "kept"\n')
    monkeypatch.chdir(docs)
    assert main(["check", "page.py"]) == 1
    assert capsys.readouterr().out == "docs/page.py:6: it says 4, but x gives 3\n"
    assert main(["fix", "."]) == 0
    assert capsys.readouterr().out == "docs/page.py:6: 4 -> 3\n"
    assert main(["cache", "show"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith(f"in {docs.parent / 'kept'}")


def test_who_closes_the_pipe_or_knows_few_letters_sees_no_traceback(docs: Path) -> None:
    plant(docs, "x = 3", "x = 3; print('é' * 99999)")
    command, narrow = [sys.executable, "-m", "proofread", "run", "docs"], os.environ | {"PYTHONIOENCODING": "ascii"}
    with subprocess.Popen(command, env=narrow, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as shown:
        assert shown.stdout is not None
        assert shown.stderr is not None
        begun = shown.stdout.read(25)
        shown.stdout.close()
        told = shown.stderr.read()
    assert begun == b"\\u2500\\u2500 docs/page.py"
    assert (shown.returncode, b"Traceback" in told, b"BrokenPipe" in told) == (1, False, False)


def test_the_program_of_a_cell_is_printed_and_runs(docs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["snippet", "docs/page.py:3"]) == 0
    program = capsys.readouterr().out
    assert program.startswith("# docs/page.py, cell 1\n")
    told = subprocess.run([sys.executable, "-I", "-c", program], text=True, capture_output=True, check=True)
    assert told.stdout == "3\n"
    for place, message in (("docs/page.py", "is no place"), ("docs/page.py:6", "is in no cell of code")):
        assert main(["snippet", place]) == 2
        assert f"{place} {message}" in capsys.readouterr().err


def test_export_writes_plain_markdown(docs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "docs", "--output", "plain"]) == 0
    assert "It is 3, in 1999." in Path("plain/page.md").read_text()
    assert main(["export", "docs", "--output", "docs/plain"]) == 2
    assert "must not lie in docs" in capsys.readouterr().err
    assert main(["export", "nowhere", "--output", "plain"]) == 2
    assert "nowhere does not exist; name the site's mkdocs.yml, or a folder that holds pages" in capsys.readouterr().err


def test_the_cache_is_shown_and_pruned(docs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["check", "docs"])
    (docs / "data.txt").write_text("1")
    plant(docs, "x = 3", "x = 3; open('docs/data.txt').read()")
    main(["check", "docs"])
    (docs / "data.txt").write_text("2")
    capsys.readouterr()
    assert main(["cache", "show"]) == 0
    newest, oldest, total = capsys.readouterr().out.splitlines()
    assert newest.endswith("docs/page.py  stale: docs/data.txt changed")
    assert oldest.endswith("docs/page.py  current")
    assert total.startswith("2 runs, ")
    assert main(["cache", "prune"]) == 0
    assert capsys.readouterr().out.startswith("removed 1 of 2 runs")
    assert main(["cache", "prune", "--all"]) == 0
    assert capsys.readouterr().out.startswith("removed 1 of 1 runs")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "nowhere"], "nowhere does not exist; name pages, or folders that hold some"),
        (["check", "empty"], "no pages in empty: neither .md nor .ipynb, nor .py with # %% cells"),
        (["check", "docs", "--timeout", "soon"], "--timeout (soon) must be a positive number of seconds, such as 300"),
        (["run", "docs", "--memory", "4"], "--memory (4) must be a size with its unit"),
        (["fix", "docs", "--workers", "0"], "--workers (0) must be a whole number of at least 1"),
    ],
)
def test_wrong_usage_says_what_is_missing(
    docs: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    Path("empty").mkdir()
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_without_paths_the_pages_of_the_settings_are_meant(docs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("pyproject.toml").write_text('[tool.proofread]\npages = ["docs", "README.md"]\n')
    assert main(["check"]) == 2
    assert "[tool.proofread] pages names README.md, which does not exist" in capsys.readouterr().err
    Path("README.md").write_text("All 7 of them.\n")
    main(["check", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert {"README.md", "docs/page.py"} <= {page["path"] for page in told["pages"]}
    assert ("README.md", 1) in [(finding["path"], finding["line"]) for finding in told["findings"]]


def test_a_folder_where_the_cache_should_be_is_no_traceback(docs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path(".cache").write_text("a file")
    assert main(["check", "docs"]) == 3
    assert "runs cannot be kept in " in capsys.readouterr().err


def test_help_teaches_the_syntax_the_exit_codes_and_the_kinds(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    told = capsys.readouterr().out
    written = "<!--= ", "<!--~ ", "<!-- where:", "{{ ", "```claims", "assert ", "#| alt:", "#| timeout:", "#| raises:"
    assert all(syntax in told for syntax in written)
    assert "130  stopped" in told
    with pytest.raises(SystemExit, match="0"):
        main(["check", "--help"])
    assert all(f"  {kind} " in (told := capsys.readouterr().out or told) for kind in KINDS)


def test_of_many_findings_on_a_line_the_first_are_shown_and_the_others_counted(
    docs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (docs / "page.py").write_text(f"# %% [markdown]\n# {' '.join(map(str, range(100, 3100)))}\n# and 7.\n")
    assert main(["check", "docs"]) == 1
    told = capsys.readouterr()
    lines = told.out.splitlines()
    assert [line.partition(": ")[0] for line in lines] == ["docs/page.py:2"] * 4 + ["docs/page.py:3"]
    assert lines[3] == "docs/page.py:2: and 2997 more of the kind bare"
    assert told.err.endswith("; 3001 findings\n")
    assert main(["check", "docs", "--json"]) == 1
    assert len(json.loads(capsys.readouterr().out)["findings"]) == 3001
