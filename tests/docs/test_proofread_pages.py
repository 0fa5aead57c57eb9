"""What the pages about proofread list is what there is."""

import re
from pathlib import Path

import pytest

from proofread import cli
from proofread.runs.cache import _KEPT

PAGES = Path(__file__).parents[2] / "docs/proofread"


def test_as_many_runs_are_kept_as_the_page_says():
    assert f"The latest {('one', 'two', 'three', 'four')[_KEPT - 1]} runs" in (PAGES / "runs.md").read_text()


def test_the_first_example_says_what_the_commands_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    text = (PAGES / "index.md").read_text()
    (page,), (session,) = (re.findall(rf"```{kind}\n(.+?)```", text, re.DOTALL) for kind in ("py", "console"))
    monkeypatch.chdir(tmp_path)
    Path("docs").mkdir()
    Path("docs/page.py").write_text(page)
    said = ""
    for command in re.findall(r"^\$ proofread (.+)$", session, re.MULTILINE):
        cli.main(command.split())
        said += f"$ proofread {command}\n{capsys.readouterr().out}"
    assert said == session
    assert "keeps 55%<!--= share -->" in Path("docs/page.py").read_text()
