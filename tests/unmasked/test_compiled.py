"""What attends is compiled without a graph break, with gradients, and exported once, for every batch and length."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from unmasked import CausalSelfAttention, MultiheadAttention, attend
from unmasked.positions import Rotary

pytestmark = pytest.mark.usefixtures("unhooked")


class Called(nn.Module):
    """A call with options, which gives all results that are tensors."""

    def __init__(self, function: Any, **options: Any) -> None:
        super().__init__()
        self.function, self.options = function, options

    def forward(self, *args: Tensor) -> tuple[Tensor, ...]:
        found = self.function(*args, **self.options)
        return (found,) if isinstance(found, Tensor) else tuple(x for x in found if x is not None)


def of_heads(batch: int, queries: int, keys: int) -> list[Tensor]:
    return [torch.randn(batch, heads, tokens, 9) for heads, tokens in ((6, queries), (3, keys), (3, keys))]


def of_tokens(batch: int, queries: int, keys: int) -> list[Tensor]:
    """Query, key, value and a key_padding_mask."""
    return [*(torch.randn(batch, tokens, 12) for tokens in (queries, keys, keys)), torch.rand(batch, keys) < 0.5]


def of_one_text(batch: int, queries: int, keys: int) -> list[Tensor]:
    return [torch.randn(batch, keys, 7)]


LAYER, DROP_IN = CausalSelfAttention(7, 12, 6, num_kv_heads=3), MultiheadAttention(12, 3, batch_first=True).eval()
CALLS: dict[str, tuple[Called, Callable[[int, int, int], list[Tensor]]]] = {
    "attend, eager": (Called(attend, is_causal=True, implementation="eager"), of_heads),
    "attend, fused": (Called(attend, is_causal=True, implementation="fused"), of_heads),
    "MultiheadAttention": (Called(DROP_IN, is_causal=True), of_tokens),
    "MultiheadAttention, without weights": (Called(DROP_IN, is_causal=True, need_weights=False), of_tokens),
    "CausalSelfAttention": (Called(LAYER), of_one_text),
    "CausalSelfAttention, with sinks": (Called(CausalSelfAttention(7, 12, 6, num_kv_heads=3, sinks=True)), of_one_text),
    "CausalSelfAttention, capped": (
        Called(CausalSelfAttention(7, 12, 6, scale=0.3, softcap=2.0, sinks=True, rotary=Rotary(2))),
        of_one_text,
    ),
}


def assert_same(way: Callable[..., tuple[Tensor, ...]], module: nn.Module, inputs: list[Tensor]) -> None:
    """Compare results and the gradients of inputs and parameters."""
    leaves = [x.requires_grad_() for x in inputs if x.is_floating_point()] + list(module.parameters())
    results = []
    for each in (way, module):
        found = each(*inputs)
        results.append([*found, *torch.autograd.grad(sum(x.square().sum() for x in found), leaves)])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)


@pytest.mark.drawn
@pytest.mark.parametrize("name", CALLS)
def test_it_compiles_for_every_length_with_gradients(name: str) -> None:
    module, draw = CALLS[name]
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend="aot_eager")
    for sizes in ((2, 4, 7), (2, 5, 8), (2, 6, 6)):
        assert_same(compiled, module, draw(*sizes))


@pytest.mark.drawn
@pytest.mark.parametrize("name", CALLS)
def test_it_exports_once_for_every_batch_and_length(name: str) -> None:
    module, draw = CALLS[name]
    example = draw(3, 6, 9)
    shapes = tuple({0: Dim.AUTO, (x.dim() - 2 if x.is_floating_point() else 1): Dim.AUTO} for x in example)
    exported = torch.export.export(module, tuple(example), dynamic_shapes=(shapes,)).module()
    inputs = draw(2, 3, 11)
    torch.testing.assert_close(exported(*inputs), module(*inputs))


@pytest.mark.cuda
@pytest.mark.parametrize("implementation", ["eager", "fused"])
def test_on_a_gpu_it_compiles(implementation: str) -> None:
    module = Called(attend, implementation=implementation, is_causal=True)
    inputs = [torch.randn(2, 3, n, 16, device="cuda") for n in (8, 24, 24)]
    assert_same(torch.compile(module, fullgraph=True), module, inputs)
