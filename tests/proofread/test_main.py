from pathlib import Path

import pytest

from proofread.__main__ import main


def test_findings_go_to_stdout_progress_to_stderr_and_the_exit_code_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/page.py").write_text("# %%\nx = 3\n\n# %% [markdown]\n# It is 4<!--= x -->.\n")
    assert main(["check", "docs"]) == 1
    told = capsys.readouterr()
    assert told.out == "docs/page.py:5: it says 4, but x gives 3\n"
    assert told.err.startswith("docs/page.py: ran in ")

    (tmp_path / "docs/page.py").write_text("# %%\nx = 3\n\n# %% [markdown]\n# It is 3<!--= x -->.\n")
    assert main(["check", "docs"]) == 0
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == (
        "docs/page.py: unchanged\n"
        "1 page, 0 of them run; 1 figure checked and 0 waived, 0 formulas checked and 0 not; 0 findings\n"
    )


def test_wrong_usage_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["check", str(tmp_path / "nowhere")])
    assert f"{tmp_path / 'nowhere'} does not exist" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["check", str(tmp_path)])
    assert f"no pages in {tmp_path}: neither .md nor .py with # %% cells" in capsys.readouterr().err


def test_help_teaches_the_syntax(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    told = capsys.readouterr().out
    for syntax in ("<!--= ", "<!--== ", "{{ ", "<!--~ ", "#| alt:", "#| timeout:", "raises-exception", "<!-- where:"):
        assert syntax in told
