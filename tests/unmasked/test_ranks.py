"""Ranks are fresh processes, which get what they do by value: whoever calls, and from wherever."""

import enum
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist
from torch import nn

from unmasked.parallel import __main__ as demonstration
from unmasked.parallel import launch
from unmasked.parallel import ring as _ring


class Color(enum.Enum):
    RED = 1


@dataclass
class Copied:
    color: Color
    of: type
    value: object


def script(text: str, folder: Path, **options: object) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder that has nothing else, as who copied it would."""
    (folder / "program.py").write_text(text)
    command = [sys.executable, "program.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, **options)


# --- whoever calls ---


def test_ranks_are_no_forks_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ring, "patched", True, raising=False)
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="the caller's")
    thread.start()

    def work() -> tuple[bool, bool, bool]:
        threads = {each.name for each in threading.enumerate()}
        return hasattr(_ring, "patched"), "the caller's" in threads, "pytest" in sys.modules

    try:
        assert launch(work) == [(False, False, False)] * 2
    finally:
        stop.set()
        thread.join()


# PyTorch starts such threads for each device other than the CPU, and a made-up device will do. No fork survives them.
AUTOGRAD = """
import os
import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
from unmasked.parallel import launch

_setup_privateuseone_for_python_backend("madeup")
x = torch.ones(3, requires_grad=True)

def gradient():
    return torch.autograd.grad(x.square().sum(), x)[0].tolist()

