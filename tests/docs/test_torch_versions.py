"""What docs/install.md says of versions of PyTorch is what a workflow runs each week, and so are the pages.

Whether the newest is the last of them is held where it runs, in tests/unmasked/test_public.py.
"""

import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOW: dict[Any, Any] = yaml.safe_load((ROOT / ".github/workflows/torch.yml").read_text(encoding="utf-8"))
NEWER, README, PAGES = (WORKFLOW["jobs"][name] for name in ("newer", "readme", "pages"))
COMMAND = ROOT / "tests" / "pages_on.sh"


def runs(job: dict[str, Any]) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


def said_by_the_readme() -> list[str]:
    return re.findall(r"```sh\n(.*?)\n```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)


def named() -> list[str]:
    page = (ROOT / "docs/install.md").read_text(encoding="utf-8")
    (said,) = re.findall(
        r"tests pass with\s+PyTorch (.*?):", re.sub(r"<!--.*?-->", "", page, flags=re.DOTALL), re.DOTALL
    )
    return re.findall(r"[\d.]+", said)


def test_each_version_that_is_named_is_tested_by_a_workflow() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (pinned,) = [each for each in project["optional-dependencies"]["docs"] if each.startswith("torch==")]
    (lowest,) = [each for each in project["dependencies"] if each.startswith("torch")]
    *older, newest = NEWER["strategy"]["matrix"]["torch"]
    assert newest == "torch", "the newest that there is"
    first, *between, _ = named()
    assert pinned.startswith(f"torch=={first}.")
    assert lowest == f"torch>={first}"
    assert older == [f"torch=={version}.*" for version in between]


def test_the_workflow_runs_weekly_and_on_demand() -> None:
    assert {*WORKFLOW[True]} == {"schedule", "workflow_dispatch"}  # YAML reads "on" as a truth value
    ((minute, hour, *day, weekday),) = [each["cron"].split() for each in WORKFLOW[True]["schedule"]]
    assert minute.isdigit()
    assert hour.isdigit()
    assert day == ["*", "*"]
    assert weekday.isdigit()


def test_the_library_is_tested_after_pytorch_was_taken_past_its_pin() -> None:
    install, upgrade, tests = runs(NEWER)[-3:]
    assert '-e ".[test]"' in install
    assert shlex.split(upgrade)[:5] == ["uv", "pip", "install", "--upgrade", "${{ matrix.torch }}"]
    folders = shlex.split(tests)[3:]
    assert folders == ["tests/unmasked", "tests/doctor", "tests/lessons", "src"]
    assert all((ROOT / folder).is_dir() for folder in folders)


def test_the_readmes_two_commands_run_with_pytorch_as_pip_brings_it() -> None:
    serve, tests = said_by_the_readme()
    assert runs(README) == [serve.replace("mkdocs serve", "mkdocs build --strict"), tests]
    for job in (README, PAGES):
        assert "env" not in job, "nothing chooses a build of PyTorch"
        assert not [step for step in job["steps"] if "env" in step or "uv" in step.get("uses", "")]


def test_the_pages_run_on_the_newest_by_the_command_of_the_project() -> None:
    assert runs(PAGES) == [f"bash {COMMAND.relative_to(ROOT)} newest"]


# It logs what it is called with, and makes an environment whose programs do the same; its proofread finds something.
STAND_IN = """#!/bin/sh
echo "${0##*/} $*" >> "$LOG"
if [ "$1 $2" = "-m venv" ]; then
    mkdir -p "$3/bin"
    for name in pip python proofread; do cp "$0" "$3/bin/$name"; done
fi
case "${0##*/} $*" in $FAILS*) exit 1 ;; esac
"""


def pages_on(tmp_path: Path, *words: str, fails: str = "nothing") -> tuple[int, list[list[str]]]:
    """Run the command where no package is fetched; its exit code, and what it called."""
    programs, log, temporary = tmp_path / "programs", tmp_path / "log", tmp_path / "temporary"
    programs.mkdir()
    temporary.mkdir()
    (programs / "python3").write_text(STAND_IN)
    (programs / "python3").chmod(0o755)
    where = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "TMPDIR": str(temporary)}
    run = subprocess.run(
        ["bash", COMMAND, *words], env={**os.environ, **where, "LOG": str(log), "FAILS": fails}, cwd=tmp_path
    )
    assert not [*temporary.iterdir()], "its environment is still there"
    return run.returncode, [*map(shlex.split, log.read_text().splitlines())]


@pytest.mark.parametrize(("version", "torch"), [("2.14.1", "torch==2.14.1"), ("newest", "torch")])
def test_pages_are_checked_as_the_readme_sets_up_and_with_the_pytorch_that_is_given(
    tmp_path: Path, version: str, torch: str
) -> None:
    code, (venv, install, upgrade, _, check) = pages_on(tmp_path, version)
    assert code == 0
    assert venv[:3] == ["python3", "-m", "venv"]
    (said,) = [each.split("&&")[1] for each in said_by_the_readme()[:1]]
    assert [word for word in install if word != "--quiet"] == ["pip", *shlex.split(said)[1:]]
    assert upgrade == ["pip", "install", "--quiet", "--upgrade", torch]
    assert check == ["proofread", "check", "--no-cache"]  # of all pages, and no run of the checkout's is replaced


@pytest.mark.parametrize("fails", ["pip", "proofread"])
def test_it_stops_at_the_first_fault_and_exits_as_that_does(tmp_path: Path, fails: str) -> None:
    code, called = pages_on(tmp_path, "2.14.1", fails=fails)
    assert code == 1
    assert [name for name, *_ in called].index(fails) == len(called) - 1


@pytest.mark.parametrize("words", [(), ("newer",), ("2.14.1", "2.15.0"), ("2.14.1 --index-url",)])
def test_anything_but_one_version_is_refused(words: tuple[str, ...]) -> None:
    run = subprocess.run(["bash", COMMAND, *words], capture_output=True, text=True)
    assert run.returncode == 2
    assert run.stderr.startswith(f'version is "{" ".join(words)}"; give one: ')
