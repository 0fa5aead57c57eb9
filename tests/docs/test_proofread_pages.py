"""What the pages about proofread list is what there is, and their examples say what they are said to say."""

import re
from pathlib import Path

import pytest

from proofread import cli
from proofread.checks.check import check
from proofread.runs.cache import _KEPT

from ..running import ROOT, python

PAGES = ROOT / "docs/proofread"


def fences(file: Path, kind: str, below: str = "") -> list[str]:
    """The fences of a kind that stand below a heading."""
    return re.findall(rf"(?ms)^```{kind}\n(.+?)^```$", file.read_text().partition(below)[2])


def messages(folder: Path, code: str, text: str) -> list[str]:
    """What is found on a page with this code, and then this text."""
    page = folder / "page.py"
    page.write_text(f"# %%\n{code}\n\n# %% [markdown]\n{text}")
    return [finding.message for finding in check([page], root=folder, keep=False).findings]


def test_as_many_runs_are_kept_as_the_page_says():
    assert f"The latest {('one', 'two', 'three', 'four')[_KEPT - 1]} runs" in (PAGES / "runs.md").read_text()


def test_the_first_example_says_what_the_commands_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (page,), (session,) = (fences(PAGES / "index.md", kind, "# ") for kind in ("py", "console"))
    monkeypatch.chdir(tmp_path)
    Path("docs").mkdir()
    Path("docs/page.py").write_text(page)
    said = ""
    for command in re.findall(r"^\$ proofread (.+)$", session, re.MULTILINE):
        cli.main(command.split())
        said += f"$ proofread {command}\n{capsys.readouterr().out}"
    assert said == session
    assert "keeps 55%<!--= share -->" in Path("docs/page.py").read_text()


def test_the_example_of_its_readme_holds_and_another_word_does_not(tmp_path: Path):
    (example,) = fences(ROOT / "src/proofread/README.md", "py", "# ")
    code = "lamp, volts, ohms = 0.4, 12.0, 8.0\ncurrent = volts / ohms"
    assert messages(tmp_path, code, example) == []
    (message,) = messages(
        tmp_path,
        code,
        example.replace("# The battery drives 1.5<!--= current --> amperes, more", "# 1.5<!--= current -->, less"),
    )
    assert '"more than the lamp takes" is not on the page' in message


def test_a_page_of_the_first_version_is_told_what_becomes_of_it(tmp_path: Path):
    where = "## Converting a page"
    (old, *_), (new, *_) = (fences(PAGES / "elsewhere.md", kind, where) for kind in ("markdown", "py"))
    code = "import torch\n\ngap, a = 2.1, torch.tensor([0.1, 0.2])\nb = a.clone()"
    assert messages(tmp_path, code, new) == []
    told = "\n".join(messages(tmp_path, code, re.sub("(?m)^", "# ", old.rstrip("\n"))))
    for claim in ("assert gap > 0", "assert gap > 2", "assert torch.equal(a, b)"):
        assert f"let a cell tagged claims prove it, {claim}" in told
        assert claim in new
    assert told.count("is not an expression") == 2


def test_the_script_converts_a_page_of_the_first_version(tmp_path: Path):
    where = "## Converting a page"
    (old, *_), (_, script) = (fences(PAGES / "elsewhere.md", kind, where) for kind in ("markdown", "py"))
    page = tmp_path / "old.py"
    page.write_text(
        "# %%\nimport torch\n\ngap, a = 2.1, torch.tensor([0.1, 0.2])\nb = a.clone()\n\n# %% [markdown]\n"
        + re.sub("(?m)^", "# ", old.replace("torch.equal(a, b)  # to the bit: they are copies", "a.sum() > 0"))
    )
    python("-c", script, page)
    assert "<!--= gap -->" in page.read_text()
    assert 'assert gap > 0, "Ours is faster"' in page.read_text()
    assert check([page], root=tmp_path, keep=False).findings == []
