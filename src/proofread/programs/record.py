"""Records the names that each statement of a page read and changed while the page ran.

What a statement reads is found in its syntax tree, and in the functions that it can reach: they look their global names
up when they are called. Its changes are found by looking at the objects that it can reach before and after it:
tensors tell a change by their version counters, modules, lists, dicts and other objects by what they hold. So an append
in a function, a hook, an optimizer's step and a view's in-place addition are seen, by whatever name they went.
"""

import ast
import contextlib
import functools
import math
import os
import random
import re
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from .._private import tensor_version, torch_settings
from .generators import LIBRARIES, Generators, unseeded
from .names import first_reads, only_defines, uses
from .source import Source

# The states of global random generators, as if they were names of the page.
RANDOM = {whose: f"{whose} random numbers" for whose in LIBRARIES}
GRADIENT = ".grad"  # of a name: what backward passes gather, which few statements look at
SETTINGS = "settings"  # that of torch, matplotlib, the environment, and modules that a page writes to
Output = dict[str, Any]
ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
_MANY = 2_000  # elements of a container, and objects in all, that are looked at

_PLAIN = (
    *(int, float, complex, str, bytes, bool, range, slice, type(None), type(...), type(NotImplemented)),
    *(types.BuiltinFunctionType, types.ModuleType, types.CodeType, types.MethodDescriptorType, re.Pattern),
    *(types.GenericAlias, types.UnionType, types.WrapperDescriptorType),
)
_PLAIN_MODULES = {"torch": {"dtype", "device", "Size", "layout", "memory_format"}, "pathlib": None, "datetime": None}


@dataclass
class Effects:
    """The effects of a statement.

    Attributes:
        names: The names in its own code, rather than in that of functions which it can call.
        reads: The names that it read, or that such functions may have read.
        changes: The names that it bound, or whose objects it changed.
        binds: The names that it bound anew, whatever they were.
        printed: Whether it printed.
        raised: Whether it failed.
    """

    names: set[str] = field(default_factory=set)
    reads: set[str] = field(default_factory=set)
    changes: set[str] = field(default_factory=set)
    binds: set[str] = field(default_factory=set)
    printed: bool = False
    raised: bool = False


@dataclass
class Shown:
    """The value that a cell's last expression showed: its ``repr``, and how a program shows the same."""

    text: str
    as_text: bool = False  # whether ``print`` gives the repr
    figure: bool = False  # drawn without pyplot, which would show it otherwise


@dataclass
class CellRun:
    """A cell that ran: its code as plain Python, and what came of it."""

    code: str
    effects: list[Effects] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    shown: Shown | None = None
    raised: str = ""


