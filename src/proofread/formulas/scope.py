"""The names of a formula: what `where` binds, over what the page has."""

import ast
import builtins
import contextlib
import functools
import importlib
import math
import re
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..syntax import module
from .arrays import array, is_list, is_tensor, shape
from .libraries import LIBRARIES, used
from .tree import FormulaError

_SIZES = (3, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12)
_MODULES = {"torch": "torch", "numpy": "numpy", "np": "numpy"}  # which `where` may name though the page does not
_SEPARATED = "write name = value, with a semicolon and no comma between two"


class Scope:
    """The bindings of the names of a formula.

    Attributes:
        where: What `where` binds.
        page: The page's namespace.
        self_made: Names that `where` computes without calling what the page or its packages define, and from what.
        computed: Names that `where`, or a cell of the page, binds by such a call, or to what is made of it.
        typed: Names that it binds to what it types.
        library: What arrays are made with: torch, unless the page uses numpy alone.
    """

    def __init__(self, where: str, page: Mapping[str, object]):
        self.page = page
        self.where: dict[str, Any] = {}
        self.self_made: dict[str, set[str]] = {}
        self.computed: set[str] = set()
        self.typed: set[str] = set()
        self._globals: dict[str, Any] = {**page, "random": self._random}
        try:
            tree = module(re.sub(r";\s*", "; ", where))
            named = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
            for name in named & _MODULES.keys() - page.keys():
                self._globals[name] = importlib.import_module(_MODULES[name])
            libraries = used({name: value for name, value in self._globals.items() if name != "random"})
            self.library: Any = importlib.import_module("torch") if "torch" in libraries else np
            self._generator: Any = np.random.default_rng(0)
            if self.library is not np:
                self._generator = self.library.Generator().manual_seed(0)
            cells: Any = page.get("In", ())  # where IPython keeps them
            for cell in cells:
                self._learn(cell)
            with _seeded():
                for statement in tree.body:
                    self._run(statement)
        except FormulaError:
            raise
        except SyntaxError as error:
            raise FormulaError(f"its `where: {where}` is no Python, {error.msg}: {_SEPARATED}") from error
        except Exception as error:
            raise FormulaError(f"its `where: {where}` fails: {type(error).__name__}: {error}") from error

    def _run(self, statement: ast.stmt) -> None:
        # To Python, `a = b, c = d` assigns d to a and to the tuple of b and c.
        if not isinstance(statement, ast.Assign) or any(isinstance(n, ast.Tuple) for n in statement.targets[1:]):
            raise FormulaError(f"`{ast.unparse(statement)}` in its `where` is not an assignment: {_SEPARATED}")
        exec(compile(ast.Module([statement], []), "<where>", "exec"), self._globals)
        names = [n.id for target in statement.targets for n in ast.walk(target) if isinstance(n, ast.Name)]
        self.where |= {name: self._globals[name] for name in names}
        used = {n.id for n in ast.walk(statement.value) if isinstance(n, ast.Name)} - {"random"}
        called = {_root(n.func) for n in ast.walk(statement.value) if isinstance(n, ast.Call)}
        is_computed = any(self.proves(name) for name in called) or bool(used & self.computed)
        self.computed -= set(names)  # what the page had under that name
        if called | used <= self.typed | {"math", *_MODULES} | ({*dir(builtins)} - self.page.keys()):
            self.typed |= set(names)
        if is_computed:
            self.computed |= set(names)
            return
        works = any(isinstance(n, ast.BinOp | ast.Call | ast.Lambda | ast.UnaryOp) for n in ast.walk(statement.value))
        data = {name for name in used if self._is_data(name) or name in self.self_made}
        if works and (data or any(isinstance(n, ast.Lambda) for n in ast.walk(statement.value))):
            self.self_made |= dict.fromkeys(names, used)

    def _learn(self, cell: str) -> None:
        """Take in which names a cell binds to what the page, or a package of its, computes."""
        for names, taken, called in _assigned(cell):
            if any(self.proves(name) for name in called & self.page.keys()) or taken & self.computed:
                self.computed |= names
            else:
                self.computed -= names

    def _is_data(self, name: str) -> bool:
        """Tell whether a name is bound to an array, or to a number or a list that `where` does not type."""
        value = self._globals.get(name)
        is_array = isinstance(value, np.ndarray) or is_tensor(value)
        return is_array or (name not in self.typed and (is_list(value) or isinstance(value, float | np.number)))

    def _random(self, *shapes: str) -> Any:
        """``random`` in a `where`: see the package's conventions."""
        sizes = [[math.prod(map(self._size, axis.split("*"))) for axis in axes.split()] for axes in shapes]
        values = [self._normal(each) if each else float(self._normal(each)) for each in sizes]
        return values[0] if len(values) == 1 else values

    def _normal(self, sizes: list[int]) -> Any:
        if self.library is np:
            return np.asarray(self._generator.standard_normal(sizes))
        return self.library.randn(sizes, generator=self._generator, dtype=self.library.float64)

    def _size(self, name: str) -> int:
        if name.isdecimal():
            return int(name)
        size = self.where.get(name)  # not the page's: what an earlier cell left in n has nothing to do with this
        if not isinstance(size, int):
            taken = {value for value in self.where.values() if isinstance(value, int)}
            size = next(size for size in _SIZES if size not in taken)
            self.typed.add(name)
        self.where[name] = self._globals[name] = size
        return size

    def proves(self, name: str) -> bool:
        """Tell whether calling the name runs what the page or its packages define, not only a library or Python."""
        if name in self.computed or name in self.self_made:
            return name in self.computed
        value = self.value(name)
        if name in self.where and not callable(value):
            return False
        if isinstance(value, types.ModuleType):
            home = value.__name__
        else:
            home = (getattr(value, "__module__", "") if callable(value) else "") or "builtins"
        torch = sys.modules.get("torch")
        layer = torch is not None and isinstance(value, torch.nn.Module)
        return layer or home.partition(".")[0] not in (*LIBRARIES, "math", "builtins")

    def bound(self, name: str, *, by_where: bool = False) -> bool:
        """Tell whether the name is bound."""
        return name in self.where or (not by_where and name in self.page)

    def callable(self, name: str) -> bool:
        """Tell whether the name is bound to a function."""
        return callable(self.value(name))

    def indexable(self, name: str) -> bool:
        """Tell whether the name is bound to what has entries."""
        return bool(shape(array(self.value(name))))

    def derivative(self, key: object, leaf: Any) -> Any:
        """Return a value to stand for a derivative, where it cannot be computed."""
        return None

    def value(self, name: str) -> Any:
        """Return what the name is bound to."""
        return self.where.get(name, self.page.get(name))


