"""Leaves modules that others import at once unread until something in them is used."""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType


def defer(*names: str) -> None:
    """Let the first import of each module give one that is read when it is used; those imported already stay.

    >>> defer("this")
    >>> import this  # prints its poem only once something in it is looked at
    """
    if waiting := {name for name in names if name not in sys.modules}:
        sys.meta_path.insert(0, _Deferring(waiting))


class _Deferring(MetaPathFinder):
    def __init__(self, waiting: set[str]):
        self._waiting = waiting

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module that is waited for where it would be found anyway."""
        if name not in self._waiting:
            return None
        self._waiting.remove(name)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec
