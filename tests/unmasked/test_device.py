import re
import warnings
from collections.abc import Iterator
from itertools import islice, product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from unmasked.device import Backend, best_device, sdpa_backends

FUSED = {
    SDPBackend.FLASH_ATTENTION: "flash",
    SDPBackend.EFFICIENT_ATTENTION: "efficient",
    SDPBackend.CUDNN_ATTENTION: "cudnn",
}


def test_the_best_device_is_the_first_that_the_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.xpu, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert best_device() == torch.device("cpu")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert best_device() == torch.device("mps")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert best_device() == torch.device("cuda")
    assert best_device("cuda:1") == torch.device("cuda", 1)
    assert best_device(torch.device("cpu")) == torch.device("cpu")
    for asked in ("cuda:2", "xpu", "meta"):
        text = f"device '{asked}' is not available: this machine has cuda:0, cuda:1, mps:0, cpu"
        with pytest.raises(ValueError, match=re.escape(text)):
            best_device(asked)


def test_what_is_no_device_is_refused() -> None:
    with pytest.raises(ValueError, match="name 'gpu' is no device: try one of cuda, mps, xpu, cpu"):
        best_device("gpu")


class Operations(TorchDispatchMode):
    """Writes down which kernels really run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def backend_that_ran(*args: Tensor, **options: Any) -> str | None:
    with Operations() as ran:
        try:
            scaled_dot_product_attention(*args, **options)
        except (RuntimeError, IndexError):
            return None
    return next((name for name in FUSED.values() if any(f"{name}_attention" in op for op in ran.names)), "math")


def layouts(device: str = "cpu", dtype: torch.dtype = torch.float32) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    q, k, v = (torch.ones(2, 3, n, 8, device=device, dtype=dtype) for n in (5, 6, 6))
    yield q, k, v
    yield q[0], k[0], v[0]
    yield q[None], k[None], v[None]
    yield q, k, v.mT.contiguous().mT
    yield q, k, v[..., :4]
    yield q, k[:, :1], v[:, :1]
    yield q, k[:1], v[:1]
    yield q, k[:, :, :0], v[:, :, :0]
    yield q[..., :1], k[..., :1], v[..., :1]
    yield q[..., :4], k, v
    yield q, k.double(), v
    yield q.requires_grad_(), k, v


def masks(keys: int, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Iterator[Tensor | None]:
    yield None
    yield torch.ones(5, keys, device=device, dtype=torch.bool)
    if keys:
        yield torch.ones(keys, device=device, dtype=torch.bool)
    yield torch.ones(5, keys + 1, device=device, dtype=torch.bool)
    yield torch.ones(5, keys, device=device, dtype=torch.int32)
    for shape in [(2, 1, 5, keys), (3, 5, keys)]:
        yield torch.zeros(shape, device=device, dtype=dtype)
    yield torch.zeros(5, keys, device=device, dtype=dtype, requires_grad=True)


def cases(device: str, dtype: torch.dtype) -> Iterator[tuple[tuple[Tensor, Tensor, Tensor], dict[str, Any]]]:
    for q, k, v in layouts(device, dtype):
        for mask in masks(k.shape[-2], device, dtype):
            for dropout_p, is_causal, enable_gqa in product((0.0, 0.1), (False, True), (False, True)):
                options = {"dropout_p": dropout_p, "is_causal": is_causal, "enable_gqa": enable_gqa}
                yield (q, k, v), {"attn_mask": mask, **options}


def assert_predictions_come_true(device: str, dtype: torch.dtype, every: int = 1) -> None:
    fused = FUSED if device == "cuda" else {SDPBackend.FLASH_ATTENTION: "flash"}
    for inputs, options in islice(cases(device, dtype), 0, None, every):
        backends = sdpa_backends(*inputs, **options)
        case = f"{[(x.shape, x.stride()) for x in inputs]} {options}\n{backends}"
        with warnings.catch_warnings(action="ignore"):
            chosen = next((backend.name for backend in backends if backend.chosen), None)
            ran = backend_that_ran(*inputs, **options)
            assert chosen == ran or (ran is None and (chosen, backends[3].can_run) == ("math", False)), case
            for kernel, name in {**fused, SDPBackend.MATH: "math"}.items():
                with sdpa_kernel(kernel):
                    ran = backend_that_ran(*inputs, **options)
                assert next(b.can_run for b in backends if b.name == name) == (ran == name), f"{name}: {case}"
        assert all(bool(backend.why_not) != backend.can_run for backend in backends), case


def test_what_is_predicted_is_what_runs_on_the_cpu() -> None:
    # Every fifth, as 5 divides neither 8 options nor 8 masks: each option still meets each mask and each layout.
    assert_predictions_come_true("cpu", torch.float32, every=5)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_what_is_predicted_is_what_runs_on_a_gpu(dtype: torch.dtype) -> None:
    assert_predictions_come_true("cuda", dtype)


@pytest.mark.cuda
def test_flash_gives_its_reason_against_float32_on_a_gpu() -> None:
    q = torch.ones(2, 3, 5, 8, device="cuda")
    assert "Expected query, key and value to all be of dtype" in sdpa_backends(q, q, q)[0].why_not


def test_each_reason_is_pytorchs_own_and_the_table_shows_it() -> None:
    q = torch.ones(2, 3, 5, 4)
    backends = sdpa_backends(q, q, q[..., :2])
    assert str(backends).splitlines() == [
        "backend    can run  why not",
        "flash      no       Flash attention requires q,k,v to have the same last dimension. Got Query.size(-1): 4, "
        "Key.size(-1): 4, Value.size(-1): 2 instead.",
        "efficient  no       PyTorch has no such kernel on cpu.",
        "cudnn      no       PyTorch has no such kernel on cpu.",
        "math       chosen",
    ]
    assert '<tr><th scope="row">math</th><td>chosen</td><td></td></tr>' in backends._repr_html_()
    assert sdpa_backends(q, q, q, attn_mask=torch.zeros(5, 5, requires_grad=True))[0] == Backend(
        "flash", can_run=False, why_not="attn_mask requires grad.", chosen=False
    )


def test_a_backend_that_is_switched_off_can_run_but_is_not_chosen() -> None:
    q = torch.ones(2, 3, 5, 4)
    assert sdpa_backends(q, q, q)[0] == Backend("flash", can_run=True, why_not="", chosen=True)
    with sdpa_kernel(SDPBackend.MATH):
        assert sdpa_backends(q, q, q)[0] == Backend("flash", can_run=True, why_not="", chosen=False)
        assert not torch.backends.cuda.flash_sdp_enabled()
