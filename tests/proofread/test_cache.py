from pathlib import Path

import pytest

from proofread import cache as cache_module
from proofread.cache import Cache
from proofread.check import Report, check
from proofread.kernel import Result, Step
from proofread.run import Outcome, Task

PAGE = """\
# %% [markdown]
# It gives three<!--== module.value -->.

# %%
import module

print(module.value, open("data.txt").read())
"""


class Project:
    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch):
        self.root = root
        monkeypatch.syspath_prepend(str(root))
        self.write("page.py", PAGE)
        self.write("module.py", "value = 3\n")
        self.write("data.txt", "one")

    def write(self, name: str, text: str) -> None:
        (self.root / name).write_text(text)

    def edit(self, name: str, old: str, new: str) -> None:
        text = (self.root / name).read_text()
        assert old in text
        self.write(name, text.replace(old, new))

    def check(self) -> Report:
        return check([self.root / "page.py"], root=self.root, cache=Path(".cache"))

    def output(self) -> tuple[bool, str]:
        """Whether the page ran, and what it printed."""
        (page,) = self.check().pages
        return page.ran, page.outputs(1)[0]["text"].strip()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    return Project(tmp_path, monkeypatch)


def test_an_unchanged_page_is_not_run_again(project: Project) -> None:
    assert project.output() == (True, "3 one")
    assert project.output() == (False, "3 one")
    assert project.check().findings == []


def test_prose_and_typed_figures_run_nothing_and_are_compared_all_the_same(project: Project) -> None:
    project.check()
    project.edit("page.py", "It gives three", "Another line.\n#\n# It gives four")
    report = project.check()
    assert [page.ran for page in report.pages] == [False]
    assert [str(finding) for finding in report.findings] == [
        "page.py:4: it says four, but module.value gives three",
    ]


@pytest.mark.parametrize(
    ("name", "old", "new", "printed"),
    [
        ("page.py", "print(module.value", "print(-module.value", "-3 one"),
        ("page.py", "<!--== module.value -->", "<!--== 0 + module.value -->", "3 one"),
        ("page.py", "# %%\n", "# $$v = 3$$ <!-- where: v = module.value -->\n\n# %%\n", "3 one"),
        ("module.py", "3", "4", "4 one"),
        ("data.txt", "one", "two", "3 two"),
    ],
    ids=["code", "expression", "formula", "module", "data"],
)
def test_no_output_outlives_what_it_was_made_from(
    project: Project, name: str, old: str, new: str, printed: str
) -> None:
    project.check()
    project.edit(name, old, new)
    assert project.output() == (True, printed)


def test_another_environment_is_another_key(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task("page.py", (Step(1, "x = 1"),))
    kept = Cache(project.root / ".cache")
    kept.store(task, Outcome([Result()], files=[]))
    assert kept.load(task) is not None
    for part, entry in enumerate(before := cache_module.environment()):
        changed = (*before[:part], entry + "!", *before[part + 1 :])
        monkeypatch.setattr(cache_module, "environment", lambda changed=changed: changed)
        assert kept.load(task) is None, entry


def test_the_environment_names_python_torch_and_the_engine() -> None:
    environment = " ".join(cache_module.environment())
    assert "3." in environment
    assert "torch-" in environment
    assert "kernel.py" in environment


def test_a_failed_run_is_not_kept(project: Project) -> None:
    project.edit("page.py", "import module\n", "import module\n1 / 0\n")
    assert len(project.check().findings) == 1
    assert not list(project.root.glob(".cache/*"))


def test_a_module_saved_while_the_page_runs_is_not_taken_for_the_one_that_was_read(project: Project) -> None:
    project.edit(
        "page.py", "import module\n", "import module, pathlib\npathlib.Path('module.py').write_text('value = 5')\n"
    )
    project.check()
    assert not list(project.root.glob(".cache/*.json"))


def test_a_damaged_file_is_a_run_that_was_not_kept(project: Project) -> None:
    project.check()
    (kept,) = (project.root / ".cache").glob("*.json")
    kept.write_text(kept.read_text()[:-20])
    assert project.output() == (True, "3 one")
    assert project.output() == (False, "3 one")
