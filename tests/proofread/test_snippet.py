"""Programs of cells: what of the page each has, and that each prints what its cell shows."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from proofread.checks.checked import Checked
from proofread.programs import Snippet, disagreement
from proofread.programs.trial import Ran, Trial
from proofread.settings import Settings

from .conftest import Project

# Each is one page: its cells, and what the last cell's program must have and must not have.
TRAPS = {
    name: (re.findall(r"^```cell\n(.*?)\n```$", cells, re.MULTILINE | re.DOTALL), json.loads(has), json.loads(lacks))
    for name, cells, has, lacks in re.findall(
        r"^## ([^\n]*)\n(.*?)^Has and lacks: `([^\n]*)`, `([^\n]*)`$",
        (Path(__file__).parent / "programs.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Checked]:
    """All traps, each run as a page."""
    project = Project(tmp_path_factory.mktemp("traps"))
    for trap, (cells, _, _) in TRAPS.items():
        project.write(f"{trap}.py", "".join(f"# %%\n{cell}\n\n" for cell in ["import torch", *cells]))
    report = project.check(*(f"{trap}.py" for trap in TRAPS), keep=False, programs=True)
    return dict(zip(TRAPS, report.pages, strict=True))


def last(checked: Checked) -> Snippet:
    return checked.snippets[max(checked.snippets)]


@pytest.mark.parametrize("trap", TRAPS)
def test_a_program_has_what_its_cell_needs_and_no_more(pages: dict[str, Checked], trap: str) -> None:
    cells, wanted, unwanted = TRAPS[trap]
    checked = pages[trap]
    assert [finding.message for finding in checked.findings] == []
    assert len(checked.snippets) == len(cells) + 1
    program = last(checked).text
    assert wanted in program
    assert unwanted not in program


def run(program: str, folder: Path) -> str:
    """Run a program as a reader would: in an empty folder, without anything of this project."""
    file = folder / "program.py"
    file.write_text(program)
    environment = {**os.environ, "MPLBACKEND": "agg"}
    done = subprocess.run([sys.executable, "-I", file], cwd=folder, capture_output=True, text=True, env=environment)
    return done.stdout + done.stderr


def test_a_program_says_where_it_is_from_and_runs_as_a_file(pages: dict[str, Checked], tmp_path: Path) -> None:
    program = pages["A hook"].program(4)
    assert program.startswith(f"# {pages['A hook'].page.path}, cell 5\nimport torch\n")
    assert run(program, tmp_path) == "[torch.Size([2])]\n"


def tried(project: Project, text: str) -> Checked:
    (checked,) = project.proofread(text, settings=Settings(), programs=True).pages
    return checked


def test_what_only_notebooks_have_is_a_finding_with_both_outputs(project: Project) -> None:
    checked = tried(project, "# %%\n1 + 1\n\n# %%\n_ * 2\n")
    (finding,) = checked.findings
    assert (finding.path, finding.line, finding.kind) == ("page.py", 5, "snippet")
    assert finding.message == (
        "cell 2: alone, its program does not run: NameError: name '_' is not defined; "
        "let it take what it needs from its page alone, or tag it no-snippet"
    )
    assert "NameError: name '_' is not defined" in finding.detail
    assert finding.detail.endswith("on the page:\n4")


def test_what_differs_from_run_to_run_is_a_finding_unless_no_reader_is_offered_it(project: Project) -> None:
    cell = "import time\ntime.perf_counter_ns()\n"
    checked = tried(project, f"# %%\n{cell}\n# %% tags=['no-snippet']\n{cell}\n# %% tags=['hide-input']\n{cell}")
    assert [(f.line, f.message.partition(";")[0]) for f in checked.findings] == [
        (2, "cell 1: alone, its program prints something else")
    ]
    assert list(checked.snippets) == [0]


def test_a_draw_without_a_seed_is_not_the_same_in_a_fork_and_is_told_of_once(project: Project) -> None:
    checked = tried(project, "# %%\nimport torch\ntorch.randn(3)\n")
    assert [finding.kind for finding in checked.findings] == ["seed"]


def test_a_program_seeds_those_generators_alone_that_it_draws_from(project: Project) -> None:
    checked = tried(
        project,
        """
        # %%
        import random
        import torch

        random.seed(3)
        torch.manual_seed(0);

        # %%
        if random.random() < 2: random.seed(5); print(torch.randn(2))

        # %%
        random.seed(7); print(random.random())
        """,
    )
    seeds = [[line for line in checked.snippets[cell].text.splitlines() if "seed(" in line] for cell in (1, 2)]
    assert seeds[0][:2] == ["random.seed(3)", "torch.manual_seed(0);"]
    assert seeds[1] == ["random.seed(7); print(random.random())"]


def test_a_cell_that_must_fail_fails_alone_too(project: Project) -> None:
    checked = tried(
        project,
        """
        # %%
        #| raises: ValueError: invalid literal
        done = [1]
        done.append(int("x"))
        done.append(2)

        # %%
        #| raises: IndexError
        print(done)
        done[5]

        # %% tags=["remove-cell"]
        hidden = 3

        # %%
        hidden, done
        """,
    )
    assert checked.findings == []
    assert sorted(checked.snippets) == [0, 1, 3]
    assert checked.snippets[1].raises == "IndexError: list index out of range"
    assert "hidden = 3" in checked.snippets[3].text


def test_magics_have_no_program_and_say_why(project: Project) -> None:
    checked = tried(project, "# %%\n%time x = 3\n")
    assert checked.findings == []
    assert checked.snippets[0].reason.startswith("it uses IPython's own syntax: get_ipython().run_line_magic('time'")


def test_a_syntax_error_that_is_shown_has_no_program_and_leaves_the_others_theirs(project: Project) -> None:
    page = "# %%\n#| raises: SyntaxError\nfor = 1\n\n# %%\nprint(2)\n"
    checked = tried(project, page)
    assert checked.findings == []
    assert checked.snippets[0].reason == "it is no Python, which is what it shows"
    assert checked.snippets[1].text.endswith("print(2)\n")


def test_an_address_is_an_address_in_capitals_too(project: Project) -> None:
    page = "# %%\nclass A:\n    def __repr__(self):\n        return f'<A at 0x{id(self):X}>'\n\n\nA()\n"
    assert tried(project, page).findings == []


def test_a_file_beside_the_page_is_named(project: Project) -> None:
    project.write("data.txt", "3")
    (finding,) = tried(project, "# %%\nopen('data.txt').read()\n").findings
    assert "alone, its program does not run: FileNotFoundError" in finding.message
    assert "'data.txt'; let it take what it needs from its page alone, or tag it no-snippet" in finding.message


def test_programs_are_kept_with_the_run(project: Project) -> None:
    page = "# %% [markdown]\n# Prose.\n\n# %%\na = 1\n\n# %%\na\n"
    (first,) = project.proofread(page, keep=True).pages
    (second,) = project.proofread(page.replace("Prose", "Words"), keep=True).pages
    assert (bool(first.why), second.why) == (True, "")
    assert first.snippets == second.snippets
    assert second.program(2) == "# page.py, cell 3\na = 1\n\nprint(a)\n"


def test_a_program_that_lies_is_told_what_it_does_instead() -> None:
    snippet = Snippet("print(1)\n", shows="1\n")
    assert disagreement(snippet, Ran("1\n")) is None
    assert disagreement(snippet, Ran("2\n")) == ("prints something else", "alone:\n2\non the page:\n1")
    failed = Ran("", "NameError: name 'x' is not defined", "Traceback")
    assert disagreement(snippet, failed) == (f"does not run: {failed.raised}", "alone:\nTraceback\non the page:\n1")


def test_a_program_that_does_not_end_is_ended(project: Project) -> None:
    (finding,) = tried(project, "# %%\n#| timeout: 1\nwhile 'program.py' in __file__:\n    pass\n").findings
    assert "its program does not run: TimeoutError: it ran for too long" in finding.message


def test_a_program_is_tried_anew_where_something_of_it_changed_and_only_then(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    check_module = sys.modules["proofread.checks.plan"]
    real = check_module.attempt

    def attempt(trials: Sequence[Trial], *given: Any, **settings: Any) -> Any:
        tried[:] = [trial.text for trial in trials]
        return real(trials, *given, **settings)

    monkeypatch.setattr(check_module, "attempt", attempt)
    monkeypatch.syspath_prepend(project.root)
    project.write("boat.py", "def crew():\n    return 3\n\n\ndef cargo():\n    return 4\n")

    def runs(page: str) -> list[str]:
        report = project.proofread(page, keep=True, settings=Settings(packages=("boat",)), programs=True)
        assert report.findings == []
        return [text.replace("\n", " ").strip() for text in tried]

    page = "# %%\n1 + 1\n\n# %%\nfrom boat import crew\n\ncrew()\n"
    crew = "from boat import crew  print(crew())"
    assert runs(page) == ["print(1 + 1)", crew]
    assert runs(page) == []
    assert runs("# %% [markdown]\n# Prose.\n\n" + page) == []
    assert runs(page.replace("1 + 1", "1 + 2")) == ["print(1 + 2)"]
    project.edit("boat.py", "return 4", "return 5")
    assert runs(page.replace("1 + 1", "1 + 2")) == ["print(1 + 2)", crew]


def test_a_program_that_failed_is_tried_again(project: Project) -> None:
    for _ in range(2):
        report = project.proofread("# %%\nimport time\ntime.perf_counter_ns()\n", keep=True, programs=True)
        assert [finding.kind for finding in report.findings] == ["snippet"]
