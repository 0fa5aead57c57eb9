"""Takes note of what is asked for by name, whether it is installed or not. The fork server imports this first."""

import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder
from types import FrameType, ModuleType
from typing import Any

from ..keep.installed import EVERYTHING

# These ask for what no page's results depend on: packages that it would not trace, and a bar that shows progress.
_IDLE = {"torch._dynamo.trace_rules", "torch.hub"}


class _Asked(MetaPathFinder):
    """Is asked first, and leaves it to the others to find anything."""

    def __init__(self) -> None:
        self.questions: set[str] = set()
        self.awaited: dict[str, list[Callable[[Any], object]]] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] not in sys.stdlib_module_names and _asker(sys._getframe(1)) not in _IDLE:
            self.questions.add(_import(name))
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

    def find_distributions(self, context: DistributionFinder.Context) -> Iterable[Distribution]:
        if context.name is not None:
            self.questions.add(f"distribution {context.name}")
        else:
            self.questions.add(_group(sys._getframe(1)) or EVERYTHING)
        return ()


def _group(frame: FrameType | None) -> str:
    """The entry points that are asked for, if it is these."""
    while frame and str(frame.f_globals.get("__name__")).startswith("importlib.metadata"):
        if frame.f_code.co_name == "entry_points":
            group = frame.f_locals.get("params", {}).get("group")
            return f"entry points {group}" if group else ""
        frame = frame.f_back
    return ""


def _asker(frame: FrameType | None) -> str:
    while frame and str(frame.f_globals.get("__name__")).partition(".")[0] in ("importlib", "_frozen_importlib"):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__")) if frame else ""


def _import(name: str) -> str:
    return f"import {name.partition('.')[0]}"


_asked = _Asked()
sys.meta_path.insert(0, _asked)


def when_imported(name: str, then: Callable[[Any], object]) -> None:
    """Hand a module to a function: now, or as soon as anything has imported it."""
    if sys.modules.get(name):
        then(sys.modules[name])
    else:
        _asked.awaited.setdefault(name, []).append(then)


def questions() -> list[str]:
    """What this process, and those that it was forked from, have asked for."""
    imported = {_import(name) for name in [*sys.modules] if name.partition(".")[0] not in sys.stdlib_module_names}
    return sorted(imported | _asked.questions)
