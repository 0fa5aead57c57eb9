"""Pages get their processes as forks, or where there are none as new ones, and give the same."""

import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from proofread.processes.control import FORKS
from proofread.settings import Settings

from .conftest import Command, Project, found
from .test_serve import Server

PAGES = {
    "figure.py": """
        # %% [markdown]
        # # Figures
        #
        # It is 3<!--= total -->.

        # %%
        #| alt: a line
        import matplotlib.pyplot as plt
        import numpy as np

        rows = np.array([1, 2])
        total = rows.sum()
        plt.plot(rows);

        # %% [markdown]
        # $$\\sum_i r_i = t$$ <!-- where: r = rows; t = total -->

        # %%
        print(total)
        """,
    "faults.py": """
        # %%
        import random

        random.random();

        # %% [markdown]
        # It is 4<!--= 1 + random.Random(1).randint(1, 1) -->.

        # %%
        1 / 0
        """,
    "ends.py": "# %%\nimport os\n\nos._exit(3)\n",
}


def given(project: Project, start: str) -> list[tuple[list[str], list[object]]]:
    for name, text in PAGES.items():
        project.write(name, text)
    report = project.check(*PAGES, settings=Settings(start=start), keep=False, programs=True)
    return [(found(page), [page.outputs(place) for place in page.code]) for page in report.pages]


@pytest.mark.forks
def test_pages_give_the_same_as_forks_and_as_new_processes(project: Project) -> None:
    forked = given(project, "fork")
    assert forked == given(project, "spawn")
    assert [len(told) for told, _ in forked] == [0, 3, 1]


# What Windows has not, taken from every interpreter that is started with this on its path.
WITHOUT = """
import multiprocessing.context as context, multiprocessing.util, os, shutil, subprocess, sys
for name in ("fork", "forkpty", "setpgid", "killpg", "setsid", "posix_spawn"):
    if hasattr(os, name):
        delattr(os, name)
subprocess._USE_POSIX_SPAWN = False
sys.modules["posix"] = sys.modules["resource"] = None
sys.modules["multiprocessing.forkserver"] = None
context._concrete_contexts.pop("fork"), context._concrete_contexts.pop("forkserver")
context.DefaultContext.get_all_start_methods = lambda self: ["spawn"]
context._default_context = context.DefaultContext(context._concrete_contexts["spawn"])
import multiprocessing
multiprocessing.get_all_start_methods = context._default_context.get_all_start_methods
multiprocessing.get_context = context._default_context.get_context
multiprocessing.set_start_method = context._default_context.set_start_method
multiprocessing.get_start_method = context._default_context.get_start_method
"""


