"""Imports that wait: modules that run only when they are used, and functions that run once a module is imported."""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import LazyLoader
from types import ModuleType
from typing import Any


class _Finder(MetaPathFinder):
    """Finds a module as the other finders do, and lets the change that waits for its first import adjust the spec."""

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
    """Let the first import of each module give one that runs when it is first used; those imported already stay.

    >>> defer("colorsys")
    >>> import colorsys  # its code runs when something of it is used:
    >>> colorsys.rgb_to_hsv(1.0, 0.0, 0.0)
    (0.0, 1.0, 1.0)
    """

    def lazily(spec: ModuleSpec) -> None:
        assert spec.loader is not None
        spec.loader = LazyLoader(spec.loader)

    for name in names:
        if name not in sys.modules:
            _on_import(name, lazily)


def when_imported(name: str, then: Callable[[Any], object]) -> None:
    """Call a function with a module: now if it is imported, or else as soon as anything has imported it."""
    if sys.modules.get(name):
        then(sys.modules[name])
        return
    earlier = _finder.changes.get(name)  # by `defer`, or by a function that waits for the same module

    def call_after_loading(spec: ModuleSpec) -> None:
        if earlier:
            earlier(spec)
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            then(module)

        loader.exec_module = exec_module

    _on_import(name, call_after_loading)
