"""Names that have become others: the old ones work for one version, and say so."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pkgutil import resolve_name

__all__ = ["renamed"]


def renamed(module: str, now: dict[str, str], **kept: object) -> Callable[[str], object]:
    """Make the `__getattr__` of a module that knows its old names.

    Args:
        module: The module's name.
        now: For each old name where to find it now, as "package.module:name".
        kept: What an old name stood for, where the new one takes other arguments.
    """

    def get(name: str) -> object:
        if name not in now:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        told = f"{module}.{name} is now {now[name].replace(':', '.')}; the old name goes with the next version"
        warnings.warn(told, DeprecationWarning, 2)
        return kept.get(name) or resolve_name(now[name])

    return get
