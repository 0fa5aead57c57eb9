"""The workflow that the doctor's page offers for GitHub runs: each of its commands, on the file that the page shows."""

import re
import shlex
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

from ..running import python

PAGE = Path(__file__).parents[2] / "docs" / "doctor.py"
TEST = """
from mine import Right
from unmasked_doctor.testing import assert_attention

def test_mine():
    assert_attention(Right(12, 3), embed_dim=12, at_least="followed")
"""


def shown() -> tuple[dict[str, Any], str]:
    """The page's workflow, and the file that its terminal examines."""
    text = PAGE.read_text()
    (workflow,) = re.findall(r"# ```yaml\n(.*?)# ```\n", text, re.DOTALL)
    (source,) = re.findall(r'source = """\n(.*?)"""', text, re.DOTALL)
    return yaml.safe_load(textwrap.dedent(re.sub(r"(?m)^# ?", "", workflow))), source


def runs(workflow: dict[str, Any]) -> list[str]:
    return [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]


@pytest.mark.parametrize("scale", ["True", "False"])
def test_the_workflows_commands_run_and_fail_where_the_module_is_wrong(tmp_path: Path, scale: str) -> None:
    workflow, source = shown()
    # Of weights drawn at random, one in a hundred is so small at this size that they may be meant to replace the scale.
    source = source.replace("import torch\n", "import torch\ntorch.manual_seed(0)\n")
    (tmp_path / "mine.py").write_text(source.replace("scale = True", f"scale = {scale}"))
    (tmp_path / "test_mine.py").write_text(TEST)
    _, *commands = runs(workflow)
    assert len(commands) == 2
    for command in commands:
        program, *words = shlex.split(command)
        assert program == "python"
        done = python(*words, cwd=tmp_path, exits=0 if scale == "True" else 1)
        assert ("missing-scale" in done.stdout) == (scale == "False")


def test_the_workflow_installs_this_package_and_asks_for_every_push() -> None:
    workflow, _ = shown()
    install, *_ = runs(workflow)
    # A hook of the site says instead of the path where the library is, once that is known.
    assert shlex.split(install) == ["python", "-m", "pip", "install", "./attention-unmasked", "pytest"]
    assert workflow["permissions"] == {"contents": "read"}
    assert set(workflow[True]) == {"push", "pull_request"}  # YAML reads "on" as a truth value
    assert all("uses" in step or "run" in step for job in workflow["jobs"].values() for step in job["steps"])
