"""Names that PyTorch and Python keep to themselves are there, and where they are gone it is as each function says."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.profiler import ProfilerActivity, profile

from unmasked import _private, kernels, tiles

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
