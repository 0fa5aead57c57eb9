"""What a page's code can do to its run; each test starts children, so each does much in one page."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from proofread.runs.server import run
from proofread.runs.steps import Outcome, Result, Step, Task
from proofread.settings import Settings


def outcomes(root: Path, *pages: list[str | Step], **options: Settings) -> list[Outcome]:
    tasks = []
    for number, steps in enumerate(pages):
        taken = [Step(1, textwrap.dedent(step).strip()) if isinstance(step, str) else step for step in steps]
        tasks.append(Task(f"page{number}.py", tuple(taken)))
    ended = {event.place: event.outcome for event in run(tasks, root=root, **options) if event.step == 0}
    return [ended[place] for place in range(len(tasks))]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    """One page with each kind of output."""
    (outcome,) = outcomes(
        tmp_path_factory.mktemp("outputs"),
        [
            "import sys\nprint('out', end='')\nprint('put')\nprint('err', file=sys.stderr)\n1 + 1",
            "from IPython.display import HTML, Latex, Markdown, display\ndisplay(HTML('<b>x</b>'))\nLatex('$x$')",
            "import matplotlib.pyplot as plt\nplt.plot([1, 2]);",
            "x = 3;\nx;",
            Step(1, "1 / 0", raises=True),
            "import os, torch\nos.environ['OMP_NUM_THREADS'], torch.get_num_threads(), os.getcwd()",
            "%time y = 4\ny",
            Step(
                1,
                expressions=(
                    ("torch.ones(2, 3).shape", None),
                    ("torch.tensor(1.5)", None),
                    ("torch.eye(2) > 0", None),
                    ("torch.float32", None),
                    ("None", None),
                    ("x / 7", ".1%"),
                    ("missing", None),
                ),
            ),
        ],
    )
    assert outcome.stopped == ""
    json.dumps([result.outputs for result in outcome.results])
    return outcome.results


def test_printed_text_is_one_output_for_each_stream_and_the_last_value_follows(results: list[Result]) -> None:
    assert results[0].outputs == [
        {"output_type": "stream", "name": "stdout", "text": "output\n"},
        {"output_type": "stream", "name": "stderr", "text": "err\n"},
        {"output_type": "execute_result", "execution_count": None, "data": {"text/plain": "2"}, "metadata": {}},
    ]


def test_rich_outputs_keep_all_their_types(results: list[Result]) -> None:
    displayed, result = results[1].outputs
    assert displayed["output_type"] == "display_data"
    assert displayed["data"]["text/html"] == "<b>x</b>"
    assert result["output_type"] == "execute_result"
    assert result["data"]["text/latex"] == "$x$"


def test_a_plot_becomes_one_svg(results: list[Result]) -> None:
    (figure,) = results[2].outputs
    assert "<svg" in figure["data"]["image/svg+xml"]
    assert "<dc:date>" not in figure["data"]["image/svg+xml"]


def test_a_page_runs_in_the_root_on_one_thread_as_in_a_notebook(results: list[Result]) -> None:
    assert results[3].outputs == []  # a semicolon hides the value
    assert results[5].outputs[0]["data"]["text/plain"].startswith("('1', 1, '/")
    assert results[6].outputs[-1]["data"]["text/plain"] == "4"  # below a magic


def test_an_expected_exception_is_an_output_without_paths(results: list[Result]) -> None:
    (error,) = results[4].outputs
    assert (error["ename"], error["evalue"]) == ("ZeroDivisionError", "division by zero")
    assert len(error["traceback"]) == 1
    assert results[4].raised is not None


def test_values_of_expressions_are_plain_data(results: list[Result]) -> None:
    assert results[7].values == [[2, 3], 1.5, [[True, False], [False, True]], "torch.float32", None, "42.9%", None]
    assert results[7].errors == {6: "NameError: name 'missing' is not defined"}


def test_a_figure_is_drawn_the_same_in_every_run(tmp_path: Path) -> None:
    draw = ["import matplotlib.pyplot as plt\nplt.figure()\nplt.plot([1, 2])\nplt.fill_between([0, 1], [0, 1]);"]
    one, two = outcomes(tmp_path, draw, draw)
    assert one.results[0].outputs == two.results[0].outputs


def test_pages_do_not_see_each_other(tmp_path: Path) -> None:
    one, two = outcomes(tmp_path, ["x = 1\nx"], ["'x' in globals()"], settings=Settings(workers=1))
    assert one.results[0].outputs[0]["data"]["text/plain"] == "1"
    assert two.results[0].outputs[0]["data"]["text/plain"] == "False"


def test_pages_that_ask_for_more_time_begin_first_then_those_with_more_steps(tmp_path: Path) -> None:
    steps = {"short": [Step(1, "1")], "many": [Step(1, "1")] * 3, "slow": [Step(1, "1", timeout=300.0)]}
    tasks = [Task(name, tuple(each)) for name, each in steps.items()]
    began = [event.place for event in run(tasks, root=tmp_path, settings=Settings(workers=1)) if event.step == 1]
    assert began == [2, 1, 0]


def test_what_reads_a_run_never_imports_torch(tmp_path: Path) -> None:
    """Its import takes seconds, and all that a page sends is plain data."""
    program = textwrap.dedent("""
        import sys
        from pathlib import Path
        from proofread.runs.server import run
        from proofread.runs.steps import Step, Task

        steps = Step(1, "import torch\\ntorch.eye(2)", snippet=True), Step(2, "torch.ones(2).view(3)", raises=True)
        (outcome,) = [e.outcome for e in run([Task("page.py", steps)], root=Path.cwd()) if e.step == 0]
        assert outcome.machine and len(outcome.results) == 2 and outcome.snippets, outcome
        sys.exit("torch" in sys.modules)
    """)
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)


AHEAD = r"""
import json, sys
from pathlib import Path
from proofread.runs.server import run
from proofread.runs.steps import Step, Task
from proofread.settings import Settings
package = Path("made")
package.mkdir()
(package / "__init__.py").write_text("")
(package / "broken.py").write_text("def (")
(package / "latin.py").write_bytes(b"\xe9")
sys.path.insert(0, str(Path.cwd()))
watch = (
    "import builtins\ncompiled, own = [], builtins.compile\n"
    "builtins.compile = lambda text, file, *rest, **more: (compiled.append(file), own(text, file, *rest, **more))[1]"
)
code = "from made.part import double\nprint(double(2), any('part.py' in str(file) for file in compiled))"
task = Task("page.py", (Step(1, watch), Step(4, code)), ("made",))
told = []
for factor in (2, 2, 3):
    (package / "part.py").write_text(f"def double(x):\n    return {factor} * x\n")
    (ended,) = [e.outcome for e in run([task], root=Path.cwd(), settings=Settings(packages=("made",))) if not e.step]
    told.append(ended.results[1].outputs[0]["text"])
