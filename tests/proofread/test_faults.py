"""Whatever goes wrong in a run ends in one message: page, line, cell, cause, remedy; and leaves nothing behind."""

import contextlib
import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from proofread.checks.check import check
from proofread.checks.checked import Report
from proofread.keep import files
from proofread.pages.page import find_pages
from proofread.runs.cache import Cache, CacheError
from proofread.runs.steps import Outcome, Result, Step, Task
from proofread.settings import Settings

from .conftest import Project

MIB = 2**20


def checked(root: Path, settings: Settings | None = None, keep: bool = False, **pages: str) -> Report:
    project = Project(root)
    for name, text in pages.items():
        project.write(f"{name}.py", text)
    return project.check(*(f"{name}.py" for name in pages), settings=settings or Settings(), keep=keep)


def messages(report: Report) -> list[str]:
    return [str(finding).split("\n")[0] for finding in report.findings]


def test_each_failing_page_is_listed_with_its_own_cause(tmp_path: Path) -> None:
    (tmp_path / "bytes.py").write_bytes(b"# %%\n# caf\xe9\n")
    report = checked(
        tmp_path,
        Settings(output=2_000),
        failing="# %%\nx = 1\n\n# %%\nx / 0\n",
        endless="# %%\n#| timeout: 0.5\nwhile True:\n    pass\n",
        killed="# %%\nimport os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n",
        exits="# %%\nimport os\nos._exit(0)\n",
        exits_quietly="# %%\nimport sys\nsys.exit(2)\n",
        syntax="# %%\nx = 1\n\n# %%\ny = = 2\n",
        loud="# %%\nfor line in range(10**6):\n    print(line)\n",
        loud_value="# %%\n'x' * 10**6\n",
        unseeded="# %%\nimport torch\n\n# %%\ntorch.randn(2)\n",
        unseeded_python="# %%\nimport random\n\n# %%\nrandom.random()\n",
        unseeded_numpy="# %%\nimport numpy as np\n\n# %%\nnp.random.rand()\n",
        seeded="# %%\nimport random, torch\nimport numpy as np\n\n"
        "random.seed(1)\nnp.random.seed(2)\ntorch.manual_seed(3)\nprint(random.random())\n"
        "np.random.rand(), torch.rand(1), np.random.default_rng(0).random()\n",
        bytes_=f"# %% [markdown]\n# Two{'.' * 3}\n",
    )
    found = [*messages(report), *messages(check([tmp_path / "bytes.py"], root=tmp_path))]
    output = (
        'shows more than 2 kB of text, which nobody reads; show less, or set output = "1 MB" under [tool.proofread]'
    )
    assert found == [
        "failing.py:5: cell 2 failed with ZeroDivisionError: division by zero",
        "endless.py:2: cell 1 still running after 0.5 s; give it longer with `#| timeout: seconds`",
        "killed.py:2: cell 1 killed its process by signal SIGSEGV",
        "exits.py:2: cell 1 ended its process with exit code 0",
        "exits_quietly.py:3: cell 1 failed with SystemExit: 2",
        "syntax.py:5: cell 2 failed with SyntaxError: invalid syntax",
        f"loud.py:3: cell 1 {output}",
        f"loud_value.py:2: cell 1 {output}",
        "unseeded.py:5: cell 2 draws from torch's global random generator without seeding it; "
        "begin it with torch.manual_seed(...) or give it a torch.Generator of its own",
        "unseeded_python.py:5: cell 2 draws from Python's global random generator without seeding it; "
        "begin it with random.seed(...) or take a generator of its own, random.Random(seed)",
        "unseeded_numpy.py:5: cell 2 draws from NumPy's global random generator without seeding it; "
        "take a generator of its own, numpy.random.default_rng(seed)",
        "bytes.py:2: byte 0xe9 is not UTF-8; save the page as UTF-8",
    ]


