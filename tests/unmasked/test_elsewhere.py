"""The device that tests have where there is none: what meets, what may not, and where what is made lands."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..elsewhere import elsewhere


@pytest.fixture(autouse=True)
def there() -> Iterator[torch.device]:
    with elsewhere() as device:
        yield device


@pytest.mark.parametrize(
    "meeting",
    [
        lambda x, y: x + y,
        lambda x, y: x.add_(y),
        lambda x, y: y.add_(x),
        lambda x, y: y[0].add_(x[0]),
        lambda x, y: x @ y.mT,
        lambda x, y: torch.cat([x, y]),
        lambda x, y: torch.where(x > 0, x, y),
        lambda x, y: x.masked_fill(y > 0, 0.0),
        lambda x, y: F.linear(x, y),
        lambda x, y: nn.Linear(3, 3)(x),
        lambda x, y: F.scaled_dot_product_attention(x, x, y),
        lambda x, y: torch.einsum("ab,cb->ac", x, y),
        lambda x, y: torch.equal(x, y),
        lambda x, y: y[torch.arange(2, device=x.device)],
        lambda x, y: torch.vmap(torch.mul)(x, y),
        lambda x, y: torch.randn(2, generator=torch.Generator(), device=x.device),
        lambda x, y: copy.deepcopy(x) + y,
        lambda x, y: nn.Parameter(x) * y,
        lambda x, y: nn.MultiheadAttention(3, 1)(x, x, x),
        lambda x, y: y.mul(x.new_ones(2, 3)),
    ],
)
def test_tensors_of_two_devices_do_not_meet(meeting: Callable[[Tensor, Tensor], Any]) -> None:
    x, y = torch.randn(2, 3).to("cuda"), torch.randn(2, 3)
    with pytest.raises(RuntimeError, match=r"on the same device|device type for generator"):
        meeting(x, y)


def test_what_cuda_allows_is_allowed(there: torch.device) -> None:
    x, y = torch.randn(2, 3).cuda(), torch.randn(2, 3)
    assert (x + torch.tensor(1.0)).device == x[torch.tensor([1, 0])].device == there
    assert x[torch.ones(2, dtype=torch.bool)].is_cuda
    x.copy_(y)
    assert torch.equal(x.cpu(), y)
    assert x.tolist() == y.tolist()
    assert x[0, 0].item() == y[0, 0]
    assert bool((x == y.to(x)).all())


def test_what_is_made_lands_where_it_is_asked_for(there: torch.device) -> None:
    x = torch.randn(2, 3, device="cuda")
    made = [x.mT, x.detach(), x.to(torch.float64), x[0].clone(), torch.zeros_like(x), x.new_zeros(3), x.split(1)[1],
            torch.arange(3, device=there), torch.tensor([1.0], device="cuda:0"), torch.as_tensor(x), copy.deepcopy(x),
            torch.zeros(2).to(x), torch.empty(3, device=x.device).normal_(), nn.Linear(3, 3).to("cuda").weight,
            nn.Linear(3, 3, device="cuda")(x), nn.Linear(3, 3).cuda()(x), copy.deepcopy(nn.Linear(3, 3).cuda()).bias,
            *nn.MultiheadAttention(3, 1, add_zero_attn=True).cuda()(x, x, x), nn.LazyLinear(2).cuda()(x),
            F.scaled_dot_product_attention(x, x, x, is_causal=True), torch.vmap(torch.sin)(x)]  # fmt: skip
    assert {each.device for each in made} == {there}
    back = [torch.arange(3), x.cpu(), x.to("cpu"), torch.zeros_like(x, device="cpu"), torch.as_tensor(x, device="cpu"),
            torch.tensor(x.tolist()), x.clone().cpu().new_zeros(3), nn.Linear(3, 3).cuda().cpu().bias]  # fmt: skip
    assert {each.device.type for each in back} == {"cpu"}
    assert x.is_cuda
    assert x.get_device() == 0


def test_gradients_come_back_to_where_their_tensors_are() -> None:
    weight = nn.Linear(3, 3)
    x = torch.randn(2, 3, requires_grad=True)
    weight.cuda()(x.cuda()).square().sum().cpu().backward()
    assert x.grad is not None
    assert x.grad.device.type == "cpu"
    assert weight.weight.grad is not None
    assert weight.weight.grad.is_cuda


def test_numpy_gets_nothing_from_there() -> None:
    with pytest.raises(TypeError, match=r"Use Tensor.cpu\(\) to copy the tensor to host memory first"):
        torch.zeros(2, device="cuda").numpy()