print(gradient())
print(launch(gradient))
child = os.fork()
if not child:
    try:
        gradient()
    except RuntimeError as error:
        print(str(error).split(".")[0], flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


def test_they_run_autograd_where_the_caller_has_run_it_on_threads(tmp_path: Path) -> None:
    run = script(AUTOGRAD, tmp_path)
    assert run.stdout.splitlines() == [
        "[2.0, 2.0, 2.0]",
        "[[2.0, 2.0, 2.0], [2.0, 2.0, 2.0]]",
        "Unable to handle autograd's threading in combination with fork-based multiprocessing",  # the test is one
    ], run.stderr


@pytest.mark.cuda
def test_they_start_where_the_caller_has_used_a_gpu_and_may_use_it_themselves() -> None:
    x = torch.ones(3, device="cuda", requires_grad=True)

    def gradient() -> list[float]:
        numbers: list[float] = torch.autograd.grad(x.square().sum(), x)[0].tolist()
        return numbers

    assert launch(gradient) == [gradient()] * 2 == [[2.0] * 3] * 2


def test_two_threads_call_at_once() -> None:
    both = threading.Barrier(2)
    answers: list[list[int]] = []

    def call() -> None:
        both.wait()
        answers.append(launch(os.getpid))

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({pid for pids in answers for pid in pids}) == 4


# --- whatever is called ---

COPIED = """
from dataclasses import dataclass
import torch
import torch.distributed as dist
from unmasked.parallel import launch

print("begins")

@dataclass
class Answer:
    rank: int
    gradient: torch.Tensor

class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = self.tied = torch.nn.Parameter(torch.full((2,), 3.0))

    def forward(self, x):
        return x * self.weight

layer, x = Scale(), torch.ones(2, requires_grad=True)

def work(times):
    assert layer.weight is layer.tied
    loss = (lambda y: y.sum())(layer(x)) * times
    return Answer(dist.get_rank(), torch.autograd.grad(loss, x)[0])

for answer in launch(work, 2):
    assert type(answer) is Answer
    print(answer)
"""
SHOWN = """\
begins
Answer(rank=0, gradient=tensor([6., 6.]))
Answer(rank=1, gradient=tensor([6., 6.]))
"""


def test_a_script_without_a_guard_runs_once(tmp_path: Path) -> None:
    run = script(COPIED, tmp_path)
    assert (run.stdout, run.stderr) == (SHOWN, "")


def test_nothing_is_lost_of_what_ranks_print(tmp_path: Path) -> None:
    text = "from unmasked.parallel import launch\nlaunch(lambda: print('a', end=''))\nprint('b')"
    run = script(text, tmp_path)
    assert (run.stdout, run.stderr) == ("aab\n", "")


def test_so_it_does_where_every_process_starts_anew(tmp_path: Path) -> None:
    spawning = "import multiprocessing\nfrom unmasked.parallel import ranks\n"
    spawning += "ranks._context = lambda: multiprocessing.get_context('spawn')\n"
    run = script(spawning + COPIED, tmp_path)
    assert (run.stdout, run.stderr) == (SHOWN, "")


def test_a_notebook_calls_what_its_cells_define_and_is_told_the_line_that_fails(tmp_path: Path) -> None:
    text = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_cell("from unmasked.parallel import launch\\nx = 3\\ndef work():\\n    return x")
shell.run_cell("print(launch(work))")
shell.run_cell("def fails():\\n    raise LookupError('no such token')")
shell.run_cell("try:\\n    launch(fails)\\nexcept RuntimeError as error:\\n    told = error.__notes__[0]")
shell.run_cell("print(told.splitlines()[-2].rpartition(', ')[2], told.splitlines()[-1])")
"""
    run = script(text, tmp_path, env=os.environ | {"IPYTHONDIR": str(tmp_path / "ipython")})
    assert run.stdout == "[3, 3]\nin fails LookupError: no such token\n", run.stderr


def test_classes_of_a_module_that_cannot_be_imported_come_back_as_themselves() -> None:
    def work() -> Copied:
        return Copied(Color.RED, Copied, {nn.Linear: torch.float16})

    for answer in launch(work):
        assert type(answer) is answer.of is Copied
        assert answer.color is Color.RED
        assert answer.value == {nn.Linear: torch.float16}


def test_work_names_modules_that_another_makes() -> None:
    def work() -> float:
        total: float = torch.ops.aten.sum(torch.ones(3)).item()
        return total

    assert launch(work) == [3.0] * 2


def test_what_cannot_be_copied_is_refused() -> None:
    lock = threading.Lock()
    text = (
        "work, or what it names or is given, cannot be copied to another process (cannot pickle '_thread.lock' object)"
    )
    with pytest.raises(TypeError, match=re.escape(text)):
        launch(lambda: lock)


def test_without_cloudpickle_it_is_said_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    monkeypatch.setattr(sys, "argv", ["parallel"])
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ImportError, match=r"cloudpickle, which is missing: pip install cloudpickle$"):
        launch(dist.get_rank)
    assert demonstration.main() == 1
    assert re.fullmatch("unmasked.parallel: .*: pip install cloudpickle\n", capsys.readouterr().err)


# --- what it finds around it, and what it leaves ---


HANGS = """
import os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # else a caller in the background of a shell has it off
import torch.distributed as dist
from unmasked.parallel import launch

def work(hangs):
    os.write(1, b"rank\\n")  # at once, where two print
    if hangs:
        signal.pause()

launch(work, False)
print("ready", flush=True)
launch(work, True)
"""


def alive(pids: Iterable[int]) -> list[psutil.Process]:
    """List the processes that have not ended, though they had a while."""
    processes = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    left = psutil.wait_procs(processes, timeout=20)[1]
    return [each for each in left if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_stays_when_the_caller_is_stopped(number: signal.Signals, tmp_path: Path) -> None:
    caller = subprocess.Popen([sys.executable, "-c", HANGS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert caller.stdout
    assert [caller.stdout.readline() for _ in range(5)] == ["rank\n", "rank\n", "ready\n", "rank\n", "rank\n"]
    processes = [each.pid for each in psutil.Process(caller.pid).children(recursive=True)]
    assert len(processes) >= 3  # the two, and the one that has started them
    caller.send_signal(number)
    _, errors = caller.communicate(timeout=60)
    assert caller.returncode == -number
    assert not alive(processes)
    assert ("KeyboardInterrupt" in errors) == (number == signal.SIGINT)
    assert errors.count("Traceback") <= 1


PAGE = """
# A page

```python
#| tags: check
from unmasked.parallel import launch
import torch.distributed as dist

assert launch(lambda: dist.get_rank()) == [0, 1]
```
"""


def test_no_process_stays_of_a_page(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.proofread]\n")
    (tmp_path / "page.md").write_text(PAGE)
    environment = os.environ | {"RANKS_OF_A_PAGE": str(tmp_path)}
    command = [sys.executable, "-m", "proofread", "check", "page.md"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, env=environment)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "cells: 1 ran; 0 findings" in run.stderr
    assert not alive(pid for pid in psutil.pids() if is_of(pid, tmp_path))


def is_of(pid: int, folder: Path) -> bool:
    try:
        return psutil.Process(pid).environ().get("RANKS_OF_A_PAGE") == str(folder)
    except psutil.Error:
        return False


@pytest.mark.parametrize("name", ["long" * 30, "what?", "a#b", "caf\u00e9"])
def test_ranks_meet_whatever_the_temporary_folder_is_called(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / name))
    assert launch(dist.get_rank, ranks=2) == [0, 1]