@pytest.mark.lineage
def test_a_page_that_takes_more_memory_than_it_may_ends_at_the_line_that_does(tmp_path: Path) -> None:
    report = checked(
        tmp_path,
        Settings(memory=600 * MIB),
        hungry="# %%\nimport torch\n\n# %%\nkept = []\nwhile True:\n    kept.append(torch.ones(2**24))\n",
        hungry_python="# %%\nkept = []\nwhile True:\n    kept.append(bytearray(2**24))\n",
    )
    hungry, hungry_python = messages(report)
    memory = 'let it take less, or set memory = "8 GiB" under [tool.proofread] in pyproject.toml'
    assert hungry.startswith("hungry.py:7: cell 2 ran out of the 600 MiB that a page may take (RuntimeError: ")
    assert hungry.endswith(memory)
    assert hungry_python.startswith(
        "hungry_python.py:4: cell 1 ran out of the 600 MiB that a page may take (MemoryError"
    )
    assert hungry_python.endswith(memory)


def test_a_page_that_says_it_raises_may_not_mean_its_memory_or_its_noise(tmp_path: Path) -> None:
    report = checked(
        tmp_path,
        Settings(output=1_000),
        loud="# %%\n#| raises: ValueError\nprint('x' * 2000)\n\n# %%\nprint('never')\n",
    )
    assert len(messages(report)) == 1
    assert "cell 1 shows more than 1 kB" in messages(report)[0]


SLOW = """
# %%
import os, pathlib, subprocess

if __file__.endswith("WHERE"):
    child = subprocess.Popen(["sleep", "600"])
    pathlib.Path("FOLDER/pids.part").write_text(f"{os.getpid()} {child.pid}")
    os.rename("FOLDER/pids.part", "FOLDER/pids")
    child.wait()  # without end, and leaving the processor to others
"""


# What Linux alone has: it tells who has started what, and ends a process with its parent.
ALONE = """
import ctypes, os
exists, found = os.path.exists, ctypes.CDLL.__getattr__
os.path.exists = lambda path: path != "/proc/self/stat" and exists(path)
ctypes.CDLL.__getattr__ = lambda library, name: (lambda *_: -1) if name == "prctl" else found(library, name)
"""


@pytest.fixture(params=[("page.py", ""), ("program.py", "")])
def endless(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """The command at work on a page without end, or on a program: its process, and those of the page."""
    where, system = request.param
    (tmp_path / "page.py").write_text(SLOW.replace("WHERE", where).replace("FOLDER", str(tmp_path)))
    (tmp_path / "started").mkdir()
    (tmp_path / "started/sitecustomize.py").write_text(system)
    # Tests that a script starts in the background ignore the signal, and so would what they start.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    command = subprocess.Popen(
        [sys.executable, "-m", "proofread", "check", "page.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "started")},
        text=True,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    signal.signal(signal.SIGINT, before)
    until(lambda: (tmp_path / "pids").exists())
    pids = list(map(int, (tmp_path / "pids").read_text().split()))
    yield command, pids
    for pid in (command.pid, *pids):  # whoever is left holds the pipes open
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    command.communicate()


def until(condition: Callable[[], bool], told: str = "") -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"it does not happen; {told}"
        threading.Event().wait(0.02)


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    ("sent", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGHUP, 130), (signal.SIGKILL, -signal.SIGKILL)],
)
def test_who_stops_the_command_stops_all_that_it_started(
    endless: tuple[subprocess.Popen[str], list[int]], tmp_path: Path, sent: signal.Signals, code: int
) -> None:
    command, pids = endless
    children = [child.pid for child in psutil.Process(command.pid).children(recursive=True)]
    command.send_signal(sent)
    _, told = command.communicate(timeout=60)
    assert command.returncode == code, told
    until(lambda: all(map(gone, [*pids, *children])), told)
    assert not list(tmp_path.rglob("*.part")), told
    if sent is not signal.SIGKILL:
        assert told.splitlines()[-1] == "stopped; what had run to its end is kept"
        assert "Traceback" not in told


@pytest.mark.parametrize("endless", [("page.py", ALONE), ("program.py", ALONE)], indirect=True)
def test_where_no_system_tells_who_started_what_a_group_of_processes_ends(
    endless: tuple[subprocess.Popen[str], list[int]],
) -> None:
    command, pids = endless
    command.terminate()
    _, told = command.communicate(timeout=60)
    assert command.returncode == 130, told
    until(lambda: all(map(gone, pids)), told)


