"""The engine is one way through: no part imports one that comes after it, and no module itself in the end."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import proofread

SOURCES = Path(proofread.__file__).parent
# Each part may import those before it. The faces, which stand beside the folders, come last.
PARTS = (
    *("_private", "lazy_import", "syntax", "settings", "keep", "processes", "formulas", "programs", "pages", "runs"),
    *("checks", "publish", "streams", "cli", "pytest_plugin"),
)


def name(path: Path) -> str:
    parts = path.relative_to(SOURCES).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name(path): path for path in sorted(SOURCES.rglob("*.py"))}


def imports(module: str) -> set[str]:
    """The modules of the engine that a module imports, at any depth, for types too."""
    path, found = MODULES[module], set()
    folder = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = folder[: len(folder) - node.level + 1] + (node.module.split(".") if node.module else [])
            for alias in node.names:
                whole = ".".join([*base, alias.name])
                found.add(whole if whole in MODULES else ".".join(base))
    return found - {module}


@pytest.mark.parametrize("module", [module for module in MODULES if module.split(".")[0] in PARTS])
def test_no_part_imports_one_that_comes_after_it(module: str) -> None:
    place = PARTS.index(module.split(".")[0])
    late = {other for other in imports(module) if other and PARTS.index(other.split(".")[0]) > place}
    assert not late


def test_every_module_has_its_place() -> None:
    assert {module.split(".")[0] for module in MODULES} == {*PARTS, "", "__main__"}


def test_no_module_imports_itself_in_the_end() -> None:
    order = [*TopologicalSorter({module: imports(module) for module in MODULES}).static_order()]  # a circle raises
    assert {*order} == {*MODULES}


@pytest.mark.parametrize("module", MODULES)
def test_no_file_is_longer_than_a_reader_can_hold(module: str) -> None:
    assert len(MODULES[module].read_text(encoding="utf-8").splitlines()) <= 600
