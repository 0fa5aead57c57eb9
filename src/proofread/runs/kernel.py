"""The child's side of a run: one page's steps in one IPython shell, with outputs as a Jupyter kernel gives them.

The fork server imports this module, so it imports nothing that a page might document.
"""

import ast
import base64
import contextlib
import gc
import io
import json
import os
import platform
import re
import sys
import traceback
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

from IPython.core.compilerop import CachingCompiler
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from .._private import end_display
from ..formulas.libraries import used
from ..keep.environment import cpuinfo
from ..keep.installed import EVERYTHING
from ..keep.watch import Watch
from ..lazy_import import when_imported
from ..pages.numbers import Value
from ..processes.captured_output import CapturedOutput
from ..processes.control import as_script
from ..programs import Recorder, make
from ..programs.generators import Event, Generators, unseeded
from ..programs.trial import Trial, run
from ..settings import Settings
from ..syntax import module
from . import comparisons, exact_equality
from .import_tracker import questions
from .preload import VARIABLES
from .steps import Machine, Output, Raised, Result, Step, Task

_MOST = 1_023  # bits of a whole number, as a float has room for


def serve(
    connection: Connection,
    scratch: str,
    task: Task,
    root: str,
    settings: Settings,
    variables: Mapping[str, str],
    own: Collection[str],
) -> None:
    """Take steps until one fails: send the index before each, the result after it, and at last the files it read."""
    shell = _set_up(scratch, task, root, settings, variables, own)
    try:
        _serve(connection, task, shell)
    except Exception as error:
        message = f"replaced a part of Python that proofread needs to run it ({type(error).__name__}: {error})"
        connection.send(f"{message}; let the cell put back what it replaces, such as a function of builtins or sys")


def _set_up(
    scratch: str, task: Task, root: str, settings: Settings, variables: Mapping[str, str], own: Collection[str]
) -> "_Shell":
    """Make this process that of a page."""
    sys.dont_write_bytecode = True  # into sources that MkDocs watches: it would build once more for it
    gc.freeze()  # looking through what has been imported would find nothing, and copy all of it
    as_script(scratch, task.path)
    _limit_memory(settings.memory)
    for name in {*variables, *VARIABLES} - {*own}:  # they may have changed since
        if name in variables:
            os.environ[name] = variables[name]
        else:
            os.environ.pop(name, None)
    os.chdir(root)
    shell = _shell(task.path, scratch, settings)
    shell.watch = Watch(root, task.path, own)
    shell.generators = Generators(shell.watch)
    if any(step.snippet for step in task.steps):
        shell.recorder = Recorder(shell.user_ns, shell.generators)
    return shell


def _serve(connection: Connection, task: Task, shell: "_Shell") -> None:
    gave: list[Result] = []
    own = os.getpid()
    for index, step in enumerate(task.steps):
        connection.send(index)
        used = shell.generators.begin()
        before = gave[step.again] if step.again >= 0 else None
        result = _evaluate(step, shell, before) if step.code is None else _run(step, shell, index)
        if os.getpid() != own:  # a process that the cell has forked, and that has come to the cell's end
            os._exit(0)
        gave.append(result)
        result.unseeded = _unseeded(used(), shell, step.code or "")
        connection.send(result)
        if result.raised and (not step.raises or result.raised.fatal):
            connection.send(None)
            return
    files = shell.watch.files(task.packages)
    asked = [*questions(), *([EVERYTHING] if shell.watch.started else [])]  # by what it started, nobody knows
    connection.send(_machine(shell.user_ns))
    if shell.recorder:
        connection.send(index)  # the programs may take as long as the last step
        try:
            wanted = [place for place, step in enumerate(task.steps) if step.snippet]
            connection.send(make(shell.recorder.cells, wanted))
        except Exception:
            connection.send(f"has programs that cannot be made, a fault of proofread:\n{traceback.format_exc()}")
            return
    connection.send((files, asked))


