"""The child's side of a run: one page's steps in one IPython shell, with outputs as a Jupyter kernel gives them.

Nothing here knows what a page looks like: a step is code to run, or what to evaluate once the page has come that far.
The fork server imports this module, so it imports nothing that a page might document.
"""

import functools
import io
import os
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

from IPython.core.compilerop import CachingCompiler
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from .figures import Value
from .formula import Formula

Output = dict[str, Any]


@dataclass(frozen=True)
class Step:
    """Code to run, or else what to evaluate after it. The line is that of the code in the page's file."""

    line: int
    code: str | None = None
    raises: bool = False
    timeout: float = 120.0
    expressions: tuple[tuple[str, str | None], ...] = ()  # each with a format if the page shows the result
    formulas: tuple[Formula, ...] = ()


@dataclass
class Raised:
    """An exception that left a step's code: its line in the page's file, and its trace from there on."""

    summary: str
    line: int
    trace: str


@dataclass
class Result:
    """What a step gave, as plain data that can be sent and kept."""

    outputs: list[Output] = field(default_factory=list)
    raised: Raised | None = None
    unseeded: bool = False
    values: list[Value] = field(default_factory=list)
    errors: dict[int, str] = field(default_factory=dict)  # why the expression at that place has no value
    formulas: list[list[str]] = field(default_factory=list)


def serve(path: str, steps: Sequence[Step], connection: Connection, root: str, scratch: str) -> None:
    """Take steps until one fails: send the index before each, the result after it, and at last the files it read."""
    os.setpgid(0, 0)  # so that all that a page starts can be ended with it
    os.chdir(root)
    opened = _watch_files()
    shell = _shell(path, scratch)
    seeding = _Seeding(sys.modules.get("torch"))
    for index, step in enumerate(steps):
        connection.send(index)
        seeding.begin()
        result = _evaluate(step, shell.user_ns) if step.code is None else _run(step, shell)
        result.unseeded = seeding.drew()
        connection.send(result)
        if result.raised and not step.raises:
            connection.send(None)
            return
    # The page is known by its steps: a change in its prose is none of theirs.
    connection.send(sorted({*_project_files(opened, Path(root))} - {os.path.realpath(path)}))


class _Compiler(CachingCompiler):
    """Compiles each cell as the lines of the page's file that it is: what quotes source then quotes the page."""

    path = ""
    line = 1

    def cache(self, transformed_code: str, number: int = 0, raw_code: str | None = None) -> str:
        return self.path

    def ast_parse(self, source: str, filename: str = "<unknown>", symbol: str = "exec") -> Any:
        return super().ast_parse("\n" * (self.line - 1) + source, filename, symbol)


class _Results(DisplayHook):
    """Keeps the value of a cell's last expression with all its representations."""

    def write_output_prompt(self) -> None:
        pass

    def write_format_data(self, format_dict: Mapping[str, Any], md_dict: Mapping[str, Any] | None = None) -> None:
        assert isinstance(self.shell, _Shell)
        self.shell.keep("execute_result", execution_count=None, data=dict(format_dict), metadata=dict(md_dict or {}))

    def finish_displayhook(self) -> None:
        self._is_active = False


class _Displays(DisplayPublisher):
    """Keeps what is displayed on the way."""

    def publish(self, data: Mapping[str, Any], metadata: Mapping[str, Any] | None = None, **_: Any) -> None:  # type: ignore[override]
        self.shell.keep("display_data", data=dict(data), metadata=dict(metadata or {}))

    def clear_output(self, wait: bool = False) -> None:
        self.shell.outputs.clear()


class _Shell(InteractiveShell):
    displayhook_class = _Results
    display_pub_class = _Displays
    compiler_class = _Compiler
    outputs: list[Output]

    def keep(self, kind: str, **content: Any) -> None:
        """Add an output to the cell that is running."""
        self.outputs.append({"output_type": kind, **content})

    def _showtraceback(self, etype: type[BaseException], evalue: BaseException, stb: list[str]) -> None:
        self.keep("error", ename=etype.__name__, evalue=str(evalue), traceback=stb)

    def enable_gui(self, gui: str | None = None) -> None:
        pass


class _Stream(io.TextIOBase):
    def __init__(self, shell: _Shell, name: str):
        self._shell, self._name = shell, name

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        last = self._shell.outputs[-1] if self._shell.outputs else {}
        if last.get("name") != self._name:
            last = {"output_type": "stream", "name": self._name, "text": []}
            self._shell.outputs.append(last)
        last["text"].append(text)  # joined at the end: a cell may print a million times
        return len(text)


