"""Each of these runs pytest on a small project: as its owner would where processes matter, else in this process."""

import os
import subprocess
import sys

import pytest

from .conftest import Project

pytest_plugins = ["pytester"]

PAGE = """\
# %% [markdown]
# # All 3<!--= n --> words
#
# It keeps 55%<!--= share --> and more than half.

# %%
n, share = 3, 0.5512
print(n)

# %% [markdown]
# $$s = 0.5512 \\tag{1.1}$$
# <!-- where: s = share -->

# %% tags=["claims"]
assert share > 0.5, "more than half"
"""


class Pytested(Project):
    def __init__(self, pytester: pytest.Pytester):
        super().__init__(pytester.path)
        self._pytester = pytester
        self.write("pytest.ini", "[pytest]\nproofread = docs\naddopts = --doctest-modules\nfilterwarnings = error\n")
        self.write("docs/page.py", PAGE)
        self.write("docs/plain.md", "# Plain\n\nNothing runs here.\n")
        self.write("README.md", "Not a page: 42\n")

    def pytest(self, *arguments: str) -> tuple[int, list[str]]:
        """Exit code and output."""
        # The server that forks for pages is this process's own: a new one would import torch for each of these runs.
        told = self._pytester.runpytest_inprocess("-q", "--color=no", *arguments)
        return int(told.ret), told.outlines + told.errlines

    def command(self, *arguments: str) -> tuple[int, list[str]]:
        """Exit code and output of the command, in a process of its own."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        command = [sys.executable, "-m", "pytest", "-q", "--color=no", *arguments]
        told = subprocess.run(command, cwd=self.root, env=environment, text=True, capture_output=True)
        return told.returncode, (told.stdout + told.stderr).splitlines()


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Pytested:
    for name in [name for name in os.environ if name.startswith("PYTEST_XDIST")]:
        monkeypatch.delenv(name)
    return Pytested(pytester)


def test_everything_that_is_checked_is_a_test_named_by_its_line(project: Pytested) -> None:
    code, told = project.pytest("--collect-only")
    assert code == 0
    assert told[: told.index("")] == [
        "docs/page.py::2 value 3 = n",
        "docs/page.py::4 value 55% = share",
        "docs/page.py::7 cell 2",
        "docs/page.py::7 snippet 2",
        "docs/page.py::11 formula (1.1)",
        "docs/page.py::11 formula (1.1) mutants",
        "docs/page.py::15 claim more than half",
        "docs/page.py::page",
        "docs/plain.md::page",
    ]


def test_a_failure_shows_the_sentence_and_both_values_and_the_rest_passes(project: Pytested) -> None:
    project.write("docs/page.py", PAGE.replace("55%", "54%"))
    code, told = project.pytest()
    assert code == 1
    assert "docs/page.py:4: it says 54%, but share gives 55%" in told
    assert "    # It keeps 54%<!--= share --> and more than half." in told
    assert "FAILED docs/page.py::4 value 54% = share" in "\n".join(told)
    assert told[-1].startswith("1 failed, 8 passed")
    assert not any("Traceback" in line or ".py:1:" in line for line in told)

    project.write("docs/page.py", PAGE.replace("55%<!--= share", "54%<!--= [share, n][0]"))
    assert project.pytest("docs/page.py::4 value 54% = [share, n][0]")[1][-1].startswith("1 failed")
    assert project.pytest("-k", "claim and half")[1][-1].startswith("1 passed, 8 deselected")
    project.write("docs/page.py", PAGE)
    assert project.pytest("--lf")[1][-1].startswith("9 passed")  # the test that failed is no more


def test_the_programs_are_tried_whose_tests_were_selected(project: Pytested) -> None:
    ran = project.root / "ran"
    project.write(
        "docs/page.py", f'# %%\nn = 3\nn\n\n# %%\nwith open({str(ran)!r}, "a") as file:\n    file.write("x");\n'
    )
    assert project.pytest("-k", "snippet and 1")[1][-1].startswith("1 passed")
    assert ran.read_text() == "x"  # by the page
    assert project.pytest("-k", "snippet")[1][-1].startswith("2 passed")
    assert ran.read_text().startswith("xx")


def test_what_a_failed_page_did_not_come_to_is_skipped_and_says_why(project: Pytested) -> None:
    project.write("docs/page.py", PAGE.replace("print(n)", "1 / 0"))
    code, told = project.pytest("-rs")
    assert code == 1
    assert told[-1].startswith("1 failed, 2 passed, 6 skipped")
    assert "docs/page.py:8: cell 2 failed with ZeroDivisionError" in "\n".join(told)
    assert any("the page did not come to this: docs/page.py:8: cell 2 failed" in line for line in told)


def test_what_belongs_to_no_one_test_fails_the_page_as_such(project: Pytested) -> None:
    project.write("docs/plain.md", "# Plain\n\nAll 42 of them.\n")
    code, told = project.pytest("docs/plain.md")
    assert code == 1
    assert any(line.startswith("docs/plain.md:3: nothing proves the value 42") for line in told)
    (project.root / "docs/plain.md").write_bytes(b"caf\xe9\n")
    assert "docs/plain.md:1: byte 0xe9 is not UTF-8; save the page as UTF-8" in project.pytest("docs/plain.md")[1]


def test_a_formula_that_would_pass_if_it_were_wrong_fails(project: Pytested) -> None:
    page = PAGE.replace("s = 0.5512 \\tag{1.1}", "s = t + u").replace("s = share", "s, t, u = same")
    project.write("docs/page.py", page.replace("n, share =", "same = 6., 3., 3.\nn, share ="))
    code, told = project.pytest("-k", "mutants")
    assert code == 1, told
    assert any("cannot tell `" in line for line in told)


def test_workers_share_the_runs_and_no_cache_means_none(project: Pytested) -> None:
    appends = "\n# %%\nwith open({!r}, 'a') as file:\n    _ = file.write('x')\n"
    project.write("docs/page.py", PAGE + appends.format("runs") + appends.format(str(project.root / "tried")))
    assert project.command("-n", "2")[1][-1].startswith("13 passed")
    assert (project.root / "tried").read_text() == "xx"  # by the page, and by the cell's program
    once = (project.root / "runs").read_text()
    assert project.pytest()[0] == 0
    assert (project.root / "runs").read_text() == once
    assert project.pytest("--proofread-no-cache")[0] == 0
    assert len((project.root / "runs").read_text()) > len(once)


def test_a_project_that_does_not_ask_has_no_pages_collected(project: Pytested) -> None:
    project.write("pytest.ini", "[pytest]\n")
    assert project.pytest()[0] == pytest.ExitCode.NO_TESTS_COLLECTED


def test_a_page_alone_is_held_to_the_equations_of_all_pages(project: Pytested) -> None:
    project.write("docs/plain.md", "# Plain\n\nBy equation (1.1) and (1.1).\n")
    project.write("pyproject.toml", '[tool.proofread]\npages = ["docs"]\n')
    assert project.pytest("docs/plain.md")[0] == 0
    project.write("docs/plain.md", "# Plain\n\nBy equation (1.1) and (1.2).\n")
    code, told = project.pytest("docs/plain.md")
    assert code == 1
    assert "docs/plain.md:3: there is no equation (1.2); there are (1.1)" in told
