"""What runs at GitHub is pinned, may write only where it must, and tries what the project says it supports."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / ".github/workflows").glob("*.yml"))
TEXTS = {path.stem: path.read_text(encoding="utf-8") for path in FILES}
WORKFLOWS: dict[str, Any] = {name: yaml.safe_load(text) for name, text in TEXTS.items()}


@pytest.mark.parametrize("name", TEXTS)
def test_each_action_is_pinned_by_its_commit_and_says_which_version_that_is(name: str):
    lines = [line for line in TEXTS[name].splitlines() if "uses:" in line]
    assert lines
    assert [line for line in lines if not re.search(r"uses: [\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line)] == []


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_reads_and_a_job_that_writes_runs_no_code_that_is_installed(name: str):
    assert WORKFLOWS[name]["permissions"] == {"contents": "read"}
    for job in WORKFLOWS[name]["jobs"].values():
        said = " ".join(step.get("run", "") for step in job["steps"])
        if "write" in job.get("permissions", {}).values():
            assert not re.search(r"\b(pip|pipx|uv|npm|npx|python\d?)\b|\.venv", said)
            assert not [step for step in job["steps"] if "checkout" in step.get("uses", "")]


def test_each_week_the_oldest_and_the_newest_of_everything_is_tried():
    (job,) = WORKFLOWS["machines"]["jobs"].values()
    assert {*WORKFLOWS["machines"][True]} == {"schedule", "workflow_dispatch"}  # YAML reads "on" as a truth value
    matrix = job["strategy"]["matrix"]
    lowest = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["requires-python"]
    assert {"3.12.0", "3.13", "3.14"} == {*matrix["python"]}
    tried = {
        (each["system"].partition("-")[0], each["resolution"], f">={each['python']}") for each in matrix["include"]
    }
    assert {("macos", "highest"), ("windows", "highest")} <= {each[:2] for each in tried}
    assert ("ubuntu", "lowest-direct", lowest) in tried
    assert [each for each in matrix["include"] if each["system"].endswith("-arm")]
