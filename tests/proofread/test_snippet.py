"""Programs of cells: what of the page each has, and that each prints what its cell shows."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from proofread.checks.check import check
from proofread.checks.checked import Checked
from proofread.programs import Snippet
from proofread.programs.trial import Trial
from proofread.settings import Settings

# Each page is one trap: the last cell's program must have the first text, and must not have the second.
TRAPS = {
    "what a cell does not need": ("a = 1", "b = ", ["a = 1\nb = 2", "b += 1", "a"]),
    "a function finds its globals when it is called": (
        "factor = 3",
        "factor = 2",
        ["factor = 2\ndef scale(x):\n    return factor * x", "factor = 3", "scale(5)"],
    ),
    "a function in a container": (
        "factor = 3",
        "a = 1",
        ["a = 1\nfs = [lambda x: factor * x]", "factor = 3", "fs[0](5)"],
    ),
    "what a function of the same cell adds to": (
        "calls = 0",
        "b = 1",
        ["calls = 0\nb = 1", "def call():\n    global calls\n    calls += 1\n    return 3\ncall()"],
    ),
    "a method finds its globals too": (
        "unit = 'm'",
        "b = 1",
        ["class Length:\n    def __repr__(self):\n        return unit\nx = Length()\nb = 1", "unit = 'm'", "x"],
    ),
    "another name of the same list": (
        "b.append(2)",
        "c.append",
        ["a = [1]\nb, c = a, []", "b.append(2)\nc.append(3)", "a"],
    ),
    "an alias in a container": (
        "d['k'].add_(1)",
        "s = 5",
        ["a = torch.ones(2)\nd = {'k': a}\ns = 5", "d['k'].add_(1)", "a"],
    ),
    "a view": ("v.zero_()", "w.zero_", ["a = torch.ones(4)\nv, w = a[:2], torch.ones(1)", "v.zero_()\nw.zero_()", "a"]),
    "a state dict": (
        "state['weight'].fill_(2)",
        "other",
        [
            "torch.manual_seed(0)\nm = torch.nn.Linear(2, 1, bias=False)\nother = 1",
            "state = m.state_dict()\nwith torch.no_grad():\n    state['weight'].fill_(2)",
            "m.weight.detach()",
        ],
    ),
    "data that is set": (
        "m.weight.data = torch.ones(1, 2)",
        "other",
        [
            "torch.manual_seed(0)\nm = torch.nn.Linear(2, 1)\nother = 1",
            "m.weight.data = torch.ones(1, 2)",
            "m.weight.sum().item()",
        ],
    ),
    "a hook": (
        "m(torch.ones(2))",
        "unseen",
        [
            "m, seen = torch.nn.Identity(), []",
            "handle = m.register_forward_hook(lambda m, i, o: seen.append(o.shape))\nunseen = 1",
            "y = m(torch.ones(2))",
            "seen",
        ],
    ),
    "the training flag": ("m.eval()", "b = 1", ["m = torch.nn.Dropout()\nb = 1", "m.eval();", "m(torch.ones(3))"]),
    "a step of an optimizer": (
        "optimizer.step()",
        "logged",
        [
            "w = torch.ones(2, requires_grad=True)\noptimizer = torch.optim.SGD([w], lr=0.5)\nlogged = []",
            "w.sum().backward()\noptimizer.step()\nlogged.append(1)",
            "w.detach()",
        ],
    ),
    "a gradient": (
        "backward()",
        "b = 1",
        ["w = torch.ones(2, requires_grad=True)\nb = 1", "w.sum().backward()", "w.grad"],
    ),
    "a gradient that nobody looks at": (
        "w = ",
        "backward",
        ["w = torch.ones(2, requires_grad=True)", "w.sum().backward()", "w + 1"],
    ),
    "draws in their order": (
        "a = torch.randn(1)",
        "manual_seed(7)",
        [
            "torch.manual_seed(7)\nb = torch.randn(1)",
            "torch.manual_seed(8)\na = torch.randn(1)\nc = torch.randn(1)",
            "c",
        ],
    ),
    "a constructor that draws": (
        "one = Linear(3, 2)",
        "two",
        [
            "from torch.nn import Linear",
            "torch.manual_seed(1)\none = Linear(3, 2)\nx = torch.randn(2)\ntwo = Linear(2, 2)",
            "x",
        ],
    ),
    "a seed in a function": (
        "def start",
        "manual_seed(5)",
        [
            "torch.manual_seed(5)\na = torch.randn(1)",
            "def start():\n    torch.manual_seed(6)",
            "start()\nx = torch.randn(1)",
            "x",
        ],
    ),
    "Python's own generator": (
        "random.seed(3)",
        "b = 1",
        ["import random\nrandom.seed(3)\nb = 1\nfirst, second = random.random(), random.random()", "second"],
    ),
    "a generator of one's own": (
        "first = ",
        "b = 1",
        [
            "g = torch.Generator().manual_seed(3)\nb = 1\nfirst = torch.rand(1, generator=g)",
            "torch.rand(1, generator=g)",
        ],
    ),
    "the default dtype": (
        "set_default_dtype",
        "b = 1",
        ["torch.set_default_dtype(torch.float64)\nb = 1", "torch.ones(1) / 3"],
    ),
    "print options": ("precision=2", "b = 1", ["torch.set_printoptions(precision=2)\nb = 1", "torch.ones(1) / 3"]),
    "a setting that is assigned": (
        "torch.backends.mkldnn.deterministic = True",
        "b = 1",
        ["torch.backends.mkldnn.deterministic = True\nb = 1", "torch.backends.mkldnn.deterministic"],
    ),
    "an iterator": (
        "next(numbers)",
        "b = 1",
        ["numbers = iter([1, 2, 3])\nb = 1", "first = next(numbers)", "next(numbers)"],
    ),
    "an attribute": ("box.size = 3", "b = 1", ["class Box: pass\nbox = Box()\nb = 1", "box.size = 3", "box.size"]),
    "an item that is deleted": ("del d['a']", "b = 1", ["d = {'a': 1, 'c': 2}\nb = 1", "del d['a']", "d"]),
    "an augmented assignment": ("x += 1", "y += 1", ["x = y = 1", "x += 1\ny += 1", "x"]),
    "a loop": ("total += n", "m = n", ["total = 0\nfor n in range(3):\n    total += n\nm = n", "total"]),
    "a loop's variables are its own": (
        "for n in [7]",
        "for n in 'ab'",
        ["for n in 'ab':\n    k = n", "for n in [7]:\n    k = n", "k"],
    ),
    "a block": (
        "tempfile",
        "b = 1",
        ["import tempfile\nwith tempfile.TemporaryFile() as file:\n    n = file.write(b'abc')\nb = 1", "n"],
    ),
    "an attempt": (
        "except ValueError",
        "b = 1",
        ["try:\n    n = int('x')\nexcept ValueError:\n    n = 0\nelse:\n    raise AssertionError\nb = 1", "n"],
    ),
    "a name that is bound in a comprehension": (
        "squares",
        "x = ",
        ["x = 3", "squares = [x * x for x in range(3)]", "squares"],
    ),
    "a walrus in a comprehension": ("last := x", "x = 3", ["x = 3", "big = [last := x for x in range(3)]", "last"]),
    "a star import": ("from math import *", "b = 1", ["from math import *\nb = 1", "round(pi, 3)"]),
    "only the names that are imported and used": (
        "from math import e\n",
        "pi",
        ["from math import e, pi\nimport string", "round(e, 2)"],
    ),
    "an import that shadows another": (
        "from math import floor as cut",
        "ceil",
        ["from math import ceil as cut", "from math import floor as cut", "cut(2.5)"],
    ),
    "a module of a package": ("import xml.dom", "b = 1", ["import xml.dom\nb = 1", "xml.dom.EMPTY_PREFIX"]),
    "an import in a function": (
        "import floor",
        "b = 1",
        ["def cut(x):\n    from math import floor\n    return floor(x)\nb = 1", "cut(2.5)"],
    ),
    "an import in a block, in one line with more": (
        "if a:\n    from math import floor; n = floor(2.5)",
        "b = 1",
        ["a = 1\nb = 1", "if a:\n    from math import floor; n = floor(2.5)", "n"],
    ),
    "one name for two imports": (
        "from math import ceil as cut\n",
        "b = 1",
        ["from math import ceil as cut\nb = 1", "up = cut(2.5)", "from math import floor as cut", "up, cut(2.5)"],
    ),
    "what printed is not printed again": (
        "with redirect_stdout",
        "b = 1",
        ["b = 1", "for i in range(2):\n    print(i)\n    n = i", "n"],
    ),
    "a text of several lines in what printed": (
        "with redirect_stdout",
        "b = 1",
        ["b = 1", 'for i in [1]:\n    s = """a\n  b"""\n    print(s)', "s"],
    ),
    "an exception's and a match's names": (
        "raise ValueError(5)",
        "b = 1",
        [
            "b = 1",
            "try:\n    raise ValueError(5)\nexcept ValueError as error:\n    (n,) = error.args\n"
            "match {'k': n, 'l': 2}:\n    case {'k': int() as a, **rest}:\n        pass\n"
            "match [a, 1, 2]:\n    case [_, *tail]:\n        pass",
            "a, rest, tail",
        ],
    ),
    "two statements in a line": ("a = 1", "b = 2", ["a = 1; b = 2", "a"]),
    "a tuple": ("print((1, a))", "b", ["a = 2\nb = 3", "1, a"]),
    "a tuple in parentheses": ("print((1, a))", "b", ["a = 2\nb = 3", "(1, a)"]),
    "a text": ("print(repr(s))", "b", ["s = 'sea'\nb = 1", "s"]),
    "a text that is printed": ("print(s)", "repr", ["s = 'sea'", "print(s)"]),
    "nothing": ("d.update", "print", ["d = {}", "d.update(a=1)"]),
    "what a semicolon hides": ("a;", "print", ["a = 1", "a;"]),
    "an expression over lines": ("print((a\n", "b", ["a = 1\nb = 2", "(a\n + 1)"]),
    "a long list": ("print(xs)", "b = 1", ["xs = list(range(100))\nb = 1", "xs"]),
    "a class": ("print", "b = 1", ["class Thing: pass\nb = 1", "Thing, int"]),
    "a set": ("print", "b = 1", ["s = {'b', 'a', 'c'}\nb = 1", "sorted(s), s"]),
    "display, which notebooks have": ("def display", "IPython", ["a = 'x'", "display(a, 1)"]),
    "display, imported": (
        "import display",
        "def display",
        ["from IPython.display import display\na = 1", "display(a)"],
    ),
    "a named figure": (
        "plt.show()",
        "b = 1",
        ["import matplotlib.pyplot as plt\nb = 1", "#| alt: x\nplt.plot([1, 2]);"],
    ),
    "a figure that is shown": (
        "plt.show()",
        "plt.show()\nplt.show()",
        ["import matplotlib.pyplot as plt", "#| alt: x\nplt.plot([1, 2])\nplt.show()"],
    ),
    "a figure without pyplot": (
        'figure.savefig("figure.svg")',
        "print",
        [
            "from matplotlib.figure import Figure\nfigure = Figure()\naxes = figure.subplots()",
            "axes.plot([1, 2])",
            "#| alt: x\nfigure",
        ],
    ),
    "names that only eval sees": ("hidden = 4", "nothing", ["hidden = 4", "eval('hid' + 'den')"]),
    "source that is quoted": (
        "inspect",
        "b = 1",
        ["import inspect\ndef f(x):  # why\n    return x\nb = 1", "print(inspect.getsource(f))"],
    ),
    "an annotation that is evaluated": (
        "Size = int",
        "b = 1",
        ["from dataclasses import dataclass\nSize = int\nb = 1", "@dataclass\nclass Box:\n    size: Size", "Box(3)"],
    ),
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Checked]:
    """All traps, each run as a page."""
    root = tmp_path_factory.mktemp("traps")
    paths = []
    for number, (_, _, cells) in enumerate(TRAPS.values()):
        paths.append(root / f"page{number}.py")
        paths[-1].write_text("".join(f"# %%\n{cell}\n\n" for cell in ["import torch", *cells]))
    report = check(paths, root=root, settings=Settings(), keep=False, programs=True)
    return dict(zip(TRAPS, report.pages, strict=True))


def last(checked: Checked) -> Snippet:
    return checked.snippets[max(checked.snippets)]


@pytest.mark.parametrize("trap", TRAPS)
def test_a_program_has_what_its_cell_needs_and_no_more(pages: dict[str, Checked], trap: str) -> None:
    wanted, unwanted, cells = TRAPS[trap]
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
    program = pages["a hook"].program(4)
    assert program.startswith(f"# {pages['a hook'].page.path}, cell 5\nimport torch\n")
    assert run(program, tmp_path) == "[torch.Size([2])]\n"


def proofread(tmp_path: Path, text: str, name: str = "page.py", **settings: object) -> Checked:
    path = tmp_path / name
    path.write_text(textwrap.dedent(text).lstrip("\n"))
    set_to = Settings(**settings)  # type: ignore[arg-type]
    (checked,) = check([path], root=tmp_path, settings=set_to, keep=False, programs=True).pages
    return checked


def test_what_only_notebooks_have_is_a_finding_with_both_outputs(tmp_path: Path) -> None:
    checked = proofread(tmp_path, "# %%\n1 + 1\n\n# %%\n_ * 2\n")
    (finding,) = checked.findings
    assert (finding.path, finding.line, finding.kind) == ("page.py", 5, "snippet")
    assert finding.message == (
        "cell 2: alone, its program does not run: NameError: name '_' is not defined; "
        "let it take what it needs from its page alone, or tag it no-snippet"
    )
    assert "NameError: name '_' is not defined" in finding.detail
    assert finding.detail.endswith("on the page:\n4")


def test_what_differs_from_run_to_run_is_a_finding_unless_it_is_tagged(tmp_path: Path) -> None:
    cell = "import time\ntime.perf_counter_ns()\n"
    checked = proofread(tmp_path, f"# %%\n{cell}\n# %% tags=['no-snippet']\n{cell}")
    assert [(f.line, f.message.partition(";")[0]) for f in checked.findings] == [
        (2, "cell 1: alone, its program prints something else")
    ]
    assert list(checked.snippets) == [0]


def test_a_draw_without_a_seed_is_not_the_same_in_a_fork_and_is_told_of_once(tmp_path: Path) -> None:
    checked = proofread(tmp_path, "# %%\nimport torch\ntorch.randn(3)\n")
    assert [finding.kind for finding in checked.findings] == ["seed"]


def test_a_cell_that_must_fail_fails_alone_too(tmp_path: Path, verify: Callable[..., str | None]) -> None:
    checked = proofread(
        tmp_path,
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
    assert verify(checked.snippets[1]) is None
    assert "hidden = 3" in checked.snippets[3].text


def test_magics_have_no_program_and_say_why(tmp_path: Path) -> None:
    checked = proofread(tmp_path, "# %%\n%time x = 3\n")
    assert checked.findings == []
    assert checked.snippets[0].reason.startswith("it uses IPython's own syntax: get_ipython().run_line_magic('time'")


def test_a_syntax_error_that_is_shown_has_no_program_and_leaves_the_others_theirs(tmp_path: Path) -> None:
    page = "# %%\n#| raises: SyntaxError\nfor = 1\n\n# %%\nprint(2)\n"
    checked = proofread(tmp_path, page)
    assert checked.findings == []
    assert checked.snippets[0].reason == "it is no Python, which is what it shows"
    assert checked.snippets[1].text.endswith("print(2)\n")


def test_an_address_is_an_address_in_capitals_too(tmp_path: Path) -> None:
    page = "# %%\nclass A:\n    def __repr__(self):\n        return f'<A at 0x{id(self):X}>'\n\n\nA()\n"
    assert proofread(tmp_path, page).findings == []


def test_a_file_beside_the_page_is_named(tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("3")
    (finding,) = proofread(tmp_path, "# %%\nopen('data.txt').read()\n").findings
    assert "alone, its program does not run: FileNotFoundError" in finding.message
    assert "'data.txt'; let it take what it needs from its page alone, or tag it no-snippet" in finding.message


def test_fences_of_markdown_pages_have_programs(tmp_path: Path) -> None:
    checked = proofread(tmp_path, "```python\na, b = 1, 2\n```\n\n```python\nprint(a)\n```\n", "page.md")
    assert checked.program(3) == "# page.md, cell 4\na, b = 1, 2\n\nprint(a)\n"


def test_programs_are_kept_with_the_run(tmp_path: Path) -> None:
    path = tmp_path / "page.py"
    path.write_text("# %% [markdown]\n# Prose.\n\n# %%\na = 1\n\n# %%\na\n")
    (first,) = check([path], root=tmp_path, settings=Settings()).pages
    path.write_text("# %% [markdown]\n# Words.\n\n# %%\na = 1\n\n# %%\na\n")
    (second,) = check([path], root=tmp_path, settings=Settings()).pages
    assert (bool(first.why), second.why) == (True, "")
    assert first.snippets == second.snippets
    assert second.program(2) == "# page.py, cell 3\na = 1\n\nprint(a)\n"


def test_a_program_that_lies_is_told_what_it_does_instead(verify: Callable[..., str | None]) -> None:
    assert verify(Snippet("print(1)\n", shows="1\n")) is None
    assert verify(Snippet("print(2)\n", shows="1\n")) == "alone:\n2\non the page:\n1"
    assert "NameError: name 'math' is not defined" in (verify(Snippet("math.pi\n")) or "")
    assert "No module named 'harbour'" in (verify(Snippet("import harbour\n")) or "")
    assert "it ran for too long" in (verify(Snippet("while True: pass\n"), timeout=1) or "")


def test_a_program_that_does_not_end_is_ended(tmp_path: Path) -> None:
    (finding,) = proofread(tmp_path, "# %%\n#| timeout: 1\nwhile 'program.py' in __file__:\n    pass\n").findings
    assert "its program does not run: TimeoutError: it ran for too long" in finding.message


def test_a_program_is_tried_anew_where_something_of_it_changed_and_only_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    check_module = sys.modules["proofread.checks.plan"]
    real = check_module.attempt

    def attempt(trials: Sequence[Trial], *given: Any, **settings: Any) -> Any:
        tried[:] = [trial.text for trial in trials]
        return real(trials, *given, **settings)

    monkeypatch.setattr(check_module, "attempt", attempt)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "boat.py").write_text("def crew():\n    return 3\n\n\ndef cargo():\n    return 4\n")
    path = tmp_path / "page.py"

    def runs(page: str) -> list[str]:
        path.write_text(page)
        report = check([path], root=tmp_path, settings=Settings(packages=("boat",)), programs=True)
        assert report.findings == []
        return [text.replace("\n", " ").strip() for text in tried]

    page = "# %%\n1 + 1\n\n# %%\nfrom boat import crew\n\ncrew()\n"
    crew = "from boat import crew  print(crew())"
    assert runs(page) == ["print(1 + 1)", crew]
    assert runs(page) == []
    assert runs("# %% [markdown]\n# Prose.\n\n" + page) == []
    assert runs(page.replace("1 + 1", "1 + 2")) == ["print(1 + 2)"]
    (tmp_path / "boat.py").write_text("def crew():\n    return 3\n\n\ndef cargo():\n    return 5\n")
    assert runs(page.replace("1 + 1", "1 + 2")) == ["print(1 + 2)", crew]


def test_a_program_that_failed_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "page.py"
    path.write_text("# %%\nimport time\ntime.perf_counter_ns()\n")
    for _ in range(2):
        report = check([path], root=tmp_path, settings=Settings(), programs=True)
        assert [finding.kind for finding in report.findings] == ["snippet"]
