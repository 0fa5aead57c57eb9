"""Takes note of what is asked for by name, whether it is installed or not. The fork server imports this first."""

import sys
from collections.abc import Iterable, Sequence
from importlib.abc import MetaPathFinder
from importlib.metadata import Distribution, DistributionFinder
from types import FrameType, ModuleType

from ..keep.installed import EVERYTHING

# These ask for what no page's results depend on: packages that it would not trace, and a bar that shows progress.
_IDLE = {"torch._dynamo.trace_rules", "torch.hub"}


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


def questions() -> list[str]:
    """What this process, and those that it was forked from, have asked for."""
    imported = {_import(name) for name in [*sys.modules] if name.partition(".")[0] not in sys.stdlib_module_names}
    return sorted(imported | _asked.questions)