@pytest.fixture
def alone(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a module of Python in the project's folder, with some code in every interpreter that this starts."""

    def run(code: str, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        folder = tmp_path / "started"
        folder.mkdir(exist_ok=True)
        (folder / "sitecustomize.py").write_text(code)
        environment = os.environ | {"PYTHONPATH": str(folder)} | variables
        asked = [sys.executable, *command]
        return subprocess.run(asked, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    return run


Alone = Callable[..., subprocess.CompletedProcess[str]]


SITE = """
site_name: Ours
theme: mkdocs
plugins: [{proofread: {}}, {mkdocs-jupyter: {include: ['*.py'], execute: false}}]
"""


def test_without_forks_pages_are_checked_run_built_exported_fixed_and_tested_and_their_programs_are_tried(
    project: Project, alone: Alone
) -> None:
    for name, text in PAGES.items():
        project.write(f"docs/{name}", text)
    checked = alone(WITHOUT, "-m", "proofread", "check", "docs")
    assert checked.returncode == 1, checked.stderr
    lines = [line.partition(" ")[2] for line in checked.stdout.splitlines() if line.startswith("docs")]
    assert [re.sub(r"[:;].*| without seeding it.*", "", line) for line in lines] == [
        "cell 1 ended its process with exit code 3",
        "cell 1 draws from Python's global random generator",
        "it says 4, but 1 + random.Random(1).randint(1, 1) gives 2",
        "cell 3 failed with ZeroDivisionError",
    ], checked.stdout + checked.stderr
    assert 'Traceback (most recent call last):\n  File "docs/faults.py"' in checked.stdout
    assert "Traceback" not in checked.stderr
    shown = alone(WITHOUT, "-m", "proofread", "snippet", "docs/figure.py:19")
    assert "print(total)" in shown.stdout, shown.stderr
    project.write("docs/ends.py", "# %%\nx = 2\n\n# %% [markdown]\n# It is 1<!--= x -->.\n")
    ran = alone(WITHOUT, "-m", "proofread", "run", "docs/figure.py")
    assert "print(total)\n→ 3\n" in ran.stdout, ran.stderr
    fixed = alone(WITHOUT, "-m", "proofread", "fix", "docs/ends.py")
    assert fixed.returncode == 0, fixed.stderr
    assert "It is 2<" in project.read("docs/ends.py")
    (project.root / "docs/faults.py").unlink()
    project.write("docs/index.md", "# Home\n")
    project.write("mkdocs.yml", SITE)
    built = alone(WITHOUT, "-m", "mkdocs", "build", "--strict")
    assert built.returncode == 0, built.stderr
    assert "svg" in (project.root / "site/figure/index.html").read_text("utf-8")
    exported = alone(WITHOUT, "-m", "proofread", "export", "mkdocs.yml", "--output", "moved")
    assert exported.returncode == 0, exported.stderr
    assert "It is 3." in project.read("moved/docs/figure.md")
    project.write("pyproject.toml", '[tool.pytest.ini_options]\nproofread = ["docs"]\n')
    tested = alone(WITHOUT, "-m", "pytest", "docs", "-q", "-p", "no:cacheprovider")
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_without_forks_a_site_is_served_and_an_edit_is_shown(project: Project) -> None:
    project.write("sitecustomize.py", WITHOUT)
    project.write("mkdocs.yml", SITE)
    project.write("docs/index.md", "# Home\n")
    project.write("docs/page.py", "# %%\nimport os\n\nprint(hasattr(os, 'fork'), 1)\n")
    server = Server(project.root)
    try:
        assert "<pre>False 1\n" in server.get("page/")
        server.edit("docs/page.py", "# %%\nimport os\n\nprint(hasattr(os, 'fork'), 2)\n")
        assert "<pre>False 2\n" in server.get("page/")
    finally:
        server.close()


def test_forks_that_are_not_there_are_refused_with_the_remedy(project: Project, alone: Alone) -> None:
    project.write("page.py", "# %%\nprint(1)\n")
    asked = alone(WITHOUT, "-m", "proofread", "check", "--start", "fork", "page.py")
    assert asked.returncode == 2
    told = 'cannot be had on this system, which has no forks; take it out, or set start = "spawn"'
    assert asked.stderr == f"proofread: --start (fork) {told}\n"


def test_a_page_that_cannot_be_begun_is_told_with_its_cause_once_and_with_a_code_of_its_own(
    project: Project, alone: Alone
) -> None:
    project.write("page.py", "# %%\nimport torch\n")
    project.write("other.py", "# %%\nimport torch\n")
    for start in ("fork", "spawn") if FORKS else ("spawn",):
        for fault, told in {
            "raise OSError('libcudart.so.13: cannot open')": (
                "the import of torch failed with OSError: libcudart.so.13: cannot open; mend what is installed, until "
                'python -c "import torch" does not fail'
            ),
            "import os; os._exit(4)": "ended its process with exit code 4",
        }.items():
            if start == "spawn" and "_exit" in fault:
                continue  # such a page ended its process, as a finding says
            project.write("started/torch/__init__.py", fault)
            asked = alone("", "-m", "proofread", "check", "--start", start, "page.py", "other.py")
            assert asked.returncode == 3, asked.stderr
            assert asked.stdout == ""
            assert asked.stderr.count("pages cannot be run: ") == 1
            assert told in asked.stderr
            assert "Traceback" not in asked.stderr


# What no file can be written into, as on a disk that is full.
FULL = """
import os, sys
def refuse(event, given):
    if event == "open" and isinstance(given[0], str) and "WHERE" in given[0] and isinstance(given[2], int):
        if given[2] & (os.O_WRONLY | os.O_RDWR):
            raise OSError(28, "No space left on device", given[0])
sys.addaudithook(refuse)
"""


@pytest.mark.parametrize("where", ["proofread-", "programs-"])
def test_a_full_temporary_folder_is_told_once_and_blames_no_page(project: Project, alone: Alone, where: str) -> None:
    for name in ("page.py", "other.py"):
        project.write(name, "# %%\nprint(1)\n")
    for start in ("fork", "spawn") if FORKS else ("spawn",):
        full = FULL.replace("WHERE", where)
        asked = alone(full, "-m", "proofread", "check", "--no-cache", "--start", start, "page.py", "other.py")
        assert (asked.returncode, asked.stdout) == (3, ""), asked.stderr
        assert asked.stderr.count("pages cannot be run: ") == 1
        assert "No space left on device" in asked.stderr
        assert asked.stderr.endswith("; make room, or set TMPDIR to a folder that has some\n")
        assert "Traceback" not in asked.stderr


def test_asserts_of_a_page_hold_whatever_the_flags_of_who_checks_it(project: Project, alone: Alone) -> None:
    project.write("page.py", "# %%\nassert False\n")
    for start in ("fork", "spawn") if FORKS else ("spawn",):
        for command, variables in ((("-O",), {}), ((), {"PYTHONOPTIMIZE": "1"})):
            asked = alone("", *command, "-m", "proofread", "check", "--start", start, "page.py", **variables)
            assert "page.py:2: cell 1 failed with AssertionError" in asked.stdout, asked.stderr


def test_who_takes_warnings_for_errors_sees_those_of_pages_alone(project: Project, alone: Alone) -> None:
    project.write("page.py", "# %%\n#| alt: a line\nimport matplotlib.pyplot as plt\n\nplt.plot([1, 2]);\n")
    project.write("warns.py", "# %%\nimport warnings\n\nwarnings.warn('ours')\n")
    asked = alone("", "-W", "error", "-m", "proofread", "check", "page.py", "warns.py")
    assert asked.stdout.splitlines()[0] == "warns.py:4: cell 1 failed with UserWarning: ours", asked.stdout
    assert "; 1 finding" in asked.stderr


@pytest.mark.forks
def test_a_temporary_folder_with_a_long_name_is_one(project: Project, alone: Alone) -> None:
    code = "with multiprocessing.get_context('fork').Manager() as m:\n    print(m.list([1]))\n"
    project.write("page.py", f"# %%\nimport multiprocessing\n\n{code}")
    long = project.root / ("long" * 20)
    long.mkdir()
    asked = alone("", "-m", "proofread", "check", "page.py", TMPDIR=str(long))
    assert (asked.returncode, asked.stdout) == (0, ""), asked.stderr


HOSTILE = {
    "closes": "import os, time\nos.closerange(3, 4096)\ntime.sleep(10**6)",
    "patches": "import builtins\nbuiltins.len = lambda x: 0",
    "kills": "import os, signal, time\nos.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(10**6)",
    "writes": "import os, contextlib\nfor number in range(3, 4096):\n    with contextlib.suppress(OSError):\n"
    "        os.write(number, b'\\xff\\xfe no message \\xe9' * 3)",
    "stops": "import os, signal, time\nos.kill(os.getppid(), signal.SIGSTOP)\ntime.sleep(10**6)",
}


@pytest.mark.forks
def test_a_page_that_is_hostile_to_what_runs_it_is_told_of_at_its_cell_and_ends(
    project: Project, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, code in HOSTILE.items():
        project.write(f"{name}.py", f"# %%\n#| timeout: 4\n{code}\n")
    report = project.check(*(f"{name}.py" for name in HOSTILE), keep=False)
    babble = "cell 1 sent what cannot be read: it has changed a function of Python's own, or written into a file"
    told = {
        "closes": "cell 1 still running after 4 s",
        "patches": babble,
        "kills": "cell 1 was killed (SIGKILL), by its own code or by the system",
        "writes": babble,
        "stops": "cell 1 still running after 4 s",
    }
    for page in report.pages:
        (said,) = found(page)
        assert told[Path(page.page.path).stem] in said
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.lineage
@pytest.mark.forks
def test_a_page_that_stops_what_it_comes_from_keeps_nobody_waiting(project: Project) -> None:
    stopped = """
        # %%
        import os, signal

        stat = open(f"/proc/{os.getppid()}/stat").read()
        for pid in (os.getpid(), int(stat.rpartition(")")[2].split()[1]), os.getppid()):
            os.kill(pid, signal.SIGSTOP)
        """
    project.write("page.py", "# %%\nimport os, signal\n\nos.kill(os.getppid(), signal.SIGSTOP)\n")
    project.write("server.py", stopped.replace("# %%", "# %% tags=['no-snippet']"))
    project.write("other.py", "# %%\nprint(1)\n")
    report = project.check("page.py", "server.py", "other.py", keep=False, programs=True, settings=Settings(workers=1))
    assert [finding.message for finding in report.findings] == []


@pytest.mark.forks
def test_a_process_that_a_cell_forks_and_does_not_end_ends_with_the_cell(project: Project) -> None:
    report = project.proofread("""
        # %% tags=["no-snippet"]
        import os

        is_first = os.fork() > 0

        # %% [markdown]
        # It is 1<!--= int(is_first) -->.

        # %%
        print(is_first)
        """)
    assert found(report) == []
    assert report.pages[0].outputs(2)[0]["text"] == "True\n"


DIRECT = """
# %%
import os, subprocess, sys

print("one")
subprocess.run([sys.executable, "-c", "print('two')"])
print("three")
os.write(1, "fo\u00fcr\\n".encode())
os.write(2, b"five\\n")
print("six", file=sys.__stdout__)

# %%
os.write(1, b"x" * 300_000);
"""


def test_what_is_written_to_a_descriptor_stands_in_its_place_and_spoils_no_answer(
    project: Project, alone: Alone
) -> None:
    project.write("page.py", DIRECT)
    for start in ("fork", "spawn") if FORKS else ("spawn",):
        asked = alone("", "-m", "proofread", "check", "--json", "--no-cache", "--start", start, "page.py")
        (finding,) = json.loads(asked.stdout)["findings"]
        assert "cell 2 shows more than 200 kB of text" in finding["message"]
        assert "five" not in asked.stderr
    report = project.check("page.py", keep=False, programs=True)
    shown = [(each["name"], each["text"]) for each in report.pages[0].outputs(0)]
    assert shown == [("stdout", "one\ntwo\nthree\nfo\u00fcr\n"), ("stderr", "five\n"), ("stdout", "six\n")]


def test_a_page_with_the_name_of_a_module_of_pythons_own_is_none(project: Project, alone: Alone) -> None:
    project.write("pickle.py", "# %%\nprint(1)\n")
    for start in ("fork", "spawn") if FORKS else ("spawn",):
        asked = alone("", "-m", "proofread", "check", "--no-cache", "--start", start, "pickle.py")
        assert asked.returncode == 0, asked.stderr
        assert "Traceback" not in asked.stderr


@pytest.mark.forks
def test_a_program_that_is_hostile_to_what_runs_it_is_told_of_and_no_other(project: Project) -> None:
    project.write("good.py", "# %%\nprint(1)\n\n# %%\nprint(2)\n")
    for name in ("kills", "writes"):
        code = textwrap.indent(HOSTILE[name], "    ")
        project.write(f"{name}.py", f"# %%\nif __file__.endswith('program.py'):\n{code}\n")
    report = project.check("kills.py", "good.py", "writes.py", keep=False, programs=True)
    kills, good, _ = map(found, report.pages)
    assert "alone, its program does not run: SystemError: it was killed (SIGKILL)" in kills[0]
    assert good == []


def test_a_pool_takes_functions_and_classes_of_a_page_to_processes_that_are_no_forks(project: Project) -> None:
    report = project.proofread("""
        # %%
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor

        scale = 3

        class Number:
            def __init__(self, value):
                self.value = value

        def scaled(number):
            return Number(scale * number.value)

        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            made = [*pool.map(scaled, [Number(1), Number(2)])]
        print([each.value for each in made], type(made[0]) is Number)
        """)
    assert found(report) == []
    assert report.pages[0].outputs(0)[0]["text"] == "[3, 6] True\n"


@pytest.mark.parametrize("damage", [b"\xff", b"", b"\xe9 {"])
def test_what_is_kept_and_cannot_be_read_is_as_if_not_there(
    project: Project, command: Command, monkeypatch: pytest.MonkeyPatch, damage: bytes
) -> None:
    monkeypatch.chdir(project.root)
    project.write("page.py", "# %%\nprint(1)\n\n# %% [markdown]\n# It is 1<!--= int('1') -->.\n")
    project.write("fails.py", "# %%\n1 / 0\n")
    before = command("check", "page.py", "fails.py")[:2]
    assert before[0] == 1
    kept = [file for file in (project.root / ".cache").rglob("*") if file.is_file() and file.suffix != ".lock"]
    assert {"tried", "unkept"} <= {file.name for file in kept}
    for file in kept:
        if file.name != "lock":
            file.write_bytes(damage)
    assert command("check", "page.py", "fails.py")[:2] == before
    assert command("cache", "show")[0] == 0


def test_a_limit_that_binds_nothing_says_so(
    project: Project, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: not str(path).startswith("/proc") and exists(path))
    project.proofread("# %%\nx = 1\n", settings=Settings(memory=600 * 2**20))
    assert caplog.messages == [
        "memory (600 MiB) binds nothing here: this system does not tell what a page holds; check it on Linux"
    ]


def test_a_site_that_no_disk_has_room_for_is_told_with_the_remedy(project: Project, alone: Alone) -> None:
    project.write("docs/index.md", "# Home\n")
    project.write("mkdocs.yml", "site_name: Ours\ntheme: mkdocs\nplugins: [proofread]\n")
    built = alone(FULL.replace("WHERE", str(project.root / "site")), "-m", "mkdocs", "build")
    assert built.returncode == 1
    assert "the site cannot be written: [Errno 28] No space left on device: " in built.stderr
    assert built.stderr.rstrip().endswith("; make room, or set site_dir")
    assert "Traceback" not in built.stderr
