import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from proofread.checks.findings import KINDS
from proofread.cli import main

from .conftest import Command

PAGE = "# %%\nx = 3\nx\n\n# %% [markdown]\n# It is 3<!--= x -->. That was 1999<!--~ a year -->.\n"


@pytest.fixture
def docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/page.py").write_text(PAGE)
    return tmp_path / "docs"


def plant(docs: Path, old: str, new: str) -> None:
    assert old in PAGE
    (docs / "page.py").write_text(PAGE.replace(old, new))


def test_findings_go_to_stdout_progress_to_stderr_and_the_exit_code_tells(docs: Path, command: Command) -> None:
    plant(docs, "is 3", "is 4")
    code, out, err = command("check", "docs")
    assert (code, out) == (1, "docs/page.py:6: it says 4, but x gives 3\n")
    assert err.startswith("docs/page.py: ran in ")
    assert err.splitlines()[0].endswith(" s, for it has not run before")

    plant(docs, "is 3", "is 3")
    assert command("check", "docs", "--waivers") == (
        0,
        "docs/page.py:6: waived: a year\n",
        "docs/page.py: unchanged\n"
        "1 page checked; 0 of them run now; cells: 1 ran; values: 1 held, 1 waived; "
        "1 of 2 sentences with none of these; 0 findings\n",
    )


@pytest.mark.parametrize("removed", ["page.py", "other.md"])
def test_a_page_that_is_removed_meanwhile_is_a_finding(docs: Path, command: Command, removed: str) -> None:
    (docs / "other.md").write_text("# Other\n")
    (docs / "page.py").write_text(f"# %%\nimport os\n\nos.remove('docs/{removed}')\n")
    code, out, _ = command("check", "docs", "--no-cache")
    assert code == 1
    assert f"docs/{removed}:1: the page was removed while this ran; name pages that stay, or put it back" in out


def test_an_editor_gets_all_of_it_as_one_object(docs: Path, command: Command) -> None:
    plant(docs, "is 3", "is 4")
    code, out, _ = command("check", "docs", "--json")
    told = json.loads(out)
    assert told["pages"][0].pop("seconds") > 0
    page = {"path": "docs/page.py", "mode": "check", "why": "it has not run before", "figures": 1, "formulas": 0}
    place = {"path": "docs/page.py", "line": 6, "column": 8}
    unproved = [
        {"line": 6, "where": "prose", "words": words, "compares": False} for words in ("It is 4.", "That was 1999.")
    ]
    said = {"kind": "value", "message": "it says 4, but x gives 3", "detail": "", "subject": "6 value 4 = x"}
    edit = {"start": [6, 8], "end": [6, 9], "old": "4", "new": "3"}
    assert (code, told) == (
        1,
        {
            "pages": [page | {"waived": [{"line": 6, "reason": "a year"}], "unproved": unproved}],
            "findings": [place | said | {"edit": edit}],
        },
    )


def test_run_shows_each_cell_with_what_it_gives(docs: Path, command: Command) -> None:
    assert command("run", "docs")[:2] == (0, "── docs/page.py:2 cell 1\nx = 3\nx\n→ 3\n")
    code, _, err = command("run", "docs", "--cell", "2")
    assert code == 2
    assert "--cell (2) is no code cell; there are docs/page.py: 1\n" in err
    plant(docs, "x = 3", "print('a\\nb')\n1 / 0")
    code, out, err = command("run", "docs", "--cell", "1")
    assert code == 1
    assert "→ a\n  b\n→ ZeroDivisionError: division by zero\n" in out
    assert "docs/page.py:3: cell 1 failed with ZeroDivisionError" in err


def test_fix_says_what_it_changed_and_what_it_left(docs: Path, command: Command) -> None:
    plant(docs, "is 3<!--= x -->", "is 4<!--= x -->, yes<!--= x > 5 -->")
    wrong = (docs / "page.py").read_text()
    code, out, _ = command("fix", "docs", "--dry-run")
    assert code == 1
    assert "-# It is 4<" in out
    assert (docs / "page.py").read_text() == wrong
    code, out, err = command("fix", "docs")
    assert (code, out) == (1, "docs/page.py:6: 4 -> 3\n")
    assert "docs/page.py:6: it says yes, but x > 5 gives False" in err
    assert (docs / "page.py").read_text() == wrong.replace("is 4", "is 3")
    plant(docs, "is 3", "is 4")
    assert command("fix", "docs")[0] == 0
    assert (docs / "page.py").read_text() == PAGE


