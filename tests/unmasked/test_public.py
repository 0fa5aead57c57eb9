"""What every public name promises: it is documented, it has an example that runs, and it needs torch alone."""

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

import unmasked
import unmasked_doctor
import unmasked_lessons

PACKAGES = [unmasked, unmasked_doctor, unmasked_lessons]
MODULES = [
    importlib.import_module(f"{package.__name__}.{info.name}")
    for package in PACKAGES
    for info in pkgutil.iter_modules(package.__path__)
    if not info.name.startswith("_")
]


def public(module: ModuleType) -> Iterator[tuple[str, object]]:
    for name in module.__all__:
        thing = getattr(module, name)
        if inspect.isroutine(thing) or inspect.isclass(thing):
            yield f"{module.__name__}.{name}", thing


NAMES = dict(pair for module in MODULES for pair in public(module))


def test_every_module_is_documented_and_lists_what_is_public() -> None:
    for module in [*PACKAGES, *MODULES]:
        assert inspect.getdoc(module)
        defined = {
            name
            for name, thing in vars(module).items()
            if (inspect.isroutine(thing) or inspect.isclass(thing)) and thing.__module__ == module.__name__
        }
        assert {name for name in defined if not name.startswith("_")} - {"Module", "State"} <= set(module.__all__)


def test_everything_is_importable_by_its_public_name() -> None:
    scope: dict[str, object] = {}
    exec("from unmasked import *", scope)
    assert set(unmasked.__all__) <= scope.keys()


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_has_a_claim_an_example_and_its_sections(name: str) -> None:
    thing = NAMES[name]
    doc = inspect.getdoc(thing) or ""
    first = doc.split("\n")[0]
    assert first.endswith("."), "the first line is one claim"
    if inspect.isclass(thing):
        is_result = issubclass(thing, tuple | Exception) or dataclasses.is_dataclass(
            thing
        )  # a function's example has it
        assert is_result or ">>>" in doc
        methods = [m for n, m in vars(thing).items() if inspect.isroutine(m) and not n.startswith("_")]
        assert all(inspect.getdoc(method) for method in methods)
        return
    assert ">>>" in doc
    signature = inspect.signature(thing)
    if "arguments as for" not in doc.lower():
        if signature.parameters:
            assert "Args:" in doc
        for parameter in signature.parameters:
            assert re.search(rf"^    \*{{0,2}}{parameter}: ", doc, re.MULTILINE), f"{parameter} is not documented"
        assert any(section in doc for section in ("Returns:", "Yields:")) or signature.return_annotation == "None"


WITHOUT_EXTRAS = """
import sys
for blocked in ("jaxtyping", "beartype", "cloudpickle", "matplotlib", "numpy"):
    sys.modules[blocked] = None
import unmasked  # before PyTorch, which warns by itself where there is no NumPy
import torch
x = torch.eye(2)
unmasked.parallel
print(unmasked.self_attention(x).context.shape, unmasked.MultiheadAttention(4, 2).num_heads)
"""


def test_torch_alone_is_enough_and_nothing_warns_of_what_is_not_needed() -> None:
    run = subprocess.run([sys.executable, "-W", "error", "-c", WITHOUT_EXTRAS], capture_output=True, text=True)
    assert run.stdout == "torch.Size([2, 2]) 2\n", run.stderr


def test_a_name_that_does_not_exist_is_said() -> None:
    with pytest.raises(AttributeError, match="module 'unmasked' has no attribute 'atention'"):
        unmasked.atention  # type: ignore[attr-defined]


def test_one_import_brings_every_module_of_the_library_and_nothing_else() -> None:
    code = "import sys, unmasked\nprint(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    brought = set(run.stdout.split())
    assert {module.__name__ for module in MODULES if module.__name__.startswith("unmasked.")} <= brought, run.stderr
    assert not brought & {"matplotlib", "IPython", "pandas", "unmasked_doctor", "unmasked_lessons"}


def test_the_doctor_comes_when_it_is_asked_for() -> None:
    code = "import sys, unmasked, typing\nfrom unmasked import diagnose, diagnose_model\n"
    code += "print(diagnose is unmasked.diagnose, diagnose_model.__module__, 'unmasked_lessons' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout == "True unmasked_doctor._model False\n", run.stderr


# Each package may import those that stand before it.
ORDER = ["unmasked", "unmasked_doctor", "unmasked_lessons", "proofread"]


def imported(tree: ast.AST) -> Iterator[str]:
    """The packages that a module imports, wherever in it; but for annotations, which run nowhere."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield (node.module or "").partition(".")[0]
        yield from imported(node)


@pytest.mark.parametrize("package", ORDER)
def test_imports_go_one_way(package: str) -> None:
    allowed = {"proofread"} if package == "proofread" else {*ORDER[: ORDER.index(package) + 1]}
    for path in sorted((Path(__file__).parents[2] / "src" / package).rglob("*.py")):
        others = {*imported(ast.parse(path.read_text(encoding="utf-8")))} & {*ORDER} - allowed
        assert not others, f"{path} imports {others}"


def test_the_package_lists_things_and_no_modules() -> None:
    assert not [name for name in unmasked.__all__ if inspect.ismodule(getattr(unmasked, name))]


def test_this_pytorch_is_one_of_those_with_which_the_library_is_said_to_be_tested() -> None:
    page = (Path(__file__).parents[2] / "docs" / "install.md").read_text(encoding="utf-8")
    (said,) = re.findall(
        r"tests pass with\s+PyTorch (.*?):", re.sub(r"<!--.*?-->", "", page, flags=re.DOTALL), re.DOTALL
    )
    this = ".".join(torch.__version__.split(".")[:2])
    assert this in re.findall(r"[\d.]+", said), (
        f"docs/install.md says that the tests pass with PyTorch {' '.join(said.split())}: where the others pass with "
        f"{this}, add it there, and the last of those to the matrix of .github/workflows/torch.yml"
    )


def test_each_module_that_annotates_shapes_is_held_to_them_in_these_tests() -> None:
    root = Path(__file__).parents[2]
    options = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
    (listed,) = [each.partition("=")[2] for each in options["addopts"] if each.startswith("--jaxtyping-packages")]
    *held, checker = listed.split(",")
    assert checker == "beartype.beartype"
    source = root / "src"
    annotated = [
        path.relative_to(source).with_suffix("")
        for path in source.glob("unmasked*/**/*.py")
        if "unmasked._shapes import" in path.read_text(encoding="utf-8")
    ]
    assert held == sorted({".".join(path.parts[:2]) for path in annotated})
