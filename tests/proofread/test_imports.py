"""Pages import what is installed, and from the folders that the project names: by whatever command they are checked."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from proofread.checks.check import check
from proofread.settings import SettingsError

COMMANDS = {"proofread": [str(Path(sys.executable).with_name("proofread"))], "-m": [sys.executable, "-m", "proofread"]}


@pytest.fixture
def project(tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/beside.py").write_text("answer = 42\n")
    (tmp_path / "near.py").write_text("answer = 42\n")
    for name in ("beside", "near"):
        (tmp_path / f"{name}_page.py").write_text(
            f"# %%\nfrom {name} import answer\n\n# %% [markdown]\n# It is 42<!--= answer -->.\n"
        )
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("imports", "page", "code"), [([], "beside", 1), ([], "near", 1), (["lib"], "beside", 0), (["."], "near", 0)]
)
def test_a_page_imports_what_the_setting_says_under_each_command(project, command, imports, page, code):
    (project / "pyproject.toml").write_text(f"[tool.proofread]\nimports = {imports}\n")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    said = [*COMMANDS[command], "check", f"{page}_page.py"]
    ran = subprocess.run(said, cwd=project, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == code, ran.stdout + ran.stderr
    assert ("No module named" in ran.stdout) is bool(code)


def test_a_folder_that_is_not_there_is_refused(project):
    (project / "pyproject.toml").write_text('[tool.proofread]\nimports = ["gone"]\n')
    with pytest.raises(SettingsError, match=r"imports names gone, which is no folder; name folders as they are seen"):
        check([project / "near_page.py"], root=project)