LEFT = """
# %%
import os, pathlib, signal, subprocess, sys

script = "import os, sys; open(sys.argv[1] + '.part', 'w').write(str(os.getpid())); os.rename(sys.argv[1] + '.part', "
script += "sys.argv[1]); os.closerange(0, 99); import threading; threading.Event().wait()"
read, write = os.pipe()
os.set_inheritable(write, True)
for name, options in {"child": {}, "session": {"start_new_session": True}}.items():
    subprocess.Popen([sys.executable, "-c", script, "FOLDER/WHERE-" + name + ".pid"], **options, pass_fds=[write])
if not os.fork():
    os.setsid()
    if not os.fork():
        os.execl(sys.executable, sys.executable, "-c", script, "FOLDER/WHERE-daemon.pid")
    os._exit(0)
os.close(write)
os.wait3(0)
os.read(read, 1)  # until all of them have closed it
END
"""


@pytest.mark.lineage
@pytest.mark.parametrize(
    "end", ["", "os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"], ids=["ends", "exit", "kill"]
)
@pytest.mark.parametrize("where", ["page", "program"])
def test_nothing_outlives_what_started_it(tmp_path: Path, where: str, end: str) -> None:
    text = LEFT.replace("END", end if where == "page" else f"if 'program' in __file__: {end or 0}")
    (tmp_path / "page.py").write_text(text.replace("FOLDER", str(tmp_path)).replace("WHERE", where))
    report = check([tmp_path / "page.py"], root=tmp_path, keep=False, programs=where == "program")
    assert bool(report.findings) == bool(end)
    pids = [int(file.read_text()) for file in tmp_path.glob("*.pid")]
    assert len(pids) == 3
    assert all(map(gone, pids))


def test_a_lock_of_a_program_that_was_killed_blocks_nobody(
    endless: tuple[subprocess.Popen[str], list[int]], tmp_path: Path
) -> None:
    endless[0].kill()
    endless[0].wait()
    (tmp_path / "page.py").write_text("# %%\nprint(1)\n")
    assert check([tmp_path / "page.py"], root=tmp_path).findings == []


def test_two_builds_at_once_run_a_page_once(tmp_path: Path) -> None:
    (tmp_path / "page.py").write_text("# %%\nwith open('runs', 'a') as runs:\n    print('run', file=runs)\n")
    command = [sys.executable, "-m", "proofread", "check", "page.py"]
    builds = [subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    told = [build.communicate()[1] for build in builds]
    assert [build.returncode for build in builds] == [0, 0], told
    assert (tmp_path / "runs").read_text() == "run\n"


PAGE = "# %%\nprint(1)\n"


@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EROFS])
def test_runs_that_cannot_be_kept_are_an_error_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: int
) -> None:
    def replace(*_: object) -> None:
        raise OSError(fault, os.strerror(fault))

    monkeypatch.setattr(files.os, "replace", replace)
    with pytest.raises(CacheError) as raised:
        checked(tmp_path, keep=True, page=PAGE)
    assert str(raised.value) == (
        f"runs cannot be kept in {tmp_path / '.cache/proofread'}: {os.strerror(fault)}; make room or make it writable, "
        "keep them elsewhere with cache under [tool.proofread] in pyproject.toml, or copy the project to a folder of "
        "yours"
    )
    assert not list(tmp_path.rglob("*.part"))


def test_a_cache_that_can_only_be_read_is_enough_where_nothing_has_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked(tmp_path, keep=True, page=PAGE)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("proofread.runs.cache.write", refuse)
    assert checked(tmp_path, keep=True, page=PAGE).findings == []


def test_a_run_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, task = Cache(tmp_path), Task("page.py", (Step(1, "x = 1"),))

    class Killed(BaseException):
        pass

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(files.os, "replace", die)
        with pytest.raises(Killed):
            kept.store(task, Outcome([Result()], files={}))
    assert kept.load(task) is None
    kept.store(task, Outcome([Result()], files={}))
    assert kept.load(task) is not None


