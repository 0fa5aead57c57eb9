"""PyTorch's private names stand in one module, and each does there what it is taken for."""

import ast
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from unmasked import _private, attend, kernels, masks, tiles
from unmasked._private import _of_torch, dispatch_modes, is_transformed, tracing_state

SOURCE = Path(__file__).parents[2] / "src"
OURS = {"__future__", *(path.name for path in SOURCE.iterdir())}

DOCUMENTED = {"os._exit", "sys._getframe"}  # by Python, whose names they are


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
        assert not names or name == "unmasked/_private.py", f"{name} has {names}: move them to unmasked._private"


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


X = torch.randn(2, 3, 5, 8)


class Heard(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


def test_unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    with Heard() as heard, _private.unwatched():
        X.sum()
    assert heard.names == []
    monkeypatch.delattr(torch._C, "DisableTorchFunction")
    with heard, _private.unwatched():
        X.sum()
    assert heard.names == ["sum"]


def test_opened() -> None:
    module, x = nn.MultiheadAttention(8, 2), torch.randn(3, 8)
    weights = (module.in_proj_weight, module.in_proj_bias, None, None, False, 0.0)
    call = (x, x, x, 8, 2, *weights, module.out_proj.weight, module.out_proj.bias)
    with Heard() as whole:
        expected = F.multi_head_attention_forward(*call)
    with Heard() as parts:
        output = _private.opened(F.multi_head_attention_forward)(*call)
    torch.testing.assert_close(output, expected)
    assert whole.names == ["multi_head_attention_forward"]
    assert {"linear", "baddbmm", "softmax"} & set(parts.names)


def test_leaves() -> None:
    assert _private.leaves({"a": [1, (2, {"b": None})], "c": (3,)}) == [1, 2, None, 3]


def test_uncompiled_module() -> None:
    layer = nn.Linear(2, 2)
    assert _private.uncompiled_module(torch.compile(layer, backend="eager")) is layer
    assert _private.uncompiled_module(layer) is layer


def test_version() -> None:
    x = torch.zeros(2)
    before = _private.version(x)
    x += 1
    assert _private.version(x) != before
    with torch.inference_mode():
        assert _private.version(torch.zeros(2)) is _private.version("no tensor") is None


def test_fused_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernels._kernel_name(X, X, X, None, 0.0, False) == "flash"
    monkeypatch.delattr(torch, "_fused_sdp_choice")
    with pytest.raises(NotImplementedError, match="does not tell which kernel it chooses"):
        _private.fused_choice(X, X, X, None, 0.0, False, scale=None, enable_gqa=False)
    assert kernels._kernel_name(X, X, X, None, 0.0, False) == "math"


def test_flash_attention_and_flash_attention_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    context, logsumexp = _private.flash_attention(X, X, X, 0.0, True, scale=0.3)
    for part, expected in zip(
        (context, logsumexp), tiles.tiled_attention(X, X, X, is_causal=True, scale=0.3), strict=True
    ):
        torch.testing.assert_close(part, expected)
    inputs = (torch.ones_like(X), X, X, X, context, logsumexp, 0.0, True)
    leaves = [X.clone().requires_grad_() for _ in range(3)]
    F.scaled_dot_product_attention(*leaves, is_causal=True, scale=0.3).sum().backward()
    for gradient, leaf in zip(_private.flash_attention_backward(*inputs, scale=0.3), leaves, strict=True):
        torch.testing.assert_close(gradient, leaf.grad)
    monkeypatch.setattr(torch.ops, "aten", SimpleNamespace())
    assert _private.flash_attention(X, X, X, 0.0, True, scale=0.3) is None
    assert _private.flash_attention_backward(*inputs, scale=0.3) is None


def test_flex_scores() -> None:
    def capped(score: Tensor, *_: Tensor) -> Tensor:
        return score.tanh()

    def causal(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return query >= key

    scores = _private.flex_scores(X, X, X, capped, (causal,), 0.3, {}, (), ())
    expected = (X @ X.mT * 0.3).tanh().masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf)
    torch.testing.assert_close(scores, expected)


def test_allocations() -> None:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as run:
        x = torch.ones(2**18)
        del x
    sizes = [size for _, size in _private.allocations(run)]
    assert sizes[0] == -sizes[-1] == 2**20
    assert _private.allocations(SimpleNamespace(profiler=None)) == []


def test_has_room_for_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, has_room in (("/tmp", True), ("/" + "long" * 30, False)):
        monkeypatch.setattr("tempfile.tempdir", folder)
        assert _private.has_room_for_sockets() is has_room


def test_without_program() -> None:
    program = sys.modules["__main__"]
    with _private.without_program():
        assert "__file__" not in vars(sys.modules["__main__"])
    assert sys.modules["__main__"] is program


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # as the compiler begins
def test_uncompiled_function() -> None:
    def double(x: Tensor) -> Tensor:
        return 2 * x

    assert _private.uncompiled_function(torch.compile(double)) is _private.uncompiled_function(double) is double


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_graphs_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.compiler.reset()
    before = _private.graphs_traced()
    torch.compile(lambda x: x + 1, backend="eager")(X)
    assert _private.graphs_traced() == before + 1
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", None)
    assert _private.graphs_traced() == 0


def test_storage_holders(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(3)
    assert _private.storage_holders(x) == 1
    view = x[1:]
    assert _private.storage_holders(x) == _private.storage_holders(view) == 2
    monkeypatch.delattr(torch._C, "_storage_Use_Count")
    assert _private.storage_holders(torch.ones(3)) == 2


@pytest.mark.parametrize("name", _private.__all__)
def test_each_name_has_a_test_here(name: str) -> None:
    words = name.lower().replace("dispatchmode", "dispatch_modes")
    assert [test for test in globals() if test.startswith("test_") and words in test]
