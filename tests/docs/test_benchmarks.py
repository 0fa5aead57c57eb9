"""The benchmarks are run by hand, and must be able to."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def test_the_benchmark_of_growth_builds_sites_and_edits_them() -> None:
    command = [sys.executable, BENCHMARKS / "growth.py", "--pages", "2", "--rounds", "1", "--jupyter", "0"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    rows = re.findall(r"^ +2  (plain Markdown|proofread) +([\d. ]+)$", ran.stdout, re.MULTILINE)
    assert [name for name, _ in rows] == ["plain Markdown", "proofread"]
    assert all(len(times.split()) == 4 for _, times in rows)


def test_the_sites_that_are_compared_hold_the_same_pages_and_all_that_these_name(tmp_path: Path) -> None:
    sites = runpy.run_path(str(BENCHMARKS / "site.py"))["make_sites"](tmp_path)
    plain, ours = (sites[name].folder / "docs" for name in ("plain Markdown", "ours"))
    names = {path.relative_to(ours).with_suffix("") for path in ours.rglob("*.py")}
    assert names == {path.relative_to(plain).with_suffix("") for path in plain.rglob("*.md")}
    for page in ours.rglob("*.py"):
        for script in re.findall(r"^#\| script: (\S+)$", page.read_text(), re.MULTILINE):
            assert (page.parent / script).is_file(), page
