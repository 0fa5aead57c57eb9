"""The versions of PyTorch that docs/install.md names are those on which the workflows run the library's tests.

Whether the newest is the last of them is held where it runs, in tests/unmasked/test_public.py.
"""

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
WORKFLOW: dict[Any, Any] = yaml.safe_load((ROOT / ".github/workflows/torch.yml").read_text(encoding="utf-8"))
(JOB,) = WORKFLOW["jobs"].values()
RUNS = [step["run"] for step in JOB["steps"] if "run" in step]


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
    *older, newest = JOB["strategy"]["matrix"]["torch"]
    assert newest == "torch", "the newest that there is"
    first, *between, _ = named()
    assert pinned.startswith(f"torch=={first}.")
    assert lowest == f"torch>={first}"
    assert older == [f"torch=={version}.*" for version in between]


def test_the_tests_run_weekly_and_on_demand_after_pytorch_was_taken_past_its_pin() -> None:
    assert {*WORKFLOW[True]} == {"schedule", "workflow_dispatch"}  # YAML reads "on" as a truth value
    ((minute, hour, *day, weekday),) = [each["cron"].split() for each in WORKFLOW[True]["schedule"]]
    assert minute.isdigit()
    assert hour.isdigit()
    assert day == ["*", "*"]
    assert weekday.isdigit()
    install, upgrade, tests = RUNS[-3:]
    assert '-e ".[test]"' in install
    assert shlex.split(upgrade)[:5] == ["uv", "pip", "install", "--upgrade", "${{ matrix.torch }}"]
    folders = [word for word in shlex.split(tests) if "/" in word and "pytest" not in word]
    assert folders == ["tests/unmasked", "src/unmasked"]
    assert all((ROOT / folder).is_dir() for folder in folders)