def _shell(path: str, scratch: str) -> _Shell:
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.xmode = "Minimal"
    config.InlineBackend.figure_formats = {"svg"}
    config.InlineBackend.print_figure_kwargs = {"bbox_inches": "tight", "metadata": {"Date": None}}
    main = ModuleType("__main__")
    main.__file__ = path
    _Compiler.path = path
    _Shell.outputs = []
    shell = _Shell.instance(config=config, ipython_dir=scratch, user_module=main)
    if "matplotlib" in sys.modules:
        shell.enable_matplotlib("inline")
        # Element ids derive from this salt; without it each build would draw other bytes.
        sys.modules["matplotlib"].rcParams["svg.hashsalt"] = "proofread"
    sys.stdout, sys.stderr = _Stream(shell, "stdout"), _Stream(shell, "stderr")
    return shell


def _run(step: Step, shell: _Shell) -> Result:
    assert step.code is not None
    shell.outputs = []
    _Compiler.line = step.line
    ran = shell.run_cell(step.code, store_history=True)
    for output in shell.outputs:
        if output["output_type"] == "stream":
            output["text"] = "".join(output["text"])
    error = ran.error_before_exec or ran.error_in_exec
    return Result(outputs=shell.outputs, raised=_raised(error, _Compiler.path, step.line) if error else None)


def _raised(error: BaseException, path: str, line: int) -> Raised:
    if isinstance(error, SyntaxError) and error.filename == path:
        trace = f"{error.text or ''}".rstrip()
        return Raised(f"{type(error).__name__}: {error.msg}", error.lineno or line, trace and f"    {trace.strip()}")
    frame = error.__traceback__
    while frame and frame.tb_frame.f_code.co_filename != path:
        frame = frame.tb_next
    lines = [tb.tb_lineno for tb in _frames(frame) if tb.tb_frame.f_code.co_filename == path]
    trace = "".join(traceback.format_exception(type(error), error, frame))
    return Raised("".join(traceback.format_exception_only(error)).strip(), lines[-1] if lines else line, trace)


def _frames(frame: Any) -> Iterable[Any]:
    while frame:
        yield frame
        frame = frame.tb_next


def _evaluate(step: Step, namespace: dict[str, Any]) -> Result:
    result = Result()
    for place, (expression, form) in enumerate(step.expressions):
        try:
            value = eval(compile(f"({expression}\n)", _Compiler.path, "eval"), namespace)
            result.values.append(_plain(value) if form is None else format(value, form))
        except Exception as error:
            result.values.append(None)
            result.errors[place] = f"{type(error).__name__}: {error}"
    if step.formulas:
        from .formula import check  # needs torch, which only a child has loaded

        result.formulas = [check(formula, namespace) for formula in step.formulas]
    return result


def _plain(value: Any) -> Value:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if hasattr(value, "tolist"):  # tensors, arrays and their scalars
        return _plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value)


class _Seeding:
    """Notices when a step draws from torch's global generator before it has seeded it."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._state: Any = None
        self._drew = False
        if torch is None:
            return
        original = torch.manual_seed

        @functools.wraps(original)
        def manual_seed(seed: int) -> Any:
            self._drew = self._drew or self._moved()
            generator = original(seed)
            self._state = None
            return generator

        torch.manual_seed = torch.random.manual_seed = manual_seed

    def begin(self) -> None:
        """Take note of the generator's state."""
        self._drew = False
        self._state = self._torch and self._torch.get_rng_state()

    def drew(self) -> bool:
        """Whether the generator moved unseeded since then."""
        return self._drew or self._moved()

    def _moved(self) -> bool:
        if self._torch is None or self._state is None:
            return False
        return not self._torch.equal(self._state, self._torch.get_rng_state())


def _watch_files() -> set[str]:
    opened: set[str] = set()

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str) and not (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR):
            opened.add(os.path.abspath(arguments[0]))

    sys.addaudithook(audit)
    return opened


def _project_files(opened: set[str], root: Path) -> Iterable[str]:
    """What a run depends on: modules that are not installed, and files of the project that were read."""
    elsewhere = (sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(__file__))
    installed = {os.path.realpath(prefix) for prefix in elsewhere}
    sources = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    inside = {file for file in opened if Path(file).is_relative_to(root)}
    for file in {*filter(None, sources), *inside}:
        real = os.path.realpath(file)
        own = "__pycache__" not in real and not any(Path(real).is_relative_to(prefix) for prefix in installed)
        if own and os.path.isfile(real):
            yield real
