"""The command measures what the record has, on any device, and prints both side by side."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend

from unmasked_lessons import measure
from unmasked_lessons.measure.__main__ import beside, main

from ..elsewhere import elsewhere
from ..running import python


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
    assert said.splitlines()[-1].startswith("CPU: PyTorch runs no kernel there that it calls efficient or cudnn")
    assert any(line.startswith("three axes") and "6.46 math" in line for line in said.splitlines())


def test_python_has_nothing_to_say_of_the_command():
    assert python("-W", "error::RuntimeWarning", "-m", "unmasked_lessons.measure", "--help").stderr == ""


def on(kind: str, monkeypatch: pytest.MonkeyPatch, choose: Callable[..., int]) -> tuple[measure.Record, list[Any]]:
    """What is measured on a device that has no kernels by name, and counts no memory; and who was waited for."""
    waited: list[Any] = []

    def uncounted(device: Any) -> None:
        raise RuntimeError(f"Allocator for {kind} is not a DeviceAllocator.")

    with elsewhere(kind) as device:
        monkeypatch.setattr(measure, "best_device", lambda _: device)
        monkeypatch.setattr(torch.accelerator, "synchronize", waited.append)
        monkeypatch.setattr(torch.accelerator, "reset_peak_memory_stats", uncounted)
        monkeypatch.setattr(torch, "_fused_sdp_choice", choose)
        return measure.measure(kind, lengths=[8], heads=2, repeats=1), waited


def no_choice(*given: Any, **options: Any) -> int:
    raise NotImplementedError("Could not run 'aten::_fused_sdp_choice' with arguments from the 'MPS' backend.")


@pytest.mark.parametrize(
    ("kind", "choose", "told"),
    [
        ("mps", no_choice, "MPS: PyTorch runs no kernel there that it calls efficient, flash or cudnn, and counts no"),
        (
            "xpu",
            lambda *given, **options: SDPBackend.OVERRIDEABLE.value,
            "efficient, flash or cudnn, and does not name the one that it chooses, and counts no peak of memory.",
        ),
    ],
)
def test_no_kernel_is_measured_under_a_name_that_the_device_does_not_have(
    kind: str, choose: Callable[..., int], told: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(torch.xpu, "get_device_name", lambda _: "An Intel GPU")
    found, waited = on(kind, monkeypatch, choose)
    assert list(found["kernels"]["8"]) == ["math", "by hand"]
    assert {cost[-1] for cost in (*found["kernels"]["8"].values(), *found["choices"].values())} == {None}
    assert all((error is None) == (name.split(" ", 1)[1] in ("efficient", "flash", "cudnn"))
               for name, error in found["accuracy"].items())  # fmt: skip
    assert {device.type for device in waited} == {kind}
    assert told in measure.limits(found)
    assert found["device"] == {"mps": "MPS", "xpu": "An Intel GPU"}[kind]
    assert ("unnamed" in str(beside(measure.recorded(), found))) == (kind == "xpu")


def test_memory_is_the_peak_above_what_was_there_where_a_device_counts_it(monkeypatch: pytest.MonkeyPatch):
    peaks = itertools.cycle([2**20, 4 * 2**20])  # before the runs, after them
    with elsewhere("xpu") as device:
        monkeypatch.setattr(torch.accelerator, "synchronize", lambda _: None)
        monkeypatch.setattr(torch.accelerator, "reset_peak_memory_stats", lambda _: None)
        monkeypatch.setattr(torch.accelerator, "memory_stats", lambda _: {"allocated_bytes.all.peak": next(peaks)})
        x = torch.ones(2, device=device)
        assert measure._cost(lambda: x + 1, device, 3)[1] == 3.0


@pytest.mark.parametrize("error", [NotImplementedError("not implemented for MPS"), RuntimeError("MPS: out of memory")])
def test_what_a_device_does_not_have_is_left_out(error: Exception, monkeypatch: pytest.MonkeyPatch):
    def lacking(*given: Any, **options: Any) -> None:
        raise error

    monkeypatch.setattr(F, "scaled_dot_product_attention", lacking)
    found = measure.measure("cpu", lengths=[8], heads=2, repeats=1)
    assert list(found["kernels"]["8"]) == ["by hand"]
    assert found["choices"] == {}
    assert found["accuracy"]["float32 flash"] is None


def test_an_error_of_another_kind_is_raised(monkeypatch: pytest.MonkeyPatch):
    def odd(*given: Any, **options: Any) -> Any:
        raise RuntimeError("an odd error")

    cpu = torch.device("cpu")
    with pytest.raises(RuntimeError, match="an odd error"):
        measure._cost(odd, cpu, 1)
    monkeypatch.setattr(F, "scaled_dot_product_attention", odd)
    monkeypatch.setattr(
        measure, "sdpa_backends", lambda *given, **options: [SimpleNamespace(name="math", can_run=True)]
    )
    with pytest.raises(RuntimeError, match="an odd error"):
        measure._accuracy(cpu, 2, 8)


def test_the_record_lacks_nothing():
    assert measure.limits(measure.recorded()) == ""


@pytest.mark.parametrize("lengths", [[], [8, 0]])
def test_lengths_that_are_none_are_refused(lengths: list[int]):
    with pytest.raises(ValueError, match=r"lengths is \[.*\]; name at least one number of tokens, each positive"):
        measure.measure("cpu", lengths=lengths)


@pytest.mark.cuda
def test_a_gpu_counts_its_memory():
    found = measure.measure("cuda", lengths=[512], heads=2, repeats=2)
    assert found["kernels"]["512"]["by hand"][1] > 0
