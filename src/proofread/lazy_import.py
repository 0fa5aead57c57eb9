"""Modules that are read later than they are imported, and functions that wait for the import of a module."""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import LazyLoader
from types import ModuleType
from typing import Any


class _Finder(MetaPathFinder):
    """Finds some modules as the finders after it would, and changes how each is loaded; the first import alone."""

    def __init__(self) -> None:
        self.changes: dict[str, Callable[[ModuleSpec], None]] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self.changes:
            return None
        change = self.changes.pop(name)
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            change(spec)
        return spec


_finder = _Finder()


def _on_import(name: str, change: Callable[[ModuleSpec], None]) -> None:
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    _finder.changes[name] = change


def defer(*names: str) -> None:
    """Let the first import of each module give one that is read when it is used; those imported already stay.

    >>> defer("this")
    >>> import this  # prints its poem only once something in it is looked at
    """

    def lazily(spec: ModuleSpec) -> None:
        assert spec.loader is not None
        spec.loader = LazyLoader(spec.loader)

    for name in names:
        if name not in sys.modules:
            _on_import(name, lazily)


def when_imported(name: str, then: Callable[[Any], object]) -> None:
    """Call a function with a module: now, or as soon as anything has imported it."""
    if sys.modules.get(name):
        then(sys.modules[name])
        return
    before = _finder.changes.get(name)

    def and_then(spec: ModuleSpec) -> None:
        if before:
            before(spec)
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            then(module)

        loader.exec_module = exec_module

    _on_import(name, and_then)
