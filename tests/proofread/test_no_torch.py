"""A project over numpy, where torch cannot be imported: its pages are run, checked and told of as any others are."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = r"""
# %% [markdown]
# # Fits

# %%
import numpy as np

rng = np.random.default_rng(0)
A, b = rng.normal(size=(7, 3)), rng.normal(size=7)


def fit(A, b):
    return np.linalg.lstsq(A, b, rcond=None)[0]


x = fit(A, b)
share = float((np.abs(x) < 1).mean())

# %% [markdown]
# A fit has `(3,)`<!--= x.shape --> numbers, and it is
# exactly<!--= np.array_equal(A + 0, A)  # to the bit: nothing is added --> as good as any.
#
# $$A^\top A \hat{x} = A^\top b \tag{1}$$
# <!-- where: A, b = random("n m", "n"); x_hat = fit(A, b) -->
#
# $$c = \lVert A x - b \rVert^2$$
# <!-- where: c = np.sum((A @ fit(A, b) - b) ** 2) -->
"""
TOLD = """
import json, sys
from pathlib import Path
from proofread.checks.check import check
(page,) = check([Path("page.py")], root=Path("."), keep=False, mutants=True).pages
print(json.dumps([page.machine.software, "torch" in sys.modules and sys.modules["torch"] is not None]))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory):
    root = tmp_path_factory.mktemp("fits")
    (root / "page.py").write_text(PAGE)
    (root / "block").mkdir()
    (root / "block/sitecustomize.py").write_text("import sys\nsys.modules['torch'] = sys.modules['unmasked'] = None\n")

    def run(*arguments: str, code: int = 0) -> str:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        ran = subprocess.run(
            [sys.executable, *arguments],
            cwd=root,
            env=environment | {"PYTHONPATH": str(root / "block")},
            text=True,
            capture_output=True,
            check=False,
        )
        assert ran.returncode == code, ran.stdout + ran.stderr
        return ran.stdout

    run.root = root
    return run


def test_its_formulas_and_figures_are_checked(run) -> None:
    report = json.loads(run("-m", "proofread", "check", "page.py", "--mutants", "--json"))
    assert report["findings"] == []
    assert run("-c", "import torch", code=1) == ""


def test_its_page_says_that_it_ran_with_numpy(run) -> None:
    import numpy

    software, torch = json.loads(run("-c", TOLD))
    assert software == f"numpy {numpy.__version__}"
    assert not torch


def test_what_does_not_hold_there_is_found(run) -> None:
    page: Path = run.root / "wrong.py"
    page.write_text(PAGE.replace(r"= A^\top b \tag{1}", "= A b").replace("`(3,)`", "`(4,)`"))
    report = json.loads(run("-m", "proofread", "check", "wrong.py", "--json", code=1))
    first, second = (finding["message"] for finding in report["findings"])
    assert "(4,)" in first
    assert "shapes (3, 5) and (3,) do not multiply" in second
