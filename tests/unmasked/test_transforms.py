"""Transforms of torch.func in one another, over attention with masks: each nesting against a loop and plain sums."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from unmasked import attend

Loss = Callable[[Tensor, Any], Tensor]
NESTINGS = ["".join(each) for length in (1, 2, 3) for each in product("vgj", repeat=length)]  # the outermost first
KEY, VALUE = torch.randn(2, 2, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
MASKS = {"allowed": ("allowed",), "bias": ("bias",), "both": ("allowed", "bias")}


def ours(implementation: str | None) -> Loss:
    def loss(query: Tensor, given: dict[str, Tensor]) -> Tensor:
        return attend(query, KEY, VALUE, **given, implementation=implementation).context.pow(2)  # type: ignore[arg-type]

    return loss


def plain(query: Tensor, given: dict[str, Tensor]) -> Tensor:
    scores = query @ KEY.mT / 3**0.5 + given.get("bias", torch.zeros(()))
    powers = scores.exp() * given.get("allowed", torch.ones(())).double()
    total = powers.sum(-1, keepdim=True)
    return ((powers / total.where(total > 0, 1.0)) @ VALUE).pow(2)


def transformed(loss: Loss, how: str, batched: bool) -> Loss:
    """Of functions as torch.func has them: along the first axis, the gradient, the derivative along ones."""
    if how == "v":
        return torch.func.vmap(loss, in_dims=(0, 0 if batched else None))  # type: ignore[arg-type]
    if how == "g":
        return lambda query, given: torch.func.grad(lambda it: loss(it, given).sum())(query)
    return lambda query, given: torch.func.jvp(lambda it: loss(it, given), (query,), (torch.ones_like(query),))[1]


def looped(loss: Loss, how: str, batched: bool) -> Loss:
    """The same by a loop and by autograd, which has no derivative along a line but that of a derivative."""
    if how == "v":

        def each(query: Tensor, given: dict[str, Tensor]) -> Tensor:
            items = [{name: x[n] if batched else x for name, x in given.items()} for n in range(len(query))]
            return torch.stack([loss(x, its) for x, its in zip(query, items, strict=True)])

        return each

    def derived(query: Tensor, given: dict[str, Tensor]) -> Tensor:
        query = query if query.requires_grad else query.detach().requires_grad_()
        output = loss(query, given)
        along = torch.ones_like(output, requires_grad=True)
        gradient = torch.autograd.grad(output, query, along, create_graph=True)[0]
        return gradient if how == "g" else torch.autograd.grad(gradient.sum(), along, create_graph=True)[0]

    return derived


@pytest.mark.filterwarnings("ignore:There is a performance drop", "ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("nesting", NESTINGS)
def test_transforms_in_one_another_give_what_a_loop_gives(nesting: str) -> None:
    axes = [2] * nesting.count("v")
    draw = torch.Generator().manual_seed(4)
    query = torch.randn(*axes, 2, 4, 3, dtype=torch.float64, generator=draw)
    fused = ["fused"] * (nesting.replace("v", "") in ("", "g"))  # the kernel has one derivative, and by autograd alone
    for names, batched, implementation in product(MASKS.values(), {True, "v" not in nesting}, ["eager", *fused]):
        shape = [*axes * batched, 4, 5]
        allowed = torch.rand(shape, generator=draw) < 0.6
        allowed[..., 1, :] = False  # a query sees nothing
        allowed[..., 2, :] = True
        every = {"allowed": allowed, "bias": torch.randn(shape, dtype=torch.float64, generator=draw)}
        given = {name: every[name] for name in names}
        got, right = ours(implementation), plain
        for how in reversed(nesting):
            got, right = transformed(got, how, batched), looped(right, how, batched)
        torch.testing.assert_close(got(query, given), right(query, given).detach())