@functools.cache
def _assigned(cell: str) -> tuple[tuple[frozenset[str], frozenset[str], frozenset[str]], ...]:
    """The assignments of a cell, but for those in functions: what each binds, uses, and calls."""
    assigned = []
    try:
        body = module(cell).body
    except SyntaxError:  # which its cell tells of
        return ()
    for statement in (each for each in body if not isinstance(each, ast.FunctionDef | ast.ClassDef)):
        for node in ast.walk(statement):
            if isinstance(node, ast.Assign):
                names = {n.id for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name)}
                used = {n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)}
                called = {_root(n.func) for n in ast.walk(node.value) if isinstance(n, ast.Call)}
                assigned.append((frozenset(names), frozenset(used), frozenset(called)))
    return tuple(assigned)


@contextlib.contextmanager
def _seeded() -> Iterator[None]:
    """Let the global random generators begin anew, and leave them as they were."""
    torch, state = sys.modules.get("torch"), np.random.get_state()
    with contextlib.ExitStack() as stack:
        if torch is not None:
            stack.enter_context(torch.random.fork_rng(devices=[]))
            torch.manual_seed(0)
        np.random.seed(0)
        stack.callback(np.random.set_state, state)
        yield


def _root(function: ast.expr) -> str:
    while isinstance(function, ast.Attribute | ast.Call | ast.Subscript):
        function = function.func if isinstance(function, ast.Call) else function.value
    return function.id if isinstance(function, ast.Name) else ""
