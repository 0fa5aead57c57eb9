"""Names that have become others: the old ones work for one version, and say so."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pkgutil import resolve_name

__all__ = ["renamed"]


def renamed(module: str, **names: str) -> Callable[[str], object]:
    """Make the `__getattr__` of a module that knows its old names.

    Args:
        module: The module's name.
        names: For each old name where it is now, as "package.module:name".
    """

    def get(name: str) -> object:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        now = names[name].replace(":", ".")
        warnings.warn(f"{module}.{name} is now {now}; the old name goes with the next version", DeprecationWarning, 2)
        return resolve_name(names[name])

    return get
