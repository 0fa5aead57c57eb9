"""What the pages about proofread list is what there is."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from proofread import cli
from proofread.runs.cache import _KEPT
from proofread.settings import Settings, written

PAGES = Path(__file__).parents[2] / "docs/proofread"


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit):
        cli.main([*arguments, "--help"])
    return capsys.readouterr().out


def rows(name: str, first: str) -> list[list[str]]:
    """The rows of the table whose first column is headed so."""
    text = (PAGES / name).read_text()
    table = text[text.index(f"| {first} |") :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in table]


def test_every_setting_is_listed_with_its_default():
    listed = {row[0].strip("`").split(" = ")[0]: row[1] for row in rows("elsewhere.md", "Under `[tool.proofread]`")}
    defaults = Settings()
    assert listed.keys() == {field.name for field in fields(Settings)}
    assert listed["timeout"] == f"`{defaults.timeout:g}`"
    assert listed["memory"] == f'`"{written(defaults.memory)}"`'
    assert listed["output"] == f'`"{written(defaults.output)}"`'
    assert str(defaults.cache) in (PAGES / "elsewhere.md").read_text()


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
