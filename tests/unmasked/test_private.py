"""PyTorch's private names stand in one module, and each does there what it is taken for."""

import ast
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from unmasked import _private, attend, masks
from unmasked._private import _of_torch, dispatch_modes, is_transformed, tracing_state

SOURCE = Path(__file__).parents[2] / "src"
OURS = {"__future__", *(path.name for path in SOURCE.iterdir())}

DOCUMENTED = {"os._exit", "sys._getframe"}  # by Python, whose names they are

# Files that may still have private names. Whoever moves those of a file to unmasked._private takes it out here.
ELSEWHERE = {
    "unmasked/kernels.py",
    "unmasked/parallel/ring.py",
    "unmasked/trace.py",
    "unmasked/watching/calls.py",
    "unmasked/watching/heard.py",
    "unmasked_doctor/_hear.py",
    "unmasked_doctor/_model.py",
    "unmasked_doctor/_target.py",
    "unmasked_doctor/probes.py",
    "unmasked_lessons/figures/backward.py",
    "unmasked_lessons/measure/flex.py",
}


def private(name: str) -> bool:
    return name not in DOCUMENTED and any(
        part.startswith("_") and not part.startswith("__") for part in name.split(".")
    )


def foreign(tree: ast.AST) -> Iterator[str]:
    """The names that a module takes from modules of others, and those of attributes that it asks for."""
    modules = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                modules[each.asname or each.name.partition(".")[0]] = each.name
                yield each.name
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] not in OURS:
            for each in node.names:
                modules[each.asname or each.name] = f"{node.module}.{each.name}"
                yield f"{node.module}.{each.name}"
        elif isinstance(node, ast.Call):
            match node:
                case ast.Call(ast.Name("getattr"), [_, ast.Constant(str(name)), *_]):
                    yield name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            root, _, rest = ast.unparse(node).partition(".")
            if root in modules:
                yield f"{modules[root]}.{rest}"


def test_no_other_module_has_a_private_name_of_another_package() -> None:
    for path in sorted(SOURCE.glob("unmasked*/**/*.py")):
        names = {name for name in foreign(ast.parse(path.read_text(encoding="utf-8"))) if private(name)}
        name = path.relative_to(SOURCE).as_posix()
        assert not names or name in ELSEWHERE or name == "unmasked/_private.py", f"{name} has {names}"


def test_what_is_missing_is_replaced_by_what_is_done_without_it() -> None:
    assert _of_torch("_C._no_such_name", 5) == _of_torch("_no_such_module.name", 5) == 5
    assert _of_torch("float32", 5) is torch.float32


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace")
def test_tracing_state_is_none_where_nothing_is_traced() -> None:
    states = []
    torch.jit.trace(lambda x: states.append(tracing_state()) or x, torch.ones(2), check_trace=False)
    assert tracing_state() is None
    assert states
    assert None not in states


def test_dispatch_modes_counts_those_that_are_active() -> None:
    assert dispatch_modes() == 0
    with TorchDispatchMode(), TorchDispatchMode():
        assert dispatch_modes() == 2


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # which torch.func.jvp calls
def test_is_transformed_knows_the_tensors_of_each_transform_and_of_one_in_another() -> None:
    seen = []

    def f(x: Tensor) -> Tensor:
        seen.append(is_transformed(x))
        return x.sum()

    x = torch.ones(3, 3)
    torch.func.vmap(f)(x)
    torch.func.grad(f)(x)
    torch.func.jvp(f, (x,), (x,))
    torch.func.vmap(torch.func.grad(f))(x)
    assert seen == [True] * 4
    assert not is_transformed(x)


MISSING = {"tracing_state": lambda: True, "dispatch_modes": lambda: 1, "is_transformed": lambda x: True}


@pytest.mark.parametrize("name", MISSING)
def test_where_one_is_missing_attention_is_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    query, allowed = torch.randn(2, 5, 4), masks.causal(5)
    blind = allowed.clone()
    blind[2] = False

    def run() -> list[Tensor]:
        options = product((allowed, blind), ("eager", "fused"))
        return [attend(query, query, query, allowed=mask, implementation=each).context for mask, each in options]

    before = run()
    monkeypatch.setattr(f"unmasked.functional.{name}", MISSING[name])
    torch.testing.assert_close(run(), before)


def test_each_name_has_a_test_here() -> None:
    assert set(_private.__all__) == set(MISSING)
