"""The benchmarks are run by hand, and must be able to."""

import json
import re
import runpy
from pathlib import Path

import pytest
import torch

from ..running import python

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def test_the_benchmark_of_growth_builds_sites_and_edits_them() -> None:
    ran = python(BENCHMARKS / "growth.py", "--pages", 2, "--rounds", 1, "--jupyter", 0)
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


def test_a_record_names_its_machine_and_holds_every_figure_that_was_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    attention = runpy.run_path(str(BENCHMARKS / "attention.py"))
    monkeypatch.setitem(attention["Record"].write.__globals__, "RECORDS", tmp_path / "records")
    monkeypatch.setitem(attention["SIZES"], "cpu", (8, 2, 32))
    cpu = torch.device("cpu")
    record = attention["Record"](cpu)
    attention["report_layers"](record, cpu, [16], 1)
    written = json.loads(record.write().read_text())
    assert written["torch"] == torch.__version__
    assert written["date"]
    assert written["device"]
    told = capsys.readouterr().out
    assert "makes no promise" not in told
    rows = re.findall(r"^  (\S.*?) +(\d+\.\d{3}) ", told, re.MULTILINE)
    assert [(each["what"], f"{each['figure']:.3f}") for each in written["figures"]] == rows
    assert {"limit", "CausalSelfAttention", "MultiheadAttention, padding"} <= {what for what, _ in rows}


def test_a_record_says_of_a_version_that_is_too_old_that_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "__version__", "2.11.0+cu130")
    record = runpy.run_path(str(BENCHMARKS / "attention.py"))["Record"](torch.device("cpu"))
    assert record.machine["torch"] == "2.11.0+cu130"
    needed = f"The library needs PyTorch {record.machine['torch needed']}: what follows is of a version"
    assert needed in capsys.readouterr().out