class Recorder:
    """Watches a page's statements while an IPython shell runs them one by one."""

    def __init__(self, namespace: dict[str, Any], generators: Generators) -> None:
        self.cells: dict[int, CellRun] = {}
        self._namespace = namespace
        self._hidden = {*namespace}  # what the shell put there
        self._reach: dict[str, frozenset[int]] = {}
        self._generators = generators
        self._statements: Iterator[ast.stmt] = iter(())
        self._cell = CellRun("")

    def begin(self, place: int, code: str) -> None:
        """A cell is about to run: its place among the page's steps, and its code as plain Python."""
        self._cell = self.cells[place] = CellRun(code)
        self._statements = iter(Source(code).tree.body)

    def watch(self) -> "Callable[[bool, bool], None]":
        """A statement is about to run; call what this returns after it: with whether it printed, and failed."""
        statement = next(self._statements, None)
        if statement is None:
            return lambda printed, raised: None
        found = uses(statement)
        survey = _Survey(first_reads(statement) | found.annotations, self._namespace, self._hidden)
        # The definition of a function changes nothing that its body looks at.
        ran = _Survey(found.early, self._namespace, self._hidden) if only_defines(statement) else survey
        survey.mentioned.update(node.attr for node in ast.walk(statement) if isinstance(node, ast.Attribute))
        before = {name: id(value) for name, value in self._namespace.items()}
        settings, modules, done = _settings(), len(sys.modules), self._generators.begin()
        alone = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Name)

        def after(printed: bool, raised: bool) -> None:
            here = self._visible()
            binds = {name for name in here if before.get(name) != id(self._namespace[name])}
            gone = {name for name in before if name not in self._namespace} - self._hidden
            plain = (ast.Assign, ast.AnnAssign, ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
            if isinstance(statement, plain) and not raised:
                binds |= found.binds & here
            names = {*found.read, *found.binds, *found.changes, *RANDOM.values(), SETTINGS}
            names |= {name + GRADIENT for name in names}
            effects = Effects(names, survey.read, {*binds, *gone, *(found.binds & here)}, binds, printed, raised)
            changed, gathered = (set(), set()) if alone else ran.changed()
            self._forget(survey.read | effects.changes)
            if changed or gathered:
                effects.changes |= {name + GRADIENT for name in here if gathered & self._reached(name)}
                effects.changes |= {name for name in here if changed & self._reached(name)}
                self._forget(effects.changes)
            if not survey.mentioned.isdisjoint(_OF_GRADIENTS):
                effects.reads |= {name + GRADIENT for name in survey.read}
            effects.binds |= {name + GRADIENT for name in binds}
            effects.changes |= effects.binds
            assigned = {name for name in found.changes if isinstance(self._namespace.get(name), types.ModuleType)}
            # A library sets what it likes when it is imported, and will do so again.
            if assigned or (len(sys.modules) == modules and settings != _settings()):
                effects.changes.add(SETTINGS)
            effects.changes |= found.changes - assigned
            events = done()
            drew = {RANDOM[event.whose] for event in unseeded(events) if event.did == "draws"}
            seeded = {RANDOM[event.whose] for event in events if event.did == "seeds"}
            effects.reads |= {SETTINGS, *drew}
            effects.changes |= drew | seeded
            effects.binds |= seeded - drew
            self._cell.effects.append(effects)

        return after

    def end(self, outputs: list[Output], raised: BaseException | None) -> None:
        """The cell has ended."""
        self._cell.outputs = outputs
        if raised is not None:
            self._cell.raised = f"{type(raised).__name__}: {raised}"

    def show(self, value: Any) -> None:
        """The cell shows the value of its last expression."""
        text = repr(value)
        drawn = _figure(value)
        has_window = drawn is not None and getattr(drawn.canvas, "manager", None) is not None
        self._cell.shown = Shown(text, drawn is None and str(value) == text, drawn is not None and not has_window)

    def _visible(self) -> set[str]:
        return {
            name for name in self._namespace if name not in self._hidden and not re.match(r"_(\d*|_+|i+\d*)$", name)
        }

    def _forget(self, names: Iterable[str]) -> None:
        for name in names:
            self._reach.pop(name, None)

    def _reached(self, name: str) -> frozenset[int]:
        if name not in self._reach:
            self._reach[name] = frozenset(_Survey([name], self._namespace, self._hidden, follow=False).keys)
        return self._reach[name]


class _Survey:
    """All objects that can be reached from some names of a page, each with what shows whether it was changed.

    Attributes:
        read: The names.
        keys: The keys of the objects.
        mentioned: The attributes that the statement, and functions that it can call, ask of objects.
    """

    def __init__(self, names: Iterable[str], namespace: dict[str, Any], hidden: set[str], follow: bool = True) -> None:
        self.read: set[str] = set()
        self.keys: set[int] = set()
        self.mentioned: set[str] = set()
        self._namespace, self._hidden, self._follow = namespace, hidden, follow
        self._seen: dict[int, tuple[Any, Any]] = {}
        self._waiting: deque[Any] = deque()
        self._names(names)
        while self._waiting and len(self._seen) < _MANY:
            self._visit(self._waiting.popleft())

    def changed(self) -> tuple[set[int], set[int]]:
        """The objects that are not what they were when they were looked at; and those whose gradient alone changed."""
        found, gathered = set[int](), set[int]()
        for value, before in list(self._seen.values()):
            now = _state(value)[0]
            if before is None or before == now:
                continue
            only_gradient = isinstance(before, _TensorState) and before.held == now.held
            (gathered if only_gradient else found).update(_keys(value))
        return found, gathered

    def _names(self, names: Iterable[str]) -> None:
        for name in names:
            if name in self._namespace and name not in self.read and name not in self._hidden:
                self.read.add(name)
                self._waiting.append(self._namespace[name])

    def _visit(self, value: Any) -> None:
        if isinstance(value, _PLAIN) or id(value) in self._seen:
            return
        state, children = _state(value)
        self._seen[id(value)] = (value, state)
        self.keys |= _keys(value)
        self._waiting.extend(children)
        if self._follow and isinstance(value, types.FunctionType) and value.__globals__ is self._namespace:
            names = _global_names(value.__code__)
            self._names(names)
            self.mentioned |= names


_OF_GRADIENTS = frozenset({"grad", "backward", "step", "zero_grad", "clip_grad_norm_", "clip_grad_value_"})


@dataclass(frozen=True)
class _TensorState:
    held: tuple[Any, ...]
    gradient: tuple[int, int]


_OPAQUE = math.nan  # equal to nothing: what cannot be looked into counts as changed by whoever can reach it
_EMPTY = types.CellType()  # equal to those alone that have no contents yet


def _state(value: Any) -> tuple[Any, Iterable[Any]]:
    """Return a state that differs once an object has changed, or None, and the objects that it holds."""
    kind = type(value)
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    if tensor is not None and isinstance(value, tensor):
        return _tensor_state(value)
    if isinstance(value, dict | types.MappingProxyType):
        held = [*value.values(), *getattr(value, "__dict__", {}).values()]
        return (tuple(map(id, list(value)[:_MANY])), tuple(map(id, held[:_MANY])), len(value)), held[:_MANY]
    if isinstance(value, list | deque | set | tuple | frozenset):
        held = list(value)[:_MANY]
        return None if isinstance(value, tuple | frozenset) else (tuple(map(id, held)), len(value)), held
    if isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if cell != _EMPTY]
        held = [*cells, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values(), *value.__dict__.values()]
        return tuple(map(id, held)), held
    if isinstance(value, types.MethodType | staticmethod | classmethod | property):
        return None, [getattr(value, name, None) for name in ("__self__", "__func__", "fget", "fset")]
    if isinstance(value, type):
        if value.__module__ != "__main__":
            return None, []
        held = [*vars(value).values(), *value.__bases__]
        return tuple(map(id, held)), held
    if kind.__module__ in _PLAIN_MODULES or kind.__module__.partition(".")[0] == "typing":
        allowed = _PLAIN_MODULES.get(kind.__module__)
        if allowed is None or kind.__name__ in allowed:
            return None, []
    if kind.__module__.partition(".")[0] == "matplotlib":
        drawn = _figure(value)
        return _OPAQUE, [] if drawn is None or drawn is value else [drawn]
    if isinstance(value, random.Random):
        return value.getstate(), []
    if kind.__name__ == "Generator" and kind.__module__.startswith("torch"):
        return bytes(value.get_state().tolist()), []
    if kind.__name__ == "ndarray":
        return (value.tobytes() if value.nbytes < 1_000_000 else _OPAQUE), []
    holders = [type(value)] if kind.__module__ == "__main__" else []
    attributes = getattr(value, "__dict__", None)
    if isinstance(attributes, dict):
        held = [*attributes.values()]
        wrapped = getattr(value, "__wrapped__", None)
        partial = [getattr(value, name, None) for name in ("func", "args", "keywords")]
        return (tuple(attributes), tuple(map(id, held))), [*held, *holders, wrapped, *partial]
    slots = [name for base in kind.__mro__ for name in vars(base).get("__slots__", ())]
    if slots:
        held = [getattr(value, name, None) for name in slots]
        return tuple(map(id, held)), [*held, *holders]
    return _OPAQUE, []  # an iterator, a file


