"""Modules that are watched from their import on, whoever imports them and whenever."""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _Late(MetaPathFinder):
    """Finds what is awaited as the others would, and hands it on once it has run."""

    def __init__(self) -> None:
        self.awaited: dict[str, list[Callable[[Any], object]]] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self.awaited:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        loader: Any = spec and spec.loader
        if loader:
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                for then in self.awaited.pop(name, ()):
                    then(module)

            loader.exec_module = exec_module
        return spec


_late = _Late()


def when_imported(name: str, then: Callable[[Any], object]) -> None:
    """Hand a module to a function: now, or as soon as anything has imported it."""
    if sys.modules.get(name):
        then(sys.modules[name])
        return
    if _late not in sys.meta_path:
        sys.meta_path.insert(0, _late)
    _late.awaited.setdefault(name, []).append(then)