def test_a_fault_of_ours_is_named_as_ours(tmp_path: Path) -> None:
    page = "# %%\nimport proofread.runs.kernel\n\ndef make(cells, wanted):\n    raise RuntimeError('KeyError: 3')\n\n"
    page += "proofread.runs.kernel.make = make\n"
    assert messages(checked(tmp_path, page=page)) == [
        "page.py:2: cell 1 has programs that cannot be made, a fault of proofread:"
    ]


def test_multiprocessing_does_in_a_page_what_it_does_in_a_script(tmp_path: Path) -> None:
    pages = {
        "pool": """
            # %%
            import multiprocessing
            from concurrent.futures import ProcessPoolExecutor

            open("runs", "a").write("run ")

            def square(number):
                return number * number

            with ProcessPoolExecutor(2) as pool:
                print([*pool.map(square, range(4))], multiprocessing.get_start_method())
            print(multiprocessing.parent_process(), multiprocessing.current_process().name)
            """,
        "loader": """
            # %%
            import torch

            torch.manual_seed(0)

            class Squares(torch.utils.data.Dataset):
                def __len__(self):
                    return 4

                def __getitem__(self, place):
                    return torch.tensor(place**2)

            print([batch.tolist() for batch in torch.utils.data.DataLoader(Squares(), batch_size=2, num_workers=2)])
            """,
        "spawned": """
            # %%
            import multiprocessing, os

            open("runs", "a").write("run ")
            if __name__ == "__main__":
                for method in ("spawn", "forkserver"):
                    with multiprocessing.get_context(method).Pool(1) as pool:
                        print(pool.map(abs, [-3]))
            """,
    }
    report = checked(tmp_path, **pages)
    assert messages(report) == []
    method = multiprocessing.get_all_start_methods()[0]
    printed = [checked.outputs(0)[0]["text"].splitlines() for checked in report.pages]
    assert printed == [[f"[0, 1, 4, 9] {method}", "None MainProcess"], ["[[0, 1], [4, 9]]"], ["[3]", "[3]"]]
    assert (tmp_path / "runs").read_text() == "run run "  # once each, by no child


def test_a_generator_without_a_seed_is_told_where_a_page_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "library.py").write_text(
        "import random, numpy as np\n\ndef make():\n    return np.random.default_rng()\n"
    )
    pages = {
        "by_numpy": "import numpy as np\nnp.random.default_rng().random()",
        "bits": "from numpy.random import PCG64, Generator\nGenerator(PCG64())",
        "by_python": "import random\nrandom.Random()",
        "by_torch": "import torch\ntorch.Generator().seed()",
        "named": "import torch\ng = torch.Generator()\ng.seed()",
        "project": "import library\nlibrary.make()",
        "good": "import random, tempfile, numpy as np, torch\nnp.random.default_rng(1), random.Random(2), PCG64(3)\n"
        "torch.Generator().manual_seed(4), tempfile.TemporaryDirectory(), np.random.RandomState(5)",
    }
    pages["good"] = "from numpy.random import PCG64\n" + pages["good"]
    report = checked(tmp_path, **{name: f"# %%\n{code};\n" for name, code in pages.items()})
    numpy = "cell 1 makes a random generator of NumPy's without seeding it; "
    numpy += "take a generator of its own, numpy.random.default_rng(seed)"
    python = "cell 1 makes a random generator of Python's without seeding it; "
    python += "begin it with random.seed(...) or take a generator of its own, random.Random(seed)"
    torch = (
        "cell 1 makes a random generator of torch's without seeding it; seed it with manual_seed(...) instead of seed()"
    )
    told = {"by_numpy": numpy, "bits": numpy, "by_python": python, "by_torch": torch, "named": torch, "project": numpy}
    assert messages(report) == [f"{name}.py:2: {said}" for name, said in told.items()]
    assert {finding.kind for finding in report.findings} == {"seed"}