def _machine(namespace: Mapping[str, object]) -> Machine:
    """Return the library and the processor or GPU that the page has run on."""
    libraries = used(namespace)
    name = next((name for name in ("torch", "numpy") if name in libraries), "")
    software = f"{name} {sys.modules[name].__version__}" if name else f"Python {platform.python_version()}"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():  # asking for more would start it
        return Machine(software, torch.cuda.get_device_name())
    named = re.search(r"^model name\s*:\s*(.+)$", cpuinfo(), re.MULTILINE)
    return Machine(software, named[1] if named else f"CPU ({platform.machine()})")


def attempt(connection: Connection, _: str, trial: Trial, folder: str, settings: Settings) -> None:
    """Run one program in this process; send that it begins, and its result."""
    _limit_memory(settings.memory)
    connection.send(True)
    connection.send(run(trial, Path(folder)))


def _limit_memory(allowed: int) -> None:
    """Let the allocation that exceeds what is allowed fail, so that the failure names its line.

    The limit counts what the process may write to, less what the fork server had already. NVIDIA's driver reserves far
    more than it uses; where there is one, only the watch on what the page really holds is left (see run.py).
    """
    status = Path("/proc/self/status")
    if not status.exists() or Path("/proc/driver/nvidia").exists():
        return
    try:
        import resource
    except ImportError:  # there is none on Windows
        return
    data = next(line for line in status.read_text().splitlines() if line.startswith("VmData:"))
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = int(data.split()[1]) * 1024 + allowed
    resource.setrlimit(resource.RLIMIT_DATA, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


@dataclass
class _Cell:
    """The cell that is running."""

    line: int = 1  # of the page's file, where its code begins
    outputs: list[Output] = field(default_factory=list)
    text: int = 0  # how much text it has shown
    rich: int = 0  # and how much else


class _Compiler(CachingCompiler):
    """Compiles each cell as the lines of the page's file that it is: what quotes source then quotes the page."""

    def __init__(self, shell: "_Shell") -> None:
        super().__init__()
        self._shell = shell

    def cache(self, transformed_code: str, number: int = 0, raw_code: str | None = None) -> str:
        return self._shell.path

    def ast_parse(self, source: str, filename: str = "<unknown>", symbol: str = "exec") -> Any:
        return super().ast_parse("\n" * (self._shell.cell.line - 1) + source, filename, symbol)


class _Results(DisplayHook):
    """Keeps the value of a cell's last expression with all its representations."""

    def write_output_prompt(self) -> None:
        pass

    def compute_format_data(self, result: Any) -> Any:
        assert isinstance(self.shell, _Shell)
        if self.shell.recorder:
            self.shell.recorder.show(result)
        return super().compute_format_data(result)

    def write_format_data(self, format_dict: Mapping[str, Any], md_dict: Mapping[str, Any] | None = None) -> None:
        assert isinstance(self.shell, _Shell)
        self.shell.keep("execute_result", execution_count=None, data=dict(format_dict), metadata=dict(md_dict or {}))

    def finish_displayhook(self) -> None:
        end_display(self)


class _Displays(DisplayPublisher):
    """Keeps what is displayed on the way."""

    def publish(self, data: Mapping[str, Any], metadata: Mapping[str, Any] | None = None, **_: Any) -> None:  # type: ignore[override]
        self.shell.keep("display_data", data=dict(data), metadata=dict(metadata or {}))

    def clear_output(self, wait: bool = False) -> None:
        self.shell.cell.outputs.clear()


class _TooMuch(BaseException):
    """A cell shows more than it may. No page's ``except Exception`` catches it."""


class _Shell(InteractiveShell):
    displayhook_class = _Results
    display_pub_class = _Displays
    watch: Watch
    generators: Generators

    def __init__(self, path: str, settings: Settings, **options: Any) -> None:
        self.path, self._settings, self.cell = path, settings, _Cell()
        self.recorder: Recorder | None = None
        self._written = {"stdout": CapturedOutput(1), "stderr": CapturedOutput(2)}  # to the descriptors of the streams
        super().__init__(**options)
        self.compile = _Compiler(self)

    def begin(self, line: int) -> None:
        """Begin a cell, whose code is at a line of the page's file; it has shown nothing."""
        for written in self._written.values():
            written.read()
        self.cell = _Cell(line)

    def say(self, name: str, text: str) -> None:
        """Add text to a stream of the cell that is running."""
        self.count(text)
        outputs = self.cell.outputs
        if not outputs or outputs[-1].get("name") != name:
            outputs.append({"output_type": "stream", "name": name, "text": []})
        outputs[-1]["text"].append(text)  # joined at the end: a cell may print a million times

    def drain(self) -> None:
        """Add what was written to the streams' descriptors, in its place among what is printed."""
        for name, written in self._written.items():
            if text := written.read():
                self.say(name, text)

    def count(self, text: str) -> None:
        """Count text that a cell shows; the line that shows too much of it fails."""
        self.cell.text += len(text)
        if self.cell.text > self._settings.output:
            raise _TooMuch("the cell shows more than it may of text")

    def keep(self, kind: str, **content: Any) -> None:
        """Add an output to the cell that is running."""
        self.drain()
        for form, data in content.get("data", {}).items():
            if isinstance(data, bytes):  # as a kernel sends a picture
                content["data"][form] = data = base64.b64encode(data).decode()
            if form in ("text/plain", "text/markdown", "text/latex"):
                self.count(data)
                continue
            self.cell.rich += len(data if isinstance(data, str) else json.dumps(data, default=str))
            if self.cell.rich > self._settings.rich:
                raise _TooMuch(f"the cell shows more than it may of {form}")
        self.cell.outputs.append({"output_type": kind, **content})

    def _showtraceback(self, etype: type[BaseException], evalue: BaseException, stb: list[str]) -> None:
        self.keep("error", ename=etype.__name__, evalue=str(evalue), traceback=stb)

    async def run_code(self, code_obj: Any, result: Any = None, *, async_: bool = False) -> bool:
        """Run one statement, as IPython does with a cell's statements."""
        ended = self.recorder.watch() if self.recorder else None
        shown = self.cell.text
        failed = bool(await super().run_code(code_obj, result, async_=async_))
        self.drain()
        if ended:
            ended(self.cell.text > shown, failed)
        return failed

    def system(self, cmd: str) -> None:
        """Run a command of a line that begins with an exclamation mark, of which nothing else would tell."""
        self.watch.names([self.var_expand(cmd, depth=1)])
        self.system_piped(cmd)

    def enable_gui(self, gui: str | None = None) -> None:
        pass


class _Stream(io.TextIOBase):
    def __init__(self, shell: _Shell, name: str):
        self._shell, self._name = shell, name

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._shell.drain()
        self._shell.say(self._name, text)
        return len(text)


def _shell(path: str, scratch: str, settings: Settings) -> _Shell:
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.xmode = "Minimal"
    config.InlineBackend.figure_formats = {"svg"}
    config.InlineBackend.print_figure_kwargs = {"bbox_inches": "tight", "metadata": {"Date": None}}
    main = ModuleType("__main__")
    main.__file__ = path
    with warnings.catch_warnings():  # they are no page's, even where pages take warnings for errors
        warnings.simplefilter("ignore")
        shell = _Shell.instance(path, settings, config=config, ipython_dir=scratch, user_module=main)

    def set_up(matplotlib: Any) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            shell.enable_matplotlib("inline")
        # Element ids derive from this salt; without it each build would draw other bytes.
        matplotlib.rcParams["svg.hashsalt"] = "proofread"

    when_imported("matplotlib", set_up)
    sys.stdout, sys.stderr = _Stream(shell, "stdout"), _Stream(shell, "stderr")
    return shell


def _run(step: Step, shell: _Shell, place: int) -> Result:
    assert step.code is not None
    blank = len(step.code) - len(step.code.lstrip())  # which IPython takes away
    shell.begin(step.line + step.code.count("\n", 0, blank))
    if shell.recorder:
        shell.recorder.begin(place, shell.transform_cell(step.code))
    try:
        ran = shell.run_cell(step.code, store_history=True)
        error = ran.error_before_exec or ran.error_in_exec
    except RecursionError as deep:  # code that Python cannot compile
        error = deep
    outputs = shell.cell.outputs
    for output in outputs:
        if output["output_type"] == "stream":
            output["text"] = "".join(output["text"])
    if shell.recorder:
        shell.recorder.end(outputs, error)
    pyplot: Any = sys.modules.get("matplotlib.pyplot")
    backend = "" if pyplot is None or "inline" in (name := pyplot.get_backend()) else str(name)
    raised = _raised(error, shell.path, step.line) if error else None
    return Result(outputs=outputs, raised=raised, backend=backend)


def _raised(error: BaseException, path: str, line: int) -> Raised:
    kind = f"{type(error).__module__}.{type(error).__qualname__}"
    if isinstance(error, SyntaxError) and error.filename == path:
        summary, trace = f"{type(error).__name__}: {error.msg}", f"{error.text or ''}".strip()
        return Raised(summary, error.lineno or line, trace and f"    {trace}", kind=kind)
    frame = error.__traceback__
    while frame and frame.tb_frame.f_code.co_filename != path:
        frame = frame.tb_next
    lines = [number for of, number in traceback.walk_tb(frame) if of.f_code.co_filename == path]
    at = lines[-1] if lines else line
    too_much = isinstance(error, _TooMuch)
    summary = str(error) if too_much else "".join(traceback.format_exception_only(error)).strip()
    if too_much or isinstance(error, MemoryError) or "can't allocate memory" in summary:
        return Raised(summary, at, "", fatal=True)
    return Raised(summary, at, "".join(traceback.format_exception(type(error), error, frame)), kind=kind)


def _evaluate(step: Step, shell: _Shell, before: Result | None) -> Result:
    result, namespace = Result(), shell.user_ns
    if before:
        result = replace(before, errors={}, formulas=[], survivors=[], values=[])
    for place, (expression, form) in enumerate(step.expressions):
        if before and place not in before.errors:
            result.values.append(before.values[place])
            continue
        try:
            value, compared = exact_equality.evaluate(expression, shell.path, namespace)
            result.values.append(_plain(value) if form is None else format(value, form))
        except Exception as error:
            result.values.append(None)
            result.errors[place] = f"{type(error).__name__}: {error}"
            continue
        if compared and form is None:
            result.bits[place] = compared
        if value is False:
            result.sides[place] = comparisons.describe_operands(expression, namespace)
        if form is not None and isinstance(number := _plain(value), (int, float)):
            result.exact[place] = number
    if step.formulas:
        from ..formulas import check, complaints  # they need numpy, which takes a while to load

        for formula in step.formulas:
            result.formulas.append(faults := check(formula, namespace))
            searched = not faults and formula.unchecked is None
            result.survivors.append(complaints(formula, namespace) if searched else [])
    return result


def _plain(value: Any) -> Value:
    if hasattr(value, "tolist"):  # tensors, arrays and their scalars
        return _plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, int) and value.bit_length() > _MOST:
        message = f"the whole number has {value.bit_length():,} bits, and {_MOST:,} are the most that a page can say"
        raise OverflowError(f"{message}; give its logarithm, or a quotient")
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _unseeded(events: Sequence[Event], shell: InteractiveShell, code: str) -> str:
    """Return how a step, of this code, used a random generator that it had not seeded, or ""."""
    for event in unseeded(events):
        if event.did == "makes":
            return f"makes a random generator of {event.generator}"
        return f"draws from {event.generator} global random generator"
    with contextlib.suppress(SyntaxError):  # torch's own generators cannot be watched
        for call in ast.walk(module(shell.transform_cell(code))) if ".seed()" in code else ():
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "seed":
                of = ast.unparse(call.func.value)
                kind = f"{of} {type(shell.user_ns.get(of))}"
                if not call.args + call.keywords and re.search(r"torch(\._C)?\.Generator", kind):
                    return "makes a random generator of torch's"
    return ""