def _tensor_state(value: Any) -> tuple[Any, Iterable[Any]]:
    try:
        version = tensor_version(value)
        where = value.data_ptr()
    except RuntimeError:  # made in inference mode, or without data
        version, where = 0, 0
    held = [*vars(value).values()]
    gradient = value.grad if value.is_leaf else None
    state = (version, where, value.requires_grad, tuple(value.shape), *map(id, held))
    # The gradient is told apart: each backward pass changes it, and few statements look at it.
    return _TensorState(state, (id(gradient), 0 if gradient is None else tensor_version(gradient))), held


def _keys(value: Any) -> set[int]:
    """Return the keys of an object: its identity, and for a tensor the memory that its views share."""
    keys = {id(value)}
    if hasattr(type(value), "untyped_storage"):  # a class of tensors has none
        with contextlib.suppress(RuntimeError, NotImplementedError):  # it has none
            keys.add(-value.untyped_storage().data_ptr())
    return keys - {0}


@functools.cache
def _global_names(code: types.CodeType) -> frozenset[str]:
    """The names that a function, and functions in it, may look up: attributes too, which does no harm."""
    inner = [_global_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return frozenset(code.co_names).union(*inner)


def _figure(value: Any) -> Any:
    """The matplotlib figure that a value is or belongs to."""
    module = sys.modules.get("matplotlib.figure")
    if module is None or isinstance(value, module.FigureBase):
        return value if module else None
    return getattr(value, "figure", None)


_TORCH_SETTINGS = (
    *("get_default_dtype", "get_default_device", "is_grad_enabled", "is_inference_mode_enabled"),
    *("are_deterministic_algorithms_enabled", "get_num_threads"),
)


def _settings() -> tuple[Any, ...]:
    """Global settings that change what later statements do."""
    settings: list[Any] = [dict(os.environ), os.getcwd(), list(sys.path)]
    if torch := sys.modules.get("torch"):
        settings += [*(getattr(torch, name)() for name in _TORCH_SETTINGS), *torch_settings(torch)]
    if matplotlib := sys.modules.get("matplotlib"):
        settings.append(dict(dict.items(matplotlib.rcParams)))  # whose own methods would take ten times as long
    if numpy := sys.modules.get("numpy"):
        settings.append(str(numpy.get_printoptions()))
    return tuple(settings)