def test_a_project_is_the_same_from_its_folders(docs: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(docs, "is 3", "is 4")
    Path("pyproject.toml").write_text('[tool.proofread]\ncache = "kept"\n')
    monkeypatch.chdir(docs)
    assert command("check", "page.py")[:2] == (1, "docs/page.py:6: it says 4, but x gives 3\n")
    assert command("fix", ".")[:2] == (0, "docs/page.py:6: 4 -> 3\n")
    code, out, _ = command("cache", "show")
    assert code == 0
    assert out.splitlines()[-1].endswith(f"in {docs.parent / 'kept'}")


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
    assert (shown.returncode, b"Traceback" in told, b"BrokenPipe" in told) == (0, False, False)


FULL, CLOSED = "No space left on device", "it is closed"
STREAMS = {
    "full": (">/dev/full", FULL),
    "closed": (">&-", CLOSED),
    "with a reader who leaves": ("| true", ""),
    "with progress on a full one": ("2>/dev/full", ""),
    "with progress on a closed one": ("2>&- <&-", ""),
}
# What exits how. On a full disk all are tried; on the other streams one that has progress, and what the parser answers.
COMMANDS = {
    "check docs/wrong.py": 1,
    "check --json docs/page.py": 0,
    "run docs/page.py": 0,
    "fix --diff docs/wrong.py": 1,
    "snippet docs/page.py:2": 0,
    "cache show": 0,
    "--help": 0,
}


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such files")
@pytest.mark.parametrize("stream", STREAMS)
def test_a_stream_that_fails_is_told_in_one_line_and_changes_no_other_exit_code(docs: Path, stream: str) -> None:
    where, why = STREAMS[stream]
    (docs / "wrong.py").write_text(PAGE.replace("is 3", "is 4"))
    for command in COMMANDS if stream == "full" else ("check docs/wrong.py", "--help"):
        shell = f"set -o pipefail; {sys.executable} -m proofread {command} {where}"
        ran = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False)
        assert ran.returncode == (3 if why else COMMANDS[command]), (command, ran.stderr)
        lines = [line for line in ran.stderr.splitlines() if line.startswith("proofread: ")]
        told = f"proofread: the answer cannot be written to standard output: {why}; write it to a file that has room"
        assert lines == ([told] if why else []), ran.stderr
        assert "Traceback" not in ran.stderr
        assert "Exception ignored" not in ran.stderr
    ran = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m proofread check docs/page.py {where}"], capture_output=True, check=False
    )
    assert ran.returncode == 0  # who finds nothing has no answer to write


def test_the_program_of_a_cell_is_printed_and_runs(docs: Path, command: Command) -> None:
    code, program, _ = command("snippet", "docs/page.py:3")
    assert code == 0
    assert program.startswith("# docs/page.py, cell 1\n")
    told = subprocess.run([sys.executable, "-I", "-c", program], text=True, capture_output=True, check=True)
    assert told.stdout == "3\n"
    for place, message in (("docs/page.py", "is no place"), ("docs/page.py:6", "is in no cell of code")):
        code, _, err = command("snippet", place)
        assert code == 2
        assert f"{place} {message}" in err


def test_the_cache_is_shown_and_pruned(docs: Path, command: Command) -> None:
    command("check", "docs")
    (docs / "data.txt").write_text("1")
    plant(docs, "x = 3", "x = 3; open('docs/data.txt').read()")
    command("check", "docs")
    (docs / "data.txt").write_text("2")
    code, out, _ = command("cache", "show")
    newest, oldest, total = out.splitlines()
    assert code == 0
    assert newest.endswith("docs/page.py  stale: docs/data.txt changed")
    assert oldest.endswith("docs/page.py  current")
    assert total.startswith("2 runs, ")
    for arguments, said in {("cache", "prune"): "1 of 2 runs", ("cache", "prune", "--all"): "1 of 1 runs"}.items():
        code, out, _ = command(*arguments)
        assert code == 0
        assert out.startswith(f"removed {said}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("export nowhere --output moved", "nowhere is no file; name the site's mkdocs.yml"),
        ("check nowhere", "nowhere does not exist; name pages, or folders that hold some"),
        ("check empty", "no pages in empty: neither .md nor .py with # %% cells"),
        ("check docs --timeout soon", "--timeout (soon) must be a positive number of seconds, such as 300"),
        ("run docs --memory 4", "--memory (4) must be a size with its unit"),
        ("fix docs --workers 0", "--workers (0) must be a whole number of at least 1"),
    ],
)
@pytest.mark.usefixtures("docs")
def test_wrong_usage_says_what_is_missing(command: Command, arguments: str, message: str) -> None:
    Path("empty").mkdir()
    code, _, err = command(*arguments.split())
    assert code == 2
    assert message in err


@pytest.mark.usefixtures("docs")
def test_without_paths_the_pages_of_the_settings_are_meant(command: Command) -> None:
    Path("pyproject.toml").write_text('[tool.proofread]\npages = ["docs", "README.md"]\n')
    code, _, err = command("check")
    assert code == 2
    assert "[tool.proofread] pages names README.md, which does not exist" in err
    Path("README.md").write_text("All 7 of them.\n")
    told = json.loads(command("check", "--json")[1])
    assert {"README.md", "docs/page.py"} <= {page["path"] for page in told["pages"]}
    assert ("README.md", 1) in [(finding["path"], finding["line"]) for finding in told["findings"]]


@pytest.mark.usefixtures("docs")
def test_a_folder_where_the_cache_should_be_is_no_traceback(command: Command) -> None:
    Path(".cache").write_text("a file")
    code, _, err = command("check", "docs")
    assert code == 3
    assert "runs cannot be kept in " in err


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


def test_of_many_findings_on_a_line_the_first_are_shown_and_the_others_counted(docs: Path, command: Command) -> None:
    (docs / "page.py").write_text(f"# %% [markdown]\n# {' '.join(map(str, range(100, 3100)))}\n# and 7.\n")
    code, out, err = command("check", "docs")
    lines = out.splitlines()
    assert code == 1
    assert [line.partition(": ")[0] for line in lines] == ["docs/page.py:2"] * 4 + ["docs/page.py:3"]
    assert lines[3] == "docs/page.py:2: and 2997 more of the kind bare"
    assert err.endswith("; 3001 findings\n")
    code, out, _ = command("check", "docs", "--json")
    assert (code, len(json.loads(out)["findings"])) == (1, 3001)
