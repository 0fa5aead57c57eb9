"""Which libraries of numbers a page uses; nothing is imported to find out."""

import sys
from collections.abc import Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any

LIBRARIES = {"torch", "numpy"}
_SHELL = {"IPython", "builtins", "__main__", "__mp_main__"}


def used(namespace: Mapping[str, object]) -> set[str]:
    """Tell which of torch and numpy the values of a page come from; where none does, which its packages import."""
    homes = {_home(value) for name, value in namespace.items() if not name.startswith("_")}
    return homes & LIBRARIES or {*_imported(homes - sys.stdlib_module_names - _SHELL)}


def _home(value: Any) -> str:
    """The package that a value comes from, without asking the value: it may be anything."""
    if isinstance(value, ModuleType):
        home = value.__name__
    else:
        home = (value if isinstance(value, type | FunctionType) else type(value)).__module__
    return str(home).partition(".")[0]


def _imported(packages: set[str]) -> Iterator[str]:
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in packages and module is not None:
            yield from LIBRARIES & {_home(value) for value in list(vars(module).values())}
