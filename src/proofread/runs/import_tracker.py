"""Records each module, distribution and entry point that is asked for by name, installed or not.

The fork server imports this first.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from importlib.abc import MetaPathFinder
from importlib.metadata import Distribution, DistributionFinder
from types import FrameType, ModuleType
from typing import Any

from ..keep.installed import EVERYTHING

# These ask for what no page's results depend on: packages that it would not trace, and a bar that shows progress.
_IDLE = {"torch._dynamo.trace_rules", "torch.hub"}
_METADATA = ("importlib.metadata", "importlib_metadata")  # the other is its backport


class _Asked(MetaPathFinder):
    """Finds nothing, and is asked first."""

    def __init__(self) -> None:
        self.questions: set[str] = set()

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:
        if name.partition(".")[0] not in sys.stdlib_module_names and _asker(sys._getframe(1)) not in _IDLE:
            self.questions.add(_import(name))

    def find_distributions(self, context: DistributionFinder.Context) -> Iterable[Distribution]:
        if context.name is not None:
            self.questions.add(f"distribution {context.name}")
        elif (group := _group(sys._getframe(1))) is not None:
            self.questions.add(group)
        return ()


def _group(frame: FrameType | None) -> str | None:
    """The entry points that are asked for, if it is these; None where nobody yet asks who takes a group later."""
    while frame and str(frame.f_globals.get("__name__")).startswith(_METADATA):
        if frame.f_code.co_name == "entry_points" and "group" in (params := frame.f_locals.get("params", {})):
            return f"entry points {params['group']}"
        frame = frame.f_back
    return None if frame and frame.f_code is _entry_points.__code__ else EVERYTHING


def _entry_points(**params: Any) -> Any:
    """As `importlib.metadata.entry_points`; who takes one group of all, as triton does, asks for that one alone."""
    result = _all_entry_points(**params)
    if params:
        if "group" not in params:
            _asked.questions.add(EVERYTHING)
        return result
    kind: Any = type(result)

    class Noted(kind):  # type: ignore[misc]  # a dict of groups on Python 3.11, a tuple on later ones
        def __getattribute__(self, name: str) -> Any:
            if name == "select":
                return lambda **params: _entry_points(**params) if params else self
            _asked.questions.add(EVERYTHING)
            return super().__getattribute__(name)

    for name in {"__contains__", "__getitem__", "__iter__", "__len__"}:  # which Python asks of the class
        setattr(Noted, name, _noted(getattr(kind, name)))
    return Noted(dict.items(result) if isinstance(result, dict) else result)  # that dict's own methods warn


def _noted(method: Callable[..., Any]) -> Callable[..., Any]:
    def noted(*arguments: Any) -> Any:
        _asked.questions.add(EVERYTHING)
        return method(*arguments)

    return noted


def _asker(frame: FrameType | None) -> str:
    while frame and str(frame.f_globals.get("__name__")).partition(".")[0] in ("importlib", "_frozen_importlib"):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__")) if frame else ""


def _import(name: str) -> str:
    return f"import {name.partition('.')[0]}"


_asked = _Asked()
sys.meta_path.insert(0, _asked)
_all_entry_points = metadata.entry_points
metadata.entry_points = _entry_points


def questions() -> list[str]:
    """Return the requests of this process and of those that it was forked from, sorted."""
    imported = {_import(name) for name in [*sys.modules] if name.partition(".")[0] not in sys.stdlib_module_names}
    return sorted(imported | _asked.questions)
