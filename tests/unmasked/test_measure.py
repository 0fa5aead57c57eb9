"""The command measures what the record has, on any device, and prints both side by side."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from unmasked import measure
from unmasked.measure.__main__ import main


@pytest.fixture(scope="module")
def here() -> measure.Record:
    return measure.measure("cpu", lengths=[16, 8], heads=2, repeats=2)


def test_what_is_measured_has_the_form_of_the_record(here: measure.Record):
    record = measure.recorded()
    assert here.keys() <= record.keys()
    assert here["device"] == "CPU"
    assert here["torch"] == torch.__version__
    assert list(here["kernels"]) == ["16", "8"]
    assert here["kernels"]["8"].keys() <= record["kernels"]["512"].keys()
    assert here["choices"].keys() <= record["choices"].keys()
    assert here["accuracy"].keys() <= record["accuracy"].keys()
    for ways in (*here["kernels"].values(), *record["kernels"].values()):
        assert all(time > 0 for time, _ in ways.values())


def test_what_does_not_run_here_is_left_out_and_no_memory_is_made_up(here: measure.Record):
    assert "cudnn" not in here["kernels"]["8"]
    assert here["accuracy"]["float32 cudnn"] is None
    assert {memory for _, memory in here["kernels"]["8"].values()} == {None}


def test_the_errors_are_those_of_the_dtypes(here: measure.Record):
    for dtype, least, most in [("float32", 1e-9, 1e-5), ("float16", 1e-5, 1e-2), ("bfloat16", 1e-4, 1e-1)]:
        assert least < here["accuracy"][f"{dtype} by hand"] < most


def test_dropout_leaves_the_fused_kernel_of_a_cpu(here: measure.Record):
    assert here["choices"]["causal"][0] == ["flash"]
    assert here["choices"]["dropout"][0] == ["math"]


def test_the_command_prints_both_columns_and_keeps_yours(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "mine.json"
    main(["--device", "cpu", "--lengths", "8", "--json", str(file)])
    said = capsys.readouterr().out
    kept = json.loads(file.read_text())
    assert said.splitlines()[0].split() == ["ms", *measure.recorded()["device"].split(), "CPU,", "torch", kept["torch"]]
    assert "8 tokens, by hand" in said
    assert any(line.startswith("three axes") and "6.46 math" in line for line in said.splitlines())


def test_python_has_nothing_to_say_of_the_command():
    command = [sys.executable, "-W", "error::RuntimeWarning", "-m", "unmasked.measure", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("lengths", [[], [8, 0]])
def test_lengths_that_are_none_are_refused(lengths: list[int]):
    with pytest.raises(ValueError, match=r"lengths is \[.*\]; name at least one number of tokens, each positive"):
        measure.measure("cpu", lengths=lengths)


@pytest.mark.cuda
def test_a_gpu_counts_its_memory():
    found = measure.measure("cuda", lengths=[512], heads=2, repeats=2)
    assert found["kernels"]["512"]["by hand"][1] > 0