@pytest.mark.lineage
def test_the_memory_of_a_page_is_that_of_all_that_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proofread.runs.server._PRELOADED_MEMORY", 300 * MIB)
    hungry = """
    # %%
    import os, signal

    for _ in range(4):
        if not os.fork():
            kept = bytearray(os.urandom(2**20)) * 150
            signal.pause()
    signal.pause()
    """
    shared = "# %%\nimport os\nkept = bytearray(b'1') * (200 * 2**20)\nfor _ in range(4):\n"
    shared += (
        "    if not os.fork():\n        os._exit(sum(kept[::4096]) * 0)\nprint([os.wait()[1] for _ in range(4)])\n"
    )
    report = checked(tmp_path, Settings(memory=250 * MIB), hungry=hungry, shared=shared)
    assert messages(report) == [
        "hungry.py:2: cell 1 holds more than 250 MiB of memory; "
        'let it take less, or set memory = "8 GiB" under [tool.proofread] in pyproject.toml'
    ]


def test_a_tag_that_is_nearly_one_of_ours_is_told_and_others_are_left_alone(tmp_path: Path) -> None:
    others = "'remove-input', 'remove-output', 'hide-cell', 'parameters', 'skip', 'hide-input', 'my-own'"
    page = f"# %% tags=[{others}]\nx = 1\n\n# %% tags=['hide-imput', 'raise-exception']\nx\n"
    there = (
        "There are check, claims, hide-input, hide-output, imports, no-snippet, raises-exception, remove-cell, solution"
    )
    assert messages(checked(tmp_path, page=page)) == [
        f"page.py:5: the tag hide-imput does nothing; hide-input may be meant. {there}",
        f"page.py:5: the tag raise-exception does nothing; raises-exception may be meant. {there}",
    ]


def test_an_option_that_there_is_not_is_told_with_and_without_a_colon(tmp_path: Path) -> None:
    page = "# %%\n#| freeze\nx = 1\n\n# %%\n#| skip: it takes an hour\nx\n"
    there = "there are alt, caption, raises, timeout, script, data and digits"
    assert messages(checked(tmp_path, page=page)) == [
        f"page.py:2: `#| freeze:` is no option; {there}",
        f"page.py:6: `#| skip:` is no option; {there}",
    ]


def test_what_keeps_figures_from_being_shown_is_named(tmp_path: Path) -> None:
    page = "# %%\n#| alt: a line\nimport matplotlib\nmatplotlib.use('Agg')\n"
    page += "import matplotlib.pyplot as plt\nplt.plot([1, 2]);\n"
    (message,) = messages(checked(tmp_path, page=page))
    assert message.startswith("page.py:2: cell 1 draws 0 figures but has 1 alt text; matplotlib draws with ")
    assert message.lower().endswith("agg, which shows none: leave out what chose it")


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_who_stops_a_build_leaves_nothing_in_the_temporary_folder(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, sent: signal.Signals
) -> None:
    temporary = tmp_path_factory.mktemp("t")  # with a short name, as those of sockets must be short
    page = "# %%\nimport os, pathlib, signal, tempfile\nkept = tempfile.mkdtemp()\n"
    (tmp_path / "page.py").write_text(page + "pathlib.Path('begun').touch()\nsignal.pause()\n")
    program = "from pathlib import Path; from proofread.checks.check import check; check([Path('page.py')])"
    command = subprocess.Popen(
        [sys.executable, "-c", program], cwd=tmp_path, env=os.environ | {"TMPDIR": str(temporary)}
    )
    until((tmp_path / "begun").exists)
    command.send_signal(sent)
    assert command.wait() == (-sent if sent is signal.SIGKILL else 128 + sent)
    # Only who lives can remove the folder of multiprocessing's own socket; that of torch is kept for its next import.
    allowed = ("torchinductor_", "pymp-")[: 1 + (sent is signal.SIGKILL)]
    until(lambda: all(each.name.startswith(allowed) for each in temporary.iterdir()))


def test_a_link_that_leads_to_itself_or_nowhere_is_no_page(tmp_path: Path) -> None:
    (tmp_path / "page.py").write_text(PAGE)
    (tmp_path / "loop.py").symlink_to("loop.py")
    (tmp_path / "gone.md").symlink_to("nowhere.md")
    assert find_pages([tmp_path]) == [tmp_path / "page.py"]