print(json.dumps(told))
"""


def test_packages_are_compiled_ahead_of_pages_and_again_when_they_change(tmp_path: Path) -> None:
    ran = subprocess.run([sys.executable, "-c", AHEAD], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    # What it gives, and whether its file was compiled once more.
    assert json.loads(ran.stdout) == ["4 False\n", "4 False\n", "6 True\n"]


LATE = r"""
import json
from pathlib import Path
from proofread.runs.server import run, warm
from proofread.runs.steps import Step, Task
warm([])  # no page names them: the server imports neither torch nor NumPy nor matplotlib
tried = {
    "seeds": "import {0}; {0}.{1}(0); x = {0}.{2}(3)",
    "draws": "import {0}; x = {0}.{2}(3)",
}
libraries = {"torch": ("torch", "manual_seed", "rand"), "NumPy": ("numpy.random", "seed", "rand")}
tasks = [
    Task(f"{library}.{name}", (Step(1, code.format(*words)),))
    for library, words in libraries.items() for name, code in tried.items()
]
between = "import torch; torch.manual_seed(0); import numpy.random; x = torch.rand(3)"
tasks.append(Task("torch.between", (Step(1, between),)))
figure = "from matplotlib.figure import Figure\nf = Figure(); f.subplots().plot([1, 2]);\nf"
tasks += [Task(f"figure.{i}", (Step(1, figure),)) for i in range(2)]
ended = {e.place: e.outcome for e in run(tasks, root=Path(".")) if not e.step}
print(json.dumps({
    task.path: [ended[i].stopped, ended[i].results[0].unseeded, ended[i].results[0].outputs]
    for i, task in enumerate(tasks)
}))
"""


def test_what_a_page_alone_imports_is_watched_from_its_import_on(tmp_path: Path) -> None:
    """The fork server imports what pages name; what comes with another module, it does not know of."""
    ran = subprocess.run([sys.executable, "-c", LATE], cwd=tmp_path, check=True, capture_output=True, text=True)
    given = json.loads(ran.stdout)
    figures = [given.pop(f"figure.{i}") for i in range(2)]
    assert given == {
        "torch.seeds": ["", "", []],
        "torch.draws": ["", "draws from torch's global random generator", []],
        "torch.between": ["", "", []],  # of what another import begins to watch, torch's generator is none
        "NumPy.seeds": ["", "", []],
        "NumPy.draws": ["", "draws from NumPy's global random generator", []],
    }
    assert figures[0] == figures[1], "its ids differ from run to run"
    assert "image/svg+xml" in figures[0][2][0]["data"]


def test_who_is_told_to_end_while_it_ends_says_nothing_of_it() -> None:
    code = (
        "import atexit, os, signal\natexit.register(os.kill, os.getpid(), signal.SIGTERM)\n"
        "from proofread.runs.server import warm\nwarm([])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
