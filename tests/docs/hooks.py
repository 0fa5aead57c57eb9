"""The hooks of the site, which stand beside its pages and are no package."""

import importlib.util
from pathlib import Path
from typing import Any

HOOKS = Path(__file__).parents[2] / "docs/hooks"


def hook(name: str) -> Any:
    """Load a hook as a module."""
    spec = importlib.util.spec_from_file_location(name, HOOKS / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
