from collections.abc import Iterator
from pathlib import Path

import pytest

from proofread.keep import environment as environment_module
from proofread.keep import installed as installed_module
from proofread.runs import cache as cache_module
from proofread.runs.cache import Cache
from proofread.runs.steps import Outcome, Result, Step, Task

from .conftest import Project

VARIABLES = ["TORCH_LOGS", "ONEDNN_MAX_CPU_ISA", "DNNL_VERBOSE", "KMP_AFFINITY", "OPENBLAS_CORETYPE", "MKL_CBWR", "TZ"]
VARIABLES += ["ATEN_CPU_CAPABILITY", "LC_ALL", "LC_NUMERIC", "LANG", "LANGUAGE"]
PAGE = """\
# %% [markdown]
# It gives three<!--= module.value -->.

# %%
import module

print(module.value, open("data.txt").read())
"""


@pytest.fixture
def project(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.syspath_prepend(str(project.root))
    project.write("page.py", PAGE)
    project.write("module.py", "value = 3\n")
    project.write("data.txt", "one")
    return project


def output(project: Project) -> tuple[bool, str]:
    """Whether the page ran, and what it printed."""
    (page,) = project.check().pages
    return page.ran, page.outputs(1)[0]["text"].strip()


def test_prose_and_typed_figures_run_nothing_and_are_compared_all_the_same(project: Project) -> None:
    project.check()
    project.edit("page.py", "It gives three", "Another line.\n#\n# It gives four")
    project.edit("page.py", "# %%\n", "# %% [markdown]\n# Another cell.\n\n# %%\n")
    report = project.check()
    assert [page.ran for page in report.pages] == [False]
    assert [str(finding) for finding in report.findings] == [
        "page.py:4: it says four, but module.value gives three",
    ]


@pytest.mark.parametrize(
    ("name", "old", "new", "printed", "why"),
    [
        ("page.py", "print(module.value", "print(-module.value", "-3 one", "code cell 2 changed"),
        ("page.py", "<!--= module.value -->", "<!--= +module.value -->", "3 one", "what cell 1 says changed"),
        ("page.py", "three<!--= module.value -->", "nothing", "3 one", "what cell 1 says is gone"),
        ("page.py", "# %%\n", "# $$v = 3$$ <!-- where: v = module.value -->\n# %%\n", "3 one", "what cell 1 says"),
        ("module.py", "3", "4", "4 one", "module.py changed"),
        ("data.txt", "one", "two", "3 two", "data.txt changed"),
    ],
)
def test_no_output_outlives_what_it_was_made_from_and_why_is_told(
    project: Project, monkeypatch: pytest.MonkeyPatch, name: str, old: str, new: str, printed: str, why: str
) -> None:
    monkeypatch.chdir(project.root)
    assert [page.why for page in project.check().pages] == ["it has not run before"]
    assert [page.why for page in project.check().pages] == [""]
    project.edit(name, old, new)
    (page,) = project.check().pages
    assert page.outputs(1)[0]["text"].strip() == printed
    assert page.why.startswith(why)


def test_another_environment_is_another_key(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task("page.py", (Step(1, "x = 1"),))
    kept = Cache(project.root / ".cache")
    kept.store(task, Outcome([Result()], files={}))
    assert kept.load(task) is not None
    for name, value in (before := environment_module.environment()).items():
        monkeypatch.setattr(cache_module, "environment", lambda name=name, value=value: before | {name: value + "!"})
        assert kept.load(task) is None, name
        assert name in kept.why(task)


def test_the_environment_knows_python_the_machine_its_libraries_and_the_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environment = environment_module.environment()
    machine = {"the platform", "the processor", "the GPU"}
    assert environment.keys() >= {"Python", *machine, "what Python starts with", "proofread"}
    for name in VARIABLES:
        monkeypatch.setenv(name, "set")
    others = ("EDITOR", "TORCHINDUCTOR_CACHE_DIR")  # no setting: PyTorch's compiler sets it for what it starts
    for name in others:
        monkeypatch.setenv(name, "set")
    found = environment_module.environment.__wrapped__()
    assert {f"${name}" for name in VARIABLES} <= found.keys()
    assert not {f"${name}" for name in others} & found.keys()


def test_another_processor_is_told_from_this_one_by_what_it_can_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def processor(told: str) -> str:
        monkeypatch.setattr(environment_module, "cpuinfo", lambda: told)
        return environment_module.environment.__wrapped__()["the processor"]

    epyc = "model name\t: AMD EPYC\ncpu MHz\t\t: 2400.1\nflags\t\t: sse2 avx2 avx512f\n"
    assert processor(epyc) == processor(epyc.replace("2400.1", "3100.7"))
    assert processor(epyc) == processor(f"processor\t: 0\n{epyc}\nprocessor\t: 1\n{epyc}")
    arm = "CPU part\t: 0xd40\nFeatures\t: fp asimd sve\n"
    others = [epyc.replace(" avx512f", ""), epyc.replace("EPYC", "Ryzen"), arm, arm.replace("0xd40", "0xd0c"), ""]
    assert len({processor(told) for told in [epyc, *others]}) == 6


STARTS = {
    "subprocess": "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import package.part'], check=True)",
    "os.system": "import os, sys\nassert not os.system(sys.executable + ' -c \"import package.part\"')",
    "spawn": (
        "import importlib, multiprocessing\n"
        "child = multiprocessing.get_context('spawn').Process(target=importlib.import_module, args=('package.part',))\n"
        "child.start()\nchild.join()\nassert not child.exitcode"
    ),
    "fork": "import os\nchild = os.fork()\nif not child:\n    os._exit(0)\nos.waitpid(child, 0)",
}


@pytest.mark.parametrize("start", STARTS)
def test_a_page_that_starts_a_process_depends_on_all_sources_of_the_packages(
    project: Project, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(project.root))
    project.write("package/__init__.py", "")
    project.write("package/part.py", "value = 3\n")
    project.write("pyproject.toml", '[tool.proofread]\npackages = ["package"]\n')
    project.write("page.py", f"# %%\n{STARTS[start]}\n")
    project.write("alone.py", "# %%\nimport package\n")
    assert project.check("page.py", "alone.py").findings == []
    assert [page.ran for page in project.check("page.py", "alone.py").pages] == [False, False]
    project.edit("package/part.py", "3", "4")
    assert [page.ran for page in project.check("page.py", "alone.py").pages] == [True, False]


def test_a_script_that_a_page_starts_is_one_of_its_files(project: Project) -> None:
    project.write("script.py", "value = 3\n")
    code = "import subprocess, sys\nsubprocess.run([sys.executable, 'script.py'], check=True)\n"
    project.write("page.py", f"# %%\n{code}")
    project.check()
    assert not project.check().pages[0].ran
    project.edit("script.py", "3", "4")
    assert project.check().pages[0].ran


class Installer:
    """Installs distributions that hold nothing, each with the file of a module's name."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch):
        self.folder = folder
        folder.mkdir()
        monkeypatch.syspath_prepend(str(folder))

    def install(self, name: str, version: str = "1.0", files: str = "", points: str = "", needs: str = "") -> None:
        for old in self.folder.glob(f"{name}-*"):
            old.rename(self.folder / f"removed {old.name}.{version}")
        information = self.folder / f"{name}-{version}.dist-info"
        information.mkdir()
        (information / "RECORD").write_text(f"{files or name}/__init__.py,sha256={version},10\n")
        (information / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n{needs}\n")
        (information / "entry_points.txt").write_text(points)
        self.forget()

    @staticmethod
    def forget() -> None:
        installed_module.distributions.cache_clear()
        installed_module._answer.cache_clear()


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installer]:
    yield Installer(tmp_path / "installed", monkeypatch)
    Installer.forget()


PLUGINS = {"points": "[late.plugins]\nname = it:it\n"}
METADATA = "from importlib.metadata import "
# What a page does, what a distribution brings that comes then, and whether the page runs again.
BY_NAME = {
    "imports it": ("try:\n    import later\nexcept ImportError:\n    later = None", {"files": "later"}, True),
    "looks for it": ("import importlib.util\nassert not importlib.util.find_spec('later')", {"files": "later"}, True),
    "asks for its version": (
        f"{METADATA}PackageNotFoundError, version\n"
        "try:\n    version('It')\nexcept PackageNotFoundError:\n    pass\nelse:\n    raise AssertionError",
        {},
        True,
    ),
    "asks for a group": (f"{METADATA}entry_points\nassert not entry_points(group='late.plugins')", PLUGINS, True),
    "lists all that is installed": (f"{METADATA}distributions\nassert [*distributions()]", {}, True),
    "starts a process": ("import subprocess, sys\nsubprocess.run([sys.executable, '-c', ''], check=True)", {}, True),
    "asks for nothing of it": (f"import torch\n{METADATA}version\nversion('torch')", {}, False),
    "asks for other plugins": (f"{METADATA}entry_points\nentry_points(group='other')", PLUGINS, False),
    # As triton does, which PyPI's torch for Linux brings.
    "takes a group of all": (f"{METADATA}entry_points\nentry_points().select(group='late.plugins')", PLUGINS, True),
    "takes another of all": (
        f"{METADATA}entry_points\nassert not entry_points().select(group='other')",
        PLUGINS,
        False,
    ),
    "takes a name of all": (f"{METADATA}entry_points\nentry_points().select(name='name')", PLUGINS, True),
    "asks for a name": (f"{METADATA}entry_points\nentry_points(name='name')", PLUGINS, True),
    "lists all groups": (f"{METADATA}entry_points\nassert entry_points().groups", PLUGINS, True),
    "lists all plugins": (f"{METADATA}entry_points\nassert [*entry_points()]", PLUGINS, True),
    "counts all plugins": (f"{METADATA}entry_points\nassert len(entry_points())", PLUGINS, True),
}


@pytest.mark.parametrize("asks", BY_NAME)
def test_what_comes_by_pip_runs_the_pages_again_that_asked_for_it(project: Project, pip: Installer, asks: str) -> None:
    code, brings, again = BY_NAME[asks]
    project.write("page.py", f"# %%\n{code}\n")
    assert project.check().findings == []
    pip.install("it", **brings)
    assert [page.why for page in project.check().pages] == ["it came" * again]


def test_a_distribution_of_another_version_or_build_is_another_one(project: Project, pip: Installer) -> None:
    pip.install("base")
    pip.install("top", needs="Requires-Dist: base>=1\nRequires-Dist: more; extra == 'more'")
    project.write("page.py", "# %%\nfrom importlib.metadata import version\nversion('top')\n")
    project.check()
    assert not project.check().pages[0].ran
    pip.install("more")
    assert not project.check().pages[0].ran
    (pip.folder / "top-1.0.dist-info" / "RECORD").write_text("top/__init__.py,sha256=another,10")
    pip.forget()
    assert project.check().pages[0].why == "top changed"
    pip.install("top", "2.0", needs="Requires-Dist: base>=1")
    assert project.check().pages[0].why == "top 1.0 is now 2.0"
    pip.install("base", "1.5")
    assert project.check().pages[0].why == "base 1.0 is now 1.5"


def test_what_is_installed_is_the_same_to_who_has_the_project_on_its_path(
    project: Project, pip: Installer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip.install("it", files="later")
    project.write("it.egg-info/top_level.txt", "later\n")
    project.write("page.py", "# %%\nimport importlib.util\nimportlib.util.find_spec('later')\n")
    assert project.check().pages[0].ran
    monkeypatch.syspath_prepend(str(project.root))  # as pytest does, and the command does not
    pip.forget()
    assert [page.why for page in project.check().pages] == [""]


def test_what_is_installed_is_the_same_to_who_has_imported_setuptools(
    project: Project, pip: Installer, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("page.py", f"# %%\n{BY_NAME['starts a process'][0]}\n")
    assert project.check().pages[0].ran
    carried = pip.folder / "setuptools" / "_vendor"
    (carried / "it-1.0.dist-info").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(carried))
    pip.forget()
    assert [page.why for page in project.check().pages] == [""]


def test_what_python_starts_with_is_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("site.getsitepackages", lambda: [str(tmp_path)])
    before = environment_module.environment.__wrapped__()["what Python starts with"]
    (tmp_path / "late.pth").write_text("import os")
    assert environment_module.environment.__wrapped__()["what Python starts with"] != before


def test_a_page_keeps_its_latest_three_runs(project: Project) -> None:
    for number in range(5):
        project.write("page.py", f"# %%\nprint({number})\n")
        project.check()
    assert len(list(project.root.glob(".cache/proofread/runs/*/*.json"))) == 3
    assert not project.check().pages[0].ran


def test_what_was_kept_of_an_earlier_version_is_taken_when_a_page_goes_back_to_it(project: Project) -> None:
    assert output(project) == (True, "3 one")
    project.edit("module.py", "3", "4")
    assert output(project) == (True, "4 one")
    project.edit("module.py", "4", "3")
    assert output(project) == (False, "3 one")
    project.edit("module.py", "3", "4")
    assert output(project) == (False, "4 one")


def test_a_module_saved_while_the_page_runs_is_not_taken_for_the_one_that_was_read(project: Project) -> None:
    project.edit(
        "page.py", "import module\n", "import module, pathlib\npathlib.Path('module.py').write_text('value = 5')\n"
    )
    project.check()
    assert not list(project.root.glob(".cache/proofread/runs/*/*.json"))


# What a page does, what file is then written, or removed, and by what name the change is told.
LATER, NEW, OLD = ("later.txt", "here"), ("data/new.csv", "1"), ("data/old.csv", "2")
READS = {
    "a path that was looked for": ("import os\nprint(os.path.exists('later.txt'))", LATER, "later.txt came"),
    "pathlib": ("import pathlib\nprint(pathlib.Path('later.txt').is_file())", LATER, "later.txt came"),
    "an open that failed": (
        "import contextlib\nwith contextlib.suppress(OSError):\n    print(open('later.txt').read())",
        LATER,
        "later.txt came",
    ),
    "a glob": ("import glob\nprint(len(glob.glob('data/*.csv')))", NEW, "what is in data changed"),
    "a glob that goes down": (
        "import pathlib\nprint(len([*pathlib.Path('data').rglob('*.csv')]))",
        ("data/down/new.csv", "1"),
        "what is in data/down changed",
    ),
    "a list": ("import os\nprint(len(os.listdir('data')))", ("data/old.csv", None), "what is in data changed"),
    "a file that a process is given": (
        "import subprocess\nprint(subprocess.run(['cat', 'data/old.csv'], capture_output=True).stdout)",
        OLD,
        "data/old.csv changed",
    ),
    "files that a shell finds": ("import os\nos.system('cat data/*.csv; echo')", OLD, "data/old.csv changed"),
    "a line that begins with an exclamation mark": ("!cat data/old.csv", OLD, "data/old.csv changed"),
    "a file that a forked process reads": (
        "import multiprocessing, pathlib\nread = pathlib.Path('data/old.csv').read_text\n"
        "child = multiprocessing.get_context('fork').Process(target=read)\nchild.start()\nchild.join()",
        OLD,
        "data/old.csv changed",
    ),
}


@pytest.mark.parametrize("reads", READS)
def test_whatever_a_page_looks_at_is_what_it_depends_on(
    project: Project, monkeypatch: pytest.MonkeyPatch, reads: str
) -> None:
    monkeypatch.chdir(project.root)
    code, (name, text), why = READS[reads]
    (project.root / "data/down").mkdir(parents=True)
    project.write("data/old.csv", "1")
    project.write("page.py", f"# %%\n{code}\n")
    assert project.check().findings == []
    assert project.check().pages[0].why == ""
    project.write("unseen.txt", "nobody looks for it")
    assert project.check().pages[0].why == ""
    project.write(name, text) if text else (project.root / name).unlink()
    assert project.check().pages[0].why == why


ASKS = {
    "os.environ": "import os\nprint('MODE' in os.environ and os.environ['MODE'])",
    "get": "import os\nprint(os.environ.get('MODE', 'none'))",
    "getenv": "from os import getenv\nprint(getenv('MODE'))",
    "a module": "import module\nprint(module.mode)",
}


@pytest.mark.parametrize("asks", ASKS)
def test_a_variable_that_a_page_asks_for_is_what_it_depends_on(
    project: Project, monkeypatch: pytest.MonkeyPatch, asks: str
) -> None:
    project.write("module.py", "import os\n\nmode = os.environ.get('MODE')\n")
    project.write("page.py", f"# %%\n{ASKS[asks]}\n")
    printed = []
    changes = ("one", "it has not run before"), ("one", ""), ("two", "$MODE changed"), (None, "$MODE is gone")
    for value, why in changes:
        monkeypatch.setenv("MODE", value) if value else monkeypatch.delenv("MODE")
        monkeypatch.setenv("OTHER", str(value))
        (page,) = project.check().pages
        assert page.why == why
        printed.append(page.outputs(0)[0]["text"].strip())
    assert printed[:3] == ["one", "one", "two"]
    assert printed[3] in ("None", "none", "False")


def test_variables_that_are_only_passed_on_or_set_by_the_page_are_none_that_it_depends_on(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import os\nkept = {**os.environ, 'A': '1'}, os.environ.copy(), dict(os.environ)\n"
    project.write("page.py", f"# %%\n{code}os.environ['OWN'] = 'set'\nprint(os.environ['OWN'])\n")
    for value in ("one", "two"):
        monkeypatch.setenv("MODE", value)
        monkeypatch.setenv("OWN", value)
        project.check()
    assert not project.check().pages[0].ran


def test_a_page_has_no_terminal_however_wide_it_is_of_who_runs_it(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks = "print(os.environ.get('COLUMNS'), shutil.get_terminal_size().columns)"
    project.write("page.py", f"# %%\nimport os, shutil\n{asks}\n")
    for columns in ("40", "132"):
        monkeypatch.setenv("COLUMNS", columns)
        (page,) = project.check().pages
        assert page.outputs(0)[0]["text"].split()[-1] == "80"
    assert not page.ran


def test_what_a_page_writes_itself_is_nothing_that_it_read(project: Project) -> None:
    code = "import os, pathlib\npathlib.Path('own.txt').write_text('1')\nos.rename('own.txt', 'mine.txt')\n"
    project.write("page.py", f"# %%\n{code}print(open('mine.txt').read())\n")
    assert project.check().findings == []
    assert not project.check().pages[0].ran


def test_why_a_run_was_not_kept_is_told(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.root)
    project.write("page.py", "# %%\nimport os\nprint(open('data.txt').read())\nos.system('echo 2 > data.txt');\n")
    assert [project.check().pages[0].why for _ in range(2)] == [
        "it has not run before",
        "data.txt was written while it ran",
    ]
    project.write("page.py", "# %%\n#| timeout: 0.5\nwhile True:\n    pass\n")
    assert [project.check().pages[0].why for _ in range(2)] == [
        "it has not run before",
        "its last run was stopped (still running after 0.5 s), and is tried again each time",
    ]
    project.write("page.py", "# %%\n1 / 0\n")
    assert [project.check().pages[0].why for _ in range(2)] == ["it has not run before", "its last run failed"]


def test_a_bit_that_flips_in_what_is_kept_is_found(project: Project) -> None:
    project.write("page.py", "# %% [markdown]\n# Two $x$<!-- unchecked: a name -->.\n\n# %%\nprint('right')\n")
    project.check()
    for file in filter(Path.is_file, (project.root / ".cache/proofread").rglob("*.json")):
        text = file.read_text()
        file.write_text(text.replace("right", "wrong").replace("Two", "Six"))
    (page,) = project.check().pages
    assert (page.ran, page.outputs(1)[0]["text"]) == (True, "right\n")
    assert page.page.cells[0].source.startswith("Two")


def test_a_run_leaves_nothing_beside_the_sources(project: Project) -> None:
    assert project.check().findings == []
    assert {path.name for path in project.root.iterdir()} == {"page.py", "module.py", "data.txt", ".cache"}
